"""`sfumato ledger`: what every release was charged with, what is left, and whether the ledger is in order."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from typing import Any

from sfumato.schemas.errors import FormatError, LedgerError, NotReadyError, RequestError
from sfumato.schemas.ledger import Charge, Disclosure, Limit, Period, Reservation, dataset_name, format_amount
from sfumato.schemas.requests.commands import LedgerRequest
from sfumato.transforms.files import read_file, write_file
from sfumato.transforms.privacy.ledger.history import History, replay
from sfumato.transforms.privacy.ledger.ledger import open_ledger
from sfumato.transforms.privacy.ledger.windows import max_spent, spent_in_window
from sfumato.transforms.text_tables import markdown_table

AMOUNTS = ("epsilon", "delta", "rho", "bits")  # columns of numbers
LIMIT_HEADS = ("limit", "days to", "spent", "left", "most in a window")


def run(request: LedgerRequest) -> int:
    """Runs the command. Raises RequestError, or LedgerError if the ledger is damaged."""
    if request.action == "verify":  # which reads releases, so it takes Beam's seconds to import
        verify = importlib.import_module("sfumato.pipelines.ledger_verify")
        return int(verify.run(request))
    if request.action == "account":  # which hashes the id as a log's, so it takes Arrow's time to import
        account = importlib.import_module("sfumato.pipelines.ledger_account")
        return int(account.run(request))
    if request.action == "restore" and request.releases:
        restore = importlib.import_module("sfumato.pipelines.ledger_recover")
        return int(restore.run(request))
    actions = {"limit": _limit, "backup": _backup, "restore": _restore, "show": _show}
    return actions[request.action](request)


def dataset_of(request: LedgerRequest) -> str | None:
    """The dataset's name as the ledger writes it."""
    return None if request.dataset is None else dataset_name(request.dataset)


def _show(request: LedgerRequest) -> int:
    history, dataset = history_of(request)
    sys.stdout.write(_json(history, dataset) if request.format == "json" else _text(request.ledger, history, dataset))
    return 0


def history_of(request: LedgerRequest) -> tuple[History, str | None]:
    """The ledger's history and the requested dataset. Raises RequestError if there is no such ledger or dataset."""
    history, dataset = read_history(request.ledger, with_limits=False), dataset_of(request)
    if dataset is not None and dataset not in history.datasets:
        names = ", ".join(history.datasets)
        raise RequestError(f"dataset: the ledger has none named {dataset!r}; there are: {names}")
    return history, dataset


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


def _backup(request: LedgerRequest) -> int:
    """Copies the ledger to a file. It may be charged meanwhile: the copy is what it held at one moment."""
    assert request.file is not None  # a request for a copy has one
    read_history(request.ledger, with_limits=False)
    copy = open_ledger(request.ledger).backup(read_copy(request.file) or b"")
    try:
        write_file(request.file, copy)
    except OSError as error:
        raise NotReadyError(f"file: {request.file} cannot be written to ({error})") from None
    sys.stdout.write(f"{request.file}: {_entries(len(copy.splitlines()))} copied\n")
    return 0


def _restore(request: LedgerRequest) -> int:
    restore_copy(request)
    sys.stdout.write(
        "Charges that were made after the copy are not in it; where there are releases, charge what they state:\n"
        f"sfumato ledger restore --ledger {request.ledger} --releases FOLDER\n"
    )
    return 0


def restore_copy(request: LedgerRequest) -> None:
    """Appends what the ledger lacks of the request's copy. Raises RequestError, NotReadyError or LedgerError."""
    assert request.file is not None
    copy = read_copy(request.file)
    if not copy:
        raise RequestError(f"file: {'there is none at ' if copy is None else 'nothing is in '}{request.file}")
    try:
        replay(copy.splitlines())
    except FormatError:
        raise
    except LedgerError as error:
        why = str(error).removeprefix("ledger: ").partition(";")[0]
        raise LedgerError(
            f"file: {request.file} is no copy of a ledger, or a damaged one ({why}); the ledger was not touched; name "
            "another copy that `sfumato ledger backup` made"
        ) from None
    sys.stdout.write(f"{request.ledger}: {_entries(open_ledger(request.ledger).restore(copy))} restored\n")


