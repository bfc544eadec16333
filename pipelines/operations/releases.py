"""`sfumato releases`: removes old releases' files, or takes one release down. The ledger records it first."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from datetime import UTC, date, datetime

from apache_beam.io.filesystems import FileSystems

from sfumato.pipelines.operations.ledger_account import dataset_of, limit_changes, read_history, state_of
from sfumato.schemas.errors import FormatError, LedgerError, RequestError, did_you_mean
from sfumato.schemas.ledger import Period, format_amount
from sfumato.schemas.requests.commands import LedgerRequest, ReleasesRequest
from sfumato.transforms.io.files import write_file
from sfumato.transforms.io.storage import matching
from sfumato.transforms.privacy.ledger.history import History
from sfumato.transforms.privacy.ledger.ledger import open_ledger
from sfumato.transforms.release.catalog import (
    RELEASES,
    dated_folder,
    disagreement,
    find_releases,
    is_disclosed,
    is_pruned,
    lost_charges,
    missing_releases,
    night_of,
    published_dates,
    read_folders,
    remaining_files,
)
from sfumato.transforms.release.notices import StatedCharge, removal_files, removed_release
from sfumato.transforms.release.published_release import Release, open_release
from sfumato.transforms.release.publishing import ledger_metadata
from sfumato.transforms.release.release_folder import format_at, manifest_at, remove_files
from sfumato.transforms.release.release_index import MAPS, remove_index, update_timeline


def run(request: ReleasesRequest) -> None:
    """Runs the command. Raises RequestError, NotReadyError, or LedgerError if a release and the ledger disagree."""
    if request.action == "prune":
        _prune(request)
    else:
        _remove(request)


def _prune(request: ReleasesRequest) -> None:
    """Removes the files of old releases except their manifests."""
    assert request.timeline is not None  # a request to prune has both
    assert request.keep is not None
    releases = read_folders(request.timeline).releases
    if not releases:
        raise RequestError(f"timeline: no release found in {FileSystems.join(request.timeline, RELEASES)}")
    history = read_history(request.ledger, with_limits=False)  # after the releases, so that it has all their charges
    old = releases_to_prune(releases, history, datetime.now(UTC).date() - request.keep)
    _check_intact(old, history)
    removed = 0
    for day, release in old.items():
        names = _files_of(release, request.timeline, day)
        if not names and is_pruned(release, history):
            continue
        if not request.dry_run:
            # Recorded first: a release without its files is in order only if the ledger records it.
            open_ledger(request.ledger).prune(str(release.manifest["release_id"]))
            remove_files(names)
        removed += 1
        sys.stdout.write(f"{day}: release {release.manifest['release_id']}, {len(names)} files\n")
    done = "would be pruned; nothing was removed" if request.dry_run else "pruned; their manifests are kept"
    sys.stdout.write(f"{removed} of {len(releases)} release{'s'[: len(releases) != 1]} {done}\n")
    if not request.dry_run:  # also where nothing was left to remove: an earlier run may have died before this
        update_timeline(request.timeline, request.ledger)


def releases_to_prune(releases: Mapping[str, Release], history: History, first: date) -> dict[str, Release]:
    """Returns the releases whose files may go, by date.

    releases: by date. history: of the ledger that charged them. first: the first day whose releases stay. What a later
    run may start from stays as well: the newest release of each dataset, job, region and depth, and what a charged and
    unpublished run starts from. A release that the ledger does not know as published stays.
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
    """Returns the dataset, the job, and the region and depth: a later release starts from one of the same kind."""
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
        raise LedgerError("ledger: nothing was pruned; some releases contradict the ledger: " + "; ".join(problems))


def _files_of(release: Release | None, timeline: str | None, day: str | None) -> list[str]:
    """Returns the paths of a release's files without its manifest, and of its maps in the timeline's index.

    release: None for a release that a notice replaces. timeline: the folder of the timeline; None outside of one.
    day: of the release in the timeline.
    """
    paths = [] if release is None else [FileSystems.join(release.path, name) for name in remaining_files(release)]
    if timeline is not None and day is not None:
        paths += [file.path for file in matching(FileSystems.join(timeline, MAPS, f"{day}-*"))]
    return paths


