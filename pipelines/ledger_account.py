"""`sfumato ledger account`: which charges count for one user, and what they have spent of each limit."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from sfumato.pipelines.ledger_state import (
    AMOUNTS,
    LIMIT_HEADS,
    LimitAccount,
    amounts_text,
    charge_json,
    cohort_text,
    disclosed,
    disclosure_amounts,
    disclosure_json,
    history_of,
    limit_accounts,
    limits_table,
    state_of,
)
from sfumato.schemas.errors import RequestError
from sfumato.schemas.ledger import Charge, Disclosure, Reservation
from sfumato.schemas.requests.commands import LedgerRequest
from sfumato.schemas.rotation import Rotation
from sfumato.transforms.privacy.keys import Secret
from sfumato.transforms.privacy.ledger.history import History
from sfumato.transforms.privacy.ledger.windows import charges_of_users
from sfumato.transforms.privacy.secrets import FileSecret, SecretManagerSecret
from sfumato.transforms.privacy.user_hashes import cohort_of, rotation_key, with_partition
from sfumato.transforms.report.numbers import plural
from sfumato.transforms.text_tables import markdown_table

_CHARGE_HEADS = ("data of", "release", "job", "cohort", *AMOUNTS, "charged", "state")
_OTHER_KEY = (
    "charged under another key or column of ids, so the user's cohort is unknown; the table of limits counts the "
    "cohorts that spent the most, and is an upper bound"
)


@dataclass(frozen=True)
class UserAccount:
    """The charges of one user.

    Attributes:
        charges: that asked the user, each with its reservation, in the order of the ledger.
        total: number of charges of the dataset.
        unknown: those of them under another key, or another column of user ids, than the one given.
        limits: what the user has spent of each.
        disclosures: bits that the user sent without differential privacy.
    """

    charges: list[tuple[Reservation, Charge]]
    total: int
    unknown: list[tuple[Reservation, Charge]]
    limits: list[LimitAccount]
    disclosures: list[Disclosure]

    @property
    def _bits(self) -> list[int]:
        """The bits that the user sent for each release to which they sent bits."""
        # A charge that counts for several days is there several times, and its bits were sent once.
        charged = {entry.index: charge.bits for entry, charge in self.charges if charge.bits is not None}
        return [*charged.values(), *(one.bits for one in self.disclosures)]

    def text(self, request: LedgerRequest) -> str:
        """The account as two tables for a terminal."""
        charges = [list(_CHARGE_HEADS)]
        for entry, charge in self.charges:
            names = [str(charge.period), charge.release_id, charge.job, cohort_text(charge)]
            charges.append([*names, *amounts_text(charge), entry.time, state_of(entry)])
        for one in self.disclosures:
            names = [str(one.period), one.release_id, one.job, "all"]
            charges.append([*names, *disclosure_amounts(one), one.time, "no privacy"])
        limits = [list(LIMIT_HEADS), *(limit.text() for limit in self.limits)]
        known = self.total - len(self.unknown)
        number = f"{known} charge{'s'[: known != 1]}"
        lines = [f"user {request.user_id}: asked by {len(self.charges)} of {number} of dataset {request.dataset}"]
        if self.unknown:
            names = [charge.release_id for _, charge in self.unknown]
            shown = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
            lines.append(f"{shown}: {_OTHER_KEY}")
        if self._bits:
            plain = sum(one.bits for one in self.disclosures)
            lines.append(
                f"they sent at most {plural(sum(self._bits), 'bit')} of their values, one by one, for "
                f"{plural(len(self._bits), 'release')}; {plain:,} of them as they are"
            )
        left = [index for index, head in enumerate(_CHARGE_HEADS) if head not in AMOUNTS]
        return "\n".join(lines) + f"\n\n{markdown_table(charges, left)}\n{limits_table(limits, (0, 1))}"

    def json(self) -> dict[str, Any]:
        """The account in JSON's types."""
        return {
            "charges": [charge_json(*one) for one in self.charges],
            "charges_under_another_key": [charge_json(*one) for one in self.unknown],
            "limits": [limit.json() for limit in self.limits],
            "disclosures": [disclosure_json(one) for one in self.disclosures],
            "bits_sent": sum(self._bits),
        }


def show_account(request: LedgerRequest) -> None:
    """Prints a user's account. Raises RequestError, or LedgerError if the ledger is damaged."""
    history, dataset = history_of(request)
    assert dataset is not None  # a request for an account has both
    assert request.user_id is not None
    charges = _charges_of(history, dataset)
    is_rotated = any(charge.rotation is not None for _, charge in charges)
    cohorts = _cohorts_of(request, history) if is_rotated else {}
    account = _account(history, dataset, charges, cohorts)
    if request.format == "json":
        content = {"user_id": request.user_id, "dataset": dataset, **account.json()}
        sys.stdout.write(json.dumps(content, indent=2) + "\n")
    else:
        sys.stdout.write(account.text(request))


def _charges_of(history: History, dataset: str) -> list[tuple[Reservation, Charge]]:
    """What counts for a dataset: its own charges, and those of other datasets whose files were charged to it before."""
    entries = sorted((*history.refusals, *history.reservations.values()), key=lambda entry: entry.index)
    return [(entry, charge) for entry in entries for charge in entry.charge.counted() if charge.dataset == dataset]


def _account(
    history: History,
    dataset: str,
    charges: list[tuple[Reservation, Charge]],
    cohorts: dict[str, int],
) -> UserAccount:
    """The account of a user of these cohorts, by partition."""
    unknown = [
        (entry, charge)
        for entry, charge in charges
        if charge.rotation is not None and charge.rotation.partition not in cohorts
    ]
    indices = {entry.index for entry, _ in unknown}
    own = [one for one in charges if one[0].index not in indices and charges_of_users([one[1]], cohorts)]
    limits = limit_accounts(history, dataset, cohorts)
    return UserAccount(own, len(charges), unknown, limits, disclosed(history, dataset))


def _secret_of(request: LedgerRequest) -> Secret:
    if request.key_secret is not None:
        return SecretManagerSecret(request.key_secret)
    if request.key_file is None:
        raise RequestError(
            "key_file: charges of this dataset are of rotating cohorts, and the releases' key decides whom they asked; "
            "give --key_file or --key_secret"
        )
    secret = FileSecret(request.key_file)
    secret.check_private()
    return secret


def _cohorts_of(request: LedgerRequest, history: History) -> dict[str, int]:
    """The user's cohort in each partition that the key makes of the ledger's datasets, by the column of the id."""
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
