"""Fixes two faults of Beam: a flush that loses elements, and notebooks in which no pipeline starts. Import it.

**The timed flush.** With worker threads or processes, Beam's own local runner flushes its output buffers once a second
from another thread. Its lock does not stop the worker's writes, so what the worker writes during the flush is lost in
silence. The report is in docs/explanation/beam_reports.md. With a time limit of 0 only the writing thread flushes, by
size. Sfumato's own jobs do not run in these modes, but other pipelines with its transforms may.

**Notebooks.** In IPython Beam loads its interactive runner to put a cell's number before labels. That runner of Beam
2.77 does not load with pandas 3 (`type object 'DataFrame' has no attribute 'first'`), so every pipeline fails. Where
it does not load, labels stay as they are.

tests/jobs/runners/test_beam.py fails as soon as Beam is repaired. Then delete what is not needed.
"""

import functools
import importlib
import warnings
from typing import Any

from apache_beam import pipeline
from apache_beam.runners.portability.fn_api_runner import worker_handlers
from apache_beam.utils import interactive_utils
from apache_beam.version import __version__

if hasattr(worker_handlers, "DATA_BUFFER_TIME_LIMIT_MS"):
    worker_handlers.DATA_BUFFER_TIME_LIMIT_MS = 0
else:
    warnings.warn(
        f"Beam {__version__} has another name for the interval of its timed flush; whether Beam's modes "
        "multi_threading and multi_processing still lose elements is not known",
        RuntimeWarning,
        stacklevel=2,
    )

_label_by_cell = interactive_utils.alter_label_if_ipython


@functools.cache
def has_interactive_runner() -> bool:
    """Returns whether Beam's interactive runner loads here."""
    try:
        importlib.import_module("apache_beam.runners.interactive.interactive_environment")
    except (AttributeError, ImportError):
        return False
    return True


def _label_where_possible(transform: Any, pvalueish: Any) -> None:
    if interactive_utils.is_in_ipython() and has_interactive_runner():
        _label_by_cell(transform, pvalueish)


pipeline.alter_label_if_ipython = _label_where_possible
