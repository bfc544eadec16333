"""A ledger's charges, disclosures and limits as rows and as JSON, of all users or of one (`ledger account`)."""

from __future__ import annotations

import json
import sys
from collections.abc import Collection, Mapping, Sequence
from decimal import Decimal
from typing import Any

from sfumato.schemas.errors import RequestError
from sfumato.schemas.ledger import Charge, Disclosure, Limit, Reservation, dataset_name, format_amount
from sfumato.schemas.requests.commands import LedgerRequest
from sfumato.schemas.rotation import Rotation
from sfumato.transforms.observability.text_tables import markdown_table
from sfumato.transforms.privacy.keys import Secret
from sfumato.transforms.privacy.ledger.history import History
from sfumato.transforms.privacy.ledger.ledger import open_ledger
from sfumato.transforms.privacy.ledger.windows import charges_of_users, max_spent, spent_in_window
from sfumato.transforms.privacy.secrets import FileSecret, SecretManagerSecret

_AMOUNTS = ("epsilon", "delta", "rho", "bits")  # columns of numbers
_CHARGE_HEADS = ["data of", "dataset", "release", "job", "cohort", *_AMOUNTS, "charged", "state"]
_LIMIT_HEADS = ["dataset", "limit", "days to", "spent", "left", "most in a window"]
_OTHER_KEY = (
    "charged with another key or id column, so the user's cohort is unknown; the limits below count the cohort that "
    "spent the most, an upper bound"
)
Charged = tuple[Reservation, Charge]  # a reservation, and one of the charges that it counts as


def dataset_of(request: LedgerRequest) -> str | None:
    """Returns the dataset's name as the ledger writes it."""
    return None if request.dataset is None else dataset_name(request.dataset)


def history_of(request: LedgerRequest) -> tuple[History, str | None]:
    """Returns the ledger's history and the requested dataset. Raises RequestError if either does not exist."""
    history, dataset = read_history(request.ledger, with_limits=False), dataset_of(request)
    if dataset is not None and dataset not in history.datasets:
        names = ", ".join(history.datasets)
        raise RequestError(f"dataset: not found in the ledger: {dataset!r}; use one of: {names}")
    return history, dataset


def read_history(location: str, *, with_limits: bool) -> History:
    """Returns the ledger's history. Raises RequestError if there is no ledger."""
    history = open_ledger(location).history(with_limits=with_limits)
    if not history.entries:
        raise RequestError(f"ledger: not found: {location}")
    return history


def state_of(reservation: Reservation) -> str:
    """Returns the state of a charge: refused, reserved, published, pruned or removed."""
    if reservation.refusal is not None:
        return "refused"
    if reservation.removal is not None:
        return "removed"
    if reservation.pruned is not None:
        return "pruned"
    return "reserved" if reservation.manifest is None else "published"


def limit_accounts(
    history: History, dataset: str | None, cohorts: Mapping[str, int] | None = None
) -> list[tuple[Limit, dict[str, Any]]]:
    """Returns the spending against each limit of a dataset, or of all datasets, in JSON types.

    The remaining amount is a lower bound: epsilons are added up (rhos separately); tighter composition may allow more.

    history: of the ledger. dataset: name of the logs; None for all datasets. cohorts: of one user, by partition; None
    for the worst user of each window.
    """
    accounts = []
    for name in sorted(history.limits):
        if dataset not in (None, name):
            continue
        charges = [charge for charge in history.charges if charge.dataset == name]
        last = max((charge.period.last for charge in charges), default=None)
        for limit in history.limits[name]:
            spent = Decimal(0) if last is None else spent_in_window(charges, name, last, limit, cohorts)
            largest = max_spent(charges, name, limit, cohorts)
            account = {
                "dataset": name,
                "epsilon": format_amount(limit.epsilon),
                "delta": format_amount(limit.delta),
                "days": limit.days,
                "last_day": "" if last is None else str(last),
                "epsilon_spent": _shown(spent),
                "epsilon_left": _shown(max(limit.epsilon - spent, Decimal(0))),
                "largest_epsilon": None if largest is None else _shown(largest[1]),
                "largest_window": None if largest is None else [str(largest[0].first), str(largest[0].last)],
            }
            accounts.append((limit, account))
    return accounts


def charges_table(
    charges: Sequence[Charged], disclosures: Sequence[Disclosure], hidden: Collection[str], *, only_days: bool
) -> str:
    """Returns the table of charges and disclosures.

    hidden: names of columns that are left out. only_days: whether an entry's time is shown without its hour.
    """
    rows, end = [], len("2026-11-29") if only_days else None
    for entry, charge in charges:
        names = [str(charge.period), charge.dataset, charge.release_id, charge.job]
        cohort = "all" if charge.rotation is None else str(charge.rotation)
        rho = "" if charge.rho is None else f"{charge.rho:.4g}"
        amounts = [format_amount(charge.epsilon), format_amount(charge.delta), rho, str(charge.bits or "")]
        rows.append([*names, cohort, *amounts, entry.time[:end], state_of(entry)])
    for one in disclosures:
        names = [str(one.period), one.dataset, one.release_id, one.job]
        rows.append([*names, "all", "none", "", "", str(one.bits), one.time[:end], "no privacy"])
    kept = [at for at, head in enumerate(_CHARGE_HEADS) if head not in hidden]
    left = [at for at, column in enumerate(kept) if _CHARGE_HEADS[column] not in _AMOUNTS]
    return markdown_table([[row[at] for at in kept] for row in (_CHARGE_HEADS, *rows)], left)


