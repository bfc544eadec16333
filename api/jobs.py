"""The jobs as Python functions: each runs the job of the command `sfumato JOB` and returns its release.

All of them raise the errors of `heatmap`.
"""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import tempfile
import weakref
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias, overload

import pyarrow as pa
import pyarrow.parquet as pq

from sfumato.pipelines.command_line.run import columns_of, request_of, run_job
from sfumato.pipelines.frame.console import Console, shown_on
from sfumato.pipelines.runners.failures import error_of
from sfumato.releases import Release, open_release
from sfumato.schemas.errors import RequestError, SfumatoError
from sfumato.schemas.region import Region
from sfumato.schemas.release import CHANGES_FILE
from sfumato.schemas.requests.request_base import Request
from sfumato.transforms.changes.map_changes import compare_releases, finer_grid
from sfumato.transforms.counting.plan import Plan, make_plan
from sfumato.transforms.heatmap.request import PlanRequest
from sfumato.transforms.nights.plan import RotationPlan, make_rotation_plan
from sfumato.transforms.release.published_release import data_frame, read_part

if TYPE_CHECKING:
    import geopandas
    import pandas as pd

Area = Region | Sequence[float] | str
Folder = str | os.PathLike[str]
Logs: TypeAlias = Any  # Folder, a pandas data frame or a pyarrow table, whose packages have no types


def heatmap(
    input: Logs,
    *,
    region: Area,
    epsilon: float = 1.0,
    depth: int = 10,
    method: str = "adaptive",
    auxiliary: str | None = None,
    output: Folder | None = None,
    **options: Any,
) -> Release:
    """Makes a private heatmap: the number of users in each cell of a map.

    Args:
        input: pattern of files with columns user_id, latitude and longitude (degrees), local or gs://: Parquet, CSV or
            NDJSON; or a folder, a table (delta:FOLDER, iceberg:CATALOG.TABLE), or a list of these; or a
            pandas data frame or pyarrow table with these columns. A table lies in a private temporary folder while the
            job runs, so runners in a cloud cannot read it. Of a data frame each value is read separately, whatever the
            type of its column: ids and categories as text, the id 7.0 as "7".
        region: the map's borders in degrees: a Region, four numbers (west, south, east, north), or text "W,S,E,N".
        epsilon: privacy budget of the complete release, 0.0001 or more.
        depth: the finest grid has 2^depth x 2^depth cells, 1 to 20.
        method: how the map is made: adaptive, flat, emd, or a name in `METHODS` that the program has added.
        auxiliary: column of a boolean or of categories, whose share in each cell is estimated too.
        output: folder for the release, local or gs://. By default a temporary folder that is removed with the object.
            Keep the release with `Release.save`: its privacy budget is spent in any case.
        **options: any other option of `sfumato heatmap`, such as key_file, ledger, dataset or overwrite.

    Returns:
        The release, with `cells`, `plot` and `guarantee`.

    Raises:
        RequestError: an option is wrong; the message names it.
        DataError: the files cannot support a release.
        BudgetError: the ledger does not allow the release.

    Example:
        >>> release = sfumato.heatmap("logs/*.parquet", region=(3.00, 1.00, 3.13, 1.13), depth=6)
        >>> release.cells.columns[:7].to_list()
        ['cell_id', 'depth', 'west', 'south', 'east', 'north', 'count']
        >>> 4_000 < float(release.cells["count"].sum()) < 6_000  # there are 5,000
        True
    """
    return _publish("heatmap", locals())


