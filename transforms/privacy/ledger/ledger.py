"""Reserve, then commit: a release is charged before noise is drawn, and only once, whatever crashes or runs twice."""

from __future__ import annotations

import random
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from sfumato.schemas.errors import BudgetError, LedgerError, NotReadyError, RequestError
from sfumato.schemas.ledger import Charge, Limit, Reservation, amount, dataset_name, plain
from sfumato.transforms.privacy.ledger.entries import (
    COMMIT,
    KINDS,
    LIMITS,
    RESERVE,
    SETTLE,
    charge_content,
    entry_bytes,
    limits_content,
    settle_content,
)
from sfumato.transforms.privacy.ledger.history import History, replay
from sfumato.transforms.privacy.ledger.input_files import charged_elsewhere
from sfumato.transforms.privacy.ledger.stores import LedgerStore, open_store
from sfumato.transforms.privacy.ledger.windows import bounded, next_fit, overrun

_PATIENCE = 600.0  # seconds of others being faster


class ReusedError(RequestError):
    """A release id that stands in the ledger for another request, other input or another key."""


class ReusedFileError(RequestError):
    """An input file that was charged to another dataset, or to other days."""


class Ledger:
    """A ledger over a store. Each method reads all of it, decides, and appends, until nobody else was faster."""

    def __init__(self, store: LedgerStore, now: Callable[[], datetime] = lambda: datetime.now(UTC)):
        self._store = store
        self._now = now

    def history(self, *, with_limits: bool = False) -> History:
        """The ledger as it stands. Raises LedgerError; with_limits: also where a charge exceeded its limits."""
        return replay(self._store.read(), with_limits=with_limits)

    def reserve(self, charge: Charge, limits: Sequence[Limit] = (), *, allow_reuse: bool = False) -> Reservation:
        """Charges a release, or returns its standing reservation: a release id is charged once.

        A refused release, which was settled, is charged anew where its input or request was mended, beside what the
        refusal cost; with the same ones its reservation is returned.

        Args:
            charge: what the release costs, and for what.
            limits: what the caller takes the dataset's limits to be. They are written down with its first charge and
                must be the same ever after (`set_limits` changes them).
            allow_reuse: charge input files that were charged to another dataset or to other days before. Such a charge
                counts for those as well.

        Returns:
            The reservation.

        Raises:
            RequestError: the limits differ, there are none, or the release starts from one that is not in the ledger;
                ReusedError: the release id stands for something else.
                ReusedFileError: an input file was charged elsewhere, and that is not allowed.
            BudgetError: a limit would be exceeded.
            LedgerError: the ledger is damaged.
        """

        def decide(history: History) -> Reservation | tuple[str, Mapping[str, Any]]:
            standing = _reserved(history, charge)
            if standing is not None:
                return standing
            if (missing := check_limits(history, charge.dataset, limits)) is not None:
                return LIMITS, limits_content(charge.dataset, missing)
            new = with_earlier_uses(history, charge, allow_reuse=allow_reuse)
            check_budget(history, new)
            return RESERVE, charge_content(new)

        reservation: Reservation = self._until(decide)
        return reservation

    def check(self, charge: Charge, limits: Sequence[Limit] = (), *, allow_reuse: bool = False) -> Reservation | None:
        """Raises what `reserve` would raise now, and writes nothing. Returns the reservation that stands, if any."""
        history = self.history()
        standing = _reserved(history, charge)
        if standing is None:
            missing = check_limits(history, charge.dataset, limits)
            check_budget(history, with_earlier_uses(history, charge, allow_reuse=allow_reuse), missing)
        return standing

    def settle(
        self, release_id: str, epsilon: float | str, delta: float | str, reason: str, *, binding: str | None = None
    ) -> Reservation:
        """Notes that a reserved release was refused on noisy values and cost only this much. May be repeated.

        Args:
            release_id: the release; nothing must have been published under its reservation.
            epsilon: what the refusal cost, above 0 and at most what was reserved.
            delta: the same of delta.
            reason: why it was refused, in words made of noisy values and public facts alone.
            binding: of the charge that was refused, where another may have been made since; None for any.

        Returns:
            The reservation with what counts as spent.

        Raises:
            RequestError: the amounts are not part of what was reserved.
            LedgerError: nothing is reserved, a result was published, or the release was settled otherwise.
        """
        spent = amount("settle: epsilon", epsilon), amount("settle: delta", delta)

        def decide(history: History) -> Reservation | tuple[str, Mapping[str, Any]]:
            standing = history.reservations.get(release_id)
            if standing is None:
                raise LedgerError(f"ledger: release {release_id} was refused, but nothing was ever charged for it")
            if binding not in (None, standing.charge.binding):
                raise LedgerError(f"ledger: release {release_id} was charged anew since it was refused")
            if standing.refused is not None:
                if (standing.charge.epsilon, standing.charge.delta, standing.refused) != (*spent, reason):
                    raise LedgerError(f"ledger: release {release_id} was refused before, at another cost or reason")
                return standing
            if standing.manifest is not None:
                raise LedgerError(f"ledger: release {release_id} was published, so all that it was charged is spent")
            standing.settled(*spent, reason)  # raises where that cannot be
            return SETTLE, settle_content(release_id, *spent, reason)

        reservation: Reservation = self._until(decide)
        return reservation

    def commit(self, release_id: str, manifest: str) -> None:
        """Notes that a release was published. manifest: its manifest's SHA-256. Saying it again changes nothing.

        Raises LedgerError where nothing is reserved for the release, or where another manifest was published.
        """

        def decide(history: History) -> Reservation | tuple[str, Mapping[str, Any]]:
            standing = history.reservations.get(release_id)
            if standing is None:
                raise LedgerError(f"ledger: release {release_id} was published, but nothing was ever charged for it")
            if standing.refused is not None:
                raise LedgerError(f"ledger: release {release_id} was refused, so no result of it can be published")
            if standing.manifest is None:
                return COMMIT, {"release_id": release_id, "manifest": manifest}
            if standing.manifest != manifest:
                raise LedgerError(f"ledger: release {release_id} has been published before, with another manifest")
            return standing

        self._until(decide)

    def set_limits(self, dataset: str, limits: Sequence[Limit]) -> None:
        """Changes a dataset's limits from here on; what has been spent stays spent. Raises LedgerError."""

        def decide(history: History) -> tuple[Limit, ...] | tuple[str, Mapping[str, Any]]:
            if history.limits.get(dataset_name(dataset)) == tuple(limits):
                return tuple(limits)
            return LIMITS, limits_content(dataset, limits)

        self._until(decide)

    def backup(self, earlier: bytes = b"") -> bytes:
        """A copy of the ledger: its entries, a line each, the chain unbroken.

        Args:
            earlier: the copy that this one will take the place of.

        Raises:
            LedgerError: the ledger is damaged, or lacks entries of the earlier copy.
        """
        entries, before = self._store.read(), earlier.splitlines()
        replay(entries)
        if entries[: len(before)] != before:
            raise LedgerError(
                f"ledger: the copy that stands there has {len(before)} entries, which are not the first ones of the "
                f"{len(entries)} of this ledger; it was put back from an old copy, or is another one"
            )
        return b"".join(entry + b"\n" for entry in entries)

    def restore(self, copy: bytes) -> int:
        """Appends the entries of a copy that the ledger lacks. Returns how many.

        Raises:
            RequestError: the ledger has newer entries than the copy.
            LedgerError: the copy or the ledger is damaged, or the copy is of another ledger.
        """
        entries, standing = copy.splitlines(), self._store.read()
        replay(standing)
        replay(entries)
        if len(standing) > len(entries):
            raise RequestError(
                f"restore: the ledger has {len(standing)} entries, and the copy {len(entries)}; nothing is written over"
            )
        if entries[: len(standing)] != standing:
            raise LedgerError("ledger: the copy is of another ledger than the one that stands there")
        for index in range(len(standing), len(entries)):
            if not self._store.append(index, entries[index]):
                raise NotReadyError("ledger: others write to it while it is restored; stop them, and try again")
        return len(entries) - len(standing)

    def _until(self, decide: Callable[[History], Any]) -> Any:
        """Appends what `decide` says of the history, until it says that nothing is left to append."""
        deadline = time.monotonic() + _PATIENCE
        while True:
            history = self.history()
            decided = decide(history)
            if not (isinstance(decided, tuple) and len(decided) == 2 and decided[0] in KINDS):
                return decided
            kind, content = decided
            stamp = self._now().isoformat(timespec="seconds")
            entry = entry_bytes(history.entries, history.head, stamp, uuid.uuid4().hex, kind, content)
            if not self._store.append(history.entries, entry):
                if time.monotonic() > deadline:
                    raise NotReadyError("ledger: too many others write to it; try again")
                time.sleep(random.uniform(0.0, 0.05))


