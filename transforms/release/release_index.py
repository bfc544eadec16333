"""The page of a folder of nightly releases, kept up to date: `releases/<date>/`, `latest.json`, `maps/`, `index.html`.

All of it follows from the published releases and the ledger, so it can be made again at any time, by anybody, at once.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, replace
from datetime import date, timedelta
from functools import cached_property

from apache_beam.io.filesystems import FileSystems

from sfumato.schemas.errors import RequestError
from sfumato.schemas.release import CELLS_FILE, PAGE_FILE
from sfumato.schemas.timeline import DatedRelease, Spending
from sfumato.transforms.files import matching, write_file
from sfumato.transforms.privacy.ledger.history import History
from sfumato.transforms.privacy.ledger.ledger import open_ledger
from sfumato.transforms.privacy.ledger.windows import spent_in_window
from sfumato.transforms.release.catalog import RELEASES, published_releases
from sfumato.transforms.release.page_index import MAP_FORMAT, index_page, map_file
from sfumato.transforms.release.published_release import Release

MAPS, LATEST = "maps", "latest.json"
_ROUNDS = 5


def update_timeline(root: str, ledger: str | None) -> None:
    """Writes `latest.json`, the maps that are missing and the page. Safe to repeat, and for several at once.

    ledger: the place of the ledger that says what has been spent; without one the page does not.
    """
    releases = published_releases(root)
    for _ in range(_ROUNDS):
        if not releases:
            return
        history = None if ledger is None else open_ledger(ledger).history()  # knows what these releases were charged
        _write_all(root, [_Dated(name, release) for name, release in releases.items()], history)
        shown, releases = releases, published_releases(root)
        if [one.digest for one in shown.values()] == [one.digest for one in releases.values()]:
            return  # nobody has published meanwhile, so nobody's page was written over


@dataclass(frozen=True)
class _Dated:
    """A release and the day of its folder."""

    date: str
    release: Release

    @property
    def folder(self) -> str:
        return f"{RELEASES}/{self.date}"

    @cached_property
    def map(self) -> str | None:
        """Where the page finds its map: another release of the same day has another name. None without a map."""
        if self.release.manifest.get("job") != "heatmap":
            return None
        content = json.dumps([MAP_FORMAT, self.release.manifest], sort_keys=True)
        mark = hashlib.sha256(content.encode()).hexdigest()[:12]
        return f"{MAPS}/{self.date}-{mark}.js"

    def map_bytes(self) -> bytes:
        fresh = replace(self.release)  # whose raster is not kept
        if fresh.grid is None:
            raise RequestError(f"{fresh.path}: the manifest lacks the map's region or depth")
        return map_file(self.date, fresh.density, fresh.arrow_table(CELLS_FILE), fresh.grid)


def _write_all(root: str, releases: list[_Dated], history: History | None) -> None:
    present = {one.path.rsplit("/", 1)[-1] for one in matching(FileSystems.join(root, MAPS, "*"))}
    for one in releases:
        if one.map is not None and one.map.rsplit("/", 1)[-1] not in present:
            write_file(FileSystems.join(root, one.map), one.map_bytes())
    newest = releases[-1]
    latest = {
        "date": newest.date,
        "release": newest.folder,
        "release_id": newest.release.manifest["release_id"],
        "created": newest.release.manifest["created"],
    }
    write_file(FileSystems.join(root, LATEST), (json.dumps(latest, indent=2) + "\n").encode())
    nights = [DatedRelease.from_manifest(one.date, one.folder, one.release.manifest, one.map) for one in releases]
    dataset = str((newest.release.manifest.get("ledger") or {}).get("dataset", ""))
    page = index_page(dataset or "Releases", nights, _spending(history, dataset, releases))
    write_file(FileSystems.join(root, PAGE_FILE), page.encode())


def _spending(history: History | None, dataset: str, releases: list[_Dated]) -> list[Spending]:
    """What each of the dataset's limits had spent in the window that ends on each day."""
    if history is None:
        return []
    dataset = dataset.casefold()
    first, last = (date.fromisoformat(one.date) for one in (releases[0], releases[-1]))
    days = [first + timedelta(days=number) for number in range((last - first).days + 1)]
    return [
        Spending(
            float(limit.epsilon),
            float(limit.delta),
            limit.days,
            [(str(day), float(spent_in_window(history.charges, dataset, day, limit))) for day in days],
        )
        for limit in history.limits.get(dataset, ())
    ]
