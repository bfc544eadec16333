"""`sfumato audit --job`: runs a job on logs, on their neighbours and under several keys, and judges what leaves it."""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from sfumato.pipelines.command_line.cli import parse_command
from sfumato.pipelines.command_line.run import JOBS, release_job, request_class
from sfumato.pipelines.frame.inputs import layout_of, match_files
from sfumato.pipelines.operations.audit import check_report, write_report
from sfumato.pipelines.operations.audit_runs import Audit, Runs
from sfumato.pipelines.runners.runner_settings import RunnerSettings, runner_settings
from sfumato.schemas.errors import CheckFailedError, RequestError
from sfumato.schemas.requests.publish_request import ReleaseRequest
from sfumato.transforms.audit.comparison import (
    Cell,
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
from sfumato.transforms.audit.findings import (
    BINDING,
    CHANGES,
    FACTS,
    FRESH,
    JOB_LIMITS,
    NOISE,
    Finding,
    report_of_job,
    verdict,
)
from sfumato.transforms.audit.neighbours import Logs, variants
from sfumato.transforms.audit.noise_tests import FALSE_ALARM, noise_report, scaled_noise
from sfumato.transforms.audit.request import JobAuditRequest
from sfumato.transforms.audit.sequential import EpsilonTest
from sfumato.transforms.inputs.log_reader import format_by_name
from sfumato.transforms.io.files import is_remote

_KEYS = 4  # under which the job runs on the same logs
_ALONE = 3  # keys under which it runs on one record of each user
_MOST_EXTREMES = 4  # users who hold the smallest or the largest value of a column
_LARGE = 3  # kinds of records that come first, for the runs on all logs, and those that are refused
_DIFFERENT_USERS = ("no record", "unusable records")  # records with which the number of users changes
_SMALL = 0.5  # the epsilon at which a suspicious fact is tried again
_CONFIRMED = 8  # keys under which it must be the same
_GONE = 2  # keys after which it is left, if it is the same for the neighbour
_SAMPLE = 30_000  # users on whose logs most runs are made, where there are more
_REPEATED = 8  # pairs of runs with equal noise, which are a violation
_SHARE = 0.8  # of noisy facts that are equal where noise is
_NOBODY = 10**9  # users that no logs have
_LEVEL = 1e-6  # the probability that fresh keys separate a fact of right code
_OWN = (
    "input", "output", "overwrite", "input_format", "key_file", "key_secret", "seed", "release_id", "ledger", "dataset",
    "budget", "timeline", "corrects", "dry_run", "allow_reuse", "runner_config", "verbose", "log_format",
)  # fmt: skip
_WITHOUT_KEY = {"key_file": None, "release_id": None, "ledger": None, "dataset": None, "budget": None, "period": None}


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
        audited = _audit_of(name, parsed, settings, Path(folder))
        findings = examine(audited, request.users, request.minutes, first=True)
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


def examine(audited: Audit, users: str, minutes: float, show: bool = False, first: bool = False) -> Iterator[Finding]:
    """Yields the findings on a job.

    users: whose records are replaced, see `_audited_users`. minutes: for runs with fresh keys. show: the progress.
    first: whether the first violation is enough.
    """
    draws = os.urandom(32)
    tried, runs = list(_neighbours(audited, users, draws)), Runs(audited)
    if (message := runs.first(_KEYS)[0].message) is not None:
        raise RequestError(f"job: {message}")
    yield from audited.of_release()
    places, sample = [runs] * len(tried), audited.logs.sampled(_SAMPLE, {one.records[0] for one in tried}, draws)
    if sample is not None and (few := Runs(replace(audited, logs=sample))).first(1)[0].message is None:
        places = [runs] * _LARGE + [few] * (len(tried) - _LARGE)
        audited = few.audited
    own = places[-1].first(_KEYS)
    small = min(own[0].privacy.get("epsilon") or _SMALL, _SMALL)
    alone = replace(audited, logs=audited.logs.with_one_row())
    lone = Runs(alone)
    judged = lone.first(_ALONE)
    pairs = list(zip(judged[1::2], judged[2::2], strict=True))
    if minutes:
        found_fresh, more = _of_fresh_keys(alone, tried[0], judged, minutes, show)
        yield from found_fresh
        pairs += more
    # Where a key chooses among records, exact counts follow from it. Of one record a user they are the same.
    ones = [replace(one, records=(one.records[0], one.records[1][:1])) for one in tried[:2]]
    places += [lone] * len(ones)
    tests = {id(one): Runs(one.audited, epsilon=small) for one in places}
    yield from _of_noise(judged, pairs, own, tests[id(places[len(tried) - 1])])
    compared = _Compared(small)
    for number, (neighbour, on) in enumerate(zip([*tried, *ones], places, strict=True)):
        if show:
            _show(f"neighbour {number + 1} of {len(places)}")
        compared.add(on, tests[id(on)], neighbour, _ALONE if on is lone else _KEYS, renders=not number)
        if first and compared.is_broken:
            break
    if show:
        _show("runs that are refused")
    refused, test = (Runs(audited, min_users=_NOBODY, **more) for more in ({}, {"epsilon": small}))
    for neighbour in tried[: 0 if first and compared.is_broken else _LARGE]:
        compared.add(refused, test, neighbour, 2)
    on_sample = f", {len(tried) - _LARGE} of them on the logs of {_SAMPLE:,} users" * (audited is not runs.audited)
    yield from compared.findings(on_sample)
    if show:
        _show("runs of which the key is bound")
    yield from _of_binding(alone, small)
    if show:
        _show("")


class _Compared:
    """What runs on neighbours show.

    A fact that differs between neighbours under one key, and is the same under _KEYS keys, may be one with little
    noise. So it is tried again at a small epsilon, under _CONFIRMED keys on the logs and on the neighbour. By the
    definition of privacy a fact of right code is the same under all of them, and differs, with a probability of at most
    (e^epsilon / (1 + e^epsilon))^(2 (_CONFIRMED - 1)): 1.3e-3 at epsilon 0.5, and far less for counts.
    """

    def __init__(self, epsilon: float):
        self._epsilon = epsilon
        self._leaked: dict[str, str] = {}
        self._unclear: set[str] = set()
        self._worst: dict[str, Change] = {}
        self._missing: set[str] = set()
        self._seen = self._neighbours = 0

    @property
    def is_broken(self) -> bool:
        """Whether there is a violation."""
        return bool(self._leaked) or any(change.is_larger for change in self._worst.values())

    def add(self, runs: Runs, small: Runs, neighbour: _Neighbour, keys: int = _KEYS, renders: bool = False) -> None:
        """Runs a neighbour under the first key and compares. small: the same runs at the small epsilon."""
        own = runs.first(keys)
        other = runs.audited.outcome(runs.keys[0], *neighbour.records, renders=renders, **runs.options)
        self._neighbours += not runs.options
        self._seen = max(self._seen, sum(table.size for table in own[0].facts.values()))
        self._leaked |= {f"{name} is not what the tables render": neighbour.name for name in other.unrendered}
        self._try_again({cell for cell in leaks(own, other) if named(cell) not in self._leaked}, small, neighbour)
        found = changes(own[0], other, neighbour.changes_users)
        # Under another key the noisy counts may lead to the same queries.
        for base, key in zip(own[1:], runs.keys[1:], strict=False):
            if all(change.size is not None for change in found):
                break
            found = changes(base, runs.audited.outcome(key, *neighbour.records), neighbour.changes_users)
        for change in found:
            name = change.measurement.name
            if change.size is None:
                self._missing.add(name)
            elif name not in self._worst or change.size > (self._worst[name].size or 0):
                self._worst[name] = change

    def _try_again(self, cells: set[Cell], small: Runs, neighbour: _Neighbour) -> None:
        others: list[Outcome] = []
        for number in range(1, _CONFIRMED + 1):
            if not cells:
                return
            own = small.first(number)
            others.append(small.audited.outcome(small.audited.key(), *neighbour.records, **small.options))
            cells = {cell for cell in cells if constant(own, cell) and constant(others, cell)}
            if number == _GONE:
                equal = {cell for cell in cells if own[0].fact(cell) == others[0].fact(cell)}
                self._unclear |= {named(cell) for cell in equal}
                cells -= equal
        self._leaked |= {
            named(cell): neighbour.name + ", in a refused run" * ("min_users" in small.options) for cell in cells
        }

    def findings(self, on_sample: str) -> Iterator[Finding]:
        """Yields the findings after all runs. on_sample: how many runs were on some of the logs, in words."""
        if self._leaked:
            texts = [f"{name} ({why})" for name, why in sorted(self._leaked.items())]
            yield Finding(FACTS, "violation", f"{'; '.join(texts[:5])} follows from a user, and not from the key")
        else:
            text = f"{self._neighbours} runs on neighbours{on_sample}"
            yield Finding(FACTS, "holds", f"{text}; {self._seen:,} cells, fields, numbers of lines and files in each")
        if unclear := sorted(self._unclear - self._leaked.keys()):
            text = f"{'; '.join(unclear[:5])}: the same under {_KEYS} keys, and gone at epsilon {self._epsilon:g}"
            yield Finding(FACTS, "not checked", text)
        if broken := [change for change in self._worst.values() if change.is_larger]:
            texts = [f"{one.measurement.name}: by {one.size:.6g}, stated {one.measurement.bound:.6g}" for one in broken]
            yield Finding(CHANGES, "violation", "; ".join(texts))
        elif self._worst:
            texts = [f"{name}: by {one.size:.4g} of {one.measurement.bound:.4g}" for name, one in self._worst.items()]
            yield Finding(CHANGES, "holds", "; ".join(texts))
        else:
            yield Finding(CHANGES, "not checked", "the release has no noisy count of its own, only estimates")
        if missing := ", ".join(sorted(self._missing - self._worst.keys())):
            text = f"{missing}: the noisy counts before it led to other queries in every run"
            yield Finding(CHANGES, "not checked", text)


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
            if number:
                break


def _corners(values: Mapping[str, Any]) -> list[dict[str, float]]:
    """Returns places at the corners of the map, where records have coordinates in degrees."""
    region = values.get("region")
    if region is None or {"geometry_column", "cell_column", "coordinates", "origin"} & values.keys():
        return []
    axes = [values.get(f"{axis}_column", axis) for axis in ("latitude", "longitude")]
    places = [(lat, lon) for lat in (region.south, region.north) for lon in (region.west, region.east)]
    return [dict(zip(axes, place, strict=True)) for place in places]


def _of_binding(alone: Audit, epsilon: float) -> Iterator[Finding]:
    """Yields the finding on runs as they are published, whose key is bound to all that they depend on."""
    others: dict[str, tuple[Audit, dict[str, Any]]] = {}
    for place, share in (("first", 0.0), ("middle", 0.5), ("last", 1.0)):
        if (swapped := alone.logs.with_swapped_rows(share, alone.columns)) is not None:
            others[f"values of the {place} record"] = replace(alone, logs=swapped), {}
    others |= {"release_id": (alone, {"release_id": "other"}), "epsilon": (alone, {"epsilon": epsilon / 2})}
    others["no key"] = (alone, {**_WITHOUT_KEY})
    equal, scaled, runs = [], [], Runs(alone, bound=True, epsilon=epsilon)
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
                if name == "epsilon":
                    twin = audited.outcome(runs.keys[number + 1], **changed)
                    scaled += scaled_noise((first, second), (other, twin))
                break
        else:
            equal.append(name)
    if equal or scaled:
        texts = [f"with other {name} the noise is the same" for name in equal] + scaled
        yield Finding(BINDING, "violation", "; ".join(texts))
    else:
        yield Finding(BINDING, "holds", f"other noise with other {', '.join(others)}")


def _of_noise(
    judged: Sequence[Outcome], pairs: Sequence[tuple[Outcome, Outcome]], own: Sequence[Outcome], small: Runs
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
