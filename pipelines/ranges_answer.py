"""`sfumato ranges answer`: how many people are in each of many squares, from a released model.

Answers to one file of queries are one Parquet file; answers to several are a folder of files, each named after its
queries. They stand in the order of the queries. Nothing is charged: a release may be asked for ever.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import sys
import time
import uuid
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path

import apache_beam as beam
from apache_beam.io.filesystem import BeamIOError
from apache_beam.io.filesystems import FileSystems
from apache_beam.runners.runner import PipelineState

from sfumato.pipelines.inputs import match_files
from sfumato.pipelines.progress import show_progress
from sfumato.pipelines.runner_settings import RunnerSettings
from sfumato.schemas.errors import DataError, RequestError
from sfumato.schemas.requests.range_queries import AnswerRequest
from sfumato.transforms.files import is_remote, read_file
from sfumato.transforms.logs import log_event
from sfumato.transforms.ranges.model_file import open_model
from sfumato.transforms.ranges.query_files import AnswerFiles, QueryCounts, count_queries
from sfumato.transforms.release.metadata import UNSAFE
from sfumato.transforms.storage import matching

_TALLY_FILE = "tally.json"


def run(request: AnswerRequest, settings: RunnerSettings) -> int:
    """Runs the command. Returns the exit status 0, or raises RequestError or DataError."""
    _check_reach(settings, request)
    model = open_model(request.model)
    if not model.safe:
        log_event("warning", UNSAFE, logging.WARNING)
    queries = _query_files(request.queries)
    answers = _answer_files(queries, request.output, request.overwrite)
    with ThreadPoolExecutor(16) as pool:
        rows = sum(pool.map(count_queries, queries))
    if rows == 0:
        raise RequestError(f"queries: there is no row in {', '.join(queries)}")
    started = time.monotonic()
    tally = answer_files(request.model, queries, answers, settings.sized(rows))
    if tally.outside == tally.queries:
        where = str(model.field.grid.region)
        log_event("warning", f"no square reaches into the region {where}; are x and y swapped?", logging.WARNING)
    sys.stdout.write(_report(tally, request.output, time.monotonic() - started))
    return 0


def answer_files(model: str, queries: Sequence[str], answers: Sequence[str], settings: RunnerSettings) -> QueryCounts:
    """Runs the pipeline, which answers each file of queries into the file at the same place of `answers`.

    Files appear whole, when all are answered, or not at all. Raises RequestError or DataError.
    """
    folder = answers[0].rsplit("/", 1)[0]
    staging = FileSystems.join(folder, f".staging-{uuid.uuid4().hex}")
    made = _make_folders(staging)
    staged = [FileSystems.join(staging, f"{number}.parquet") for number in range(len(answers))]
    told = FileSystems.join(staging, _TALLY_FILE)
    try:
        with (
            show_progress(len(queries), settings.verbose, settings.log_format),
            settings.pipeline() as root,
        ):
            _ = (
                root
                | "Files" >> beam.Create(list(zip(queries, staged, strict=True)))
                # (path of queries, path of answers)
                | "AnswerFiles" >> AnswerFiles(model)
                # Tally
                | "WriteTally" >> beam.Map(_write_tally, path=told)
            )
        if root.result.state != PipelineState.DONE:
            raise DataError(f"the runner ended the job as {root.result.state}; nothing was written")
        tally = QueryCounts(**json.loads(read_file(told)))
        FileSystems.rename(staged, list(answers))
        made = []
        return tally
    finally:
        _remove(staging)
        for folder in made:  # not where somebody else has put something by now
            with contextlib.suppress(OSError):
                os.rmdir(folder)


def _check_reach(settings: RunnerSettings, request: AnswerRequest) -> None:
    """Raises RequestError for a place on this machine's disk, which workers in the cloud cannot reach."""
    if settings.in_cloud and not all(map(is_remote, (request.model, *request.queries, request.output))):
        raise RequestError(
            "model, queries, output: Dataflow's workers cannot reach this machine; name places in a bucket, gs://..."
        )


def _query_files(patterns: Sequence[str]) -> list[str]:
    """Every file that matches a pattern, once. Raises RequestError where one of the patterns has none."""
    try:
        found = [file.path for pattern in patterns for file in match_files(pattern)]
    except RequestError as error:
        raise RequestError(f"queries: {str(error).removeprefix('input: ')}") from None
    return list(dict.fromkeys(found))


def _answer_files(queries: Sequence[str], output: str, overwrite: bool) -> list[str]:
    """Where the answers to each file go. Raises RequestError for places that are taken or cannot be."""
    place = output.rstrip("/")
    if not place:
        raise RequestError("output: name a file that ends in .parquet, or a folder")
    place = _whole_path(place)
    if place.endswith(".parquet"):
        if len(queries) > 1:
            raise RequestError(
                f"output: {len(queries)} files of queries match; name a folder, in which each has its answers"
            )
        if os.path.isdir(place):
            raise RequestError(f"output: {output!r} is a folder; name a file in it")
        answers = [place]
    else:
        if os.path.isfile(place):
            raise RequestError(f"output: {output!r} is a file; name a folder, or a file that ends in .parquet")
        names = [path.rsplit("/", 1)[-1] for path in queries]
        name, times = Counter(names).most_common(1)[0]
        if times > 1:
            raise RequestError(
                f"queries: {times} files are called {name}, and so would their answers; answer them apart"
            )
        answers = [FileSystems.join(place, name) for name in names]
    for path in answers:
        if path in map(_whole_path, queries):
            raise RequestError(f"output: {path} holds queries; name another place")
        if not overwrite and matching(path):
            raise RequestError(f"output: {path} exists already; name another, or give --overwrite")
    return answers


def _whole_path(path: str) -> str:
    return path if is_remote(path) else os.path.realpath(path)


def _make_folders(path: str) -> list[str]:
    """Makes a local folder and those above it (a bucket has none to make). Returns those made, the inner ones first."""
    if is_remote(path):
        return []
    missing = [one for one in (Path(path), *Path(path).parents) if not one.exists()]
    try:
        os.makedirs(path)
    except OSError as error:
        parent = path.rsplit("/", 1)[0]
        raise RequestError(f"output: cannot write into {parent!r} ({error.strerror}); name another place") from None
    return [str(one) for one in missing]


def _write_tally(tally: QueryCounts, path: str) -> None:
    with FileSystems.create(path) as sink:
        sink.write(json.dumps(asdict(tally)).encode())


def _remove(folder: str) -> None:
    """Removes a folder of this run's own with all that is in it, where it is there."""
    found = matching(FileSystems.join(folder, "*")) if is_remote(folder) else []
    if found or (not is_remote(folder) and os.path.exists(folder)):
        try:
            FileSystems.delete([one.path for one in found] or [folder])
        except BeamIOError as error:
            log_event("not_removed", f"{folder} could not be removed ({error})", logging.WARNING)


def _report(tally: QueryCounts, output: str, seconds: float) -> str:
    beyond = "none reaches" if not tally.beyond else "1 reaches" if tally.beyond == 1 else f"{tally.beyond:,} reach"
    outside = f", {tally.outside:,} wholly outside" if tally.outside else ""
    return (
        f"{tally.queries:,} square{'s'[: tally.queries != 1]} answered, of which {beyond} beyond the region{outside}: "
        f"{output} ({seconds:.1f} s)\n"
    )
