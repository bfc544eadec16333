"""The jobs as PTransforms, for your own pipelines.

Each transform takes paths of logs (Parquet, CSV or NDJSON), local or gs://, and yields plain rows. Constructors check
their options and raise RequestError. A run raises NotAdmittedError if noisy counts find too many unusable records.

No transform charges a ledger. Each result costs `epsilon`, and counts by sample and threshold also cost `delta`. Add
both to the earlier releases of the same users. For a ledger, call `sfumato.heatmap(..., ledger=...)` and the like.

A key draws the noise. Without one, each use of a transform draws a new key. This is safe in runners that work in this
process. A remote runner would reveal the key in the job's graph; there, make a key with `run_key`. Use a key for one
input: the difference of two results with the same noise has no noise. A pipeline that is run again over the same files
gives the same rows. If a file has changed, the run raises DataError in this process, so build the pipeline again. The
workers of a remote runner do not know of earlier runs.

Paths are bounded and in the global window with Beam's default trigger, because all records of a user must meet.

The dataclasses are not frozen, because Beam assigns a label to a transform. Their examples begin with

    import glob
    from pathlib import Path
    import apache_beam as beam
    from sfumato.beam import PrivateHeatmap
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, TypeVar

import apache_beam as beam

from sfumato.pipelines.counts import HistogramJob, HotspotsJob, QuantilesJob, SampledJob
from sfumato.pipelines.frame.job import Inputs
from sfumato.pipelines.runners.runner_settings import check_runner, check_running_mode
from sfumato.schemas.errors import DataError, RequestError
from sfumato.schemas.guarantee import Trust
from sfumato.schemas.locations import Auxiliary, Columns, LocationColumns
from sfumato.schemas.moments import FixedPoint, Statistic, ValueColumns
from sfumato.schemas.ranges import Sizes
from sfumato.schemas.region import Grid, Region
from sfumato.schemas.requests.publish_request import region_of
from sfumato.schemas.requests.request_base import Request
from sfumato.transforms.counting.parameters import HeatmapParameters
from sfumato.transforms.counting.state import HeatmapState
from sfumato.transforms.heatmap.release import cells_table, published_estimate
from sfumato.transforms.heatmap.request import heatmap_parameters
from sfumato.transforms.heatmap.transform import PrivateHeatmap as HeatmapRounds
from sfumato.transforms.histogram.item_encoding import CellItems, Items, NumberBins
from sfumato.transforms.histogram.release import cells_table as counted_cells_table
from sfumato.transforms.histogram.release import items_table
from sfumato.transforms.histogram.request import CELL_DEPTH, HistogramRequest, HotspotsRequest
from sfumato.transforms.histogram.sampling_round import Trie
from sfumato.transforms.inputs.log_file import LogFile
from sfumato.transforms.inputs.log_reader import inspect_log, kinds_of, log_version
from sfumato.transforms.locations.spill import Spill
from sfumato.transforms.moments.client_values import Values
from sfumato.transforms.moments.local.plan import MomentsPlan
from sfumato.transforms.moments.local.transform import PushBits
from sfumato.transforms.privacy.admission import ChargeAndAdmit
from sfumato.transforms.privacy.keys import RunKey
from sfumato.transforms.privacy.secrets import FileSecret, entropy_secret
from sfumato.transforms.quantiles.curve import build_hierarchy, quantile
from sfumato.transforms.quantiles.request import QuantilesRequest
from sfumato.transforms.ranges.plan import RangesPlan
from sfumato.transforms.ranges.transform import BuildRanges
from sfumato.transforms.release.metadata import code_digest, package_versions

Area = Region | Sequence[float] | str
Row = dict[str, Any]
# Runners that work in this process, by the names of their classes.
_LOCAL_RUNNERS = {"DirectRunner", "SwitchingDirectRunner", "BundleBasedDirectRunner", "FnApiRunner"}
# The files that each key reads in this process, both as digests. A key has noise for one input.
_INPUTS: dict[bytes, bytes] = {}


def run_key(key_file: str, name: str) -> RunKey:
    """Returns the key of one run, for runners whose workers are other machines.

    Args:
        key_file: made by `sfumato key new`, where only the workers can read it, such as gs://bucket/key. The graph
            holds its path, not its content.
        name: of the input and the result, such as "visits 2026-11-17". Never use a name for two inputs.

    Raises:
        RequestError: the file cannot be read, is no key, or others can read it.
    """
    secret = FileSecret(key_file)
    secret.check_private()
    # Other code may add the same noise to other numbers, so the key is bound to the code as a job's key is.
    return RunKey.derive(secret, {"name": name, "versions": package_versions(), "code": code_digest()})


@dataclass(kw_only=True, eq=False)
class PrivateHeatmap(beam.PTransform):
    """Paths of logs -> one dict for each cell of a private heatmap, as in its `cells.parquet`.

    Args:
        region: borders in degrees: a Region, (west, south, east, north), or "W,S,E,N".
        epsilon: privacy budget of the complete heatmap.
        depth: the finest grid has 2^depth x 2^depth cells.
        method: see `sfumato.heatmap`.
        options: further options of the heatmap by name, such as {"shard_size": 5_000}.
        columns: names of the columns.
        key: see the module.

    Example:
        >>> heatmap = PrivateHeatmap(region=(3.00, 1.00, 3.13, 1.13), epsilon=1.0, depth=6)
        >>> with beam.Pipeline() as pipeline:
        ...     files = pipeline | beam.Create(glob.glob("logs/*.parquet"))
        ...     cells = files | heatmap
        ...     busy = cells | beam.Filter(lambda cell: cell["count"] > 3 * cell["stddev"])
        ...     lines = busy | beam.Map(lambda cell: f"{cell['cell_id']},{cell['count']:.0f}")
        ...     _ = lines | beam.io.WriteToText("busy", file_name_suffix=".csv", shard_name_template="")
        >>> len(Path("busy.csv").read_text().splitlines()) > 10
        True
    """

    region: Area
    epsilon: float = 1.0
    depth: int = 10
    method: str = "adaptive"
    options: Row | None = None
    columns: LocationColumns = field(default_factory=LocationColumns)
    key: RunKey | None = None

    def __post_init__(self) -> None:
        own, options = {"epsilon": self.epsilon, "depth": self.depth}, self.options or {}
        if both := own.keys() & options.keys():
            raise RequestError(f"options: {min(both)} is an argument of its own")
        self._parameters = heatmap_parameters(self.method, {**options, **own}, self.columns.categories)
        self._grid = Grid(region_of(self.region), self.depth)

    def expand(self, paths: beam.PCollection) -> beam.PCollection:
        key, files = _files_of_key(self.key, paths, self.columns)
        rounds = HeatmapRounds(self._grid.region, self._parameters, key, self.columns)
        rows = beam.FlatMap(_heatmap_rows, self._parameters, self._grid, self.columns.auxiliary)
        state = files | "Rounds" >> rounds  # PCollection[HeatmapState]
        return state | "Rows" >> rows  # PCollection[Row]


def _heatmap_rows(
    state: HeatmapState, parameters: HeatmapParameters, grid: Grid, auxiliary: Auxiliary | None
) -> Iterator[Row]:
    categories = auxiliary.categories if auxiliary else ()
    estimate, unbiased, rates = published_estimate(state, parameters, grid, categories)
    yield from cells_table(estimate, grid, categories, rates, unbiased).to_pylist()


@dataclass(kw_only=True, eq=False)
class PrivateHistogram(beam.PTransform):
    """Paths of logs -> one row for each item that enough users hold, as dicts, by sample and threshold.

    The rows are those of `items.parquet`, or with a region `cells.parquet`, of `sfumato histogram`.

    Its arguments are those of `sfumato.histogram`, with user_id, the name of the column of user ids, and the key.

    Example:
        >>> with beam.Pipeline() as pipeline:
        ...     files = pipeline | beam.Create(glob.glob("logs/*.parquet"))
        ...     items = files | PrivateHistogram(column="infected", epsilon=1.0, delta=1e-6)
        ...     lines = items | beam.Map(lambda row: f"{row['item']},{row['count']:.0f}")
        ...     _ = lines | beam.io.WriteToText("infected", file_name_suffix=".csv", shard_name_template="")
        >>> sorted(line.split(",")[0] for line in Path("infected.csv").read_text().splitlines())
        ['false', 'true']
    """

    epsilon: float
    delta: float
    column: str | None = None
    region: Area | None = None
    cells: int | None = None
    user_id: str = "user_id"
    key: RunKey | None = None

    def __post_init__(self) -> None:
        options = {"column": self.column, "region": self.region, "cells": self.cells}
        self._job = _job_of(HistogramJob, HistogramRequest, self, **options)

    def expand(self, paths: beam.PCollection) -> beam.PCollection:
        counted = _count(paths, self.key, self._job)  # PCollection[Trie]
        return counted | "Rows" >> beam.FlatMap(_counted_rows, self._job.counted)  # PCollection[Row]


_Job = TypeVar("_Job", bound=SampledJob)


def _job_of(kind: type[_Job], request: type[Request], transform: Any, **options: Any) -> _Job:
    """The job that a transform has in common with the command line, by sample and threshold. Raises RequestError."""
    shared = {"epsilon": transform.epsilon, "delta": transform.delta, "user_id_column": transform.user_id}
    if left_out := [name for name, value in shared.items() if value is None]:  # `of` would take the command's defaults
        raise RequestError(f"{left_out[0]}: required")
    # Paths come from a pipeline, and rows go to one.
    values = {"input": "-", "output": "-", **shared, **options}
    # Numbers may be of NumPy's types.
    return kind.of(request.of({name: one.item() if hasattr(one, "item") else one for name, one in values.items()}))


def _count(paths: beam.PCollection, given: RunKey | None, job: SampledJob) -> beam.PCollection:
    """Counts a job's items: a Trie."""
    key, files = _files_of_key(given, paths, job.columns())
    return files | "Count" >> job.count(Inputs({}, Spill(), ChargeAndAdmit(job.admission())), key)


