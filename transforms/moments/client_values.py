"""The values of clients as blocks: fixed-point codes in a keyed random order; bad rows are dropped. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from sfumato.schemas.locations import DROP_REASONS
from sfumato.schemas.moments import FixedPoint, ValueColumns
from sfumato.transforms.inputs.text_values import decoded, nulls, without_views
from sfumato.transforms.locations.spill import Spill, join, load
from sfumato.transforms.locations.users import any_repeated, by_user_group, keyed_below
from sfumato.transforms.moments.groups import Groups
from sfumato.transforms.privacy.keys import RunKey, keyed_hash, random_bits
from sfumato.transforms.privacy.user_hashes import hash_users

Array = NDArray[np.float64]

_NULL_USER, _NULL_VALUE, _NOT_FINITE, _NEGATIVE = map(
    DROP_REASONS.index, ("null_user_id", "null_value", "not_finite", "negative_value")
)
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

    def below(self, edges: Array) -> NDArray[np.int64]:
        """Returns the number of clients with positions below each edge: int64[edges]."""
        return np.searchsorted(self.random_bits >> np.uint64(32), np.ceil(edges * _POSITIONS).astype(np.uint64))


def encode(values: Array, form: FixedPoint) -> tuple[NDArray[Any], int]:
    """Encodes numbers as fixed-point codes, clamped to the form's range.

    values: float64[n], finite, and at least 0 where the form is unsigned.

    Returns:
        Codes, unsigned[n] of the narrowest type, and the number of clamped values. A code is the nearest integer number
        of steps. With `split` signs it is the magnitude, and the bit above it is set for negative values.

    >>> encode(np.array([0.26, 3.0, 999.0]), FixedPoint(bits=8, fraction_bits=2))
    (array([  1,  12, 255], dtype=uint8), 1)
    """
    with np.errstate(over="ignore"):  # an overflow is clamped, as infinity is
        steps = np.rint(np.ldexp(values + form.offset if form.offset else values, form.fraction_bits))
    low = -form.max_magnitude if form.signed == "split" else 0
    clamped = int(np.count_nonzero((steps < low) | (steps > form.max_magnitude)))
    inside = np.clip(steps, low, form.max_magnitude, out=steps) if clamped else steps
    dtype = code_type(form)
    if form.signed != "split":
        return inside.astype(dtype), clamped
    codes = np.abs(inside).astype(dtype)
    codes |= (inside < 0).astype(dtype) << dtype.type(form.bits)
    return codes, clamped


def encode_columns(values: NDArray[Any], form: FixedPoint, second: FixedPoint | None) -> tuple[NDArray[Any], int]:
    """Encodes numbers, or pairs: then the second number's code is in the bits above the first's. See `encode`.

    values: float64[n]; complex128[n] with a second column, whose numbers are the imaginary parts.
    """
    if second is None:
        return encode(values, form)
    (low, clamped), (high, clamped_too) = encode(values.real, form), encode(values.imag, second)
    dtype = code_type(form, second)
    return low.astype(dtype) | high.astype(dtype) << dtype.type(form.code_bits), clamped + clamped_too


def split_pairs(codes: NDArray[Any], form: FixedPoint, second: FixedPoint) -> tuple[NDArray[Any], NDArray[Any]]:
    """Returns the codes of the first and of the second numbers. codes: see `encode_columns`."""
    shift = codes.dtype.type(form.code_bits)
    high = codes >> shift
    return (codes ^ (high << shift)).astype(code_type(form)), high.astype(code_type(second))


def code_type(form: FixedPoint, second: FixedPoint | None = None) -> np.dtype[Any]:
    """Returns the narrowest unsigned type that holds a form's codes, or those of pairs."""
    bits = form.code_bits + (0 if second is None else second.code_bits)
    return np.dtype(next(f"u{size}" for size in (1, 2, 4, 8) if bits <= 8 * size))


