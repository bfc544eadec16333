"""`sfumato ledger`: what every release was charged with, what is left, and whether the ledger is in order."""

from __future__ import annotations

import importlib
import json
import sys
from typing import Any

from sfumato.schemas.errors import NotReadyError, RequestError
from sfumato.schemas.ledger import Limit, Reservation, dataset_name, format_amount, parse_amount
from sfumato.schemas.requests.commands import LedgerRequest
from sfumato.transforms.files import read_file, write_file
from sfumato.transforms.privacy.ledger.history import History
from sfumato.transforms.privacy.ledger.ledger import open_ledger
from sfumato.transforms.privacy.ledger.windows import max_spent, spent_in_window
from sfumato.transforms.text_tables import markdown_table


def run(request: LedgerRequest) -> int:
    """Runs the command. Raises RequestError, or LedgerError if the ledger is damaged."""
    if request.action == "verify":  # which reads releases, so it takes Beam's seconds to import
        verify = importlib.import_module("sfumato.pipelines.ledger_verify")
        return int(verify.run(request))
    actions = {"limit": _limit, "backup": _copy, "restore": _copy, "show": _show}
    return actions[request.action](request)


def dataset_of(request: LedgerRequest) -> str | None:
    """The dataset's name as the ledger writes it."""
    return None if request.dataset is None else dataset_name(request.dataset)


def _show(request: LedgerRequest) -> int:
    history, dataset = read_history(request.ledger, with_limits=False), dataset_of(request)
    if dataset is not None and dataset not in history.limits:
        names = ", ".join(sorted(history.limits))
        raise RequestError(f"dataset: the ledger has none named {dataset!r}; there are: {names}")
    sys.stdout.write(_json(history, dataset) if request.format == "json" else _text(request.ledger, history, dataset))
    return 0


def read_history(location: str, *, with_limits: bool) -> History:
    """The ledger's history. Raises RequestError if there is no ledger."""
    history = open_ledger(location).history(with_limits=with_limits)
    if not history.entries:
        raise RequestError(f"ledger: there is none at {location}")
    return history


def _limit(request: LedgerRequest) -> int:
    dataset, limits = dataset_of(request), request.budget
    assert dataset is not None  # a request to set limits has both
    assert limits is not None
    ledger = open_ledger(request.ledger)
    before = ledger.history().limits
    ledger.set_limits(dataset, limits)
    if dataset in before:
        change = f"before: {','.join(map(str, before[dataset]))}"
    else:
        change = f"a new dataset; there were: {', '.join(sorted(before)) or 'none'}"
    sys.stdout.write(f"{dataset}: {'; '.join(limit.describe() for limit in limits)} ({change})\n")
    return 0


def _copy(request: LedgerRequest) -> int:
    """Backs the ledger up to a file, or restores it from one."""
    assert request.file is not None  # a request to copy has one
    ledger = open_ledger(request.ledger)
    try:
        copy = read_file(request.file)
    except FileNotFoundError:
        copy = b""
        if request.action == "restore":
            raise RequestError(f"file: there is none at {request.file}") from None
    except OSError as error:
        raise RequestError(f"file: {request.file} cannot be read ({error})") from None
    if request.action == "restore":
        if not copy:
            raise RequestError(f"file: {request.file} is empty")
        sys.stdout.write(f"{request.ledger}: {_entries(ledger.restore(copy))} restored\n")
        return 0
    read_history(request.ledger, with_limits=False)
    copy = ledger.backup(copy)
    try:
        write_file(request.file, copy)
    except OSError as error:
        raise NotReadyError(f"file: {request.file} cannot be written to ({error})") from None
    sys.stdout.write(f"{request.file}: {_entries(len(copy.splitlines()))} copied\n")
    return 0


def _reservations(history: History, dataset: str | None) -> list[Reservation]:
    """The reservations and refusals of a dataset, or of all, in the order of their entries."""
    reservations = sorted((*history.refusals, *history.reservations.values()), key=lambda entry: entry.index)
    return [entry for entry in reservations if dataset in (None, entry.charge.dataset)]