def _counted_rows(trie: Trie, counted: Items) -> Iterator[Row]:
    for level in trie.levels:
        table = counted_cells_table(level, counted.grid) if isinstance(counted, CellItems) else items_table(level)
        yield from table.to_pylist()


@dataclass(kw_only=True, eq=False)
class PrivateHotspots(beam.PTransform):
    """Paths of logs -> a row a popular cell of a map, level by level, as dicts, by sample and threshold.

    The rows are those of `cells.parquet` of `sfumato hotspots`. A cell is searched where the cell above it is popular
    (TrieHH++), so the region may have many more cells than users.

    Its arguments are those of `sfumato.hotspots`, with user_id, the name of the column of user ids, and the key. The
    levels of the search are spread evenly up to the depth, and each costs a round.

    Example:
        >>> places = PrivateHotspots(region=(3.00, 1.00, 3.13, 1.13), depth=4, levels=2, epsilon=1.0, delta=1e-6)
        >>> with beam.Pipeline() as pipeline:
        ...     files = pipeline | beam.Create(glob.glob("logs/*.parquet"))
        ...     finest = files | places | beam.Filter(lambda cell: cell["depth"] == 4)
        ...     lines = finest | beam.Map(lambda cell: f"{cell['cell_id']},{cell['count']:.0f}")
        ...     _ = lines | beam.io.WriteToText("places", file_name_suffix=".csv", shard_name_template="")
        >>> len(Path("places.csv").read_text().splitlines()) > 1
        True
    """

    region: Area
    epsilon: float
    delta: float
    depth: int = CELL_DEPTH
    levels: int = 3
    top: int | None = None
    user_id: str = "user_id"
    key: RunKey | None = None

    def __post_init__(self) -> None:
        options = {"region": self.region, "depth": self.depth, "levels": self.levels, "top": self.top}
        self._job = _job_of(HotspotsJob, HotspotsRequest, self, **options)

    def expand(self, paths: beam.PCollection) -> beam.PCollection:
        counted = _count(paths, self.key, self._job)  # PCollection[Trie]
        return counted | "Rows" >> beam.FlatMap(_counted_rows, self._job.counted)  # PCollection[Row]


