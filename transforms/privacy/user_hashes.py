"""Keyed hashes of users' ids, of every type that logs may hold. Pure."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.types as pt
from numpy.typing import NDArray

from sfumato.schemas.locations import holds_text
from sfumato.transforms.privacy.keys import keyed_hash

_BYTES_OF = (
    (pt.is_string, pa.binary()),
    (pt.is_large_string, pa.large_binary()),
    (pt.is_string_view, pa.binary_view()),
)


def hash_users(ids: pa.Array, user_key: bytes) -> NDArray[np.uint64]:
    """Keyed 64-bit hashes, uint64[n], of an Arrow array of integers, strings or bytes without nulls."""
    if pt.is_dictionary(ids.type):
        return np.asarray(hash_users(ids.dictionary, user_key)[ids.indices.to_numpy(zero_copy_only=False)])
    if holds_text(ids.type):
        for text, raw in _BYTES_OF:  # strings hash as their bytes do, and bytes need not be UTF-8
            if text(ids.type):
                ids = ids.cast(raw)
        return keyed_hash(user_key, np.asarray(ids.to_numpy(zero_copy_only=False), dtype=object))
    return keyed_hash(user_key, ids.to_numpy(zero_copy_only=False).astype(np.int64, copy=False))
