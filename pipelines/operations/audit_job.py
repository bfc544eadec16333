"""`sfumato audit --job`: runs a job on logs, on their neighbours and under several keys, and judges what leaves it."""

from __future__ import annotations

import io
import logging
import os
import shutil
import sys
import tempfile
import time
import uuid
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd

from sfumato.pipelines.command_line.cli import CRASHED, parse_command
from sfumato.pipelines.command_line.run import JOBS, release_job, request_class
from sfumato.pipelines.frame.console import Console, shown_on
from sfumato.pipelines.frame.inputs import layout_of, match_files
from sfumato.pipelines.frame.release_run import run_release
from sfumato.pipelines.operations.audit import check_report, gather, write_report
from sfumato.pipelines.operations.readers import release_view
from sfumato.pipelines.runners.failures import error_of
from sfumato.pipelines.runners.runner_settings import RunnerSettings, runner_settings
from sfumato.schemas.errors import CheckFailedError, RequestError
from sfumato.schemas.requests.publish_request import ReleaseRequest
from sfumato.transforms.audit.comparison import (
    Change,
    Outcome,
    Separation,
    below_thresholds,
    changes,
    constant,
    equal_noise,
    is_drawn,
    leaks,
    named,
    separating_events,
)
from sfumato.transforms.audit.facts import of_fields, of_files, of_records, of_text, single
from sfumato.transforms.audit.findings import (
    BINDING,
    CHANGES,
    FACTS,
    FRESH,
    JOB_LIMITS,
    KEY,
    NOISE,
    Finding,
    audit,
    report_of_job,
    verdict,
)
from sfumato.transforms.audit.measurements import measurements
from sfumato.transforms.audit.neighbours import Logs, variants
from sfumato.transforms.audit.noise_tests import FALSE_ALARM, noise_report
from sfumato.transforms.audit.request import JobAuditRequest
from sfumato.transforms.audit.sequential import EpsilonTest
from sfumato.transforms.inputs.log_reader import format_by_name
from sfumato.transforms.io.files import is_remote
from sfumato.transforms.privacy.ledger.ledger import open_ledger
from sfumato.transforms.privacy.secrets import create_key_file
from sfumato.transforms.release.builder import page_files
from sfumato.transforms.release.metadata import csv_bytes
from sfumato.transforms.release.published_release import Release, open_release

