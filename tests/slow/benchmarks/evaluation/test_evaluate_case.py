"""Outcomes by hand: the yardstick's survivors, truth of everybody or of the cohort, levels by truth."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from benchmarks.evaluation.cases import make_cases
from benchmarks.evaluation.density_metrics import mean_squared_error
from benchmarks.evaluation.evaluate_case import Evaluation, evaluate_case, evaluate_yardstick, truth_of
from benchmarks.evaluation.gaussian_blur import gaussian_heatmap
from benchmarks.evaluation.in_memory import Rows, run_in_memory
from benchmarks.evaluation.outcomes import BY_TRUTH, YARDSTICK
from benchmarks.evaluation.uniform_levels import uniform_densities
from sfumato.schemas.places import Places
from sfumato.schemas.region import by_row
from sfumato.transforms.heatmap.posterior.estimator import estimate_density
from sfumato.transforms.privacy.keys import FixedSecret, RunKey
from tests.seeds import seeded_rng

KEY = RunKey.derive(FixedSecret(b"outcomes" * 4), {})
DEPTH, USERS = 4, 3000


def crowd(seed: int = 0) -> Rows:
    rng = seeded_rng(seed)
    shares = rng.dirichlet(np.full(4**DEPTH, 0.3))
    codes = rng.choice(4**DEPTH, USERS, p=shares).astype(np.uint64)
    return Rows(Places(DEPTH), np.sort(rng.integers(0, 1 << 63, USERS).astype(np.uint64) << np.uint64(1)), codes)


def cases(*methods: str, **values: list[float]):
    return make_cases(methods, {"depth": [DEPTH], "shard_size": [1000], **values})


def test_the_yardstick_is_the_best_level_of_the_survivors_exact_cells() -> None:
    rows, (case,) = crowd(), cases("flat", dropout=[0.3])
    truth = crowd(seed=1).histogram()
    evaluation = Evaluation(("mse",))
    found = evaluate_yardstick(case, rows, 2, evaluation, truth, KEY)
    stays = ~rows.rehashed(KEY.subkey("vanished", 2)).below(0.3)
    assert abs(stays.mean() - 0.7) < 6.2 * math.sqrt(0.21 / USERS)
    sample = by_row(rows.only(stays).histogram())
    expected = min(mean_squared_error(level, truth_of(truth)) for level in uniform_densities(sample))
    assert found.metrics["mse"] == pytest.approx(expected, rel=1e-12)
    assert found.setting.method == YARDSTICK
    assert (found.entries, found.bits, found.picture) == (2, 2 * DEPTH, None)


def test_the_truth_may_be_the_cohorts_and_blurred() -> None:
    rows, (case,) = crowd(), cases("flat", epsilon=[30.0], trust=["central"])
    everybody = crowd(seed=1).histogram()
    exact = Evaluation(("mse", "l1"), of_cohort=True)
    (own,) = evaluate_case(case, rows, USERS, 0, exact, everybody, KEY)
    assert own.metrics == {"mse": 0.0, "l1": 0.0}  # at epsilon 30 noise is 0 but for a probability of 1e-12 an entry
    (other,) = evaluate_case(case, rows, USERS, 0, Evaluation(("mse",)), everybody, KEY)
    sample = truth_of(rows.histogram())
    assert other.metrics["mse"] == pytest.approx(mean_squared_error(sample, truth_of(everybody)))
    (blurred,) = evaluate_case(case, rows, USERS, 0, Evaluation(("mse",), blur=0.1), everybody, KEY)
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
    chosen, by_truth = evaluate_case(case, rows, USERS, 1, Evaluation(("mse",)), rows.histogram(), KEY)
    assert by_truth.setting.method == method + BY_TRUTH
    state = run_in_memory(rows, USERS, case.parameters, KEY.narrowed({**case.parameters.metadata(), "number": 1}))
    exact = truth_of(rows.histogram())
    errors = [mean_squared_error(estimate_density(one.to_estimate(), DEPTH), exact) for one in state.results]
    assert len(errors) > 1
    assert by_truth.metrics["mse"] == min(errors)
    assert by_truth.entries == chosen.entries == sum(one.spent.vector_length for one in state.results)


def test_methods_without_levels_have_one_outcome() -> None:
    rows, (case,) = crowd(), cases("adaptive", schedule=["paper"], estimator=["last"])
    (found,) = evaluate_case(case, rows, USERS, 1, Evaluation(("mse",)), rows.histogram(), KEY)
    assert found.setting.method == "adaptive"


def test_another_number_has_other_noise_and_the_same_number_the_same() -> None:
    rows, (case,) = crowd(), cases("flat", epsilon=[0.5])
    one, two, again = (
        next(evaluate_case(case, rows, USERS, number, Evaluation(("mse",)), rows.histogram(), KEY))
        for number in (1, 2, 1)
    )
    assert one.metrics == again.metrics
    assert one.metrics != two.metrics


def test_an_earlier_release_is_of_the_earlier_cohort_under_a_key_of_its_own() -> None:
    rows, earlier = crowd(), crowd(seed=7)
    (case,) = cases("adaptive", users=[USERS], earlier_releases=[1], epsilon=[0.5])
    evaluation, truth, method = Evaluation(("mse",)), rows.histogram(), case.parameters.method
    (found,) = evaluate_case(case, rows, USERS, 2, evaluation, truth, KEY, earlier)
    metadata = {**case.parameters.metadata(), "number": 2}
    before = run_in_memory(earlier, USERS, case.parameters, KEY.narrowed({**metadata, "earlier": 1}))
    prior = method.decode(before, DEPTH)
    state = run_in_memory(rows, USERS, case.parameters, KEY.narrowed(metadata), prior)
    exact, made = truth_of(truth), estimate_density(method.decode(state, DEPTH), DEPTH)
    assert found.metrics["mse"] == mean_squared_error(made, exact)
    assert len(state.results) == 1
    assert found.entries == state.results[0].spent.vector_length  # what the earlier release cost is not counted
    (cold,) = evaluate_case(replace(case, earlier=0), rows, USERS, 2, evaluation, truth, KEY)
    (other,) = evaluate_case(case, rows, USERS, 2, evaluation, truth, KEY, crowd(seed=8))
    assert len({one.metrics["mse"] for one in (found, cold, other)}) == 3


def test_a_run_whose_shards_are_all_lost_has_no_figures() -> None:
    rows, (case,) = (
        crowd(),
        cases("flat", dropout=[0.5], dropout_margin=[0.0], shard_size=[10_000], participation=["paper"]),
    )
    half = rows.only(np.arange(USERS) % 4 == 0)
    (outcome,) = evaluate_case(case, half, USERS, 0, Evaluation(("mse",)), rows.histogram(), KEY)
    assert math.isnan(outcome.metrics["mse"])
    assert (outcome.entries, outcome.shards_lost) == (0, 1.0)


def test_one_location_and_distributions_are_drawn_of_the_same_users() -> None:
    """A row has the upper bits of its user's hash where users have one location, and the whole hash elsewhere."""
    rng = seeded_rng(5)
    users = np.sort(rng.integers(0, 1 << 64, USERS, dtype=np.uint64))
    shift = np.uint64(2 * DEPTH)
    codes = np.zeros(USERS, dtype=np.uint64)
    one, many = (
        Rows(Places(DEPTH), users >> shift << shift, codes),
        Rows(Places(DEPTH), users, codes, np.ones(USERS, dtype=np.int64)),
    )
    subkey = KEY.subkey("cohort", 1)
    drawn = [rows.rehashed(subkey).below(0.1) for rows in (one, many)]
    assert np.array_equal(*drawn)
    assert abs(drawn[0].mean() - 0.1) < 6.2 * math.sqrt(0.09 / USERS)
    other = many.rehashed(KEY.subkey("cohort", 2)).below(0.1)
    assert abs((drawn[1] & other).mean() - 0.01) < 6.2 * math.sqrt(0.0099 / USERS)
    assert len(np.unique(many.rehashed(subkey).users)) == USERS


def test_depths_share_their_users() -> None:
    rows = crowd()
    coarse = rows.coarser(2)
    assert coarse.histogram().tolist() == rows.histogram().reshape(16, 16).sum(axis=1).tolist()
    (case,) = make_cases(["flat"], {"depth": [2], "epsilon": [30.0], "trust": ["central"]})
    (outcome,) = evaluate_case(case, rows, USERS, 0, Evaluation(("mse",)), rows.histogram(), KEY)
    assert outcome.metrics["mse"] == 0
