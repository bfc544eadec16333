"""`sfumato releases prune`: removes all files of old releases except their manifests. The ledger records it first."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from datetime import UTC, date, datetime

from apache_beam.io.filesystems import FileSystems

from sfumato.pipelines.ledger_state import read_history
from sfumato.schemas.errors import LedgerError, RequestError
from sfumato.schemas.requests.commands import PruneRequest
from sfumato.transforms.privacy.ledger.history import History
from sfumato.transforms.privacy.ledger.ledger import open_ledger
from sfumato.transforms.release.catalog import (
    RELEASES,
    disagreement,
    is_pruned,
    published_releases,
    remaining_files,
)
from sfumato.transforms.release.published_release import Release
from sfumato.transforms.release.release_folder import remove_files
from sfumato.transforms.release.release_index import MAPS, update_timeline
from sfumato.transforms.storage import matching


def run(request: PruneRequest) -> int:
    """Runs the command. Raises RequestError, NotReadyError, or LedgerError if a release and the ledger disagree."""
    releases = published_releases(request.timeline)
    if not releases:
        raise RequestError(f"timeline: there is no release in {FileSystems.join(request.timeline, RELEASES)}")
    history = read_history(request.ledger, with_limits=False)  # after the releases, so that it has all their charges
    old = releases_to_prune(releases, history, datetime.now(UTC).date() - request.keep)
    _check_intact(old, history)
    removed = 0
    for day, release in old.items():
        names = [FileSystems.join(release.path, name) for name in remaining_files(release)]
        names += [file.path for file in matching(FileSystems.join(request.timeline, MAPS, f"{day}-*"))]
        if not names and is_pruned(release, history):
            continue
        if not request.dry_run:
            # Recorded first: a release without its files is in order only if the ledger says so.
            open_ledger(request.ledger).prune(str(release.manifest["release_id"]))
            remove_files(names)
        removed += 1
        sys.stdout.write(f"{day}: release {release.manifest['release_id']}, {len(names)} files\n")
    done = "would be pruned; nothing was removed" if request.dry_run else "pruned; their manifests stay"
    sys.stdout.write(f"{removed} of {len(releases)} release{'s'[: len(releases) != 1]} {done}\n")
    if not request.dry_run:  # also where nothing was left to remove: an earlier run may have died before this
        update_timeline(request.timeline, request.ledger)
    return 0


def releases_to_prune(releases: Mapping[str, Release], history: History, first: date) -> dict[str, Release]:
    """Returns the releases whose files may go, by date.

    Args:
        releases: by date.
        history: of the ledger that charged them.
        first: the first day whose releases stay. What a later run may start from stays as well: the newest release of
            each dataset, job, region and depth, and what a charged and unpublished run starts from. A release that the
            ledger does not know as published stays.
    """
    newest = {_kind(release): day for day, release in sorted(releases.items())}
    pending = [one.charge for one in history.reservations.values() if one.manifest is None and one.refusal is None]
    needed = {release_id for charge in pending for release_id in (charge.starts_from or "").split(",")}
    old = {}
    for day, release in sorted(releases.items()):
        release_id = str(release.manifest.get("release_id"))
        reservation = history.reservations.get(release_id)
        is_committed = reservation is None or reservation.manifest is not None  # None is an error, see _check_intact
        if day < str(first) and day != newest[_kind(release)] and release_id not in needed and is_committed:
            old[day] = release
    return old


def _kind(release: Release) -> tuple[str, str, str]:
    """The dataset, the job, and the region and depth: a later release starts from one of the same kind."""
    charged = release.manifest.get("ledger") or {}
    return str(charged.get("dataset")), str(release.manifest.get("job")), str(release.grid)


def _check_intact(releases: Mapping[str, Release], history: History) -> None:
    """Raises LedgerError if a release disagrees with the ledger or is damaged: proof of that must not be removed."""
    problems = []
    for release in releases.values():
        problem = disagreement(release, history)
        problems += release.damage() if problem is None and not is_pruned(release, history) else []
        problems += [] if problem is None else [f"{release.path}: {problem}"]
    if problems:
        raise LedgerError("ledger: nothing was pruned; some releases are not in order: " + "; ".join(problems))
