"""The jobs as PTransforms, for your own pipelines: rows or paths of logs in, typed rows out.

A transform takes a bounded PCollection of rows (`beam.Row`, NamedTuples, dictionaries), of tables (pyarrow, pandas), or
of paths of logs (Parquet, CSV or NDJSON; local or gs://). It yields `beam.Row`s with a declared schema: those of the
table that the job of this name publishes. Options are those of the job, by name. Constructors raise RequestError for a
wrong one. A run raises NotAdmittedError if noisy counts find too many unusable records.

Each result costs `epsilon`, and counts by sample and threshold also cost `delta`. With `ledger`, `dataset`, `period`
and `key_file`, a transform charges its ledger once all input is read, before any noise is drawn. Without a ledger, add
both to the earlier releases of the same users.

A key draws the noise. Without `key_file`, each use of a transform draws a new key. This is safe in runners that work in
this process. A remote runner or an expansion service would reveal the key in the job's graph; there, give `key_file`,
which the workers read. A pipeline that is run again over the same rows or files gives the same result. Over others its
noise would be the same, and the difference of both results would have none: the run raises DataError in this process,
and with a ledger everywhere. The workers of a remote runner do not know of earlier runs without a ledger: there, use a
`release_id` for one input. The default is a random one for each graph.

With `error_handling={"output": NAME}` a transform returns a dictionary of two PCollections, by Beam's convention:
`good`, and NAME with a row for each reason why rows of the input were not used: reason, count. These counts are exact.
They are for the operator and must not be published.

Input is in the global window with Beam's default trigger, because all records of a user must meet.

The examples begin with

    import glob
    from pathlib import Path
    import apache_beam as beam
    from sfumato.beam import PrivateHeatmap
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Optional

import apache_beam as beam
import pyarrow as pa
import pyarrow.types as pt
from apache_beam.typehints.row_type import RowTypeConstraint

from sfumato.pipelines.command_line.run import release_job
from sfumato.pipelines.frame.elements import LogsOfKey, stays_here
from sfumato.pipelines.frame.job import Inputs
from sfumato.pipelines.frame.release_run import gate_of, log_times, resumed_charge
from sfumato.pipelines.frame.run_key import key_and_metadata
from sfumato.schemas.errors import DataError, RequestError, shown
from sfumato.schemas.guarantee import Trust
from sfumato.schemas.locations import DROP_REASONS
from sfumato.schemas.moments import MOMENTS_SCHEMA
from sfumato.schemas.parquet_table import parquet_table
from sfumato.schemas.release import (
    CELLS_FILE,
    FLOWS_FILE,
    ITEMS_FILE,
    MODEL_FILE,
    MOMENTS_FILE,
    QUANTILES_FILE,
    QUANTILES_SCHEMA,
    ZONES_FILE,
    cells_schema,
    counted_zones_schema,
    flows_schema,
    hot_cells_schema,
    items_schema,
    zones_schema,
)
from sfumato.schemas.requests.publish_request import ReleaseRequest
from sfumato.transforms.counting.rates import published_categories
from sfumato.transforms.histogram.item_encoding import ZoneItems
from sfumato.transforms.inputs.rows import fields_of
from sfumato.transforms.io.files import is_remote
from sfumato.transforms.locations.read import RowCounts
from sfumato.transforms.locations.spill import Spill
from sfumato.transforms.ranges.model import RangeModel
from sfumato.transforms.ranges.model_file import read_model
from sfumato.transforms.release.catalog import check_not_lost
from sfumato.transforms.release.publishing import commit_release, write_release

# Options of every release that a transform has, too; others belong to a run of the command line.
_OPTIONS = (
    *("input_format", "decimal", "dates", "min_users", "max_bad_fraction", "overwrite", "release_id"),
    *("day_column", "hours", "period", "time_zone", "key_file", "key_secret", "ledger", "dataset", "budget"),
)
# Of the second output, for the operator.
_UNUSABLE = RowTypeConstraint.from_fields([("reason", str), ("count", int)])
_TYPES = (
    (pt.is_floating, float),
    (pt.is_boolean, bool),
    (pt.is_integer, int),
    (pt.is_string, str),
    (pt.is_large_string, str),
    (pt.is_binary, bytes),
)


class _PrivateJob(beam.PTransform):
    """Rows or paths of logs -> the rows of the table that a job publishes.

    Args:
        output: a folder for the job's complete release, with its page and manifest; None makes none.
        error_handling: `{"output": NAME}` adds an output NAME, see the module; None adds none.
        **options: those of the job, by name.

    Raises:
        RequestError: an option is wrong, or belongs to a run of the command line.
    """

    JOB: ClassVar[str]  # its name in the registry of jobs

    def __init__(self, *, output: str | None = None, error_handling: Any = None, **options: Any):
        super().__init__()
        for name in options:
            if name in ReleaseRequest.model_fields and name not in _OPTIONS:
                raise RequestError(
                    f"{name}: not available in a pipeline of your own; run sfumato {self.JOB}, or call "
                    f"sfumato.{self.JOB.split()[0]}(..., {name}=...)"
                )
        # The request requires both. Input comes from a pipeline, and without `output` only rows leave it.
        values = {"input": "-", "output": output or "-", **options}
        # Numbers may be of NumPy's types.
        plain = {name: one.item() if hasattr(one, "item") else one for name, one in values.items()}
        self._output = output
        self._unusable = _error_output(error_handling)
        self._job = release_job(self.JOB, plain)
        if output is not None:
            resumed_charge(self._job)
            if (ledger := self._job.accounting) is not None:
                check_not_lost(ledger.open().history(), ledger.dataset, output)

    def table(self, job: Any) -> tuple[str, pa.Schema]:
        """Returns the file of the release whose rows the transform yields, and its columns."""
        raise NotImplementedError

    def expand(self, elements: beam.PCollection) -> beam.PCollection | dict[str, beam.PCollection]:
        job, local = self._job, stays_here(elements.pipeline)
        if not local and job.accounting is not None and not is_remote(job.accounting.ledger):
            raise RequestError(
                f"ledger: workers on other machines cannot reach {job.accounting.ledger!r}; name a place in a bucket, "
                "gs://..."
            )
        log_times(job.request, (), job.columns())
        key, metadata = key_and_metadata(job, (), local=local)
        gate, metadata = gate_of(job, key, metadata)
        logs, bound = elements | "Logs" >> LogsOfKey(key, job, gate)  # PCollection[LogFile], PCollection[LedgerGate]
        counted: list[beam.PCollection] = []
        side = gate and beam.pvalue.AsSingleton(bound)
        charge_and_admit = job.charge_and_admit(side, counted.append)
        files = job.files(logs, Inputs({}, Spill(), charge_and_admit), key, metadata)
        if self._output is not None:
            _ = (
                files
                | "Write" >> beam.Map(write_release, self._output, metadata, job.request.overwrite)  # PCollection[path]
                | "Commit" >> beam.Map(commit_release, metadata.release_id, None, metadata.ledger_location)
            )
        if self._unusable is None:
            return self.results(files)
        unusable = counted[0] | "Unusable" >> beam.FlatMap(_unusable_rows).with_output_types(_UNUSABLE)
        return {"good": self.results(files), self._unusable: unusable}

    def results(self, files: beam.PCollection) -> beam.PCollection:
        """Returns what the transform yields of a release's files."""
        file, schema = self.table(self._job)
        rows = beam.FlatMap(_rows_of, file, schema).with_output_types(row_type(schema))
        return files | "Rows" >> rows  # PCollection[beam.Row]


