"""One sub-query for every cell of a level."""

from __future__ import annotations

import math

import numpy as np
import pytest

from sfumato.schemas.tree import Tree
from sfumato.transforms.counting.methods import Flat
from sfumato.transforms.counting.parameters import CountParameters
from tests.unit.counting.methods.oracle import check_counts, group_of, run, some_rows, spread

DEPTH = 4


ROWS = some_rows(1, 400, 4, DEPTH)


def parameters(method: Flat, **options: object) -> CountParameters:
    return CountParameters(**{"depth": DEPTH, "shard_size": 100, "dropout": 0.5, "method": method, **options})


@pytest.mark.parametrize("level", [None, 0, 2])
def test_flat_counts_every_cell_of_the_level_once(level: int | None) -> None:
    state = run(parameters(Flat(level=level)), group_of(ROWS, 4, DEPTH), noise=False)
    (result,) = state.results
    assert state.budget.spent == 1
    at = DEPTH if level is None else level
    assert result.encoding.tree == Tree.uniform(DEPTH, at)
    below = 2 * (DEPTH - at)
    expected = np.bincount([code >> below for _, code, _ in ROWS], minlength=4**at)
    estimate = Flat(level=level).decode(state, DEPTH)
    assert estimate.counts.tolist() == expected.tolist()
    assert np.allclose(spread(estimate), np.repeat(expected / 4 ** (DEPTH - at), 4 ** (DEPTH - at)))
    check_counts(result.encoding, lambda code: [code >> below], DEPTH)


@pytest.mark.parametrize("keep_top", [100, 37.5, 12, 0.01])
def test_flat_keeps_the_largest_t_per_cent(keep_top: float) -> None:
    state = run(parameters(Flat()), group_of(ROWS, 4, DEPTH))
    raw, kept = Flat().decode(state, DEPTH), Flat(keep_top=keep_top).decode(state, DEPTH)
    size = max(1, math.ceil(keep_top / 100 * 256))
    assert np.count_nonzero(kept.counts) == size - np.count_nonzero(np.sort(raw.counts)[-size:] == 0)
    assert np.sort(kept.counts)[-1] == raw.counts.max()
    dropped = kept.counts != raw.counts
    assert (kept.counts[dropped] == 0).all()
    if dropped.any():
        assert raw.counts[dropped].max() <= np.sort(raw.counts)[-size]
    assert kept.stddev.tolist() == [state.results[0].noise_stddev] * 256