_KEYS = 4  # under which the job runs on the same logs
_THOROUGH = 3  # users with other records of every kind; of the others those of another user alone
_MOST_EXTREMES = 4  # users who hold the smallest or the largest value of a column
_LARGE = 3  # kinds of records that come first, for the runs that are refused
_DIFFERENT_USERS = ("no record", "unusable records")  # records with which the number of users changes
_SMALL = 0.5  # the epsilon at which a suspicious fact is tried again
_CONFIRMED = 12  # keys under which it must be the same
_REPEATED = 8  # pairs of runs with equal noise, which are a violation
_SHARE = 0.8  # of noisy facts that are equal where noise is
_NOBODY = 10**9  # users that no logs have
_LEVEL = 1e-6  # the probability that fresh keys separate a fact of right code
_OWN = (
    "input", "output", "overwrite", "input_format", "key_file", "key_secret", "seed", "release_id", "ledger", "dataset",
    "budget", "timeline", "corrects", "dry_run", "allow_reuse", "runner_config", "verbose", "log_format",
)  # fmt: skip
_WITHOUT_KEY = {"key_file": None, "release_id": None, "ledger": None, "dataset": None, "budget": None, "period": None}


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
        with _captured(self.job, place / "tmp") as captured:
            try:
                run_release(release_job(self.job, given), self.settings, audit=not bound)
            except Exception as error:  # noqa: BLE001  (a crash is what the run left)
                refusal = error_of(error)
                end["exit status"] = CRASHED if refusal is None else refusal.exit_code
                message = str(error if refusal is None else refusal)
                end |= of_text("the message", message)
        charges = open_ledger(str(place / "ledger.db")).history().charges if (place / "ledger.db").exists() else []
        left = set(self.folder.rglob("*")) - known
        facts = {
            **of_files(left, place), "the end": single(end), **captured.facts(),
            "charges": single(dict(of_fields("", [asdict(one) for one in charges]))),
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


class _Runs:
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


def run(request: JobAuditRequest, arguments: Sequence[str]) -> None:
    """Runs the command. arguments: the options of the job. Raises RequestError or CheckFailedError."""
    name, parsed, settings = _parsed(request, arguments)
    check_report(request.output, request.sign)
    with tempfile.TemporaryDirectory(prefix="sfumato-audit-") as folder:
        audited = _audit_of(name, parsed, settings, Path(folder))
        findings = list(examine(audited, request.users, request.minutes, show=True))
    sys.stdout.write("\n".join([*map(str, findings), ""]) + "\n")
    if request.output is not None:
        write_report(report_of_job(name, audited.values, findings), request.output, request.sign)
        if not is_remote(request.output):
            os.chmod(request.output, 0o600)
    text = verdict(findings, JOB_LIMITS)
    if any(one.result == "violation" for one in findings):
        raise CheckFailedError(text)
    sys.stdout.write(f"{text}\n")


def first_violation(request: JobAuditRequest, arguments: Sequence[str]) -> str:
    """Returns the first violation that an audit finds, in words; empty without one. Raises RequestError."""
    name, parsed, settings = _parsed(request, arguments)
    with tempfile.TemporaryDirectory(prefix="sfumato-audit-") as folder:
        findings = examine(_audit_of(name, parsed, settings, Path(folder)), request.users, request.minutes)
        return next((f"{one.check} ({one.why})" for one in findings if one.result == "violation"), "")


def _parsed(request: JobAuditRequest, arguments: Sequence[str]) -> tuple[str, ReleaseRequest, RunnerSettings]:
    """Returns the job's name, its request and its runner. Raises RequestError."""
    name, rest = request.job, list(arguments)
    if rest and f"{name} {rest[0]}" in JOBS:
        name = f"{name} {rest.pop(0)}"
    kind = request_class(name)
    if not issubclass(kind, ReleaseRequest):
        raise RequestError(f"job: {name} publishes no release; name one of {', '.join(_publishing())}")
    parsed, beam_arguments = parse_command(kind, [*rest, "--output", "unused"])
    return name, parsed, runner_settings(request.runner_config, beam_arguments)


def _publishing() -> list[str]:
    return [name for name, job in JOBS.items() if job.publishes]


def _audit_of(name: str, request: ReleaseRequest, settings: RunnerSettings, folder: Path) -> Audit:
    """Returns the audit of a job with a request's options, whose logs it reads into memory."""
    given = {option: getattr(request, option) for option in request.model_fields_set if option not in _OWN}
    job = release_job(name, {**given, "input": request.input, "output": "unused"})
    files = match_files(request.input, layout_of(request, job.columns()), request.where)
    given.setdefault("period", "2026-01-01")
    kind = request.input_format or format_by_name(files[0].path) or "parquet"
    user_id = getattr(request, "user_id_column", "user_id")
    logs = Logs.read([file.path for file in files], kind, user_id)
    return Audit(name, given, settings, logs, layout_of(request, job.columns()).columns, folder)


def examine(audited: Audit, users: str, minutes: float, show: bool = False) -> Iterator[Finding]:
    """Yields the findings on a job.

    users: whose records are replaced, see `_audited_users`. minutes: for runs with fresh keys. show: the progress.
    """
    tried, runs = list(_neighbours(audited, users, os.urandom(32))), _Runs(audited)
    own = runs.first(_KEYS)
    if own[0].message is not None:
        raise RequestError(f"job: {own[0].message}")
    yield from audited.of_release()
    alone = replace(audited, logs=audited.logs.with_one_row())
    small = min(own[0].privacy.get("epsilon") or _SMALL, _SMALL)
    facts = _Facts(audited, small, _Runs(audited, epsilon=small))
    worst: dict[str, Change] = {}
    missing: set[str] = set()
    for number, neighbour in enumerate(tried):
        if show:
            _show(f"neighbour {number + 1} of {len(tried)}")
        renders = neighbour.records[0] == tried[0].records[0]
        other = audited.outcome(runs.keys[0], *neighbour.records, renders=renders)
        facts.compare(own, other, neighbour)
        found = changes(own[0], other, neighbour.changes_users)
        # Under another key the noisy counts may lead to the same queries.
        for base, key in zip(own[1:], runs.keys[1:], strict=True):
            if all(change.size is not None for change in found):
                break
            found = changes(base, audited.outcome(key, *neighbour.records), neighbour.changes_users)
        for change in found:
            name = change.measurement.name
            if change.size is None:
                missing.add(name)
            elif name not in worst or change.size > (worst[name].size or 0):
                worst[name] = change
    if show:
        _show("runs that are refused")
    refused = _Runs(audited, min_users=_NOBODY)
    for neighbour in tried[:_LARGE]:
        other = audited.outcome((refused.first(2), refused.keys[0])[1], *neighbour.records, min_users=_NOBODY)
        facts.compare(refused.first(2), other, neighbour, min_users=_NOBODY)
    yield from facts.findings(len(tried))
    yield from _of_changes(worst, missing - worst.keys())
    if show:
        _show("runs of which the key is bound")
    yield from _of_binding(alone, small)
    judged = _Runs(alone).first(_KEYS + 1)
    pairs = list(zip(judged[1::2], judged[2::2], strict=True))
    if minutes:
        found_fresh, more = _of_fresh_keys(alone, tried[0], judged, minutes, show)
        yield from found_fresh
        pairs += more
    yield from _of_noise(judged, pairs, own, facts.small)
    if show:
        _show("")


class _Facts:
    """The facts that follow from a user.

    A fact that differs between neighbours under one key, and is the same under _KEYS keys, may be one with little
    noise. So it is tried again at a small epsilon, under _CONFIRMED keys on the logs and on the neighbour. By the
    definition of privacy a fact of right code is the same under all of them, and differs, with a probability of at most
    (e^epsilon / (1 + e^epsilon))^(2 (_CONFIRMED - 1)): 3e-5 at epsilon 0.5.
    """

    def __init__(self, audited: Audit, epsilon: float, small: _Runs):
        self.audited, self.epsilon, self.small = audited, epsilon, small
        self.leaked: dict[str, str] = {}
        self.unclear: set[str] = set()
        self.seen = 0
        self._refused = _Runs(audited, epsilon=epsilon, min_users=_NOBODY)

    def compare(self, own: Sequence[Outcome], other: Outcome, neighbour: _Neighbour, **options: Any) -> None:
        """Compares runs under several keys with a neighbour's under the first. options: of these runs."""
        self.seen = max(self.seen, sum(table.size for table in own[0].facts.values()))
        self.leaked |= {f"{name} is not what the tables render": neighbour.name for name in other.unrendered}
        known = self.leaked.keys() | self.unclear
        cells = {cell for cell in leaks(own, other) if named(cell) not in known}
        runs, others = self._refused if options else self.small, list[Outcome]()
        for number in range(2, _CONFIRMED + 1):
            cells = {cell for cell in cells if constant(runs.first(number), cell)}
            if not cells:
                return
        for _ in range(_CONFIRMED):
            others.append(self.audited.outcome(self.audited.key(), *neighbour.records, **options, epsilon=self.epsilon))
            cells = {cell for cell in cells if constant(others, cell)}
            if not cells:
                return
        for cell in cells:
            if others[0].fact(cell) != runs.first(1)[0].fact(cell):
                self.leaked[named(cell)] = neighbour.name + ", in a refused run" * bool(options)
            else:
                self.unclear.add(named(cell))

    def findings(self, runs: int) -> Iterator[Finding]:
        """Yields the findings after all runs."""
        if self.leaked:
            texts = [f"{name} ({why})" for name, why in sorted(self.leaked.items())]
            yield Finding(FACTS, "violation", f"{'; '.join(texts[:5])} follows from a user, and not from the key")
        else:
            text = f"{runs} runs on neighbours, {self.seen:,} cells, fields, numbers of lines and files in each"
            yield Finding(FACTS, "holds", text)
        if unclear := sorted(self.unclear - self.leaked.keys()):
            text = f"{'; '.join(unclear[:5])}: the same under {_KEYS} keys, and gone at epsilon {self.epsilon:g}"
            yield Finding(FACTS, "not checked", text)


@dataclass(frozen=True)
class _Neighbour:
    """name: of the changed records. records: the user and their records."""

    name: str
    records: tuple[str, list[dict[str, Any]]]

    @property
    def changes_users(self) -> bool:
        return self.name in _DIFFERENT_USERS


def _audited_users(logs: Logs, text: str, draws: bytes) -> list[str]:
    """Returns users: as many as a number states, or those with the names, or in a file of them. Raises RequestError."""
    if text.isdecimal():
        drawn = logs.drawn(int(text), draws)
        return list(dict.fromkeys([*drawn[:1], *logs.at_extremes()[:_MOST_EXTREMES], *drawn[1:]]))[: int(text)]
    names = Path(text).read_text().split("\n") if Path(text).is_file() else text.split(",")
    users = list(dict.fromkeys(name.strip() for name in names if name.strip()))
    if missing := [user for user in users if not logs.rows_of(user)]:
        raise RequestError(f"users: {missing[0]} has no record in the logs")
    return users


def _neighbours(audited: Audit, users: str, draws: bytes) -> Iterator[_Neighbour]:
    chosen, corners = _audited_users(audited.logs, users, draws), _corners(audited.values)
    donors = audited.logs.drawn(len(chosen) + 1, draws)
    for number, user in enumerate(chosen):
        donor = next(one for one in reversed(donors[number:] + donors[:number]) if one != user)
        for name, rows in variants(audited.logs, user, donor, corners, draws, number == 0).items():
            yield _Neighbour(name, (user, rows))
            if number >= _THOROUGH:
                break


def _corners(values: Mapping[str, Any]) -> list[dict[str, float]]:
    """Returns places at the corners of the map, where records have coordinates in degrees."""
    region = values.get("region")
    if region is None or {"geometry_column", "cell_column", "coordinates", "origin"} & values.keys():
        return []
    axes = [values.get(f"{axis}_column", axis) for axis in ("latitude", "longitude")]
    places = [(lat, lon) for lat in (region.south, region.north) for lon in (region.west, region.east)]
    return [dict(zip(axes, place, strict=True)) for place in places]


def _of_changes(worst: Mapping[str, Change], missing: Collection[str]) -> Iterator[Finding]:
    broken = [change for change in worst.values() if change.is_larger]
    if broken:
        texts = [f"{one.measurement.name}: by {one.size:.6g}, stated {one.measurement.bound:.6g}" for one in broken]
        yield Finding(CHANGES, "violation", "; ".join(texts))
    elif worst:
        texts = [f"{name}: by {one.size:.4g} of {one.measurement.bound:.4g}" for name, one in worst.items()]
        yield Finding(CHANGES, "holds", "; ".join(texts))
    else:
        yield Finding(CHANGES, "not checked", "the release has no noisy count of its own, only estimates")
    if missing:
        names = ", ".join(sorted(missing))
        yield Finding(CHANGES, "not checked", f"{names}: the noisy counts before it led to other queries in every run")


def _of_binding(alone: Audit, epsilon: float) -> Iterator[Finding]:
    """Yields the finding on runs as they are published, whose key is bound to all that they depend on."""
    others: dict[str, tuple[Audit, dict[str, Any]]] = {}
    for place, share in (("first", 0.0), ("middle", 0.5), ("last", 1.0)):
        if (swapped := alone.logs.with_swapped_rows(share, alone.columns)) is not None:
            others[f"values of the {place} record"] = replace(alone, logs=swapped), {}
    others |= {"release_id": (alone, {"release_id": "other"}), "epsilon": (alone, {"epsilon": epsilon / 2})}
    others["no key"] = (alone, {**_WITHOUT_KEY})
    equal, scaled, runs = [], [], _Runs(alone, bound=True, epsilon=epsilon)
    for name, (audited, options) in others.items():
        for number in range(_REPEATED):
            *_, first, second = runs.first(number + 2)
            changed = {"bound": True, "epsilon": epsilon, **options}
            if name == "no key":
                first = audited.outcome("", **changed)
            other = audited.outcome(runs.keys[number], **changed)
            if other.message is not None:
                yield Finding(BINDING, "not checked", f"other {name}: {other.message}")
                break
            if equal_noise(first, second, other) < _SHARE:
                scaled += noise_report(second, [(first, other)]).faults if name == "epsilon" else []
                break
        else:
            equal.append(name)
    if equal or scaled:
        texts = [f"with other {name} the noise is the same" for name in equal] + scaled
        yield Finding(BINDING, "violation", "; ".join(texts))
    else:
        yield Finding(BINDING, "holds", f"other noise with other {', '.join(others)}")


def _of_noise(
    judged: Sequence[Outcome], pairs: Sequence[tuple[Outcome, Outcome]], own: Sequence[Outcome], small: _Runs
) -> Iterator[Finding]:
    """Yields the findings on runs under different keys on the same logs, in which no record is left to choose."""
    report = noise_report(judged[0], pairs)
    broken = report.faults + sorted({text for one in (*judged, *own) for text in below_thresholds(one)})
    # At a large epsilon tables may be equal; at a small one they are with a probability below 1e-6.
    if not (is_drawn(own) or is_drawn(small.first(2)) or is_drawn(small.first(_CONFIRMED))):
        broken.append("all tables are the same under every key")
    if broken:
        yield Finding(NOISE, "violation", "; ".join(broken))
    elif report.judged:
        text = f"{', '.join(report.judged)}, in {len(pairs)} pairs of runs; a false alarm has p below {FALSE_ALARM:g}"
        yield Finding(NOISE, "holds", text)
    if report.weak:
        yield Finding(NOISE, "not checked", f"too few counts of {', '.join(report.weak)}: give more --minutes")
    elif not report.judged and not broken:
        yield Finding(NOISE, "not checked", "the release states the noise of no count of its own")


def _of_fresh_keys(
    alone: Audit, neighbour: _Neighbour, judged: Sequence[Outcome], minutes: float, show: bool
) -> tuple[list[Finding], list[tuple[Outcome, Outcome]]]:
    """Bounds epsilon from below by runs with fresh keys, with a user and without them; see `sequential`.

    Returns the findings, and pairs of runs on the same logs. judged: runs under several keys.
    """
    until, privacy = time.monotonic() + 60 * minutes, judged[0].privacy
    user, rows = neighbour.records
    donated = alone.outcome(judged_key := alone.key(), user, rows[:1])
    events = separating_events([alone.outcome(judged_key), *judged], donated)
    if "epsilon" not in privacy:
        return [Finding(FRESH, "not checked", "the release states no epsilon")], []
    test, apart, made = (
        EpsilonTest(max(len(events), 1), privacy["delta"]),
        Separation(),
        list[tuple[Outcome, Outcome]](),
    )
    while time.monotonic() < until and not test.refutes(privacy["epsilon"]):
        pair = alone.outcome(alone.key()), alone.outcome(alone.key(), user, [])
        made.append(pair)
        apart.add(*pair)
        test.add([tuple(event.holds(one) for one in pair) for event in events] or [(False, False)])
        if show:
            _show(f"{test.pairs} pairs of runs with fresh keys: epsilon is at least {test.lower_bound():.3g}")
    text = f"at least {test.lower_bound():.3g} after {test.pairs} pairs of runs, stated {privacy['epsilon']:.4g}"
    found = [Finding(FRESH, "violation" if test.refutes(privacy["epsilon"]) else "holds", text)]
    if cells := apart.found(privacy["epsilon"], privacy["delta"], _LEVEL):
        names = "; ".join(sorted({named(cell) for cell in cells})[:5])
        found.append(Finding(FRESH, "violation", f"{names} tells every run with a user from those without"))
    sides = ([one for one, _ in made], [other for _, other in made])
    return found, [pair for side in sides for pair in zip(side[::2], side[1::2], strict=False)]


def _show(text: str) -> None:
    """Shows the progress, in place on a terminal. An empty text removes it."""
    if sys.stderr.isatty():
        sys.stderr.write(f"\r\033[K{'  ' * bool(text)}{text}")
        sys.stderr.flush()


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
