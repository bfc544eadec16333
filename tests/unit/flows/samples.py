"""Flows for tests: exact trips by pair, a key, and what a release knows of them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from sfumato.transforms.flows.flow_estimate import Flows, estimate_flows
from sfumato.transforms.flows.flow_tree import measure_flows
from sfumato.transforms.flows.plan import FlowPlan
from sfumato.transforms.flows.user_trips import count_prefixes
from sfumato.transforms.privacy.keys import FixedSecret, RunKey
from tests.seeds import seeded_rng
from tests.statistics import FLAKE_RATE

DEPTH = 6
BITS = 4 * DEPTH


def key_of(number: int) -> RunKey:
    """A key a number."""
    return RunKey.derive(FixedSecret(b"k" * 32), {"number": number})


def clustered(trips: int, seed: int = 0) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
    """Distinct codes of pairs of level DEPTH and their counts: a few hubs, and pairs spread around them."""
    rng = seeded_rng(seed)
    hubs = rng.integers(0, 16**DEPTH, 60, dtype=np.uint64)
    sizes = rng.dirichlet(np.full(60, 0.4))
    near = rng.choice([4, 8, 12, 16, 20], trips)  # bits that differ from the hub's
    codes = hubs[rng.choice(60, trips, p=sizes)]
    spread = rng.integers(0, np.left_shift(1, near)).astype(np.uint64)
    names, counts = np.unique(codes ^ spread, return_counts=True)
    return names, counts.astype(np.int64)


def released(codes: NDArray[np.uint64], counts: NDArray[np.int64], epsilon: float, number: int) -> Flows:
    """The flows of a release."""
    plan = FlowPlan(epsilon, depth=DEPTH)
    return estimate_flows(measure_flows(codes, counts, BITS, plan, int(counts.sum()), key_of(number)))


def truth(flows: Flows, codes: NDArray[np.uint64], counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """The exact trips of each row, pair by pair, without the code that estimates them."""
    exact = np.array(
        [
            count_prefixes(codes, counts, np.array([pair], np.uint64), BITS - 4 * level)[0]
            for pair, level in zip(flows.pair.tolist(), flows.level.tolist(), strict=True)
        ]
    )
    rests = {pair: row for row, pair in enumerate(flows.pair.tolist()) if flows.is_rest[row]}
    coarse = int(flows.level[flows.is_rest][0])
    for row in np.flatnonzero(~flows.is_rest).tolist():
        exact[rests[int(flows.pair[row]) >> (4 * (int(flows.level[row]) - coarse))]] -= exact[row]
    return exact


def assert_covered(held: NDArray[np.bool_]) -> None:
    """Asserts that as many intervals at 95% hold as may be, but for a probability of 2 FLAKE_RATE.

    With a prior that is learned 94% hold at least; with ends that are whole numbers, 98% at most.
    """
    low = stats.binom.ppf(FLAKE_RATE, len(held), 0.94)
    high = stats.binom.isf(FLAKE_RATE, len(held), 0.98)
    assert low <= held.sum() <= high, held.mean()
