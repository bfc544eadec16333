"""What a ledger's entries add up to: limits in force, charges, publications."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from sfumato.schemas.errors import LedgerError
from sfumato.schemas.ledger import Charge, Limit, Reservation
from sfumato.transforms.privacy.ledger.entries import (
    COMMIT,
    FIRST,
    LIMITS,
    RESERVE,
    charge_of,
    limits_of,
    read_entries,
)
from sfumato.transforms.privacy.ledger.windows import overrun


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
    """A ledger as it stands. head: hash of its newest entry. reservations by release id, limits by dataset."""

    entries: int
    head: str
    reservations: dict[str, Reservation]
    limits: dict[str, tuple[Limit, ...]]
    changes: tuple[LimitChange, ...] = ()

    @property
    def charges(self) -> list[Charge]:
        """Every charge; what a crashed run reserved counts as spent."""
        return [one.charge for one in self.reservations.values()]


def replay(entries: Sequence[bytes], *, with_limits: bool = False) -> History:
    """Reads the entries from first to newest. Raises LedgerError where they break the chain or contradict each other.

    with_limits: also that every charge kept to the limits in force when it was made.
    """
    reservations: dict[str, Reservation] = {}
    limits: dict[str, tuple[Limit, ...]] = {}
    changes: list[LimitChange] = []
    head = FIRST
    for entry in read_entries(entries):
        index, kind, content, head = entry["index"], entry["kind"], entry["content"], entry["hash"]
        if kind == LIMITS:
            dataset, found = limits_of(content)
            changes.append(LimitChange(index, entry["time"], dataset, limits.get(dataset, ()), found))
            limits[dataset] = found
        elif kind == RESERVE:
            charge = charge_of(content)
            if charge.release_id in reservations:
                raise LedgerError(f"ledger: entry {index} charges release {charge.release_id} again")
            if charge.dataset not in limits:
                raise LedgerError(f"ledger: entry {index} charges a dataset that has no limits, {charge.dataset}")
            if with_limits:
                earlier = [one.charge for one in reservations.values()]
                if (over := overrun(earlier, charge, limits[charge.dataset])) is not None:
                    raise LedgerError(f"ledger: entry {index} exceeds the limit of {over.limit.words()}")
            reservations[charge.release_id] = Reservation(charge, index, entry["hash"], entry["time"])
        elif kind == COMMIT:
            release_id, manifest = str(content.get("release_id")), content.get("manifest")
            if release_id not in reservations or reservations[release_id].manifest is not None:
                raise LedgerError(f"ledger: entry {index} publishes {release_id!r}, of which nothing is reserved")
            if not (isinstance(manifest, str) and manifest):
                raise LedgerError(f"ledger: entry {index} does not say what was published")
            reservations[release_id] = replace(reservations[release_id], manifest=manifest)
        else:
            raise LedgerError(f"ledger: entry {index} is of an unknown kind, {kind!r}")
    return History(len(entries), head, reservations, limits, tuple(changes))
