"""Keyed digests of rows that are in no file, to which a key is bound instead of to versions of files. Pure."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt
from numpy.typing import NDArray

from sfumato.schemas.locations import holds_text
from sfumato.transforms.inputs.text_values import as_bytes, decoded, without_views
from sfumato.transforms.privacy.keys import RunKey, keyed_hash, keyed_hash_of_pairs
from sfumato.transforms.privacy.user_hashes import hash_users


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
        column = without_views(decoded(table.column(name).combine_chunks()))
        words = _words(column, for_column.subkey("text"))
        hashed = keyed_hash_of_pairs(for_column.subkey("value"), found, words)
        if column.null_count:
            missing = column.is_null().to_numpy(zero_copy_only=False)
            hashed[missing] = keyed_hash_of_pairs(for_column.subkey("missing"), found[missing], words[missing])
        found = hashed
    return int(found.sum(dtype=np.uint64))


def _words(column: pa.Array, subkey: bytes) -> NDArray[np.uint64]:
    """Returns 64 bits for each value: those of a number, or a keyed hash; of a missing one those of 0 or "". uint64[n].

    column: integers have at most 64 bits.
    """
    kind = column.type
    if pt.is_floating(kind):
        return np.asarray(pc.fill_null(column.cast(pa.float64()), 0)).view(np.uint64)
    if pt.is_integer(kind):
        return np.asarray(pc.fill_null(column, 0)).astype(np.uint64, copy=False)
    if holds_text(kind):
        return hash_users(pc.fill_null(as_bytes(column), b""), subkey)
    # times and points, which are fewer
    return keyed_hash(subkey, np.array([repr(value).encode() for value in column.to_pylist()], dtype=object))
