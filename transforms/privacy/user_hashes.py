"""Keyed hashes of users' ids, of every type that logs may hold, and the cohorts that such hashes choose. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt
from numpy.typing import NDArray

from sfumato.schemas.ledger import dataset_name
from sfumato.schemas.locations import LocationColumns, holds_text
from sfumato.schemas.rotation import Rotation
from sfumato.transforms.inputs.text_values import as_bytes, nulls, without_views
from sfumato.transforms.privacy.keys import RunKey, Secret, keyed_hash

_NOT_POSITIVE = r"^(0|-[1-9][0-9]{0,18})$"
_LARGEST, _SMALLEST = b"9223372036854775807", b"-9223372036854775808"
_PARTITION_DIGITS = 32
_NOBODY = b"\0 no user id"  # an id that no text format holds
_LOW, _HALF = np.uint64(0xFFFFFFFF), np.uint64(32)


def hash_users(ids: pa.Array, user_key: bytes) -> NDArray[np.uint64]:
    """Returns the keyed hash of each user, uint64[n], for n integers, strings or bytes without nulls.

    The integer 7 and the text "7" are one user: their logs may be Parquet on one night and CSV or NDJSON, where every
    id is text, on the next.
    """
    if pt.is_dictionary(ids.type):
        return np.asarray(hash_users(ids.dictionary, user_key)[ids.indices.to_numpy(zero_copy_only=False)])
    if not holds_text(ids.type):
        return _hash_integers(ids, user_key)
    text = as_bytes(ids)
    digits = text.view(pa.large_string())
    fits = pc.and_not(pc.less_equal(pc.binary_length(text), len(_LARGEST)), _is_above(text, _LARGEST))
    positive = pc.and_(pc.ascii_is_decimal(digits), pc.and_not(fits, pc.starts_with(text, b"0")))
    are_positive = np.asarray(positive.to_numpy(zero_copy_only=False), dtype=bool)
    hashes = np.empty(len(text), dtype=np.uint64)
    hashes[are_positive] = keyed_hash(user_key, digits.filter(positive).cast(pa.int64()).to_numpy())
    hashes[~are_positive] = _hash_others(text.filter(pc.invert(positive)), user_key)
    return hashes


def _hash_others(text: pa.Array, user_key: bytes) -> NDArray[np.uint64]:
    """Returns hashes of text, some of which is 0 or a negative 64-bit integer as a program writes it: uint64[n].

    A pattern takes several times as long as the digits of positive integers, which are most ids.
    """
    integers = pc.and_not(pc.match_substring_regex(text, _NOT_POSITIVE), _is_above(text, _SMALLEST))
    are_integers = np.asarray(integers.to_numpy(zero_copy_only=False), dtype=bool)
    hashes = np.empty(len(text), dtype=np.uint64)
    numbers = text.filter(integers).cast(pa.large_string()).cast(pa.int64())
    hashes[are_integers] = keyed_hash(user_key, numbers.to_numpy())
    hashes[~are_integers] = _hash_text(text.filter(pc.invert(integers)), user_key)
    return hashes


def _hash_text(text: pa.Array, user_key: bytes) -> NDArray[np.uint64]:
    return keyed_hash(user_key, np.asarray(text.to_numpy(zero_copy_only=False), dtype=object))


def _hash_integers(ids: pa.Array, user_key: bytes) -> NDArray[np.uint64]:
    numbers = ids.to_numpy(zero_copy_only=False)
    hashes = keyed_hash(user_key, numbers.astype(np.int64, copy=False))
    if pt.is_uint64(ids.type) and (beyond := numbers >= np.uint64(1 << 63)).any():
        # As signed integers these would be the users of negative ids.
        text = as_bytes(ids.filter(pa.array(beyond)).cast(pa.large_string()))
        hashes[beyond] = _hash_text(text, user_key)
    return hashes


def _is_above(text: pa.Array, limit: bytes) -> pa.Array:
    """Returns whether each text has the length of a limit and is above it: for integers, a larger number."""
    return pc.and_(pc.equal(pc.binary_length(text), len(limit)), pc.greater(text, pa.scalar(limit, text.type)))


def rotation_key(secret: Secret, dataset: str, cohorts: int, id_column: str) -> RunKey:
    """Returns the key that divides a dataset's users into cohorts: the same in every run with the same secret.

    The ids of another column divide the same people otherwise, so a cohort of the one shares users with every cohort
    of the other. Raises RequestError: the secret cannot be read, or the dataset's name is not allowed.
    """
    return RunKey.derive(secret, {"rotation": cohorts, "dataset": dataset_name(dataset), "id_column": id_column})


def cohort_of(ids: pa.Array, key: RunKey, cohorts: int) -> NDArray[np.int64]:
    """Returns the cohort of each user: 1 + floor(h c / 2^64), with c cohorts and h the keyed hash of the id.

    The probabilities of two cohorts differ by 2^-64 at most. The integer 7 and the text "7" are in one cohort.

    ids: as for `hash_users`. key: from `rotation_key`, for this number of cohorts, 1..2^31. Returns int64[n].
    """
    hashes, number = _hashes(ids, key.subkey("users")), np.uint64(cohorts)
    # The product has up to 96 bits, so it is made of two halves that fit 64 bits. No bit is lost.
    low = (hashes & _LOW) * number >> _HALF
    return ((((hashes >> _HALF) * number + low) >> _HALF) + np.uint64(1)).astype(np.int64)


def _hashes(ids: pa.Array, user_key: bytes) -> NDArray[np.uint64]:
    """Returns keyed hashes for cohorts, uint64[n]. Text that is an integer of 64 bits has the integer's hash.

    Unlike `hash_users`, an unsigned integer beyond 63 bits has the hash of the signed one with the same bits. Do not
    change this: a division into cohorts lasts for years, and users who moved to another cohort would be queried twice.
    """
    if pt.is_dictionary(ids.type):
        return np.asarray(_hashes(ids.dictionary, user_key)[ids.indices.to_numpy(zero_copy_only=False)])
    if not holds_text(ids.type):
        return keyed_hash(user_key, ids.to_numpy(zero_copy_only=False))
    hashes, text = hash_users(ids, user_key), as_bytes(ids)
    # Of two integers with equally many digits, the text of the smaller is the smaller one.
    digits = pc.match_substring_regex(text, r"^[1-9][0-9]{18,19}$")
    low, high = (pa.scalar(limit, text.type) for limit in (b"9223372036854775807", b"18446744073709551615"))
    in_19 = pc.and_(pc.equal(pc.binary_length(text), 19), pc.greater(text, low))
    in_20 = pc.and_(pc.equal(pc.binary_length(text), 20), pc.less_equal(text, high))
    beyond = pc.and_(digits, pc.or_(in_19, in_20))
    if pc.any(beyond).as_py():
        numbers = text.filter(beyond).cast(pa.large_string()).cast(pa.uint64())
        hashes[beyond.to_numpy(zero_copy_only=False)] = keyed_hash(user_key, numbers.to_numpy())
    return hashes


def with_partition(rotation: Rotation, key: RunKey) -> Rotation:
    """Returns a run's rotation with the digest of its division of the users. key: from `rotation_key`, for the run."""
    return replace(rotation, partition=key.subkey("partition").hex()[:_PARTITION_DIGITS])


@dataclass(frozen=True)
class ActiveCohort:
    """The cohort whose users a run counts. Other users' rows are left out as they are read. key: from `rotation_key`.

    All rows without a user id count as one user (`RowCounts.users_without_id`), with a cohort like any other's.
    """

    rotation: Rotation
    key: RunKey

    def only(self, batch: pa.RecordBatch, columns: LocationColumns) -> pa.RecordBatch:
        """Returns the rows of the cohort's users."""
        names = batch.schema.names
        batch = pa.RecordBatch.from_arrays([without_views(column) for column in batch.columns], names)
        ids = batch.column(columns.user_id)
        missing = nulls(ids)
        cohorts = np.empty(len(ids), dtype=np.int64)
        cohorts[~missing] = cohort_of(ids.drop_null(), self.key, self.rotation.cohorts)
        cohorts[missing] = cohort_of(pa.array([_NOBODY]), self.key, self.rotation.cohorts)[0]
        return batch.filter(pa.array(cohorts == self.rotation.cohort))
