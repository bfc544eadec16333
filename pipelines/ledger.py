"""`sfumato ledger`: what every release was charged with, what is left, and whether the books are in order."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from typing import Any

from sfumato.pipelines.options import JobParser
from sfumato.schemas.errors import LedgerError, NotReadyError, RequestError
from sfumato.schemas.ledger import Limit, Reservation, dataset_name, format_amount, parse_amount
from sfumato.transforms.files import read_file, write_file
from sfumato.transforms.privacy.ledger.history import History
from sfumato.transforms.privacy.ledger.ledger import open_ledger
from sfumato.transforms.privacy.ledger.windows import max_spent, spent_in_window
from sfumato.transforms.release.catalog import disagreement, find_releases, missing_releases
from sfumato.transforms.release.published_release import Release
from sfumato.transforms.text_tables import markdown_table

ACTIONS = ("show", "verify", "limit", "backup", "restore")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's options."""
    parser.add_argument(
        "action",
        choices=ACTIONS,
        help="show: charges, and what is left; verify: the chain of entries, the limits and the releases; limit: set a "
        "dataset's limits from here on; backup: copy all entries to FILE; restore: append the entries of FILE that the "
        "ledger lacks",
    )
    parser.add_argument("file", nargs="?", metavar="FILE", help="the copy, local or gs:// (backup, restore)")
    parser.add_argument("--ledger", required=True, metavar="PLACE", help="an SQLite file, or gs://bucket/folder")
    parser.add_argument(
        "--dataset", metavar="NAME", help="of this dataset alone (show, verify); whose limits to set (limit)"
    )
    parser.add_argument("--format", choices=("text", "json"), default="text", help="of what `show` prints")
    parser.add_argument(
        "--releases",
        metavar="FOLDER",
        action="append",
        default=[],
        help="a release, or what `sfumato refresh` wrote: compare with the ledger (verify); may be repeated",
    )
    parser.add_argument("--budget", metavar="E/Nd,...", help="the limits, as 10/365d,1/1d (limit)")


def run(arguments: Sequence[str]) -> int:
    """Runs the command. Raises RequestError, or LedgerError where the ledger is damaged."""
    parser = JobParser("ledger", __doc__)
    parser.epilog = None
    add_arguments(parser)
    options = parser.parse_args(arguments)
    if options.dataset is not None:
        options.dataset = dataset_name(options.dataset)
    if options.action in ("backup", "restore"):
        return _copy(options)
    if options.file is not None:
        raise RequestError("file: only `sfumato ledger backup` and `restore` take one")
    if options.action == "limit":
        return _limit(options)
    if options.budget is not None:
        raise RequestError("budget: only `sfumato ledger limit` takes it")
    if options.action == "verify":
        return _verify(options)
    if options.releases:
        raise RequestError("releases: only `sfumato ledger verify` takes it")
    history = _history(options.ledger, with_limits=False)
    if options.dataset is not None and options.dataset not in history.limits:
        raise RequestError(f"dataset: the ledger has none named {options.dataset!r}; {_names(history)}")
    told = (
        _json(history, options.dataset) if options.format == "json" else _text(options.ledger, history, options.dataset)
    )
    sys.stdout.write(told)
    return 0


def _history(place: str, *, with_limits: bool) -> History:
    history = open_ledger(place).history(with_limits=with_limits)
    if not history.entries:
        raise RequestError(f"ledger: there is none at {place}")
    return history


def _names(history: History) -> str:
    return f"there are: {', '.join(sorted(history.limits))}"


def _limit(options: argparse.Namespace) -> int:
    if options.dataset is None or options.budget is None:
        raise RequestError("dataset, budget: give both, as --dataset taxis --budget 10/365d,1/1d")
    limits = Limit.parse_all(options.budget)
    book = open_ledger(options.ledger)
    before = book.history().limits
    book.set_limits(options.dataset, limits)
    known = f"there were: {', '.join(sorted(before)) or 'none'}"
    was = before.get(options.dataset)
    told = f"a new dataset; {known}" if was is None else f"before: {','.join(map(str, was))}"
    sys.stdout.write(f"{options.dataset}: {'; '.join(limit.describe() for limit in limits)} ({told})\n")
    return 0


def _copy(options: argparse.Namespace) -> int:
    if options.file is None:
        raise RequestError(f"file: name the copy, as `sfumato ledger {options.action} FILE --ledger PLACE`")
    book = open_ledger(options.ledger)
    try:
        copy = read_file(options.file)
    except FileNotFoundError:
        copy = b""
        if options.action == "restore":
            raise RequestError(f"file: there is none at {options.file}") from None
    except OSError as error:
        raise RequestError(f"file: {options.file} cannot be read ({error})") from None
    if options.action == "restore":
        if not copy:
            raise RequestError(f"file: {options.file} is empty")
        sys.stdout.write(f"{options.ledger}: {_number(book.restore(copy), 'entr', 'ies', 'y')} restored\n")
        return 0
    _history(options.ledger, with_limits=False)
    copy = book.backup(copy)
    try:
        write_file(options.file, copy)
    except OSError as error:
        raise NotReadyError(f"file: {options.file} cannot be written to ({error})") from None
    sys.stdout.write(f"{options.file}: {_number(len(copy.splitlines()), 'entr', 'ies', 'y')} copied\n")
    return 0


