import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sfumato.schemas.tree import Tree
from sfumato.transforms.heatmap.posterior.full_tree import FullTree, TreeMeasurement, measure
from sfumato.transforms.heatmap.posterior.inference import Posterior, infer
from tests.seeds import seeded_rng
from tests.unit.heatmap.methods.oracle import least_squares
from tests.unit.heatmap.posterior.oracle import by_level, city, learned, on, result, trees


def squared_error(posterior: Posterior, cells: np.ndarray) -> float:
    """Of the finest cells of a complete tree."""
    return float(((posterior.users[-1] - cells) ** 2).sum())


@given(
    st.lists(trees(4), min_size=1, max_size=3),
    st.integers(0, 2**31),
    st.sampled_from([1e-3, 1.0, 1e3]),
    st.sampled_from([0.0, 5.0, 1e4]),
    st.sampled_from([0.0, 0.9]),
    st.booleans(),
)
@settings(max_examples=60, deadline=None)
def test_users_are_never_negative_and_families_add_up(
    some: list[Tree], seed: int, noise: float, users: float, sampling: float, guided: bool
) -> None:
    rng, full = seeded_rng(seed), FullTree.from_trees(*some)
    results = [
        TreeMeasurement(tree, rng.normal(users / 9, noise + 3, len(tree.entries)), np.full(len(tree.entries), noise))
        for tree in some
    ]
    guide = [rng.poisson(2, len(codes)).astype(float) for codes in full.codes] if guided else None
    posterior = infer(full, measure(full, results), users, sampling, guide=guide)
    assert posterior.users[0].tolist() == [users]
    for level, (values, variance) in enumerate(zip(posterior.users, posterior.variance, strict=True)):
        assert len(values) == len(variance) == len(full.codes[level])
        assert (values >= 0).all()
        assert (variance >= 0).all()
        assert np.isfinite(variance).all()
        if level:
            above = posterior.users[level - 1][full.parents[level]]
            np.testing.assert_allclose(values.reshape(-1, 4).sum(axis=1), above, rtol=1e-9, atol=1e-9 * (1 + users))
            family = posterior.families[level]
            assert family is not None
            np.testing.assert_allclose(family.posterior.sum(axis=1), 1)
    assert 0 <= posterior.slope <= 1


@given(trees(4), st.integers(0, 2**31))
@settings(max_examples=40, deadline=None)
def test_without_noise_it_is_what_was_measured(tree: Tree, seed: int) -> None:
    full = FullTree.from_trees(tree)
    cells = seeded_rng(seed).poisson(3, 256).astype(float)
    posterior = learned(cells.sum(), result(cells, full.tree, 1e-6, seeded_rng(seed)))
    # Noise of 1e-6 in at most 256 cells; priors only ever pull towards what is within that noise.
    for values, exact in zip(posterior.users, on(full, cells), strict=True):
        np.testing.assert_allclose(values, exact, atol=1e-3)


@given(trees(4), st.integers(0, 2**31))
@settings(max_examples=40, deadline=None)
def test_with_endless_noise_everything_is_even(tree: Tree, seed: int) -> None:
    full = FullTree.from_trees(tree)
    rng = seeded_rng(seed)
    posterior = learned(1000.0, result(rng.poisson(3, 256).astype(float), full.tree, 1e9, rng))
    for level, values in enumerate(posterior.users):
        np.testing.assert_allclose(values, 1000 / 4.0**level, rtol=1e-3)


def test_on_a_flat_map_nearly_all_noise_goes() -> None:
    """Two queries of 256 cells: against the finer one, and against least squares over both with the known total."""
    cells, error, raw, linear = np.full(256, 5.0), 0.0, 0.0, 0.0
    coarse = np.kron(np.eye(64), np.ones((1, 4)))
    design = np.concatenate([np.eye(256), coarse, np.ones((1, 256))])
    for seed in range(10):
        rng = seeded_rng(seed)
        first, last = result(cells, Tree.uniform(4, 3), 4.0, rng), result(cells, Tree.uniform(4, 4), 2.0, rng)
        values = np.concatenate([last.counts, first.counts, [cells.sum()]])
        best, _ = least_squares(design, values, np.concatenate([last.variance, first.variance, [1e-6]]))
        posterior = learned(cells.sum(), first, last)
        error += squared_error(posterior, cells)
        raw += float(((last.counts - cells) ** 2).sum())
        linear += float(((best - cells) ** 2).sum())
    assert error < raw / 20
    assert error < linear / 20


@pytest.mark.parametrize("seed", range(3))
def test_a_crowded_cell_keeps_its_users(seed: int) -> None:
    """300 users in one of 65,536 cells, 9,700 over a city: the finest noise is 1.4, that of its sums far more."""
    rng = seeded_rng(seed)
    cells = rng.multinomial(9_700, city(8)).astype(float)
    crowded = rng.integers(len(cells))
    cells[crowded] += 300
    first, last = result(cells, Tree.uniform(8, 5), 7.0, rng), result(cells, Tree.uniform(8, 8), 1.4, rng)
    posterior = learned(cells.sum(), first, last)
    assert abs(posterior.users[8][crowded] - cells[crowded]) < 5 * 1.4
    assert squared_error(posterior, cells) < ((last.counts - cells) ** 2).sum() / 5


