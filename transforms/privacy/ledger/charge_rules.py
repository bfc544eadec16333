"""Which charges a ledger accepts, by its history: limits, earlier uses of a release id and of input files. Pure.

A charge records keyed digests of its input files' content, which do not depend on names and folders.
"""

from __future__ import annotations

import hashlib
import hmac
import shlex
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal

from sfumato.schemas.errors import BudgetError, RequestError
from sfumato.schemas.ledger import Charge, Disclosure, Limit, Reservation, dataset_name, format_amount
from sfumato.schemas.slots import UTC
from sfumato.transforms.privacy.ledger.history import History
from sfumato.transforms.privacy.ledger.windows import check_rho, find_overrun, first_fit, is_bounded, same_cohorts


class ReusedError(RequestError):
    """The ledger holds this release id for another request, other input or another key."""


class ReusedFileError(RequestError):
    """An input file was charged to another dataset, or to other days."""


def check_limits(history: History, dataset: str, limits: Sequence[Limit]) -> tuple[Limit, ...] | None:
    """Returns the limits that the ledger still lacks, None if it has them. Raises RequestError if they differ."""
    dataset = dataset_name(dataset)
    existing = history.limits.get(dataset)
    given = tuple(limits)
    if existing is None:
        check_undisclosed(history, dataset)
        if not given:
            raise RequestError(
                f"budget: the ledger has no limits for dataset {dataset!r}; set them, for example --budget 10/365d"
            )
        return given
    if given and given != existing:
        raise RequestError(
            f"budget: the ledger's limits for dataset {dataset!r} are {','.join(map(str, existing))}, got "
            f"{','.join(map(str, given))}; change them with `sfumato ledger limit`"
        )
    return None


def check_undisclosed(history: History, dataset: str) -> None:
    """Raises RequestError if users of a dataset sent bits without differential privacy: no limit holds for it."""
    disclosed = [one for one in history.disclosures.values() if one.dataset == dataset_name(dataset)]
    if disclosed:
        raise RequestError(
            f"budget: users of dataset {dataset!r} sent bits without differential privacy ({disclosed[0].release_id}), "
            "so it cannot have limits; use another --dataset"
        )


def check_disclosure(history: History, disclosure: Disclosure, *, allow_reuse: bool) -> None:
    """Raises RequestError unless the bits may be recorded.

    They may not for a dataset with limits, which no such release keeps (RequestError), under a release id for something
    else (ReusedError), or of files that were charged to a dataset with limits without `allow_reuse` (ReusedFileError).
    """
    if disclosure.dataset in history.limits:
        raise RequestError(
            f"no_dp: dataset {disclosure.dataset!r} has limits, but no epsilon bounds what unchanged bits reveal; use "
            "--epsilon, or another --dataset"
        )
    existing = history.disclosures.get(disclosure.release_id)
    if disclosure.release_id in history.reservations or (
        existing is not None and replace(existing, index=disclosure.index, time=disclosure.time) != disclosure
    ):
        raise ReusedError(
            f"release_id: the ledger has {disclosure.release_id} for another request, input or key; use another id"
        )
    files = set(disclosure.files)
    reused = next((one for one in history.charges if not files.isdisjoint(one.files)), None)
    if reused is not None and not allow_reuse:
        raise ReusedFileError(
            f"input: release {reused.release_id} of dataset {reused.dataset} was charged for a file of this input, but "
            "its limits cannot bound what unchanged bits reveal; remove the file, or add --allow_reuse"
        )


def with_earlier_uses(history: History, charge: Charge, *, allow_reuse: bool) -> Charge:
    """Returns the charge, counted also for the datasets and days to which its input files were charged before.

    Raises:
        ReusedFileError: there are such datasets or days, and `allow_reuse` is False.
    """
    elsewhere = charged_elsewhere(history.charges, charge)
    if elsewhere and not allow_reuse:
        earlier = elsewhere[0]
        raise ReusedFileError(
            f"input: release {earlier.release_id} of dataset {earlier.dataset}, data of {earlier.period}, was charged "
            f"for a file of this input, now charged to dataset {charge.dataset}, data of {charge.period}; "
            f"{_other_rows(earlier, charge)}, or add --allow_reuse to charge both"
        )
    files = set(charge.files)
    plain = [one.release_id for one in history.disclosures.values() if not files.isdisjoint(one.files)]
    if plain and not allow_reuse:
        raise ReusedFileError(
            f"input: release {plain[0]} disclosed unchanged bits of a file of this input, which no limit bounds; "
            "remove the file, or add --allow_reuse"
        )
    return replace(charge, also_charged=tuple(sorted({(one.dataset, one.period) for one in elsewhere}, key=str)))


def _other_rows(earlier: Charge, charge: Charge) -> str:
    """Returns what to do about a file that an earlier charge holds: read other rows of it, or leave it out."""
    if earlier.dataset != charge.dataset or earlier.rows_by is None or charge.rows_by is None:
        return "remove the file"
    column, zone = earlier.rows_by.rsplit(" ", 1)
    by = f"--day_column {shlex.quote(column)} {'without --time_zone' if zone == UTC else f'and --time_zone {zone}'}"
    return f"that release selected its rows by {by}: unless it was wrong, do the same, or remove the file"


def check_budget(history: History, charge: Charge, limits: Sequence[Limit] | None = None) -> None:
    """Checks a charge against the limits of every dataset for which it counts.

    Args:
        history: the ledger's state.
        charge: the new charge.
        limits: of the charge's own dataset; None for the ledger's.

    Raises:
        BudgetError: the charge exceeds a limit. The message states when it would fit.
        RequestError: no limit bounds the charge, its rho contradicts its epsilon and delta, or its partition had
            another number of cohorts.
    """
    check_rho(charge)
    charges = history.charges
    if not same_cohorts(charges, charge):
        raise RequestError("rotation: the ledger has a different number of cohorts for this partition")
    for one in charge.counted():
        own = limits if one.dataset == charge.dataset else None
        _check_budget(charges, one, history.limits[one.dataset] if own is None else own)
        charges.append(one)


