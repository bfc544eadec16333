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
    """Runs the command. Raises RequestError, or LedgerError where the ledger is damaged."""
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
        raise RequestError(f"dataset: the ledger has none named {dataset!r}; {_names(history)}")
    sys.stdout.write(_json(history, dataset) if request.format == "json" else _text(request.ledger, history, dataset))
    return 0


def read_history(place: str, *, with_limits: bool) -> History:
    """A ledger as it stands. Raises RequestError where there is none."""
    history = open_ledger(place).history(with_limits=with_limits)
    if not history.entries:
        raise RequestError(f"ledger: there is none at {place}")
    return history


def _names(history: History) -> str:
    return f"there are: {', '.join(sorted(history.limits))}"


def _limit(request: LedgerRequest) -> int:
    dataset, limits = dataset_of(request), request.budget
    assert dataset is not None  # a request to set limits has both
    assert limits is not None
    book = open_ledger(request.ledger)
    before = book.history().limits
    book.set_limits(dataset, limits)
    known = f"there were: {', '.join(sorted(before)) or 'none'}"
    was = before.get(dataset)
    change = f"a new dataset; {known}" if was is None else f"before: {','.join(map(str, was))}"
    sys.stdout.write(f"{dataset}: {'; '.join(limit.describe() for limit in limits)} ({change})\n")
    return 0


def _copy(request: LedgerRequest) -> int:
    assert request.file is not None  # a request to copy has one
    book = open_ledger(request.ledger)
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
        sys.stdout.write(f"{request.ledger}: {_number(book.restore(copy), 'entr', 'ies', 'y')} restored\n")
        return 0
    read_history(request.ledger, with_limits=False)
    copy = book.backup(copy)
    try:
        write_file(request.file, copy)
    except OSError as error:
        raise NotReadyError(f"file: {request.file} cannot be written to ({error})") from None
    sys.stdout.write(f"{request.file}: {_number(len(copy.splitlines()), 'entr', 'ies', 'y')} copied\n")
    return 0


def _of(history: History, dataset: str | None) -> list[Reservation]:
    every = sorted((*history.refusals, *history.reservations.values()), key=lambda one: one.index)
    return [one for one in every if dataset in (None, one.charge.dataset)]


def state_of(reservation: Reservation) -> str:
    """Whether a charge is refused, reserved or published."""
    if reservation.refusal is not None:
        return "refused"
    return "reserved" if reservation.manifest is None else "published"


def _windows(history: History, dataset: str | None) -> list[tuple[str, Limit, str, Any]]:
    """Dataset, limit, the last day that was ever charged, and what is spent in the window that ends there."""
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
            [str(charge.period), charge.dataset, charge.release_id, charge.job, *amounts, one.time, state_of(one)]
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
        f"{limit_changes(history, dataset)}"
    )


def _number(number: int, noun: str, many: str = "s", one: str = "") -> str:
    return f"{number} {noun}{one if number == 1 else many}"


def limit_changes(history: History, dataset: str | None) -> str:
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
            "state": state_of(one),
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