def limits_table(accounts: Sequence[tuple[Limit, dict[str, Any]]], *, with_dataset: bool) -> str:
    """Returns the table of limits, or the sentence that there are none."""
    rows = [_LIMIT_HEADS]
    for limit, account in accounts:
        amounts = [account["epsilon_spent"], account["epsilon_left"], account["largest_epsilon"] or ""]
        rows.append([account["dataset"], limit.describe(), account["last_day"], *amounts])
    left = (0, 1, 2) if with_dataset else (0, 1)
    return markdown_table([row[not with_dataset :] for row in rows], left) if accounts else "no limits\n"


def disclosed(history: History, dataset: str | None) -> list[Disclosure]:
    """Returns the disclosures of a dataset, or of all, in the order of their entries."""
    return [one for one in history.disclosures.values() if dataset in (None, one.dataset)]


def disclosure_json(one: Disclosure) -> dict[str, Any]:
    """Returns a disclosure in JSON's types."""
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
    """Returns a sum of amounts as text: 1, not 1.0."""
    return format_amount(total.normalize())


def limit_changes(history: History, dataset: str | None) -> str:
    """Returns a line for each change of a dataset's limits after they were first set."""
    return "".join(
        f"limits of {change.dataset} changed by entry {change.index} on {change.time}: from "
        f"{','.join(map(str, change.before))} to {','.join(map(str, change.after))}\n"
        for change in history.changes
        if change.before and dataset in (None, change.dataset)
    )


def charge_json(entry: Reservation, charge: Charge) -> dict[str, Any]:
    """Returns a reservation in JSON's types, for the dataset and days of one of the charges that it counts as."""
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


def show_account(request: LedgerRequest) -> None:
    """Prints a user's account. Raises RequestError, or LedgerError if the ledger is damaged."""
    history, dataset = history_of(request)
    assert dataset is not None  # a request for an account has both
    assert request.user_id is not None
    # What counts are a dataset's own charges, and those of others whose files were charged to it before.
    entries = sorted((*history.refusals, *history.reservations.values()), key=lambda entry: entry.index)
    charges = [(entry, charge) for entry in entries for charge in entry.charge.counted() if charge.dataset == dataset]
    is_rotated = any(charge.rotation is not None for _, charge in charges)
    cohorts = _cohorts_of(request, history) if is_rotated else {}  # of the user, by partition
    unknown = [
        (entry, charge)
        for entry, charge in charges
        if charge.rotation is not None and charge.rotation.partition not in cohorts
    ]
    indices = {entry.index for entry, _ in unknown}
    querying = [one for one in charges if one[0].index not in indices and charges_of_users([one[1]], cohorts)]
    limits, disclosures = limit_accounts(history, dataset, cohorts), disclosed(history, dataset)
    # A charge that counts for several days is there several times, and its bits were sent once.
    charged_bits = {entry.index: charge.bits for entry, charge in querying if charge.bits is not None}
    bits = [*charged_bits.values(), *(one.bits for one in disclosures)]
    if request.format == "json":
        content = {
            "user_id": request.user_id,
            "dataset": dataset,
            "charges": [charge_json(*one) for one in querying],
            "charges_under_another_key": [charge_json(*one) for one in unknown],
            "limits": [limit for _, limit in limits],
            "disclosures": [disclosure_json(one) for one in disclosures],
            "bits_sent": sum(bits),
        }
        sys.stdout.write(json.dumps(content, indent=2) + "\n")
        return
    known = len(charges) - len(unknown)
    number = f"{known} charge{'s'[: known != 1]}"
    lines = [f"user {request.user_id}: queried by {len(querying)} of {number} of dataset {request.dataset}"]
    if unknown:
        names = [charge.release_id for _, charge in unknown]
        shown = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
        lines.append(f"{shown}: {_OTHER_KEY}")
    if bits:
        total, plain = sum(bits), sum(one.bits for one in disclosures)
        lines.append(
            f"they sent at most {total:,} bit{'s'[: total != 1]} of their values for {len(bits):,} "
            f"release{'s'[: len(bits) != 1]}; {plain:,} of them unchanged"
        )
    table = charges_table(querying, disclosures, ("dataset",), only_days=False)
    sys.stdout.write("\n".join(lines) + f"\n\n{table}\n{limits_table(limits, with_dataset=False)}")


def _secret_of(request: LedgerRequest) -> Secret:
    if request.key_secret is not None:
        return SecretManagerSecret(request.key_secret)
    if request.key_file is None:
        raise RequestError(
            "key_file: dataset has rotating cohorts, which depend on the key of the releases; use --key_file or "
            "--key_secret"
        )
    secret = FileSecret(request.key_file)
    secret.check_private()
    return secret


def _cohorts_of(request: LedgerRequest, history: History) -> dict[str, int]:
    """Returns the user's cohort in each partition that the key creates, for this id column."""
    import pyarrow as pa  # ids are hashed as a log's: this takes Arrow's time to import

    from sfumato.transforms.privacy.user_hashes import cohort_of, rotation_key, with_partition

    secret, user = _secret_of(request), pa.array([request.user_id])
    entries = (*history.refusals, *history.reservations.values())
    divisions = {
        (entry.charge.dataset, entry.charge.rotation.cohorts) for entry in entries if entry.charge.rotation is not None
    }
    cohorts = {}
    for dataset, number in sorted(divisions):
        key = rotation_key(secret, dataset, number, request.user_id_column)
        cohorts[with_partition(Rotation(1, number), key).partition] = int(cohort_of(user, key, number)[0])
    return cohorts
