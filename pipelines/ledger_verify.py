"""`sfumato ledger verify`: whether a ledger, and the releases that it was charged for, are in order."""

from __future__ import annotations

import sys

from sfumato.pipelines.ledger import dataset_of, limit_changes, read_history, state_of
from sfumato.schemas.errors import LedgerError
from sfumato.schemas.requests.commands import LedgerRequest
from sfumato.transforms.release.catalog import disagreement, find_releases, missing_releases
from sfumato.transforms.release.published_release import Release


def run(request: LedgerRequest) -> int:
    """Runs the command. Raises LedgerError for whatever is not in order."""
    before = read_history(request.ledger, with_limits=False)  # what was published by now must be found
    releases: list[Release] = []
    problems: list[str] = []
    for folder in request.releases:
        found, unreadable = find_releases(folder)
        releases += found
        problems += unreadable
    history = read_history(request.ledger, with_limits=True)  # and this knows whatever is found
    problems += [f"{one.path}: {problem}" for one in releases if (problem := disagreement(one, history))]
    problems += [problem for one in releases for problem in one.damage()]
    if request.releases:
        problems += missing_releases(before, history, releases, dataset_of(request))
    if problems:
        raise LedgerError("ledger: " + "\n  ".join(problems))
    sys.stdout.write(f"{request.ledger}: {history.entries} entries, unbroken; every charge kept to its limits\n")
    sys.stdout.write(limit_changes(history, None))
    if request.releases:
        sys.stdout.write(f"{len(releases)} release{'s'[: len(releases) != 1]} charged as stated, and unchanged\n")
        unlisted = [one.path for one in releases if one.listed is None]
        if unlisted:
            sys.stdout.write(f"made by an earlier version, their files not digested: {', '.join(unlisted)}\n")
    open_ones = [one.charge.release_id for one in history.reservations.values() if state_of(one) == "reserved"]
    if open_ones:
        sys.stdout.write(f"charged, and not known to be published: {', '.join(open_ones)}\n")
    return 0
