"""Published releases found in folders, and their agreement with the ledger."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

from apache_beam.io.filesystems import FileSystems

from sfumato.schemas.errors import FormatError, LedgerError, RequestError
from sfumato.schemas.ledger import Reservation
from sfumato.schemas.release import (
    BASEMAP_FILE,
    CHANGES_FILES,
    CHANGES_FORMAT,
    MANIFEST_FILE,
    PAGE_FILE,
    REFUSAL_FORMAT,
    RELEASE_FILES,
    REMOVAL_FORMAT,
)
from sfumato.transforms.io.files import is_remote
from sfumato.transforms.io.storage import matching
from sfumato.transforms.privacy.ledger.history import History
from sfumato.transforms.release.notices import NO_COST, StatedCharge, removed_release, stated_charge, stated_cost
from sfumato.transforms.release.published_release import Release, open_release
from sfumato.transforms.release.release_folder import format_at, format_of, manifest_at

RELEASES = "releases"
_NOTICE = frozenset({MANIFEST_FILE, PAGE_FILE})
_NOTICES = (REFUSAL_FORMAT, REMOVAL_FORMAT)
_MARKERS = RELEASE_FILES - {PAGE_FILE, BASEMAP_FILE}  # the page of all releases has these names too
_DATE = re.compile(r"\d{4}-\d{2}-\d{2}")
_NIGHTLY = re.compile(rf"(?P<dataset>.+)-(?P<date>{_DATE.pattern})(-\d+|-late|-\d+-late)?")  # a refresh's release id
_NO_RELEASES = (*_NOTICES, CHANGES_FORMAT)
_OTHER_FILES = {**dict.fromkeys(_NOTICES, _NOTICE), CHANGES_FORMAT: CHANGES_FILES}


def dated_folder(root: str, day: date | str) -> str:
    """Returns the folder of a day's release, `root/releases/DAY`."""
    return str(FileSystems.join(root, RELEASES, str(day)))


def published_dates(root: str) -> list[str]:
    """Returns the dates YYYY-MM-DD, in order, for which `root/releases/` has a manifest. Raises as `matching`."""
    files = matching(FileSystems.join(root, RELEASES, "*", MANIFEST_FILE))
    names = sorted(file.path.split("/")[-2] for file in files)
    return [name for name in names if _DATE.fullmatch(name)]


@dataclass(frozen=True)
class DatedFolders:
    """Content of the folders `releases/YYYY-MM-DD` of an output."""

    releases: dict[str, Release]  # the published releases by date, in order
    unreadable: list[str]  # dates whose manifest cannot be read
    without_manifest: list[str]  # dates whose folder has files and no manifest; in a bucket they are being written
    dates: list[str]  # all dates with a manifest, of releases and of notices


def read_folders(root: str) -> DatedFolders:
    """Returns the content of the folders in `root/releases/`.

    Raises as `matching`, and FormatError if another version of sfumato wrote one of the releases.
    """
    names: dict[str, set[str]] = {}
    for file in matching(FileSystems.join(root, RELEASES, "*", "*")):
        *_, day, name = file.path.split("/")
        if _DATE.fullmatch(day):
            names.setdefault(day, set()).add(name)
    dates = sorted(date for date, found in names.items() if MANIFEST_FILE in found)
    with ThreadPoolExecutor(16) as pool:
        found = pool.map(_opened, [dated_folder(root, one) for one in dates])
        opened = dict(zip(dates, found, strict=True))
    return DatedFolders(
        releases={date: one for date, one in opened.items() if isinstance(one, Release)},
        unreadable=[date for date, one in opened.items() if one is False],
        without_manifest=sorted(names.keys() - opened.keys()),
        dates=dates,
    )


def night_of(reservation: Reservation) -> tuple[str, str] | None:
    """Returns the dataset and the date of a night that a refresh charged; None for other charges.

    The dataset is written as in the refresh's configuration: the ids of its releases begin with it, and those of
    another series of the ledger do not.
    """
    found = _NIGHTLY.fullmatch(reservation.charge.release_id)
    if found is None or found["date"] != str(reservation.charge.period):
        return None
    return found["dataset"], found["date"]


def nightly_charges(history: History, dataset: str) -> dict[str, Reservation]:
    """Returns the charge behind each night of a refresh, by date: the newest that published, else the newest.

    dataset: as in `night_of`.
    """
    ordered = sorted(history.reservations.values(), key=lambda one: (one.manifest is not None, one.index))
    nights = {night: one for one in ordered if (night := night_of(one)) is not None}
    return {day: one for (name, day), one in sorted(nights.items(), key=lambda item: item[0]) if name == dataset}