def read_copy(path: str) -> bytes | None:
    """The bytes of a copy; None if there is none. Raises RequestError if it cannot be read."""
    try:
        return read_file(path)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise RequestError(f"file: {path} cannot be read ({error})") from None


def _reservations(history: History, dataset: str | None) -> list[Reservation]:
    """The reservations and refusals of a dataset, or of all, in the order of their entries."""
    reservations = sorted((*history.refusals, *history.reservations.values()), key=lambda entry: entry.index)
    return [entry for entry in reservations if dataset in (None, entry.charge.dataset)]


def state_of(reservation: Reservation) -> str:
    """Whether a charge is refused, reserved or published, or its release was published and its files removed."""
    if reservation.refusal is not None:
        return "refused"
    if reservation.removal is not None:
        return "removed"
    if reservation.pruned is not None:
        return "pruned"
    return "reserved" if reservation.manifest is None else "published"


@dataclass(frozen=True)
class LimitAccount:
    """What counts towards one limit of a dataset, for the worst user or for one user.

    Attributes:
        dataset: name of the logs.
        limit: of the dataset.
        last: the last charged day; None without a charge.
        spent: epsilon in the window that ends on that day.
        largest: the window in which most was spent, and its epsilon; None without a charge.
    """

    dataset: str
    limit: Limit
    last: date | None
    spent: Decimal
    largest: tuple[Period, Decimal] | None

    @property
    def left(self) -> Decimal:
        """A lower bound: epsilons are added up, but for rhos, and tighter composition may let more fit."""
        return max(self.limit.epsilon - self.spent, Decimal(0))

    def text(self) -> list[str]:
        """A row of a table with the columns LIMIT_HEADS."""
        largest = "" if self.largest is None else _shown(self.largest[1])
        last = "" if self.last is None else str(self.last)
        return [self.limit.describe(), last, _shown(self.spent), _shown(self.left), largest]

    def json(self) -> dict[str, Any]:
        """The account in JSON's types."""
        return {
            "dataset": self.dataset,
            "epsilon": format_amount(self.limit.epsilon),
            "delta": format_amount(self.limit.delta),
            "days": self.limit.days,
            "last_day": "" if self.last is None else str(self.last),
            "epsilon_spent": _shown(self.spent),
            "epsilon_left": _shown(self.left),
            "largest_epsilon": None if self.largest is None else _shown(self.largest[1]),
            "largest_window": None if self.largest is None else [str(self.largest[0].first), str(self.largest[0].last)],
        }


def limit_accounts(
    history: History, dataset: str | None, cohorts: Mapping[str, int] | None = None
) -> list[LimitAccount]:
    """What counts towards each limit of a dataset, or of all.

    Args:
        history: of the ledger.
        dataset: name of the logs; None for all datasets.
        cohorts: of one user, by partition; None for the worst user of each window.
    """
    accounts = []
    for name in sorted(history.limits):
        if dataset not in (None, name):
            continue
        charges = [charge for charge in history.charges if charge.dataset == name]
        last = max((charge.period.last for charge in charges), default=None)
        for limit in history.limits[name]:
            spent = Decimal(0) if last is None else spent_in_window(charges, name, last, limit, cohorts)
            accounts.append(LimitAccount(name, limit, last, spent, max_spent(charges, name, limit, cohorts)))
    return accounts


