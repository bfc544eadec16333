"""Runs the plans of `sfumato moments` in memory, without a runner. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sfumato.schemas.moments import BitMeans, MomentEstimate
from sfumato.transforms.moments.central.central_moments import CentralSums, choose_range
from sfumato.transforms.moments.central.plan import CentralMomentsPlan
from sfumato.transforms.moments.client_values import Block, encode_columns
from sfumato.transforms.moments.local.plan import MomentsPlan
from sfumato.transforms.moments.local.protocol import MomentsState
from sfumato.transforms.moments.local.tally import count_reports
from sfumato.transforms.privacy.keys import RunKey, random_bits


@dataclass(frozen=True)
class ProtocolResult:
    """The estimates and bit means of everybody after a protocol run."""

    estimates: list[MomentEstimate]
    bits: list[BitMeans]


def run_in_memory(values: NDArray[Any], plan: MomentsPlan, key: RunKey) -> ProtocolResult:
    """Runs the whole protocol in memory, for one group. values: float64[n], finite; complex128[n] of two columns."""
    codes, _ = encode_columns(values, plan.form, plan.second)
    numbers = np.arange(len(codes), dtype=np.uint64)
    block = Block.from_clients(codes, random_bits(key.subkey("clients"), np.zeros_like(numbers), numbers)[:, 0])
    state = MomentsState(plan, users=len(codes))
    for _ in plan.stages:
        queries = state.next_queries()
        tallies = [count_reports(block, query, 1, plan.response, key) for query in queries]
        state = state.advance(queries, plan.protect(queries, tallies, key))
    return ProtocolResult(list(state.estimates()), state.bit_charts())


def run_centrally(
    values: NDArray[Any], plan: CentralMomentsPlan, key: RunKey, groups: NDArray[np.int64] | None = None, rows: int = 1
) -> CentralSums:
    """Runs the whole plan in memory.

    Args:
        values: float64[n], finite; complex128[n] of two columns.
        plan: the plan.
        key: of the run.
        groups: int64[n], below rows; None for one group.
        rows: number of groups.
    """
    state = choose_range(plan, plan.count_magnitudes(values) if plan.finds_range else None, key)
    numbers = np.arange(len(values), dtype=np.uint64)
    client_bits = random_bits(key.subkey("clients"), np.zeros_like(numbers), numbers)[:, 0]
    return state.release(plan.exact_sums(Block(values, client_bits, groups), state.spans, rows), key)
