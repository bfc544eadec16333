"""Gaussian noise: its scale against L2 sensitivity, what a run spends against what it charges, and the ledger's sums.

Each test would fail for the opposite: noise for a smaller change, a sub-query that is not counted, a rho that is stated
too low, an adjacency that is mixed up, a limit that many small charges pass.
"""

from __future__ import annotations

import functools
import json
import math
import operator
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.evaluation.in_memory import Rows, run_in_memory
from sfumato.pipelines.command_line import cli
from sfumato.pipelines.frame.accounting import admission_cost
from sfumato.schemas.errors import BudgetError, RequestError
from sfumato.schemas.guarantee import REPLACE, ZERO_OUT
from sfumato.schemas.ledger import Charge, Limit, Period
from sfumato.schemas.region import Places
from sfumato.transforms.counting.parameters import CountParameters
from sfumato.transforms.counting.sub_queries import advance_run
from sfumato.transforms.heatmap.request import heatmap_parameters
from sfumato.transforms.privacy.admission import UserCounts, count_users
from sfumato.transforms.privacy.keys import FixedSecret, RunKey
from sfumato.transforms.privacy.ledger.ledger import open_ledger
from sfumato.transforms.privacy.ledger.windows import check_rho, fits
from sfumato.transforms.privacy.mechanism import gaussian_delta, gaussian_rho, rho_for_delta, sigma_for_rho
from sfumato.transforms.release.catalog import disagreement
from sfumato.transforms.release.published_release import open_release
from sfumato.transforms.secagg.encodings import l2_sensitivity
from sfumato.transforms.secagg.shard_sums import NOTHING, count_vectors, sum_shards
from tests.admitted import start
from tests.attacks.jobs import JOBS, charged_run
from tests.conftest import make_logs, write_files
from tests.keys import write_key
from tests.rejections import rejects
from tests.seeds import seeded_rng
from tests.statistics import FLAKE_RATE, chi_square_p, discrete_gaussian_pmf
from tests.unit.privacy.ledger.helpers import charge, ledger

DEPTH, EPSILON, DELTA = 6, 1.0, 1e-6
KEY = RunKey.derive(FixedSecret(b"gaussian costs" * 3), {})
GAUSSIAN: dict[str, Any] = {"depth": DEPTH, "epsilon": EPSILON, "delta": DELTA, "noise": "gaussian"}


def parameters_of(method: str = "flat", **values: Any) -> CountParameters:
    return heatmap_parameters(method, {**GAUSSIAN, **({"level": 5} if method == "flat" else {}), **values})


def nobody(weighted: bool = False) -> Rows:
    none = np.empty(0, dtype=np.uint64)
    return Rows(Places(DEPTH), none, none, np.empty(0, dtype=np.int64) if weighted else None)


def answers(parameters: CountParameters, keys: int) -> tuple[np.ndarray, float]:
    """The noise of a first sub-query over empty logs under several keys, in units of the sums, and its rho."""
    drawn = []
    for number in range(keys):
        key = KEY.narrowed({"number": number})
        state = start(0, parameters, key)
        query = state.query
        assert query is not None
        groups = nobody(parameters.distribution_gamma is not None).shard_groups(state.shard_plan)
        parts = [
            sum_shards(one, query, key, parameters.shard_noise_source, parameters.simulated_dropout) for one in groups
        ]
        after = advance_run(state, functools.reduce(operator.add, parts, NOTHING), parameters, key)
        drawn.append(after.results[0].counts * state.gamma)
    return np.rint(np.concatenate(drawn)).astype(np.int64), query.cost


@pytest.mark.false_alarm(3e-9)
@pytest.mark.parametrize("trust", ["central", "secagg"])
@pytest.mark.parametrize("more", [{}, {"contribution": "all", "gamma": 40}], ids=["one", "all"])
def test_the_noise_is_that_of_the_rho_and_of_the_l2_sensitivity(trust: str, more: dict[str, Any]) -> None:
    """One shard, no users. Noise for 0.85 of the sensitivity fails, and so does noise for 1.15 of it."""
    sample, rho = answers(parameters_of(trust=trust, population=200, **more), 20)
    sensitivity = more.get("gamma", 1)
    for factor, right in ((1.0, True), (0.85, False), (1.15, False)):
        sigma = sigma_for_rho(rho, factor * sensitivity)
        reach = math.ceil(7 * sigma)
        p = chi_square_p(sample, discrete_gaussian_pmf(sigma, np.arange(-reach, reach + 1)))
        assert (p > FLAKE_RATE) is right


