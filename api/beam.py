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

The dataclasses are not frozen, because Beam assigns a label to a transform.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import apache_beam as beam

from sfumato.pipelines.runner_settings import check_runner, check_running_mode
from sfumato.schemas.errors import DataError, RequestError
from sfumato.schemas.locations import CATEGORIES, NUMBERS, Auxiliary, Columns, ItemColumns, LocationColumns
from sfumato.schemas.moments import FixedPoint, Statistic, ValueColumns
from sfumato.schemas.ranges import Sizes
from sfumato.schemas.region import Grid, Region
from sfumato.schemas.requests.publish_request import region_of
from sfumato.schemas.trust import Trust
from sfumato.transforms.checks import check_number
from sfumato.transforms.heatmap.parameters import HeatmapParameters
from sfumato.transforms.heatmap.private_heatmap import PrivateHeatmap as HeatmapRounds
from sfumato.transforms.heatmap.release import cells_table, published_estimate
from sfumato.transforms.heatmap.request import heatmap_parameters
from sfumato.transforms.heatmap.state import HeatmapState
from sfumato.transforms.histogram.counts_request import CELL_DEPTH
from sfumato.transforms.histogram.curve import check_shares, quantile
from sfumato.transforms.histogram.hierarchy import build_hierarchy
from sfumato.transforms.histogram.histogram_tables import cells_table as counted_cells_table
from sfumato.transforms.histogram.histogram_tables import items_table
from sfumato.transforms.histogram.item_encoding import CellItems, ColumnItems, Items, NumberItems
from sfumato.transforms.histogram.number_bins import NumberBins
from sfumato.transforms.histogram.sample_and_threshold import Rounds, TrieHeavyHitters
from sfumato.transforms.histogram.sampling_plan import SamplePlan
from sfumato.transforms.histogram.trie import NumberPrefixes, Trie, spread_levels
from sfumato.transforms.inputs.log_file import LogFile
from sfumato.transforms.inputs.log_reader import inspect_log, kinds_of, log_version
from sfumato.transforms.moments.protocol import MomentsPlan
from sfumato.transforms.moments.push_bits import PushBits
from sfumato.transforms.moments.value_encoding import Values
from sfumato.transforms.privacy.admission import Admit
from sfumato.transforms.privacy.keys import RunKey
from sfumato.transforms.privacy.secrets import FileSecret, entropy_secret
from sfumato.transforms.ranges.build_ranges import BuildRanges
from sfumato.transforms.ranges.ranges_plan import RangesPlan
from sfumato.transforms.release.metadata import code_digest, package_versions

Area = Region | Sequence[float] | str
Row = dict[str, Any]
# Runners that work in this process, by the names of their classes.
_LOCAL_RUNNERS = {
    "DirectRunner",
    "SwitchingDirectRunner",
    "BundleBasedDirectRunner",
    "FnApiRunner",
}
_QUANTILE_BITS, _QUANTILE_LEVELS = 12, 3
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
        >>> import glob
        >>> from pathlib import Path
        >>> import apache_beam as beam
        >>> from sfumato.beam import PrivateHeatmap
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
        return files | "Rounds" >> rounds | "Rows" >> rows


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

    Args:
        column: count its values: text, integers, booleans or dates. Give either it or region and cells.
        region: count the cells of this region, see PrivateHeatmap.
        cells: depth of the region's grid.
        epsilon: privacy budget.
        delta: probability that epsilon may fail to cover; keep it far below 1 / users.
        user_id: name of the column of user ids.
        key: see the module.

    Example:
        >>> import glob
        >>> from pathlib import Path
        >>> import apache_beam as beam
        >>> from sfumato.beam import PrivateHistogram
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
        if (self.column is None) == (self.region is None) or (self.region is None) != (self.cells is None):
            raise RequestError("column, region, cells: give either column, or region and cells")
        self._grid = None if self.region is None else Grid(region_of(self.region), self.cells or 0)
        items = None if self._grid is None else 4**self._grid.depth
        self._plan = _sample_plan(self.epsilon, self.delta, items)

    def expand(self, paths: beam.PCollection) -> beam.PCollection:
        counted: Items
        if self._grid is None:
            counted = ColumnItems(ItemColumns(str(self.column), self.user_id, CATEGORIES))
        else:
            counted = CellItems(LocationColumns(self.user_id), self._grid)
        return _count(paths, self.key, self._plan, counted) | "Rows" >> beam.FlatMap(_histogram_rows, self._grid)


