"""Keyed hashes of users' ids, of every type that logs may hold. Pure."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt
from numpy.typing import NDArray

from sfumato.schemas.locations import holds_text
from sfumato.transforms.inputs.text_values import as_bytes
from sfumato.transforms.privacy.keys import keyed_hash

_INTEGER = r"^(0|-?[1-9][0-9]{0,18})$"
_LARGEST, _SMALLEST = b"9223372036854775807", b"-9223372036854775808"


def hash_users(ids: pa.Array, user_key: bytes) -> NDArray[np.uint64]:
    """Returns the keyed hash of each user.

    The integer 7 and the text "7" are one user: their logs may be Parquet on one night and CSV or
    NDJSON, where every id is text, on the next.

    Args:
        ids: Arrow array of n integers, strings or bytes, without nulls.
        user_key: of the run.

    Returns:
        uint64[n].
    """
    if pt.is_dictionary(ids.type):
        return np.asarray(hash_users(ids.dictionary, user_key)[ids.indices.to_numpy(zero_copy_only=False)])
    if not holds_text(ids.type):
        return _hash_integers(ids, user_key)
    text = as_bytes(ids)
    integers = _are_integers(text)
    are_integers = np.asarray(integers.to_numpy(zero_copy_only=False), dtype=bool)
    hashes = np.empty(len(text), dtype=np.uint64)
    numbers = text.filter(integers).cast(pa.large_string()).cast(pa.int64())
    hashes[are_integers] = keyed_hash(user_key, numbers.to_numpy())
    hashes[~are_integers] = hash_text(text.filter(pc.invert(integers)), user_key)
    return hashes


def hash_text(text: pa.Array, user_key: bytes) -> NDArray[np.uint64]:
    """Returns the keyed hashes of bytes, uint64[n], whatever they spell."""
    return keyed_hash(user_key, np.asarray(text.to_numpy(zero_copy_only=False), dtype=object))


def _hash_integers(ids: pa.Array, user_key: bytes) -> NDArray[np.uint64]:
    numbers = ids.to_numpy(zero_copy_only=False)
    hashes = keyed_hash(user_key, numbers.astype(np.int64, copy=False))
    if pt.is_uint64(ids.type) and (beyond := numbers >= np.uint64(1 << 63)).any():
        # As signed integers these would be the users of negative ids.
        text = as_bytes(ids.filter(pa.array(beyond)).cast(pa.large_string()))
        hashes[beyond] = hash_text(text, user_key)
    return hashes


def _are_integers(text: pa.Array) -> pa.Array:
    """Whether each text is a signed 64-bit integer as a program writes it."""
    digits = pc.match_substring_regex(text, _INTEGER)
    beyond = pc.or_(_is_above(text, _LARGEST), pc.and_(pc.starts_with(text, b"-"), _is_above(text, _SMALLEST)))
    return pc.and_not(digits, beyond)


def _is_above(text: pa.Array, limit: bytes) -> pa.Array:
    """Whether bytes are as many as those of a limit and above it: of integers, the one with larger digits."""
    return pc.and_(pc.equal(pc.binary_length(text), len(limit)), pc.greater(text, pa.scalar(limit, text.type)))
