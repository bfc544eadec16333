"""What a client proves about its measurement, and how two aggregators check the proof (VDAF draft, Section 7.3).

A circuit states that every entry of an encoded measurement is 0 or 1, and that a weighted sum of the entries has one
value. Entries are checked in chunks: the gadget sums, over a chunk, an entry times a power of the chunk's joint
randomness times the entry minus 1. Proofs hold the gadget's polynomial; verifiers evaluate it at a secret point.

Arrays have a row for each report, so that one call works on a batch of R. Along the way the entries of a batch are
float64[6, c, R, g], for the chunk length c and the number of chunks g, so that the long axes are the last ones.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from sfumato.schemas.errors import RequestError
from sfumato.transforms.split.field128 import (
    LIMBS,
    MODULUS,
    Elements,
    Words,
    dot,
    from_ints,
    from_words,
    is_root_of_unity,
    is_zero,
    lagrange_basis,
    matmul,
    multiply,
    root_powers,
    settle,
    spread,
    to_words,
    total,
)

MAX_LENGTH = 1 << 20  # of an encoded measurement: 16 MiB for the leader
_BLOCK_ENTRIES = 1 << 15  # of all reports that are checked at once: their limbs stay in the cache


def best_chunk_length(measurement_length: int) -> int:
    """Returns the chunk length with the shortest proof; the shorter chunk where two are equal.

    >>> best_chunk_length(340), best_chunk_length(3034)
    (23, 49)
    """
    calls = ((1 << bits) - 1 for bits in range(1, measurement_length.bit_length() + 1))
    return min((2 * -(-measurement_length // most) + 2 * most, -(-measurement_length // most)) for most in calls)[1]


def proof_length(entries: int, chunk: int) -> int:
    """Returns the elements of a proof: a seed for each wire, and the gadget's polynomial at all points but one."""
    return 2 * chunk + (2 << (-(-entries // chunk)).bit_length()) - 1


@dataclass(frozen=True)
class Circuit(ABC):
    """A validity circuit over Field128 with one gadget, a parallel sum of products.

    Attributes:
        NAME: name of the VDAF in task files.
        ID: codepoint of the VDAF.
        length: entries of the aggregate.
        chunk_length: entries that one call of the gadget checks; None takes the one with the shortest proof.
    """

    NAME: ClassVar[str]
    ID: ClassVar[int]

    length: int
    chunk_length: int | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        if self.length < 1 or self.measurement_length > MAX_LENGTH:
            raise RequestError(f"length: an encoded measurement must have between 1 and {MAX_LENGTH:,} entries")
        if self.chunk_length is None:
            object.__setattr__(self, "chunk_length", best_chunk_length(self.measurement_length))
        elif not 1 <= self.chunk_length <= self.measurement_length:
            raise RequestError(
                f"chunk_length: must be between 1 and {self.measurement_length}, got {self.chunk_length}"
            )

    @property
    @abstractmethod
    def measurement_length(self) -> int:
        """Entries of an encoded measurement."""

    @abstractmethod
    def encode(self, measurement: int | Sequence[int]) -> NDArray[np.int64]:
        """Returns the zeros and ones of a measurement, int64[measurement_length], by the same work for every value.

        Raises RequestError: the measurement is out of range.
        """

    @abstractmethod
    def truncate(self, words: Words) -> Words:
        """Returns what is summed, uint64[R, length, 2], of encoded measurement shares, uint64[R, entries, 2]."""

    @property
    @abstractmethod
    def _weights(self) -> list[int]:
        """The weights of the sum that a valid measurement has."""

    @property
    @abstractmethod
    def _sum(self) -> int:
        """The value that this sum must have."""

    @property
    def _chunk(self) -> int:
        assert self.chunk_length is not None
        return self.chunk_length

    @cached_property
    def calls(self) -> int:
        """The number of calls of the gadget, and of elements of joint randomness."""
        return -(-self.measurement_length // self._chunk)

    @cached_property
    def order(self) -> int:
        """The number of points of a wire polynomial: a power of two above `calls`."""
        return 1 << self.calls.bit_length()

    @cached_property
    def proof_length(self) -> int:
        """Elements of a proof."""
        return proof_length(self.measurement_length, self._chunk)

    @cached_property
    def verifier_length(self) -> int:
        """Elements of a verifier: the circuit's result, every wire and the gadget's polynomial at the secret point."""
        return 2 * self._chunk + 2

    @cached_property
    def wires(self) -> int:
        """The number of wires, and of elements of prover randomness."""
        return 2 * self._chunk

    query_randomness: ClassVar[int] = 3  # elements: two weights of the circuit's results, and the point

    def prove(self, measurement: Elements, randomness: Elements, joint: Elements) -> Elements:
        """Returns proofs float64[6, R, proof_length].

        Args:
            measurement: float64[6, R, measurement_length].
            randomness: float64[6, R, wires].
            joint: float64[6, R, calls].
        """
        entries = self._in_chunks(measurement)
        powers = _powers(joint, joint, self._chunk)
        seeds = randomness.transpose(0, 2, 1)[..., None]
        first = self._wire(seeds[:, 0::2], multiply(powers, entries))
        second = self._wire(seeds[:, 1::2], settle(entries - spread(from_ints([1]), 3)))
        odd = self._odd_points
        at_odd = _summed(multiply(matmul(first, odd), matmul(second, odd)))
        at_even = _summed(multiply(first, second))
        gadget = np.stack([at_even, at_odd], axis=-1).reshape(LIMBS, -1, 2 * self.order)
        return np.concatenate([randomness, gadget[..., :-1]], axis=-1)

    def query(
        self, measurement: Elements, proof: Elements, randomness: Elements, joint: Elements, aggregators: int = 2
    ) -> tuple[Elements, NDArray[np.bool_]]:
        """Returns shares of verifiers, float64[6, R, verifier_length], and which reports may be checked, bool[R].

        A report may not be checked at a root of unity, where the verifier would disclose a part of the measurement
        (probability below 2^-118).

        Args:
            measurement: shares, float64[6, R, measurement_length].
            proof: shares, float64[6, R, proof_length].
            randomness: float64[6, R, 3].
            joint: float64[6, R, calls].
            aggregators: number of shares of every entry. Each adds its part of a constant.
        """
        part = pow(aggregators, -1, MODULUS)
        point = randomness[..., 2]
        basis = lagrange_basis(point, self.order)
        used = basis[..., 1 : self.calls + 1]
        seeds, gadget = proof[..., : self.wires], self._completed(proof[..., self.wires :])
        first_seed = multiply(basis[..., :1], seeds)
        constants = multiply(from_ints([part]), total(used))[..., None]
        wires = np.empty((LIMBS, point.shape[1], self.wires))
        rows = max(1, _BLOCK_ENTRIES // self.measurement_length)
        for block in (slice(first, first + rows) for first in range(0, point.shape[1], rows)):
            entries, weight = self._in_chunks(measurement[:, block]), used[:, block]
            powers = _powers(joint[:, block], multiply(weight, joint[:, block]), self._chunk)
            wires[:, block, 0::2] = dot(powers, entries).transpose(0, 2, 1)
            wires[:, block, 1::2] = dot(entries, weight[:, None]).transpose(0, 2, 1)
        wires[..., 1::2] -= constants
        wires = settle(wires + first_seed)
        range_check = total(gadget[..., 2 : 2 * self.calls + 1 : 2])
        sum_check = dot(measurement, spread(from_ints(self._weights), 2))
        sum_check = settle(sum_check - from_ints([self._sum * part]))
        result = dot(randomness[..., :2], np.stack([range_check, sum_check], axis=-1))
        at_point = dot(gadget, lagrange_basis(point, 2 * self.order))
        verifier = np.concatenate([result[..., None], wires, at_point[..., None]], axis=-1)
        return verifier, ~is_root_of_unity(point, self.order)

    def decide(self, verifier: Elements) -> NDArray[np.bool_]:
        """Returns which verifiers, float64[6, R, verifier_length], show a valid measurement: bool[R]."""
        first, second = verifier[..., 1:-1:2], verifier[..., 2:-1:2]
        is_consistent = is_zero(settle(dot(first, second) - verifier[..., -1]))
        return is_zero(verifier[..., 0]) & is_consistent

    def _in_chunks(self, measurement: Elements) -> Elements:
        """Returns float64[6, c, R, g]: entry k c + j of report i at [:, j, i, k], zeros at the end."""
        rows = measurement.shape[1]
        padded = np.zeros((LIMBS, rows, self.calls * self._chunk))
        padded[..., : self.measurement_length] = measurement
        return np.ascontiguousarray(padded.reshape(LIMBS, rows, self.calls, self._chunk).transpose(0, 3, 1, 2))

    def _wire(self, seeds: Elements, values: Elements) -> Elements:
        """Returns a wire's values at all points, float64[6, c, R, order]: the seed, the calls' and zeros."""
        zeros = np.zeros((*values.shape[:-1], self.order - 1 - self.calls))
        return np.concatenate([seeds, values, zeros], axis=-1)

    @cached_property
    def _odd_points(self) -> Elements:
        """The matrix from values at the roots of unity of `order` to those at the odd roots of twice that order."""
        return lagrange_basis(root_powers(2 * self.order)[:, 1::2], self.order).transpose(0, 2, 1)

    def _completed(self, gadget: Elements) -> Elements:
        """Returns the gadget's polynomial with its last value, which follows from its degree: the top coefficient is 0.

        float64[6, R, 2 order - 1] gives float64[6, R, 2 order].
        """
        roots = root_powers(2 * self.order)
        last = multiply(dot(gadget, spread(roots[:, :-1], 2)), roots[:, 1:2])
        return np.concatenate([gadget, -last[..., None]], axis=-1)


def _powers(base: Elements, first: Elements, count: int) -> Elements:
    """Returns first, first base, .. first base^(count - 1): float64[6, count, R, g] of two float64[6, R, g]."""
    powers = np.empty((LIMBS, count, *base.shape[1:]))
    powers[:, 0] = first
    step, done = base, 1
    while done < count:
        more = min(done, count - done)
        powers[:, done : done + more] = multiply(powers[:, :more], step[:, None])
        step, done = multiply(step, step), done + more
    return powers


def _summed(wires: Elements) -> Elements:
    """Returns sums over the wires, float64[6, R, n] of float64[6, c, R, n]."""
    return settle(wires.sum(axis=1))


@dataclass(frozen=True)
class Histogram(Circuit):
    """Exactly one of `length` entries is 1: a client counts in one cell (Prio3Histogram)."""

    NAME: ClassVar[str] = "Prio3Histogram"
    ID: ClassVar[int] = 4

    @property
    def measurement_length(self) -> int:
        return self.length

    def encode(self, measurement: int | Sequence[int]) -> NDArray[np.int64]:
        if not isinstance(measurement, int | np.integer) or not 0 <= measurement < self.length:
            raise RequestError(f"cell: must be a whole number between 0 and {self.length - 1}")
        return np.asarray(np.arange(self.length) == measurement, dtype=np.int64)

    def truncate(self, words: Words) -> Words:
        return words

    @property
    def _weights(self) -> list[int]:
        return [1] * self.length

    @property
    def _sum(self) -> int:
        return 1


@dataclass(frozen=True)
class L1BoundSum(Circuit):
    """Whole numbers whose sum is at most `max_value` (Prio3L1BoundSum): a client spreads a weight over entries.

    Every number, and their sum at the end, is encoded in bits; the last bit's weight makes `max_value` the largest.
    """

    NAME: ClassVar[str] = "Prio3L1BoundSum"
    ID: ClassVar[int] = 7

    max_value: int = 1

    def __post_init__(self) -> None:
        if not 1 <= self.max_value < 1 << 32:
            raise RequestError(f"max_value: must be between 1 and {(1 << 32) - 1}, got {self.max_value}")
        super().__post_init__()

    @cached_property
    def _bit_weights(self) -> list[int]:
        bits = self.max_value.bit_length()
        return [*(1 << bit for bit in range(bits - 1)), self.max_value - (1 << bits - 1) + 1]

    @property
    def measurement_length(self) -> int:
        return (self.length + 1) * self.max_value.bit_length()

    def encode(self, measurement: int | Sequence[int]) -> NDArray[np.int64]:
        values = np.asarray(measurement)
        if values.shape != (self.length,) or values.dtype.kind not in "iu":
            raise RequestError(f"weights: must be {self.length} whole numbers")
        if values.min() < 0 or values.max() > self.max_value or values.sum() > self.max_value:
            raise RequestError(f"weights: must be 0 or more, and {self.max_value} at most in sum")
        numbers = np.append(values, values.sum()).astype(np.int64)
        bits = len(self._bit_weights) - 1
        is_last = (numbers >= 1 << bits).astype(np.int64)
        rest = numbers - is_last * self._bit_weights[-1]
        return np.column_stack([(rest[:, None] >> np.arange(bits)) & 1, is_last]).ravel()

    def truncate(self, words: Words) -> Words:
        bits = self.max_value.bit_length()
        shares = from_words(words[:, : self.length * bits]).reshape(LIMBS, -1, self.length, bits)
        return to_words(dot(shares, spread(from_ints(self._bit_weights), 3)))

    @property
    def _weights(self) -> list[int]:
        return self._bit_weights * self.length + [-weight for weight in self._bit_weights]

    @property
    def _sum(self) -> int:
        return 0
