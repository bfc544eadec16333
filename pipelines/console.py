"""Everything that a command writes to standard error: lines for people, or JSON objects for machines."""

from __future__ import annotations

import argparse
import atexit
import io
import json
import logging
import math
import sys
import textwrap
import threading
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from sfumato.transforms.logs import JOB, METRICS_COUNTED, OPERATIONS, PROGRESS, STAGE_EVENTS, log_event

LOG_FORMATS = ("text", "json")
_OURS = {one.name for one in (JOB, PROGRESS, OPERATIONS)}


def add_log_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options that say what a command writes to standard error."""
    parser.add_argument("--verbose", action="store_true", help="show operations data: rows read and dropped, metrics")
    parser.add_argument(
        "--log_format",
        choices=LOG_FORMATS,
        default="text",
        help="lines for people, or a JSON object a line, as Cloud Logging and others read it",
    )


def log_options(arguments: Sequence[str]) -> tuple[str, bool]:
    """The --log_format and --verbose of a command line of which nothing else is known yet, nor whether it is right."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    add_log_arguments(parser)
    try:
        options, _ = parser.parse_known_args(list(arguments))
    except argparse.ArgumentError:  # the command's own parser will say so
        return "text", "--verbose" in arguments
    return options.log_format, options.verbose


@dataclass(frozen=True)
class _Line:
    """A log record, wherever it comes from. event: None where it is none of this package's."""

    seconds: float
    level: int
    message: str
    event: str | None = None
    fields: Mapping[str, Any] = field(default_factory=dict)
    raw: bool = False
    trace: str = ""

    @classmethod
    def of(cls, record: logging.LogRecord) -> _Line:
        """The record's line."""
        message, level = record.getMessage(), record.levelno
        if record.name in _OURS:
            own = vars(record)
            return cls(record.created, level, message, own["event"], own["fields"], record.name == OPERATIONS.name)
        trace = "".join(traceback.format_exception(*record.exc_info)) if record.exc_info and record.exc_info[0] else ""
        return cls(record.created, level, message, fields={"logger": record.name}, trace=trace)


