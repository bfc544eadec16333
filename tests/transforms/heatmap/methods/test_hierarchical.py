import math

import numpy as np
import pytest

from sfumato.schemas.errors import RequestError
from sfumato.schemas.tree import Tree
from sfumato.transforms.heatmap.methods.hierarchical import Hierarchical
from sfumato.transforms.heatmap.methods.pyramid import estimated_risk
from sfumato.transforms.heatmap.parameters import HeatmapParameters
from sfumato.transforms.heatmap.state import Estimate
from tests.transforms.heatmap.methods.oracle import check_counts, group_of, run, some_rows

DEPTH = 4
METHOD = Hierarchical()


def parameters(**options: object) -> HeatmapParameters:
    return HeatmapParameters(**{"depth": DEPTH, "shard_size": 100, "dropout": 0.5, "method": METHOD, **options})


@pytest.mark.parametrize("population", [400, None])
def test_every_level_is_asked_once_for_an_equal_share(population: int | None) -> None:
    state = run(parameters(population=population), group_of(some_rows(1, 400, 4, DEPTH), 4, DEPTH))
    assert [result.encoding.tree for result in state.results] == [Tree.uniform(DEPTH, i) for i in (1, 2, 3, 4)]
    left = 1 - state.population.epsilon
    assert math.isclose(left, 0.99)
    for result in state.results:
        assert math.isclose(result.spent.epsilon, left / 4)
    assert state.budget.spent == 1
    assert len(state.results) == METHOD.max_rounds(DEPTH)


def test_candidates_are_the_levels_counts() -> None:
    rows = some_rows(2, 400, 4, DEPTH)
    state = run(parameters(population=400), group_of(rows, 4, DEPTH), noise=False)
    for level, one in enumerate(METHOD.candidates(state, DEPTH), 1):
        below = 2 * (DEPTH - level)
        assert one.counts.tolist() == np.bincount([c >> below for _, c, _ in rows], minlength=4**level).tolist()
        assert one.stddev.tolist() == [state.results[level - 1].spent.noise_stddev] * 4**level
        check_counts(METHOD.encoding(DEPTH, level), lambda code, below=below: [code >> below], DEPTH)


@pytest.mark.parametrize(("rate", "stddev"), [(1.0, 8.0), (0.5, 0.0)])
def test_the_risk_is_unbiased(rate: float, stddev: float) -> None:
    """Against the squared error itself, cell by cell, over draws of users and noise; and no other level's constant."""
    rng, draws = np.random.default_rng(3), 8000
    people = rng.integers(0, 8, 4**3)
    truth, users = people / people.sum(), people.sum() * rate
    for level in (1, 2, 3):
        block = 4 ** (3 - level)
        tree = Tree.uniform(3, level)
        gaps = []
        for _ in range(draws):
            seen = rng.binomial(people, rate).reshape(-1, block).sum(axis=1) + rng.normal(0, stddev, 4**level)
            estimate = Estimate(tree, seen, np.full(4**level, stddev))
            loss = np.mean((np.repeat(seen / users / block, block) - truth) ** 2)
            gaps.append(loss - np.mean(truth**2) - estimated_risk(estimate, users, rate))
        tolerance = 6.2 * np.std(gaps) / math.sqrt(draws)
        assert abs(np.mean(gaps)) < tolerance
        # Small enough to see the variance counted once, and not twice.
        assert (stddev**2 * 4**level + (1 - rate) * users) / users**2 / block / 4**3 > tolerance


def test_the_level_follows_what_noise_allows() -> None:
    """A crowd in one cell is seen at the finest level; with little epsilon only the coarsest says anything."""
    group = group_of([(i % 4, 77, 1) for i in range(400)], 4, DEPTH)
    for epsilon, level in ((20.0, 4), (0.005, 1)):
        run_parameters = parameters(population=400, epsilon=epsilon)
        state = run(run_parameters, group)
        assert METHOD.decode(state, DEPTH).tree.level == level
        assert METHOD.choose(state, METHOD.candidates(state, DEPTH)) == level - 1


def test_a_depth_without_complete_levels_is_refused() -> None:
    with pytest.raises(RequestError, match="depth: hierarchical queries every cell of a level"):
        parameters(depth=13)
    parameters(depth=12)
