"""The registry of all metrics of a job: name, kind, unit, meaning, and who may read it.

Metrics are operations data. They go to the runner's page and, with --verbose, to the terminal, and never into a
release. They are counted once for each file slice, shard group, sub-query or release, and not for each row. A retried
bundle counts twice, unless the runner reports committed counts (Dataflow and the DirectRunner do).

`python -m sfumato.transforms.observability.metrics` prints the table of docs/reference/observability.md.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import ClassVar, TypeVar

from apache_beam.metrics import Metrics, MetricsFilter
from apache_beam.runners.runner import PipelineResult

from sfumato.schemas.locations import DROP_REASONS
from sfumato.transforms.observability.text_tables import markdown_table

NAMESPACE = "sfumato"
RAW, PUBLIC = "operator", "anybody"  # who may read a metric
_T = TypeVar("_T")


@dataclass(frozen=True)
class Metric:
    """A metric."""

    KIND: ClassVar[str]

    name: str  # ends in its unit
    unit: str  # of its values
    readers: str  # RAW if the value follows from unprotected data, else PUBLIC
    meaning: str  # one line of text

    def __post_init__(self) -> None:
        if self.name != self.unit and not self.name.endswith(f"_{self.unit}"):
            raise ValueError(f"metric {self.name}: its name must end in its unit, {self.unit}")


class Counter(Metric):
    """A metric that is summed over the run."""

    KIND = "counter"

    def add(self, number: int = 1) -> None:
        """Adds to the job's counter."""
        Metrics.counter(NAMESPACE, self.name).inc(int(number))


class Distribution(Metric):
    """A metric with many values. The runner keeps their number, sum, minimum and maximum."""

    KIND = "distribution"

    def record(self, value: float) -> None:
        """Adds a value, rounded to an integer, to the job's distribution."""
        Metrics.distribution(NAMESPACE, self.name).update(round(value))

    @contextmanager
    def timed(self) -> Iterator[None]:
        """Records the milliseconds that the block takes, unless it fails."""
        stopwatch = Stopwatch()
        with stopwatch:
            yield
        self.record(stopwatch.milliseconds)


@dataclass
class Stopwatch:
    """Sums the time of several `with` blocks, without the time between them."""

    milliseconds: float = 0.0
    _start: float = field(default=0.0, repr=False)

    def __enter__(self) -> Stopwatch:
        self._start = time.perf_counter()
        return self

    def __exit__(self, *_: object) -> None:
        self.milliseconds += 1000 * (time.perf_counter() - self._start)

    def over(self, items: Iterable[_T]) -> Iterator[_T]:
        """Yields the items, and adds the time that it takes to get each."""
        iterator, end = iter(items), object()
        while True:
            with self:
                item = next(iterator, end)
            if item is end:
                return
            yield item  # type: ignore[misc]


READ_ROWS = Counter("read_rows", "rows", RAW, "rows read from the logs, good and bad")
DROPPED_ROWS = {
    reason: Counter(f"dropped_{reason}_rows", "rows", RAW, f"rows dropped: {reason.replace('_', ' ')}")
    for reason in DROP_REASONS
}
CLAMPED_ROWS = Counter("clamped_rows", "rows", RAW, "rows whose value was clamped to --range or --bits")
READ_FILES = Counter("read_files", "files", RAW, "files read to their end")
EARLIER_DAYS_ROWS = Counter(
    "earlier_days_rows", "rows", RAW, "rows of days before the release's, left out by --day_column: late rows"
)
LATER_DAYS_ROWS = Counter("later_days_rows", "rows", RAW, "rows of days after the release's, left out by --day_column")
SLICE_ROWS = Distribution("slice_rows", "rows", RAW, "rows of a slice (a slice is one or more row groups of a file)")
SLICE_READ = Distribution(
    "slice_read_milliseconds", "milliseconds", RAW, "reading and encoding a slice, including waits for storage"
)
BOUNDED_USERS = Counter("bounded_users", "users", RAW, "distinct users with a usable row")
USER_GROUP_BYTES = Distribution("user_group_bytes", "bytes", RAW, "size of the records of a group of users, as grouped")
SHARD_GROUP_USERS = Distribution("shard_group_users", "users", RAW, "users in a group of shards")
SHARD_GROUP_BYTES = Distribution("shard_group_bytes", "bytes", RAW, "size of the index over a group of shards")
SUM_TIME = Distribution(
    "sub_query_sum_milliseconds", "milliseconds", RAW, "one sub-query's noisy sums over one group of shards"
)
SUB_QUERIES = Counter("sub_queries", "sub_queries", PUBLIC, "sub-queries answered")
VECTOR_ENTRIES = Counter("vector_entries", "entries", PUBLIC, "entries of all sub-queries' vectors")
LOST_SHARDS = Counter("lost_shards", "shards", PUBLIC, "shards lost, over all sub-queries")
COUNT_TIME = Distribution(
    "group_count_milliseconds", "milliseconds", RAW, "all rounds' counts over one group of sampled users"
)
REPORTED_BITS = Counter("reported_bits", "bits", RAW, "bits that clients reported of their values")
TALLY_TIME = Distribution("block_tally_milliseconds", "milliseconds", RAW, "a stage's reports of one block of clients")
RELEASE_BYTES = Distribution("release_bytes", "bytes", PUBLIC, "all files of the release")
RELEASE_TIME = Distribution("release_write_milliseconds", "milliseconds", PUBLIC, "writing the release to its place")

