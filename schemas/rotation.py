"""Rotating cohorts: the users of a dataset are divided into cohorts, and each night queries one of them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import date

from sfumato.schemas.errors import RequestError

MAX_COHORTS = 366
_ROTATION = re.compile(r"([1-9][0-9]{0,2})/([1-9][0-9]{0,2})")
_PARTITION = re.compile(r"[0-9a-f]{32}")


@dataclass(frozen=True)
class Rotation:
    """One cohort of several. A keyed hash of a user's id chooses the user's cohort, the same every night.

    With c cohorts, night d queries cohort 1 + d mod c, where d is the number of the day. So any n consecutive nights
    query a user at most ceil(n / c) times, whatever the user does.

    The partition identifies the division of the users: a keyed digest of the dataset's name and the number of cohorts.

    Raises RequestError if a value is out of range.

    >>> Rotation.parse("7/30")
    Rotation(cohort=7, cohorts=30, partition='')
    >>> str(Rotation.of_night(date(2026, 11, 27), cohorts=30))
    '28/30'
    """

    cohort: int  # the active cohort, 1..cohorts
    cohorts: int  # the number of cohorts, 1..366. A single cohort holds all users
    partition: str = ""  # 32 hexadecimal digits; empty until the key is known

    def __post_init__(self) -> None:
        if not 1 <= self.cohorts <= MAX_COHORTS:
            raise RequestError(f"rotation: COHORTS must be between 1 and {MAX_COHORTS}, got {self.cohorts}")
        if not 1 <= self.cohort <= self.cohorts:
            raise RequestError(f"rotation: COHORT must be between 1 and {self.cohorts}, got {self.cohort}")
        if self.partition and not _PARTITION.fullmatch(self.partition):
            raise RequestError("rotation: the partition must have 32 hexadecimal digits")

    @classmethod
    def of_night(cls, night: date, cohorts: int) -> Rotation:
        """Returns the active cohort of a night."""
        return cls(1 + night.toordinal() % max(cohorts, 1), cohorts)

    @classmethod
    def parse(cls, text: str) -> Rotation:
        """Returns the rotation of `COHORT/COHORTS`, such as 7/30. Raises RequestError."""
        found = _ROTATION.fullmatch(text.strip())
        if not found:
            raise RequestError(f"rotation: must be COHORT/COHORTS, such as 7/30, got {text[:40]!r}")
        return cls(int(found[1]), int(found[2]))

    def __str__(self) -> str:
        return f"{self.cohort}/{self.cohorts}"
