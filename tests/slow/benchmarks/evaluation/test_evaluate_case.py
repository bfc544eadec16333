"""Cases of the evaluation, how they are run, and the table of a comparison."""

from __future__ import annotations

import math
import statistics
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from benchmarks.baselines.heatmap_methods import SpatialDecomposition
from benchmarks.evaluation.cases import make_cases, parse_cases
from benchmarks.evaluation.comparison_table import Row, best_rows, summarise
from benchmarks.evaluation.density_metrics import mean_squared_error
from benchmarks.evaluation.evaluate_case import Evaluation, evaluate_case, evaluate_yardstick, truth_of
from benchmarks.evaluation.gaussian_blur import gaussian_heatmap
from benchmarks.evaluation.in_memory import Rows, run_in_memory
from benchmarks.evaluation.outcomes import BY_TRUTH, YARDSTICK, Outcome, Setting
from benchmarks.evaluation.uniform_levels import uniform_densities
from sfumato.schemas.places import Places
from sfumato.schemas.region import by_row
from sfumato.transforms.counting.estimator import estimate_density
from sfumato.transforms.privacy.keys import FixedSecret, RunKey
from tests.seeds import seeded_rng
from tests.slow.benchmarks.evaluation.samples import CALIBRATIONS, EPSILONS, QUALITY, USERS, sample_outcomes

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


def test_earlier_release_has_its_own_cohort_and_key() -> None:
    rows, earlier = crowd(), crowd(seed=7)
    (case,) = cases("adaptive", users=[CROWD], earlier_releases=[1], epsilon=[0.5])
    evaluation, truth, method = Evaluation(("mse",)), rows.histogram(), case.parameters.method
    (found,) = evaluate_case(case, rows, CROWD, 2, evaluation, truth, KEY, earlier)
    metadata = {**case.parameters.metadata(), "number": 2}
    before = run_in_memory(earlier, CROWD, case.parameters, KEY.narrowed({**metadata, "earlier": 1}))
    prior = method.decode(before, DEPTH)
    state = run_in_memory(rows, CROWD, case.parameters, KEY.narrowed(metadata), prior)
    exact, made = truth_of(truth), estimate_density(method.decode(state, DEPTH), DEPTH)
    assert found.metrics["mse"] == mean_squared_error(made, exact)
    assert len(state.results) == 1
    assert found.entries == state.results[0].vector_length  # what the earlier release cost is not counted
    (cold,) = evaluate_case(replace(case, earlier=0), rows, CROWD, 2, evaluation, truth, KEY)
    (other,) = evaluate_case(case, rows, CROWD, 2, evaluation, truth, KEY, crowd(seed=8))
    assert len({one.metrics["mse"] for one in (found, cold, other)}) == 3


def test_a_run_whose_shards_are_all_lost_has_no_figures() -> None:
    rows, (case,) = (
        crowd(),
        cases("flat", dropout=[0.5], dropout_margin=[0.0], shard_size=[10_000], participation=["paper"]),
    )
    half = rows.only(np.arange(CROWD) % 4 == 0)
    (outcome,) = evaluate_case(case, half, CROWD, 0, Evaluation(("mse",)), rows.histogram(), KEY)
    assert math.isnan(outcome.metrics["mse"])
    assert (outcome.entries, outcome.shards_lost) == (0, 1.0)


def test_one_location_and_distributions_share_users() -> None:
    """A row has the upper bits of its user's hash where users have one location, and the whole hash elsewhere."""
    rng = seeded_rng(5)
    users = np.sort(rng.integers(0, 1 << 64, CROWD, dtype=np.uint64))
    shift = np.uint64(2 * DEPTH)
    codes = np.zeros(CROWD, dtype=np.uint64)
    one, many = (
        Rows(Places(DEPTH), users >> shift << shift, codes),
        Rows(Places(DEPTH), users, codes, np.ones(CROWD, dtype=np.int64)),
    )
    subkey = KEY.subkey("cohort", 1)
    drawn = [rows.rehashed(subkey).below(0.1) for rows in (one, many)]
    assert np.array_equal(*drawn)
    assert abs(drawn[0].mean() - 0.1) < 6.2 * math.sqrt(0.09 / CROWD)
    other = many.rehashed(KEY.subkey("cohort", 2)).below(0.1)
    assert abs((drawn[1] & other).mean() - 0.01) < 6.2 * math.sqrt(0.0099 / CROWD)
    assert len(np.unique(many.rehashed(subkey).users)) == CROWD


