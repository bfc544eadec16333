"""Whether the nights of a refresh's output are those that its ledger knows, so that no night is left out in silence.

The clock is compared with the times that the ledger states, because releases and entries state the clock's time.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from functools import cached_property
from typing import Self

from apache_beam.io.filesystems import FileSystems

from sfumato.schemas.errors import LedgerError, RequestError, reason_of
from sfumato.schemas.ledger import Period, Reservation
from sfumato.schemas.refresh import RefreshConfig
from sfumato.schemas.release import ANSWERS_FILE, CELLS_FILE, MANIFEST_FILE, MANIFEST_FORMAT, NIGHTS_FILE
from sfumato.transforms.privacy.ledger.history import History
from sfumato.transforms.privacy.ledger.ledger import open_ledger
from sfumato.transforms.release.catalog import (
    RELEASES,
    DatedFolders,
    dated_folder,
    disagreement,
    is_pruned,
    nightly_charges,
    read_folders,
)
from sfumato.transforms.release.published_release import Release
from sfumato.transforms.release.release_folder import format_at, manifest_at

_MAX_SKEW = timedelta(seconds=60)
_LONGEST_PAUSE = timedelta(days=31)  # between two charges of a series that runs


def clock_problem(history: History) -> str | None:
    """Returns what is wrong with the clock, judged by the newest ledger entry; None if nothing is."""
    stated = [one.time for one in (*history.refusals, *history.reservations.values())]
    times = [datetime.fromisoformat(text) for text in (*stated, *(change.time for change in history.changes))]
    newest = max((one if one.tzinfo else one.replace(tzinfo=UTC) for one in times), default=None)
    now = datetime.now(UTC)
    if newest is not None and newest - now > _MAX_SKEW:
        return f"it shows {now:%F %T}, before the ledger's newest entry at {newest:%F %T} (UTC); set the clock"
    if newest is None or now - newest <= _LONGEST_PAUSE:
        return None
    return (
        f"it shows {now:%F %T} (UTC), {(now - newest).days} days after the ledger's newest entry; unless nothing was "
        "published since, set the clock"
    )


_READ_BY_LATER_NIGHTS = (CELLS_FILE, NIGHTS_FILE, ANSWERS_FILE)


@dataclass(frozen=True)
class PublishedNights:
    """The releases of an output, and what the ledger knows of them."""

    config: RefreshConfig  # the refresh's configuration
    config_file: str  # where it was read, for the commands in messages
    folders: DatedFolders  # what the output holds
    history: History  # of the ledger

    @classmethod
    def read(cls, config: RefreshConfig, config_file: str) -> Self:
        """Reads the output and the ledger. Raises SfumatoErrors."""
        folders = read_folders(config.output)
        # The ledger is read after the releases, so that it has the charges of all of them.
        nights = cls(config, config_file, folders, open_ledger(config.ledger).history())
        newest = list(nights.published)[-1:]
        if not folders.dates and any(format_at(nights.folder(name)) is not None for name in newest):
            return cls.read(config, config_file)  # the first night was published in between
        return nights

    @property
    def releases(self) -> dict[str, Release]:
        """Returns the published releases by date, in order."""
        return self.folders.releases

    @property
    def complete(self) -> dict[str, Release]:
        """Returns the releases that still have all their files."""
        return {name: one for name, one in self.releases.items() if not is_pruned(one, self.history)}

    @cached_property
    def charged(self) -> dict[str, Reservation]:
        """Returns the charge behind each night, by date."""
        return nightly_charges(self.history, self.config.dataset)

    @cached_property
    def published(self) -> dict[str, Reservation]:
        """Returns the charges of the nights that the ledger knows as published and not taken down, by date."""
        return {name: one for name, one in self.charged.items() if one.manifest is not None and one.removal is None}

    def folder(self, day: date | str) -> str:
        """Returns the folder of a day's release."""
        return dated_folder(self.config.output, day)

    def check(self, day: str | None = None, *, is_published: bool = False) -> None:
        """Checks that the output and the ledger agree on every night.

        Args:
            day: the day that is to be published; None for none. If its own release is damaged, the run replaces it.
            is_published: whether the day is published already: its release is shown or made again, and nothing is
                charged. Then other nights may be damaged: otherwise two damaged nights would block each other.

        Raises:
            LedgerError: they do not. The message names the folder or file, and the command that repairs it.
            RequestError: a release belongs to another dataset or day, or this user may not read a manifest.
        """
        for name in self.folders.unreadable:
            self._check_permission(name)
        for name, release in self.releases.items():
            # So a ledger that was lost, or restored from an old copy, starts no new budget.
            if not self.history.entries:
                raise LedgerError(
                    f"ledger: not found: {self.config.ledger}, but {release.path} was charged; restore it from a "
                    "copy, or correct `ledger` in the configuration"
                )
            if problem := disagreement(release, self.history):
                raise LedgerError(f"ledger: {release.path} contradicts the ledger: {problem}")
            charge = self.history.reservations[release.manifest["release_id"]].charge
            if (charge.dataset, str(charge.period)) != (self.config.dataset.casefold(), name):
                raise RequestError(
                    f"output: {release.path} belongs to dataset {charge.dataset}; use a separate folder for each "
                    "dataset"
                )
        self._check_not_emptied(day if is_published else None)
        if is_published:
            return
        for name in self.folders.unreadable:
            self._check_unreadable(name, own=name == day)
        for name in self.folders.without_manifest:
            if name in self.published and name != day:
                raise LedgerError(f"ledger: {self.folder(name)}/{MANIFEST_FILE} is missing; {self.remedy(name)}")

    def _check_permission(self, name: str) -> None:
        """Raises RequestError if the system does not let this user read a manifest, which may be in order."""
        try:
            manifest_at(self.folder(name))
        except OSError as error:
            raise RequestError(
                f"output: cannot read {self.folder(name)}/{MANIFEST_FILE} ({reason_of(error)}); grant this user access"
            ) from None

    def _check_unreadable(self, name: str, own: bool) -> None:
        """Raises LedgerError for a manifest that cannot be read, unless no later night needs it."""
        charged = self.charged.get(name)
        if charged is not None and (own or charged.removal is not None or charged.refusal is not None):
            return
        file = f"{self.folder(name)}/{MANIFEST_FILE}"
        remedy = "restore the folder from a copy, or move it away" if charged is None else self.remedy(name)
        raise LedgerError(f"ledger: {file} is damaged and cannot be read as a manifest; {remedy}")

    def _check_not_emptied(self, published_day: str | None) -> None:
        """Raises LedgerError for an output without any of the nights that the ledger knows, such as a lost mount.

        The first of them may be made again there, and then the others. Another day cannot: a scheduler that publishes a
        day twice would otherwise begin a second output below the mount.
        """
        names = [name for name, one in self.published.items() if one.pruned is None] or list(self.published)
        is_there = self.folders.dates or not self.published.keys().isdisjoint(self.folders.without_manifest)
        if is_there or not names or published_day == names[0]:
            return
        newest, number = self.published[names[-1]].charge.release_id, len(self.published)
        known = "1 published release" if number == 1 else f"{number} published releases"
        days = f"--date {names[0]}" if len(names) == 1 else f"--backfill {names[0]}:{names[-1]}"
        place = FileSystems.join(self.config.output, RELEASES)
        places = f"--timeline {shlex.quote(self.config.output)} --ledger {shlex.quote(self.config.ledger)}"
        removal = f"sfumato releases remove {newest} {places} --reason REASON"
        raise LedgerError(
            f"ledger: {self.config.ledger} records {known} of {self.config.dataset}, but {place} contains none; mount "
            f"the disk, restore the folder, or publish them again: {self._command(days)} (for a new output, copy the "
            f"folder of release {newest} into it; if all are permanently lost, take that release down: {removal})"
        )

    def is_stale(self, starts: Sequence[Release], day: date) -> bool:
        """Returns whether a night that a map of a day needs was published after the output was listed."""
        return any(format_at(self.folder(name)) == MANIFEST_FORMAT for name in self._left_out(starts, day))

    def check_starts(self, starts: Sequence[Release], day: date) -> None:
        """Checks that a new map leaves out no published night, and can read those from which it starts.

        starts: the releases from which it starts, oldest first. day: of the map.

        Raises LedgerError: a night is gone, or a file that the map reads is gone or changed.
        """
        for name in self._left_out(starts, day):
            raise LedgerError(f"ledger: {self.folder(name)} was published but is missing; {self.remedy(name)}")
        self.check_files(starts)

    def check_files(self, starts: Sequence[Release]) -> None:
        """Raises LedgerError if a file that a later night reads is gone or changed."""
        dates = {one.path: name for name, one in self.releases.items()}
        for release in starts:
            for problem in release.damage(_READ_BY_LATER_NIGHTS):
                raise LedgerError(f"ledger: {problem}; {self.remedy(dates[release.path])}")

    def _left_out(self, starts: Sequence[Release], day: date) -> list[str]:
        """Returns published nights before a day that are missing in the output and not part of any state in `starts`.

        Nights before those of `starts` are not counted: another region or depth restarts the estimate.
        """
        dates = {one.path: name for name, one in self.releases.items()}
        periods = [period for one in starts for period in _nights_of(one, dates[one.path])]
        if not periods:  # there is none of this region and depth: those after the newest of another count
            periods = [Period.parse(name) for name in self.releases if name < str(day)][-1:]
        found = self.folders.dates
        return [
            name
            for name, one in self.published.items()
            if name not in found and one.pruned is None and one.charge.job == self.config.job
            if periods and str(periods[0].first) < name < str(day)
            if not any(str(period.first) <= name <= str(period.last) for period in periods)
        ]

    def remedy(self, name: str) -> str:
        """Returns the remedy for a night with a damaged or missing release, as the end of a message."""
        return f"restore the folder from a copy, or publish it again: {self._command(f'--date {name}')}"

    def _command(self, days: str) -> str:
        return f"sfumato refresh --config {shlex.quote(self.config_file)} {days}"


def _nights_of(release: Release, day: str) -> list[Period]:
    """Returns the nights on whose answers a release is based, in order."""
    nights = release.manifest.get("nights")
    return [Period.parse(text) for text in nights["rests_on"]] if isinstance(nights, dict) else [Period.parse(day)]