def _of(history: History, dataset: str | None) -> list[Reservation]:
    every = sorted((*history.refusals, *history.reservations.values()), key=lambda one: one.index)
    return [one for one in every if dataset in (None, one.charge.dataset)]


def _state(reservation: Reservation) -> str:
    if reservation.refusal is not None:
        return "refused"
    return "reserved" if reservation.manifest is None else "published"


def _windows(history: History, dataset: str | None) -> list[tuple[str, Limit, str, Any]]:
    """Dataset, limit, the last day that was ever and what is spent in the window that ends there."""
    found = []
    for name, limits in sorted(history.limits.items()):
        days = [charge.period.last for charge in history.charges if charge.dataset == name]
        if dataset not in (None, name):
            continue
        if not days:
            found += [(name, one, "", parse_amount("epsilon", 0)) for one in limits]
            continue
        last = max(days)
        found += [(name, one, str(last), spent_in_window(history.charges, name, last, one)) for one in limits]
    return found


def _text(place: str, history: History, dataset: str | None) -> str:
    reservations = _of(history, dataset)
    lines = [["data of", "dataset", "release", "job", "epsilon", "delta", "charged", "state"]]
    for one in reservations:
        charge = one.charge
        amounts = [format_amount(charge.epsilon), format_amount(charge.delta)]
        lines.append(
            [str(charge.period), charge.dataset, charge.release_id, charge.job, *amounts, one.time, _state(one)]
        )
    spent = [["dataset", "limit", "days to", "epsilon spent", "epsilon left", "most in any such window"]]
    for name, limit, last, epsilon in _windows(history, dataset):
        # By composition more may fit than is left when epsilons are added up.
        left = max(limit.epsilon - epsilon, parse_amount("epsilon", 0))
        most = max_spent(history.charges, name, limit)
        spent.append(
            [
                name,
                limit.describe(),
                last,
                format_amount(epsilon),
                format_amount(left),
                "" if most is None else format_amount(most[1]),
            ]
        )
    return (
        f"{place}: {_number(history.entries, 'entr', 'ies', 'y')}, {_number(len(reservations), 'charge')}\n\n"
        f"{markdown_table(lines, (0, 1, 2, 3, 6, 7))}\n{markdown_table(spent, (0, 1, 2))}"
        f"{_changes(history, dataset)}"
    )


def _number(number: int, noun: str, many: str = "s", one: str = "") -> str:
    return f"{number} {noun}{one if number == 1 else many}"


def _changes(history: History, dataset: str | None) -> str:
    """A line for each time that a dataset's limits were changed, after they had first been set."""
    return "".join(
        f"limits of {one.dataset} changed by entry {one.index} on {one.time}: from "
        f"{','.join(map(str, one.before))} to {','.join(map(str, one.after))}\n"
        for one in history.changes
        if one.before and dataset in (None, one.dataset)
    )


def _json(history: History, dataset: str | None) -> str:
    charges = [
        {
            "entry": one.index,
            "charged": one.time,
            "dataset": one.charge.dataset,
            "first_day": str(one.charge.period.first),
            "last_day": str(one.charge.period.last),
            "release_id": one.charge.release_id,
            "job": one.charge.job,
            "epsilon": format_amount(one.charge.epsilon),
            "delta": format_amount(one.charge.delta),
            "starts_from": one.charge.starts_from,
            "state": _state(one),
        }
        for one in _of(history, dataset)
    ]
    limits = [
        {
            "dataset": name,
            "epsilon": format_amount(limit.epsilon),
            "delta": format_amount(limit.delta),
            "days": limit.days,
            "last_day": last,
            "epsilon_spent": format_amount(epsilon),
        }
        for name, limit, last, epsilon in _windows(history, dataset)
    ]
    return json.dumps({"entries": history.entries, "charges": charges, "limits": limits}, indent=2) + "\n"


def _verify(options: argparse.Namespace) -> int:
    before = _history(options.ledger, with_limits=False)  # what was published by now must be found
    releases: list[Release] = []
    problems: list[str] = []
    for folder in options.releases:
        found, unreadable = find_releases(folder)
        releases += found
        problems += unreadable
    history = _history(options.ledger, with_limits=True)  # and this knows whatever is found
    problems += [f"{one.path}: {problem}" for one in releases if (problem := disagreement(one, history))]
    problems += [problem for one in releases for problem in one.damage()]
    if options.releases:
        problems += missing_releases(before, history, releases, options.dataset)
    if problems:
        raise LedgerError("ledger: " + "\n  ".join(problems))
    sys.stdout.write(f"{options.ledger}: {history.entries} entries, unbroken; every charge kept to its limits\n")
    sys.stdout.write(_changes(history, None))
    if options.releases:
        sys.stdout.write(f"{len(releases)} release{'s'[: len(releases) != 1]} charged as stated, and unchanged\n")
        unlisted = [one.path for one in releases if one.listed is None]
        if unlisted:
            sys.stdout.write(f"made by an earlier version, their files not digested: {', '.join(unlisted)}\n")
    open_ones = [one.charge.release_id for one in history.reservations.values() if _state(one) == "reserved"]
    if open_ones:
        sys.stdout.write(f"and not known to be published: {', '.join(open_ones)}\n")
    return 0


if __name__ == "__main__":
    from sfumato.pipelines.cli import command

    sys.exit(command(["ledger", *sys.argv[1:]]))