def zones(
    input: Logs,
    *,
    zones: Folder | geopandas.GeoDataFrame | None = None,
    id_column: str | None = None,
    levels: Sequence[str] | str | None = None,
    epsilon: float = 1.0,
    auxiliary: str | None = None,
    output: Folder | None = None,
    **options: Any,
) -> Release:
    """Counts the users in each of a list of public zones, such as tracts, with a trusted curator's noise by default.

    Args:
        input: Parquet files or a table, see `heatmap`.
        zones: a GeoJSON, GeoParquet, GeoPackage or shapefile of polygons, or a GeoDataFrame. In its place, h3=8 or
            quadkey=15 with region=... take the cells of an index.
        id_column: property or column of the zones' ids; by default the first of levels.
        levels: columns of nested levels, from the finest to the coarsest. A zone is then exactly the sum of its parts.
        epsilon: privacy budget of the complete release, of all levels together.
        auxiliary: see `heatmap`: its share in each zone is estimated too.
        output: see `heatmap`.
        **options: any other option of `sfumato zones`, such as trust or contribution.

    Returns:
        The release: `zones_table` has a row for each zone, and `zones_total` the error of sums of zones.

    Example:
        >>> release = sfumato.zones("logs/*.parquet", h3=7, region=(3.00, 1.00, 3.13, 1.13))
        >>> release.zones_table.columns[:7].to_list()
        ['zone', 'level', 'parent', 'users', 'stddev', 'low', 'high']
        >>> float(release.zones_table["stddev"].max()) < 1.37
        True
    """
    return _publish("zones", locals())


def histogram(
    input: Logs,
    *,
    epsilon: float = 1.0,
    delta: float = 1e-8,
    column: str | None = None,
    region: Area | None = None,
    cells: int | None = None,
    output: Folder | None = None,
    **options: Any,
) -> Release:
    """Counts the users of each category, or of each cell of a map, by a sample and a threshold, or with noise.

    Args:
        input: files or a table, see `heatmap`.
        epsilon: privacy budget of the complete release.
        delta: probability that epsilon may fail to cover; keep it far below 1 / users.
        column: count this column's values: text, integers, booleans or dates. Give either it or region and cells.
        region: count the cells of this region, see `heatmap`.
        cells: depth of the region's grid: it has 2^cells x 2^cells cells.
        output: see `heatmap`.
        **options: any other option of `sfumato histogram`.

    Returns:
        The release: `items` for a column, `cells` for a region. Values of few users are not in it.

    Example:
        >>> release = sfumato.histogram("logs/*.parquet", column="infected", epsilon=1.0, delta=1e-6)
        >>> sorted(release.items["item"])
        ['false', 'true']
    """
    return _publish("histogram", locals())


def hotspots(
    input: Logs,
    *,
    epsilon: float = 1.0,
    delta: float = 1e-8,
    column: str | None = None,
    region: Area | None = None,
    depth: int | None = None,
    top: int | None = None,
    output: Folder | None = None,
    **options: Any,
) -> Release:
    """Finds places, words or codes that many users share, level by level (TrieHH++ or with noise).

    Args:
        input: files or a table, see `heatmap`.
        epsilon: privacy budget of the complete release.
        delta: probability that epsilon may fail to cover; keep it far below 1 / users.
        column: find frequent values of this column and their prefixes. Give either it or region.
        region: find cells of this region, see `heatmap`.
        depth: longest prefix: levels of the region's quadtree, characters of text, or digits of integers.
        top: number of items of the last level to publish, the most frequent first; by default all.
        output: see `heatmap`.
        **options: any other option of `sfumato hotspots`.

    Returns:
        The release: `items` for a column, `cells` for a region.

    Example:
        >>> region = sfumato.Region(3.00, 1.00, 3.13, 1.13)
        >>> release = sfumato.hotspots("logs/*.parquet", region=region, depth=4, levels=2, epsilon=1.0, delta=1e-6)
        >>> sorted(release.cells["depth"].unique().tolist())
        [2, 4]
    """
    return _publish("hotspots", locals())