def disagreement(release: Release, history: History) -> str | None:
    """Returns how a published release contradicts the ledger; None if it does not.

    history: the ledger, read after the release. Every release is charged before it is published.
    """
    release_id = str(release.manifest.get("release_id"))
    reservation = history.reservations.get(release_id)
    if reservation is None:
        if is_disclosed(release, history):
            return f"release {release_id} has no differential privacy and no charge; delete its folder by hand"
        return (
            f"release {release_id} was never charged; if the ledger was restored from an old copy, charge it again: "
            "sfumato ledger restore --releases FOLDER"
        )
    stated = release.manifest.get("ledger")
    if not (isinstance(stated, dict) and stated.get("hash") in reservation.hashes):
        return f"release {release_id} names a different entry than the ledger; one of them was rewritten"
    if reservation.manifest not in (None, release.digest):
        return f"release {release_id} has been changed since it was published"
    try:
        *cost, adjacency = stated_cost(release.manifest)
    except NO_COST:
        return f"release {release_id} does not state its cost"
    charge = reservation.charge
    if cost != [charge.epsilon, charge.delta, charge.rho]:
        return f"release {release_id} states a different cost than its charge"
    if adjacency != charge.adjacency:
        return f"release {release_id} states a different adjacency than its charge"
    charged = charge.rotation
    rotation = None if charged is None else {"cohort": charged.cohort, "cohorts": charged.cohorts}
    counts_for_all = reservation.lost is not None and rotation is None  # an upper bound
    if release.manifest["privacy"].get("rotation") != rotation and not counts_for_all:
        return f"release {release_id} states a different cohort than its charge"
    return None


def is_disclosed(release: Release, history: History) -> bool:
    """Returns whether the ledger has the bits of a release without differential privacy, as its manifest states."""
    disclosure = history.disclosures.get(str(release.manifest.get("release_id")))
    privacy = release.manifest.get("privacy")
    if disclosure is None or not isinstance(privacy, dict) or privacy.get("epsilon") is not None:
        return False
    meter = privacy.get("meter")
    return isinstance(meter, dict) and meter.get("bits_per_client") == disclosure.bits


def remaining_files(release: Release) -> list[str]:
    """Returns the names of the release's files in its folder, without the manifest. Raises as `matching`."""
    present = {file.path.rsplit("/", 1)[-1] for file in matching(FileSystems.join(release.path, "*"))}
    return sorted(present & (RELEASE_FILES | set(release.listed or ())) - {MANIFEST_FILE})


def is_pruned(release: Release, history: History) -> bool:
    """Returns whether the ledger records that the release's files were removed."""
    reservation = history.reservations.get(str(release.manifest.get("release_id")))
    return reservation is not None and reservation.pruned is not None and reservation.manifest == release.digest


def _files_below(folder: str) -> dict[str, set[str]]:
    """Returns file names by folder, at any depth, except folders that are being written (a leading dot)."""
    root, found = folder.rstrip("/"), dict[str, set[str]]()
    for file in matching(FileSystems.join(root, "**")):
        path, _, name = file.path.rpartition("/")
        if not any(part.startswith(".") for part in path.removeprefix(root).split("/")):
            found.setdefault(path, set()).add(name)
    return found


def find_releases(folder: str) -> tuple[list[Release], list[str]]:
    """Finds every release in a folder, local or in a bucket, at any depth.

    Returns:
        The releases, sorted by path, and a message for each folder that holds a release's file but no readable
        manifest. Changes, refusals and notices of removals are in neither list.

    Raises as `matching`, and RequestError if the folder has no release.
    """
    releases, problems, notices = [], [], 0
    for path, names in sorted(_files_below(folder).items()):
        if not names & _MARKERS:
            continue
        try:
            releases.append(open_release(path))
        except RequestError as error:
            # Changes, a refusal or the notice of a removal are no release and no problem.
            found = format_at(path) or ""
            notices += found == REMOVAL_FORMAT
            if not names <= _OTHER_FILES.get(found, frozenset()):
                problems.append(str(error))
    if not releases and not problems and not notices:
        raise RequestError(f"{folder}: no release found (no readable {MANIFEST_FILE})")
    return releases, problems


def lost_charges(folder: str, history: History) -> tuple[list[StatedCharge], list[str], int]:
    """Finds the charges in a folder, at any depth, that a ledger lacks: of releases, refusals and notices of removals.

    A notice also counts if the ledger has its charge, and knows of no removal.

    Returns:
        The charges, in the order of their entries; a message for each manifest that cannot be read, that does not state
        its charge, or that another version of sfumato wrote; and the number of manifests that were charged to a ledger.

    Raises as `matching`, and NotReadyError if a file cannot be read now.
    """
    kept = [path for path, names in _files_below(folder).items() if MANIFEST_FILE in names]
    known = _known_hashes(history)

    def read(path: str) -> StatedCharge | str | bool:
        """Returns the charge if it is lost, a problem, or else whether the manifest was charged."""
        try:
            content = manifest_at(path)
            stated = _stated_entry(content)
            if not stated or (stated.get("hash") in known and not _is_lost_removal(content, history)):
                return bool(stated)
            return stated_charge(path, content or b"")
        except (OSError, FormatError, LedgerError) as error:
            return str(error)

    with ThreadPoolExecutor(16) as pool:
        results = list(pool.map(read, kept))
    found = [one for one in results if isinstance(one, StatedCharge)]
    problems = [one for one in results if isinstance(one, str)]
    return sorted(found, key=lambda one: one.entry), problems, sum(map(bool, results))