class PrivateHeatmap(_PrivateJob):
    """Rows or paths of logs -> a row for each cell of a private heatmap, as in `cells.parquet` of `sfumato heatmap`.

    Example:
        >>> heatmap = PrivateHeatmap(region=(3.00, 1.00, 3.13, 1.13), epsilon=1.0, depth=6)
        >>> with beam.Pipeline() as pipeline:
        ...     files = pipeline | beam.Create(glob.glob("logs/*.parquet"))
        ...     cells = files | heatmap
        ...     busy = cells | beam.Filter(lambda cell: cell.count > 3 * cell.stddev)
        ...     lines = busy | beam.Map(lambda cell: f"{cell.cell_id},{cell.count:.0f}")
        ...     _ = lines | beam.io.WriteToText("busy", file_name_suffix=".csv", shard_name_template="")
        >>> len(Path("busy.csv").read_text().splitlines()) > 10
        True
    """

    JOB = "heatmap"

    def table(self, job: Any) -> tuple[str, pa.Schema]:
        return CELLS_FILE, cells_schema(*_categories(job), job.count_parameters.method.errors == "posterior")


class PrivateZones(_PrivateJob):
    """Rows or paths of logs -> a row for each public zone, as in `zones.parquet` of `sfumato zones`.

    Example:
        >>> rows = [{"user_id": user, "latitude": 1.0 + user / 1e5, "longitude": 3.05} for user in range(10_000)]
        >>> zones = PrivateZones(h3=7, region=(3.00, 1.00, 3.13, 1.13), epsilon=1.0)
        >>> with beam.Pipeline() as pipeline:
        ...     users = pipeline | beam.Create(rows) | zones | beam.Map(lambda zone: f"{zone.zone},{zone.users:.0f}")
        ...     _ = users | beam.io.WriteToText("zones", file_name_suffix=".csv", shard_name_template="")
        >>> len(Path("zones.csv").read_text().splitlines()) > 10
        True
    """

    JOB = "zones"

    def table(self, job: Any) -> tuple[str, pa.Schema]:
        return ZONES_FILE, zones_schema(*_categories(job), named=job.request.label_column is not None)