def quantiles(
    input: Logs,
    *,
    column: str,
    range: tuple[float, float] | str,
    epsilon: float = 1.0,
    delta: float = 1e-8,
    quantiles: Sequence[float] | str = (0.1, 0.25, 0.5, 0.75, 0.9),
    output: Folder | None = None,
    **options: Any,
) -> Release:
    """Estimates the distribution of a number over users: quantiles, and users in ranges of the number.

    Args:
        input: files or a table, see `heatmap`.
        column: of integers or floating-point numbers.
        range: (low, high); values outside count as its borders. Choose it without looking at the data.
        epsilon: privacy budget of the complete release.
        delta: probability that epsilon may fail to cover; keep it far below 1 / users.
        quantiles: shares of the users, between 0 and 1.
        output: see `heatmap`.
        **options: any other option of `sfumato quantiles`, such as ranges=[(0, 5), (5, 10)].

    Returns:
        The release, with `quantiles`, `curve` and `ranges`.

    Example:
        >>> release = sfumato.quantiles(
        ...     "logs/*.parquet", column="km_from_home", range=(0, 30), quantiles=[0.5], epsilon=1.0, delta=1e-6
        ... )
        >>> release.quantiles.columns.to_list()
        ['share', 'value', 'low', 'high']
    """
    return _publish("quantiles", locals())


def flows(
    input: Logs,
    *,
    region: Area | None = None,
    zones: str | None = None,
    id_column: str | None = None,
    origin: Sequence[str] | str | None = None,
    destination: Sequence[str] | str | None = None,
    time_column: str | None = None,
    epsilon: float = 1.0,
    output: Folder | None = None,
    **options: Any,
) -> Release:
    """Publishes origin-destination flows: how many trips begin in one cell or zone and end in another.

    Args:
        input: Parquet files or a table, see `heatmap`.
        region: see `heatmap`. A trip counts if it begins and ends there. Zones of a file have their own.
        zones: GeoJSON or GeoParquet file of public polygons: flows are of pairs of these zones.
        id_column: property or column of the zones' ids.
        origin: columns (longitude, latitude) of the place where a row's trip begins.
        destination: columns of the place where it ends.
        time_column: column of timestamps or seconds, instead of origin and destination: a trip is two consecutive
            records of a user.
        epsilon: privacy budget of the complete release.
        output: see `heatmap`.
        **options: any other option of `sfumato flows`, such as max_trips_per_user=5.

    Returns:
        The release; `table("flows")` has a row for each flow, and rows that hold all other trips.

    Example:
        >>> release = sfumato.flows("logs/*.parquet", region=(3.00, 1.00, 3.13, 1.13), time_column="timestamp")
        >>> release.table("flows").columns[:5].to_list()
        ['origin_cell', 'destination_cell', 'depth', 'is_rest', 'trips']
    """
    return _publish("flows", locals())


def moments(
    input: Logs,
    *,
    column: str,
    epsilon: float | None = None,
    bits: int | None = None,
    fraction_bits: int | None = None,
    statistics: Sequence[str] | str = "mean",
    output: Folder | None = None,
    **options: Any,
) -> Release:
    """Estimates means, variances and moments of a number. Each user sends one randomised bit of it.

    With trust="central" the operator adds the values up and adds noise once, which is far more accurate.

    Args:
        input: files or a table, see `heatmap`.
        column: of integers or floating-point numbers, not negative unless `signed` is given.
        epsilon: privacy budget of all that a user sends. Required, unless trust="secagg" and no_dp=True are given.
        bits: bits of a value's magnitude, 1 to 52; 16 by default.
        fraction_bits: number of them after the binary point: values are multiples of 2^-fraction_bits. 0 by default.
        statistics: of mean, variance, moment:K (K up to 8), geometric_mean, log_product. With trust="central": of
            count, sum, mean, variance, moment:K.
        output: see `heatmap`.
        **options: any other option of `sfumato moments`, such as group_by and groups, or region and cells, or trust
            and range.

    Returns:
        The release, with `moments` and, with region and cells, `cells`.

    Example:
        >>> release = sfumato.moments(
        ...     "logs/*.parquet", column="km_from_home", bits=12, fraction_bits=6, statistics="mean", epsilon=4.0
        ... )
        >>> release.moments["statistic"].to_list()
        ['mean']
    """
    return _publish("moments", locals())


