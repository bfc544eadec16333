"""Runs of a job for an audit, and everything that they leave."""

from __future__ import annotations

import io
import logging
import shutil
import tempfile
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from sfumato.pipelines.command_line.cli import CRASHED
from sfumato.pipelines.command_line.run import release_job
from sfumato.pipelines.frame.console import Console, shown_on
from sfumato.pipelines.frame.release_run import run_release
from sfumato.pipelines.operations.audit import gather
from sfumato.pipelines.operations.readers import release_view
from sfumato.pipelines.runners.failures import error_of
from sfumato.pipelines.runners.runner_settings import RunnerSettings
from sfumato.schemas.errors import RequestError
from sfumato.transforms.audit.comparison import Outcome
from sfumato.transforms.audit.facts import of_database, of_files, of_records, of_text, single
from sfumato.transforms.audit.findings import KEY, Finding, audit
from sfumato.transforms.audit.measurements import measurements
from sfumato.transforms.audit.neighbours import Logs
from sfumato.transforms.privacy.secrets import create_key_file
from sfumato.transforms.release.builder import page_files, without_pictures
from sfumato.transforms.release.metadata import csv_bytes
from sfumato.transforms.release.published_release import Release, open_release


@dataclass
class Audit:
    """A job that an audit runs, again and again, in one folder that only its user can read.

    Attributes:
        job: its name.
        values: its options, without those of a place, a key or a ledger.
        settings: its runner.
        logs: what it runs on.
        columns: those that it reads.
        folder: a new folder of the runs.
    """

    job: str
    values: Mapping[str, Any]
    settings: RunnerSettings
    logs: Logs
    columns: Sequence[str]
    folder: Path

    def __post_init__(self) -> None:
        self._unchanged = self.folder / uuid.uuid4().hex
        self.logs.write(self._unchanged, "", [])

    def outcome(
        self, key: str, user: str = "", rows: Sequence[Mapping[str, Any]] = (), bound: bool = False,
        renders: bool = False, **options: Any,
    ) -> Outcome:  # fmt: skip
        """Runs the job on logs in which a user has these records.

        Args:
            key: path of the key.
            user: whose records are replaced; empty for nobody's.
            rows: their records.
            bound: whether the key is bound to the logs, as in every other run than an audit's.
            renders: whether to render the pages again.
            options: that differ from the job's.
        """
        place = self.folder / "run"
        shutil.rmtree(place, ignore_errors=True)
        (place / "tmp").mkdir(parents=True)
        self.logs.write(place / "logs", user, rows, self._unchanged)
        known = {*self.folder.rglob("*"), place / "ledger.db"}
        given = {
            **self.values, "input": f"{place}/logs", "output": f"{place}/release", "release_id": "audit",
            "key_file": key, "ledger": f"{place}/ledger.db", "dataset": "audit", "budget": "100000:0.5/1d", **options,
        }  # fmt: skip
        given = {name: value for name, value in given.items() if value is not None}
        end: dict[str, object] = {"exit status": 0}
        message = None
        with _captured(self.job, place / "tmp") as captured, nullcontext() if renders else without_pictures():
            try:
                run_release(release_job(self.job, given), self.settings, audit=not bound)
            except Exception as error:  # noqa: BLE001  (a crash is what the run left)
                refusal = error_of(error)
                end["exit status"] = CRASHED if refusal is None else refusal.exit_code
                message = str(error if refusal is None else refusal)
                end |= of_text("the message", message)
        left, ledger = set(self.folder.rglob("*")) - known, place / "ledger.db"
        facts = {
            **of_files(left, place), "the end": single(end), **captured.facts(),
            **({"the ledger": of_database(ledger)} if ledger.exists() else {}),
        }  # fmt: skip
        for path in left:
            if place not in path.parents and path.is_file():
                path.unlink()
        if not (place / "release" / "manifest.json").exists():
            return Outcome(facts, message=message or "no release")
        try:
            release = open_release(str(place / "release"))
        except RequestError as error:  # a notice of refusal
            return Outcome(facts, message=message or str(error))
        if "results" not in release.manifest:
            return Outcome(facts, message=message)
        unrendered = _unrendered(release) if renders else ()
        return Outcome(facts, tuple(measurements(release)), release.manifest["privacy"], message, unrendered)

    def key(self) -> str:
        """Returns the path of a new key."""
        path = str(self.folder / f"{uuid.uuid4().hex}.key")
        create_key_file(path)
        return path

    def of_release(self) -> list[Finding]:
        """Returns the findings on the release of the last run, which needs no secret key here."""
        place = self.folder / "run"
        if not (place / "release" / "manifest.json").exists():
            return []
        found = audit(gather(str(place / "release"), str(place / "ledger.db")))
        return [one for one in found if one.check != KEY]


def _unrendered(release: Release) -> tuple[str, ...]:
    """Returns the pages, pictures and texts that are not what the published tables render."""
    made = page_files(release_view(release))
    names = release.listed or {}
    for name in names:
        if name.endswith(".csv") and (table := f"{name.removesuffix('.csv')}.parquet") in names:
            columns = release.arrow_table(table)
            made[name] = csv_bytes(columns.drop_columns([one for one in ["geometry"] if one in columns.column_names]))
    return tuple(name for name, content in made.items() if name in names and release.read(name) != content)


class Runs:
    """Runs with the same options on the same logs, each under a key of its own, made when they are needed."""

    def __init__(self, audited: Audit, **options: Any):
        self.audited, self.options = audited, options
        self.keys: list[str] = []
        self._made: list[Outcome] = []

    def first(self, number: int) -> list[Outcome]:
        """Returns the first runs."""
        while len(self._made) < number:
            self.keys.append(self.audited.key())
            self._made.append(self.audited.outcome(self.keys[-1], **self.options))
        return self._made[:number]


class _Captured(Console):
    """What a run writes to its logs, to standard output and to standard error, instead of showing it."""

    def __init__(self, job: str):
        super().__init__(job, "text", verbose=False)
        self._records: list[tuple[str, str, object]] = []
        self.streams = {"stdout": io.StringIO(), "stderr": io.StringIO()}

    def emit(self, record: logging.LogRecord) -> None:
        """Keeps a record, with all the digits that a log in JSON has."""
        name = f"{record.name} {vars(record).get('event', '')}"
        self._records.append((name, record.getMessage(), vars(record).get("fields")))

    def facts(self) -> dict[str, pd.DataFrame]:
        """Returns them as facts."""
        lines = {name: text.getvalue().splitlines() for name, text in self.streams.items()}
        records = [*self._records, *((name, line, None) for name, each in lines.items() for line in each)]
        return {"the log": of_records(records)}


@contextmanager
def _captured(job: str, folder: Path) -> Iterator[_Captured]:
    """Captures what a run writes. folder: of its temporary files."""
    found, before = _Captured(job), tempfile.tempdir
    loggers = [log for log in logging.root.manager.loggerDict.values() if isinstance(log, logging.Logger)]
    kept = [(log, log.handlers, log.propagate) for log in loggers]
    for log in loggers:
        log.handlers, log.propagate = [], True
    tempfile.tempdir = str(folder)
    try:
        with redirect_stdout(found.streams["stdout"]), redirect_stderr(found.streams["stderr"]), shown_on(found):
            yield found
    finally:
        tempfile.tempdir = before
        for log, handlers, propagate in kept:
            log.handlers, log.propagate = handlers, propagate
