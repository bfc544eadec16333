"""What is seen of a job while its pipeline runs, and of its metrics afterwards."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from sfumato.pipelines.console import Console, current_console, shown_on
from sfumato.transforms.logs import METRICS_COUNTED, METRICS_MISSING, OPERATIONS

if TYPE_CHECKING:
    from apache_beam.runners.runner import PipelineResult


@contextmanager
def show_progress(files: int, verbose: bool = False, log_format: str = "text") -> Iterator[None]:
    """Shows progress while the block runs, on the command's console; on one of its own where there is none.

    files: how many are to be read. verbose, log_format: of a console of its own.
    """
    standing = current_console()
    with contextlib.ExitStack() as stack:
        shown = standing or stack.enter_context(shown_on(Console("job", log_format, verbose)))
        shown.begin(files)
        if not shown.verbose or shown.log_format == "json":
            stack.enter_context(_worker_output_hidden(shown))
        yield


@contextmanager
def _worker_output_hidden(shown: Console) -> Iterator[None]:
    """Workers of a remote runner that work here (Flink) write tracebacks to standard error; the job tells of them."""
    sys.stderr.flush()
    kept, before = os.dup(2), shown.stream
    # A descriptor of its own: standard error itself is closed to workers while the job runs.
    shown.stream = os.fdopen(os.dup(2), "w", encoding="utf-8", errors="replace")
    with open(os.devnull, "w") as nowhere:
        os.dup2(nowhere.fileno(), 2)
        try:
            with contextlib.nullcontext() if shown.verbose else contextlib.redirect_stderr(nowhere):
                yield
        finally:
            os.dup2(kept, 2)
            os.close(kept)
            shown.stream.close()
            shown.stream = before


def log_metrics(result: PipelineResult) -> None:
    """Writes what a run counted into the log, as operations data: a table, or with JSON one event."""
    if not OPERATIONS.isEnabledFor(logging.DEBUG):
        return
    from sfumato.transforms.metrics import read_metrics

    try:
        values = read_metrics(result)
    except Exception as error:  # noqa: BLE001  (the release stands, whatever its runner can tell of it)
        METRICS_MISSING.emit(error=str(error))
    else:
        METRICS_COUNTED.emit(metrics=values)
