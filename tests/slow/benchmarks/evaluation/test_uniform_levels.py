import numpy as np
import pytest

from benchmarks.baselines.level_errors import best_uniform_level, level_errors
from benchmarks.evaluation.uniform_levels import uniform_densities
from tests.seeds import seeded_rng


def sloping(side: int):
    """A density with people in one corner, and a sample of it."""
    rng = seeded_rng(3)
    truth = np.exp(-np.add.outer(np.arange(side), np.arange(side)) * 12 / side) + rng.random((side, side)) / 40
    truth /= truth.sum()
    return truth, rng.multinomial(500, truth.ravel()).reshape(side, side)


@pytest.mark.parametrize("side", [1, 2, 16, 32])
def test_errors_are_those_of_the_densities_cell_by_cell(side: int) -> None:
    truth, sample = sloping(side)
    wanted = []
    for level in range(side.bit_length()):
        block = side >> level
        estimate = np.zeros((side, side))
        for row in range(side):
            for column in range(side):
                top, left = row // block * block, column // block * block
                estimate[row, column] = sample[top : top + block, left : left + block].sum() / 500 / block**2
        wanted.append(np.mean((estimate - truth) ** 2))
    errors = level_errors(sample, truth)
    # Sums of fewer than 32^2 positive terms, each exact to a few units in the last place.
    assert errors == pytest.approx(wanted, rel=1e-12, abs=1e-32)
    assert best_uniform_level(sample, truth) == (
        int(np.argmin(wanted)),
        pytest.approx(min(wanted), rel=1e-12, abs=1e-32),
    )
    densities = list(uniform_densities(sample))
    assert [np.mean((density - truth) ** 2) for density in densities] == pytest.approx(wanted, rel=1e-12, abs=1e-32)
    for density in densities:
        assert density.shape == (side, side)
        assert density.sum() == pytest.approx(1, rel=1e-12)


def test_the_best_level_lies_between_noise_and_blur() -> None:
    truth, sample = sloping(32)
    assert 0 < best_uniform_level(sample, truth)[0] < 5
    counts = np.rint(truth * 2**40)
    assert best_uniform_level(counts, counts / counts.sum()) == (5, 0.0)
    assert best_uniform_level(np.ones((32, 32), dtype=np.int64), np.full((32, 32), 1 / 1024)) == (0, 0.0)


def test_weights_are_as_good_as_counts() -> None:
    truth, sample = sloping(16)
    assert level_errors(sample / 500, truth) == pytest.approx(level_errors(sample, truth), rel=1e-12)


def test_bad_input() -> None:
    for sample in (np.ones((4, 2)), np.ones((3, 3)), np.ones(4), np.ones((0, 0))):
        with pytest.raises(ValueError, match="sample: must be"):
            level_errors(sample, np.full((4, 4), 1 / 16))
        with pytest.raises(ValueError, match="sample: must be"):
            list(uniform_densities(sample))
    with pytest.raises(ValueError, match="has no users"):
        level_errors(np.zeros((4, 4)), np.full((4, 4), 1 / 16))
    with pytest.raises(ValueError, match="truth: must have"):
        level_errors(np.ones((4, 4)), np.full((2, 2), 1 / 4))
