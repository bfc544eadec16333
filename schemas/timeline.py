"""The data of the page of nightly releases: one release a night, and the spending under the ledger's limits."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from sfumato.schemas.errors import RequestError
from sfumato.schemas.ledger import Period, Reservation, parse_day
from sfumato.schemas.rotation import Rotation

_CELL = re.compile(r"r[0-3]{0,32}")
_PATH = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]*(/[A-Za-z0-9_-][A-Za-z0-9_.-]*)*")  # relative, never upwards


@dataclass(frozen=True)
class PlaceChange:
    """A place whose number of users on a night differs from the expectation of earlier nights.

    Attributes:
        cell_ids: adjacent cells of the quadtree, such as r0213.
        users: estimated users on the night.
        low, high: ends of the 95% interval of `users`, which holds for all places at once.
        expected: expected users, from earlier nights.

    Raises:
        ValueError: a value is out of range.
    """

    cell_ids: Sequence[str]
    users: float
    low: float
    high: float
    expected: float

    def __post_init__(self) -> None:
        if not self.cell_ids or not all(map(_CELL.fullmatch, self.cell_ids)):
            raise ValueError(f"cell_ids: must be r and at most 32 digits between 0 and 3, got {self.cell_ids!r}")
        if not all(map(math.isfinite, (self.users, self.low, self.high, self.expected))) or self.low > self.high:
            raise ValueError(f"changes: must be finite numbers with low <= high, got {self}")

    @classmethod
    def from_manifest(cls, entry: Mapping[str, Any]) -> PlaceChange:
        """Returns a change from an entry of the manifest. Raises KeyError, TypeError or ValueError."""
        cells = tuple(map(str, entry["cell_ids"]))
        return cls(cells, *(float(entry[name]) for name in ("users", "low", "high", "expected")))


@dataclass(frozen=True, kw_only=True)
class DatedRelease:
    """One release of the timeline, by its manifest. Raises ValueError if a value is out of range.

    Attributes:
        folder: its path, relative to the timeline's page, such as `releases/2026-11-20`.
        map: the file with its map of cells or zones, relative to the page (`timeline_view.night_map`); None without.
        safe: whether the key of its noise is secret; the manifest's `privacy.randomness.safe`.
        rests_on: periods of the noisy answers that its estimate is based on, as text, in order; None for an estimate
            from the night's own answers only.
        changes: places that differ from the expectation of earlier nights; None if `rests_on` is None.
        scope: hours of the records, and distance from points, in words; None for all.
        damaged: whether its manifest cannot be read. Then the entry states its charge in the ledger.
    """

    date: str  # YYYY-MM-DD, the day of the data
    release_id: str
    folder: str
    job: str
    epsilon: float
    delta: float
    users: float | None = None  # public or noisy; None if unknown
    created: str  # ISO 8601
    warm_start: str | None = None  # id of the release that it started from, if any
    map: str | None = None
    safe: bool
    rotation: Rotation | None = None  # the active cohort; a manifest does not state its partition
    rests_on: tuple[str, ...] | None = None
    started_anew: str | None = None  # why earlier nights were left out, as a sentence; None if they were not
    changes: tuple[PlaceChange, ...] | None = None
    pruned: bool = False  # whether all its files except the manifest were removed
    users_stddev: float | None = None  # of the error of `users`; None if unknown
    scope: str | None = None
    damaged: bool = False

    def __post_init__(self) -> None:
        parse_day("date", self.date)
        for name, path in (("folder", self.folder), ("map", self.map)):
            if path is not None and not _PATH.fullmatch(path):
                raise ValueError(f"{name}: must be a path below the page, such as releases/2026-11-20, got {path!r}")
        periods = [Period.parse(text, "rests_on") for text in self.rests_on or ()]
        if any(one.last >= other.first for one, other in pairwise(periods)):
            raise ValueError(f"rests_on: must be separate periods in order, got {self.rests_on}")
        for name in ("epsilon", "delta", "users", "users_stddev"):
            value = getattr(self, name)
            if value is not None and not (math.isfinite(value) and value >= 0):
                raise ValueError(f"{name}: must be a finite number >= 0, got {value}")

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> DatedRelease:
        """Returns a release from an entry of `timeline.json`. Raises ValueError or TypeError."""
        rotation, rests_on, changes = (values.get(name) for name in ("rotation", "rests_on", "changes"))
        read = {
            "rotation": None if rotation is None else Rotation(**rotation),
            "rests_on": None if rests_on is None else tuple(rests_on),
            "changes": None if changes is None else tuple(map(PlaceChange.from_manifest, changes)),
        }
        return cls(**{**values, **read})

    @classmethod
    def of_damaged(cls, date: str, folder: str, reservation: Reservation) -> DatedRelease:
        """Returns the entry of a release whose manifest cannot be read, by its charge."""
        charge = reservation.charge
        return cls(
            date=date,
            release_id=charge.release_id,
            folder=folder,
            job=charge.job,
            epsilon=float(charge.epsilon),
            delta=float(charge.delta),
            created=reservation.time,
            safe=True,  # a ledger's charges have a kept key
            rotation=charge.rotation,
            damaged=True,
        )

    @classmethod
    def from_manifest(
        cls, date: str, folder: str, manifest: Mapping[str, Any], map_file: str | None = None, pruned: bool = False
    ) -> DatedRelease:
        """Returns the entry of a release by its manifest. Raises RequestError if a value is missing or out of range."""
        try:
            privacy = manifest["privacy"]
            counted = manifest.get("results") or {}
            users, stddev = counted.get("users"), counted.get("users_stddev")
            if users is None:
                users = (privacy.get("population") or {}).get("users")
            if users is None and (admission := privacy.get("admission")) and "sampling_rate" not in admission:
                users, stddev = max(admission["users"], 0.0), admission["noise_stddev"]
            start = (manifest.get("parameters") or {}).get("warm_start") or {}
            over_nights = manifest.get("nights")
            over: dict[str, Any] = {}
            if over_nights is not None:
                over = {
                    "rests_on": tuple(over_nights["rests_on"]),
                    "started_anew": over_nights.get("started_anew"),
                    "changes": tuple(map(PlaceChange.from_manifest, over_nights["changes"])),
                }
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
                rotation=stated_rotation(manifest),
                pruned=pruned,
                users_stddev=None if stddev is None else float(stddev),
                **over,
            )
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise RequestError(
                f"{folder}: cannot be shown on the timeline: its manifest has a missing or wrong entry ({error!r})"
            ) from None


@dataclass(frozen=True)
class Spending:
    """One of the ledger's limits, and the spending under it.

    Attributes:
        epsilon, delta: the limits for the data of any `days` consecutive days.
        days: length of the window.
        spent: (date, epsilon spent in the window that ends on that day on the most queried user), in order of dates.
    """

    epsilon: float
    delta: float
    days: int
    spent: Sequence[tuple[str, float]]

    def left(self, spent: float) -> float:
        """Returns the epsilon that is left after this spending, without the rounding error of a difference."""
        return max(round(self.epsilon - spent, 9), 0.0)


def stated_rotation(manifest: Mapping[str, Any]) -> Rotation | None:
    """Returns the active cohort of a manifest; None for all users. Raises KeyError, TypeError or ValueError."""
    stated = (manifest.get("privacy") or {}).get("rotation")
    if stated is None:
        return None
    return Rotation(int(stated["cohort"]), int(stated["cohorts"]))
