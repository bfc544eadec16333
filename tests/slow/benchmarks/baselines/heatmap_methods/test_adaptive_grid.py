import math
from fractions import Fraction

import numpy as np
import pytest

from benchmarks.baselines.heatmap_methods.adaptive_grid import AdaptiveGrid, GridEncoding, constrained
from sfumato.transforms.counting.parameters import CountParameters
from sfumato.transforms.counting.state import CountState
from tests.unit.counting.methods.oracle import check_counts, group_of, least_squares, position, run, some_rows

DEPTH = 5
METHOD = AdaptiveGrid(grid_side=3)


def rectangle(
    x: int, y: int, depth: int, side: int, divisions: tuple[int, ...]
) -> tuple[Fraction, Fraction, Fraction, Fraction]:
    """Which rectangle of an adaptive grid holds the cell (x, y): its cell of the first grid and its place in that.

    A first cell holds the finest cells whose western and northern border lies in it, and so with what it is divided in.
    """
    edge = 1 << depth
    column, row = (next(i for i in range(side) if Fraction(at, edge) < Fraction(i + 1, side)) for at in (x, y))
    n = divisions[row * side + column]
    inner = []
    for at, part in ((x, column), (y, row)):
        mine = [i for i in range(edge) if Fraction(part, side) <= Fraction(i, edge) < Fraction(part + 1, side)]
        inner.append(next(i for i in range(n) if Fraction(mine.index(at), len(mine)) < Fraction(i + 1, n)))
    return (row, column, inner[1], inner[0])


def all_entries(grid: GridEncoding) -> np.ndarray:
    """The entry of every cell of the grid's level, int64[4^level] by code."""
    x, y = np.array([position(code, grid.level) for code in range(4**grid.level)]).T
    return grid.entries(x, y)


@pytest.mark.parametrize(
    ("side", "divisions"), [(1, (5,)), (3, (1, 2, 3, 9, 10, 4, 5, 6, 7)), (7, (1, 2, 3, 4) * 12 + (1,))]
)
def test_rectangles_are_where_exact_fractions_say(side: int, divisions: tuple[int, ...]) -> None:
    grid = GridEncoding(DEPTH, DEPTH, side, divisions)
    where = [rectangle(*position(code, DEPTH), DEPTH, side, divisions) for code in range(4**DEPTH)]
    number = {place: index for index, place in enumerate(sorted(set(where)))}
    assert all_entries(grid).tolist() == [number[place] for place in where]
    check_counts(grid, lambda code: [number[where[code]]], DEPTH)
    deeper = GridEncoding(DEPTH + 2, DEPTH, side, divisions)
    check_counts(deeper, lambda code: [number[where[code >> 4]]], DEPTH + 2)


def finish(method: AdaptiveGrid, users: int, noise: bool = True, epsilon: float = 1.0) -> CountState:
    parameters = CountParameters(
        depth=DEPTH, epsilon=epsilon, shard_size=users // 4, dropout=0.5, population=users, method=method
    )
    return run(parameters, group_of(some_rows(2, users, 4, DEPTH), 4, DEPTH), noise)


@pytest.mark.parametrize(("share", "constant"), [(0.5, 10.0), (0.2, 1.5)])
def test_cells_are_divided_by_their_noisy_counts(share: float, constant: float) -> None:
    method = AdaptiveGrid(grid_side=3, grid_share=share, grid_constant=constant)
    state = finish(method, 2000)
    first, second = state.results
    assert first.encoding == GridEncoding(DEPTH, DEPTH, 3, (1,) * 9)
    left = 1 - state.population.cost
    assert math.isclose(first.cost, share * left)
    assert math.isclose(second.cost, (1 - share) * left)
    assert state.budget.spent == 1
    n = [min(10, max(1, int(math.sqrt(max(count, 0) * second.cost / constant)))) for count in first.counts.tolist()]
    assert second.encoding.divisions == tuple(n)
    assert len(set(n)) > 1
    assert 10 in n or constant == 10


def test_both_grids_answers_are_combined_by_least_squares() -> None:
    state = finish(METHOD, 2000)
    grid = state.results[1].encoding
    cell = np.repeat(np.arange(9), np.square(grid.divisions))
    design = np.concatenate([(cell == np.arange(9)[:, None]).astype(float), np.eye(grid.length)])
    values = np.concatenate([result.counts for result in state.results])
    variances = np.concatenate([np.full(len(a.counts), a.noise_stddev**2) for a in state.results])
    expected, covariance = least_squares(design, values, variances)
    users, stddev = constrained(grid, *state.results)
    assert np.allclose(users, expected)
    assert np.allclose(stddev, np.sqrt(np.diag(covariance)))
