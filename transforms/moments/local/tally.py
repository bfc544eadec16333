"""Queries for bits or thresholds, and the tallies of clients' reports on them, a block of clients at a time. Pure.

Every client has 64 keyed random bits. They set the client's position in [0, 1), and they key the client's randomised
response. A query reaches an interval of positions, and each bit of the quantity (slot) a part of it. So the reports of
a client do not depend on any other client: adding a user leaves all other users' reports unchanged. (Exact quotas of
reports, paper 002, Section 3.1, would move other users from bit to bit.)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal, localcontext
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sfumato.schemas.errors import DataError, RequestError
from sfumato.schemas.moments import BitMeans
from sfumato.transforms.moments.client_values import Block
from sfumato.transforms.moments.local.quantities import Quantity
from sfumato.transforms.privacy.budget import check_epsilon
from sfumato.transforms.privacy.discrete_laplace import discrete_laplace
from sfumato.transforms.privacy.keys import RunKey, random_bits

Array = NDArray[np.float64]

_RANGE = 1 << 64  # of the random integers


@dataclass(frozen=True)
class RandomisedResponse:
    """Reports the true bit with probability p = e^e / (1 + e^e), else its complement, where e = epsilon / reports.

    p is rounded down to a multiple of 2^-64, so no report costs more than its epsilon.

    Raises:
        RequestError: epsilon is not a finite number > 0, or so small that p rounds to 1/2.

    >>> response = RandomisedResponse(epsilon=1.0)
    >>> round(response.truth_probability, 4)
    0.7311
    >>> response.unbiased_share(np.array([response.truth_probability]))
    array([1.])
    """

    epsilon: float | None  # of all `reports` bits of a client together, > 0; None: always the true bit
    reports: int = 1  # bits that a client reports

    def __post_init__(self) -> None:
        if self.epsilon is not None:
            check_epsilon(self.epsilon)
            if self.threshold <= _RANGE // 2:
                raise RequestError(f"epsilon: {self.epsilon} is too small for a report to carry information")

    @cached_property
    def threshold(self) -> int:
        """Returns the true bit is reported if a uniform 64-bit integer is below this."""
        if self.epsilon is None:
            return _RANGE
        with localcontext() as context:
            context.prec = 50
            odds = min(Decimal(self.epsilon) / self.reports, Decimal(100)).exp()  # above 100, p rounds to 1 - 2^-64
            return min(int(odds / (1 + odds) * _RANGE), _RANGE - 1)  # below 1 also where 50 digits round to it

    @property
    def truth_probability(self) -> float:
        """Returns p, the probability of the true bit."""
        return self.threshold / _RANGE

    @property
    def gain(self) -> float:
        """Returns 2 p - 1: by how much a true 1 raises the expected report over a true 0."""
        return (2 * self.threshold - _RANGE) / _RANGE

    def respond(
        self, bits: NDArray[np.bool_], subkey: bytes, stream: int, clients: NDArray[np.uint64]
    ) -> NDArray[np.bool_]:
        """Returns the reported bits: bool[n]. A flip depends on the round's key, the stream and the client only.

        stream: the number of the report among a client's reports. clients: uint64[n], random bits of each.
        """
        if self.epsilon is None:
            return bits
        uniforms = random_bits(subkey, np.full_like(clients, stream), clients)[:, 0]
        return np.asarray(bits ^ (uniforms >= np.uint64(self.threshold)))

    def unbiased_share(self, reported: Array) -> Array:
        """Returns unbiased shares of true 1s from shares r of reported 1s: (r - (1 - p)) / (2 p - 1)."""
        return np.asarray((reported - (1 - self.truth_probability)) / self.gain)

    def variance(self, reported: Array) -> Array:
        """Returns the variance of one report's unbiased bit for expected shares q of reported 1s: q (1 - q) / gain^2.

        With q = p m + (1 - p) (1 - m) this is m (1 - m) + e^epsilon / (e^epsilon - 1)^2.
        """
        return np.asarray(reported * (1 - reported) / self.gain**2)


@dataclass(frozen=True, eq=False)
class Query:
    """A query about one quantity. A run has at most two for each, in rounds 1 and 2."""

    quantity: Quantity
    round: int  # 1 or 2
    first: float  # the queried clients have positions in [first, last)
    last: float  # see first
    probabilities: Array  # float64[S], that a client reports on each slot of the quantity; their sum is 1

    @property
    def name(self) -> tuple[str, int]:
        """Identifies the query within a run."""
        return self.quantity.kind, self.round

    def bound_key(self, key: RunKey) -> RunKey:
        """Returns the key for exactly this query.

        Its floating-point numbers follow from earlier noisy tallies and may differ between machines. A run that is
        resumed elsewhere must not show the tallies of two different queries under the same noise.
        """
        centres = (self.quantity.centre, *[self.quantity.second_centre] * (self.quantity.second is not None))
        numbers = (float(number).hex() for number in (*centres, self.first, self.last))
        binding = (*self.name, *numbers, self.probabilities.tobytes().hex())
        return key.narrowed({"ask": repr(binding)})


@dataclass(frozen=True, eq=False)
class Tally:
    """Numbers of reports by group (row) and slot."""

    ones: NDArray[np.int64]  # int64[G, S], reports of 1
    zeros: NDArray[np.int64]  # int64[G, S], reports of 0

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
        """Returns all reports: int64[G, S]."""
        return self.ones + self.zeros


def sum_tallies(tallies: Sequence[Tally]) -> Tally:
    """Returns the sum of at least one tally; all have the same groups and slots."""
    return sum(tallies[1:], start=tallies[0])


def with_noise(counted: Tally, name: tuple[str, int], reports: int, epsilon: float, key: RunKey) -> Tally:
    """Adds discrete Laplace noise to every count of ones and of zeros, drawn once.

    A user is in one tally of the run and adds 1 to `reports` of its counts. So all tallies together are
    epsilon-differentially private for adding or removing one user with their value and group.

    name: of the query. epsilon: of all tallies of the run together. key: of the run, bound to the query.
    """
    slots = counted.ones.shape[1]
    streams = np.arange(len(counted.ones), dtype=np.uint64)
    noise = discrete_laplace(key, "tally {} {}".format(*name), streams, 2 * slots, epsilon, reports)
    return Tally(counted.ones + noise[:, :slots], counted.zeros + noise[:, slots:])


def queried_clients(block: Block, query: Query) -> slice:
    """Returns the clients of a block that a query reaches."""
    begin, end = block.below(np.array([query.first, query.last])).tolist()
    return slice(begin, end)


def _uniforms(subkey: bytes, stream: int, clients: NDArray[np.uint64]) -> Array:
    """Returns uniform numbers in [0, 1), in steps of 2^-32, by the key, the stream and the client only: float64[n]."""
    drawn = random_bits(subkey, np.full_like(clients, stream), clients)[:, 0]
    return np.asarray((drawn >> np.uint64(32)) * np.float64(2.0**-32))


def count_reports(block: Block, query: Query, groups: int, response: RandomisedResponse, key: RunKey) -> Tally:
    """Returns the reports of a block's queried clients, each on `response.reports` different bits.

    Systematic sampling: the client at v in [0, 1) of the queried interval reports the slots at (v + i) / reports,
    i = 0, 1, ..., on the cumulative probabilities.
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