def ranges(
    input: Logs | None = None,
    *,
    region: Area | None = None,
    epsilon: float | None = None,
    method: str | None = None,
    sizes: tuple[float, float] | str = (25.0, 100.0),
    release: Folder | Release | None = None,
    output: Folder | None = None,
    **options: Any,
) -> Release:
    """Makes a private model that estimates the number of users in any square of a region.

    Args:
        input: files or a table, see `heatmap`.
        region: see `heatmap`.
        epsilon: privacy budget of the complete release; default: 1.
        method: auto (the default) and snh train networks (pip install 'sfumato[neural]'); grid, ug and
            adaptive do not.
        sizes: (low, high) of the sides of the squares that the model is made for, in metres.
        output: see `heatmap`.
        release: instead of input, region and epsilon, a published heatmap: the model is made of it, and costs
            nothing.
        **options: any other option of `sfumato ranges build`.

    Returns:
        The release, whose `model` answers squares.

    Example:
        >>> release = sfumato.ranges(
        ...     "logs/*.parquet", region=(3.00, 1.00, 3.13, 1.13), method="grid", sizes=(500, 5000)
        ... )
        >>> answers, share_inside = release.model.answer(longitude=3.08, latitude=1.08, size=2_000)
        >>> answers.users.shape, share_inside.tolist()
        ((1,), [1.0])
    """
    if isinstance(release, Release):
        release = release.path
    return _publish("ranges build", locals())


def changes(
    before: Release | Folder,
    after: Release | Folder,
    *,
    rate: float = 0.05,
    shares: bool = False,
    output: Folder | None = None,
    overwrite: bool = False,
) -> pd.DataFrame:
    """Finds where two heatmaps of one region differ by more than noise explains. It costs no privacy budget.

    Args:
        before: a release of `heatmap`, or its folder.
        after: another.
        rate: false discovery rate: the expected share of wrong ones among the changed rows, at most.
        shares: compare shares of all users, for maps of different numbers of users.
        output: folder for the table, its manifest and a page; by default nothing is written.
        overwrite: replace the changes that are there.

    Returns:
        A (Geo)DataFrame with one row for each place that both maps know, from single cells to the whole region:
        `before`, `after`, `difference` and its 95% interval `low`, `high`, `q_value` and `changed`. `shown` marks
        disjoint changed places. Their interval `changed_low`, `changed_high` allows for having been selected.

    Raises:
        RequestError: the releases cannot be compared.

    Example:
        >>> maps = [sfumato.heatmap("logs/*.parquet", region=(3.00, 1.00, 3.13, 1.13), depth=6) for _ in range(2)]
        >>> table = sfumato.changes(*maps)
        >>> int(table["changed"].sum()) <= 3  # the same logs twice
        True
    """
    pair = [one if isinstance(one, Release) else open_release(one) for one in (before, after)]
    places = [one.path for one in pair]
    values = {"before": places[0], "after": places[1], "rate": rate, "shares": shares, "overwrite": overwrite}
    if output is not None:
        _run("changes", {**values, "output": output})
        return data_frame(pq.read_table(io.BytesIO(read_part(os.fspath(output), CHANGES_FILE))))
    request_of("changes", values)  # raises where the rate is out of its range
    found = compare_releases(pair[0], pair[1], rate, shares=shares)
    return data_frame(found.table(finer_grid(*pair)))


def synth(output: Folder, *, users: int, records_per_user: int = 1, seed: int = 0, **options: Any) -> str:
    """Writes location logs of a synthetic city, for trials.

    Args:
        output: folder for the Parquet files, local or gs://.
        users: their number.
        records_per_user: rows of each user.
        seed: another seed gives other users of the same city.
        **options: any other option of `sfumato synth`.

    Returns:
        A pattern that matches the files, as the other functions take for `input`.

    Example:
        >>> sfumato.synth("city", users=1_000)
        'city/*.parquet'
    """
    given = {"output": output, "users": users, "records_per_user": records_per_user, "seed": seed}
    _run("synth", {**given, **options})
    return f"{os.fspath(output).rstrip('/')}/*.parquet"


