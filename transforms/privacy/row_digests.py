"""Keyed digests of rows that are in no file, to which a key is bound instead of to versions of files. Pure."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt
from numpy.typing import NDArray

from sfumato.schemas.locations import holds_text
from sfumato.transforms.inputs.text_values import as_bytes, decoded, without_views
from sfumato.transforms.privacy.keys import RunKey, keyed_hash

_MISSING = np.uint64(0x9E3779B97F4A7C15)  # instead of the hash of a value that is missing


def digest_of_rows(table: pa.Table, key: RunKey) -> int:
    """Returns a keyed digest of rows, below 2^64.

    Digests of parts add up, modulo 2^64, to the digest of the whole. So it does not depend on how a runner bundles rows
    or on their order. Without the key nobody can find other rows with the same digest.

    >>> from sfumato.transforms.privacy.keys import FixedSecret
    >>> key = RunKey.derive(FixedSecret(b"k" * 32), {})
    >>> table = pa.table({"user_id": ["a", "b"], "latitude": [1.5, 2.5]})
    >>> first, second = (digest_of_rows(table.slice(row, 1), key) for row in range(2))
    >>> digest_of_rows(table, key) == (second + first) % 2**64 != digest_of_rows(table.slice(1), key)
    True
    """
    found = np.zeros(table.num_rows, np.uint64)
    for name in sorted(table.column_names):
        for_column = key.narrowed({"rows of": name})
        hashes = _hashes(decoded(table.column(name).combine_chunks()), for_column.subkey("value"))
        found = keyed_hash(for_column.subkey("row"), found ^ hashes)
    return int(found.sum(dtype=np.uint64))


def _hashes(column: pa.Array, subkey: bytes) -> NDArray[np.uint64]:
    """Returns a keyed hash of each value, uint64[n]."""
    column, kind = without_views(column), column.type
    missing = np.asarray(column.is_null().to_numpy(zero_copy_only=False), bool)
    values: NDArray[Any]
    if holds_text(kind):
        values = np.asarray(pc.fill_null(as_bytes(column), b"").to_numpy(zero_copy_only=False), dtype=object)
    elif pt.is_floating(kind):
        values = pc.fill_null(column.cast(pa.float64()), 0).to_numpy(zero_copy_only=False).view(np.int64)
    elif pt.is_integer(kind):
        values = pc.fill_null(column, 0).to_numpy(zero_copy_only=False)
    else:  # times and points, which are fewer
        values = np.array([repr(value).encode() for value in column.to_pylist()], dtype=object)
    return np.where(missing, _MISSING, keyed_hash(subkey, values))