def decode(codes: NDArray[Any], form: FixedPoint) -> Array:
    """Returns the numbers behind codes, in the column's unit: float64[n]."""
    if form.signed != "split":
        return np.asarray(np.ldexp(codes.astype(np.float64), -form.fraction_bits) - form.offset)
    magnitude = np.ldexp((codes & codes.dtype.type(form.max_magnitude)).astype(np.float64), -form.fraction_bits)
    return np.asarray(np.where(codes >> codes.dtype.type(form.bits), -magnitude, magnitude))


@dataclass(frozen=True, eq=False)
class EncodedValues:
    """The usable rows of a batch, and the numbers of the others."""

    users: NDArray[np.uint64] | None  # uint64[n], keyed hashes; None if rows are users
    codes: NDArray[Any]  # see Block
    groups: NDArray[np.uint16] | None  # uint16[n]; None if there is only one group
    rows: int  # all rows of the batch
    dropped: tuple[int, ...]  # dropped rows by reason, in the order of DROP_REASONS
    clamped: int  # values outside the range, which count at its end
    # uint64[k], users of dropped rows with an id. They may have usable rows too.
    unusable: NDArray[np.uint64] = field(default_factory=lambda: np.empty(0, np.uint64))


@dataclass(frozen=True)
class Values:
    """The source of values."""

    columns: ValueColumns
    form: FixedPoint | None  # None keeps floating-point numbers of either sign
    groups: Groups | None = None  # None for one group
    second: FixedPoint | None = None  # of the second column; None without one, and where `form` is None

    @property
    def code_type(self) -> np.dtype[Any]:
        """Returns the type of a Block's codes."""
        if self.form is None:
            return np.dtype(np.float64 if self.columns.second is None else np.complex128)
        return code_type(self.form, self.second)

    def encode(self, batch: pa.RecordBatch, key: RunKey) -> EncodedValues:
        """Encodes a batch. It drops values that are missing, not finite, or negative in an unsigned form."""
        dropped, unusable = np.zeros(len(DROP_REASONS), np.int64), np.empty(0, np.uint64)
        bad = np.zeros(batch.num_rows, np.int8)
        # The last reason that applies counts, of both columns.
        numbers: NDArray[Any] = _numbers(batch, self.columns.column, self.form, bad)
        if self.columns.second is not None:
            others = _numbers(batch, self.columns.second, self.second, bad)
            numbers = np.stack([numbers, others], axis=1).view(np.complex128)[:, 0]
        ids = None if self.columns.user_id is None else batch.column(self.columns.user_id)
        if ids is not None and ids.null_count:
            bad[nulls(ids)] = -1
        if bad.any():
            good = bad == 0
            dropped += np.bincount(bad[bad > 0], minlength=len(DROP_REASONS))
            dropped[_NULL_USER] += np.count_nonzero(bad == -1)
            if ids is not None:
                unusable = hash_users(without_views(ids).filter(pa.array(bad > 0)), key.subkey("users"))
            plain = pa.RecordBatch.from_arrays(list(map(without_views, batch.columns)), batch.schema.names)
            batch, numbers = plain.filter(pa.array(good)), numbers[good]
            ids = None if self.columns.user_id is None else batch.column(self.columns.user_id)
        codes, clamped = (numbers, 0) if self.form is None else encode_columns(numbers, self.form, self.second)
        return EncodedValues(
            None if ids is None else hash_users(ids, key.subkey("users")),
            codes,
            None if self.groups is None else self.groups.encode(batch),
            len(bad),
            tuple(dropped.tolist()),
            clamped,
            np.unique(unusable),
        )


def _numbers(batch: pa.RecordBatch, name: str, form: FixedPoint | None, bad: NDArray[np.int8]) -> Array:
    """Returns a column's numbers: float64[n]. `bad`, int8[n], gets the reason of each row that this form cannot use."""
    column = decoded(batch.column(name))
    numbers: Array = column.to_numpy(zero_copy_only=False).astype(np.float64, copy=False)
    if form is not None and form.signed == "no":
        bad[numbers < 0] = _NEGATIVE
    bad[~np.isfinite(numbers)] = _NOT_FINITE
    if column.null_count:
        bad[nulls(column)] = _NULL_VALUE
    return numbers


