"""Arrow batches to blocks of clients: fixed-point values in a keyed random order; bad rows are dropped. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as pt
from numpy.typing import NDArray

from sfumato.schemas.locations import holds_text
from sfumato.schemas.moments import FixedPoint, ValueColumns
from sfumato.transforms.locations.encode import DROP_REASONS, hash_users
from sfumato.transforms.locations.records import keyed_below
from sfumato.transforms.locations.spill import Spill, join, load
from sfumato.transforms.locations.users import any_repeated, by_user_group
from sfumato.transforms.locations.values import nulls, without_views
from sfumato.transforms.moments.fixed_point import code_type, encode
from sfumato.transforms.moments.groups import Groups
from sfumato.transforms.moments.tally import BLOCK_CLIENTS, Block
from sfumato.transforms.privacy.keys import RunKey

_NULL_USER, _NULL_VALUE, _NOT_FINITE, _NEGATIVE = map(
    DROP_REASONS.index, ("null_user_id", "null_value", "not_finite", "negative_value")
)


@dataclass(frozen=True, eq=False)
class EncodedValues:
    """The usable rows of a batch, and what became of the others.

    users: uint64[n], keyed hashes, None where rows are users. codes, groups: unsigned[n]; no groups: None. dropped: one
    number a reason of DROP_REASONS. clamped: values moved to an end of the range. text_ids: ids are strings or bytes.
    """

    users: NDArray[np.uint64] | None
    codes: NDArray[Any]
    groups: NDArray[np.uint16] | None
    rows: int
    dropped: tuple[int, ...]
    clamped: int
    text_ids: bool


@dataclass(frozen=True)
class Values:
    """Where values come from: columns, the form to bring them in, and the groups of clients, None for one of all."""

    columns: ValueColumns
    form: FixedPoint
    groups: Groups | None = None

    def encode(self, batch: pa.RecordBatch, key: RunKey) -> EncodedValues:
        """Brings a batch into the form. Values that are missing, not finite, or negative without a sign are dropped."""
        dropped = np.zeros(len(DROP_REASONS), np.int64)
        bad = np.zeros(batch.num_rows, np.int8)
        column = batch.column(self.columns.column)
        if pt.is_dictionary(column.type):
            column = column.dictionary_decode()
        numbers = column.to_numpy(zero_copy_only=False).astype(np.float64, copy=False)
        # The last of these that holds is the reason.
        if self.form.signed == "no":
            bad[numbers < 0] = _NEGATIVE
        bad[~np.isfinite(numbers)] = _NOT_FINITE
        if column.null_count:
            bad[nulls(column)] = _NULL_VALUE
        ids = None if self.columns.user_id is None else batch.column(self.columns.user_id)
        if ids is not None and ids.null_count:
            null_user = nulls(ids)
            bad[null_user] = -1
        if bad.any():
            good = bad == 0
            dropped += np.bincount(bad[bad > 0], minlength=len(DROP_REASONS))
            dropped[_NULL_USER] += np.count_nonzero(bad == -1)
            plain = pa.RecordBatch.from_arrays([without_views(one) for one in batch.columns], batch.schema.names)
            batch, numbers = plain.filter(pa.array(good)), numbers[good]
            ids = None if self.columns.user_id is None else batch.column(self.columns.user_id)
        codes, clamped = encode(numbers, self.form)
        return EncodedValues(
            None if ids is None else hash_users(ids, key.subkey("users")),
            codes,
            None if self.groups is None else self.groups.encode(batch),
            len(bad),
            tuple(dropped.tolist()),
            clamped,
            ids is not None and holds_text(ids.type),
        )

    @property
    def exact(self) -> bool:
        """Whether every bit gets its exact quota of clients; with groups that would show who else is there."""
        return self.groups is None


def row_blocks(encoded: EncodedValues, name: str, exact: bool, key: RunKey) -> Iterator[Block]:
    """Blocks of rows that are a client each. name: of the batch."""
    for first in range(0, len(encoded.codes), BLOCK_CLIENTS):
        rows = slice(first, first + BLOCK_CLIENTS)
        groups = None if encoded.groups is None else encoded.groups[rows]
        yield Block.shuffled(f"{name}:{first}", encoded.codes[rows], groups, exact, key)


def split_by_user(encoded: EncodedValues, spill: Spill) -> Iterator[tuple[int, bytes]]:
    """Splits a batch by user group (see users.py): (group, its users, values and groups if there are any, stored)."""
    assert encoded.users is not None
    order, found = by_user_group(encoded.users)
    columns = [column[order] for column in (encoded.users, encoded.codes, encoded.groups) if column is not None]
    for number, rows in found:
        yield number, spill.store(*(column[rows].data for column in columns))


def user_blocks(number: int, chunks: Iterable[bytes], values: Values, key: RunKey) -> Iterator[Block]:
    """Blocks of one client a user, of whom one record counts. chunks: what `split_by_user` made of one user group.

    The record is chosen uniformly among hers by the lower bits of her hash, so it depends on nobody else and on no
    order of files.
    """
    dtypes: tuple[np.dtype[Any], ...] = (np.dtype(np.uint64), code_type(values.form), np.dtype(np.uint16))
    users, codes, *rest = join(chunks, dtypes[: 2 if values.groups is None else 3])
    groups = rest[0] if rest else None
    if any_repeated(users):
        order = np.lexsort((codes, users) if groups is None else (groups, codes, users))
        users = users[order]
        first = np.flatnonzero(np.append(True, users[1:] != users[:-1]))
        order = order[first + keyed_below(users[first], np.diff(first, append=len(users)))]
    else:
        order = np.argsort(users)
    one_each = EncodedValues(None, codes[order], None if groups is None else groups[order], 0, (), 0, False)
    yield from row_blocks(one_each, f"users {number}", values.exact, key)


def pack(block: Block, spill: Spill) -> bytes:
    """A block, stored: what may travel in its place (see Spill)."""
    columns = {"codes": block.codes, "groups": block.groups, "places": block.places}
    form = {name: column.dtype.str for name, column in columns.items() if column is not None}
    arrays = (np.ascontiguousarray(column).data for column in columns.values() if column is not None)
    return spill.store(json.dumps([block.name, form]).encode(), *arrays)


def unpack(stored: bytes) -> Block:
    """What `pack` was given."""
    head, *arrays = load(stored)
    name, form = json.loads(bytes(head))
    columns = {one: np.frombuffer(array, dtype) for (one, dtype), array in zip(form.items(), arrays, strict=True)}
    return replace(Block(name, columns["codes"]), groups=columns.get("groups"), places=columns.get("places"))