def _sample_plan(epsilon: float, delta: float, items: int | None, rounds: int = 1) -> SamplePlan:
    """The plan of a count by sample and threshold. Raises RequestError if no item could pass."""
    plan = SamplePlan(epsilon=epsilon, delta=delta, items=items, rounds=rounds)
    _ = plan.sampling
    return plan


def _count(
    paths: beam.PCollection,
    given: RunKey | None,
    plan: SamplePlan,
    counted: Items,
    prefixes: NumberPrefixes | None = None,
    levels: tuple[int, ...] = (),
    top: int | None = None,
) -> beam.PCollection:
    """Counts items by sample and threshold: a Trie. prefixes, levels and top: of a search, see TrieHeavyHitters."""
    key, files = _files_of_key(given, paths, counted.columns)
    rounds = Rounds(counted, key) if prefixes is None else Rounds(counted, key, prefixes, levels)
    return files | "Count" >> TrieHeavyHitters(rounds, plan.sampling, top, admit=Admit(plan.admission_rule))


def _histogram_rows(trie: Trie, grid: Grid | None) -> Iterator[Row]:
    for level in trie.levels:
        yield from (items_table(level) if grid is None else counted_cells_table(level, grid)).to_pylist()


@dataclass(kw_only=True, eq=False)
class PrivateHotspots(beam.PTransform):
    """Paths of logs -> a row a popular cell of a map, level by level, as dicts, by sample and threshold.

    The rows are those of `cells.parquet` of `sfumato hotspots`. A cell is searched where the cell above it is popular
    (TrieHH++), so the region may have many more cells than users.

    Args:
        region: see PrivateHeatmap.
        epsilon: privacy budget.
        delta: probability that epsilon may fail to cover; keep it far below 1 / users.
        depth: level of the finest cells: the region has 2^depth x 2^depth of them.
        levels: levels of the search, spread evenly up to the depth; each costs a round.
        top: how many cells of the last level to yield, the most frequent; None for all.
        user_id: name of the column of user ids.
        key: see the module.

    Example:
        >>> import glob
        >>> from pathlib import Path
        >>> import apache_beam as beam
        >>> from sfumato.beam import PrivateHotspots
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
        self._grid = Grid(region_of(self.region), self.depth)
        if self.top is not None:
            check_number("top", self.top, int, ge=1)
        self._levels = spread_levels(self.depth, self.levels)
        self._plan = _sample_plan(self.epsilon, self.delta, 4**self.depth, self.levels)

    def expand(self, paths: beam.PCollection) -> beam.PCollection:
        counted = CellItems(LocationColumns(self.user_id), self._grid)
        tree = NumberPrefixes(4, self.depth), self._levels, self.top
        return _count(paths, self.key, self._plan, counted, *tree) | "Rows" >> beam.FlatMap(_histogram_rows, self._grid)


@dataclass(kw_only=True, eq=False)
class PrivateQuantiles(beam.PTransform):
    """Paths of logs -> one row for each quantile of a number over users, as dicts, by sample and threshold.

    The rows are those of `quantiles.parquet` of `sfumato quantiles`: share, value, low, high.

    Args:
        column: of integers or floating-point numbers.
        range: (low, high); values outside count as its borders. Choose it without looking at the data.
        quantiles: shares of the users, between 0 and 1.
        epsilon: privacy budget.
        delta: probability that epsilon may fail to cover; keep it far below 1 / users.
        user_id: name of the column of user ids.
        key: see the module.

    Example:
        >>> import glob
        >>> from pathlib import Path
        >>> import apache_beam as beam
        >>> from sfumato.beam import PrivateQuantiles
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
        self.quantiles = check_shares(tuple(self.quantiles))
        self._counted = NumberItems(ItemColumns(self.column, self.user_id, NUMBERS), *self.range, _QUANTILE_BITS)
        self._plan = _sample_plan(self.epsilon, self.delta, 1 << _QUANTILE_BITS, _QUANTILE_LEVELS)

    def expand(self, paths: beam.PCollection) -> beam.PCollection:
        tree = NumberPrefixes(2, _QUANTILE_BITS), spread_levels(_QUANTILE_BITS, _QUANTILE_LEVELS)
        rows = beam.FlatMap(_quantile_rows, *self.range, self.quantiles)
        return _count(paths, self.key, self._plan, self._counted, *tree) | "Rows" >> rows


