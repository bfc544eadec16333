"""The loggers that a job's stages write to and that `pipelines/progress.py` shows."""

import logging

PROGRESS = logging.getLogger("sfumato.progress")
OPERATIONS = logging.getLogger("sfumato.operations")  # raw numbers, never shown unless asked for