def _text(location: str, history: History, dataset: str | None) -> str:
    """The ledger as two tables: charges, and limits with what is left of them."""
    reservations = _reservations(history, dataset)
    charges = [["data of", "dataset", "release", "job", "cohort", *AMOUNTS, "charged", "state"]]
    for entry in reservations:
        charge = entry.charge
        names = [str(charge.period), charge.dataset, charge.release_id, charge.job, cohort_text(charge)]
        charges.append([*names, *amounts_text(charge), entry.time[:10], state_of(entry)])
    for one in disclosed(history, dataset):
        names = [str(one.period), one.dataset, one.release_id, one.job, "all"]
        charges.append([*names, *disclosure_amounts(one), one.time[:10], "no privacy"])
    rotated = any(entry.charge.rotation is not None for entry in reservations)
    same = {name: not any(row[charges[0].index(name)] for row in charges[1:]) for name in ("rho", "bits")}
    same |= {"dataset": len(history.datasets) == 1, "cohort": not rotated}
    kept = [at for at, head in enumerate(charges[0]) if not same.get(head, False)]
    charges = [[row[at] for at in kept] for row in charges]
    limits = [["dataset", *LIMIT_HEADS], *([one.dataset, *one.text()] for one in limit_accounts(history, dataset))]
    number = f"{len(reservations)} charge{'s'[: len(reservations) != 1]}"
    left = [index for index, head in enumerate(charges[0]) if head not in AMOUNTS]
    worst = "\nSpent and left are those of the user who has spent the most.\n" if rotated else ""
    return (
        f"{location}: {_entries(history.entries)}, {number}\n\n"
        f"{markdown_table(charges, left)}\n{limits_table(limits, (0, 1, 2))}{worst}"
        f"{limit_changes(history, dataset)}{approver_line(history)}"
    )


def limits_table(rows: Sequence[Sequence[str]], left: Collection[int]) -> str:
    """The table of limits, of which the first row is the head, or the sentence that there are none."""
    return markdown_table(rows, left) if len(rows) > 1 else "no limits\n"


def cohort_text(charge: Charge) -> str:
    """The cohort that a charge counts for, as `7/30`, or `all`."""
    return "all" if charge.rotation is None else str(charge.rotation)


def amounts_text(charge: Charge) -> list[str]:
    """The columns AMOUNTS of a charge."""
    rho = "" if charge.rho is None else f"{charge.rho:.4g}"
    return [format_amount(charge.epsilon), format_amount(charge.delta), rho, str(charge.bits or "")]


def disclosed(history: History, dataset: str | None) -> list[Disclosure]:
    """The disclosures of a dataset, or of all, in the order of their entries."""
    return [one for one in history.disclosures.values() if dataset in (None, one.dataset)]


def disclosure_amounts(one: Disclosure) -> list[str]:
    """The columns AMOUNTS of a disclosure."""
    return ["none", "", "", str(one.bits)]


def disclosure_json(one: Disclosure) -> dict[str, Any]:
    """A disclosure in JSON's types."""
    return {
        "entry": one.index,
        "recorded": one.time,
        "dataset": one.dataset,
        "first_day": str(one.period.first),
        "last_day": str(one.period.last),
        "release_id": one.release_id,
        "job": one.job,
        "bits": one.bits,
    }


def _shown(total: Decimal) -> str:
    """A sum of amounts as text: 1, not 1.0."""
    return format_amount(total.normalize())


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


def approver_line(history: History) -> str:
    """Returns a line where an earlier version named an approver of limits; empty without one."""
    if history.approver is None:
        return ""
    return (
        f"entry {history.approver} names an approver of looser limits; this version checks no signatures: restrict who "
        "may write to the ledger\n"
    )


def charge_json(entry: Reservation, charge: Charge) -> dict[str, Any]:
    """A reservation in JSON's types, for the dataset and days of one of the charges that it counts as."""
    rotation = charge.rotation
    return {
        "entry": entry.index,
        "charged": entry.time,
        "dataset": charge.dataset,
        "first_day": str(charge.period.first),
        "last_day": str(charge.period.last),
        "release_id": charge.release_id,
        "job": charge.job,
        "trust": charge.trust,
        "rotation": None if rotation is None else {"cohort": rotation.cohort, "cohorts": rotation.cohorts},
        "epsilon": format_amount(charge.epsilon),
        "delta": format_amount(charge.delta),
        "rho": None if charge.rho is None else format_amount(charge.rho),
        "bits": charge.bits,
        "starts_from": charge.starts_from,
        "state": state_of(entry),
    }


def _json(history: History, dataset: str | None) -> str:
    charges = [charge_json(entry, entry.charge) for entry in _reservations(history, dataset)]
    limits = [account.json() for account in limit_accounts(history, dataset)]
    disclosures = [disclosure_json(one) for one in disclosed(history, dataset)]
    content = {"entries": history.entries, "charges": charges, "limits": limits}
    content["disclosures"] = disclosures
    return json.dumps(content, indent=2) + "\n"
