"""`sfumato refresh`: publishes the release of a day, once, and keeps the ledger and the page of all releases."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Any

from apache_beam.io.filesystems import FileSystems

from sfumato.pipelines.console import identify
from sfumato.pipelines.inputs import match_files
from sfumato.pipelines.job import flex_launch, launch_nothing, log_late_files, select_input
from sfumato.pipelines.run import JOBS, request_class, request_of, run_job
from sfumato.pipelines.runner_settings import RunnerSettings, flags_of, parse_yaml, settings_of
from sfumato.schemas.errors import BudgetError, DataError, LedgerError, NotReadyError, RequestError
from sfumato.schemas.ledger import Period, Reservation, format_amount, parse_amount
from sfumato.schemas.refresh import RefreshConfig, check_known
from sfumato.schemas.region import Grid
from sfumato.schemas.requests.publish_request import RunnerOptions
from sfumato.schemas.requests.refresh_days import RefreshRequest
from sfumato.schemas.requests.request_base import Request
from sfumato.transforms.files import read_file
from sfumato.transforms.heatmap.heatmap_request import HeatmapOptions
from sfumato.transforms.logs import log_event
from sfumato.transforms.privacy.ledger.history import History
from sfumato.transforms.privacy.ledger.ledger import ReusedError, open_ledger
from sfumato.transforms.privacy.secrets import FileSecret, SecretManagerSecret
from sfumato.transforms.release.catalog import RELEASES, disagreement, published_releases
from sfumato.transforms.release.published_release import Release
from sfumato.transforms.release.publishing import CommitRelease
from sfumato.transforms.storage import matching

# What the configuration says outside of `options`, or what a refresh sets itself.
_OWN = frozenset({
    "input", "output", "ledger", "dataset", "period", "budget", "key_file", "key_secret", "release_id", "timeline",
    "min_users", "allow_reuse", "warm_start", "seed", "overwrite", "dry_run", *RunnerOptions.model_fields,
})  # fmt: skip


@dataclass(frozen=True)
class Refresh:
    """A refresh as it is run: its configuration, and where it runs.

    attempt: 2 or more charges a day again, under another release id. beam_arguments: Beam's options.
    """

    config: RefreshConfig
    runner: RunnerOptions
    attempt: int = 1
    dry_run: bool = False
    beam_arguments: tuple[str, ...] = ()

    @property
    def settings(self) -> RunnerSettings:
        """Where a run takes place. Each run has options of Beam's of its own."""
        return settings_of(self.runner, self.beam_arguments)

    def release_id(self, day: date) -> str:
        """The id of a day's release."""
        return f"{self.config.dataset}-{day}" + (f"-{self.attempt}" if self.attempt > 1 else "")

    def folder(self, day: date) -> str:
        """Where a day's release stands."""
        return str(FileSystems.join(self.config.output, RELEASES, str(day)))

    def publish(self, day: date) -> None:
        """Publishes a day's release unless it stands already. Raises SfumatoErrors."""
        identify(job="refresh", release_id=self.release_id(day))
        log_event("day", f"{day}: release {self.release_id(day)}", date=str(day))
        while True:
            releases = published_releases(self.config.output)
            history = open_ledger(self.config.ledger).history()  # read last: it knows whatever was published before
            for name, release in releases.items():
                self._vouch(name, release, history)
            standing = releases.get(str(day))
            if standing is not None and (self.attempt == 1 or standing.manifest["release_id"] == self.release_id(day)):
                self._stand(day, standing, history)
                return
            reservation = history.reservations.get(self.release_id(day))
            try:
                try:
                    self._run(day, releases, reservation, self._epsilon(reservation, history))
                except BudgetError:
                    if reservation is None or reservation.reserved_charge is None:
                        raise
                    # The input was mended since a refusal, whose cost comes out of the release's own epsilon.
                    left = format_amount(reservation.reserved_charge.epsilon - reservation.charge.epsilon)
                    self._run(day, releases, reservation, left)
                return
            except ReusedError:
                # Another refresh of this day was faster, and may start from an earlier release than this one would.
                if reservation is not None:
                    raise

    def _vouch(self, day: str, release: Release, history: History) -> None:
        """Raises LedgerError for a published release that the ledger does not know as it is.

        So a ledger that was lost, or put back from an old copy, does not begin a new budget.
        """
        where = release.path
        if not history.entries:
            raise LedgerError(
                f"ledger: there is none at {self.config.ledger}, but {where} was charged to one; put it back from a "
                "copy, or correct `ledger` in the configuration"
            )
        if problem := disagreement(release, history):
            raise LedgerError(f"ledger: {where} holds a release that this ledger never charged as it stands: {problem}")
        charge = history.reservations[release.manifest["release_id"]].charge
        if (charge.dataset, str(charge.period)) != (self.config.dataset.casefold(), day):
            raise RequestError(f"output: {where} is of dataset {charge.dataset}; give each a folder of its own")

    def _stand(self, day: date, release: Release, history: History) -> None:
        """Brings the books and the page up to date for a release that stands already."""
        log_event("already_published", f"{day} is published already; nothing is charged", date=str(day))
        if not self.dry_run:
            reservation = history.reservations[release.manifest["release_id"]]
            release_id = reservation.charge.release_id
            CommitRelease(release_id, self.config.output, self.config.ledger).commit(release.path)
            self._tell_late(day, reservation)
        if flex_launch(self.settings):
            launch_nothing(self.settings)
        sys.stdout.write(f"{FileSystems.join(release.path, 'index.html')}\n")

    def _tell_late(self, day: date, reservation: Reservation) -> None:
        """Tells the operator of files that came after a published release was charged."""
        config = self.config
        secret = FileSecret(config.key_file) if config.key_file else SecretManagerSecret(str(config.key_secret))
        if reservation.charge.files and matching(self._pattern(day), limit=1):
            _, late, _ = select_input(secret, match_files(self._pattern(day)), reservation)
            log_late_files(late, reservation.charge.release_id)

    def _pattern(self, day: date) -> str:
        return str(FileSystems.join(self.config.input, f"dt={day}", "*.parquet"))

    def _run(
        self,
        day: date,
        releases: Mapping[str, Release],
        reservation: Reservation | None,
        epsilon: str | None,
    ) -> None:
        """Runs the job for a day. Raises NotReadyError where there are no data.

        epsilon: instead of the configured one.
        """
        config = self.config
        pattern = self._pattern(day)
        if "://" not in config.input and not os.path.isdir(config.input):
            raise RequestError(f"config: input: there is no folder {config.input}")
        if not matching(pattern, limit=1):
            raise NotReadyError(f"input: there are no data of {day} ({pattern}); nothing is charged")
        values: dict[str, Any] = {
            **config.options,
            "input": pattern,
            "output": self.folder(day),
            "overwrite": self.attempt > 1,
            "release_id": self.release_id(day),
            "ledger": config.ledger,
            "dataset": config.dataset,
            "period": Period(day, day),
            "budget": config.budget,
            "timeline": config.output,
            "min_users": config.min_users,
            "key_file": config.key_file,
            "key_secret": config.key_secret,
            "dry_run": self.dry_run,
        }
        if epsilon is not None:  # the most that the release may cost: it lowers what is configured and never raises it
            for name in ("epsilon", "group_epsilon"):
                configured = getattr(example_request(config), name, None)
                if configured is not None:
                    values[name] = format_amount(min(parse_amount(name, configured), parse_amount("epsilon", epsilon)))
        if (start := self._earlier(day, releases, reservation)) is not None:
            values["warm_start"] = start
        run_job(request_of(config.job, values), self.settings)

    def _epsilon(self, reservation: Reservation | None, history: History) -> str | None:
        """With what a release is resumed that was refused before; None for the configured epsilon."""
        if reservation is None:
            return None
        if reservation.reserved_charge is not None:
            configured = self.config.options.get("epsilon")
            most = reservation.reserved_charge.epsilon
            return format_amount(most if configured is None else min(most, parse_amount("epsilon", configured)))
        refused = {one.charge.release_id for one in history.refusals}
        return format_amount(reservation.charge.epsilon) if reservation.charge.release_id in refused else None

    def _earlier(self, day: date, releases: Mapping[str, Release], reservation: Reservation | None) -> str | None:
        """The folder of the release that the day's starts from: what was reserved, or else the last one before."""
        request = example_request(self.config)
        if not isinstance(request, HeatmapOptions) or not self.config.warm_start:
            return None
        grid = Grid(request.region, request.parameters.depth)
        for earlier in sorted((one for one in releases if one < str(day)), reverse=True):
            release = releases[earlier]
            if reservation is None:
                if release.manifest.get("job") == "heatmap" and release.grid == grid:
                    return release.path
            elif release.manifest["release_id"] == reservation.charge.starts_from:
                return release.path
        if reservation is not None and reservation.charge.starts_from is not None:
            raise RequestError(
                f"warm_start: {reservation.charge.release_id} was begun from release {reservation.charge.starts_from}, "
                "which is gone; give --attempt 2, which is charged anew"
            )
        return None


