"""What the ledger's commands share: its history, and charges, disclosures and limits as rows and as JSON."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from typing import Any

from sfumato.schemas.errors import RequestError
from sfumato.schemas.ledger import Charge, Disclosure, Limit, Period, Reservation, dataset_name, format_amount
from sfumato.schemas.requests.commands import LedgerRequest
from sfumato.transforms.privacy.ledger.history import History
from sfumato.transforms.privacy.ledger.ledger import open_ledger
from sfumato.transforms.privacy.ledger.windows import max_spent, spent_in_window
from sfumato.transforms.text_tables import markdown_table

AMOUNTS = ("epsilon", "delta", "rho", "bits")  # columns of numbers
LIMIT_HEADS = ("limit", "days to", "spent", "left", "most in a window")


def dataset_of(request: LedgerRequest) -> str | None:
    """The dataset's name as the ledger writes it."""
    return None if request.dataset is None else dataset_name(request.dataset)


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
