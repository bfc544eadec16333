"""Queries for bits or thresholds, and the tallies of clients' reports on them, a block of clients at a time. Pure.

Every client has 64 keyed random bits. They set the client's position in [0, 1), and they key the client's randomised
response. A query reaches an interval of positions, and each bit of the quantity (slot) a part of it. So the reports of
a client do not depend on any other client: adding a user leaves all other users' reports unchanged. (Exact quotas of
reports, paper 002, Section 3.1, would move other users from bit to bit.)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sfumato.transforms.moments.quantities import Quantity
from sfumato.transforms.moments.randomised_response import RandomisedResponse
from sfumato.transforms.privacy import keys
from sfumato.transforms.privacy.keys import RunKey
from sfumato.transforms.privacy.noise import discrete_laplace

BLOCK_CLIENTS = 1 << 16
_POSITIONS = 1 << 32


@dataclass(frozen=True, eq=False)
class Block:
    """Some clients, in the order of their positions where their values have a form.

    Attributes:
        codes: unsigned[n], values in fixed point, or pairs of them; float64[n], where they have no form, and
            complex128[n], pairs without a form.
        random_bits: uint64[n], 64 random bits of each client. The upper 32 are the position in units of 2^-32,
            ascending where values have a form.
        groups: unsigned[n]; None if there is only one group.
    """

    codes: NDArray[Any]
    random_bits: NDArray[np.uint64]
    groups: NDArray[Any] | None = None

    def __len__(self) -> int:
        return len(self.codes)

    @classmethod
    def from_clients(
        cls, codes: NDArray[Any], random_bits: NDArray[np.uint64], groups: NDArray[Any] | None = None
    ) -> Block:
        """Sorts clients by position. Arguments: see the attributes, in any order of clients."""
        # Two passes of a radix sort, which NumPy has for 16 bits.
        order = np.argsort((random_bits >> np.uint64(32)).astype(np.uint16), kind="stable")
        order = order[np.argsort((random_bits >> np.uint64(48)).astype(np.uint16)[order], kind="stable")]
        return cls(codes[order], random_bits[order], None if groups is None else groups[order])

    def below(self, edges: NDArray[np.float64]) -> NDArray[np.int64]:
        """The number of clients with positions below each edge: int64[edges]."""
        return np.searchsorted(self.random_bits >> np.uint64(32), np.ceil(edges * _POSITIONS).astype(np.uint64))


@dataclass(frozen=True, eq=False)
class Query:
    """A query about one quantity. A run has at most two for each, in rounds 1 and 2.

    Attributes:
        quantity: the quantity.
        round: 1 or 2.
        first: the queried clients have positions in [first, last).
        last: see first.
        probabilities: float64[S], of each slot of the quantity to be asked of a client; their sum is 1.
    """

    quantity: Quantity
    round: int
    first: float
    last: float
    probabilities: NDArray[np.float64]

    @property
    def name(self) -> tuple[str, int]:
        """Identifies the query within a run."""
        return self.quantity.kind, self.round

    def bound_key(self, key: RunKey) -> RunKey:
        """The key for exactly this query.

        Its floating-point numbers follow from earlier noisy tallies and may differ between machines. A run that is
        resumed elsewhere must not show the tallies of two different queries under the same noise.
        """
        centres = (self.quantity.centre, *[self.quantity.second_centre] * (self.quantity.second is not None))
        numbers = (float(number).hex() for number in (*centres, self.first, self.last))
        binding = (*self.name, *numbers, self.probabilities.tobytes().hex())
        return key.narrowed({"ask": repr(binding)})


@dataclass(frozen=True, eq=False)
class Tally:
    """Numbers of reports by group (row) and slot.

    Attributes:
        ones: int64[G, S], reports of 1.
        zeros: int64[G, S], reports of 0.
    """

    ones: NDArray[np.int64]
    zeros: NDArray[np.int64]

    def copy(self) -> Tally:
        """A copy to add others to."""
        return Tally(self.ones.copy(), self.zeros.copy())

    def add(self, other: Tally) -> None:
        """Adds another tally to this one, in place."""
        np.add(self.ones, other.ones, out=self.ones)
        np.add(self.zeros, other.zeros, out=self.zeros)

    def __add__(self, other: Tally) -> Tally:
        return Tally(self.ones + other.ones, self.zeros + other.zeros)

    def joined(self, groups: NDArray[np.int64]) -> Tally:
        """Sums over groups. groups: int64[G], the new group of each group."""
        shape = (int(groups.max()) + 1, self.ones.shape[1])
        ones, zeros = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
        np.add.at(ones, groups, self.ones)
        np.add.at(zeros, groups, self.zeros)
        return Tally(ones, zeros)

    @property
    def reports(self) -> NDArray[np.int64]:
        """All reports: int64[G, S]."""
        return self.ones + self.zeros


def sum_tallies(tallies: Sequence[Tally]) -> Tally:
    """The sum of at least one tally; all have the same groups and slots."""
    return sum(tallies[1:], start=tallies[0])


def with_noise(counted: Tally, name: tuple[str, int], reports: int, epsilon: float, key: RunKey) -> Tally:
    """Adds discrete Laplace noise to every count of ones and of zeros, drawn once.

    A user is in one tally of the run and adds 1 to `reports` of its counts. So all tallies together are
    epsilon-differentially private for adding or removing one user with their value and group.

    Args:
        counted: exact numbers of reports.
        name: of the query.
        reports: bits that a client reports.
        epsilon: of all tallies of the run together.
        key: of the run, bound to the query.
    """
    slots = counted.ones.shape[1]
    streams = np.arange(len(counted.ones), dtype=np.uint64)
    noise = discrete_laplace(key, "tally {} {}".format(*name), streams, 2 * slots, epsilon, reports)
    return Tally(counted.ones + noise[:, :slots], counted.zeros + noise[:, slots:])


def queried_clients(block: Block, query: Query) -> slice:
    """The clients of a block that a query reaches."""
    begin, end = block.below(np.array([query.first, query.last])).tolist()
    return slice(begin, end)


def _uniforms(subkey: bytes, stream: int, clients: NDArray[np.uint64]) -> NDArray[np.float64]:
    """Uniform numbers in [0, 1), in steps of 2^-32, by the key, the stream and the client alone: float64[n]."""
    drawn = keys.random_bits(subkey, np.full_like(clients, stream), clients)[:, 0]
    return np.asarray((drawn >> np.uint64(32)) * np.float64(2.0**-32))


def count_reports(block: Block, query: Query, groups: int, response: RandomisedResponse, key: RunKey) -> Tally:
    """The reports of a block's queried clients, each on `response.reports` different bits.

    Systematic sampling: the client at v in [0, 1) of the queried interval reports the slots at (v + i) / reports,
    i = 0, 1, ..., on the cumulative probabilities.

    Args:
        block: the clients.
        query: the query.
        groups: number of groups.
        response: how clients report a bit.
        key: of the run.
    """
    slots, part = query.quantity.slots, queried_clients(block, query)
    clients = Block(block.codes[part], block.random_bits[part])
    uniforms = np.zeros(0)
    if query.quantity.is_rounded:
        uniforms = _uniforms(key.subkey("turns", *query.name), 0, clients.random_bits)
    codes = query.quantity.codes(clients.codes, uniforms)
    group = None if block.groups is None else block.groups[part].astype(np.int64) * (2 * len(slots))
    subkey = key.subkey("told", *query.name)
    edges = response.reports * np.append(np.cumsum(query.probabilities)[:-1], 1.0)
    counts = np.zeros(groups * len(slots) * 2, np.int64)
    threshold_key = key.subkey("thresholds", *query.name)
    for number in range(response.reports):
        ends = clients.below(query.first + np.clip(edges - number, 0, 1) * (query.last - query.first))
        ends[-1] = len(clients)  # also where rounding moved the last edge
        slot = np.repeat(np.arange(len(slots)), np.diff(ends, prepend=0))
        picks = _uniforms(threshold_key, number, clients.random_bits) if slots.is_random else None
        index = 2 * slot + response.respond(slots.bits(codes, slot, picks), subkey, number, clients.random_bits)
        counts += np.bincount(index if group is None else index + group, minlength=len(counts))
    split = counts.reshape(groups, len(slots), 2)
    return Tally(split[:, :, 1], split[:, :, 0])
