"""The jobs that publish: each function runs the job of the command `sfumato JOB` and returns its release.

All of them raise the errors of `heatmap`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from sfumato.releases import Release
from sfumato.runs import Folder, Logs, publish
from sfumato.schemas.region import Region

if TYPE_CHECKING:
    import geopandas

Area = Region | Sequence[float] | str


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
    return publish("heatmap", locals())


def zones(
    input: Logs,
    *,
    zones: Folder | geopandas.GeoDataFrame | None = None,
    id_column: str | None = None,
    label_column: str | None = None,
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
        label_column: property or column of the zones' names for readers.
        levels: columns of nested levels, from the finest to the coarsest. A zone is then exactly the sum of its parts.
        epsilon: privacy budget of the complete release, of all levels together.
        auxiliary: see `heatmap`: its share in each zone is estimated too.
        output: see `heatmap`.
        **options: any other option of `sfumato zones`, such as trust, radius or h3.

    Returns:
        The release: `zones_table` has a row for each zone, and `zones_total` the error of sums of zones.

    Example:
        >>> release = sfumato.zones("logs/*.parquet", h3=7, region=(3.00, 1.00, 3.13, 1.13))
        >>> release.zones_table.columns[:7].to_list()
        ['zone', 'level', 'parent', 'users', 'stddev', 'low', 'high']
        >>> float(release.zones_table["stddev"].max()) < 1.37
        True
    """
    return publish("zones", locals())


def histogram(
    input: Logs,
    *,
    epsilon: float = 1.0,
    delta: float = 1e-8,
    column: str | None = None,
    region: Area | None = None,
    cells: int | None = None,
    zones: Folder | geopandas.GeoDataFrame | None = None,
    id_column: str | None = None,
    label_column: str | None = None,
    radius: float | None = None,
    day_column: str | None = None,
    period: Any = None,
    hours: tuple[int, int] | str | None = None,
    average_day: bool | None = None,
    max_items_per_user: int | None = None,
    trust: str | None = None,
    output: Folder | None = None,
    **options: Any,
) -> Release:
    """Counts the users of each category, of each cell of a map, or of each zone, by sample and threshold or with noise.

    Args:
        input: files or a table, see `heatmap`.
        epsilon: privacy budget of the complete release.
        delta: probability that epsilon may fail to cover; keep it far below 1 / users.
        column: count this column's values: text, integers, booleans or dates. Give either it, region and cells, or
            zones.
        region: count the cells of this region, see `heatmap`.
        cells: depth of the region's grid: it has 2^cells x 2^cells cells.
        zones: count the visitors of these zones: see `zones`, or a file of points, such as stops, with `radius`.
        id_column: property or column of the zones' ids.
        label_column: property or column of the zones' names for readers.
        radius: of zones around points, in metres: a record counts at the nearest point.
        day_column: column of times, to select rows by period and hours.
        period: days to read, such as "2026-11-16:2026-11-20", a date or a pair of dates.
        hours: hours of the day to read, such as (8, 9) or "8-9", which ends before 09:00.
        average_day: publish the mean number of users a day of a period, of zones.
        max_items_per_user: items, cells or zones in which a user counts at most; with noise only.
        trust: secagg (sample and threshold), or central or split (noise).
        output: see `heatmap`.
        **options: any other option of `sfumato histogram`, such as min_users or user_id_column.

    Returns:
        The release: `items` for a column, `cells` for a region, `zones_table` for zones. Values of few users are not
        in it, except of zones with `trust` "central" or "split" and without a threshold.

    Example:
        >>> release = sfumato.histogram("logs/*.parquet", column="infected", epsilon=1.0, delta=1e-6)
        >>> sorted(release.items["item"])
        ['false', 'true']
    """
    return publish("histogram", locals())


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
    return publish("hotspots", locals())


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
    return publish("quantiles", locals())


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
    return publish("flows", locals())


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
    return publish("moments", locals())


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
        method: auto (the default) and snh train networks (pip install '.[neural]'); grid and
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
    return publish("ranges build", locals())