def state_of(reservation: Reservation) -> str:
    """Whether a charge is refused, reserved or published."""
    if reservation.refusal is not None:
        return "refused"
    return "reserved" if reservation.manifest is None else "published"


def _windows(history: History, dataset: str | None) -> list[tuple[str, Limit, str, Any]]:
    """Each limit of a dataset, or of all, with the window that ends on the last charged day.

    Returns:
        (dataset, limit, last charged day, epsilon spent in the window). Without a charge the day is empty.
    """
    windows = []
    for name in sorted(history.limits):
        if dataset not in (None, name):
            continue
        last = max((charge.period.last for charge in history.charges if charge.dataset == name), default=None)
        for limit in history.limits[name]:
            spent = parse_amount("epsilon", 0) if last is None else spent_in_window(history.charges, name, last, limit)
            windows.append((name, limit, "" if last is None else str(last), spent))
    return windows


def _text(location: str, history: History, dataset: str | None) -> str:
    """The ledger as two tables: charges, and limits with what is left of them."""
    reservations = _reservations(history, dataset)
    charges = [["data of", "dataset", "release", "job", "trust", "epsilon", "delta", "rho", "charged", "state"]]
    for entry in reservations:
        charge = entry.charge
        rho = "" if charge.rho is None else f"{charge.rho:.4g}"
        amounts = [format_amount(charge.epsilon), format_amount(charge.delta), rho]
        charges.append(
            [
                str(charge.period),
                charge.dataset,
                charge.release_id,
                charge.job,
                charge.trust,
                *amounts,
                entry.time,
                state_of(entry),
            ]
        )
    limits = [["dataset", "limit", "days to", "epsilon spent", "epsilon left", "most in any such window"]]
    for name, limit, last, spent in _windows(history, dataset):
        # A lower bound: epsilons are added up, but for rhos, and tighter composition may let more fit.
        remaining = max(limit.epsilon - spent, parse_amount("epsilon", 0))
        peak = max_spent(history.charges, name, limit)
        amounts = [format_amount(spent), format_amount(remaining), "" if peak is None else format_amount(peak[1])]
        limits.append([name, limit.describe(), last, *amounts])
    number = f"{len(reservations)} charge{'s'[: len(reservations) != 1]}"
    return (
        f"{location}: {_entries(history.entries)}, {number}\n\n"
        f"{markdown_table(charges, (0, 1, 2, 3, 4, 8, 9))}\n{markdown_table(limits, (0, 1, 2))}"
        f"{limit_changes(history, dataset)}"
    )


def _entries(number: int) -> str:
    return "1 entry" if number == 1 else f"{number} entries"


def limit_changes(history: History, dataset: str | None) -> str:
    """A line for each change of a dataset's limits after they were first set."""
    return "".join(
        f"limits of {change.dataset} changed by entry {change.index} on {change.time}: from "
        f"{','.join(map(str, change.before))} to {','.join(map(str, change.after))}\n"
        for change in history.changes
        if change.before and dataset in (None, change.dataset)
    )


def _json(history: History, dataset: str | None) -> str:
    charges = [
        {
            "entry": entry.index,
            "charged": entry.time,
            "dataset": entry.charge.dataset,
            "first_day": str(entry.charge.period.first),
            "last_day": str(entry.charge.period.last),
            "release_id": entry.charge.release_id,
            "job": entry.charge.job,
            "trust": entry.charge.trust,
            "epsilon": format_amount(entry.charge.epsilon),
            "delta": format_amount(entry.charge.delta),
            "rho": None if entry.charge.rho is None else format_amount(entry.charge.rho),
            "starts_from": entry.charge.starts_from,
            "state": state_of(entry),
        }
        for entry in _reservations(history, dataset)
    ]
    limits = [
        {
            "dataset": name,
            "epsilon": format_amount(limit.epsilon),
            "delta": format_amount(limit.delta),
            "days": limit.days,
            "last_day": last,
            "epsilon_spent": format_amount(spent),
        }
        for name, limit, last, spent in _windows(history, dataset)
    ]
    return json.dumps({"entries": history.entries, "charges": charges, "limits": limits}, indent=2) + "\n"