def _quantile_rows(trie: Trie, low: float, high: float, shares: Sequence[float]) -> Iterator[Row]:
    hierarchy = build_hierarchy(trie, NumberBins(low, high, _QUANTILE_BITS))
    if hierarchy.users:
        curve = hierarchy.curve()
        yield from (asdict(quantile(curve, share)) for share in shares)


@dataclass(kw_only=True, eq=False)
class PrivateMoments(beam.PTransform):
    """Paths of logs -> a row a statistic of a number, as dicts, of which each user sends randomised bits.

    The rows are those of `moments.parquet` of `sfumato moments`, of all users. One record of each user counts.

    Args:
        column: of integers or floating-point numbers, not negative.
        epsilon: local privacy budget of all that a user sends, and budget of the result.
        bits: bits of a value's magnitude, 1 to 52.
        fraction_bits: number of them after the binary point.
        statistics: of mean, variance, moment:K, geometric_mean, log_product.
        user_id: name of the column of user ids.
        key: see the module.

    Example:
        >>> import glob
        >>> from pathlib import Path
        >>> import apache_beam as beam
        >>> from sfumato.beam import PrivateMoments
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
        plan = self._plan
        key, files = _files_of_key(self.key, paths, self._values.columns)
        push = PushBits(self._values, plan, key)
        return (
            files
            | "Push" >> push
            | "Rows" >> beam.FlatMap(lambda state: [asdict(estimate) for estimate in state.estimates(plan)])
        )


@dataclass(kw_only=True, eq=False)
class PrivateRanges(beam.PTransform):
    """Paths of logs -> one RangeModel, which answers the number of users in any square.

    `sfumato.transforms.ranges.model_file.model_bytes` makes a file of it, which `sfumato.open_model` reads.

    Args:
        region: see PrivateHeatmap.
        epsilon: privacy budget of the model.
        sizes: (low, high) of the sides of the squares that the model is made for, in metres.
        method: see `sfumato.ranges`.
        columns: names of the columns.
        key: see the module.

    Example:
        >>> import glob
        >>> from pathlib import Path
        >>> import apache_beam as beam
        >>> from sfumato.beam import PrivateRanges
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
        counting = HeatmapParameters(epsilon=self.epsilon, trust=Trust.CENTRAL)
        self._plan = RangesPlan(region_of(self.region), Sizes(*self.sizes), self.method, {}, counting)

    def expand(self, paths: beam.PCollection) -> beam.PCollection:
        key, files = _files_of_key(self.key, paths, self.columns)
        build = BuildRanges(self._plan, key, self.columns)
        return files | "Build" >> build | "Model" >> beam.Map(lambda built: built.model)


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
        | "Inspect" >> beam.Map(_as_found, columns)  # (LogFile, kinds of its columns)
        | "Gather" >> beam.combiners.ToList()  # of all files, one list
        | "Bind" >> beam.FlatMap(_bind, key)  # LogFile
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
