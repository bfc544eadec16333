"""Cases of the evaluation, how they are run, and the table of a comparison."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from benchmarks.evaluation.cases import make_cases
from benchmarks.evaluation.comparison_table import summarise
from benchmarks.evaluation.density_metrics import mean_squared_error
from benchmarks.evaluation.evaluate_case import Evaluation, evaluate_case, evaluate_yardstick, truth_of
from benchmarks.evaluation.gaussian_blur import gaussian_heatmap
from benchmarks.evaluation.in_memory import Rows, run_in_memory
from benchmarks.evaluation.outcomes import BY_TRUTH, YARDSTICK, Outcome, Setting
from benchmarks.evaluation.uniform_levels import uniform_densities
from sfumato.schemas.region import Places, by_row
from sfumato.transforms.counting.estimator import estimate_density
from sfumato.transforms.privacy.keys import FixedSecret, RunKey
from tests.seeds import seeded_rng

# Outcomes by hand: the yardstick's survivors, truth of everybody or of the cohort, levels by truth.

KEY = RunKey.derive(FixedSecret(b"outcomes" * 4), {})
DEPTH, CROWD = 4, 3000


def crowd(seed: int = 0) -> Rows:
    rng = seeded_rng(seed)
    shares = rng.dirichlet(np.full(4**DEPTH, 0.3))
    codes = rng.choice(4**DEPTH, CROWD, p=shares).astype(np.uint64)
    return Rows(Places(DEPTH), np.sort(rng.integers(0, 1 << 63, CROWD).astype(np.uint64) << np.uint64(1)), codes)


def cases(*methods: str, **values: list[float]):
    return make_cases(methods, {"depth": [DEPTH], "shard_size": [1000], **values})


def test_yardstick_is_the_best_level_of_exact_survivors() -> None:
    rows, (case,) = crowd(), cases("flat", dropout=[0.3])
    truth = crowd(seed=1).histogram()
    evaluation = Evaluation(("mse",))
    found = evaluate_yardstick(case, rows, 2, evaluation, truth, KEY)
    stays = ~rows.rehashed(KEY.subkey("vanished", 2)).below(0.3)
    assert abs(stays.mean() - 0.7) < 6.2 * math.sqrt(0.21 / CROWD)
    sample = by_row(rows.only(stays).histogram())
    expected = min(mean_squared_error(level, truth_of(truth)) for level in uniform_densities(sample))
    assert found.metrics["mse"] == pytest.approx(expected, rel=1e-12)
    assert found.setting.method == YARDSTICK
    assert (found.entries, found.bits, found.picture) == (2, 2 * DEPTH, None)


def test_the_truth_may_be_the_cohorts_and_blurred() -> None:
    rows, (case,) = crowd(), cases("flat", epsilon=[30.0], trust=["central"])
    everybody = crowd(seed=1).histogram()
    exact = Evaluation(("mse", "l1"), of_cohort=True)
    (own,) = evaluate_case(case, rows, CROWD, 0, exact, everybody, KEY)
    assert own.metrics == {"mse": 0.0, "l1": 0.0}  # at epsilon 30 noise is 0 but for a probability of 1e-12 an entry
    (other,) = evaluate_case(case, rows, CROWD, 0, Evaluation(("mse",)), everybody, KEY)
    sample = truth_of(rows.histogram())
    assert other.metrics["mse"] == pytest.approx(mean_squared_error(sample, truth_of(everybody)))
    (blurred,) = evaluate_case(case, rows, CROWD, 0, Evaluation(("mse",), blur=0.1), everybody, KEY)
    shown = gaussian_heatmap(sample, 0.1), gaussian_heatmap(truth_of(everybody), 0.1)
    assert blurred.metrics["mse"] == pytest.approx(mean_squared_error(*shown))
    assert own.picture is not None
    assert np.allclose(own.picture, sample)


@pytest.mark.parametrize(
    ("method", "values"),
    [("hierarchical", {}), ("adaptive", {"schedule": ["paper"], "estimator": ["last"], "sub_query_share": [0.25]})],
)
def test_methods_with_levels_are_also_judged_by_the_best_of_them(
    baselines: None, method: str, values: dict[str, list[object]]
) -> None:
    rows, (case,) = crowd(), cases(method, **values)
    chosen, by_truth = evaluate_case(case, rows, CROWD, 1, Evaluation(("mse",)), rows.histogram(), KEY)
    assert by_truth.setting.method == method + BY_TRUTH
    state = run_in_memory(rows, CROWD, case.parameters, KEY.narrowed({**case.parameters.metadata(), "number": 1}))
    exact = truth_of(rows.histogram())
    errors = [mean_squared_error(estimate_density(one.to_estimate(), DEPTH), exact) for one in state.results]
    assert len(errors) > 1
    assert by_truth.metrics["mse"] == min(errors)
    assert by_truth.entries == chosen.entries == sum(one.vector_length for one in state.results)


# Means, standard errors, ratios to the yardstick, groups and Markdown.


def run(method: str, key: int, mse: float, entries: int = 10, **options: Any) -> Outcome:
    return Outcome(Setting(method, tuple(options.items())), key, {"mse": mse}, entries, 17 * entries)


def test_ratio_is_paired_by_key_with_the_delta_methods_error() -> None:
    rng = seeded_rng(3)
    y = rng.permutation(np.linspace(1, 3, 12))  # drawn values were too much alike for the last line once in 10,000
    x = 1.3 * y + rng.normal(0, 0.1, 12)
    runs = [run("best_level", key, value) for key, value in enumerate(y)]
    runs += [run("flat", key, x[key]) for key in rng.permutation(12)]
    ratio = summarise(runs, ["mse"])[1].ratio
    assert ratio is not None
    assert ratio.value == pytest.approx(x.mean() / y.mean(), rel=1e-12)
    # The textbook form: variances of both means and their covariance.
    spread = np.cov(x, y, ddof=1) / 12
    slope = np.array([1.0, -ratio.value]) / y.mean()
    assert ratio.error == pytest.approx(math.sqrt(slope @ spread @ slope), rel=1e-9)
    # Unpaired, the cohorts' own spread would drown it.
    assert ratio.error < 0.3 * math.hypot(*(np.sqrt(np.diag(spread)) / y.mean()))


def test_ratio_is_to_the_yardstick_of_the_same_cohort() -> None:
    runs = [run("best_level", 0, 1.0 * users, users=users, dropout=d) for users in (1, 2) for d in (0.0, 0.1)]
    runs += [
        run("flat", 0, 3.0 * users, users=users, epsilon=epsilon, dropout=d)
        for users in (1, 2)
        for epsilon in (0.5, 1.0)
        for d in (0.0, 0.1)
    ]
    ratios = [row.ratio.value for row in summarise(runs, ["mse"]) if row.ratio and row.setting.method == "flat"]
    assert ratios == [3.0] * 8
