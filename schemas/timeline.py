"""The data of the page of nightly releases: one release a night, and the spending under the ledger's limits."""

from __future__ import annotations

import datetime
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sfumato.schemas.errors import RequestError

_DATE = re.compile(r"\d{4}-\d{2}-\d{2}")
_PATH = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]*(/[A-Za-z0-9_-][A-Za-z0-9_.-]*)*")  # relative, never upwards


@dataclass(frozen=True)
class DatedRelease:
    """One release of the timeline, by its manifest.

    Attributes:
        date: YYYY-MM-DD, the day of the data.
        release_id: the release's name.
        folder: its path, relative to the timeline's page, such as `releases/2026-11-20`.
        job: the command that made it.
        epsilon, delta: of its guarantee.
        users: number of users, public or noisy; None if unknown.
        created: ISO 8601 time.
        warm_start: id of the release that it started from, if any.
        map: the file with its map, relative to the page (`timeline_view.night_map`); None without a map.
        safe: whether the key of its noise is secret; the manifest's `privacy.randomness.safe`.
        pruned: whether its files were removed, all but the manifest.

    Raises:
        ValueError: a value is out of range.
    """

    date: str
    release_id: str
    folder: str
    job: str
    epsilon: float
    delta: float
    users: float | None
    created: str
    warm_start: str | None
    map: str | None
    safe: bool
    pruned: bool = False

    def __post_init__(self) -> None:
        _check_date(self.date)
        for name, path in (("folder", self.folder), ("map", self.map)):
            if path is not None and not _PATH.fullmatch(path):
                raise ValueError(f"{name}: must be a path below the page, such as releases/2026-11-20, got {path!r}")
        numbers = (("epsilon", self.epsilon), ("delta", self.delta), ("users", self.users))
        for name, value in numbers:
            if value is not None and not (math.isfinite(value) and value >= 0):
                raise ValueError(f"{name}: must be a finite number >= 0, got {value}")

    @property
    def has_map(self) -> bool:
        """Whether there is a map. A histogram, quantiles or a pruned release have none."""
        return self.map is not None

    @classmethod
    def from_manifest(
        cls, date: str, folder: str, manifest: Mapping[str, Any], map_file: str | None = None, pruned: bool = False
    ) -> DatedRelease:
        """From the manifest of the release in a folder. Raises RequestError if an entry is missing or out of range."""
        try:
            privacy = manifest["privacy"]
            counted = manifest.get("results") or {}
            users = counted.get("users", (privacy.get("population") or {}).get("users"))
            start = (manifest.get("parameters") or {}).get("warm_start") or {}
            return cls(
                date=date,
                release_id=str(manifest["release_id"]),
                folder=folder,
                job=str(manifest["job"]),
                epsilon=float(privacy["epsilon"]),
                delta=float(privacy["delta"]),
                # A noisy count may be negative.
                users=None if users is None else max(float(users), 0.0),
                created=str(manifest["created"]),
                warm_start=start.get("release_id"),
                map=map_file,
                safe=privacy["randomness"].get("safe") is True,
                pruned=pruned,
            )
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise RequestError(
                f"{folder}: cannot be shown on the timeline: an entry is missing or wrong ({error!r})"
            ) from None


@dataclass(frozen=True)
class Spending:
    """One of the ledger's limits, and the spending under it.

    Attributes:
        epsilon, delta: the limits for the data of any `days` consecutive days.
        days: length of the window.
        spent: (date, epsilon spent in the window that ends on that day), in order of dates.

    Raises:
        ValueError: a value is out of range.
    """

    epsilon: float
    delta: float
    days: int
    spent: Sequence[tuple[str, float]]

    def __post_init__(self) -> None:
        if not (math.isfinite(self.epsilon) and self.epsilon > 0):
            raise ValueError(f"epsilon: must be a finite number > 0, got {self.epsilon}")
        if not 0 <= self.delta < 1:
            raise ValueError(f"delta: must lie in 0..1, got {self.delta}")
        if self.days < 1:
            raise ValueError(f"days: must be 1 or more, got {self.days}")
        dates = [date for date, _ in self.spent]
        for date, spent in self.spent:
            _check_date(date)
            if not (math.isfinite(spent) and spent >= 0):
                raise ValueError(f"spent: must be finite numbers >= 0, got {spent} on {date}")
        if dates != sorted(set(dates)):
            raise ValueError("spent: every date once, in their order")


def _check_date(text: str) -> None:
    if not _DATE.fullmatch(text):
        raise ValueError(f"date: must be written as YYYY-MM-DD, got {text!r}")
    datetime.date.fromisoformat(text)
