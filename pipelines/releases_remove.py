"""`sfumato releases remove`: takes one release down and leaves a notice. The ledger records it first."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from datetime import date

from apache_beam.io.filesystems import FileSystems

from sfumato.pipelines.ledger_state import read_history
from sfumato.schemas.errors import LedgerError, RequestError
from sfumato.schemas.ledger import Period
from sfumato.schemas.requests.commands import RemoveRequest
from sfumato.schemas.requests.request_base import did_you_mean
from sfumato.transforms.files import write_file
from sfumato.transforms.privacy.ledger.ledger import open_ledger
from sfumato.transforms.release.catalog import (
    RELEASES,
    disagreement,
    night_of,
    published_dates,
    published_releases,
    remaining_files,
)
from sfumato.transforms.release.published_release import Release, open_release
from sfumato.transforms.release.publishing import ledger_metadata
from sfumato.transforms.release.release_folder import format_at, manifest_at, remove_files
from sfumato.transforms.release.release_index import MAPS, remove_index, update_timeline
from sfumato.transforms.release.removal import Notice, removal_files
from sfumato.transforms.storage import matching


def run(request: RemoveRequest) -> int:
    """Runs the command. Raises RequestError, NotReadyError, or LedgerError if the release disagrees with the ledger."""
    day, folder, is_lost = _place(request)
    try:
        notice = Notice.parse(manifest_at(folder))
    except OSError as error:
        raise RequestError(f"release: {folder} cannot be read ({error})") from None
    release = None if notice else Release(folder, {}, "") if is_lost else open_release(folder)
    release_id = notice.release_id if notice else str(release and release.manifest.get("release_id"))
    if is_lost:
        release_id = request.release
    history = read_history(request.ledger, with_limits=False)  # after the release, so that it has the charge
    if release is not None and not is_lost and (problem := disagreement(release, history)):
        raise LedgerError(f"ledger: nothing was removed; {folder}: {problem}")
    known = history.reservations.get(release_id)
    if notice is not None and (known is None or known.removal is None):
        raise LedgerError(f"ledger: {folder} holds a notice, and the ledger knows of no removal; a person must look")
    names = [] if release is None else [FileSystems.join(folder, name) for name in remaining_files(release)]
    index: list[str] = []
    if day is not None and request.timeline is not None:
        index = [file.path for file in matching(FileSystems.join(request.timeline, MAPS, f"{day}-*"))]
    if not request.dry_run:
        # Recorded first: from here on the charge publishes nothing, and what is left is no release in order.
        reservation = open_ledger(request.ledger).remove(release_id, request.reason)
        remove_files([*names, *index])
        # The manifest first: a page that is not the published one would look damaged beside the release's manifest.
        for name, content in removal_files(reservation, ledger_metadata(reservation)).items():
            write_file(FileSystems.join(folder, name), content)
    later = {} if request.timeline is None else published_releases(request.timeline)
    if request.timeline is not None and not request.dry_run:
        update_timeline(request.timeline, request.ledger) if later else remove_index(request.timeline)
    done = "would be taken down; nothing was removed" if request.dry_run else "taken down"
    sys.stdout.write(f"{folder}: release {release_id}, {len(names) + len(index)} files, {done}\n")
    if resting := rests_on(release_id, day, later):
        sys.stdout.write(f"later releases that rest on it, and stay as they are: {', '.join(resting)}\n")
    return 0


def rests_on(release_id: str, day: str | None, releases: Mapping[str, Release]) -> list[str]:
    """Returns the ids of releases that were made from a release's published answers, or from such a release.

    Args:
        release_id: the release.
        day: its day in the timeline; None outside of one.
        releases: of the timeline, by date.
    """
    resting: dict[str, None] = {}
    for name, release in sorted(releases.items()):
        manifest = release.manifest
        start = (manifest.get("parameters") or {}).get("warm_start") or {}
        sources = {start.get("release_id"), *start.get("added", ())}
        periods = [Period.parse(text) for text in (manifest.get("nights") or {}).get("rests_on", ())]
        is_in = day is not None and any(one.first <= date.fromisoformat(day) <= one.last for one in periods)
        own = str(manifest.get("release_id"))
        if own != release_id and ((is_in and name > str(day)) or sources & {release_id, *resting}):
            resting[own] = None
    return list(resting)


def _place(request: RemoveRequest) -> tuple[str | None, str, bool]:
    """The day of the release, its folder, and whether the folder is gone or its manifest cannot be read.

    Raises RequestError if there is no such release, and LedgerError if several folders state it.
    """
    if request.timeline is None:
        return None, request.release, False
    places: dict[str, list[tuple[str, str]]] = {}
    for day in published_dates(request.timeline):
        folder = FileSystems.join(request.timeline, RELEASES, day)
        manifest = manifest_at(folder)
        found = Notice.parse(manifest)
        try:
            release_id = found.release_id if found else str(open_release(folder).manifest["release_id"])
        except (RequestError, KeyError):
            continue
        places.setdefault(release_id, []).append((day, folder))
    if request.release not in places:
        if (lost := _lost_place(request)) is not None:
            return *lost, True
        hint = did_you_mean(request.release, sorted(places))
        raise RequestError(f"release: no release {request.release!r} in {request.timeline}{hint}")
    stating = places[request.release]
    if len(stating) > 1:  # one is a copy, and the release must not stay beside the notice in place of its copy
        folders = ", ".join(folder for _, folder in stating)
        raise LedgerError(f"ledger: {folders} all state release {request.release}; move the copies away, and try again")
    return *stating[0], False


def _lost_place(request: RemoveRequest) -> tuple[str, str] | None:
    """The day and folder of a nightly release that is published by the ledger and gone from the timeline, or damaged.

    None for any other release, and where the folder holds another one.
    """
    charged = read_history(request.ledger, with_limits=False).reservations.get(request.release)
    night = None if charged is None or charged.manifest is None else night_of(charged)
    if night is None:
        return None
    day = night[1]
    folder = FileSystems.join(request.timeline, RELEASES, day)
    return None if format_at(folder) is not None else (day, folder)
