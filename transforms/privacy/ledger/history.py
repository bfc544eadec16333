"""What a ledger's entries add up to: limits in force, charges, publications."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sfumato.schemas.errors import LedgerError
from sfumato.schemas.ledger import Charge, Limit, Reservation, amount
from sfumato.transforms.privacy.ledger.entries import (
    COMMIT,
    FIRST,
    LIMITS,
    RESERVE,
    SETTLE,
    charge_of,
    limits_of,
    read_entries,
)
from sfumato.transforms.privacy.ledger.windows import bounded, overrun


@dataclass(frozen=True)
class LimitChange:
    """Entry number, time, dataset, and its limits before and after; none before the first."""

    index: int
    time: str
    dataset: str
    before: tuple[Limit, ...]
    after: tuple[Limit, ...]


@dataclass(frozen=True)
class History:
    """A ledger as it stands. head: hash of its newest entry. reservations by release id, limits by dataset.

    refusals: settled reservations whose release id was reserved again, for an input that was mended.
    """

    entries: int
    head: str
    reservations: dict[str, Reservation]
    limits: dict[str, tuple[Limit, ...]]
    changes: tuple[LimitChange, ...] = ()
    refusals: tuple[Reservation, ...] = ()

    @property
    def charges(self) -> list[Charge]:
        """What every charge counts; all that a crashed run reserved counts as spent."""
        return _all_charges((*self.refusals, *self.reservations.values()))


def replay(entries: Sequence[bytes], *, with_limits: bool = False) -> History:
    """Reads the entries from first to newest. Raises LedgerError where they break the chain or contradict each other.

    with_limits: also that every charge kept to the limits in force when it was made.
    """
    reservations: dict[str, Reservation] = {}
    limits: dict[str, tuple[Limit, ...]] = {}
    changes: list[LimitChange] = []
    refusals: list[Reservation] = []
    head = FIRST
    for entry in read_entries(entries):
        index, kind, content, head = entry["index"], entry["kind"], entry["content"], entry["hash"]
        if kind == LIMITS:
            dataset, found = limits_of(content)
            changes.append(LimitChange(index, entry["time"], dataset, limits.get(dataset, ()), found))
            limits[dataset] = found
        elif kind == RESERVE:
            charge = charge_of(content)
            standing = reservations.get(charge.release_id)
            if standing is not None:
                if standing.refused is None:
                    raise LedgerError(f"ledger: entry {index} charges release {charge.release_id} again")
                refusals.append(reservations.pop(charge.release_id))
            if charge.dataset not in limits:
                raise LedgerError(f"ledger: entry {index} charges a dataset that has no limits, {charge.dataset}")
            if with_limits:
                _check_limits(index, _all_charges((*refusals, *reservations.values())), charge, limits)
            reservations[charge.release_id] = Reservation(charge, index, entry["hash"], entry["time"])
        elif kind == SETTLE:
            standing = reservations.get(str(content.get("release_id")))
            if standing is None or standing.manifest is not None or standing.refused is not None:
                raise LedgerError(f"ledger: entry {index} settles {content.get('release_id')!r}, which is not reserved")
            reservations[standing.charge.release_id] = _settled(standing, index, content)
        elif kind == COMMIT:
            release_id, manifest = str(content.get("release_id")), content.get("manifest")
            if release_id not in reservations or reservations[release_id].manifest is not None:
                raise LedgerError(f"ledger: entry {index} publishes {release_id!r}, of which nothing is reserved")
            if reservations[release_id].refused is not None:
                raise LedgerError(f"ledger: entry {index} publishes {release_id!r}, which was refused")
            if not (isinstance(manifest, str) and manifest):
                raise LedgerError(f"ledger: entry {index} does not say what was published")
            reservations[release_id] = replace(reservations[release_id], manifest=manifest)
        else:
            raise LedgerError(f"ledger: entry {index} is of an unknown kind, {kind!r}")
    return History(len(entries), head, reservations, limits, tuple(changes), tuple(refusals))


def _all_charges(reservations: Sequence[Reservation]) -> list[Charge]:
    return [charge for one in reservations for charge in one.charge.each()]


def _check_limits(index: int, earlier: list[Charge], new: Charge, limits: Mapping[str, tuple[Limit, ...]]) -> None:
    """Raises LedgerError where a charge exceeded the limits in force."""
    for charge in new.each():
        in_force = limits.get(charge.dataset, ())
        if not bounded(charge, in_force):
            raise LedgerError(f"ledger: entry {index} charges {charge.dataset} beside its limits")
        if (over := overrun(earlier, charge, in_force)) is not None:
            raise LedgerError(f"ledger: entry {index} exceeds the limit of {over.limit.words()}")
        earlier = [*earlier, charge]


def _settled(standing: Reservation, index: int, content: Mapping[str, Any]) -> Reservation:
    try:
        return standing.settled(
            amount("epsilon", content["epsilon"]), amount("delta", content["delta"]), str(content["reason"])
        )
    except (KeyError, TypeError, ValueError, ArithmeticError) as error:  # ValueError: of which RequestError is one
        raise LedgerError(f"ledger: entry {index} cannot be read ({error})") from None
