"""The paper's greedy decomposition of a range against a walk through the trie, one probe at a time."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.baselines.quantile_mechanisms import greedy_ranks
from sfumato.transforms.histogram.sampling_round import Histogram, Sampling
from tests.seeds import seeded_rng

SAMPLING = Sampling.from_rate(0.25, 2)


def probes(levels: list[Histogram], border: int, bits: int) -> list[float]:
    """The counts of the nodes that cover [0, border): at each level those right of the nodes above it."""
    found, start = [], 0
    for level in levels:
        width = 1 << (bits - level.level)
        counts = dict(zip(level.items.tolist(), level.counts.tolist(), strict=True))
        while start + width <= border:
            found.append(counts.get(start // width, 0.0))
            start += width
    assert start == border
    return found


@pytest.mark.parametrize("lengths", [(1, 2, 3, 4, 5), (2, 4, 5), (5,)])
def test_ranks_are_sums_over_the_greedy_cover(lengths: tuple[int, ...]) -> None:
    generator, bits = seeded_rng(1), lengths[-1]
    levels = []
    for length in lengths:
        items = np.flatnonzero(generator.random(1 << length) < 0.7).astype(np.uint64)
        levels.append(Histogram(length, SAMPLING, items, generator.integers(2, 50, len(items))))
    found = greedy_ranks(levels, bits)
    covers = [probes(levels, border, bits) for border in range((1 << bits) + 1)]
    assert found == pytest.approx([sum(cover) for cover in covers])
    steps = np.diff((0, *lengths))
    # the whole range takes a probe more at the first level: all its nodes
    assert max(map(len, covers[:-1])) == sum(2**step - 1 for step in steps)
