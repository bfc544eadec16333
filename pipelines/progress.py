"""Progress on the terminal while a pipeline runs, and its metrics afterwards."""

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
    """Shows progress while the block runs, on the command's console or, without one, on a new console.

    Args:
        files: number of files to read.
        verbose: of a new console.
        log_format: of a new console.
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
    from sfumato.transforms.metrics import read_metrics

    try:
        values = read_metrics(result)
    except Exception as error:  # noqa: BLE001  (the release is published, so missing metrics are no failure)
        METRICS_MISSING.emit(error=str(error))
    else:
        METRICS_COUNTED.emit(metrics=values)
