"""Switches off the timed flush of Beam's local runner, which loses elements. Importing this module is enough.

With worker threads or processes, Beam's own local runner flushes its output buffers once a second from another thread.
Its lock does not stop the worker's writes, so what the worker writes during the flush is lost in silence. The report is
in docs/explanation/beam_reports.md. With a time limit of 0 only the writing thread flushes, by size. Sfumato's own jobs
do not run in these modes, but other pipelines with its transforms may. tests/transforms/test_beam_patch.py fails as
soon as Beam is repaired. Then delete this module.
"""

import warnings

from apache_beam.runners.portability.fn_api_runner import worker_handlers
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
