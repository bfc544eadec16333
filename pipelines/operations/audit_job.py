"""`sfumato audit --job`: runs a job on logs, on their neighbours and under several keys, and judges what leaves it."""

from __future__ import annotations

import hashlib
import io
import json
import logging
import os
import shutil
import sys
import tempfile
import time
import uuid
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from sfumato.pipelines.command_line.cli import CRASHED, parse_command
from sfumato.pipelines.command_line.run import JOBS, release_job, request_class
from sfumato.pipelines.frame.inputs import layout_of, match_files
from sfumato.pipelines.frame.release_run import run_release
from sfumato.pipelines.operations.audit import check_report, gather, write_report
from sfumato.pipelines.runners.failures import error_of
from sfumato.pipelines.runners.runner_settings import RunnerSettings, runner_settings
from sfumato.schemas.errors import CheckFailedError, RequestError
from sfumato.schemas.release import MANIFEST_FILE
from sfumato.schemas.requests.publish_request import ReleaseRequest
from sfumato.transforms.audit.comparison import (
    Change,
    Event,
    Outcome,
    below_thresholds,
    changes,
    faults_of_noise,
    is_drawn,
    judged_noise,
    leaks,
    separating_events,
)
from sfumato.transforms.audit.findings import (
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
from sfumato.transforms.audit.request import JobAuditRequest
from sfumato.transforms.audit.sequential import EpsilonTest
from sfumato.transforms.inputs.log_reader import format_by_name
from sfumato.transforms.io.files import is_remote
from sfumato.transforms.observability.logs import JOB, PROGRESS
from sfumato.transforms.privacy.ledger.ledger import open_ledger
from sfumato.transforms.privacy.secrets import create_key_file
from sfumato.transforms.release.published_release import open_release

_KEYS = 4  # under which the job runs on the same logs
_THOROUGH = 3  # users with other records of every kind; of the others those of another user alone
_DIFFERENT_USERS = ("no record", "unusable records")  # records with which the number of users changes
_OWN = (
    "input", "output", "overwrite", "input_format", "key_file", "key_secret", "seed", "release_id", "ledger", "dataset",
    "budget", "timeline", "corrects", "dry_run", "allow_reuse", "runner_config", "verbose", "log_format",
)  # fmt: skip
_NOT_FACTS = ("manifest.created", "manifest.files.")  # the time, and digests of files, which are facts of their own
Facts = dict[str, object]


@dataclass
class Audit:
    """A job that an audit runs, again and again, in one folder that only its user can read.

    Attributes:
        job: its name.
        values: its options, without those of a place, a key or a ledger.
        settings: its runner.
        logs: what it runs on.
        folder: a new folder of the runs.
    """

    job: str
    values: Mapping[str, Any]
    settings: RunnerSettings
    logs: Logs
    folder: Path

    def outcome(self, key: str, user: str = "", rows: Sequence[Mapping[str, Any]] | None = None) -> Outcome:
        """Runs the job under a key on logs in which the user has these records; None keeps theirs."""
        place = self.folder / "run"
        shutil.rmtree(place, ignore_errors=True)
        (place / "logs").mkdir(parents=True)
        self.logs.write(place / "logs", user, rows)
        options = {
            **self.values, "input": f"{place}/logs/*", "output": f"{place}/release", "release_id": "audit",
            "key_file": key, "ledger": f"{place}/ledger.db", "dataset": "audit", "budget": "100000:0.5/1d",
        }  # fmt: skip
        facts: Facts = {"exit status": 0}
        with _log_lines() as lines, redirect_stdout(io.StringIO()):
            try:
                run_release(release_job(self.job, options), self.settings, audit=True)
            except Exception as error:  # noqa: BLE001  (a crash is what the run left)
                refusal = error_of(error)
                facts["exit status"] = CRASHED if refusal is None else refusal.exit_code
                facts["message"] = str(error if refusal is None else refusal)
        facts |= {f"line {number} of the log": line for number, line in enumerate(lines)}
        facts |= _facts_of_folder(place / "release")
        known = ("logs", "release", "ledger")
        others = (path for path in place.glob("*") if not path.name.startswith(known))
        facts |= {f"another file, {path.name}": _digest(path.read_bytes()) for path in others}
        charges = open_ledger(str(place / "ledger.db")).history().charges if (place / "ledger.db").exists() else []
        facts["charges"] = [(str(one.epsilon), str(one.delta), one.adjacency) for one in charges]
        if not (place / "release" / "manifest.json").exists():
            return Outcome(facts)
        release = open_release(str(place / "release"))
        if "results" not in release.manifest:  # a notice of refusal
            return Outcome(facts)
        return Outcome(facts, tuple(measurements(release)), release.manifest["privacy"])

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


def run(request: JobAuditRequest, arguments: Sequence[str]) -> None:
    """Runs the command. arguments: the options of the job. Raises RequestError or CheckFailedError."""
    name, rest = request.job, list(arguments)
    if rest and f"{name} {rest[0]}" in JOBS:
        name = f"{name} {rest.pop(0)}"
    kind = request_class(name)
    if not issubclass(kind, ReleaseRequest):
        raise RequestError(f"job: {name} publishes no release; name one of {', '.join(_publishing())}")
    parsed, beam_arguments = parse_command(kind, [*rest, "--output", "unused"])
    check_report(request.output, request.sign)
    with tempfile.TemporaryDirectory(prefix="sfumato-audit-") as folder:
        audited = _audit_of(name, parsed, runner_settings(request.runner_config, beam_arguments), Path(folder))
        findings = examine(audited, request.users, request.minutes, show=True)
    sys.stdout.write("\n".join([*map(str, findings), ""]) + "\n")
    if request.output is not None:
        write_report(report_of_job(name, audited.values, findings), request.output, request.sign)
        if not is_remote(request.output):
            os.chmod(request.output, 0o600)
    text = verdict(findings, JOB_LIMITS)
    if any(one.result == "violation" for one in findings):
        raise CheckFailedError(text)
    sys.stdout.write(f"{text}\n")


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
    return Audit(name, given, settings, Logs.read([file.path for file in files], kind, user_id), folder)


def examine(audited: Audit, users: int, minutes: float, show: bool = False) -> list[Finding]:
    """Returns the findings on a job.

    users: whose records are replaced. minutes: for runs with fresh keys. show: whether to show the progress.
    """
    keys, draws = [audited.key() for _ in range(_KEYS)], os.urandom(32)
    own = [audited.outcome(key) for key in keys]
    if "message" in own[0].facts:
        raise RequestError(f"job: {own[0].facts['message']}")
    findings = audited.of_release()
    worst: dict[str, Change] = {}
    leaked: set[str] = set()
    missing: set[str] = set()
    separating: tuple[str, list[Event]] = ("", [])
    tried = list(_neighbours(audited, users, draws))
    for number, neighbour in enumerate(tried):
        if show:
            _show(f"neighbour {number + 1} of {len(tried)}")
        other = audited.outcome(keys[0], *neighbour.records)
        if not separating[1] and not neighbour.changes_users:
            separating = neighbour.records[0], separating_events(own, other)
        if names := leaks(own, other):
            # A count may be at a threshold that this user alone crosses: then the neighbour's fact differs by key.
            others = [other, *(audited.outcome(key, *neighbour.records) for key in keys[1:])]
            leaked |= {f"{name} ({neighbour.name})" for name in names if name in leaks(others, own[0])}
        found = changes(own[0], other, neighbour.changes_users)
        # Under another key the noisy counts may lead to the same queries.
        for base, key in zip(own[1:], keys[1:], strict=True):
            if all(change.size is not None for change in found):
                break
            found = changes(base, audited.outcome(key, *neighbour.records), neighbour.changes_users)
        for change in found:
            name = change.measurement.name
            if change.size is None:
                missing.add(name)
            elif name not in worst or change.size > (worst[name].size or 0):
                worst[name] = change
    findings += _of_facts(leaked, len(tried), len(own[0].facts))
    findings += _of_changes(worst, missing - worst.keys())
    alone = replace(audited, logs=audited.logs.with_one_row())
    findings += _of_noise([alone.outcome(key) for key in keys[:2]], own)
    if minutes:
        findings += _of_fresh_keys(audited, separating, own[0].privacy, minutes, show)
    return findings


@dataclass(frozen=True)
class _Neighbour:
    """name: of the changed records. records: the user and their records."""

    name: str
    records: tuple[str, list[dict[str, Any]]]

    @property
    def changes_users(self) -> bool:
        return self.name in _DIFFERENT_USERS


def _neighbours(audited: Audit, users: int, draws: bytes) -> Iterator[_Neighbour]:
    drawn = audited.logs.drawn(users + 1, draws)
    for number, user in enumerate(drawn[:users]):
        donor = drawn[(number + 1) % len(drawn)]
        for name, rows in variants(audited.logs, user, donor, _corners(audited.values), draws).items():
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


def _of_facts(leaked: Collection[str], runs: int, facts: int) -> Iterator[Finding]:
    if leaked:
        yield Finding(FACTS, "violation", f"{'; '.join(sorted(leaked)[:5])} follows from a user, and not from the key")
    else:
        yield Finding(
            FACTS, "holds", f"{runs} runs on neighbours, {facts} files, fields, columns and log lines in each"
        )


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


def _of_noise(pair: Sequence[Outcome], own: Sequence[Outcome]) -> Iterator[Finding]:
    """Yields the finding on two runs under different keys on the same logs, in which no record is left to choose."""
    broken = [*faults_of_noise(*pair), *sorted({text for one in (*pair, *own) for text in below_thresholds(one)})]
    broken += [] if is_drawn(own) else ["all tables are the same under every key"]
    noisy = judged_noise(*pair)
    if broken:
        yield Finding(NOISE, "violation", "; ".join(broken))
    elif noisy:
        yield Finding(NOISE, "holds", f"{', '.join(noisy)}, under two keys")
    else:
        yield Finding(NOISE, "not checked", "too few noisy counts, without a threshold, are the same under two keys")


def _of_fresh_keys(
    audited: Audit, separating: tuple[str, Sequence[Event]], privacy: Mapping[str, Any], minutes: float, show: bool
) -> Iterator[Finding]:
    """Bounds epsilon from below by runs with fresh keys, with a user and without them; see `sequential`."""
    until, (user, events) = time.monotonic() + 60 * minutes, separating
    if not events or "epsilon" not in privacy:
        yield Finding(FRESH, "not checked", "no published count separates the neighbours")
        return
    test = EpsilonTest(len(events), privacy["delta"])
    while time.monotonic() < until and not test.refutes(privacy["epsilon"]):
        pair = audited.outcome(audited.key()), audited.outcome(audited.key(), user, [])
        test.add([tuple(event.holds(one) for one in pair) for event in events])
        if show:
            _show(f"{test.pairs} pairs of runs with fresh keys: epsilon is at least {test.lower_bound():.3g}")
    text = f"at least {test.lower_bound():.3g} after {test.pairs} pairs of runs, stated {privacy['epsilon']:.4g}"
    yield Finding(FRESH, "violation" if test.refutes(privacy["epsilon"]) else "holds", text)


def _show(text: str) -> None:
    """Shows the progress, in place on a terminal."""
    if sys.stderr.isatty():
        sys.stderr.write(f"\r\033[K  {text}")
        sys.stderr.flush()


@contextmanager
def _log_lines() -> Iterator[list[str]]:
    """Collects the lines that a run writes to its log, instead of showing them."""
    lines: list[str] = []
    handler = logging.Handler()
    # With all the digits that a log in JSON has.
    handler.emit = lambda record: lines.append(f"{record.getMessage()} {vars(record).get('fields')}")  # type: ignore[method-assign]
    loggers = [(log, log.handlers, log.propagate, log.level) for log in (JOB, PROGRESS)]
    for log, *_ in loggers:
        log.handlers, log.propagate = [handler], False
        log.setLevel(logging.INFO)
    try:
        yield lines
    finally:
        for log, handlers, propagate, level in loggers:
            log.handlers, log.propagate = handlers, propagate
            log.setLevel(level)


def _facts_of_folder(folder: Path) -> Facts:
    """Returns the names and sizes of files, the columns of tables, arrays, and the fields of the manifest."""
    facts: Facts = {}
    for path in sorted(folder.glob("*")) if folder.exists() else []:
        facts[path.name], facts[f"size of {path.name}"] = True, path.stat().st_size
        if path.suffix == ".parquet":
            table = pq.read_table(path)
            facts[f"rows of {path.name}"] = table.num_rows
            for name in table.column_names:
                facts[f"column {name} of {path.name}"] = _digest(repr(table[name].to_pylist()).encode())
        elif path.name == MANIFEST_FILE:
            facts |= {
                name: value
                for name, value in _fields("manifest", json.loads(path.read_bytes()))
                if not name.startswith(_NOT_FACTS)
            }
        elif path.suffix in (".npy", ".npz"):
            loaded = np.load(path, allow_pickle=False)
            arrays = {name: loaded[name] for name in loaded.files} if path.suffix == ".npz" else {"": loaded}
            facts |= {f"array {name} of {path.name}": _digest(array.tobytes()) for name, array in arrays.items()}
    return facts


def _fields(name: str, value: Any) -> Iterator[tuple[str, object]]:
    if isinstance(value, dict | list):
        for key, each in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _fields(f"{name}.{key}", each)
    else:
        yield name, value


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
