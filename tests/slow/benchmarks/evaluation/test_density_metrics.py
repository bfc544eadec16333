import math

import numpy as np
import pytest

from benchmarks.evaluation.density_metrics import HIGHER_IS_BETTER, KL_EPSILON, METRICS, coarsen, evaluate

# By hand: differences 0.1, 0.3, 0, 0.2 over t = 0.5, 0.3, 0.2, 0.
ESTIMATE = np.array([[0.6, 0.0], [0.2, 0.2]])
TRUTH = np.array([[0.5, 0.3], [0.2, 0.0]])
BY_HAND = {
    "mse": (0.01 + 0.09 + 0 + 0.04) / 4,
    "l1": 0.6,
    "l1_matrix_norm": 0.3 + 0.2,
    "mape": (0.1 / 0.5 + 0.3 / 0.3 + 0 + 0.2 / 0.2) / 4,
    "smape": (0.1 / 0.55 + 0.3 / 0.15 + 0 + 0.2 / 0.1) / 4,
    "maape": (math.atan(0.2) + math.atan(1) + 0 + math.pi / 2) / 4,
    "similarity": 0.5 + 0 + 0.2 + 0,
    "pearson": np.corrcoef(ESTIMATE.ravel(), TRUTH.ravel())[0, 1],
    "kl": 0.5 * math.log(0.5 / 0.6) + 0.3 * math.log(0.3 / KL_EPSILON),
    "emd": 0.15,  # 0.1 from the north-east to the north-west and 0.2 to the south-east, half a side each
}
PERFECT = {name: 1.0 if name in HIGHER_IS_BETTER else 0.0 for name in METRICS}


def needs_ortools(names) -> None:
    if "emd" in names:
        pytest.importorskip("ortools")


@pytest.mark.parametrize("name", METRICS)
def test_by_hand(name: str) -> None:
    needs_ortools([name])
    # An epsilon of 2e-16 beside 0.5, or a sum of four terms: 1e-14 is a hundred times the rounding.
    assert evaluate(ESTIMATE, TRUTH, [name]) == {name: pytest.approx(BY_HAND[name], rel=1e-14, abs=1e-12)}


@pytest.mark.parametrize("name", METRICS)
def test_the_truth_itself_is_best_and_better_says_which_way(name: str) -> None:
    needs_ortools([name])
    perfect, other = evaluate(TRUTH, TRUTH, [name])[name], evaluate(ESTIMATE, TRUTH, [name])[name]
    assert perfect == pytest.approx(PERFECT[name], abs=1e-14)
    assert (other > perfect) == (name not in HIGHER_IS_BETTER)


@pytest.mark.parametrize("name", METRICS)
def test_constant_and_empty_densities_have_numbers(name: str) -> None:
    needs_ortools([name])
    uniform = np.full((8, 8), 1 / 64)
    point = np.zeros((8, 8))
    point[2, 5] = 1
    for estimate, truth in ((uniform, point), (point, uniform), (uniform, uniform)):
        assert math.isfinite(evaluate(estimate, truth, [name])[name])
    # An estimate that says nothing counts as the uniform one.
    assert evaluate(np.zeros((8, 8)), point, [name]) == evaluate(uniform, point, [name])


def test_pearson_of_a_constant_is_zero_whatever_its_rounding() -> None:
    third = np.full((8, 8), 1 / 3) / (64 / 3)
    third[0, 0] = np.nextafter(third[0, 0], 1)
    sloping = np.arange(64.0).reshape(8, 8) / np.arange(64).sum()
    assert METRICS["pearson"](third, sloping) == 0
    assert METRICS["pearson"](sloping, third) == 0
    assert METRICS["pearson"](np.zeros((8, 8)), sloping) == 0
    # A slope of a millionth is no rounding.
    assert METRICS["pearson"](third + 1e-6 * sloping, sloping) == pytest.approx(1, abs=1e-6)


def test_matrix_norm_sums_columns_and_not_rows() -> None:
    estimate, truth = np.zeros((4, 4)), np.zeros((4, 4))
    estimate[:, 1], truth[:, 2] = 0.25, 0.25
    assert evaluate(estimate, truth, ["l1_matrix_norm"]) == {"l1_matrix_norm": 1.0}
    assert evaluate(estimate.T, truth.T, ["l1_matrix_norm"]) == {"l1_matrix_norm": 0.5}


def test_mape_divides_by_the_smallest_positive_truth() -> None:
    estimate, truth = np.array([[0.5, 0.5], [0, 0]]), np.array([[0.75, 0.25], [0, 0]])
    assert evaluate(estimate, truth, ["mape"])["mape"] == pytest.approx((1 / 3 + 1) / 4)
    moved = np.array([[0.5, 0.25], [0.25, 0]])
    assert evaluate(moved, truth, ["mape"])["mape"] == pytest.approx((1 / 3 + 0 + 1) / 4)


def test_evaluate_keeps_the_order() -> None:
    assert list(evaluate(ESTIMATE, TRUTH, ["kl", "mse", "l1"])) == ["kl", "mse", "l1"]
    assert evaluate(ESTIMATE, TRUTH, []) == {}


@pytest.mark.parametrize(
    ("estimate", "truth"),
    [
        (np.full((2, 2), 0.25), np.full((4, 4), 1 / 16)),
        (np.full(4, 0.25), np.full(4, 0.25)),
        (np.full((1, 4), 0.25), np.full((1, 4), 0.25)),
        (np.array([[1.5, -0.5], [0, 0]]), TRUTH),
        (np.array([[math.nan, 0.5], [0.5, 0]]), TRUTH),
        (np.array([[math.inf, 0.5], [0.5, 0]]), TRUTH),
        (ESTIMATE * 1.01, TRUTH),
        (ESTIMATE, TRUTH / 2),
        (ESTIMATE, np.zeros((2, 2))),
    ],
)
def test_what_is_no_density(estimate, truth) -> None:
    with pytest.raises(ValueError, match=r"\[side, side\]|sum to 1"):
        evaluate(estimate, truth, ["mse"])


def test_coarsen() -> None:
    fine = np.arange(16.0).reshape(4, 4)
    assert (coarsen(fine, 2) == [[0 + 1 + 4 + 5, 2 + 3 + 6 + 7], [8 + 9 + 12 + 13, 10 + 11 + 14 + 15]]).all()
    assert (coarsen(fine, 4) == fine).all()
    assert coarsen(fine, 1) == [[120]]
    for side in (0, 3, 8):
        with pytest.raises(ValueError, match="side: must divide 4"):
            coarsen(fine, side)
