"""What a person at a terminal sees while a job runs. The same lines reach a remote runner's job log."""

from __future__ import annotations

import codecs
import contextlib
import logging
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from sfumato.transforms.logs import OPERATIONS, PROGRESS

# Worker processes hand their log records over as text; this finds the message in it.
_FORWARDED = re.compile(r'message: "(?P<message>(?:[^"\\]|\\.)*)"')
_MARKS = ("read file", "read and", "sub-query", "compared")


class _Lines(logging.Handler):
    """Writes progress to standard error: lines that count files and compared runs, and a line a sub-query."""

    def __init__(self, files: int):
        super().__init__(logging.DEBUG)
        self._files = files
        self._read = self._compared = 0
        # A descriptor of its own: standard error itself is closed to worker processes while the job runs.
        self.stream = os.fdopen(os.dup(2), "w", encoding="utf-8", errors="replace")
        self._in_place = self.stream.isatty()

    def emit(self, record: logging.LogRecord) -> None:
        message = record.getMessage()
        if record.name == OPERATIONS.name:
            message = f"operations data: {message}"
        elif record.name != PROGRESS.name:
            found = _FORWARDED.search(message)
            if not found:
                return
            # protobuf writes other letters than ASCII's as they are or as octal bytes, depending on its build.
            message = codecs.escape_decode(found["message"].encode())[0].decode("utf-8", "replace")
        if record.name != OPERATIONS.name and not message.startswith(_MARKS):
            return
        if message.startswith("read file"):
            self._read += 1
            if self._in_place:
                self.stream.write(f"\r  reading: {self._read} of {self._files} files")
        elif message.startswith("compared"):
            self._compared += 1
            if self._in_place:
                self.stream.write(f"\r  compared: {self._compared} runs")
            elif self._compared % 50 == 0:
                self.stream.write(f"  compared: {self._compared} runs\n")
        else:
            start = "\r\033[K" if self._in_place else ""
            self.stream.write(f"{start}  {message}\n")
        self.stream.flush()


@contextmanager
def show_progress(files: int, verbose: bool) -> Iterator[None]:
    """Shows progress while the block runs; with `verbose` rows read and dropped, and the runner's warnings, as well.

    What is not shown is not lost: an error that nobody expected ends the job with its traceback.
    """
    root, handler = logging.getLogger(), _Lines(files)
    plain = logging.StreamHandler(handler.stream)
    plain.setLevel(logging.WARNING if verbose else logging.CRITICAL)
    before, levels = root.handlers, [(log, log.level) for log in (root, PROGRESS, OPERATIONS)]
    OPERATIONS.setLevel(logging.DEBUG if verbose else logging.INFO)
    root.handlers = [handler, plain]
    # Forwarded records arrive at the root logger with the level they had.
    root.setLevel(logging.INFO)
    PROGRESS.setLevel(logging.INFO)
    try:
        with contextlib.nullcontext() if verbose else _worker_output_hidden():
            yield
    finally:
        root.handlers = before
        for log, level in levels:
            log.setLevel(level)
        handler.stream.close()


@contextmanager
def _worker_output_hidden() -> Iterator[None]:
    """Worker processes write their own log to the standard error that they inherit; it would double every line."""
    sys.stderr.flush()
    kept = os.dup(2)
    with open(os.devnull, "wb") as nowhere:
        os.dup2(nowhere.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