def open_ledger(location: str) -> Ledger:
    """Returns the ledger in an SQLite file or in a bucket (gs://bucket/folder). Touches nothing. Raises RequestError."""
    return Ledger(open_store(location))


def check_limits(history: History, dataset: str, limits: Sequence[Limit]) -> tuple[Limit, ...] | None:
    """The limits that the ledger still lacks, None where it has them. Raises RequestError where they contradict it."""
    dataset = dataset_name(dataset)
    standing = history.limits.get(dataset)
    given = tuple(limits)
    if standing is None:
        if not given:
            raise RequestError(f"budget: the ledger has no limits for dataset {dataset!r}; give some, such as 10/365d")
        return given
    if given and given != standing:
        raise RequestError(
            f"budget: the ledger's limits for dataset {dataset!r} are {','.join(map(str, standing))}, and not "
            f"{','.join(map(str, given))}; `sfumato ledger limit` changes them"
        )
    return None


def with_earlier_uses(history: History, charge: Charge, *, allow_reuse: bool) -> Charge:
    """The charge, counting also wherever its input files were charged before.

    Raises ReusedFileError where they were charged elsewhere and that is not allowed.
    """
    elsewhere = charged_elsewhere(history.charges, charge)
    if elsewhere and not allow_reuse:
        one = elsewhere[0]
        raise ReusedFileError(
            f"input: release {one.release_id} of dataset {one.dataset}, data of {one.period}, was charged for a file "
            f"of this input, which would now be charged to dataset {charge.dataset}, data of {charge.period}; take the "
            "file out, or give --allow_reuse to charge both"
        )
    return replace(charge, also=tuple(sorted({(one.dataset, one.period) for one in elsewhere}, key=str)))