class PrivateFlows(_PrivateJob):
    """Rows or paths of logs -> a row for each flow between two places, as in `flows.parquet` of `sfumato flows`.

    Example:
        >>> trips = PrivateFlows(region=(3.00, 1.00, 3.13, 1.13), depth=4, time_column="timestamp", epsilon=4.0)
        >>> with beam.Pipeline() as pipeline:
        ...     files = pipeline | beam.Create(glob.glob("logs/*.parquet"))
        ...     flows = files | trips | beam.Map(lambda flow: f"{flow.origin_cell},{flow.trips:.0f}")
        ...     _ = flows | beam.io.WriteToText("flows", file_name_suffix=".csv", shard_name_template="")
        >>> len(Path("flows.csv").read_text().splitlines()) > 0
        True
    """

    JOB = "flows"

    def table(self, job: Any) -> tuple[str, pa.Schema]:
        return FLOWS_FILE, flows_schema(job.requested.zones is not None, job.request.label_column is not None)


class PrivateHistogram(_PrivateJob):
    """Rows or paths of logs -> a row for each item that enough users hold, as `sfumato histogram` publishes them.

    The rows are those of `items.parquet`, or of `cells.parquet` or `zones.parquet` if places are counted.
    Items are text.

    Example:
        >>> with beam.Pipeline() as pipeline:
        ...     files = pipeline | beam.Create(glob.glob("logs/*.parquet"))
        ...     items = files | PrivateHistogram(column="infected", epsilon=1.0, delta=1e-6)
        ...     lines = items | beam.Map(lambda row: f"{row.item},{row.count:.0f}")
        ...     _ = lines | beam.io.WriteToText("infected", file_name_suffix=".csv", shard_name_template="")
        >>> sorted(line.split(",")[0] for line in Path("infected.csv").read_text().splitlines())
        ['false', 'true']
    """

    JOB = "histogram"

    def table(self, job: Any) -> tuple[str, pa.Schema]:
        noisy = job.request.trust != Trust.SECAGG
        if isinstance(job.counted, ZoneItems):
            return ZONES_FILE, counted_zones_schema(noisy, job.request.label_column is not None)
        if job.request.column is None:
            return CELLS_FILE, hot_cells_schema(noisy)
        return ITEMS_FILE, items_schema(pa.string(), noisy)


class PrivateHotspots(PrivateHistogram):
    """Rows or paths of logs -> a row for each popular item, level by level, as `sfumato hotspots` publishes them.

    An item is searched where the prefix above it is popular (TrieHH++), so there may be many more items than users. The
    rows are those of `items.parquet`, or with a region of `cells.parquet`. A column must hold text.

    Example:
        >>> places = PrivateHotspots(region=(3.00, 1.00, 3.13, 1.13), depth=4, levels=2, epsilon=1.0, delta=1e-6)
        >>> with beam.Pipeline() as pipeline:
        ...     files = pipeline | beam.Create(glob.glob("logs/*.parquet"))
        ...     finest = files | places | beam.Filter(lambda cell: cell.depth == 4)
        ...     lines = finest | beam.Map(lambda cell: f"{cell.cell_id},{cell.count:.0f}")
        ...     _ = lines | beam.io.WriteToText("places", file_name_suffix=".csv", shard_name_template="")
        >>> len(Path("places.csv").read_text().splitlines()) > 1
        True
    """

    JOB = "hotspots"


class PrivateQuantiles(_PrivateJob):
    """Rows or paths of logs -> a row for each quantile of a number over users: share, value, low, high.

    Example:
        >>> median = PrivateQuantiles(column="km_from_home", range=(0, 30), quantiles=(0.5,), epsilon=1.0, delta=1e-6)
        >>> with beam.Pipeline() as pipeline:
        ...     files = pipeline | beam.Create(glob.glob("logs/*.parquet"))
        ...     lines = files | median | beam.Map(lambda row: f"{row.value:.1f}")
        ...     _ = lines | beam.io.WriteToText("median", file_name_suffix=".csv", shard_name_template="")
        >>> 0 < float(Path("median.csv").read_text()) < 30
        True
    """

    JOB = "quantiles"

    def table(self, job: Any) -> tuple[str, pa.Schema]:
        return QUANTILES_FILE, QUANTILES_SCHEMA


