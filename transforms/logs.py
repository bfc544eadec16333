"""What a job tells while it runs: named events with fields, as records of Python's own logging.

A record has the message as its text, `event` as its name and `fields` beside; `pipelines/progress.py` writes it to the
terminal, and a remote runner keeps the message in its log. Pure.
"""

from __future__ import annotations

import logging
import string
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sfumato.transforms.text_tables import significant

JOB = logging.getLogger("sfumato.job")  # the command itself: what it is about to do, warnings, errors
PROGRESS = logging.getLogger("sfumato.progress")  # the job's stages
OPERATIONS = logging.getLogger("sfumato.operations")  # raw numbers, never shown unless asked for


class _Words(string.Formatter):
    """Format strings that write `{x:~}` with three significant digits, and mappings in words."""

    def format_field(self, value: Any, spec: str) -> Any:
        if isinstance(value, Mapping):
            return ", ".join(f"{name} {number:,}" for name, number in value.items()) or "none"
        return significant(value) if spec == "~" else super().format_field(value, spec)


@dataclass(frozen=True)
class Event:
    """A kind of record that a stage of the job writes. text: its message, a format string of its fields.

    raw: of unprotected data, so that it is shown to nobody who has not asked for operations data.
    """

    name: str
    text: str
    raw: bool = False

    def tell(self, **fields: Any) -> None:
        """Writes a record with all the fields that the text names."""
        logger, level = (OPERATIONS, logging.DEBUG) if self.raw else (PROGRESS, logging.INFO)
        if logger.isEnabledFor(level):
            message = _Words().vformat(self.text, (), fields)
            logger.log(level, "%s", message, extra={"event": self.name, "fields": fields})


READ_FILE = Event("read_file", "read file {file}")
COUNTED_USERS = Event(
    "read_logs", "read and grouped the logs: {users:,.0f} users (private count, epsilon {epsilon:.4g})"
)
SAMPLED_USERS = Event("read_logs", "read and sampled the logs")
_SUB_QUERY = (
    "sub-query {sub_query}: {entries} entries, epsilon {epsilon:.4g}, {remaining:.4g} remaining, "
    "noise ±{noise_users:~} users"
)
SUB_QUERY = Event("sub_query", _SUB_QUERY)
SUB_QUERY_WITH_LOSS = Event("sub_query", f"{_SUB_QUERY}, {{shards_lost}} of {{shards}} shards lost")
ASKED = Event("round", "{quantity}, round {round}: {clients:,.0f} clients told {reports:,.0f} bits")
TRAINED = Event("trained", "trained network {number} of {networks} in {seconds:.0f} s")
COMPARED = Event("compared", "compared {setting}, key {key}")
LATE_ROWS = Event("late_rows", "rows that came after the charge: {rows:,}", raw=True)
READ_COUNTS = Event("read_rows", "rows read: {rows:,}; dropped: {dropped}; clamped: {clamped:,}", raw=True)
METRICS_COUNTED = Event("metrics", "metrics", raw=True)
METRICS_MISSING = Event("no_metrics", "the runner does not tell the metrics: {error}", raw=True)
EVENTS = (
    READ_FILE,
    LATE_ROWS,
    COUNTED_USERS,
    SAMPLED_USERS,
    SUB_QUERY_WITH_LOSS,
    SUB_QUERY,
    ASKED,
    TRAINED,
    COMPARED,
)


def log_event(event: str, message: str, level: int = logging.INFO, **fields: Any) -> None:
    """Writes a record of the command itself; one of its stages is an `Event`."""
    JOB.log(level, "%s", message, extra={"event": event, "fields": fields})
