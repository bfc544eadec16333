"""Independent oracles of the methods: loops in plain Python over users, cells and rows; dense least squares."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from sfumato.schemas.region import Places
from sfumato.transforms.counting.parameters import CountParameters
from sfumato.transforms.counting.state import CountState, Estimate
from sfumato.transforms.counting.sub_queries import advance
from sfumato.transforms.locations.shards import ShardGroup, key_dtype
from sfumato.transforms.secagg.encodings import Encoding
from sfumato.transforms.secagg.shard_sums import sum_shards
from tests.admitted import start
from tests.keys import earlier_key
from tests.seeds import seeded_rng

KEY = earlier_key(b"methods" * 5, {})


def group_of(rows: list[tuple[int, int, int]], shards: int, depth: int, weighted: bool = False) -> ShardGroup:
    """The group of rows (shard, code of a finest cell, weight); with weights each row is a client of its own."""
    rows = sorted(rows)
    keys = np.array([(shard << (2 * depth)) | code for shard, code, _ in rows], dtype=key_dtype(Places(depth)))
    if not weighted:
        return ShardGroup(0, shards, Places(depth), keys)
    ranks, seen = [], [0] * shards
    for shard, _, _ in rows:
        ranks.append(seen[shard])
        seen[shard] += 1
    weights = np.array([weight for _, _, weight in rows], dtype=np.int64)
    return ShardGroup(0, shards, Places(depth), keys, None, weights, np.array(ranks, dtype=np.uint32))


def some_rows(seed: int, users: int, shards: int, depth: int, gamma: int = 1) -> list[tuple[int, int, int]]:
    """Users in random shards, half of them crowded into a few cells so that these repeat; weights in 1..gamma."""
    rng = seeded_rng(seed)
    crowded = rng.integers(0, 4**depth, 5)
    codes = np.where(rng.random(users) < 0.5, rng.choice(crowded, users), rng.integers(0, 4**depth, users))
    weights = rng.integers(1, gamma + 1, users)
    return [(int(s), int(c), int(w)) for s, c, w in zip(rng.integers(0, shards, users), codes, weights, strict=True)]


def count(
    rows: list[tuple[int, int, int]],
    shards: range,
    length: int,
    entries_of: Callable[[int], list[int]],
    weighted: bool,
) -> list[list[int]]:
    """Sums by shard and entry, where a location in the finest cell `code` adds to every entry of entries_of(code)."""
    sums = [[0] * length for _ in shards]
    for shard, code, weight in rows:
        if shard in shards:
            for entry in entries_of(code):
                sums[shard - shards.start][entry] += weight if weighted else 1
    return sums


def check_counts(encoding: Encoding, entries_of: Callable[[int], list[int]], depth: int) -> None:
    """Asserts that an encoding counts what the oracle counts: any block of shards, with and without weights."""
    for weighted in (False, True):
        rows = [row for row in some_rows(7, 300, 6, depth, 50) if row[0] != 3]  # shard 3 is empty
        group = group_of(rows, 6, depth, weighted)
        for block in (slice(0, 6), slice(1, 4), slice(3, 4)):
            expected = count(rows, range(block.start, block.stop), encoding.length, entries_of, weighted)
            assert encoding.count(group, block).tolist() == expected
    for code in {row[1] for row in rows}:
        assert len(set(entries_of(code))) == encoding.entries_per_location


def position(code: int, depth: int) -> tuple[int, int]:
    """(x, y) of a code, bit by bit."""
    x = y = 0
    for level in reversed(range(depth)):
        x, y = 2 * x + (code >> (2 * level + 1) & 1), 2 * y + (code >> (2 * level) & 1)
    return x, y


def run(parameters: CountParameters, group: ShardGroup, noise: bool = True) -> CountState:
    """The final state of a run over one group that holds everybody, with the job's noise or none at all."""
    state = start(int(group.sizes().sum()), parameters, KEY)
    while state.query is not None:
        totals = sum_shards(group, state.query, KEY, "shard" if noise else None)
        # What central noise would be added to is exact; say that no shard was lost on the way.
        state = advance(state, totals, parameters)
    return state


def least_squares(design: np.ndarray, values: np.ndarray, variances: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The best linear unbiased estimate of x from values = design x + noise, and its covariance, by dense algebra."""
    inverse = np.linalg.inv(design.T @ (design / variances[:, None]))
    return inverse @ design.T @ (values / variances), inverse


def spread(estimate: Estimate) -> np.ndarray:
    """The estimate's count on each finest cell, float64[4^depth] by code, for a tree whose entries do not overlap."""
    depth, counts = estimate.tree.depth, np.full(4**estimate.tree.depth, np.nan)
    for node, value in zip(estimate.tree.entries.tolist(), estimate.counts.tolist(), strict=True):
        level = (node.bit_length() - 1) // 2
        below = 1 << (2 * (depth - level))
        first = (node - (1 << (2 * level))) * below
        assert np.isnan(counts[first : first + below]).all()
        counts[first : first + below] = value / below
    assert not np.isnan(counts).any()
    return counts