def client_report(
    task: Folder,
    *,
    location: Sequence[float] | None = None,
    weights: Sequence[int] | None = None,
    answered: Folder | None = None,
) -> bytes:
    """Makes a device's report for two servers, neither of which can read it, as `sfumato client report` does.

    Args:
        task: the public JSON file of the task.
        location: longitude and latitude in degrees.
        weights: for a task with a max_value, a whole weight of each entry: of cells in the quadtree's order.
        answered: file that the device keeps, so that it answers each task once and the rounds of a map in order.

    Returns:
        The report, of one size for all reports of the task.

    Raises:
        RequestError: the task cannot be read, is not open now or was answered before, or the location or the weights
            are not what it counts.

    Example:
        >>> report = sfumato.client_report("task.json", location=(3.05, 1.07))
        >>> len(report) == len(sfumato.client_report("task.json", location=(3.12, 1.01)))
        True
    """
    from sfumato.transforms.split.answered import record_answer
    from sfumato.transforms.split.reports import make_reports
    from sfumato.transforms.split.task import Task

    read = Task.read(os.fspath(task))
    if (location is None) == (weights is None):
        raise RequestError("location, weights: one is required")
    if location is None:
        assert weights is not None
        report = make_reports(read, [list(weights)])
    else:
        report = make_reports(read, [read.measurement(*location)])
    record_answer(read, None if answered is None else os.fspath(answered))
    return report


@overload
def plan(
    *, users: int, epsilon: float = 1.0, depth: int = 10, method: str = "adaptive", nights: None = None, **options: Any
) -> Plan: ...


@overload
def plan(
    *, users: int, epsilon: float = 1.0, depth: int = 10, method: str = "adaptive", nights: int, **options: Any
) -> RotationPlan: ...


def plan(
    *,
    users: int,
    epsilon: float = 1.0,
    depth: int = 10,
    method: str = "adaptive",
    nights: int | None = None,
    **options: Any,
) -> Plan | RotationPlan:
    """Computes the cost of a heatmap for a client and its accuracy, from public figures only. It reads no data.

    Args:
        users: number of participants.
        epsilon: privacy budget of the complete release.
        depth: the finest grid has 2^depth x 2^depth cells.
        method: see `heatmap`.
        nights: compare the numbers of rotating cohorts for a map every night; epsilon then covers any N consecutive
            nights.
        **options: any other option of `sfumato plan`.

    Returns:
        The plan, with `noise_stddev` (users), `min_visible_users` (users), `bits` a client sends, and `sub_queries`.
        With nights a plan with `choices`, one for each number of cohorts, and the `best` of them.

    Raises:
        RequestError: an option is wrong, or no such heatmap can be made.

    Example:
        >>> plan = sfumato.plan(users=1_000_000, epsilon=1.0, depth=8)
        >>> len(plan.sub_queries) > 1, plan.noise_stddev < 200
        (True, True)
        >>> sfumato.plan(users=300_000, epsilon=1.0, nights=30).best.cohorts
        30
    """
    given = {"users": users, "epsilon": epsilon, "depth": depth, "method": method, "nights": nights, **options}
    request = request_of("plan", given)
    assert isinstance(request, PlanRequest)
    settings = request.settings()
    if len(settings) > 1:
        raise RequestError("plan: give one value for each option; `sfumato plan` compares several")
    return make_plan(settings[0]) if nights is None else make_rotation_plan(settings[0], nights)


def _publish(job: str, arguments: dict[str, Any]) -> Release:
    """Runs a job that publishes a release, and opens it. Raises SfumatoError.

    arguments: of the job's function, by name.
    """
    values = {**arguments, **arguments["options"]}
    del values["options"]
    input, output = values.pop("input"), values.pop("output")
    if values.get("dry_run"):
        raise RequestError(f"dry_run: is of the command line; run `sfumato {job} ... --dry_run`, or see sfumato.plan")
    with _zones_file(values) as zones, _files_of(job, input, {**values, **zones}) as files:
        return _publish_files(job, {**values, **zones, "input": files}, output)


