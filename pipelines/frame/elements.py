"""The elements of a caller's pipeline, rows, tables or paths, as the logs of one key."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import apache_beam as beam
import pyarrow as pa
from apache_beam.transforms.external import ExternalTransform
from apache_beam.transforms.window import GlobalWindow
from apache_beam.typehints.row_type import RowTypeConstraint
from apache_beam.utils.windowed_value import WindowedValue

from sfumato.pipelines.frame.accounting import LedgerGate
from sfumato.pipelines.frame.inputs import layout_of
from sfumato.pipelines.frame.job import ReleaseJob
from sfumato.pipelines.runners.runner_settings import check_runner, check_running_mode
from sfumato.schemas.errors import DataError, RequestError, did_you_mean
from sfumato.schemas.locations import Columns
from sfumato.schemas.log_layout import LogLayout
from sfumato.transforms.inputs.log_file import LogFile
from sfumato.transforms.inputs.log_reader import inspect_log, kinds_of, log_version
from sfumato.transforms.inputs.rows import fields_of, log_of_rows, log_of_table, rows_of
from sfumato.transforms.privacy.keys import RunKey
from sfumato.transforms.privacy.row_digests import digest_of_rows

# Runners that work in this process, by the names of their classes.
_LOCAL_RUNNERS = {"DirectRunner", "SwitchingDirectRunner", "BundleBasedDirectRunner", "FnApiRunner"}
_NO_EXPANSION = "external"  # Beam's namespace outside of an expansion service
# What each key has read in this process, both as digests. A key has noise for one input.
_INPUTS: dict[bytes, bytes] = {}
_ROWS = 1 << 16  # of a bundle, read together


def _runner_name(runner: Any) -> str:
    """Returns the class that runs the pipeline: not its bases, since Dask's runner is a kind of direct runner."""
    while (inner := getattr(runner, "_underlying_runner", None)) is not None:
        runner = inner
    return type(runner).__name__


def stays_here(pipeline: beam.Pipeline) -> bool:
    """Returns whether a pipeline runs in this process, so that its graph may hold a secret.

    An expansion service does not know where the graph that it expands will run: for another language, or for another
    Python environment.

    Raises RequestError for a runner whose results are wrong, or that would open servers.
    """
    runner = _runner_name(pipeline.runner)
    check_runner(runner)
    if runner not in _LOCAL_RUNNERS:
        return False
    check_running_mode(pipeline.options, "use in_memory")
    return bool(ExternalTransform.get_local_namespace() == _NO_EXPANSION)


class LogsOfKey(beam.PTransform):
    """Rows, tables or paths -> a pair of PCollections: the LogFiles that a key is for, and the gate, a singleton.

    The gate charges a ledger for exactly this input. It is None without a ledger.

    Args:
        key: of the run. In this process it draws noise for one input. A ledger binds it to the input for ever.
        job: the job.
        gate: of the job's charge, not yet bound to the input; None without a ledger.

    Raises RequestError for input in several windows or firings, since each would draw the same noise, and for rows
    without a column that the job reads.
    """

    def __init__(self, key: RunKey, job: ReleaseJob, gate: LedgerGate | None):
        super().__init__()
        self._key = key
        self._gate = gate
        self._columns = job.columns()
        self._layout = layout_of(job.request, self._columns)
        # The prefixes of hot spots follow from this kind, and the graph is built before a file is read.
        column = getattr(job.request, "column", None) if job.request.JOB == "hotspots" else None
        self._text = () if column is None else (column,)

    def expand(self, elements: beam.PCollection) -> tuple[beam.PCollection, beam.PCollection]:
        if not (elements.is_bounded and elements.windowing.is_default()):
            raise RequestError(
                "input: must be a bounded PCollection in the global window with Beam's default trigger; apply "
                "beam.WindowInto(beam.window.GlobalWindows()) to bounded input, and start a pipeline for each batch "
                "of unbounded input"
            )
        self._check_fields(elements.element_type)
        logs = elements | "Read" >> beam.ParDo(_ToLogs(self._columns, self._layout))  # PCollection[LogFile]
        checked = (
            logs
            | "Inspect" >> beam.Map(_inspected, self._columns, self._key)  # PCollection[_Inspected]
            | "Gather" >> beam.combiners.ToList()  # PCollection[list[_Inspected]]
            | "Bind" >> beam.Map(_bind, self._key, self._text, self._gate)  # PCollection[LedgerGate | None]
        )
        # Nothing is counted before the key is bound to all of the input.
        bound = logs | "Bound" >> beam.Map(lambda log, _: log, beam.pvalue.AsSingleton(checked))  # PCollection[LogFile]
        return bound, checked

    def _check_fields(self, element_type: Any) -> None:
        """Raises RequestError if rows with a schema lack a column."""
        if isinstance(element_type, RowTypeConstraint):
            fields = [name for name, _ in element_type._fields]
        else:
            fields = list(getattr(element_type, "_fields", ()))
        for name in self._layout.columns if fields else ():
            if name not in fields:
                hint = did_you_mean(name, fields) or f"; there are {', '.join(map(str, fields))}"
                raise RequestError(f"input: the rows have no column {name!r}{hint}")