def _check_budget(charges: Sequence[Charge], charge: Charge, in_force: Sequence[Limit]) -> None:
    if not is_bounded(charge, in_force):
        raise RequestError(
            f"budget: no limit of dataset {charge.dataset!r} bounds a release with adjacency {charge.adjacency}; "
            f"add one with `sfumato ledger limit`, such as 10/365d@{charge.adjacency}"
        )
    over = find_overrun(charges, charge, in_force)
    if over is None:
        return
    later = first_fit(charges, charge, in_force)
    when = "a single release of this epsilon never fits" if later is None else f"data of {later} or later would fit"
    if charge.delta > over.limit.delta:
        limit = replace(over.limit, delta=max(Decimal("1e-6"), 2 * charge.delta))
        raise BudgetError(
            f"ledger: {charge.dataset} may spend {over.limit.describe()}, and this release has delta "
            f"{format_amount(charge.delta)}; give it none (--trust central without --delta), or set a limit with a "
            f"delta, such as {limit}, with --budget or `sfumato ledger limit`"
        )
    left = over.limit.epsilon - over.spent
    fits = f"; epsilon {format_amount(left)} is left" if 0 < left < charge.epsilon else ""
    users = "" if charge.rotation is None else f" for users of cohort {charge.rotation}"
    raise BudgetError(
        f"ledger: {charge.dataset} may spend {over.limit.describe()}; epsilon {format_amount(over.spent)} is spent on "
        f"the data of {over.window}{users}, and epsilon {format_amount(charge.epsilon)} more for {charge.period} "
        f"exceeds the limit{fits}; {when}"
    )


def existing_reservation(history: History, charge: Charge) -> Reservation | None:
    """Returns the reservation for this charge; None if a new one is needed. Raises RequestError."""
    existing = history.reservations.get(charge.release_id)
    if charge.release_id in history.disclosures:
        raise ReusedError(f"release_id: {charge.release_id} has bits without differential privacy; use another id")
    if existing is not None and existing.removal is not None:
        raise RequestError(
            f"release_id: {charge.release_id} was taken down ({existing.removal}), so its charge cannot be used again; "
            "use another release_id (in a refresh: --attempt 2), which is a new charge"
        )
    if existing is not None and (existing.refusal is None or existing.charge.binding == charge.binding):
        _check_same(existing.reserved_charge or existing.charge, charge)
        return existing
    unknown = [one for one in (charge.starts_from or "").split(",") if one and one not in history.reservations]
    if unknown:
        raise RequestError(
            f"warm_start: release {unknown[0]} is not in the ledger, which would not account for what it reveals; "
            "start from a release that the ledger charged"
        )
    return None


def _check_same(existing: Charge, charge: Charge) -> None:
    """Raises ReusedError if a charge under the same release id was for something else."""
    existing = replace(existing, also_charged=charge.also_charged)  # other charges since then do not count
    if existing == charge:
        return
    same_cohort = str(existing.rotation) == str(charge.rotation)  # another key gives another partition
    known = replace(existing, rotation=charge.rotation) if same_cohort else existing
    if replace(known, binding=charge.binding, files=charge.files) == charge:
        what = "other input, another key or another version of sfumato"
    else:
        what = "another request"
    raise ReusedError(
        f"release_id: {charge.release_id} was charged for {what}; the same noise on other data would reveal the "
        "difference: restore the original, or use another release_id (in a refresh: --attempt 2), which is a new charge"
    )


def file_digest(secret: bytes, content_digest: str) -> str:
    """Returns the digest of an input file in a ledger, 32 hexadecimal digits, the same in every run with this secret.

    Without the secret behind the run's key, nobody can confirm a guess at the file's content.

    content_digest: identifies the file's content, such as its SHA-256.
    """
    return hmac.digest(secret, b"sfumato input file " + content_digest.encode(), hashlib.sha256)[:16].hex()


@dataclass(frozen=True)
class FileSelection:
    """Indices of the found files that were charged and that were not, and digests of charged files that are missing."""

    charged: tuple[int, ...]
    late: tuple[int, ...]
    missing: tuple[str, ...]


def select_files(charged: Iterable[str], found: Sequence[str]) -> FileSelection:
    """Compares the digests of found files with those of charged ones, `Charge.files`. Renamed or moved files match.

    If there are more copies of a file than were charged, the later copies are late.
    """
    left = Counter(charged)
    kept: list[int] = []
    late: list[int] = []
    for index, digest in enumerate(found):
        (kept if left[digest] > 0 else late).append(index)
        left[digest] -= 1
    missing = [digest for digest, number in left.items() for _ in range(number)]
    return FileSelection(tuple(kept), tuple(late), tuple(sorted(missing)))


def charged_elsewhere(charges: Iterable[Charge], new: Charge) -> list[Charge]:
    """Returns charges that share a file with the new one but are for another dataset, or for other days.

    Without those of the same dataset that read other days' rows of the file, by the same column and time zone: no row
    is in both.
    """

    def same_days_or_other_rows(one: Charge) -> bool:
        return one.period.overlaps(new.period) or (one.rows_by is not None and one.rows_by == new.rows_by)

    files = set(new.files)
    shared = [one for one in charges if not files.isdisjoint(one.files)]
    return [one for one in shared if one.dataset != new.dataset or not same_days_or_other_rows(one)]
