"""`sfumato ranges answer`: the number of users in each of many squares, from a released model.

The answers to one file of queries are one Parquet file. The answers to several are a folder of files with the names of
the query files. Answers have the order of the queries. Nothing is charged: answers are post-processing of the release.
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

import apache_beam as beam
from apache_beam.io.filesystems import FileSystems
from apache_beam.runners.runner import PipelineState

from sfumato.pipelines.frame.console import show_progress
from sfumato.pipelines.frame.inputs import match_files
from sfumato.pipelines.runners.folders import make_folders, remove_tree
from sfumato.pipelines.runners.runner_settings import RunnerSettings
from sfumato.schemas.errors import DataError, RequestError
from sfumato.transforms.io.files import is_remote, read_file
from sfumato.transforms.io.storage import matching
from sfumato.transforms.observability.logs import log_event
from sfumato.transforms.ranges.model_file import open_model
from sfumato.transforms.ranges.query_files import AnswerFiles, QueryCounts, count_queries
from sfumato.transforms.ranges.request import AnswerRequest
from sfumato.transforms.release.metadata import UNSAFE

_COUNTS_FILE = "counts.json"


def run(request: AnswerRequest, settings: RunnerSettings) -> None:
    """Runs the command. Raises RequestError or DataError."""
    settings.check_reach("model, queries, output", request.model, *request.queries, request.output)
    model = open_model(request.model)
    if not model.safe:
        log_event("warning", UNSAFE, logging.WARNING)
    if request.additive:
        model.check_additive()
    queries = _query_files(request.queries)
    answers = _answer_files(queries, request.output, request.overwrite)
    with ThreadPoolExecutor(16) as pool:
        rows = sum(pool.map(count_queries, queries))
    if rows == 0:
        raise RequestError(f"queries: there is no row in {', '.join(queries)}")
    started = time.monotonic()
    counts = answer_files(request.model, queries, answers, settings.sized(rows), request.additive)
    if counts.outside == counts.queries:
        where = str(model.field.grid.region)
        log_event("warning", f"no square reaches into the region {where}; are x and y swapped?", logging.WARNING)
    sys.stdout.write(_report(counts, request.output, time.monotonic() - started))


def answer_files(
    model: str, queries: Sequence[str], answers: Sequence[str], settings: RunnerSettings, additive: bool
) -> QueryCounts:
    """Runs the pipeline, which answers each file of queries into the file at the same place of `answers`.

    The files appear once all are complete, or not at all. Raises RequestError or DataError.
    """
    folder = answers[0].rsplit("/", 1)[0]
    staging = FileSystems.join(folder, f".staging-{uuid.uuid4().hex}")
    made = make_folders(staging)
    staged = [FileSystems.join(staging, f"{number}.parquet") for number in range(len(answers))]
    counts_file = FileSystems.join(staging, _COUNTS_FILE)
    try:
        with show_progress(len(queries), settings.verbose, settings.log_format), settings.pipeline() as root:
            _ = (
                root
                | "Files" >> beam.Create(list(zip(queries, staged, strict=True)))
                # PCollection[tuple[path of queries, path of answers]]
                | "AnswerFiles" >> AnswerFiles(model, additive)
                # PCollection[QueryCounts]
                | "WriteCounts" >> beam.Map(_write_counts, path=counts_file)
            )
        if root.result.state != PipelineState.DONE:
            raise DataError(f"the runner ended the job as {root.result.state}; nothing was written")
        counts = QueryCounts(**json.loads(read_file(counts_file)))
        FileSystems.rename(staged, list(answers))
        made = []
        return counts
    finally:
        remove_tree(staging)
        for folder in made:  # `rmdir` keeps a folder that has other files by now
            with contextlib.suppress(OSError):
                os.rmdir(folder)


def _query_files(patterns: Sequence[str]) -> list[str]:
    """Returns the files that match any pattern, each once. Raises RequestError if a pattern matches no file."""
    try:
        paths = [file.path for pattern in patterns for file in match_files(pattern)]
    except RequestError as error:
        raise RequestError(f"queries: {str(error).removeprefix('input: ')}") from None
    return list(dict.fromkeys(paths))


def _answer_files(queries: Sequence[str], output: str, overwrite: bool) -> list[str]:
    """Returns the path of the answers to each file of queries. Raises RequestError if a path is taken or cannot be
    used.
    """
    path = output.rstrip("/")
    if not path:
        raise RequestError("output: name a file that ends in .parquet, or a folder")
    path = _real_path(path)
    if path.endswith(".parquet"):
        if len(queries) > 1:
            raise RequestError(
                f"output: {len(queries)} files of queries match; name a folder, in which each has its answers"
            )
        if os.path.isdir(path):
            raise RequestError(f"output: {output!r} is a folder; name a file in it")
        answers = [path]
    else:
        if os.path.isfile(path):
            raise RequestError(f"output: {output!r} is a file; name a folder, or a file that ends in .parquet")
        names = [query.rsplit("/", 1)[-1] for query in queries]
        name, times = Counter(names).most_common(1)[0]
        if times > 1:
            raise RequestError(
                f"queries: {times} files are called {name}, and so would their answers; answer them in separate runs"
            )
        answers = [FileSystems.join(path, name) for name in names]
    for answer in answers:
        if answer in map(_real_path, queries):
            raise RequestError(f"output: {answer} holds queries; name another place")
        if not overwrite and matching(answer):
            raise RequestError(f"output: {answer} already exists; name another, or give --overwrite")
    return answers


def _real_path(path: str) -> str:
    return path if is_remote(path) else os.path.realpath(path)


def _write_counts(counts: QueryCounts, path: str) -> None:
    with FileSystems.create(path) as sink:
        sink.write(json.dumps(asdict(counts)).encode())


def _report(counts: QueryCounts, output: str, seconds: float) -> str:
    beyond = "none reaches" if not counts.beyond else "1 reaches" if counts.beyond == 1 else f"{counts.beyond:,} reach"
    outside = f", {counts.outside:,} wholly outside" if counts.outside else ""
    squares = f"{counts.queries:,} square{'s'[: counts.queries != 1]}"
    return f"{squares} answered, of which {beyond} beyond the region{outside}: {output} ({seconds:.1f} s)\n"
