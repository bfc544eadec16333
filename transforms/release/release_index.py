"""The index of a folder of dated releases, next to `releases/`: `latest.json`, `timeline.json`, `maps/` and the page.

The index follows from the published releases and the ledger. Any run can rebuild it at any time.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Collection, Mapping
from dataclasses import replace
from datetime import date, timedelta

from apache_beam.io.filesystems import FileSystems

from sfumato.schemas.errors import RequestError
from sfumato.schemas.release import BASEMAP_FILE, PAGE_FILE, ZONES_FILE
from sfumato.schemas.timeline import DatedRelease, Spending
from sfumato.transforms.io.files import remove_partial_files, write_file
from sfumato.transforms.io.storage import matching
from sfumato.transforms.observability.logs import log_event
from sfumato.transforms.privacy.ledger.history import History
from sfumato.transforms.privacy.ledger.ledger import open_ledger
from sfumato.transforms.privacy.ledger.windows import spent_by_day
from sfumato.transforms.release.catalog import (
    RELEASES,
    DatedFolders,
    is_pruned,
    night_of,
    nightly_charges,
    read_folders,
)
from sfumato.transforms.release.published_release import Release
from sfumato.transforms.release.release_folder import remove_files
from sfumato.transforms.release.timeline_view import (
    LATEST_FILE,
    MAP_FORMAT,
    TIMELINE_FILE,
    night_map,
    timeline_bytes,
    timeline_view,
)
from sfumato.transforms.report.report import render_page
from sfumato.transforms.report.sections import hours, radius

MAPS = "maps"
_ROUNDS = 5


def update_timeline(root: str, ledger: str | None) -> None:
    """Writes `latest.json`, missing maps and the page. Safe to repeat, also for several processes at once.

    Args:
        root: folder that holds `releases/`.
        ledger: location of the ledger whose spending the page shows; None for a page without spending.
    """
    folders = read_folders(root)
    for _ in range(_ROUNDS):
        releases = folders.releases
        if not releases:
            return
        # Read after the releases, so it has them all.
        history = None if ledger is None else open_ledger(ledger).history()
        if history is None:  # then those without a page were removed
            pages = matching(FileSystems.join(root, RELEASES, "*", PAGE_FILE))
            removed = releases.keys() - {file.path.split("/")[-2] for file in pages}
        else:
            removed = {name for name, release in releases.items() if is_pruned(release, history)}
        _write_all(root, releases, removed, _damaged(folders, history), history)
        shown, folders = releases, read_folders(root)
        releases = folders.releases
        if [release.digest for release in shown.values()] == [release.digest for release in releases.values()]:
            return  # nothing was published meanwhile, so no newer page was overwritten


def remove_index(root: str) -> None:
    """Removes the page and its files, where no release is left. Raises OSError."""
    names = (PAGE_FILE, TIMELINE_FILE, LATEST_FILE, BASEMAP_FILE)
    remove_files([FileSystems.join(root, name) for name in names])


def _damaged(folders: DatedFolders, history: History | None) -> list[DatedRelease]:
    """Returns the published nights whose manifest is gone or cannot be read, as far as the ledger knows them."""
    if history is None:
        return []
    ids = [str(release.manifest["release_id"]) for release in folders.releases.values()]
    series = {night[0] for one in ids if one in history.reservations and (night := night_of(history.reservations[one]))}
    dates = {*folders.unreadable, *folders.without_manifest}
    return [
        DatedRelease.of_damaged(name, f"{RELEASES}/{name}", one)
        for dataset in series
        for name, one in nightly_charges(history, dataset).items()
        if name in dates and one.manifest is not None and one.removal is None
    ]


def _write_all(
    root: str,
    releases: Mapping[str, Release],
    removed: Collection[str],
    damaged: list[DatedRelease],
    history: History | None,
) -> None:
    entries = [_entry(name, one, name in removed, history) for name, one in releases.items()]
    # Done here too: if another run wrote the map of a killed one, none is written below.
    remove_partial_files(FileSystems.join(root, MAPS))
    present = {file.path.rsplit("/", 1)[-1] for file in matching(FileSystems.join(root, MAPS, "*"))}
    for place, entry in enumerate(entries):
        if entry.map is None or entry.map.rsplit("/", 1)[-1] in present:
            continue
        try:
            write_file(FileSystems.join(root, entry.map), night_map(entry.date, releases[entry.date]))
        except RequestError as error:
            if entry.job == "heatmap":
                raise
            # No later night needs a page, so a changed one ends no refresh. The release is shown on its own page only.
            log_event("warning", f"the page of all days has no map of {entry.date}: {error}", logging.WARNING)
            entries[place] = replace(entry, map=None)
    newest = releases[entries[-1].date]
    latest = {
        "date": entries[-1].date,
        "release": entries[-1].folder,
        **{name: newest.manifest[name] for name in ("release_id", "created")},
    }
    write_file(FileSystems.join(root, LATEST_FILE), (json.dumps(latest, indent=2) + "\n").encode())
    dataset = str((newest.manifest.get("ledger") or {}).get("dataset", ""))
    nights = [*entries, *damaged]
    files = {TIMELINE_FILE: timeline_bytes(dataset, nights, _spending(history, dataset, nights))}
    if BASEMAP_FILE in (newest.listed or {}):
        files[BASEMAP_FILE] = newest.read(BASEMAP_FILE)
    files[PAGE_FILE] = render_page(timeline_view(files)).encode()
    for name, content in files.items():
        write_file(FileSystems.join(root, name), content)


def _entry(date: str, release: Release, is_pruned: bool, history: History | None) -> DatedRelease:
    """Returns a release of the timeline. The ledger identifies the user partition of its cohort."""
    manifest, map_file = release.manifest, None
    files = manifest.get("files")
    has_zones = isinstance(files, dict) and ZONES_FILE in files
    if (manifest.get("job") == "heatmap" or has_zones) and not is_pruned:
        # The name of the map's file differs between releases of a day.
        content = json.dumps([MAP_FORMAT, manifest], sort_keys=True)
        map_file = f"{MAPS}/{date}-{hashlib.sha256(content.encode()).hexdigest()[:12]}.js"
    entry = DatedRelease.from_manifest(date, f"{RELEASES}/{date}", manifest, map_file, is_pruned)
    entry = replace(entry, scope=", ".join(filter(None, (hours(manifest), radius(manifest)))) or None)
    reservation = None if history is None else history.reservations.get(entry.release_id)
    return entry if reservation is None else replace(entry, rotation=reservation.charge.rotation)


def _spending(history: History | None, dataset: str, nights: list[DatedRelease]) -> list[Spending]:
    """Returns, for each limit of the dataset, the worst user's epsilon in the window that ends on each day."""
    if history is None:
        return []
    dataset = dataset.casefold()
    first, last = (date.fromisoformat(ends(night.date for night in nights)) for ends in (min, max))
    days = [first + timedelta(days=number) for number in range((last - first).days + 1)]
    found = []
    for limit in history.limits.get(dataset, ()):
        spent = map(float, spent_by_day(history.charges, dataset, days, limit))
        by_day = list(zip(map(str, days), spent, strict=True))
        found.append(Spending(float(limit.epsilon), float(limit.delta), limit.days, by_day))
    return found
