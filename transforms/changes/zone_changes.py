"""Changes between two published releases of zones, over the zones that both have. Pure post-processing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from sfumato.schemas.errors import RequestError
from sfumato.schemas.guarantee import days_averaged
from sfumato.schemas.release import ZONES_FILE, changed_zones_schema
from sfumato.transforms.changes.differences import Changes, Side, differences, whole_of
from sfumato.transforms.release.published_release import Release
from sfumato.transforms.report.layers import zone_names
from sfumato.transforms.report.sections import get, tail_sums

_PLACE = ("zone", "name", "level", "parent", "area", "geometry")  # columns of both tables


@dataclass(frozen=True, eq=False)
class ZoneChanges(Changes):
    """The zones that two releases share, level by level from the finest, and how their users differ."""

    rows: pa.Table  # of the later release, see `zones_schema`
    parents: NDArray[np.int64]  # int64[n], see `differences`
    region: dict[str, float]  # that holds the zones
    zones_per_user: int  # in which a user counts, at most, of one level
    unit: str  # of the numbers that are compared

    @property
    def content(self) -> dict[str, Any]:
        """Returns the manifest's entries about the places."""
        levels = [{"name": name, "zones": number} for name, number in _levels(self.rows).items()]
        return {"region": self.region, "zones": {"levels": levels, "zones_per_user": self.zones_per_user}}

    @property
    def whole(self) -> int | None:
        """Returns the row of the zone that holds all others, or None."""
        return whole_of(self.parents)

    def table(self) -> pa.Table:
        """Returns one row per zone as GeoParquet (`changed_zones_schema`)."""
        places = {name: self.rows[name] for name in _PLACE if name in self.rows.column_names}
        return pa.table({**places, **self.columns}, schema=changed_zones_schema("name" in places))

    def texts(self, rows: NDArray[np.int64]) -> list[str]:
        """Returns the names of some zones."""
        names = zone_names(self.rows)
        return [names[row] for row in rows.tolist()]


def _levels(rows: pa.Table) -> dict[str, int]:
    """Returns the number of zones by level, the finest first."""
    counts = rows["level"].value_counts().to_pylist()
    return {one["values"]: one["counts"] for one in counts}


def compare_zones(before: Release, after: Release, rate: float, *, shares: bool) -> ZoneChanges:
    """Returns the changes between two releases of `sfumato zones`, or `sfumato histogram --zones`; see `differences`.

    Zones are the same if their level, their id and their polygon are. Raises RequestError if none are, or if a
    histogram does not publish the users of all zones.
    """
    tables = [_with_identity(one) for one in (before, after)]
    keys, *rows = np.intersect1d(*(one["identity"].to_numpy() for one in tables), return_indices=True)
    if not len(keys):
        raise RequestError(
            f"{after.path}: no zone has the same level, id and polygon as in {before.path}; changes require two "
            "releases with the same --zones, --h3 or --quadkey"
        )
    order = np.argsort(rows[1])  # as in the later table
    shared = [one.take(places[order]) for one, places in zip(tables, rows, strict=True)]
    place = {(level, zone): row for row, (level, zone) in enumerate(_pairs(shared[1], "level", "zone"))}
    above = dict(zip(levels := list(_levels(tables[1])), [*levels[1:], None], strict=True))
    parents = np.array([place.get((above[level], one), -1) for level, one in _pairs(shared[1], "level", "parent")])
    first, second = (_side(one, table) for one, table in zip((before, after), shared, strict=True))
    for release, side in ((before, first), (after, second)):
        if shares and side.total[0] <= 0:
            raise RequestError(f"shares: {release.path} states no number of users above 0")
    if shares and days_averaged(after.manifest) != days_averaged(before.manifest) and _zones_per_user(after) > 1:
        raise RequestError("shares: the releases are means of different numbers of days; leave out --shares")
    return ZoneChanges(
        **vars(differences(first, second, parents, rate, shares=shares)),
        rows=shared[1],
        parents=parents,
        region=dict(after.manifest["region"]),
        zones_per_user=max(map(_zones_per_user, (before, after))),
        unit="users" if max(days_averaged(one.manifest) for one in (before, after)) == 1 else "users a day",
    )


def _zones_per_user(release: Release) -> int:
    return int(get(release.manifest, "parameters.bound.max_items", 1))


def _zones(release: Release) -> pa.Table:
    """Returns the table of zones; of a histogram, with the columns of `zones_schema` that are read here."""
    table, manifest = release.arrow_table(ZONES_FILE), release.manifest
    if manifest["job"] == "zones":
        return table
    records = get(manifest, "parameters.bound.max_records")  # of an average day: one a day
    if get(manifest, "results.hidden_count") != 0 or records != days_averaged(manifest):
        raise RequestError(
            f"{release.path}: does not contain the users of all zones, so it cannot be compared; publish both with "
            "`sfumato zones`, or with `sfumato histogram --zones --trust central` (or split) without "
            "--max_records_per_item"
        )
    level = pa.repeat(str(manifest["zones"]["levels"][0]["name"]), table.num_rows)
    table = table.rename_columns({"count": "users"}).append_column("level", level)
    return table.append_column("parent", pa.nulls(table.num_rows, pa.string()))


def _with_identity(release: Release) -> pa.Table:
    """Returns the table of zones with what makes a zone the same in another release."""
    table = _zones(release)
    shapes = table["geometry"].cast(pa.binary())
    parts = zip(*(table[name].to_pylist() for name in ("level", "zone")), shapes.to_pylist(), strict=True)
    return table.append_column("identity", pa.array([repr(one) for one in parts]))


def _pairs(table: pa.Table, *names: str) -> list[tuple[Any, ...]]:
    return list(zip(*(table[name].to_pylist() for name in names), strict=True))


def _side(release: Release, table: pa.Table) -> Side:
    """Returns the users of zones with their errors, which are independent between zones of the coarsest level.

    Where users count in several zones, the total is the run's own count of users.
    """
    users, stddev = (table[name].to_numpy() for name in ("users", "stddev"))
    variance = np.maximum(stddev**2, np.finfo(np.float64).tiny)
    outermost = pc.equal(table["level"], table["level"][-1]).to_numpy()
    total = float(users[outermost].sum()), float(variance[outermost].sum())
    if _zones_per_user(release) > 1:
        users_of_all, noise = (get(release.manifest, f"privacy.admission.{name}") for name in ("users", "noise_stddev"))
        total = float(users_of_all or 0.0), float(noise or 0.0) ** 2
    return Side(users, variance, total, tail_sums(release.manifest))