def _is_lost_removal(manifest: bytes | None, history: History) -> bool:
    """Returns whether it is the notice of a removal that the ledger does not record."""
    reservation = history.reservations.get(removed_release(manifest) or "")
    return reservation is not None and reservation.removal is None


def _known_hashes(history: History) -> set[str]:
    """Returns the hashes that manifests may state if the ledger has their charges."""
    return {one for entry in (*history.refusals, *history.reservations.values()) for one in entry.hashes}


def missing_releases(before: History, history: History, releases: Sequence[Release], dataset: str | None) -> list[str]:
    """Returns a message for each release that the ledger knows as published and that was not found.

    A release is not missing if it was taken down, or if a later one of the same job, dataset and days was found.

    Args:
        before, history: the ledger, read before and after the search.
        releases: the releases found.
        dataset: check this dataset's releases only; None for all.
    """
    found_ids = {str(release.manifest.get("release_id")) for release in releases}

    def subject(reservation: Reservation) -> tuple[str, str, str]:
        return reservation.charge.job, reservation.charge.dataset, str(reservation.charge.period)

    there = (one for one in history.reservations.values() if one.charge.release_id in found_ids)
    newest = {subject(one): one.index for one in sorted(there, key=lambda one: one.index)}
    missing = [
        reservation.charge
        for reservation in before.reservations.values()
        if reservation.manifest is not None
        and reservation.removal is None
        and dataset in (None, reservation.charge.dataset)
        and reservation.charge.release_id not in found_ids
        and reservation.index > newest.get(subject(reservation), -1)
    ]
    return [
        f"release {charge.release_id} (dataset {charge.dataset}, {charge.period}) was published but is missing"
        for charge in missing
    ]


def check_not_lost(history: History, dataset: str, output: str, timeline: str | None = None) -> None:
    """Raises LedgerError if a ledger lacks the charge of a release, so that a lost ledger starts no new budget.

    It also lacks one if it does not know that a release of its dataset was taken down.

    Args:
        history: the ledger that a job names.
        dataset: the dataset that the job charges.
        output: the job's output folder. Its release and, on a disk, those in sibling folders are checked.
        timeline: a folder whose `releases/` are checked too; None without one.
    """
    folders = {output.rstrip("/")}
    if not is_remote(output):
        with contextlib.suppress(OSError):
            folders |= {str(manifest.parent) for manifest in Path(output).absolute().parent.glob(f"*/{MANIFEST_FILE}")}
    if timeline is not None:
        folders |= {dated_folder(timeline, day) for day in published_dates(timeline)}
    known = _known_hashes(history)
    with ThreadPoolExecutor(16) as pool:
        for folder, content in zip(sorted(folders), pool.map(_manifest_of, sorted(folders)), strict=True):
            stated = _stated_entry(content)
            if str(stated.get("dataset")).casefold() != dataset.casefold():
                continue
            if _is_lost_removal(content, history):
                raise LedgerError(
                    f"ledger: {folder} contains the notice of a removed release, but the ledger does not record the "
                    f"removal; record it again: sfumato ledger restore --releases {folder}"
                )
            if stated.get("hash") not in known:
                raise LedgerError(
                    f"ledger: {folder} was charged to dataset {dataset} by entry {stated.get('entry')} of a "
                    f"ledger, but this ledger has {history.entries} entries without it: entries were lost, or it is "
                    "another ledger; restore the newest copy (`sfumato ledger restore`), or name the right ledger"
                )


def _opened(folder: str) -> Release | bool:
    """Returns the release in a folder; True for what is readable and no release, False for what cannot be read."""
    try:
        return open_release(folder)
    except FormatError:  # it is a release: the night is not taken for one without
        raise
    except RequestError:
        try:
            manifest = manifest_at(folder)
        except OSError:
            return False
        return manifest is None or format_of(manifest) in _NO_RELEASES  # None: removed since the folder was listed


def _manifest_of(folder: str) -> bytes | None:
    """Returns the manifest in a folder; None without one, and where it cannot be read."""
    with contextlib.suppress(OSError):
        return manifest_at(folder)
    return None


def _stated_entry(manifest: bytes | None) -> dict[str, Any]:
    """Returns a manifest's entry `ledger`; empty without one."""
    try:
        stated = json.loads(manifest or b"{}")["ledger"]
    except (ValueError, TypeError, KeyError, RecursionError):
        return {}
    return stated if isinstance(stated, dict) else {}