@pytest.mark.parametrize("method", ["flat", "count_min", "hierarchical", "adaptive"])
@pytest.mark.parametrize("rounding", ["systematic", "independent"])
def test_no_users_vector_is_longer_than_the_sensitivity(baselines: None, method: str, rounding: str) -> None:
    """Single users of random distributions, also all in one cell: the L2 norm of what they add, by enumeration."""
    parameters = parameters_of(method, contribution="all", gamma=50, rounding=rounding, population=200)
    state = start(0, parameters, KEY)
    query, rng, longest = state.query, seeded_rng(1), 0.0
    assert query is not None
    assert query.sensitivity == l2_sensitivity(50, rounding, query.encoding.length, query.encoding.entries_per_location)
    for cells in (1, 1, 2, 5, 40):
        codes = np.sort(rng.choice(4**DEPTH, cells, replace=False)).astype(np.uint64)
        total = parameters.distribution_total
        assert total is not None
        weights = rng.multinomial(total, np.full(cells, 1 / cells))
        user = np.uint64(rng.integers(1 << 63)) >> np.uint64(2 * DEPTH) << np.uint64(2 * DEPTH)
        rows = Rows(Places(DEPTH), np.full(cells, user), codes, weights)
        sums = [count_vectors(one, slice(0, one.shards), query, KEY) for one in rows.shard_groups(state.shard_plan)]
        norm = math.sqrt(sum(float((one.astype(float) ** 2).sum()) for one in sums))
        assert norm <= query.sensitivity * (1 + 1e-12)
        longest = max(longest, norm)
    if rounding == "systematic":  # a user of one cell reaches the bound
        assert math.isclose(longest, query.sensitivity)


@pytest.mark.parametrize("method", ["adaptive", "flat", "hierarchical", "emd"])
@pytest.mark.parametrize("trust", ["central", "secagg"])
def test_sub_queries_and_the_count_add_up_to_the_charged_rho(baselines: None, method: str, trust: str) -> None:
    parameters = parameters_of(method, trust=trust, population=2000, shard_size=500)
    rng = seeded_rng(3)
    low = np.uint64(2 * DEPTH)
    hashes = np.sort(rng.integers(0, 1 << 64, 2000, dtype=np.uint64)) >> low << low
    codes = rng.integers(0, 4**DEPTH, 2000).astype(np.uint64)
    weights = np.full(2000, parameters.distribution_total) if parameters.distribution_total else None
    state = run_in_memory(Rows(Places(DEPTH), hashes, codes, weights), 2000, parameters, KEY)
    spent = [result.cost for result in state.results]
    parts = [spent] if not state.has_disjoint_shards else [[one] for one in spent]
    worst = max(math.fsum(one) for one in parts)
    assert state.population.cost + worst == parameters.rho  # exactly: multiples of its last binary place
    assert gaussian_delta(parameters.rho, EPSILON) <= DELTA
    for result in state.results:  # the noise that is stated is the one that so much rho buys, and not less
        sums = 1 if parameters.is_one_batch else result.shards - result.shards_lost
        scale = state.shard_plan.shards / sums if not parameters.is_one_batch else 1
        each = result.noise_stddev * state.gamma / (math.sqrt(sums) * scale)
        sensitivity = l2_sensitivity(state.gamma, "systematic", 0, result.encoding.entries_per_location)
        assert gaussian_rho(each, sensitivity) <= result.cost * (1 + 1e-6)


@pytest.mark.false_alarm(1e-9)
def test_the_user_count_has_gaussian_noise_of_its_rho() -> None:
    rule = parameters_of().admission()
    sigma = sigma_for_rho(rule.cost)
    drawn = [count_users(UserCounts(), rule, KEY.narrowed({"n": number})) for number in range(1000)]
    sample = np.array([value for one in drawn for value in (one.users, one.unusable)]).astype(np.int64)
    reach = math.ceil(7 * sigma)
    assert chi_square_p(sample, discrete_gaussian_pmf(sigma, np.arange(-reach, reach + 1))) > FLAKE_RATE
    assert math.isclose(drawn[0].noise_stddev, sigma, rel_tol=1e-9)


