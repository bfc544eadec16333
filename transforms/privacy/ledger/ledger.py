"""Reserve, then commit: a release is charged once, before any noise is drawn, even if runs crash or overlap."""

from __future__ import annotations

import random
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, TypeVar, cast

from sfumato.schemas.errors import LedgerError, NotReadyError, RequestError
from sfumato.schemas.ledger import Charge, Disclosure, Limit, Reservation, dataset_name, parse_amount
from sfumato.transforms.privacy.ledger.charge_rules import (
    check_budget,
    check_disclosure,
    check_limits,
    check_undisclosed,
    existing_reservation,
    with_earlier_uses,
)
from sfumato.transforms.privacy.ledger.history import (
    COMMIT,
    DISCLOSE,
    KINDS,
    LIMITS,
    PRUNE,
    RECOVER,
    REMOVE,
    RESERVE,
    SETTLE,
    History,
    charge_content,
    disclosure_content,
    entry_bytes,
    limits_content,
    recover_content,
    recovered_of,
    replay,
    settle_content,
)
from sfumato.transforms.privacy.ledger.stores import LedgerStore, open_store
from sfumato.transforms.privacy.ledger.windows import check_rho, same_cohorts

_MAX_WAIT_S = 600.0  # while other writers are faster
Entry = tuple[str, Mapping[str, Any]]  # kind and content of an entry to append
T = TypeVar("T")


