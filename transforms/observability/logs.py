"""The events of a job: named records of Python's logging with fields.

The text of a record is its message. Its attributes `event` and `fields` hold the name and the values.
`pipelines/frame/console.py` shows them on the terminal; a remote runner keeps the messages in its log.
"""

from __future__ import annotations

import logging
import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sfumato.schemas.known_digits import NOISE_Z
from sfumato.transforms.observability.text_tables import counted, significant

JOB = logging.getLogger("sfumato.job")  # the command itself: plans, warnings, errors
PROGRESS = logging.getLogger("sfumato.progress")  # the job's stages
OPERATIONS = logging.getLogger("sfumato.operations")  # raw numbers, shown with --verbose only


class _MessageFormatter(string.Formatter):
    """Formats the fields of an event; mappings become `name number, name number`.

    `{counted}` is the number of users with its margin, and `{margin}` the half width of a 95% interval: from the fields
    `users` and `noise_stddev`, which an event's record has with all their digits.
    """

    def get_value(self, key: int | str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        if key == "counted":
            return counted(kwargs["users"], kwargs["noise_stddev"])
        if key == "margin":
            return significant(NOISE_Z * kwargs["noise_stddev"], 2)
        return super().get_value(key, args, kwargs)

    def format_field(self, value: Any, spec: str) -> Any:
        if isinstance(value, Mapping):
            return ", ".join(f"{name} {number:,}" for name, number in value.items()) or "none"
        return super().format_field(value, spec)


@dataclass(frozen=True)
class Event:
    """A kind of record that a stage of a job writes."""

    name: str  # the event's name in JSON logs
    text: str  # the message, a format string of the event's fields
    level: int = logging.INFO
    raw: bool = False  # whether the fields describe unprotected data. Raw events are shown with --verbose only

    def emit(self, **fields: Any) -> None:
        """Writes a record. fields: one value for each name in `text`."""
        logger, level = (OPERATIONS, logging.DEBUG) if self.raw else (PROGRESS, self.level)
        if logger.isEnabledFor(level):
            message = _MessageFormatter().vformat(self.text, (), fields)
            logger.log(level, "%s", message, extra={"event": self.name, "fields": fields})


READ_FILE = Event("read_file", "read file {file}")
COUNTED_USERS = Event("read_logs", "read and grouped the logs: {counted}, by a noisy count")
COUNTED_COHORT = Event("read_logs", f"{COUNTED_USERS.text}, in the active cohort, one of {{cohorts}}")
FEW_USERS = Event(
    "few_users",
    "{counted} in the {rows}, perhaps none; {check} (sfumato inspect); the run continues and "
    "spends its epsilon{advice}",
    logging.WARNING,
)
_SUB_QUERY = "sub-query {sub_query}: {entries} entries, {cost}, {remaining:.4g} remaining, noise ± {margin} users (95%)"
SUB_QUERY = Event("sub_query", _SUB_QUERY)
SUB_QUERY_WITH_LOSS = Event("sub_query", f"{_SUB_QUERY}, {{shards_lost}} of {{shards}} shards lost")
ROUND = Event("round", "{quantity}, round {round}: {clients:,.0f} clients sent {reports:,.0f} bits")
TRAINING = Event("training", "training network {number} of {networks} on the noisy counts: {duration}")
TRAINED = Event("trained", "trained network {number} of {networks} in {seconds:.0f} s")
LATE_ROWS = Event("late_rows", "rows that arrived after the charge: {rows:,}", raw=True)
READ_COUNTS = Event("read_rows", "rows read: {rows:,}; dropped: {dropped}; clamped: {clamped:,}", raw=True)
METRICS_COUNTED = Event("metrics", "metrics", raw=True)
METRICS_MISSING = Event("no_metrics", "the runner does not report metrics: {error}", raw=True)
STAGE_EVENTS = frozenset(
    {"read_file", "read_logs", "sub_query", "round", "training", "trained", "late_rows", "few_users"}
)


def log_event(event: str, message: str, level: int = logging.INFO, **fields: Any) -> None:
    """Writes a record of the command itself. Stages of a job emit an `Event` instead."""
    JOB.log(level, "%s", message, extra={"event": event, "fields": fields})
