"""`sfumato ledger verify` and `restore --releases`: whether releases and ledger agree, and charges that it lost."""

from __future__ import annotations

import sys

from sfumato.pipelines.ledger_state import approver_line, dataset_of, limit_changes, read_history, state_of
from sfumato.schemas.errors import LedgerError, RequestError
from sfumato.schemas.ledger import format_amount
from sfumato.schemas.requests.commands import LedgerRequest
from sfumato.transforms.privacy.ledger.history import History
from sfumato.transforms.privacy.ledger.ledger import open_ledger
from sfumato.transforms.release.catalog import (
    disagreement,
    find_releases,
    is_disclosed,
    is_pruned,
    lost_charges,
    missing_releases,
    remaining_files,
)
from sfumato.transforms.release.notices import StatedCharge
from sfumato.transforms.release.published_release import Release

_REMEDY = (
    "restore what is damaged or gone from a copy, or make it again: run its job again, for a night `sfumato refresh "
    "--config FILE --date DAY`"
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
    sys.stdout.write(f"{request.ledger}: {history.entries} entries, unbroken; every charge kept to its limits\n")
    sys.stdout.write(limit_changes(history, None) + approver_line(history))
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
            sys.stdout.write(f"{len(left)} of them pruned: the manifest is there, the other files were removed\n")
        if unfinished := [path for path, names in left.items() if names]:
            sys.stdout.write(f"pruned, but with files left; prune again, or remove again: {', '.join(unfinished)}\n")
        unlisted = [release.path for release in releases if release.listed is None]
        if unlisted:
            sys.stdout.write(f"made by an earlier version, their files not digested: {', '.join(unlisted)}\n")
    reserved = [name for name, entry in history.reservations.items() if state_of(entry) == "reserved"]
    if reserved:
        sys.stdout.write(f"charged, and not known to be published: {', '.join(reserved)}\n")


def _not_known(notice: StatedCharge, history: History) -> str:
    what = "taken down, and the ledger does not know it"
    if notice.charge.release_id not in history.reservations:
        what = "charged, and the ledger lacks the charge"
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
            sys.stdout.write(f"{one.charge.release_id}: taken down, as {one.path} says\n")
    sys.stdout.write(f"{request.ledger}: {recovered} of {number} charges were lost, and are charged again\n")
    if problems:
        raise LedgerError("\n  ".join(["ledger: some charges are lost, and cannot be made again:", *problems]))