class Ledger:
    """A ledger in a store.

    Each method reads all entries, decides, and appends an entry. It repeats this if another writer was faster.

    Args:
        store: keeps the entries.
        now: the clock, for tests.
    """

    def __init__(self, store: LedgerStore, now: Callable[[], datetime] = lambda: datetime.now(UTC)):
        self._store = store
        self._now = now

    def history(self, *, with_limits: bool = False) -> History:
        """Returns the ledger's state.

        Args:
            with_limits: also check every charge against the limits of its time.

        Raises:
            LedgerError: the ledger is damaged, or a charge exceeded its limits.
        """
        return replay(self._store.read(), with_limits=with_limits)

    def reserve(self, charge: Charge, limits: Sequence[Limit] = (), *, allow_reuse: bool = False) -> Reservation:
        """Charges a release, or returns its existing reservation. A release id is charged once.

        A refused and settled release is charged again if its input or request has changed. Both charges then count.

        Args:
            charge: what the release costs, and for what.
            limits: the dataset's limits as the caller expects them. The first charge records them. Later charges must
                state the same limits or none; `set_limits` changes them.
            allow_reuse: charge input files that were charged to another dataset or to other days before. The charge
                then counts for those as well.

        Returns:
            The reservation.

        Raises:
            RequestError: the limits differ, there are none, or the release starts from one that the ledger lacks.
            ReusedError: the release id was charged for something else.
            ReusedFileError: an input file was charged elsewhere, and `allow_reuse` is False.
            BudgetError: the charge would exceed a limit.
            LedgerError: the ledger is damaged.
        """

        def decide(history: History) -> Reservation | Entry:
            existing = existing_reservation(history, charge)
            if existing is not None:
                return existing
            if (missing := check_limits(history, charge.dataset, limits)) is not None:
                return LIMITS, limits_content(charge.dataset, missing)
            new = with_earlier_uses(history, charge, allow_reuse=allow_reuse)
            check_budget(history, new)
            return RESERVE, charge_content(new)

        return self._append_until_done(decide)

    def check(self, charge: Charge, limits: Sequence[Limit] = (), *, allow_reuse: bool = False) -> Reservation | None:
        """Raises what `reserve` would raise, and writes nothing. Returns the existing reservation, if any."""
        history = self.history()
        existing = existing_reservation(history, charge)
        if existing is None:
            missing = check_limits(history, charge.dataset, limits)
            check_budget(history, with_earlier_uses(history, charge, allow_reuse=allow_reuse), missing)
        return existing

    def disclose(self, disclosure: Disclosure, *, allow_reuse: bool = False) -> Disclosure:
        """Records bits without differential privacy, once. Raises the errors of `check_disclosure`, and LedgerError."""

        def decide(history: History) -> Disclosure | Entry:
            check_disclosure(history, disclosure, allow_reuse=allow_reuse)
            existing = history.disclosures.get(disclosure.release_id)
            return (DISCLOSE, disclosure_content(disclosure)) if existing is None else existing

        return self._append_until_done(decide)

    def settle(
        self,
        release_id: str,
        epsilon: float | str | Decimal,
        delta: float | str | Decimal,
        reason: str,
        *,
        rho: Decimal | None = None,
        binding: str | None = None,
    ) -> Reservation:
        """Records that a reserved release was refused on noisy values and cost only this much. Safe to repeat.

        Args:
            release_id: the release. Nothing may have been published under its reservation.
            epsilon: cost of the refusal, above 0 and at most what was reserved.
            delta: cost of the refusal, at most what was reserved.
            reason: why it was refused, from noisy values and public figures only.
            rho: cost of the refusal where the charge has a rho.
            binding: of the refused charge, in case the release was charged again since; None for any.

        Returns:
            The reservation with what counts as spent.

        Raises:
            RequestError: the amounts are above what was reserved.
            LedgerError: nothing is reserved, a result was published, or the release was settled differently.
        """
        spent = parse_amount("settle: epsilon", epsilon), parse_amount("settle: delta", delta)

        def decide(history: History) -> Reservation | Entry:
            existing = history.reservations.get(release_id)
            if existing is None:
                raise LedgerError(f"ledger: release {release_id} was refused but never charged")
            if binding not in (None, existing.charge.binding):
                raise LedgerError(f"ledger: release {release_id} was charged again after it was refused")
            if existing.refusal is not None:
                known = existing.charge
                if (known.epsilon, known.delta, known.rho, existing.refusal) != (*spent, rho, reason):
                    raise LedgerError(
                        f"ledger: release {release_id} was refused before with a different cost or reason"
                    )
                return existing
            if existing.manifest is not None:
                raise LedgerError(f"ledger: release {release_id} was published, so its whole charge is spent")
            check_rho(existing.settled(*spent, reason, rho).charge)  # both raise RequestError for impossible amounts
            return SETTLE, settle_content(release_id, *spent, reason, rho)

        return self._append_until_done(decide)

    def commit(self, release_id: str, manifest: str) -> None:
        """Records that a release was published with a manifest of this SHA-256. Safe to repeat.

        Raises:
            LedgerError: nothing is reserved for the release, it was refused, or another manifest was published.
        """

        def decide(history: History) -> Reservation | Entry:
            existing = history.reservations.get(release_id)
            if existing is None:
                raise LedgerError(f"ledger: release {release_id} was published but never charged")
            if existing.refusal is not None:
                raise LedgerError(f"ledger: release {release_id} was refused and cannot be published")
            if existing.manifest is None:
                return COMMIT, {"release_id": release_id, "manifest": manifest}
            if existing.manifest != manifest:
                raise LedgerError(f"ledger: release {release_id} has been published before with a different manifest")
            return existing

        self._append_until_done(decide)

    def prune(self, release_id: str) -> None:
        """Records that the files of a published release are about to be removed, all but its manifest. Safe to repeat.

        Raises:
            LedgerError: the ledger knows of no publication of the release.
        """

        def decide(history: History) -> Reservation | Entry:
            existing = _published(history, release_id, "pruned")
            return (PRUNE, {"release_id": release_id}) if existing.pruned is None else existing

        self._append_until_done(decide)

    def remove(self, release_id: str, reason: str) -> Reservation:
        """Records that a published release is about to be taken down: its charge publishes nothing any more.

        Safe to repeat: a release keeps the first reason.

        Raises:
            LedgerError: the ledger knows of no publication of the release.
        """

        def decide(history: History) -> Reservation | Entry:
            existing = _published(history, release_id, "taken down")
            return (REMOVE, {"release_id": release_id, "reason": reason}) if existing.removal is None else existing

        return self._append_until_done(decide)

    def set_limits(self, dataset: str, limits: Sequence[Limit]) -> None:
        """Changes a dataset's limits for later charges. What has been spent stays spent.

        Raises:
            RequestError: the dataset's users sent bits as they are.
            LedgerError: the ledger is damaged.
        """

        def decide(history: History) -> tuple[Limit, ...] | Entry:
            existing = history.limits.get(dataset_name(dataset), ())
            if existing == tuple(limits):
                return tuple(limits)
            check_undisclosed(history, dataset)
            return LIMITS, limits_content(dataset, limits)

        self._append_until_done(decide)

    def recover(self, charge: Charge, lost: str, manifest: str | None, refusal: str | None) -> bool:
        """Charges a release again whose entry was lost, as its manifest states it. Safe to repeat.

        It counts even above the limits, because the release was published.

        Args:
            charge: what the manifest states.
            lost: hash of the lost entry.
            manifest: SHA-256 of the manifest of a published release; None for a refusal.
            refusal: the reason of a refusal; None for a published release.

        Returns:
            Whether the ledger lacked the charge.

        Raises:
            RequestError: the dataset has no limits.
            LedgerError: the ledger has another charge of the release, or is damaged.
        """
        written = False

        def decide(history: History) -> bool | Entry:
            nonlocal written
            for one in (*history.refusals, *history.reservations.values()):
                if lost in one.hashes:
                    if one.charge.release_id == charge.release_id:
                        return written
                    raise LedgerError(
                        f"ledger: release {charge.release_id} names the entry of release {one.charge.release_id}; its "
                        "manifest was rewritten"
                    )
            if charge.release_id in (history.reservations.keys() | history.disclosures.keys()):
                raise LedgerError(
                    f"ledger: release {charge.release_id} was charged by a different entry than its manifest "
                    "states; one of them was rewritten, or the run was repeated with a restored ledger"
                )
            for name in (one.dataset for one in charge.counted() if one.dataset not in history.limits):
                raise RequestError(
                    f"budget: the ledger has no limits for dataset {name!r}; set them first: "
                    f"sfumato ledger limit --dataset {name} --budget 10/365d"
                )
            content = recover_content(charge, lost, manifest, refusal)
            recovered_of(content)  # what could not be read again is not written
            if not same_cohorts(history.charges, charge):
                raise LedgerError(f"ledger: {charge.release_id} states a different number of cohorts for its partition")
            written = True
            return RECOVER, content

        return self._append_until_done(decide)

    def check_writable(self) -> None:
        """Raises RequestError or NotReadyError if an entry cannot be written. Writes nothing."""
        self._store.check_writable()

    def backup(self, earlier: bytes = b"") -> bytes:
        """Returns a copy of the ledger: its entries, one a line. earlier: the copy that the new one will replace.

        Raises LedgerError: the ledger is damaged, or lacks entries of the earlier copy.
        """
        entries, before = self._store.read(), earlier.splitlines()
        replay(entries)
        if entries[: len(before)] != before:
            raise LedgerError(
                f"ledger: the {len(before)} entries of the existing copy are not the first of the {len(entries)} "
                "entries of this ledger; it was restored from an old copy, or is another ledger"
            )
        return b"".join(entry + b"\n" for entry in entries)

    def restore(self, copy: bytes) -> int:
        """Appends the entries of a copy that the ledger lacks, and returns their number.

        Raises:
            RequestError: the ledger has newer entries than the copy.
            LedgerError: the copy or the ledger is damaged, or the copy belongs to another ledger.
            NotReadyError: another writer appended meanwhile.
        """
        entries, existing = copy.splitlines(), self._store.read()
        replay(existing)
        replay(entries)
        if len(existing) > len(entries):
            raise RequestError(
                f"restore: the ledger has {len(existing)} entries and the copy {len(entries)}; nothing was overwritten"
            )
        if entries[: len(existing)] != existing:
            raise LedgerError("ledger: the copy belongs to another ledger")
        for index in range(len(existing), len(entries)):
            if not self._store.append(index, entries[index]):
                raise NotReadyError("ledger: changed during the restore; stop all jobs that write to it, and try again")
        return len(entries) - len(existing)

    def _append_until_done(self, decide: Callable[[History], T | Entry]) -> T:
        """Appends the entry (kind, content) that `decide` returns, until it returns anything else: the result."""
        deadline = time.monotonic() + _MAX_WAIT_S
        while True:
            history = self.history()
            decided = decide(history)
            if not (isinstance(decided, tuple) and len(decided) == 2 and decided[0] in KINDS):
                return cast(T, decided)
            kind, content = decided
            now = self._now().isoformat(timespec="seconds")
            entry = entry_bytes(history.entries, history.head, now, uuid.uuid4().hex, kind, content)
            if not self._store.append(history.entries, entry):
                if time.monotonic() > deadline:
                    raise NotReadyError("ledger: too many concurrent writers; try again")
                time.sleep(random.uniform(0.0, 0.05))


def _published(history: History, release_id: str, what: str) -> Reservation:
    """Returns a published release's reservation. Raises LedgerError: none is known, so it cannot be `what`."""
    existing = history.reservations.get(release_id)
    if existing is None or existing.manifest is None:
        raise LedgerError(f"ledger: release {release_id} is not recorded as published and cannot be {what}")
    return existing


def open_ledger(location: str) -> Ledger:
    """Returns the ledger at a location, an SQLite file or gs://bucket/folder. Touches nothing. Raises RequestError."""
    return Ledger(open_store(location))
