"""The state of a ledger after all its entries: limits, charges, publications."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from sfumato.schemas.errors import LedgerError
from sfumato.schemas.ledger import Charge, Disclosure, Limit, Reservation, parse_amount
from sfumato.transforms.privacy.ledger.entries import (
    APPROVER,
    COMMIT,
    DISCLOSE,
    FIRST,
    LIMITS,
    PRUNE,
    RECOVER,
    REMOVE,
    RESERVE,
    SETTLE,
    charge_of,
    disclosure_of,
    limits_of,
    read_entries,
    recovered_of,
    rho_of,
)
from sfumato.transforms.privacy.ledger.windows import check_rho, find_overrun, is_bounded


@dataclass(frozen=True)
class LimitChange:
    """A dataset's limits before and after entry `index`. `before` is empty for the first limits."""

    index: int
    time: str
    dataset: str
    before: tuple[Limit, ...]
    after: tuple[Limit, ...]


@dataclass(frozen=True)
class History:
    """The state of a ledger.

    Attributes:
        entries: number of entries.
        head: hash of the newest entry.
        reservations: by release id.
        limits: in force, by dataset.
        changes: of limits, oldest first.
        refusals: settled reservations whose release id was charged again, for corrected input.
        approver: index of the newest entry by which an earlier version named an approver of limits, or None.
        disclosures: bits that users sent without differential privacy, by release id.
    """

    entries: int
    head: str
    reservations: dict[str, Reservation]
    limits: dict[str, tuple[Limit, ...]]
    changes: tuple[LimitChange, ...] = ()
    refusals: tuple[Reservation, ...] = ()
    approver: int | None = None
    disclosures: dict[str, Disclosure] = field(default_factory=dict)

    @property
    def datasets(self) -> list[str]:
        """All datasets, in alphabetic order: with limits, or with disclosures."""
        return sorted({*self.limits, *(one.dataset for one in self.disclosures.values())})

    @property
    def charges(self) -> list[Charge]:
        """All charges that count. The whole reservation of a crashed run counts as spent."""
        return _counted_charges((*self.refusals, *self.reservations.values()))


