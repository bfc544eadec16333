"""The users that the admission of a sampled job counts: their own Poisson sample, drawn by a keyed hash. Pure.

A sampled job reads the records of the drawn users only, and the size of that draw has to stay secret. So the admission
counts another Poisson sample at a public rate; a job that counts everybody has a rate of 1. The sample's random bits
are independent of the rounds'. A user in it either has a usable record or has none. All rows
without a user id count as one user.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from sfumato.transforms.histogram.user_sample import Sample
from sfumato.transforms.inputs.text_values import nulls, without_views
from sfumato.transforms.locations.users import by_user_group
from sfumato.transforms.privacy.admission import UserCounts
from sfumato.transforms.privacy.keys import RunKey, random_bits
from sfumato.transforms.privacy.user_hashes import hash_users

_USABLE = np.uint64(1)  # the bit of a user's hash that marks a usable record


@dataclass(frozen=True)
class AdmissionSampler:
    """Draws users for the admission, each independently with probability `rate`."""

    key: RunKey
    rate: float

    @cached_property
    def _user_key(self) -> bytes:
        return self.key.subkey("admission sample")

    @cached_property
    def _limit(self) -> np.uint64:
        return np.uint64(min(int(self.rate * 2.0**64), 2**64 - 1))

    def drawn(self, users: NDArray[np.uint64]) -> NDArray[np.uint64]:
        """The drawn ones among users, uint64[n] keyed hashes."""
        if self.rate == 1:
            return users
        return users[random_bits(self._user_key, np.zeros_like(users), users)[:, 0] < self._limit]

    def is_held_by_samples(self, rounds: RoundDraw) -> bool:
        """Whether the job's own samples hold all users, so that the admission counts them there."""
        return self.rate == 1 and rounds.draws_all

    def drawn_nobody(self, nobody: int) -> int:
        """Returns how many of the users without an id are drawn; see `RowCounts.nobody`."""
        numbers = np.arange(nobody, dtype=np.uint64)
        bits = random_bits(self.key.subkey("admission sample of nobody"), np.zeros_like(numbers), numbers)
        return int((bits[:, 0] < self._limit).sum()) if self.rate < 1 else nobody

    def __reduce__(self) -> tuple[type[AdmissionSampler], tuple[RunKey, float]]:
        return AdmissionSampler, (self.key, self.rate)  # never the derived key


class RoundDraw(Protocol):
    """Decides whose records a job counts."""

    @property
    def key(self) -> RunKey:
        """The key of the job's counts."""

    @property
    def draws_all(self) -> bool:
        """Whether every user takes part."""

    def drawn_in_any_round(self, users: NDArray[np.uint64]) -> NDArray[np.bool_]:
        """Whether each user takes part in any round: bool[n]. users: uint64[n], their keyed hashes."""
        ...


@dataclass(frozen=True)
class UserDraw:
    """Draws the users of a batch for the rounds of a job, and collects those drawn for its admission."""

    rounds: RoundDraw
    admission: AdmissionSampler | None
    _usable: list[NDArray[np.uint64]] = field(default_factory=list)

    def __call__(self, users: NDArray[np.uint64]) -> NDArray[np.bool_]:
        """Whether each user with a usable record takes part in any round: bool[n]."""
        if self.admission is not None and not self.admission.is_held_by_samples(self.rounds):
            self._usable.append(self.admission.drawn(users))
        return self.rounds.drawn_in_any_round(users)

    def admission_users(self, ids: pa.Array, dropped: int) -> NDArray[np.uint64]:
        """The marked hashes of the batch's users that are drawn for the admission, uint64[n], possibly with repeats.

        Args:
            ids: the column of user ids of all rows.
            dropped: number of unusable rows with a user id.
        """
        if self.admission is None or self.admission.is_held_by_samples(self.rounds):
            return np.empty(0, np.uint64)
        marked = [users | _USABLE for users in self._usable]
        if dropped:
            marked.append(self.admission.drawn(self._hashes(ids)) & ~_USABLE)
        return np.concatenate([np.empty(0, np.uint64), *marked])

    def with_unusable(self, sample: Sample, ids: pa.Array, dropped: int) -> Sample:
        """The sample with the users of dropped rows, where samples hold all users. Arguments: see admission_users."""
        if not dropped or self.admission is None or not self.admission.is_held_by_samples(self.rounds):
            return sample
        return replace(sample, unusable=np.setdiff1d(self._hashes(ids), sample.users))

    def _hashes(self, ids: pa.Array) -> NDArray[np.uint64]:
        return hash_users(without_views(ids).filter(pa.array(~nulls(ids))), self.rounds.key.subkey("users"))


def split_marked_users(users: NDArray[np.uint64], group_bits: int) -> list[tuple[int, NDArray[np.uint64]]]:
    """Splits marked hashes by user group, so that all records of a user meet: (group, the group's users)."""
    order, groups = by_user_group(users, group_bits)
    return [(number, users[order[rows]]) for number, rows in groups]


def merge_marked_users(users: Iterable[NDArray[np.uint64]]) -> NDArray[np.uint64]:
    """The union of marked hashes: uint64[n], ascending; a function for `beam.CombinePerKey`."""
    ordered = np.sort(np.concatenate([np.empty(0, np.uint64), *users]))  # faster than np.unique, which hashes first
    return np.asarray(ordered[np.append(True, ordered[1:] != ordered[:-1])[: len(ordered)]])


def count_marked_users(users: NDArray[np.uint64]) -> UserCounts:
    """Users with a usable record, and users without any, in a union of marked hashes."""
    usable = int((users & _USABLE).sum())
    everybody = len(merge_marked_users([users | _USABLE]))
    return UserCounts(usable, everybody - usable)