def check_queries(queries: Sequence[Query]) -> None:
    """Raises DataError if two queries of a run would reach one client: one query uses the whole allowance."""
    intervals = sorted((query.first, query.last) for query in queries)
    if any(before[1] > after[0] for before, after in pairwise(intervals)):
        raise DataError("meter: two queries would reach one user; nothing is published")


def check_reports(response: RandomisedResponse, clients: int, reports: int) -> None:
    """Raises DataError unless this many clients reported as many bits as the release states."""
    if reports != response.reports * clients:
        raise DataError("meter: clients reported more or fewer bits than the query has; nothing is published")


def meter_entry(response: RandomisedResponse, bits: Sequence[BitMeans]) -> dict[str, Any]:
    """Returns the private bits that a client discloses (paper 002, Section 5), for the manifest.

    expected_private_bits: a bit that is true with probability p is like a true bit with probability 2 p - 1, and
    otherwise a fair coin.
    """
    epsilon = response.epsilon
    return {
        "bits_per_client": response.reports,
        "bits_per_value": response.reports,
        "cap": response.reports,
        "expected_private_bits": response.reports * response.gain,
        "epsilon_per_bit": None if epsilon is None else epsilon / response.reports,
        "epsilon_per_client": epsilon,
        "truth_probability": None if epsilon is None else response.truth_probability,
        "highest_read_probability": max(float(bit_means.read_probability.max()) for bit_means in bits),
    }