class Console(logging.Handler):
    """Writes log records to standard error.

    Of other packages' records those that no run can do without are written, with `verbose` warnings as well: an error
    that nobody expected ends the job with its traceback, so what is not shown is not lost.
    """

    def __init__(self, job: str, log_format: str, verbose: bool):
        super().__init__(logging.DEBUG)
        self.log_format, self.verbose = log_format, verbose
        self.known: dict[str, Any] = {"job": job}
        self.stream = sys.stderr
        self._least_foreign = logging.WARNING if verbose else logging.CRITICAL
        self._files = self._read = self._compared = 0

    def begin(self, files: int) -> None:
        """Counts files, of which so many are to be read, and runs from here on."""
        self._files, self._read, self._compared = files, 0, 0

    def emit(self, record: logging.LogRecord) -> None:
        """Writes a record, if it is to be shown."""
        try:
            line = _Line.of(record)
            if line.event is None and line.level < self._least_foreign:
                return
            self.stream.write(self._json(line) if self.log_format == "json" else self._text(line))
            self.stream.flush()
        except Exception:  # noqa: BLE001  (as all handlers: no job ends because nobody reads its log)
            self.handleError(record)

    def _json(self, line: _Line) -> str:
        moment = datetime.fromtimestamp(line.seconds, UTC).isoformat(timespec="microseconds")
        content = {
            "time": moment.replace("+00:00", "Z"),
            "severity": logging.getLevelName(min(max(line.level // 10, 1), 5) * 10),
            "message": line.message,
            **self.known,
            "event": line.event or "runner",
            **line.fields,
            **({"stack_trace": line.trace} if line.trace else {}),
        }
        return json.dumps(_plain(content), ensure_ascii=False, allow_nan=False) + "\n"

    def _text(self, line: _Line) -> str:
        in_place = self.stream.isatty()
        start = "\r\033[K" if in_place else ""
        if line.event is None:
            return start + "\n".join([line.message, *line.trace.splitlines()]) + "\n"
        if line.event == "read_file":
            self._read += 1
            return f"\r  reading: {self._read} of {self._files} files" if in_place else ""
        if line.event == "compared":
            self._compared += 1
            if in_place:
                return f"\r  compared: {self._compared} runs"
            return "" if self._compared % 50 else f"  compared: {self._compared} runs\n"
        if line.raw:
            return f"{start}  operations data: {line.message}\n{_table(line)}"
        if line.event in STAGE_EVENTS:
            return f"{start}  {line.message}\n"
        warning = "warning: " if line.level == logging.WARNING else ""
        return f"{start}sfumato {self.known['job']}: {warning}{line.message}\n"


def _table(line: _Line) -> str:
    """The table under the line of METRICS_COUNTED."""
    if line.event != METRICS_COUNTED.name:
        return ""
    from sfumato.transforms.metrics import metrics_table

    return textwrap.indent(metrics_table(line.fields["metrics"]), "  ")


@contextmanager
def console(job: str, log_format: str = "text", verbose: bool = False) -> Iterator[Console]:
    """Shows the log of a command while the block runs, in a process that does nothing else.

    What runners write of their own accord (threads that die with their server, Python's warnings) is shown with
    `verbose` alone, and as JSON if that is the format; so is what they write as the process ends.
    """
    with shown_on(Console(job, log_format, verbose)) as shown:
        yield shown
    if not verbose or log_format == "json":
        atexit.unregister(_hush)
        atexit.register(_hush)


@contextmanager
def shown_on(shown: Console) -> Iterator[Console]:
    """Sends the whole process's log to a console while the block runs."""
    root = logging.getLogger()
    handlers, levels = root.handlers, [(log, log.level) for log in (root, JOB, PROGRESS, OPERATIONS)]
    excepthook = threading.excepthook
    root.handlers = [shown]
    for log, _ in levels:
        log.setLevel(logging.INFO)
    OPERATIONS.setLevel(logging.DEBUG if shown.verbose else logging.INFO)
    logging.captureWarnings(True)
    threading.excepthook = _log_thread
    try:
        with redirect_stderr(_Stray() if shown.log_format == "json" else sys.stderr):
            yield shown
    finally:
        threading.excepthook = excepthook
        logging.captureWarnings(False)
        root.handlers = handlers
        for log, level in levels:
            log.setLevel(level)


def current_console() -> Console | None:
    """The console of the command that runs, if any does."""
    return next((one for one in logging.getLogger().handlers if isinstance(one, Console)), None)


def identify(**known: Any) -> None:
    """Says what is known of the run from here on (job, release_id): every JSON line has it. None takes it away."""
    if (shown := current_console()) is not None:
        told = {**shown.known, **known}
        shown.known = {name: value for name, value in told.items() if value is not None}


class _Stray(io.TextIOBase):
    """Standard error for code that writes to it directly: each line becomes a record."""

    def __init__(self) -> None:
        self._begun = ""

    def write(self, text: str) -> int:
        *lines, self._begun = (self._begun + text).split("\n")
        for line in filter(str.strip, lines):
            log_event("stderr", line)
        return len(text)


def _log_thread(died: threading.ExceptHookArgs) -> None:
    if died.exc_value is not None and not isinstance(died.exc_value, SystemExit):
        name = "" if died.thread is None else died.thread.name
        caught = (died.exc_type, died.exc_value, died.exc_traceback)
        logging.getLogger("threading").error("exception in thread %s", name, exc_info=caught)


def _hush() -> None:
    """Servers that runners stop as the process ends, and the threads that read from them, have nothing to tell."""
    logging.disable(logging.CRITICAL)
    threading.excepthook = lambda _: None


def _plain(value: Any) -> Any:
    """A value in JSON's types; what they have no word for becomes text."""
    if isinstance(value, Mapping):
        return {str(name): _plain(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    if hasattr(value, "item"):  # NumPy's numbers
        value = value.item()
    known = value is None or isinstance(value, str | int) or (isinstance(value, float) and math.isfinite(value))
    return value if known else str(value)