METRICS: Mapping[str, Metric] = {
    metric.name: metric
    for metric in (
        *(READ_FILES, READ_ROWS, EARLIER_DAYS_ROWS, LATER_DAYS_ROWS, *DROPPED_ROWS.values(), CLAMPED_ROWS),
        *(SLICE_ROWS, SLICE_READ, BOUNDED_USERS, USER_GROUP_BYTES, SHARD_GROUP_USERS, SHARD_GROUP_BYTES),
        *(SUB_QUERIES, VECTOR_ENTRIES, LOST_SHARDS, SUM_TIME, REPORTED_BITS, TALLY_TIME),
        *(COUNT_TIME, RELEASE_BYTES, RELEASE_TIME),
    )
}


def read_metrics(result: PipelineResult) -> dict[str, int | dict[str, int]]:
    """Returns the metrics of a run, in the order of METRICS, over all its steps. Unused metrics are missing.

    Returns:
        A number for each counter; count, sum, min and max for each distribution.
    """
    by_step = result.metrics().query(MetricsFilter().with_namespace(NAMESPACE))
    values: dict[str, int | dict[str, int]] = {}
    for name in METRICS:
        counters = [step.result for step in by_step["counters"] if step.key.metric.name == name]
        spreads = [step.result for step in by_step["distributions"] if step.key.metric.name == name]
        spreads = [spread for spread in spreads if spread is not None and spread.count]
        if counters:
            values[name] = sum(number or 0 for number in counters)  # MetricResult.result reads a committed 0 as None
        elif spreads:
            values[name] = {
                "count": sum(spread.count for spread in spreads),
                "sum": sum(spread.sum for spread in spreads),
                "min": min(spread.min for spread in spreads),
                "max": max(spread.max for spread in spreads),
            }
    return values


def metrics_table(values: Mapping[str, int | Mapping[str, int]]) -> str:
    """Returns the values of `read_metrics` as a table for a terminal, without counters at 0."""
    rows = [["metric", "total", "number", "least", "mean", "greatest"]]
    for name, value in values.items():
        if isinstance(value, int):
            if value:
                rows.append([name, f"{value:,}", "", "", "", ""])
        else:
            numbers = (value["min"], value["sum"] / value["count"], value["max"])
            rows.append([name, f"{value['sum']:,}", f"{value['count']:,}", *(f"{number:,.0f}" for number in numbers)])
    return markdown_table(rows)


def registry_table() -> str:
    """Returns the table of all metrics in docs/reference/observability.md."""
    rows = [["metric", "kind", "unit", "readers", "meaning"]]
    rows += [
        [f"`{metric.name}`", metric.KIND, metric.unit, metric.readers, metric.meaning] for metric in METRICS.values()
    ]
    return markdown_table(rows, left=range(5))


if __name__ == "__main__":
    sys.stdout.write(registry_table())
