"""Every metric that a job counts, in one place: name, kind, unit, what it says, and who may know it.

Metrics are operations data: they go to the runner's own page and, with --verbose, to the terminal, and never into a
release. Each is counted once a slice of a file, shard group, sub-query or release, and not once a row. A runner that
retries a bundle counts its attempt once more, unless it tells committed counts (Dataflow and the DirectRunner do).

`python -m sfumato.transforms.metrics` prints the table of docs/reference/observability.md.
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

from sfumato.transforms.locations.encode import DROP_REASONS
from sfumato.transforms.text_tables import markdown_table

NAMESPACE = "sfumato"
RAW, PUBLIC = "operator", "anybody"  # who may know a metric's value
_T = TypeVar("_T")


@dataclass(frozen=True)
class Metric:
    """A metric. name: ends in its unit. readers: RAW where the value follows from unprotected data, else PUBLIC."""

    KIND: ClassVar[str]

    name: str
    unit: str
    readers: str
    says: str

    def __post_init__(self) -> None:
        if self.name != self.unit and not self.name.endswith(f"_{self.unit}"):
            raise ValueError(f"metric {self.name}: its name must end in its unit, {self.unit}")


class Counter(Metric):
    """A metric that is added up over the whole run."""

    KIND = "counter"

    def add(self, number: int = 1) -> None:
        """Adds to the job's counter."""
        Metrics.counter(NAMESPACE, self.name).inc(int(number))


class Distribution(Metric):
    """A metric with a value a slice, group, sub-query or release: their number, sum, least and greatest are kept."""

    KIND = "distribution"

    def record(self, value: float) -> None:
        """Adds a value, rounded to a whole number of the unit, to the job's distribution."""
        Metrics.distribution(NAMESPACE, self.name).update(round(value))

    @contextmanager
    def timed(self) -> Iterator[None]:
        """Records the milliseconds that the block takes; not those of one that fails."""
        stopwatch = Stopwatch()
        with stopwatch:
            yield
        self.record(stopwatch.milliseconds)


@dataclass
class Stopwatch:
    """Adds up the time of several stretches of work, without what happens between them."""

    milliseconds: float = 0.0
    _began: float = field(default=0.0, repr=False)

    def __enter__(self) -> Stopwatch:
        self._began = time.perf_counter()
        return self

    def __exit__(self, *_: object) -> None:
        self.milliseconds += 1000 * (time.perf_counter() - self._began)

    def over(self, items: Iterable[_T]) -> Iterator[_T]:
        """The items, with the time that it takes to get each added."""
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
CLAMPED_ROWS = Counter(
    "clamped_rows",
    "rows",
    RAW,
    "rows whose value was moved to the border of --range or --bits",
)
READ_FILES = Counter("read_files", "files", RAW, "files read to their end")
SLICE_ROWS = Distribution("slice_rows", "rows", RAW, "rows of a slice, some row groups of a file")
SLICE_READ = Distribution(
    "slice_read_milliseconds", "milliseconds", RAW, "reading and encoding a slice, waits for storage included"
)
BOUNDED_USERS = Counter("bounded_users", "users", RAW, "distinct users with a usable row, before any cohort is drawn")
SHARD_GROUP_USERS = Distribution("shard_group_users", "users", RAW, "users of the cohort in a group of shards")
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
REPORTED_BITS = Counter("reported_bits", "bits", RAW, "bits of their values that clients told")
TALLY_TIME = Distribution("block_tally_milliseconds", "milliseconds", RAW, "a stage's reports of one block of clients")
RELEASE_BYTES = Distribution("release_bytes", "bytes", PUBLIC, "all files of the release")
RELEASE_TIME = Distribution("release_write_milliseconds", "milliseconds", PUBLIC, "writing the release to its place")

METRICS: Mapping[str, Metric] = {
    metric.name: metric
    for metric in (
        *(READ_FILES, READ_ROWS, *DROPPED_ROWS.values(), CLAMPED_ROWS, SLICE_ROWS, SLICE_READ),
        *(BOUNDED_USERS, SHARD_GROUP_USERS, SHARD_GROUP_BYTES),
        *(SUB_QUERIES, VECTOR_ENTRIES, LOST_SHARDS, SUM_TIME),
        *(REPORTED_BITS, TALLY_TIME),
        *(COUNT_TIME, RELEASE_BYTES, RELEASE_TIME),
    )
}


def read_metrics(result: PipelineResult) -> dict[str, int | dict[str, int]]:
    """What a run counted, in the order of METRICS, over all its steps.

    A counter is a number; a distribution has a count, a sum, a min and a max. What the run had no use for is missing.
    """
    found = result.metrics().query(MetricsFilter().with_namespace(NAMESPACE))
    values: dict[str, int | dict[str, int]] = {}
    for name in METRICS:
        counted = [one.result for one in found["counters"] if one.key.metric.name == name]
        spread = [one.result for one in found["distributions"] if one.key.metric.name == name]
        if counted:
            values[name] = sum(counted)
        elif spread := [one for one in spread if one is not None and one.count]:
            values[name] = {
                "count": sum(one.count for one in spread),
                "sum": sum(one.sum for one in spread),
                "min": min(one.min for one in spread),
                "max": max(one.max for one in spread),
            }
    return values


def metrics_table(values: Mapping[str, int | Mapping[str, int]]) -> str:
    """What `read_metrics` found, for a terminal; counters at 0 are left out."""
    rows = [["metric", "total", "number", "least", "mean", "greatest"]]
    for name, value in values.items():
        if isinstance(value, int):
            if value:
                rows.append([name, f"{value:,}", "", "", "", ""])
        else:
            mean = value["sum"] / value["count"]
            spread = (value["min"], mean, value["max"])
            rows.append([name, f"{value['sum']:,}", f"{value['count']:,}", *(f"{one:,.0f}" for one in spread)])
    return markdown_table(rows)


def registry_table() -> str:
    """All metrics, as docs/reference/observability.md shows them."""
    rows = [["metric", "kind", "unit", "for whom", "what it says"]]
    rows += [[f"`{one.name}`", one.KIND, one.unit, one.readers, one.says] for one in METRICS.values()]
    return markdown_table(rows, left=range(5))


if __name__ == "__main__":
    sys.stdout.write(registry_table())
