"""What a person at a terminal sees while a job runs. The same lines reach a remote runner's job log."""

from __future__ import annotations

import codecs
import logging
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager

PROGRESS = "sfumato.progress"
# Worker processes hand their log records over as text; this finds the message in it.
_FORWARDED = re.compile(r'message: "(?P<message>(?:[^"\\]|\\.)*)"')
_MARKS = ("read file", "read and grouped", "sub-query")


class _Lines(logging.Handler):
    """Writes progress to standard error: one line that counts files while reading, then a line a sub-query."""

    def __init__(self, files: int):
        super().__init__(logging.INFO)
        self._files = files
        self._read = 0
        self._in_place = sys.stderr.isatty()

    def emit(self, record: logging.LogRecord) -> None:
        message = record.getMessage()
        if record.name != PROGRESS:
            found = _FORWARDED.search(message)
            if not found:
                return
            # protobuf writes other letters than ASCII's as they are or as octal bytes, depending on its build.
            message = codecs.escape_decode(found["message"].encode())[0].decode("utf-8", "replace")
        if not message.startswith(_MARKS):
            return
        if message.startswith("read file"):
            self._read += 1
            if self._in_place:
                sys.stderr.write(f"\r  reading: {self._read} of {self._files} files")
        else:
            start = "\r\033[K" if self._in_place else ""
            sys.stderr.write(f"{start}  {message}\n")
        sys.stderr.flush()


@contextmanager
def show_progress(files: int, verbose: bool) -> Iterator[None]:
    """Shows progress while the block runs; with `verbose` the workers' other messages as well."""
    root, progress = logging.getLogger(), logging.getLogger(PROGRESS)
    handler = _Lines(files)
    levels = root.level, progress.level
    # Forwarded records arrive at the root logger with the level they had.
    root.setLevel(logging.INFO)
    progress.setLevel(logging.INFO)
    quiet = [one for one in root.handlers if one.level < logging.WARNING] if not verbose else []
    for other in quiet:
        other.setLevel(logging.WARNING)
    if not root.handlers:
        plain = logging.StreamHandler()
        plain.setLevel(logging.INFO if verbose else logging.WARNING)
        root.addHandler(plain)
    root.addHandler(handler)
    try:
        yield
    finally:
        root.removeHandler(handler)
        root.setLevel(levels[0])
        progress.setLevel(levels[1])