def test_parse_cases_reads_what_the_tables_state(baselines: None) -> None:
    text = "--methods adaptive,flat --users 1000,2000 --schedule paper --split_count auto,10 --metrics mse,l1"
    cases, metrics = parse_cases(text)
    assert metrics == ("mse", "l1")
    values = {"users": [1000, 2000], "schedule": ["paper"], "split_count": [None, 10]}
    assert cases == make_cases(["adaptive", "flat"], values)
    (flagged,), _ = parse_cases("--methods flat --modulus 65536 --allow_overflow --metrics mse")
    assert flagged.parameters.allow_overflow
    (negative,), _ = parse_cases("--methods spatial_decomposition --budget_doubling -3 --metrics mse")
    assert negative.parameters.method == SpatialDecomposition(budget_doubling=-3)


# Means, standard errors, ratios to the yardstick, groups and Markdown.

METRICS = ("mse", "l1", "similarity")


@pytest.fixture(scope="module")
def outcomes() -> list[Outcome]:
    return sample_outcomes(METRICS, side=16)


@pytest.fixture(scope="module")
def rows(outcomes: list[Outcome]) -> list[Row]:
    return summarise(outcomes, METRICS)


def run(method: str, key: int, mse: float, entries: int = 10, **options: Any) -> Outcome:
    return Outcome(Setting(method, tuple(options.items())), key, {"mse": mse}, entries, 17 * entries)


def test_means_and_standard_errors(outcomes: list[Outcome], rows: list[Row]) -> None:
    assert len(rows) == len(USERS) * (1 + len(EPSILONS) * (len(QUALITY) - 1 + len(CALIBRATIONS)))
    for row in rows:
        mine = [one for one in outcomes if one.setting == row.setting]
        assert row.keys == len(mine) == 4
        for name in METRICS:
            values = [one.metrics[name] for one in mine]
            if any(map(math.isnan, values)):
                assert math.isnan(row.metrics[name].value)
                assert row.metrics[name].text == "-"
                assert math.isnan(row.entries)
                continue
            assert row.metrics[name].value == pytest.approx(statistics.fmean(values), rel=1e-12)
            assert row.metrics[name].error == pytest.approx(statistics.stdev(values) / 2, rel=1e-9)
            assert row.entries == statistics.fmean(one.entries for one in mine)
            assert row.bits == statistics.fmean(one.bits for one in mine)


def test_ratio_is_paired_by_key_with_the_delta_methods_error() -> None:
    rng = seeded_rng(3)
    y = rng.uniform(1, 3, 12)
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


def test_best_of_a_group_is_private_and_respects_what_is_better(rows: list[Row]) -> None:
    best = best_rows(rows, METRICS)
    expected = {
        (Setting("adaptive", (("users", users), ("epsilon", epsilon), ("calibration", 0.1))), name)
        for users in USERS
        for epsilon in EPSILONS
        for name in METRICS
    }
    assert best == expected
    level = [run("flat", 0, 1.0), run("emd", 0, 1.0), run("count_min", 0, 2.0), run("best_level", 0, 0.5)]
    tied = {setting.method for setting, _ in best_rows(summarise(level, ["mse"]), ["mse"])}
    assert tied == {"flat", "emd"}
    assert best_rows(summarise([run("flat", 0, 1.0), run("best_level", 0, 2.0)], ["mse"]), ["mse"]) == set()
    failed = [run("flat", 0, math.nan), run("emd", 0, math.nan)]
    assert best_rows(summarise(failed, ["mse"]), ["mse"]) == set()