@dataclass(kw_only=True, eq=False)
class PrivateQuantiles(beam.PTransform):
    """Paths of logs -> one row for each quantile of a number over users, as dicts, by sample and threshold.

    The rows are those of `quantiles.parquet` of `sfumato quantiles`: share, value, low, high.

    Its arguments are those of `sfumato.quantiles`, with user_id, the name of the column of user ids, and the key.

    Example:
        >>> median = PrivateQuantiles(column="km_from_home", range=(0, 30), quantiles=(0.5,), epsilon=1.0, delta=1e-6)
        >>> with beam.Pipeline() as pipeline:
        ...     files = pipeline | beam.Create(glob.glob("logs/*.parquet"))
        ...     lines = files | median | beam.Map(lambda row: f"{row['value']:.1f}")
        ...     _ = lines | beam.io.WriteToText("median", file_name_suffix=".csv", shard_name_template="")
        >>> 0 < float(Path("median.csv").read_text()) < 30
        True
    """

    column: str
    range: tuple[float, float]
    epsilon: float
    delta: float
    quantiles: Sequence[float] = (0.1, 0.25, 0.5, 0.75, 0.9)
    user_id: str = "user_id"
    key: RunKey | None = None

    def __post_init__(self) -> None:
        options = {"column": self.column, "range": self.range, "quantiles": tuple(self.quantiles)}
        self._job = _job_of(QuantilesJob, QuantilesRequest, self, **options)

    def expand(self, paths: beam.PCollection) -> beam.PCollection:
        rows = beam.FlatMap(_quantile_rows, self._job.requested.counted.scale, self._job.request.quantiles)
        counted = _count(paths, self.key, self._job)  # PCollection[Trie]
        return counted | "Rows" >> rows  # PCollection[Row]


