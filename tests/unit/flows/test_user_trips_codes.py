"""Codes of pairs are those of a tree with 16 children, and counts of prefixes are those of the pairs within."""

from __future__ import annotations

import numpy as np

from sfumato.schemas.region import interleave
from sfumato.transforms.flows.user_trips import MAX_PAIR_DEPTH, count_prefixes, join_cells, split_pairs
from tests.seeds import seeded_rng


def test_a_pair_is_split_into_what_it_was_joined_from() -> None:
    rng = seeded_rng(0)
    for depth in (1, 2, 7, MAX_PAIR_DEPTH):
        origins, destinations = rng.integers(0, 4**depth, (2, 500), dtype=np.uint64)
        pairs = join_cells(origins, destinations, depth)
        assert int(pairs.max()) < 16**depth
        for found, expected in zip(split_pairs(pairs, depth), (origins, destinations), strict=True):
            assert np.array_equal(found, expected)


def test_a_prefix_is_the_pair_of_larger_cells() -> None:
    """x = 5 of 8 lies in column 1 of 2, y = 2 of 8 in row 0, and so on: by hand."""
    origin = interleave(np.array([5], np.uint32), np.array([2], np.uint32))
    destination = interleave(np.array([0], np.uint32), np.array([7], np.uint32))
    pair = join_cells(origin, destination, 3)
    (above,), (below,) = split_pairs(pair >> np.uint64(8), 1)
    assert (int(above), int(below)) == (0b10, 0b01)  # north-east to south-west
    assert int(pair[0] >> np.uint64(8)) == 0b1001


def test_counts_of_prefixes_are_those_of_all_pairs_within() -> None:
    rng = seeded_rng(1)
    codes = np.unique(rng.integers(0, 1 << 20, 3_000, dtype=np.uint64))
    counts = rng.integers(1, 9, len(codes))
    for bits in (0, 4, 12, 20):
        nodes = rng.permutation(np.arange(1 << (20 - bits), dtype=np.uint64))[:400]
        found = count_prefixes(codes, counts, nodes, bits)
        expected = [counts[(codes >> np.uint64(bits)) == node].sum() for node in nodes]
        assert found.tolist() == expected
    assert count_prefixes(codes[:0], counts[:0], nodes, 20).tolist() == [0] * len(nodes)