def row_blocks(encoded: EncodedValues, name: str, key: RunKey) -> Iterator[Block]:
    """Blocks in which each row is a client. name: of the batch, unique within the run."""
    pairs = np.arange(-(-len(encoded.codes) // 2), dtype=np.uint64)
    client_bits = random_bits(key.subkey("rows", name), np.zeros_like(pairs), pairs).reshape(-1)
    yield from _blocks(encoded.codes, client_bits[: len(encoded.codes)], encoded.groups)


def _blocks(codes: NDArray[Any], client_bits: NDArray[np.uint64], groups: NDArray[np.uint16] | None) -> Iterator[Block]:
    for first in range(0, len(codes), BLOCK_CLIENTS):
        part = slice(first, first + BLOCK_CLIENTS)
        columns = codes[part], client_bits[part], None if groups is None else groups[part]
        # Values without a form are added up, in any order; no query reaches a part of them.
        yield Block(*columns) if codes.dtype.kind in "fc" else Block.from_clients(*columns)


def split_by_user(encoded: EncodedValues, spill: Spill) -> Iterator[tuple[int, bytes]]:
    """Splits a batch by user group (see users.py): (group, its stored users, values, and groups if there are any).

    Users of dropped rows come separately, as hashes only: (group, stored hashes).
    """
    assert encoded.users is not None
    order, slices = by_user_group(encoded.users, spill.group_bits)
    columns = [column for column in (encoded.users, encoded.codes, encoded.groups) if column is not None]
    for number, rows in slices:  # each group has its own arrays; `clip` checks no index, and so needs no copy
        yield number, spill.store(*(column.take(order[rows], mode="clip").data for column in columns))
    order, slices = by_user_group(encoded.unusable, spill.group_bits)
    unusable = encoded.unusable[order]
    for number, rows in slices:
        yield number, spill.store(unusable[rows].data)


def user_blocks(chunks: Iterable[bytes], values: Values, key: RunKey) -> Iterator[Block]:
    """Blocks with one client a user. One record counts, chosen uniformly among the user's by the bits of their hash.

    The hash also keys the client's random bits. So neither depends on other users or on the order of files.

    chunks: from `split_by_user`, of one user group. Nothing may load them again, see `spill.take`.
    """
    dtypes: tuple[np.dtype[Any], ...] = (np.dtype(np.uint64), values.code_type, np.dtype(np.uint16))
    users, codes, *rest = join(chunks, dtypes[: 2 if values.groups is None else 3], last=True)
    groups = rest[0] if rest else None
    if any_repeated(users):
        order = np.lexsort((codes, users) if groups is None else (groups, codes, users))
        users = users[order]
        first = np.flatnonzero(np.append(True, users[1:] != users[:-1]))
        users = users[first]
        order = order[first + keyed_below(users, np.diff(first, append=len(order)))]
        codes, groups = codes[order], None if groups is None else groups[order]
    yield from _blocks(codes, keyed_hash(key.subkey("places"), users), groups)


def pack(block: Block, spill: Spill) -> bytes:
    """Returns the block as bytes that travel in its place (see Spill)."""
    columns = {"codes": block.codes, "random_bits": block.random_bits, "groups": block.groups}
    form = {name: column.dtype.str for name, column in columns.items() if column is not None}
    arrays = (np.ascontiguousarray(column).data for column in columns.values() if column is not None)
    return spill.store(json.dumps(form).encode(), *arrays)


def unpack(stored: bytes) -> Block:
    """Returns the block that `pack` stored."""
    head, *arrays = load(stored)
    form = json.loads(bytes(head))
    return Block(**{name: np.frombuffer(array, form[name]) for name, array in zip(form, arrays, strict=True)})
