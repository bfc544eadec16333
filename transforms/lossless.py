"""Beam's local runner without the flush that loses elements; importing this is enough.

With worker threads or processes, Beam's own local runner flushes its output buffers once a second from another thread.
The lock it holds does not stop the worker's writes: what is written while the flush hands the buffer over is lost
without a word (docs/explanation/beam_reports.md). With a limit of 0 buffers are flushed by size alone, by the writer.
Sfumato's jobs do not run that way; pipelines that use its transforms may. tests/transforms/test_lossless.py fails once
Beam is mended; then this module can go.
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