def _remove(request: ReleasesRequest) -> None:
    """Takes one release down and leaves a notice."""
    assert request.release is not None  # a request to remove has both
    assert request.reason is not None
    day, folder, is_lost = _place(request.release, request)
    try:
        notice = removed_release(manifest_at(folder))
    except OSError as error:
        raise RequestError(f"release: cannot read {folder} ({error})") from None
    release = None if notice else Release(folder, {}, "") if is_lost else open_release(folder)
    release_id = notice or str(release and release.manifest.get("release_id"))
    if is_lost:
        release_id = request.release
    history = read_history(request.ledger, with_limits=False)  # after the release, so that it has the charge
    if release is not None and not is_lost and (problem := disagreement(release, history)):
        raise LedgerError(f"ledger: nothing was removed; {folder}: {problem}")
    known = history.reservations.get(release_id)
    if notice is not None and (known is None or known.removal is None):
        raise LedgerError(
            f"ledger: {folder} contains a notice of removal that the ledger does not record; check it by hand"
        )
    names = _files_of(release, request.timeline, day)
    if not request.dry_run:
        # Recorded first: from here on the charge publishes nothing, and what is left is no release in order.
        reservation = open_ledger(request.ledger).remove(release_id, request.reason)
        remove_files(names)
        # The manifest first: a page that is not the published one would look damaged next to the release's manifest.
        for name, content in removal_files(reservation, ledger_metadata(reservation)).items():
            write_file(FileSystems.join(folder, name), content)
    later = {} if request.timeline is None else read_folders(request.timeline).releases
    if request.timeline is not None and not request.dry_run:
        update_timeline(request.timeline, request.ledger) if later else remove_index(request.timeline)
    done = "would be taken down; nothing was removed" if request.dry_run else "taken down"
    sys.stdout.write(f"{folder}: release {release_id}, {len(names)} files, {done}\n")
    if resting := rests_on(release_id, day, later):
        sys.stdout.write(f"later releases based on it, which stay unchanged: {', '.join(resting)}\n")