@pytest.mark.parametrize(
    ("share", "users"),
    [(city(6), 10_000), (city(6), 30_000), (np.full(4096, 1 / 4096), 10_000)],
    ids=["city", "crowded city", "flat"],
)
def test_the_variance_says_how_wrong_it_is(share: np.ndarray, users: int) -> None:
    """Over 20 keys the mean squared error is that of the stated variance, in all and where there are users.

    It is not exact: what is learned from the data is taken for known, and shrunk errors are not independent of what is
    shown. Within half and double it is an honest deviation within a factor of 1.4.
    """
    shown, error, stated = [], [], []
    for seed in range(20):
        rng = seeded_rng(seed)
        cells = rng.multinomial(users, share).astype(float)
        results = result(cells, Tree.uniform(6, 4), 6.0, rng), result(cells, Tree.uniform(6, 6), 2.0, rng)
        posterior = learned(users, *results)
        shown.append(posterior.users[6])
        error.append((posterior.users[6] - cells) ** 2)
        stated.append(posterior.variance[6])
    values, squared, variance = (np.concatenate(one) for one in (shown, error, stated))
    for least, most in ((0, np.inf), (3, 10), (10, 30), (30, np.inf)):
        some = (values >= least) & (values < most)
        if some.sum() >= 200:
            assert 0.5 < squared[some].sum() / variance[some].sum() < 2


def test_sampling_adds_to_the_variance_what_a_sample_adds() -> None:
    """A thousandth of everybody: the map is of the others too, and a cell of T users is sqrt(T) off at least."""
    share, error, stated, ignored = city(5), 0.0, 0.0, 0.0
    for seed in range(20):
        rng = seeded_rng(seed)
        cells = rng.multinomial(20_000, share).astype(float)
        last = result(cells, Tree.uniform(5, 5), 2.0, rng)
        full = FullTree.from_trees(last.tree)
        own = measure(full, [last])
        posterior = infer(full, own, 20_000.0, 0.999)
        error += squared_error(posterior, 20_000 * share)
        stated += posterior.variance[-1].sum()
        ignored += squared_error(infer(full, own, 20_000.0, 0.0), 20_000 * share)
    assert 0.5 < error / stated < 2
    assert error < ignored


def test_root_has_the_known_users_whatever_was_measured() -> None:
    """1,000 users, known as 900, counted in 16 cells with noise of 0.5."""
    cells = seeded_rng(1).multinomial(1_000, np.full(16, 1 / 16)).astype(float)
    last = result(cells, Tree.uniform(2, 2), 0.5, seeded_rng(1))
    full = FullTree.from_trees(last.tree)
    posterior = infer(full, measure(full, [last]), 900.0, 0.0)
    assert posterior.users[0][0] == 900


def guided_error(guide: np.ndarray | None) -> float:
    """The squared error of ten days of a city of 3,000 users, with a guide of shares by code."""
    error = 0.0
    for seed in range(10):
        rng = seeded_rng(seed)
        cells = rng.multinomial(3_000, city(6)).astype(float)
        last = result(cells, Tree.uniform(6, 6), 2.0, rng)
        posterior = learned(3_000, last, guide=None if guide is None else by_level(guide))
        error += squared_error(posterior, cells)
    return error


@pytest.mark.slow
def test_a_guide_helps_where_it_is_right_and_hardly_hurts_where_it_is_wrong() -> None:
    without = guided_error(None)
    yesterday = seeded_rng(99).multinomial(3_000, city(6)).astype(float)
    assert guided_error(city(6)) < 0.8 * without
    assert guided_error(yesterday) < 0.95 * without
    for nonsense in (city(6, 77), seeded_rng(1).permutation(yesterday), np.eye(1, 4096, 5)[0]):
        assert guided_error(nonsense) < 1.03 * without
    assert guided_error(np.zeros(4096)) == pytest.approx(without)


def test_neighbours_foretell_a_slope() -> None:
    """A ramp from west to east, noisy: the slope is found; where every cell is its own, it is not."""
    codes = np.arange(4**6)
    x = sum((codes >> (2 * bit + 1) & 1) << bit for bit in range(6))
    rng = seeded_rng(1)
    ramp = (x + 0.5) * 2.0
    smooth = learned(ramp.sum(), result(ramp, Tree.uniform(6, 6), 2.0, rng))
    assert smooth.slope > 0.8
    scattered = rng.permutation(ramp)
    assert learned(scattered.sum(), result(scattered, Tree.uniform(6, 6), 2.0, rng)).slope < 0.3