class PrivateMoments(_PrivateJob):
    """Rows or paths of logs -> a row for each statistic of a number, and of each group, as `sfumato moments` has them.

    Example:
        >>> with beam.Pipeline() as pipeline:
        ...     files = pipeline | beam.Create(glob.glob("logs/*.parquet"))
        ...     means = files | PrivateMoments(column="km_from_home", epsilon=4.0, bits=12, fraction_bits=6)
        ...     lines = means | beam.Map(lambda row: f"{row.statistic},{row.value:.1f}")
        ...     _ = lines | beam.io.WriteToText("mean", file_name_suffix=".csv", shard_name_template="")
        >>> Path("mean.csv").read_text().startswith("mean,")
        True
    """

    JOB = "moments"

    def __init__(self, **options: Any):
        if options.get("no_dp"):
            raise RequestError("no_dp: not available in a pipeline, as nothing would protect a user; give epsilon=...")
        super().__init__(**options)

    def table(self, job: Any) -> tuple[str, pa.Schema]:
        return MOMENTS_FILE, MOMENTS_SCHEMA


class PrivateRanges(_PrivateJob):
    """Rows or paths of logs -> one RangeModel, which answers the number of users in any square.

    Example:
        >>> ranges = PrivateRanges(region=(3.00, 1.00, 3.13, 1.13), epsilon=1.0, method="grid", sizes=(500, 5000))
        >>> with beam.Pipeline() as pipeline:
        ...     files = pipeline | beam.Create(glob.glob("logs/*.parquet"))
        ...     users = files | ranges | beam.Map(lambda model: model.answer(3.08, 1.08, 2_000)[0].users[0])
        ...     _ = users | beam.io.WriteToText("users", file_name_suffix=".csv", shard_name_template="")
        >>> float(Path("users.csv").read_text()) > 0
        True
    """

    JOB = "ranges build"

    def __init__(self, **options: Any):
        if options.get("release") is not None:
            raise RequestError("release: not available in a pipeline; run sfumato ranges build --release FOLDER")
        super().__init__(**options)

    def results(self, files: beam.PCollection) -> beam.PCollection:
        model = beam.Map(lambda content: read_model(content[MODEL_FILE], MODEL_FILE)).with_output_types(RangeModel)
        return files | "Model" >> model  # PCollection[RangeModel]


def _categories(job: Any) -> tuple[tuple[str, ...], list[str]]:
    """Returns the categories of a job's auxiliary data, and those with published rates."""
    auxiliary = job.columns().auxiliary
    names = () if auxiliary is None else tuple(auxiliary.categories)
    return names, [names[one] for one in published_categories(names)]


def _error_output(error_handling: Any) -> str | None:
    """Returns the name of the second output, None without one. Raises RequestError for a wrong one."""
    if error_handling is None:
        return None
    try:
        given = dict(fields_of(error_handling))
    except DataError:
        given = {}
    name = given.pop("output", None)
    if given or not isinstance(name, str) or name in ("", "good"):
        raise RequestError(f'error_handling: must be {{"output": NAME}}, NAME not good, got {shown(error_handling)}')
    return name


def _unusable_rows(counts: RowCounts) -> Iterator[beam.Row]:
    """Yields the reasons why rows were not used, with the numbers of these rows: exact, for the operator."""
    for reason, number in zip(DROP_REASONS, counts.dropped, strict=True):
        if number:
            yield beam.Row(reason=reason, count=number)


def row_type(schema: pa.Schema) -> RowTypeConstraint:
    """Returns the type of a table's rows, as Beam declares it: for SQL, BigQuery, other languages and data frames."""
    fields = []
    for field in schema:
        kind: Any = next(python for is_kind, python in _TYPES if is_kind(field.type))
        # Beam takes `kind | None` for a type that only Python knows.
        fields.append((_field_name(field.name), Optional[kind] if field.nullable else kind))  # noqa: UP045
    return RowTypeConstraint.from_fields(fields)


def _field_name(column: str) -> str:
    """Returns the name of a row's field: a column of a category may hold any text."""
    return re.sub(r"\W", "_", column)


def _rows_of(files: Mapping[str, bytes], name: str, schema: pa.Schema) -> Iterator[beam.Row]:
    """Yields the rows of one of a release's tables. Items that are integers become text, as the schema has them."""
    table = parquet_table(files[name])
    columns = [table.column(field.name).cast(field.type).to_pylist() for field in schema]
    names = [_field_name(field.name) for field in schema]
    for values in zip(*columns, strict=True):
        yield beam.Row(**dict(zip(names, values, strict=True)))
