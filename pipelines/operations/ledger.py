"""`sfumato ledger`: what every release was charged with, what is left, and whether the ledger is in order."""

from __future__ import annotations

import json
import sys

from sfumato.pipelines.operations.ledger_account import (
    charge_json,
    charges_table,
    dataset_of,
    disclosed,
    disclosure_json,
    history_of,
    limit_accounts,
    limit_changes,
    limits_table,
    read_history,
    show_account,
)
from sfumato.schemas.errors import FormatError, LedgerError, NotReadyError, RequestError
from sfumato.schemas.requests.commands import LedgerRequest
from sfumato.transforms.io.files import read_file, write_file
from sfumato.transforms.privacy.ledger.history import replay
from sfumato.transforms.privacy.ledger.ledger import open_ledger


def run(request: LedgerRequest) -> None:
    """Runs the command. Raises RequestError, or LedgerError if the ledger is damaged."""
    actions = {
        "show": _show,
        "account": show_account,
        "verify": _verify,
        "limit": _limit,
        "backup": _backup,
        "restore": _restore,
    }
    actions[request.action](request)


def _show(request: LedgerRequest) -> None:
    """Prints the reservations and refusals of a dataset, or of all, and what is left of the limits."""
    history, dataset = history_of(request)
    charged = sorted((*history.refusals, *history.reservations.values()), key=lambda entry: entry.index)
    charges = [(one, one.charge) for one in charged if dataset in (None, one.charge.dataset)]
    limits, disclosures = limit_accounts(history, dataset), disclosed(history, dataset)
    if request.format == "json":
        content = {
            "entries": history.entries,
            "charges": [charge_json(*one) for one in charges],
            "limits": [account for _, account in limits],
            "disclosures": [disclosure_json(one) for one in disclosures],
        }
        sys.stdout.write(json.dumps(content, indent=2) + "\n")
        return
    is_rotated = any(charge.rotation is not None for _, charge in charges)
    shown = {
        "dataset": len(history.datasets) > 1,
        "cohort": is_rotated,
        "rho": any(charge.rho is not None for _, charge in charges),
        "bits": bool(disclosures) or any(charge.bits for _, charge in charges),
    }
    hidden = [name for name, is_shown in shown.items() if not is_shown]
    table = charges_table(charges, disclosures, hidden, only_days=True)
    number = f"{len(charges)} charge{'s'[: len(charges) != 1]}"
    worst = "\nSpent and left are for the user who has spent the most.\n" if is_rotated else ""
    sys.stdout.write(
        f"{request.ledger}: {_entries(history.entries)}, {number}\n\n{table}\n"
        f"{limits_table(limits, with_dataset=True)}{worst}{limit_changes(history, dataset)}"
    )


def _verify(request: LedgerRequest) -> None:
    from sfumato.pipelines.operations.releases import verify  # reads releases: takes Beam's seconds to import

    verify(request)


def _limit(request: LedgerRequest) -> None:
    dataset, limits = dataset_of(request), request.budget
    assert dataset is not None  # a request to set limits has both
    assert limits is not None
    ledger = open_ledger(request.ledger)
    before = ledger.history().limits
    ledger.set_limits(dataset, limits)
    if dataset in before:
        change = f"before: {','.join(map(str, before[dataset]))}"
    else:
        change = f"new dataset; existing: {', '.join(sorted(before)) or 'none'}"
    sys.stdout.write(f"{dataset}: {'; '.join(limit.describe() for limit in limits)} ({change})\n")


def _backup(request: LedgerRequest) -> None:
    """Copies the ledger to a file. It may be charged meanwhile: the copy is what it held at one moment."""
    assert request.file is not None  # a request for a copy has one
    read_history(request.ledger, with_limits=False)
    copy = open_ledger(request.ledger).backup(_read_copy(request.file) or b"")
    try:
        write_file(request.file, copy)
    except OSError as error:
        raise NotReadyError(f"file: cannot write {request.file} ({error})") from None
    sys.stdout.write(f"{request.file}: {_entries(len(copy.splitlines()))} copied\n")


def _restore(request: LedgerRequest) -> None:
    if request.file is not None:
        _restore_copy(request, request.file)
    if request.releases:
        from sfumato.pipelines.operations.releases import recover  # as for `verify`

        recover(request)
        return
    sys.stdout.write(
        "The copy does not contain later charges; if you have releases, restore the charges that they state:\n"
        f"sfumato ledger restore --ledger {request.ledger} --releases FOLDER\n"
    )


def _restore_copy(request: LedgerRequest, file: str) -> None:
    """Appends what the ledger lacks of a copy. Raises RequestError, NotReadyError or LedgerError."""
    copy = _read_copy(file)
    if not copy:
        raise RequestError(f"file: {'not found' if copy is None else 'empty'}: {file}")
    try:
        replay(copy.splitlines())
    except FormatError:
        raise
    except LedgerError as error:
        why = str(error).removeprefix("ledger: ").partition(";")[0]
        raise LedgerError(
            f"file: {file} is not a copy of a ledger, or is damaged ({why}); the ledger is unchanged; name another "
            "copy made by `sfumato ledger backup`"
        ) from None
    sys.stdout.write(f"{request.ledger}: {_entries(open_ledger(request.ledger).restore(copy))} restored\n")


def _read_copy(path: str) -> bytes | None:
    """Returns the bytes of a copy; None if there is none. Raises RequestError if it cannot be read."""
    try:
        return read_file(path)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise RequestError(f"file: cannot read {path} ({error})") from None


def _entries(number: int) -> str:
    return "1 entry" if number == 1 else f"{number} entries"