@pytest.mark.parametrize(
    ("values", "option"),
    [
        ({"noise": "gaussian"}, "delta"),  # it needs one
        ({"noise": "laplace", "delta": 1e-6}, "delta"),  # it needs none
        ({"noise": "gauss"}, "noise"),
        ({"delta": -1e-9}, "delta"),
        ({"delta": 1e-16}, "delta"),
        ({"delta": 0.02}, "delta"),
        ({"delta": math.nan}, "delta"),
        ({**GAUSSIAN, "noise_source": "client"}, "noise_source"),  # clients' shares do not add up to Gaussian noise
        ({**GAUSSIAN, "participation": "paper"}, "participation"),
    ],
)
def test_contradictions_are_refused(values: dict[str, Any], option: str) -> None:
    with rejects(option):
        heatmap_parameters("adaptive", values)


# --- the ledger ---


def gaussian(release_id: str, day: str, epsilon: float, delta: float, factor: float = 1.0, **more: Any) -> Charge:
    rho = Decimal(repr(factor * rho_for_delta(epsilon, delta)))
    return replace(charge(release_id, day, str(epsilon), str(delta), **more), rho=rho)


@pytest.mark.parametrize("factor", [0.1, 0.99, 1.01])
def test_a_charge_whose_rho_is_understated_is_refused(tmp_path: Path, factor: float) -> None:
    book, limits = ledger(tmp_path), Limit.parse_all("10:1e-6/365d")
    with pytest.raises(RequestError, match="is not the rho of epsilon"):
        book.reserve(gaussian("one", "2026-11-20", 0.5, 1e-6, factor), limits)
    book.reserve(gaussian("one", "2026-11-20", 0.5, 1e-6), limits)
    with pytest.raises(RequestError, match="cannot cost more"):
        book.settle("one", "0.4", "1e-6", "refused", rho=Decimal(1))
    with pytest.raises(RequestError, match="is not the rho of epsilon"):
        book.settle("one", "0.4", "1e-6", "refused", rho=Decimal("1e-9"))
    assert [one.rho for one in book.history(with_limits=True).charges] == [gaussian("one", "2026-11-20", 0.5, 1e-6).rho]


@pytest.mark.slow
def test_many_small_charges_do_not_pass_the_limit(tmp_path: Path) -> None:
    """Rhos of 24 days and epsilons of other releases: what got in composes, by enumeration, to no more than delta."""
    book, limit = ledger(tmp_path), Limit.parse("2:1e-6/24d")
    days = Period.parse("2026-01-01:2026-01-24").days()
    accepted: list[Charge] = []
    for number, day in enumerate(days):
        one = gaussian(f"g{number}", str(day), 0.5, 1e-7)
        if number % 4 == 0:
            one = charge(f"l{number}", str(day), "0.1")
        try:
            book.reserve(one, (limit,))
            accepted.append(one)
        except BudgetError:
            pass
    laplace = sum(one.rho is None for one in accepted)
    rho = float(sum((one.rho for one in accepted if one.rho is not None), Decimal(0)))
    assert 3 < len(accepted) < len(days)
    exact = 0.0
    for flipped in range(laplace + 1):  # randomised responses of epsilon 0.1, and a normal distribution
        kept = 1 / (1 + math.exp(-0.1))
        probability = math.comb(laplace, flipped) * kept ** (laplace - flipped) * (1 - kept) ** flipped
        exact += probability * hockey_stick(rho, 2 - (laplace - 2 * flipped) * 0.1)
    assert exact <= 1e-6
    assert not fits([*accepted, gaussian("more", str(days[-1]), 0.5, 1e-7)], limit)
    assert sum(one.epsilon for one in accepted) > 2  # adding epsilons would have ended before


def hockey_stick(rho: float, epsilon: float) -> float:
    """The delta of a rho at an epsilon of either sign."""
    return gaussian_delta(rho, epsilon) if epsilon >= 0 else 1 - math.exp(epsilon) * (1 - gaussian_delta(rho, -epsilon))


