import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from sfumato.schemas.region import deinterleave
from sfumato.transforms.heatmap.metrics import best_uniform_level, mean_squared_error
from sfumato.transforms.heatmap.raster import density, histogram
from tests.schemas.test_tree import DEPTH, brute_owner, trees


def brute_density(tree, counts: np.ndarray, depth: int) -> np.ndarray:
    entries = tree.entries.tolist()
    owners = [entries.index(brute_owner(tree, code)) for code in range(4**DEPTH)]
    image = np.zeros((2**depth, 2**depth))
    for code, owner in enumerate(owners):
        x, y = (int(v[0]) >> (DEPTH - depth) for v in deinterleave(np.array([code], np.uint64)))
        image[y, x] += max(counts[owner], 0) / owners.count(owner)
    return image / image.sum() if image.sum() > 0 else np.full_like(image, 1 / image.size)


@given(trees(), st.integers(0, 99), st.integers(1, DEPTH))
def test_density_against_brute_force(tree, seed: int, depth: int) -> None:
    counts = np.random.default_rng(seed).normal(50, 60, len(tree.entries))
    image = density(tree, counts, depth)
    assert np.allclose(image, brute_density(tree, counts, depth), rtol=1e-12, atol=1e-15)
    assert np.isclose(image.sum(), 1)
    assert (image >= 0).all()


@given(trees())
def test_a_map_of_nothing_is_uniform(tree) -> None:
    assert np.allclose(density(tree, np.full(len(tree.entries), -1.0)), 4.0**-DEPTH)


def test_histogram_lies_north_up() -> None:
    codes = np.array([0, 0, 2, 1, 15], dtype=np.uint64)
    image = histogram(codes, 2, 1)
    assert image.tolist() == [[4, 0], [0, 1]]
    assert histogram(codes, 2, 2)[0].tolist() == [2, 1, 0, 0]  # code 2 is the cell east of code 0


def test_the_best_level_of_a_blocky_truth() -> None:
    rng = np.random.default_rng(0)
    blocks = rng.random((4, 4))
    truth = np.kron(blocks, np.ones((8, 8)))
    truth /= truth.sum()
    sample = rng.poisson(truth * 20_000)
    level, error = best_uniform_level(sample, truth)
    assert level == 2
    assert error < mean_squared_error(sample / sample.sum(), truth)
    assert error < mean_squared_error(np.full_like(truth, 1 / truth.size), truth)