def run(request: RefreshRequest, beam_arguments: tuple[str, ...] = ()) -> int:
    """Runs the command. Raises SfumatoErrors; a backfill returns the exit status of days that have none."""
    config = read_config(request.config)
    runner = request
    if request.runner_config is None and config.runner_config is not None:
        runner = request.model_copy(update={"runner_config": config.runner_config})
    beam_arguments = (*flags_of(config.beam), *beam_arguments)
    refresh = Refresh(config, runner, request.attempt, request.dry_run, beam_arguments)
    if request.backfill is not None and flex_launch(refresh.settings):
        raise RequestError("backfill: a template starts one job a launch; launch it for each date")
    if request.backfill is None:
        refresh.publish(datetime.now(UTC).date() - timedelta(days=1) if request.date is None else request.date)
        return 0
    worst = 0
    for when in request.backfill.days():
        try:
            refresh.publish(when)
        except (NotReadyError, DataError) as error:  # of this day alone; the others may do
            worst = DataError.exit_code if DataError.exit_code in (worst, error.exit_code) else error.exit_code
            log_event("not_ready", f"{when}: {error}", logging.WARNING, date=str(when))
    return worst


def read_config(path: str) -> RefreshConfig:
    """A refresh's configuration, whose options make a request of its job. Raises RequestError."""
    try:
        settings = parse_yaml("config", path, read_file(path))
    except OSError as error:
        raise RequestError(f"config: {path} cannot be read ({type(error).__name__})") from None
    folder = path.rsplit("/", 1)[0] if "://" in path else os.path.dirname(os.path.abspath(path))
    config = RefreshConfig.read(settings, folder)
    check_known([config.job], [name for name, job in JOBS.items() if job.publishes], "config: job")
    names = set(request_class(config.job).model_fields)
    for name in config.options:
        if name in _OWN:
            raise RequestError(f"config: options: {name} is no option here; the refresh or the top of the file sets it")
    check_known(config.options, names - _OWN, "config: options")
    for name in config.beam:
        if name in (names | _OWN) - {"region"}:
            raise RequestError(f"config: beam: {name} is an option of sfumato's own; set it at the top or in options")
    example_request(config)
    return config


def example_request(config: RefreshConfig) -> Request:
    """The request of any day, without the day. Raises RequestError."""
    return request_of(config.job, {**config.options, "input": config.input, "output": config.output})
