"""Attacks 2, 5 and 18, for histograms, hot spots and quantiles: a run failed or not by an exact number, or by luck.

`--max_bad_fraction`, the number of rows, `--contact limited` and an empty count decided on exact numbers, after the
charge; the exit status told these numbers. Now a run is refused by noisy counts alone, and clean logs never are.
"""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from sfumato.pipelines.command_line import cli
from sfumato.transforms.histogram.central_counts import CentralCountPlan
from sfumato.transforms.histogram.plan import SamplePlan
from sfumato.transforms.privacy.admission import FALSE_REFUSAL_PROBABILITY, AdmissionRule
from sfumato.transforms.privacy.mechanism import noise_quantile
from tests.conftest import write_files
from tests.seeds import seeded_rng

JOBS = {
    "histogram": ["--column", "kind"],
    "histogram of cells": ["--region", "0,0,1,1", "--cells", "4"],
    "hotspots": ["--column", "kind"],
    "quantiles": ["--column", "length", "--range", "0,10", "--ranges", "0:5"],
    "quantiles by search": ["--column", "length", "--range", "0,10", "--method", "interactive", "--bits", "6"],
}
MOST = 1e-6  # probability of a failure after the charge


def logs(folder: Path, users: int, unusable: int = 0) -> str:
    """One row a user; the kind of the last users is missing."""
    rng = seeded_rng(users)
    kinds = [*rng.choice(["bus", "tram", "walk"], users - unusable).tolist(), *[None] * unusable]
    columns = {name: rng.uniform(0, 1, users) for name in ("latitude", "longitude")}
    table = pa.table({"user_id": range(users), "kind": kinds, "length": rng.exponential(3, users), **columns})
    return write_files(table, folder, 1)


def status(job: str, pattern: str, output: Path, *more: str) -> int:
    options = [*JOBS[job], "--input", pattern, "--output", str(output), "--seed", "1", *more]
    return cli.main([job.split()[0], *options])


@pytest.mark.parametrize("job", JOBS)
def test_few_users_give_a_release_however_little_it_shows(tmp_path: Path, job: str) -> None:
    assert status(job, logs(tmp_path / "logs", 50), tmp_path / "out") == 0
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text())
    assert manifest["results"]["published"] >= 0
    assert "this release is empty" in " ".join(manifest["warnings"])
    assert (tmp_path / "out" / "index.html").stat().st_size > 10_000


@pytest.mark.parametrize("limit", [0.0, 0.05, 0.1, 0.5])
@pytest.mark.parametrize("epsilon", [0.1, 1.0, 10.0])
@pytest.mark.parametrize("plan", [SamplePlan, CentralCountPlan])
def test_clean_logs_are_refused_with_less_than_a_millionth(
    limit: float, epsilon: float, plan: type[SamplePlan | CentralCountPlan]
) -> None:
    """Exactly, for every number of users: usable users only lower the statistic, so nobody is the worst case."""
    rule = plan(epsilon=epsilon, max_bad_fraction=limit).admission_rule
    margin = noise_quantile(rule.noise_cost, FALSE_REFUSAL_PROBABILITY)
    noise, law = laplace(rule.noise_cost, 4 * margin + 50)
    # Refused where (1 - limit) unusable - limit users > margin, in numbers of the sample.
    at_least = np.append(np.cumsum(law[::-1])[::-1], 0.0)  # P[Z >= noise[i]]
    needed = np.floor((margin + limit * noise) / (1 - limit)) + 1
    tail = at_least[np.clip(needed - noise[0], 0, len(noise)).astype(int)]
    cut_off = 4 * math.exp(-rule.noise_cost * noise[-1])
    assert law @ tail + cut_off < MOST
    assert law @ tail > 0  # there is a refusal to speak of


