"""`sfumato refresh`: publishes the release of a day, once, and updates the ledger and the page of all releases."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date, timedelta
from typing import Any

from apache_beam.io.filesystems import FileSystems

from sfumato.pipelines.command_line.run import request_of, run_job
from sfumato.pipelines.frame.console import identify
from sfumato.pipelines.frame.inputs import InputFile, has_logs, layout_of, log_late_files, match_files, select_input
from sfumato.pipelines.operations.published_nights import PublishedNights, clock_problem
from sfumato.pipelines.operations.refresh_config import (
    check_arguments,
    example_request,
    newest_day,
    options_of_day,
    read_config,
)
from sfumato.pipelines.runners.runner_settings import (
    RunnerSettings,
    flags_of,
    flex_launch,
    launch_nothing,
    settings_of,
)
from sfumato.schemas.errors import (
    BudgetError,
    DataError,
    LedgerError,
    NotReadyError,
    RefusedError,
    RequestError,
)
from sfumato.schemas.ledger import Period, Reservation, format_amount, parse_amount, parse_day
from sfumato.schemas.refresh import RefreshConfig
from sfumato.schemas.region import Grid
from sfumato.schemas.release import REMOVAL_FORMAT
from sfumato.schemas.requests.commands import RefreshRequest
from sfumato.schemas.requests.publish_request import RunnerOptions
from sfumato.schemas.rotation import MAX_COHORTS, Rotation
from sfumato.transforms.heatmap.request import HeatmapRequest
from sfumato.transforms.nights.plan import make_rotation_plan
from sfumato.transforms.observability.logs import log_event
from sfumato.transforms.privacy.ledger.charge_rules import ReusedError
from sfumato.transforms.privacy.ledger.history import History
from sfumato.transforms.privacy.ledger.ledger import open_ledger
from sfumato.transforms.privacy.secrets import FileSecret, SecretManagerSecret
from sfumato.transforms.release.catalog import dated_folder, is_pruned
from sfumato.transforms.release.published_release import Release, open_release
from sfumato.transforms.release.publishing import commit_release
from sfumato.transforms.release.release_folder import format_at

_LATE = "-late"  # ends the id of a correction
_MAX_ADDED = 31  # nights whose answers a release adds to the state that it starts from


@dataclass(frozen=True)
class Refresh:
    """A refresh: its configuration and its runner."""

    config: RefreshConfig  # the content of the configuration file
    config_file: str  # where it was read
    runner: RunnerOptions  # options of the runner
    attempt: int = 1  # 2 or more charges a day again, under another release id
    dry_run: bool = False  # whether to print forecasts only
    beam_arguments: tuple[str, ...] = ()  # Beam's options

    @property
    def settings(self) -> RunnerSettings:
        """Returns new settings for each run, because a run changes Beam's options."""
        return settings_of(self.runner, self.beam_arguments)

    def release_id(self, day: date) -> str:
        """Returns the id of a day's release."""
        return f"{self.config.dataset}-{day}" + (f"-{self.attempt}" if self.attempt > 1 else "")

    def folder(self, day: date) -> str:
        """Returns the folder of a day's release."""
        return dated_folder(self.config.output, day)

    def publish(self, day: date) -> None:
        """Publishes a day's release unless it is published already. Raises SfumatoErrors."""
        identify(job="refresh", release_id=self.release_id(day))
        log_event("day", f"{day}: release {self.release_id(day)}", date=str(day))
        while True:
            nights = PublishedNights.read(self.config, self.config_file)
            again = nights.published.get(str(day))
            if again is not None and self.attempt > 1 and again.charge.release_id != self.release_id(day):
                again = None
            nights.check(str(day), is_published=again is not None)
            existing, history = nights.releases.get(str(day)), nights.history
            is_ours = existing is not None and (
                self.attempt == 1 or existing.manifest["release_id"] == self.release_id(day)
            )
            if existing is not None and is_ours and (is_pruned(existing, history) or not existing.damage()):
                self._sync_published(day, existing, history)
                return
            if again is not None and again.pruned is not None:
                raise LedgerError(
                    f"ledger: {self.folder(day)} was pruned, and its manifest is damaged or missing; restore the "
                    "manifest from a copy"
                )
            if again is not None:
                self._make_again(day, nights, again)
                return
            reservation = history.reservations.get(self.release_id(day))
            if self._is_taken_down(day, reservation, nights.charged.get(str(day))):
                log_event("taken_down", f"{day}: was taken down; nothing was published", logging.WARNING, date=str(day))
                launch_nothing(self.settings)
                return
            try:
                try:
                    self._run(day, nights, reservation, self._epsilon(reservation, history))
                except BudgetError:
                    if reservation is None or reservation.reserved_charge is None:
                        raise
                    # The input was corrected after a refusal. The refusal's cost reduces the epsilon of this run.
                    remaining = format_amount(reservation.reserved_charge.epsilon - reservation.charge.epsilon)
                    self._run(day, nights, reservation, remaining)
                return
            except ReusedError:
                # Another process charged this day first, maybe with another warm start. Read its charge and try again.
                if reservation is not None:
                    raise

    def _is_taken_down(self, day: date, reservation: Reservation | None, newest: Reservation | None) -> bool:
        """Returns whether the day's release was taken down. A new attempt publishes the day again, with a new charge.

        day: the day. reservation: the charge of this attempt's release, if there is one. newest: the newest charge of
        the day, such as a correction's: an older one does not undo its removal.
        """
        if reservation is not None and reservation.removal is not None:
            return True
        if self.attempt == 1 and newest is not None and newest.removal is not None:
            return True
        return self.attempt == 1 and format_at(self.folder(day)) == REMOVAL_FORMAT

    def _make_again(self, day: date, nights: PublishedNights, charged: Reservation) -> None:
        """Publishes a day's damaged or lost release under the charge that it has: the bytes are the same."""
        release_id = charged.charge.release_id
        identify(job="refresh", release_id=release_id)
        corrected = release_id.removesuffix(_LATE)
        if corrected == release_id:
            epsilon = self._epsilon(charged, nights.history)
            self._run(day, nights, charged, epsilon, {"release_id": release_id})
        else:
            values = {"release_id": release_id, "corrects": corrected, "overwrite": True}
            self._run(day, nights, charged, format_amount(charged.charge.epsilon), values)

    def _sync_published(self, day: date, release: Release, history: History) -> None:
        """Updates the ledger and the page for a published release, and reports late files."""
        log_event("already_published", f"{day}: already published; nothing was charged", date=str(day))
        if not self.dry_run:
            reservation = history.reservations[release.manifest["release_id"]]
            release_id = reservation.charge.release_id
            commit_release(release.path, release_id, self.config.output, self.config.ledger)
            log_late_files(self._late_files(day, reservation), release_id)
        launch_nothing(self.settings)
        shown = self.config.output if is_pruned(release, history) else release.path
        sys.stdout.write(f"{FileSystems.join(shown, 'index.html')}\n")

    def _late_files(self, day: date, reservation: Reservation) -> list[InputFile]:
        """Returns the day's files that a charge does not cover."""
        if not reservation.charge.files or self._missing(day):
            return []
        config = self.config
        secret = FileSecret(config.key_file) if config.key_file else SecretManagerSecret(str(config.key_secret))
        request = example_request(config)
        files = match_files(self._logs(day), layout_of(request), request.where)
        return select_input(secret, files, reservation)[1]

    def correct(self, day: date) -> None:
        """Publishes a day's release again, once, if files arrived after it was charged. Raises SfumatoErrors."""
        late = self.config.late
        assert late is not None
        try:
            existing = open_release(self.folder(day))
        except RequestError:  # there is none
            return
        history = open_ledger(self.config.ledger).history()
        if existing.manifest.get("corrects") is not None or is_pruned(existing, history):
            return
        corrected = str(existing.manifest["release_id"])
        release_id = f"{corrected}{_LATE}"
        reservation = history.reservations.get(release_id)
        if reservation is None and not self._late_files(day, history.reservations[corrected]):
            return
        nights = PublishedNights.read(self.config, self.config_file)  # all are read only for a correction
        nights.check(str(day))
        identify(job="refresh", release_id=release_id)
        log_event("correction", f"{day}: release {release_id} corrects {corrected}", date=str(day))
        values = {"release_id": release_id, "corrects": corrected, "overwrite": True}
        self._run(day, nights, reservation, format_amount(parse_amount("late: epsilon", late.epsilon)), values)

    def _logs(self, day: date) -> list[str]:
        """Returns the folders of a day's files."""
        days = [day + timedelta(days=offset) for offset in self.config.folders]
        return [str(FileSystems.join(self.config.input, f"dt={one}")) for one in days]

    def _missing(self, day: date) -> list[str]:
        """Returns the folders of a day that hold no data."""
        form = example_request(self.config).input_format
        return [folder for folder in self._logs(day) if not has_logs(folder, form)]

    def _run(
        self,
        day: date,
        nights: PublishedNights,
        reservation: Reservation | None,
        epsilon: str | None,
        given: Mapping[str, Any] | None = None,
    ) -> None:
        """Runs the job for a day. Raises NotReadyError if there are no data.

        epsilon: an upper limit of the configured epsilon; None for no limit.
        given: options instead of the day's own.
        """
        config = self.config
        if "://" not in config.input and not os.path.isdir(config.input):
            raise RequestError(f"config: input: folder not found: {config.input}")
        if missing := self._missing(day):
            raise NotReadyError(f"input: no data for {day} ({', '.join(missing)}); nothing was charged")
        values: dict[str, Any] = {
            **options_of_day(config, day),
            "input": self._logs(day),
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
            **(given or {}),
        }
        if config.rotation > 1:
            values["rotation"] = Rotation.of_night(day, config.rotation)
        if self._follows_nights(day):
            values["night"] = day
        if epsilon is not None:
            for name in ("epsilon", "group_epsilon"):
                configured = getattr(example_request(config), name, None)
                if configured is not None:
                    values[name] = format_amount(min(parse_amount(name, configured), parse_amount("epsilon", epsilon)))
        if start := self._earlier(day, nights, reservation):
            values["warm_start"] = start
        run_job(request_of(config.job, values), self.settings)
        if self.dry_run and (advice := self._advice(day, nights.complete)) is not None:
            sys.stdout.write(f"\nadvice     {advice}\n")

    def _advice(self, day: date, releases: Mapping[str, Release]) -> str | None:
        """Returns advice if another number of cohorts has a much smaller error for the last release's users."""
        limit, request = self.config.budget[-1], example_request(self.config)
        earlier = [release for name, release in sorted(releases.items()) if name < str(day)]
        users = float(((earlier[-1].manifest.get("results") or {}) if earlier else {}).get("users", 0))
        if not isinstance(request, HeatmapRequest) or users < 1 or not 1 < limit.days <= MAX_COHORTS:
            return None
        epsilon, delta = float(limit.epsilon), float(limit.delta)
        try:
            month = replace(request.parameters, epsilon=epsilon, delta=delta, noise="auto", population=None)
            parameters = replace(month, users=round(users))
            return make_rotation_plan(parameters, limit.days).advice(self.config.rotation)
        except RequestError:  # such as a map with slots
            return None

    def _epsilon(self, reservation: Reservation | None, history: History) -> str | None:
        """Returns the epsilon that the charge of an earlier attempt leaves; None for the configured epsilon."""
        if reservation is None:
            return None
        if reservation.reserved_charge is not None:
            configured = self.config.options.get("epsilon")
            reserved = reservation.reserved_charge.epsilon
            return format_amount(reserved if configured is None else min(reserved, parse_amount("epsilon", configured)))
        refused = {refusal.charge.release_id for refusal in history.refusals}
        return format_amount(reservation.charge.epsilon) if reservation.charge.release_id in refused else None

    def _follows_nights(self, day: date) -> bool:
        """Returns whether a night's map is estimated together with those of the nights before."""
        config = self.config
        if config.job != "heatmap" or not config.warm_start:
            return False
        try:
            example_request(config, night=day)
        except RequestError:  # such as a map with slots; `example_request` is in order
            return False
        return True

    def _earlier(self, day: date, nights: PublishedNights, reservation: Reservation | None) -> list[str]:
        """Returns the releases that the day's release starts from: those of its charge, else the last before the day.

        Returns:
            Their folders, oldest first; none without a warm start.

        Raises LedgerError: one of them is gone, or a file that is read of it is gone or changed.
        """
        request = example_request(self.config)
        if not isinstance(request, HeatmapRequest) or not self.config.warm_start:
            return []
        if reservation is not None:
            by_id = {release.manifest["release_id"]: release for release in nights.complete.values()}
            ids = [one for one in (reservation.charge.starts_from or "").split(",") if one]
            lost = {one.charge.release_id: name for name, one in nights.published.items() if one.pruned is None}
            for one in ids:
                if one in by_id:
                    continue
                what = f"{reservation.charge.release_id} starts from release {one}, which is missing"
                if one in lost:
                    raise LedgerError(f"ledger: {nights.folder(lost[one])}: {what}; {nights.remedy(lost[one])}")
                raise RequestError(f"warm_start: {what}; use --attempt 2, which is a new charge")
            starts = [by_id[one] for one in ids]
            nights.check_files(starts)
            return [release.path for release in starts]
        grid = Grid(request.region, request.parameters.depth)
        before = [
            release
            for name, release in nights.complete.items()
            if name < str(day) and release.manifest.get("job") == "heatmap" and release.grid == grid
        ]
        starts = list(newest_nights(before) if self._follows_nights(day) else before[-1:])
        if nights.is_stale(starts, day):
            return self._earlier(day, PublishedNights.read(self.config, self.config_file), reservation)
        nights.check_starts(starts, day)
        return [release.path for release in starts]