def replay(entries: Sequence[bytes], *, with_limits: bool = False) -> History:
    """Reads the entries from first to newest.

    Args:
        entries: all entries of a ledger.
        with_limits: also check every charge against the limits in force when it was made.

    Raises:
        FormatError: another version of sfumato wrote an entry.
        LedgerError: the chain is broken, entries contradict each other, or a charge exceeded its
            limits.
    """
    reservations: dict[str, Reservation] = {}
    limits: dict[str, tuple[Limit, ...]] = {}
    changes: list[LimitChange] = []
    refusals: list[Reservation] = []
    disclosures: dict[str, Disclosure] = {}
    cohorts: dict[str, int] = {}  # their number, by partition
    head, approver = FIRST, None
    for entry in read_entries(entries):
        index, kind, content = entry["index"], entry["kind"], entry["content"]
        head = entry["hash"]
        if kind == LIMITS:
            dataset, found = limits_of(content)
            if any(one.dataset == dataset for one in disclosures.values()):
                raise LedgerError(f"ledger: entry {index} limits {dataset}, whose users sent bits as they are")
            changes.append(LimitChange(index, entry["time"], dataset, limits.get(dataset, ()), found))
            limits[dataset] = found
        elif kind == DISCLOSE:
            disclosure = disclosure_of(content, index, entry["time"])
            if disclosure.dataset in limits or disclosure.release_id in (reservations.keys() | disclosures.keys()):
                raise LedgerError(f"ledger: entry {index} is of a dataset with limits, or of a release that is there")
            disclosures[disclosure.release_id] = disclosure
        elif kind == APPROVER:
            approver = index  # no signature is checked any longer: `ledger verify` says so
        elif kind == RECOVER:
            charge, lost, manifest, refusal = recovered_of(content)
            if charge.release_id in (reservations.keys() | disclosures.keys()) or charge.dataset not in limits:
                raise LedgerError(f"ledger: entry {index} charges release {charge.release_id} again, or has no limits")
            _check_partition(index, charge, cohorts)
            reservations[charge.release_id] = Reservation(
                charge, index, entry["hash"], entry["time"], manifest, refusal, lost=lost
            )
        elif kind == RESERVE:
            charge = charge_of(content)
            existing = reservations.get(charge.release_id)
            if existing is not None or charge.release_id in disclosures:
                if existing is None or existing.refusal is None:
                    raise LedgerError(f"ledger: entry {index} charges release {charge.release_id} again")
                refusals.append(reservations.pop(charge.release_id))
            _check_partition(index, charge, cohorts)
            if charge.dataset not in limits:
                raise LedgerError(f"ledger: entry {index} charges a dataset that has no limits, {charge.dataset}")
            if with_limits:
                _check_limits(index, _counted_charges((*refusals, *reservations.values())), charge, limits)
            reservations[charge.release_id] = Reservation(charge, index, entry["hash"], entry["time"])
        elif kind == SETTLE:
            existing = reservations.get(str(content.get("release_id")))
            if existing is None or existing.manifest is not None or existing.refusal is not None:
                raise LedgerError(
                    f"ledger: entry {index} settles {content.get('release_id')!r:.120}, which is not reserved"
                )
            reservations[existing.charge.release_id] = _settled(existing, index, content)
        elif kind == COMMIT:
            release_id, manifest = str(content.get("release_id")), content.get("manifest")
            if release_id not in reservations or reservations[release_id].manifest is not None:
                raise LedgerError(f"ledger: entry {index} publishes {release_id!r:.120}, of which nothing is reserved")
            if reservations[release_id].refusal is not None:
                raise LedgerError(f"ledger: entry {index} publishes {release_id!r:.120}, which was refused")
            if not (isinstance(manifest, str) and manifest):
                raise LedgerError(f"ledger: entry {index} does not say what was published")
            reservations[release_id] = replace(reservations[release_id], manifest=manifest)
        elif kind == PRUNE:
            existing = reservations.get(str(content.get("release_id")))
            if existing is None or existing.manifest is None or existing.pruned is not None:
                raise LedgerError(
                    f"ledger: entry {index} removes the files of {content.get('release_id')!r:.120}, which has none"
                )
            reservations[existing.charge.release_id] = replace(existing, pruned=entry["time"])
        elif kind == REMOVE:
            existing, reason = reservations.get(str(content.get("release_id"))), content.get("reason")
            if existing is None or existing.manifest is None or existing.removal is not None:
                raise LedgerError(
                    f"ledger: entry {index} takes down {content.get('release_id')!r:.120}, which is not published"
                )
            if not (isinstance(reason, str) and reason):
                raise LedgerError(f"ledger: entry {index} does not say why a release was taken down")
            reservations[existing.charge.release_id] = replace(existing, pruned=entry["time"], removal=reason)
        else:
            raise LedgerError(f"ledger: entry {index} is of an unknown kind, {kind!r:.120}")
    return History(len(entries), head, reservations, limits, tuple(changes), tuple(refusals), approver, disclosures)


def _counted_charges(reservations: Sequence[Reservation]) -> list[Charge]:
    return [charge for one in reservations for charge in one.charge.counted()]


def _check_partition(index: int, charge: Charge, cohorts: dict[str, int]) -> None:
    """Adds a charge's partition to the number of cohorts by partition. Raises LedgerError if it had another number."""
    rotation = charge.rotation
    if rotation is not None and cohorts.setdefault(rotation.partition, rotation.cohorts) != rotation.cohorts:
        raise LedgerError(f"ledger: entry {index} has a partition of the users with another number of cohorts")


def _check_limits(index: int, earlier: list[Charge], new: Charge, limits: Mapping[str, tuple[Limit, ...]]) -> None:
    """Raises LedgerError if a charge exceeded the limits in force."""
    for charge in new.counted():
        in_force = limits.get(charge.dataset, ())
        if not is_bounded(charge, in_force):
            raise LedgerError(f"ledger: entry {index} charges {charge.dataset}, and no limit of it bounds the charge")
        if (over := find_overrun(earlier, charge, in_force)) is not None:
            raise LedgerError(f"ledger: entry {index} exceeds the limit of {over.limit.describe()}")
        earlier = [*earlier, charge]


def _settled(reservation: Reservation, index: int, content: Mapping[str, Any]) -> Reservation:
    try:
        epsilon, delta = (parse_amount(name, content[name]) for name in ("epsilon", "delta"))
        settled = reservation.settled(epsilon, delta, str(content["reason"]), rho_of(content))
        check_rho(settled.charge)
        return settled
    except (KeyError, TypeError, ValueError, ArithmeticError) as error:  # RequestError is a ValueError
        raise LedgerError(f"ledger: entry {index} cannot be read ({error})") from None
