"""Other libraries at the users of the cells of a grid, one record a user: whole programs for benchmarks/speed.py.

    python -m benchmarks.baselines.cell_counts LIBRARY FOLDER WEST,SOUTH,EAST,NORTH SIDE

The logs are Parquet with user_id, longitude and latitude. PipelineDP and OpenDP give epsilon 1 for adding or removing
one user, and publish all cells, which are public. duckdb gives no guarantee: it counts. Libraries are imported where
they are used: an import is part of what a run costs.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

EPSILON = 1.0
Region = tuple[float, float, float, float]  # west, south, east, north, in degrees


def count_by_duckdb(folder: Path, region: Region, side: int) -> int:
    """Exact counts of one record of each user: no guarantee. Returns the number of cells."""
    import duckdb

    west, south, east, north = region
    found = duckdb.sql(f"""
        select x, y, count(*) as users from (
            select any_value(floor((longitude - {west}) * {side / (east - west)})) as x,
                   any_value(floor(({north} - latitude) * {side / (north - south)})) as y
            from read_parquet('{folder}/*.parquet') group by user_id)
        group by x, y""").fetchnumpy()
    return len(found["users"])


def count_by_pipeline_dp(folder: Path, region: Region, side: int) -> int:
    """Laplace noise, on Beam's in-memory runner. Returns the number of cells."""
    import apache_beam as beam
    import pipeline_dp
    import pyarrow.parquet as pq
    from apache_beam.runners.portability.fn_api_runner import FnApiRunner

    west, south, east, north = region

    def rows(path: str) -> Iterator[tuple[Any, ...]]:
        for batch in pq.ParquetFile(path).iter_batches(65536, columns=["user_id", "longitude", "latitude"]):
            yield from zip(*(column.to_pylist() for column in batch.columns), strict=True)

    def cell(row: tuple[Any, ...]) -> int:
        x = min(side - 1, int((row[1] - west) / (east - west) * side))
        return min(side - 1, int((north - row[2]) / (north - south) * side)) * side + x

    with beam.Pipeline(runner=FnApiRunner()) as root:
        data = root | beam.Create([str(path) for path in folder.glob("*.parquet")]) | beam.FlatMap(rows)
        accountant = pipeline_dp.NaiveBudgetAccountant(total_epsilon=EPSILON, total_delta=1e-9)
        engine = pipeline_dp.DPEngine(accountant, pipeline_dp.BeamBackend())
        parameters = pipeline_dp.AggregateParams(
            metrics=[pipeline_dp.Metrics.COUNT],
            noise_kind=pipeline_dp.NoiseKind.LAPLACE,
            max_partitions_contributed=1,
            max_contributions_per_partition=1,
        )
        extractors = pipeline_dp.DataExtractors(
            privacy_id_extractor=lambda row: row[0], partition_extractor=cell, value_extractor=lambda row: 0
        )
        result = engine.aggregate(data, parameters, extractors, public_partitions=list(range(side**2)))
        accountant.compute_budgets()
        _ = result | beam.combiners.Count.Globally() | beam.Map(lambda n: n == side**2 or sys.exit("cells missing"))
    return side**2


def count_by_opendp(folder: Path, region: Region, side: int) -> int:
    """Laplace noise, by Polars. Returns the number of cells."""
    import opendp.prelude as dp
    import polars as pl

    dp.enable_features("contrib")
    west, south, east, north = region
    x = ((pl.col("longitude") - west) * (side / (east - west))).floor().clip(0, side - 1)
    y = ((north - pl.col("latitude")) * (side / (north - south))).floor().clip(0, side - 1)
    context = dp.Context.compositor(
        data=pl.scan_parquet(f"{folder}/*.parquet").select("user_id", cell=(y * side + x).cast(pl.Int64)),
        privacy_unit=dp.unit_of(contributions=1, identifier=pl.col("user_id")),
        privacy_loss=dp.loss_of(epsilon=EPSILON),
        split_evenly_over=1,
        margins=[dp.polars.Margin(by=["cell"], max_length=(1 << 32) - 1, max_groups=side**2)],
    )
    cells = pl.LazyFrame({"cell": range(side**2)}, schema={"cell": pl.Int64})
    query = context.query().truncate_per_group(1).group_by("cell").agg(dp.len(signed=True)).with_keys(cells)
    return len(query.release().collect())


LIBRARIES = {"duckdb": count_by_duckdb, "PipelineDP": count_by_pipeline_dp, "OpenDP": count_by_opendp}

if __name__ == "__main__":
    logging.disable(logging.WARNING)  # PipelineDP warns of every input that it cannot count beforehand
    library, logs, borders, side = sys.argv[1:]
    west, south, east, north = map(float, borders.split(","))
    if not LIBRARIES[library](Path(logs), (west, south, east, north), int(side)):
        raise SystemExit(f"{logs}: no cells")
