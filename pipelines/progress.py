"""What is seen of a job while its pipeline runs, and of its metrics afterwards."""

from __future__ import annotations

import contextlib
import logging
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
        yield


def tell_metrics(result: PipelineResult) -> None:
    """Writes what a run counted into the log, as operations data: a table, or with JSON one event."""
    if not OPERATIONS.isEnabledFor(logging.DEBUG):
        return
    from sfumato.transforms.metrics import read_metrics

    try:
        values = read_metrics(result)
    except Exception as error:  # noqa: BLE001  (the release stands, whatever its runner can tell of it)
        METRICS_MISSING.tell(error=str(error))
    else:
        METRICS_COUNTED.tell(metrics=values)