def rests_on(release_id: str, day: str | None, releases: Mapping[str, Release]) -> list[str]:
    """Returns the ids of releases that were made from a release's published answers, or from such a release.

    release_id: the release. day: its day in the timeline; None outside of one. releases: of the timeline, by date.
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


def _place(wanted: str, request: ReleasesRequest) -> tuple[str | None, str, bool]:
    """Returns the day of the release, its folder, and whether the folder is gone or its manifest cannot be read.

    Raises RequestError if there is no such release, and LedgerError if several folders state it.
    """
    if request.timeline is None:
        return None, wanted, False
    places: dict[str, list[tuple[str, str]]] = {}
    for day in published_dates(request.timeline):
        folder = dated_folder(request.timeline, day)
        manifest = manifest_at(folder)
        found = removed_release(manifest)
        try:
            release_id = found or str(open_release(folder).manifest["release_id"])
        except FormatError:  # it is a release, and may be the one
            raise
        except (RequestError, KeyError):
            continue
        places.setdefault(release_id, []).append((day, folder))
    if wanted not in places:
        if (lost := _lost_place(wanted, request.ledger, request.timeline)) is not None:
            return *lost, True
        hint = did_you_mean(wanted, sorted(places))
        raise RequestError(f"release: not found in {request.timeline}: {wanted!r}{hint}")
    stating = places[wanted]
    if len(stating) > 1:  # one is a copy, and the release must not stay next to the notice that replaces its copy
        folders = ", ".join(folder for _, folder in stating)
        raise LedgerError(
            f"ledger: several folders contain release {wanted}: {folders}; move the copies away, and try again"
        )
    return *stating[0], False


def _lost_place(wanted: str, ledger: str, timeline: str) -> tuple[str, str] | None:
    """Returns day and folder of a nightly release that the ledger records, but is missing or damaged.

    None for any other release, and where the folder holds another one.
    """
    charged = read_history(ledger, with_limits=False).reservations.get(wanted)
    night = None if charged is None or charged.manifest is None else night_of(charged)
    if night is None:
        return None
    day = night[1]
    folder = dated_folder(timeline, day)
    return None if format_at(folder) is not None else (day, folder)


_REMEDY = (
    "restore damaged or missing files from a copy, or run the job again (for a night: `sfumato refresh --config FILE "
    "--date DAY`)"
)


def verify(request: LedgerRequest) -> None:
    """Checks the ledger, and whether published releases agree with it. Raises LedgerError."""
    # The ledger is read twice: every release that it has before the search must be found, and every release found
    # must be in it after the search.
    before = read_history(request.ledger, with_limits=False)
    releases: list[Release] = []
    damage: list[str] = []
    for folder in request.releases:
        found, unreadable = find_releases(folder)
        releases += found
        damage += unreadable
    history = read_history(request.ledger, with_limits=True)
    plain = {release.path for release in releases if is_disclosed(release, history)}
    problems = [
        f"{release.path}: {problem}"
        for release in releases
        if release.path not in plain and (problem := disagreement(release, history))
    ]
    left = {release.path: remaining_files(release) for release in releases if is_pruned(release, history)}
    damage += [problem for release in releases for problem in release.damage(left.get(release.path))]
    for folder in request.releases:  # of notices; the charges of releases are compared above
        lost, unreadable, _ = lost_charges(folder, history)
        problems += [f"{one.path}: {_not_known(one, history)}" for one in lost if one.is_notice]
        damage += [one for one in unreadable if one not in damage]
    if request.releases:
        damage += missing_releases(before, history, releases, dataset_of(request))
    if problems or damage:
        remedy = [_REMEDY] if damage else []
        raise LedgerError("ledger: " + "\n  ".join([*damage, *problems, *remedy]))
    sys.stdout.write(f"{request.ledger}: {history.entries} entries, unbroken; all charges are within their limits\n")
    sys.stdout.write(limit_changes(history, None))
    if recovered := [name for name, entry in history.reservations.items() if entry.lost is not None]:
        sys.stdout.write(f"charged again after their entries were lost: {', '.join(recovered)}\n")
    if taken_down := [name for name, entry in history.reservations.items() if state_of(entry) == "removed"]:
        sys.stdout.write(f"taken down: {', '.join(taken_down)}\n")
    if request.releases:
        charged = len(releases) - len(plain)
        sys.stdout.write(f"{charged} release{'s'[: charged != 1]} charged as stated, and unchanged\n")
        if plain:
            sys.stdout.write(f"recorded, without differential privacy: {', '.join(sorted(plain))}\n")
        if left:
            sys.stdout.write(f"{len(left)} of them pruned: only the manifest is kept\n")
        if unfinished := [path for path, names in left.items() if names]:
            sys.stdout.write(f"pruned, but files are left; prune or remove again: {', '.join(unfinished)}\n")
        unlisted = [release.path for release in releases if release.listed is None]
        if unlisted:
            sys.stdout.write(f"made by an earlier version, without digests of files: {', '.join(unlisted)}\n")
    reserved = [name for name, entry in history.reservations.items() if state_of(entry) == "reserved"]
    if reserved:
        sys.stdout.write(f"charged, but not recorded as published: {', '.join(reserved)}\n")


def _not_known(notice: StatedCharge, history: History) -> str:
    what = "taken down, but the ledger does not record it"
    if notice.charge.release_id not in history.reservations:
        what = "charged, but the ledger does not contain the charge"
    return (
        f"release {notice.charge.release_id} was {what}; if the ledger was restored from an old copy: "
        "sfumato ledger restore --releases FOLDER"
    )


def recover(request: LedgerRequest) -> None:
    """Charges, and removes, again what manifests state and the ledger lacks. Raises RequestError or LedgerError."""
    ledger = open_ledger(request.ledger)
    history, number = ledger.history(), 0
    lost: list[StatedCharge] = []
    problems: list[str] = []
    for folder in request.releases:
        charges, unreadable, charged = lost_charges(folder, history)
        lost += charges
        problems += unreadable
        number += charged
    if not number:
        raise RequestError(f"releases: nothing in {', '.join(request.releases)} was charged to a ledger")
    recovered = 0
    for one in sorted(lost, key=lambda one: one.entry):
        if ledger.recover(one.charge, one.hash, one.manifest, one.refusal):  # otherwise found twice
            charge = one.charge
            what = "refused" if one.manifest is None else "published"
            sys.stdout.write(
                f"{charge.release_id}: epsilon {format_amount(charge.epsilon)} for {charge.dataset}, {charge.period}, "
                f"charged again ({what}; {one.path})\n"
            )
            recovered += 1
        if one.removal is not None:  # a run that died above is completed by the next
            ledger.commit(one.charge.release_id, str(one.manifest))  # raises if another manifest was published
            ledger.remove(one.charge.release_id, one.removal)
            sys.stdout.write(f"{one.charge.release_id}: taken down, as stated by {one.path}\n")
    sys.stdout.write(f"{request.ledger}: {recovered} of {number} charges were lost and are now restored\n")
    if problems:
        raise LedgerError("\n  ".join(["ledger: some lost charges cannot be restored:", *problems]))