def _quantile_rows(trie: Trie, bins: NumberBins, shares: Sequence[float]) -> Iterator[Row]:
    hierarchy = build_hierarchy(trie, bins)
    if hierarchy.users:
        curve = hierarchy.curve()
        yield from (asdict(quantile(curve, share)) for share in shares)


@dataclass(kw_only=True, eq=False)
class PrivateMoments(beam.PTransform):
    """Paths of logs -> a row a statistic of a number, as dicts, of which each user sends randomised bits.

    The rows are those of `moments.parquet` of `sfumato moments`, of all users. One record of each user counts.

    Its arguments are those of `sfumato.moments`, with user_id, the name of the column of user ids, and the key. Epsilon
    is the local budget of all that a user sends, and the budget of the result.

    Example:
        >>> with beam.Pipeline() as pipeline:
        ...     files = pipeline | beam.Create(glob.glob("logs/*.parquet"))
        ...     means = files | PrivateMoments(column="km_from_home", epsilon=4.0, bits=12, fraction_bits=6)
        ...     lines = means | beam.Map(lambda row: f"{row['statistic']},{row['value']:.1f}")
        ...     _ = lines | beam.io.WriteToText("mean", file_name_suffix=".csv", shard_name_template="")
        >>> Path("mean.csv").read_text().startswith("mean,")
        True
    """

    column: str
    epsilon: float
    bits: int = 16
    fraction_bits: int = 0
    statistics: Sequence[str] = ("mean",)
    user_id: str = "user_id"
    key: RunKey | None = None

    def __post_init__(self) -> None:
        if self.epsilon is None:
            raise RequestError("epsilon: must be a number; without one the reports would have no differential privacy")
        form = FixedPoint(self.bits, self.fraction_bits)
        statistics = tuple(Statistic(name) for name in self.statistics)
        self._plan = MomentsPlan(form=form, statistics=statistics, epsilon=self.epsilon)
        self._values = Values(ValueColumns(self.column, self.user_id), form)

    def expand(self, paths: beam.PCollection) -> beam.PCollection:
        key, files = _files_of_key(self.key, paths, self._values.columns)
        state = files | "Push" >> PushBits(self._values, self._plan, key)  # PCollection[MomentsState]
        return state | "Rows" >> beam.FlatMap(lambda state: map(asdict, state.estimates()))  # PCollection[Row]


@dataclass(kw_only=True, eq=False)
class PrivateRanges(beam.PTransform):
    """Paths of logs -> one RangeModel, which answers the number of users in any square.

    `sfumato.transforms.ranges.model_file.model_bytes` makes a file of it, which `sfumato.open_model` reads.

    Its arguments are those of `sfumato.ranges`, with the names of the columns and the key.

    Example:
        >>> ranges = PrivateRanges(region=(3.00, 1.00, 3.13, 1.13), epsilon=1.0, method="grid", sizes=(500, 5000))
        >>> with beam.Pipeline() as pipeline:
        ...     files = pipeline | beam.Create(glob.glob("logs/*.parquet"))
        ...     users = files | ranges | beam.Map(lambda model: model.answer(3.08, 1.08, 2_000)[0].users[0])
        ...     _ = users | beam.io.WriteToText("users", file_name_suffix=".csv", shard_name_template="")
        >>> float(Path("users.csv").read_text()) > 0
        True
    """

    region: Area
    epsilon: float = 1.0
    sizes: tuple[float, float] = (25.0, 100.0)
    method: str = "auto"
    columns: LocationColumns = field(default_factory=LocationColumns)
    key: RunKey | None = None

    def __post_init__(self) -> None:
        parameters = HeatmapParameters(epsilon=self.epsilon, trust=Trust.CENTRAL)
        self._plan = RangesPlan(region_of(self.region), Sizes(*self.sizes), self.method, {}, parameters)

    def expand(self, paths: beam.PCollection) -> beam.PCollection:
        key, files = _files_of_key(self.key, paths, self.columns)
        built = files | "Build" >> BuildRanges(self._plan, key, self.columns)  # PCollection[Built]
        return built | "Model" >> beam.Map(lambda built: built.model)  # PCollection[RangeModel]