def newest_nights(before: Sequence[Release]) -> Sequence[Release]:
    """Returns the newest release whose nights include all earlier ones, and those after it, whose answers it lacks.

    There are none after it unless a night was published after a later one.

    before: releases in the order of their nights.
    """
    for last in range(len(before) - 1, max(len(before) - 1 - _MAX_ADDED, -1), -1):
        stated = before[last].manifest.get("nights")
        if not isinstance(stated, Mapping):
            break
        periods = [Period.parse(text) for text in stated["rests_on"]]
        earlier = (one.manifest["nights"]["night"] for one in before[:last] if "nights" in one.manifest)
        nights = [night for text in earlier if (night := parse_day("night", text)) > periods[0].first]
        if all(any(period.first <= night <= period.last for period in periods) for night in nights):
            return before[last:]
    return before[-1:]


def run(request: RefreshRequest, beam_arguments: tuple[str, ...] = ()) -> int:
    """Runs the command. Raises SfumatoErrors; a backfill returns the exit status of the days that failed."""
    config = read_config(request.config)
    runner = request
    if request.runner_config is None and config.runner_config is not None:
        runner = request.model_copy(update={"runner_config": config.runner_config})
    check_arguments(config.job, request.config, beam_arguments)
    beam_arguments = (*flags_of(config.beam), *beam_arguments)
    refresh = Refresh(config, request.config, runner, request.attempt, request.dry_run, beam_arguments)
    if request.backfill is not None and flex_launch(refresh.settings):
        raise RequestError("backfill: a template starts only one job per launch; launch it with --date for each day")
    # Not refused: one entry that was written under a fast clock would stop all nights until its time has come.
    if (found := clock_problem(open_ledger(config.ledger).history())) is not None:
        log_event("clock", f"clock: probably wrong: {found}", logging.WARNING)
    if request.backfill is None:
        yesterday = newest_day(config)
        refresh.publish(yesterday if request.date is None else request.date)
        if config.late is not None and not (request.dry_run or flex_launch(refresh.settings)):
            _correct(refresh, [yesterday - timedelta(days=one) for one in range(config.late.days, -1, -1)])
        return 0
    worst = 0
    for when in request.backfill.days():
        try:
            refresh.publish(when)
        except (NotReadyError, DataError) as error:  # the other days may succeed
            worst = DataError.exit_code if DataError.exit_code in (worst, error.exit_code) else error.exit_code
            log_event("not_ready", f"{when}: {error}", logging.WARNING, date=str(when))
    return worst


def _correct(refresh: Refresh, days: Sequence[date]) -> None:
    """Corrects the releases of some days. One that cannot be corrected is logged, and stays as it is.

    Raises LedgerError: the ledger is damaged. The night itself is published.
    """
    for day in days:
        try:
            refresh.correct(day)
        except (BudgetError, RequestError, NotReadyError, DataError, RefusedError) as error:
            identify(job="refresh")
            fit = "; lower the epsilon of the nights so that corrections fit" if isinstance(error, BudgetError) else ""
            text = f"{day}: late files are ignored: {error}{fit}"
            log_event("not_corrected", text, logging.WARNING, date=str(day))