def check_budget(history: History, charge: Charge, limits: Sequence[Limit] | None = None) -> None:
    """Raises BudgetError, which says when it would fit, where a charge exceeds the limits of what it counts for.

    limits: of the charge's own dataset, instead of the ledger's. Raises RequestError where no limit bounds the charge.
    """
    charges = history.charges
    for one in charge.each():
        own = limits if one.dataset == charge.dataset else None
        _check_budget(charges, one, history.limits[one.dataset] if own is None else own)
        charges.append(one)


def _check_budget(charges: Sequence[Charge], charge: Charge, in_force: Sequence[Limit]) -> None:
    if not bounded(charge, in_force):
        raise RequestError(
            f"budget: no limit of dataset {charge.dataset!r} bounds a release whose adjacency is {charge.adjacency}; "
            f"add one with `sfumato ledger limit`, such as 10/365d@{charge.adjacency}"
        )
    over = overrun(charges, charge, in_force)
    if over is None:
        return
    later = next_fit(charges, charge, in_force)
    when = "a single release of this epsilon never fits" if later is None else f"data of {later} or later would fit"
    raise BudgetError(
        f"ledger: {charge.dataset} may spend {over.limit.words()}; epsilon {plain(over.spent)} is spent on the data of "
        f"{over.window}, and epsilon {plain(charge.epsilon)} more for {charge.period} exceeds it; {when}"
    )


def _reserved(history: History, charge: Charge) -> Reservation | None:
    """The reservation that stands for this charge; None where one is to be made. Raises RequestError."""
    standing = history.reservations.get(charge.release_id)
    if standing is not None and (standing.refused is None or standing.charge.binding == charge.binding):
        _check_same(standing.reserved or standing.charge, charge)
        return standing
    if charge.starts_from is not None and charge.starts_from not in history.reservations:
        raise RequestError(
            f"warm_start: release {charge.starts_from} is not in the ledger, so nobody would account for what "
            "shows through from it; start from one that was charged there"
        )
    return None


def _check_same(standing: Charge, charge: Charge) -> None:
    standing = replace(standing, also=charge.also)  # what was charged since does not make it another request
    if standing == charge:
        return
    if replace(standing, binding=charge.binding, files=charge.files) == charge:
        what = "other input, another key or another version of sfumato"
    else:
        what = "another request"
    raise ReusedError(
        f"release_id: {charge.release_id} was charged for {what}; the same noise on other data would expose the "
        "difference: put back what was the same then, or give another release_id (a refresh: --attempt 2), which is "
        "charged anew"
    )