def _runner_name(runner: Any) -> str:
    """The class that runs the pipeline: not its bases, since Dask's runner is a kind of direct runner."""
    while (inner := getattr(runner, "_underlying_runner", None)) is not None:
        runner = inner
    return type(runner).__name__


def _files_of_key(given: RunKey | None, paths: beam.PCollection, columns: Columns) -> tuple[RunKey, beam.PCollection]:
    """Returns the key and the LogFiles that it is for. See `_key` and `_bind`.

    columns: that the transform reads.

    Raises RequestError for paths in several windows or firings: each would draw the same noise.
    """
    if not (paths.is_bounded and paths.windowing.is_default()):
        raise RequestError(
            "input: paths must be a bounded PCollection in the global window with Beam's default trigger; "
            "apply beam.WindowInto(beam.window.GlobalWindows()) to bounded paths, and start a pipeline "
            "for each batch of unbounded ones"
        )
    key = _key(given, paths)
    files = (
        paths
        | "Inspect" >> beam.Map(_as_found, columns)  # PCollection[tuple[LogFile, kinds of its columns]]
        | "Gather" >> beam.combiners.ToList()  # PCollection[list of these, of all files]
        | "Bind" >> beam.FlatMap(_bind, key)  # PCollection[LogFile]
        | "Spread" >> beam.Reshuffle()
    )
    return key, files


def _as_found(path: str, columns: Columns) -> tuple[LogFile, dict[str, str]]:
    """Returns the file in its version, which the reader then requires, and its kinds. Raises DataError."""
    try:
        file = LogFile(path, log_version(path))
        return file, inspect_log(file, columns).column_types
    except RequestError as error:
        raise DataError(str(error)) from error
    except OSError as error:
        raise DataError(f"{path}: cannot be opened ({error.strerror or error})") from error


def _bind(found: list[tuple[LogFile, dict[str, str]]], key: RunKey) -> list[LogFile]:
    """Binds the key to the first files that it meets in this process, before anything is drawn.

    The files' schemas must agree: else the type of what is published would show who was drawn.

    A pipeline object may be run twice. Over other data its noise would be the same, and the difference
    of both results would have none.

    Raises:
        DataError: the key has met other files, or other versions of these, or a column is of several kinds.
    """
    files = [file for file, _ in found]
    try:
        kinds_of((file.path, kinds) for file, kinds in found)
    except RequestError as error:
        raise DataError(str(error)) from error
    stated = json.dumps(sorted((file.path, file.version) for file in files))
    digest = hashlib.sha256(stated.encode()).digest()
    if _INPUTS.setdefault(key.subkey("input files"), digest) != digest:
        raise DataError(
            "key: it has drawn noise for other files, or for other versions of these; build the pipeline "
            "again, with another key if you gave one, or restore the files"
        )
    return files


def _key(given: RunKey | None, paths: beam.PCollection) -> RunKey:
    """The key that was given, or a fresh one. Raises RequestError for a fresh one if other machines would see it."""
    runner = _runner_name(paths.pipeline.runner)
    check_runner(runner)
    if runner in _LOCAL_RUNNERS:
        check_running_mode(paths.pipeline.options, "use in_memory")
    if given is not None:
        return given
    if runner not in _LOCAL_RUNNERS:
        raise RequestError(
            f"key: {runner} would show a fresh key in the job's graph; make one with "
            "sfumato.beam.run_key(key_file, name)"
        )
    return RunKey.derive(entropy_secret(), {})
