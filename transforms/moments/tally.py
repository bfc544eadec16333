"""Clients' reports on bits, counted a block of clients at a time: who is asked for which bit, and what they tell. Pure.

Every client has a keyed random word of their own. It sets their place in [0, 1): parts, rounds and bits are intervals
of places. The client's coins are keyed by it too. So what one client reports depends on nobody else: with one user
more, the tallies of all others are the same. (Quotas of reports, Section 3.1 of paper 002, would move other users from
bit to bit.)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sfumato.transforms.moments.quantities import Quantity
from sfumato.transforms.moments.randomised_response import RandomisedResponse
from sfumato.transforms.privacy.keys import RunKey, random_bits
from sfumato.transforms.privacy.noise import discrete_laplace

BLOCK_CLIENTS = 1 << 16
_PLACES = 1 << 32


@dataclass(frozen=True, eq=False)
class Block:
    """Some clients, in the order of their places.

    Attributes:
        codes: unsigned[n], values.
        words: uint64[n], 64 random bits of each client's own; the upper 32 are the place, in units of 2^-32, ascending.
        groups: unsigned[n], or None where there is but one.
    """

    codes: NDArray[Any]
    words: NDArray[np.uint64]
    groups: NDArray[Any] | None = None

    def __len__(self) -> int:
        return len(self.codes)

    @classmethod
    def ordered(cls, codes: NDArray[Any], words: NDArray[np.uint64], groups: NDArray[Any] | None = None) -> Block:
        """Puts clients into the order of their places."""
        # Two passes of a radix sort, which NumPy has for 16 bits.
        order = np.argsort((words >> np.uint64(32)).astype(np.uint16), kind="stable")
        order = order[np.argsort((words >> np.uint64(48)).astype(np.uint16)[order], kind="stable")]
        return cls(codes[order], words[order], None if groups is None else groups[order])

    def below(self, edges: NDArray[np.float64]) -> NDArray[np.int64]:
        """How many clients have places below each edge: int64[edges]."""
        return np.searchsorted(self.words >> np.uint64(32), np.ceil(edges * _PLACES).astype(np.uint64))


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
    probabilities: NDArray[np.float64]

    @property
    def name(self) -> tuple[str, int]:
        """Tells it from all others of the run."""
        return self.quantity.kind, self.round

    def bind(self, key: RunKey) -> RunKey:
        """The key for this very question: what follows from earlier noisy tallies in floating point may be another.

        A run that is resumed on another machine must not show two rounds' tallies under one noise.
        """
        numbers = (float(one).hex() for one in (self.quantity.centre, self.first, self.last))
        question = (*self.name, *numbers, self.probabilities.tobytes().hex())
        return key.narrowed({"ask": repr(question)})


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


def protected(counted: Tally, name: tuple[str, int], reports: int, epsilon: float, key: RunKey) -> Tally:
    """The tally with discrete Laplace noise on every count of ones and of zeros, drawn once.

    A user is in one tally of the run, and adds 1 to `reports` of its counts. So all tallies together are
    epsilon-differentially private for adding or removing one user, with their value and their group.

    Args:
        counted: what clients reported.
        name: of the round's Ask.
        reports: bits that a client reports.
        epsilon: of all tallies of the run together.
        key: the run's.
    """
    slots = counted.ones.shape[1]
    streams = np.arange(len(counted.ones), dtype=np.uint64)
    noise = discrete_laplace(key, "tally {} {}".format(*name), streams, 2 * slots, epsilon, reports)
    return Tally(counted.ones + noise[:, :slots], counted.zeros + noise[:, slots:])


def asked_of(block: Block, ask: Ask) -> slice:
    """The clients of a block who are asked."""
    begin, end = block.below(np.array([ask.first, ask.last])).tolist()
    return slice(begin, end)


def tally(block: Block, ask: Ask, groups: int, told: RandomisedResponse, key: RunKey) -> Tally:
    """What the clients of a block tell. groups: how many there are. Each of them tells `told.reports` different bits.

    Systematic sampling: the client at v in [0, 1) of those asked gets the bits at (v + i) / reports, i = 0, 1, ...
    """
    slots, part = ask.quantity.slots, asked_of(block, ask)
    clients = Block(block.codes[part], block.words[part])
    turns = np.zeros(0)
    if ask.quantity.rounded:
        drawn = random_bits(key.subkey("turns", *ask.name), np.zeros_like(clients.words), clients.words)[:, 0]
        turns = (drawn >> np.uint64(32)) * np.float64(2.0**-32)
    codes = ask.quantity.codes(clients.codes, turns)
    group = None if block.groups is None else block.groups[part].astype(np.int64) * (2 * len(slots))
    subkey = key.subkey("told", *ask.name)
    edges = told.reports * np.append(np.cumsum(ask.probabilities)[:-1], 1.0)
    counts = np.zeros(groups * len(slots) * 2, np.int64)
    for number in range(told.reports):
        upto = clients.below(ask.first + np.clip(edges - number, 0, 1) * (ask.last - ask.first))
        upto[-1] = len(clients)  # also where rounding moved the last edge
        slot = np.repeat(np.arange(len(slots)), np.diff(upto, prepend=0))
        place = 2 * slot + told.respond(slots.bits(codes, slot), subkey, number, clients.words)
        counts += np.bincount(place if group is None else place + group, minlength=len(counts))
    split = counts.reshape(groups, len(slots), 2)
    return Tally(split[:, :, 1], split[:, :, 0])