def test_a_true_population_is_hardly_ever_refused() -> None:
    """By the noise's exact tail and the binomial's: at 50 users, and at as many as make the sampling matter."""
    from scipy import stats

    for users in (50, 1000, 20_000, 10**6):
        rule = SamplePlan(population=max(users, 200)).admission_rule
        margin = noise_quantile(rule.noise_cost, FALSE_REFUSAL_PROBABILITY)
        assert laplace_tail(rule.noise_cost, margin) <= FALSE_REFUSAL_PROBABILITY
        exponent = -math.log(FALSE_REFUSAL_PROBABILITY)
        rate = rule.sampling_rate
        slack = rate * (math.sqrt(2 * exponent * users * (1 - rate) / rate) + exponent / (3 * rate))
        low, high = users * rate - slack, users * rate + slack
        outside = stats.binom.cdf(math.ceil(low) - 1, users, rate) + stats.binom.sf(math.floor(high), users, rate)
        assert outside + 2 * FALSE_REFUSAL_PROBABILITY < MOST


def test_no_status_tells_an_exact_number_of_rows(tmp_path: Path) -> None:
    threshold = SamplePlan().sampling.threshold
    found = [status("histogram", logs(tmp_path / f"{n}", n), tmp_path / f"out-{n}") for n in (threshold - 1, threshold)]
    assert found == [0, 0]


@pytest.mark.slow
def test_no_status_tells_an_exact_number_of_bad_rows(tmp_path: Path) -> None:
    """A tenth of 1,000 rows was allowed, and one more was not."""
    found = [status("histogram", logs(tmp_path / f"{n}", 1000, n), tmp_path / f"out-{n}") for n in (100, 101)]
    assert found == [0, 0]


@pytest.mark.false_alarm(2e-7)
def test_no_status_tells_how_many_users_drew_themselves(tmp_path: Path) -> None:
    """Limited contact, as for fewer users than there are: more users were sampled than the plan has.

    The stated population is wrong by 900, of 1,500. By the exact laws of sample and noise such a run is refused with a
    probability of 1.4e-7. Of 3,000 users it would be one of 4e-5.
    """
    pattern = logs(tmp_path / "logs", 2400)
    plan = SamplePlan(population=1500, contact="limited")
    assert plan.contacted_users is not None
    assert plan.contacted_users < 0.9 * 2400 * plan.sampling.rate
    more = ["--population", "1500", "--contact", "limited"]
    assert status("histogram", pattern, tmp_path / "out", *more) == 0  # the noise may explain the difference
    privacy = json.loads((tmp_path / "out" / "manifest.json").read_text())["privacy"]
    assert not [text for text in privacy["assumptions"] if "population" in text]  # delta holds for any number of users


@pytest.mark.parametrize(("epsilon", "rate"), [(0.001, 0.25), (0.01, 0.25), (0.5, 0.25), (0.01, 1.0), (2.0, 0.5)])
def test_the_noisy_counts_cost_what_they_say(epsilon: float, rate: float) -> None:
    """One user more in a secret sample: the exact laws of the noisy count differ by epsilon at most, and by no less."""
    rule = AdmissionRule(epsilon, sampling_rate=rate)
    _, law = laplace(rule.noise_cost, math.ceil(20 / rule.noise_cost))
    without = law[1:-1]
    beside = (1 - rate) * law[1:-1] + rate * law[:-2]  # drawn with probability `rate`, and then one more
    loss = np.abs(np.log(beside / without))
    assert loss.max() <= epsilon * (1 + 1e-9)
    assert loss.max() >= epsilon * (1 - 1e-6)


def laplace(epsilon: float, most: int) -> tuple[np.ndarray, np.ndarray]:
    """Values -most..most, and their probabilities as discrete Laplace noise of sensitivity 1."""
    values = np.arange(-most, most + 1)
    return values, np.exp(-epsilon * np.abs(values)) * math.tanh(epsilon / 2)


def laplace_tail(epsilon: float, above: int) -> float:
    """P[Z > above]."""
    return math.exp(-epsilon * (above + 1)) / (1 + math.exp(-epsilon))