def _publish_files(job: str, values: Mapping[str, Any], output: Folder | None) -> Release:
    if output is not None:
        _run(job, {**values, "output": output})
        return open_release(output)
    for name in ("ledger", "timeline"):
        if values.get(name) is not None:
            raise RequestError(f"output: with a {name} the release must be kept; name a folder for it")
    folder = tempfile.mkdtemp(prefix="sfumato-")
    place = os.path.join(folder, job.partition(" ")[0])
    try:
        _run(job, {**values, "output": place})
        release = open_release(place)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    weakref.finalize(release, shutil.rmtree, folder, ignore_errors=True)
    return release


@contextlib.contextmanager
def _files_of(job: str, input: Logs, values: Mapping[str, Any]) -> Iterator[Any]:
    """Patterns of files as they are; of a table one file that only this user may read, gone in the end.

    values: the job's other options. They say what the columns of a data frame are.
    """
    several = input if isinstance(input, list | tuple) and input else [input]
    if input is None or all(isinstance(one, str | os.PathLike) for one in several):
        yield input
        return
    # Beam takes seconds to import, and planning needs none.
    from sfumato.pipelines.runners.folders import private_folder

    is_frame = type(input).__module__.partition(".")[0] in ("pandas", "geopandas")
    if not (isinstance(input, pa.Table) or (is_frame and hasattr(input, "columns"))):
        raise RequestError(
            "input: must be files, a pattern or several, a pandas data frame or a pyarrow table, got "
            f"{type(input).__name__}"
        )
    with private_folder() as folder:  # the next run removes it if this process is killed
        file = os.path.join(folder, "table.parquet")
        table = input if isinstance(input, pa.Table) else _read_frame(job, input, {**values, "input": file})
        # Without metadata, so that equal tables are one input in the ledger.
        pq.write_table(table.replace_schema_metadata(None), file)
        yield file


@contextlib.contextmanager
def _zones_file(values: Mapping[str, Any]) -> Iterator[dict[str, str]]:
    """The option `zones` as a file, if it is a GeoDataFrame; no option otherwise. Raises RequestError."""
    frame: Any = values.get("zones")
    if not (hasattr(frame, "geometry") and hasattr(frame, "to_parquet")):
        yield {}
        return
    from sfumato.pipelines.runners.folders import private_folder

    if frame.crs is None:
        raise RequestError("zones: the frame has no CRS; set it, such as frame.set_crs('OGC:CRS84')")
    with private_folder() as folder:
        file = os.path.join(folder, "zones.parquet")
        frame.to_crs("OGC:CRS84").to_parquet(file)
        yield {"zones": file}


def _read_frame(job: str, frame: pd.DataFrame, values: Mapping[str, Any]) -> pa.Table:
    """Returns what a job with these options reads of a data frame. Raises RequestError."""
    from sfumato.pipelines.frame.inputs import layout_of
    from sfumato.transforms.inputs.data_frame import table_of

    request = _request(job, {"output": values["input"], **values})
    columns = columns_of(request)
    return table_of(frame, columns, layout_of(request, columns))


def _request(job: str, values: Mapping[str, Any]) -> Request:
    """Returns a job's request, of options that may be of NumPy's types. Raises RequestError."""
    plain = {name: value.tolist() if hasattr(value, "tolist") else value for name, value in values.items()}
    return request_of(job, plain)


def _run(job: str, values: Mapping[str, Any]) -> None:
    """Runs a job for options by name. Raises SfumatoError."""
    request = _request(job, values)
    # The command line prints the path of the page; here the release is returned.
    with shown_on(Console(job, "text", bool(values.get("verbose")))), contextlib.redirect_stdout(io.StringIO()):
        try:
            run_job(request)
        except SfumatoError:
            raise
        except Exception as error:
            found = error_of(error)  # a worker's error comes wrapped by the runner
            if found is None:
                raise
            raise found from error