class _ToLogs(beam.DoFn):
    """Elements -> LogFiles. Rows of a bundle are read together."""

    # Otherwise Beam's DirectRunner starts Prism where it can, a server that would receive the graph with its secret and
    # hide our errors. Beam reads this mark of steps that must run in its own process.
    is_materialize_values_do_fn = True

    def __init__(self, columns: Columns, layout: LogLayout):
        self._columns = columns
        self._layout = layout
        self._rows: list[dict[str, Any]] = []

    def start_bundle(self) -> None:
        self._rows = []

    def process(self, element: Any) -> list[LogFile] | None:
        # It is called for each row. So it is no generator, and dictionaries come first.
        if type(element) is not dict:
            if isinstance(element, str):
                return [_log_at(element, self._layout)]
            if isinstance(element, pa.Table | pa.RecordBatch) or type(element).__module__.partition(".")[0] == "pandas":
                return [log_of_table(element, self._columns, self._layout)]
            element = fields_of(element)
        self._rows.append(element)
        return [self._together()] if len(self._rows) == _ROWS else None

    def finish_bundle(self) -> Iterator[WindowedValue]:
        if self._rows:
            window = GlobalWindow()
            yield WindowedValue(self._together(), window.max_timestamp(), (window,))

    def _together(self) -> LogFile:
        rows, self._rows = self._rows, []
        return log_of_rows(rows, self._columns, self._layout)


def _log_at(path: str, layout: LogLayout) -> LogFile:
    """Returns the file in its version, which the reader then requires. Raises DataError."""
    try:
        return LogFile(path, log_version(path), layout=layout)
    except RequestError as error:
        raise DataError(str(error)) from error
    except OSError as error:
        raise DataError(f"{path}: cannot be opened ({error.strerror or error})") from error


@dataclass(frozen=True)
class _Inspected:
    """What identifies a log: a file's path and version, or the digest of rows; and the kinds of its columns."""

    path: str
    version: str | None
    digest: int
    kinds: dict[str, str]


def _inspected(log: LogFile, columns: Columns, key: RunKey) -> _Inspected:
    """Raises DataError for a file that cannot be read or lacks a column."""
    try:
        kinds = inspect_log(log, columns).column_types
    except RequestError as error:
        raise DataError(str(error)) from error
    digest = 0 if log.content is None else digest_of_rows(rows_of(log), key)
    return _Inspected(log.path, log.version, digest, kinds)


def _bind(found: list[_Inspected], key: RunKey, text: tuple[str, ...], gate: LedgerGate | None) -> LedgerGate | None:
    """Binds the key to the first input that it meets in this process, before anything is drawn.

    Returns the gate whose charge is bound to this input, once the ledger allows it: it charges when all input is read.

    The logs' schemas must agree: else the type of what is published would show who was drawn.

    A pipeline object may be run twice. Over other data its noise would be the same, and the difference
    of both results would have none.

    Args:
        text: columns that must hold text.

    Raises:
        DataError: the key has met other input, or a column is of several kinds.
        RequestError, BudgetError or LedgerError: the ledger refuses the charge.
    """
    try:
        kinds = kinds_of((one.path, one.kinds) for one in found)
    except RequestError as error:
        raise DataError(str(error)) from error
    for column in text:
        if (kind := kinds.get(column, "text")) != "text":
            raise DataError(
                f"column: {column!r} contains {kind}, and a pipeline finds hot spots of text; convert it to text, or "
                "run sfumato hotspots"
            )
    files = sorted((one.path, one.version) for one in found if one.version is not None)
    stated = json.dumps([files, sum(one.digest for one in found) % 2**64])
    digest = hashlib.sha256(stated.encode()).digest()
    if _INPUTS.setdefault(key.subkey("input"), digest) != digest:
        raise DataError(
            "input: this key's noise was already drawn for other rows or files, or other versions of them; build the "
            "pipeline again, with another release_id if you gave one, or restore the input"
        )
    if gate is None:
        return None
    gate = gate.bound_to(key.narrowed({"input": digest.hex()}))
    gate.check()
    return gate
