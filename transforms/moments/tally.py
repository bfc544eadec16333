"""Clients' reports on bits, counted a block of clients at a time: who is asked for which bit, and what they tell. Pure.

The clients of a block stand in a keyed random order, and every client has a place in [0, 1). Cohorts, rounds and bits
are intervals of places, so that they are slices of the block. Places are either evenly spread, which gives every bit
its exact quota of reports (to one; quasi-Monte Carlo, Section 3.1 of paper 002), or drawn by each client on her own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sfumato.transforms.moments.quantities import Quantity
from sfumato.transforms.moments.randomised_response import RandomisedResponse
from sfumato.transforms.privacy.keys import RunKey, random_words

BLOCK_CLIENTS = 1 << 16
_PLACES = 1 << 32


@dataclass(frozen=True, eq=False)
class Block:
    """Some clients in a keyed random order.

    name: tells the block from all others of the run, and does not depend on the order in which they are read. codes:
    unsigned[n], values. groups: unsigned[n], or None where there is but one. places: uint32[n], ascending, each
    client's own place times 2^32; None where they are evenly spread.
    """

    name: str
    codes: NDArray[Any]
    groups: NDArray[Any] | None = None
    places: NDArray[np.uint32] | None = None

    def __len__(self) -> int:
        return len(self.codes)

    @classmethod
    def shuffled(cls, name: str, codes: NDArray[Any], groups: NDArray[Any] | None, exact: bool, key: RunKey) -> Block:
        """Puts clients into their random order. exact: places are evenly spread."""
        drawn = _words(key.subkey("places", name), len(codes))
        # Two passes of a radix sort, which NumPy has for 16 bits.
        order = np.argsort(drawn.astype(np.uint16), kind="stable")
        order = order[np.argsort((drawn >> np.uint32(16)).astype(np.uint16)[order], kind="stable")]
        return cls(name, codes[order], None if groups is None else groups[order], None if exact else drawn[order])


def _words(subkey: bytes, count: int) -> NDArray[np.uint32]:
    blocks = np.arange(-(-count // 4), dtype=np.uint64)
    return random_words(subkey, np.zeros_like(blocks), blocks).reshape(-1).view(np.uint32)[:count]


@dataclass(frozen=True, eq=False)
class Ask:
    """A round of questions about one quantity: who is asked, and for which bits.

    first, last: the clients asked are those with places in [first, last). chances: float64[S], of the quantity's
    slots.
    """

    quantity: Quantity
    round: int
    first: float
    last: float
    chances: NDArray[np.float64]

    @property
    def name(self) -> tuple[str, int]:
        """Tells it from all others of the run."""
        return self.quantity.kind, self.round


@dataclass(frozen=True, eq=False)
class Tally:
    """Reports by group and slot: ones, zeros int64[G, S], how many told 1 and 0."""

    ones: NDArray[np.int64]
    zeros: NDArray[np.int64]

    def copy(self) -> Tally:
        """One that may be added to."""
        return Tally(self.ones.copy(), self.zeros.copy())

    def add(self, other: Tally) -> None:
        """Adds another to this one, in place."""
        np.add(self.ones, other.ones, out=self.ones)
        np.add(self.zeros, other.zeros, out=self.zeros)

    def __add__(self, other: Tally) -> Tally:
        return Tally(self.ones + other.ones, self.zeros + other.zeros)

    def joined(self, groups: NDArray[np.int64]) -> Tally:
        """Sums over groups. groups: int64[G], of each group the one that it counts in."""
        shape = (int(groups.max()) + 1, self.ones.shape[1])
        ones, zeros = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
        np.add.at(ones, groups, self.ones)
        np.add.at(zeros, groups, self.zeros)
        return Tally(ones, zeros)

    @property
    def total(self) -> NDArray[np.float64]:
        """How many of all groups reported: float64[1, S]."""
        return np.asarray(self.reports.sum(axis=0, keepdims=True), dtype=np.float64)

    @property
    def reports(self) -> NDArray[np.int64]:
        """How many reported: int64[G, S]."""
        return self.ones + self.zeros


def whom(block: Block, ask: Ask, key: RunKey) -> tuple[int, int]:
    """The first of a block's clients who are asked, and the first after them."""
    begin, end = _upto(block, np.array([ask.first, ask.last]), _uniform(key.subkey("shift", block.name)))
    return int(begin), int(end)


def tally(block: Block, ask: Ask, groups: int, told: RandomisedResponse, key: RunKey) -> Tally:
    """What the clients of a block tell. groups: how many there are. Each of them tells `told.reports` different bits.

    Systematic sampling: the client at v in [0, 1) of those asked gets the bits at (v + i) / reports, i = 0, 1, ...
    """
    slots = ask.quantity.slots
    begin, end = whom(block, ask, key)
    part = Block(block.name, block.codes[begin:end], None, None if block.places is None else block.places[begin:end])
    words = _words(key.subkey("turns", block.name, *ask.name), len(part) if ask.quantity.rounded else 0)
    turns = words * np.float64(2.0**-32)
    codes = ask.quantity.codes(part.codes, turns)
    group = None if block.groups is None else block.groups[begin:end].astype(np.int64) * (2 * len(slots))
    shift, subkey = _uniform(key.subkey("turn", block.name, *ask.name)), key.subkey("told", block.name, *ask.name)
    edges = told.reports * np.append(np.cumsum(ask.chances)[:-1], 1.0)
    counts = np.zeros(groups * len(slots) * 2, np.int64)
    for number in range(told.reports):
        inside = edges - number
        if part.places is not None:
            inside = ask.first + np.clip(inside, 0, 1) * (ask.last - ask.first)
        upto = _upto(part, inside, shift)
        upto[-1] = len(part)  # also where rounding moved the last edge
        slot = np.repeat(np.arange(len(slots)), np.diff(upto, prepend=0))
        place = 2 * slot + told.respond(slots.bits(codes, slot), subkey, number)
        counts += np.bincount(place if group is None else place + group, minlength=len(counts))
    split = counts.reshape(groups, len(slots), 2)
    return Tally(split[:, :, 1], split[:, :, 0])


def _upto(block: Block, edges: NDArray[np.float64], shift: float) -> NDArray[np.int64]:
    """How many of the block's clients have places below each edge: int64[edges].

    shift: of evenly spread places, (0 + shift) / n, (1 + shift) / n, ...; in [0, 1).
    """
    if block.places is not None:
        return np.searchsorted(block.places, np.ceil(edges * _PLACES))
    return np.clip(np.ceil(len(block) * edges - shift), 0, len(block)).astype(np.int64)


def _uniform(subkey: bytes) -> float:
    word = random_words(subkey, np.zeros(1, np.uint64), np.zeros(1, np.uint64))[0, 0]
    return float(word >> np.uint64(11)) * 2.0**-53