def test_gaussian_charges_of_another_adjacency_are_not_added_up(tmp_path: Path) -> None:
    book = ledger(tmp_path)
    book.reserve(gaussian("one", "2026-11-20", 0.5, 1e-6), Limit.parse_all("5:1e-4/1d,2:1e-4/1d@replace"))
    with pytest.raises(BudgetError, match="replace"):  # two of them: 2 epsilon for each, but composed by 4 rho
        book.reserve(gaussian("two", "2026-11-20", 1.5, 1e-6))
    book.reserve(gaussian("two", "2026-11-20", 0.2, 1e-6, adjacency=REPLACE))
    zero_out = gaussian("three", "2026-11-20", 0.5, 1e-6, dataset="other", adjacency=ZERO_OUT)
    with pytest.raises(RequestError, match="bounds a release with adjacency zero-out"):
        book.reserve(zero_out, Limit.parse_all("5:1e-4/1d"))


@pytest.mark.slow
def test_a_run_is_charged_its_rho_a_refused_one_its_counts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_key(tmp_path / "key")
    write_files(make_logs(900, 1, seed=1), tmp_path, 2)

    def run(release_id: str, *more: str) -> int:
        words, budget = f"{JOBS['heatmap']} --delta=1e-6", "--budget=10:1e-6/365d"
        return charged_run(words, tmp_path / "*.parquet", tmp_path, budget, *more, release_id=release_id, epsilon=0.5)

    assert run("one", "--dry_run") == 0
    text = " ".join(capsys.readouterr().out.split()).replace("0.000001", "1e-6")
    rho = rho_for_delta(0.5, 1e-6)
    assert f"epsilon 0.5 and delta 1e-6 (rho {rho:.4g})" in text
    assert "releases of every day fit this limit up to epsilon 0.383 and delta 1e-6 each" in text
    assert run("one", "--min_users=90000") == 75
    book = open_ledger(str(tmp_path / "ledger.db"))
    refused = book.history(with_limits=True).reservations["one"].charge
    assert refused.rho is not None
    assert math.isclose(float(refused.rho), 0.01 * rho, rel_tol=1e-5)
    assert math.isclose(refused.delta, 1e-8, rel_tol=1e-5)
    assert gaussian_delta(float(refused.rho), float(refused.epsilon)) <= refused.delta
    assert run("two") == 0
    history = book.history(with_limits=True)
    assert float(history.charges[-1].rho or 0) == rho
    privacy = json.loads((tmp_path / "two" / "manifest.json").read_text())["privacy"]
    assert (privacy["noise"], privacy["rho"], privacy["epsilon"], privacy["delta"]) == ("gaussian", rho, 0.5, 1e-6)
    release = open_release(str(tmp_path / "two"))
    assert disagreement(release, history) is None
    release.manifest["privacy"]["rho"] = rho / 2  # type: ignore[index]
    assert disagreement(release, history) is not None
    assert cli.main(["ledger", "verify", "--ledger", str(tmp_path / "ledger.db"), "--releases", str(tmp_path)]) == 0


@pytest.mark.parametrize("epsilon", [1e-4, 0.003, 0.1, 1.0, 30.0])
@pytest.mark.parametrize("delta", [1e-15, 1e-6, 1e-3, 0.01])
@pytest.mark.parametrize("share", [0.001, 0.01, 0.5])
def test_a_refusal_fits_into_its_charge_and_covers_its_counts(epsilon: float, delta: float, share: float) -> None:
    """Else the run would fail on the ledger after its charge. A share of delta needs a large epsilon if delta is."""
    parameters = parameters_of(epsilon=epsilon, delta=delta, population_share=share)
    amounts = (Decimal(repr(one)) for one in (epsilon, delta, parameters.rho))
    cost = parameters.admission().cost
    spent, left, rho = admission_cost(cost, *amounts)
    assert rho is not None
    assert (spent <= epsilon, left <= delta, cost <= rho <= parameters.rho) == (True,) * 3
    assert gaussian_delta(cost, float(spent)) <= float(left)
    check_rho(replace(charge("one", "2026-11-20"), epsilon=spent, delta=left, rho=rho))
