"""The log of a command on standard error: lines for people, or JSON objects for machines."""

from __future__ import annotations

import atexit
import contextlib
import io
import json
import logging
import math
import os
import sys
import textwrap
import threading
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stderr
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, cast

from sfumato.pipelines.runners.failures import error_of
from sfumato.transforms.observability.logs import (
    JOB,
    METRICS_COUNTED,
    METRICS_MISSING,
    OPERATIONS,
    PROGRESS,
    STAGE_EVENTS,
    log_event,
)

_OUR_LOGGERS = {logger.name for logger in (JOB, PROGRESS, OPERATIONS)}


class Console(logging.Handler):
    """Writes log records to standard error.

    Of other packages, it writes critical records only, and with `verbose` warnings and errors too. Nothing is lost: an
    unexpected error ends the job with its traceback.
    """

    def __init__(self, job: str, log_format: str, verbose: bool):
        super().__init__(logging.DEBUG)
        self.log_format, self.verbose = log_format, verbose
        self.common_fields: dict[str, Any] = {"job": job}
        self.stream = sys.stderr
        self._min_foreign_level = logging.WARNING if verbose else logging.CRITICAL
        self._files = self._read = 0

    def begin(self, files: int) -> None:
        """Starts the count of files at 0. files: number to read."""
        self._files, self._read = files, 0

    def emit(self, record: logging.LogRecord) -> None:
        """Writes a record, unless it is hidden (see the class)."""
        try:
            is_ours = record.name in _OUR_LOGGERS
            if not is_ours and record.exc_info and record.exc_info[1] and error_of(record.exc_info[1]):
                return  # an error that the command itself reports at its end
            if is_ours or record.levelno >= self._min_foreign_level:
                self.stream.write((self._json if self.log_format == "json" else self._text)(record, is_ours))
                self.stream.flush()
        except Exception:  # noqa: BLE001  (a log that cannot be written must not end the job)
            self.handleError(record)

    def _json(self, record: logging.LogRecord, is_ours: bool) -> str:
        moment = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="microseconds")
        fields, trace = (vars(record)["fields"], "") if is_ours else ({"logger": record.name}, _trace(record))
        content = {
            "time": moment.replace("+00:00", "Z"),
            "severity": logging.getLevelName(min(max(record.levelno // 10, 1), 5) * 10),
            "message": record.getMessage(),
            **self.common_fields,
            "event": vars(record)["event"] if is_ours else "runner",
            **fields,
            **({"stack_trace": trace} if trace else {}),
        }
        return json.dumps(_plain(content), ensure_ascii=False, allow_nan=False) + "\n"

    def _text(self, record: logging.LogRecord, is_ours: bool) -> str:
        in_place, message = self.stream.isatty(), record.getMessage()
        start = "\r\033[K" if in_place else ""
        if not is_ours:
            return start + "\n".join([message, *_trace(record).splitlines()]) + "\n"
        event = vars(record)["event"]
        if event == "read_file":
            self._read += 1
            return f"\r  reading: {self._read} of {self._files} files" if in_place else ""
        if record.name == OPERATIONS.name:  # its fields describe unprotected data
            return f"{start}  operations data: {message}\n{_metrics_table(record)}"
        if event in STAGE_EVENTS:
            return f"{start}  {message}\n"
        warning = "warning: " if record.levelno == logging.WARNING else ""
        return f"{start}sfumato {self.common_fields['job']}: {warning}{message}\n"


def _trace(record: logging.LogRecord) -> str:
    """Returns the record's traceback; empty without one."""
    return "".join(traceback.format_exception(*record.exc_info)) if record.exc_info and record.exc_info[0] else ""


def _metrics_table(record: logging.LogRecord) -> str:
    """Returns the table of metrics under a METRICS_COUNTED record; empty for other events."""
    if vars(record)["event"] != METRICS_COUNTED.name:
        return ""
    from sfumato.transforms.observability.metrics import metrics_table

    return textwrap.indent(metrics_table(vars(record)["fields"]["metrics"]), "  ")


@contextmanager
def console(job: str, log_format: str = "text", verbose: bool = False) -> Iterator[Console]:
    """Shows the log of a command while the block runs. The process must do nothing else.

    Other output of runners (warnings, exceptions in threads) is shown with `verbose` only, in the format of the log.
    The same holds for their output while the process exits.
    """
    with shown_on(Console(job, log_format, verbose)) as shown:
        yield shown
    if not verbose or log_format == "json":
        atexit.unregister(_hush)
        atexit.register(_hush)


@contextmanager
def shown_on(shown: Console) -> Iterator[Console]:
    """Sends all logs of the process to a console while the block runs."""
    root = logging.getLogger()
    handlers, levels = root.handlers, [(log, log.level) for log in (root, JOB, PROGRESS, OPERATIONS)]
    excepthook = threading.excepthook
    root.handlers = [shown]
    for log, _ in levels:
        log.setLevel(logging.INFO)
    OPERATIONS.setLevel(logging.DEBUG if shown.verbose else logging.INFO)
    logging.captureWarnings(True)
    threading.excepthook = _log_thread_exception
    stderr: Any = _StderrToLog() if shown.log_format == "json" else sys.stderr
    try:
        with redirect_stderr(stderr if shown.verbose else _OfMainThread(stderr)):
            yield shown
    finally:
        threading.excepthook = excepthook
        logging.captureWarnings(False)
        root.handlers = handlers
        for log, level in levels:
            log.setLevel(level)


def current_console() -> Console | None:
    """Returns the console of the running command; None without one."""
    return next((handler for handler in logging.getLogger().handlers if isinstance(handler, Console)), None)


def identify(**fields: Any) -> None:
    """Adds fields (job, release_id) to every JSON line from here on. The value None removes a field."""
    if (shown := current_console()) is not None:
        merged = {**shown.common_fields, **fields}
        shown.common_fields = {name: value for name, value in merged.items() if value is not None}


class _StderrToLog(io.TextIOBase):
    """Standard error for code that writes to it directly: each line becomes a record."""

    def __init__(self) -> None:
        self._unfinished = ""

    def write(self, text: str) -> int:
        *lines, self._unfinished = (self._unfinished + text).split("\n")
        for line in filter(str.strip, lines):
            log_event("stderr", line)
        return len(text)


class _OfMainThread:
    """Standard error without what other threads write to it directly.

    Beam's workers in this process print the traceback of each bundle that fails. One that loses its engine may do so a
    second after the job has ended with its own error.
    """

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        if threading.current_thread() is threading.main_thread():
            self._stream.write(text)
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def _log_thread_exception(hook: threading.ExceptHookArgs) -> None:
    if hook.exc_value is not None and not isinstance(hook.exc_value, SystemExit):
        name = "" if hook.thread is None else hook.thread.name
        exc_info = (hook.exc_type, hook.exc_value, hook.exc_traceback)
        logging.getLogger("threading").error("exception in thread %s", name, exc_info=exc_info)


def _hush() -> None:
    """Hides the output of servers that runners stop while the process exits, and of the threads that read from them."""
    logging.disable(logging.CRITICAL)
    threading.excepthook = lambda _: None
    sys.stderr = cast(Any, _OfMainThread(sys.stderr))


def _plain(value: Any) -> Any:
    """Returns a value in JSON's types; other types become text."""
    if isinstance(value, Mapping):
        return {str(name): _plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if hasattr(value, "item"):  # NumPy's numbers
        value = value.item()
    is_json = value is None or isinstance(value, str | int) or (isinstance(value, float) and math.isfinite(value))
    return value if is_json else str(value)


if TYPE_CHECKING:
    from apache_beam.runners.runner import PipelineResult


@contextmanager
def show_progress(files: int, verbose: bool = False, log_format: str = "text") -> Iterator[None]:
    """Shows progress while the block runs, on the command's console or, without one, on a new console.

    files: number of files to read. verbose: of a new console. log_format: of a new console.
    """
    with contextlib.ExitStack() as stack:
        shown = current_console() or stack.enter_context(shown_on(Console("job", log_format, verbose)))
        shown.begin(files)
        if not shown.verbose or shown.log_format == "json":
            stack.enter_context(_worker_output_hidden(shown))
        yield


@contextmanager
def _worker_output_hidden(shown: Console) -> Iterator[None]:
    """Hides what Flink's workers on this machine write to standard error. The job reports their errors itself."""
    sys.stderr.flush()
    stderr_copy, stream = os.dup(2), shown.stream
    # The console writes to a copy, because descriptor 2 goes to the null device while the job runs.
    shown.stream = os.fdopen(os.dup(2), "w", encoding="utf-8", errors="replace")
    with open(os.devnull, "w") as nowhere:
        os.dup2(nowhere.fileno(), 2)
        try:
            with contextlib.nullcontext() if shown.verbose else contextlib.redirect_stderr(nowhere):
                yield
        finally:
            os.dup2(stderr_copy, 2)
            os.close(stderr_copy)
            shown.stream.close()
            shown.stream = stream


def log_metrics(result: PipelineResult) -> None:
    """Writes a run's metrics into the log, as operations data: a table, or in JSON one event."""
    if not OPERATIONS.isEnabledFor(logging.DEBUG):
        return
    from sfumato.transforms.observability.metrics import read_metrics

    try:
        values = read_metrics(result)
    except Exception as error:  # noqa: BLE001  (the release is published, so missing metrics are no failure)
        METRICS_MISSING.emit(error=str(error))
    else:
        METRICS_COUNTED.emit(metrics=values)
