"""Other differential privacy libraries at the tasks of `sfumato --trust central`: add-or-remove-one-user adjacency.

    python -m benchmarks.baselines.dp_libraries TASK LIBRARY FOLDER '{"epsilon": 1, "delta": 1e-8, "bound": 4}'

Each function reads the Parquet files of a folder and bounds what a user contributes, as its library does that. The logs
have the columns user_id (int64), item and group (text), value (float64); a user's group and value are the same in all
their records, so it does not matter which record a library keeps. PyDP bounds nothing, so duckdb does it there.
duckdb's own row is the same result without noise. Libraries are imported where they are used: an import is part of what
a run costs, and none of them has to be installed.
"""

from __future__ import annotations

import bisect
import json
import logging
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

GROUPS = tuple(f"group {number:02d}" for number in range(20))
RANGE = (0.0, 100.0)  # of `value`
QUANTILES = tuple(tenth / 10 for tenth in range(1, 10))
TREE_HEIGHT, TREE_BRANCHES = 4, 16  # of PyDP's tree: what PipelineDP takes
CANDIDATES = 65_536  # of OpenDP's exponential mechanism
UNIT = 2.0**-16  # of OpenDP's sums: their noise on floats grows with the largest number of records

Task = Callable[..., Any]


def _pattern(folder: Path) -> str:
    return str(folder / "*.parquet")


# duckdb: without noise


def duckdb_counts(folder: Path, **_: float) -> dict[str, float]:
    """Users by item, each user in all their items."""
    return _duckdb_items(f"select item, count(distinct user_id) as users from '{_pattern(folder)}' group by item")


def duckdb_quantiles(folder: Path, **_: float) -> list[float]:
    """Quantiles of the users' values."""
    shares = ", ".join(map(str, QUANTILES))
    return list(_duckdb(f"select quantile_cont(value, [{shares}]) from ({_one_record(folder, 'value')})").fetchone()[0])


def duckdb_moments(folder: Path, **_: float) -> pd.DataFrame:
    """Mean and variance of the users' values, by group."""
    statistics = "avg(value) as mean, var_pop(value) as variance"
    found = _duckdb(f'select "group", {statistics} from ({_one_record(folder, "group", "value")}) group by all')
    return found.df().set_index("group")


def _duckdb(query: str) -> Any:
    import duckdb

    return duckdb.connect(config={"threads": 2}).execute(query)


def _duckdb_items(query: str) -> dict[str, float]:
    found = _duckdb(query).fetchnumpy()
    return dict(zip(found["item"], found["users"], strict=True))


def _one_record(folder: Path, *columns: str) -> str:
    kept = ", ".join(f'any_value("{name}") as "{name}"' for name in columns)
    return f"select {kept} from '{_pattern(folder)}' group by user_id"


# PyDP: Google's C++ building blocks


def pydp_counts(folder: Path, epsilon: float, delta: float, bound: int, noise: str = "laplace") -> dict[str, float]:
    """Users by item, thresholded: the noisy number that decides is the one that is published."""
    from pydp.algorithms.partition_selection import create_partition_strategy

    held = f"select *, random() as place from (select distinct user_id, item from '{_pattern(folder)}')"
    kept = f"select item from ({held}) qualify row_number() over (partition by user_id order by place) <= {bound}"
    counts = _duckdb_items(f"select item, count(*) as users from ({kept}) group by item")
    strategy = create_partition_strategy(noise, epsilon, delta, bound)
    noisy = ((item, strategy.noised_value_if_should_keep(int(users))) for item, users in counts.items())
    return {item: value for item, value in noisy if value is not None}


def pydp_shown(epsilon: float, delta: float, bound: int, noise: str, probability: float) -> int:
    """The least number of users of an item that is published with this probability; PipelineDP's is the same."""
    from pydp.algorithms.partition_selection import create_partition_strategy

    strategy = create_partition_strategy(noise, epsilon, delta, bound)
    return bisect.bisect_left(range(1 << 24), probability, key=strategy.probability_of_keep)


def pydp_quantiles(folder: Path, epsilon: float, **_: float) -> list[float]:
    """All quantiles of one noisy tree."""
    from pydp.algorithms.quantile_tree import QuantileTree

    tree = QuantileTree(*RANGE, tree_height=TREE_HEIGHT, branching_factor=TREE_BRANCHES)
    for value in _duckdb(f"select value from ({_one_record(folder, 'value')})").fetchnumpy()["value"]:
        tree.add_entry(value)
    return list(tree.compute_quantiles(epsilon, 0, 1, 1, list(QUANTILES), "laplace"))


def pydp_moments(folder: Path, epsilon: float, statistics: Sequence[str] = ("mean",), **_: float) -> pd.DataFrame:
    """Each statistic gets an equal share of epsilon."""
    from pydp.algorithms.laplacian import BoundedMean, BoundedVariance

    algorithms = {"mean": BoundedMean, "variance": BoundedVariance}
    values = _duckdb(_one_record(folder, "group", "value")).df()
    rows = {}
    for group in GROUPS:
        entries = values.loc[values["group"] == group, "value"].tolist()
        rows[group] = {
            name: algorithms[name](
                epsilon / len(statistics), lower_bound=RANGE[0], upper_bound=RANGE[1], dtype="float"
            ).quick_result(entries)
            for name in statistics
        }
    return pd.DataFrame.from_dict(rows, orient="index")


# PipelineDP, on its local backend and on Apache Beam


def pipeline_dp_counts(
    folder: Path, epsilon: float, delta: float, bound: int, noise: str = "laplace", beam: bool = False
) -> dict[str, float]:
    """Users by item. The noisy count is compared with the threshold itself, which leaves all of epsilon to it."""
    import pipeline_dp

    parameters = pipeline_dp.AggregateParams(
        metrics=[pipeline_dp.Metrics.PRIVACY_ID_COUNT],
        noise_kind=pipeline_dp.NoiseKind(noise),
        max_partitions_contributed=bound,
        max_contributions_per_partition=1,
        partition_selection_strategy=_selection(noise),
        post_aggregation_thresholding=True,
    )
    found = _pipeline_dp(folder, "item", parameters, epsilon, delta, None, beam)
    return {item: metrics["privacy_id_count"] for item, metrics in found}


def _selection(noise: str) -> Any:
    import pipeline_dp

    strategies = pipeline_dp.PartitionSelectionStrategy
    return {"laplace": strategies.LAPLACE_THRESHOLDING, "gaussian": strategies.GAUSSIAN_THRESHOLDING}[noise]


def pipeline_dp_quantiles(folder: Path, epsilon: float, beam: bool = False, **_: float) -> list[float]:
    """All quantiles of one noisy tree (PyDP's)."""
    import pipeline_dp

    metrics = [pipeline_dp.Metrics.PERCENTILE(100 * share) for share in QUANTILES]
    ((_everybody, found),) = _pipeline_dp(folder, None, _bounded(metrics), epsilon, 0, [""], beam)
    return list(found.values())


def pipeline_dp_moments(
    folder: Path, epsilon: float, statistics: Sequence[str] = ("mean",), beam: bool = False, **_: float
) -> pd.DataFrame:
    """Count, sum and sum of squares share epsilon."""
    import pipeline_dp

    metrics = [
        {"mean": pipeline_dp.Metrics.MEAN, "variance": pipeline_dp.Metrics.VARIANCE}[name] for name in statistics
    ]
    found = _pipeline_dp(folder, "group", _bounded(metrics), epsilon, 0, list(GROUPS), beam)
    return pd.DataFrame.from_dict(
        {group: {name: one[name] for name in statistics} for group, one in found}, orient="index"
    )


def _bounded(metrics: list[Any]) -> Any:
    import pipeline_dp

    return pipeline_dp.AggregateParams(
        metrics=metrics,
        noise_kind=pipeline_dp.NoiseKind.LAPLACE,
        max_partitions_contributed=1,
        max_contributions_per_partition=1,
        min_value=RANGE[0],
        max_value=RANGE[1],
    )


def _pipeline_dp(
    folder: Path,
    partition: str | None,
    parameters: Any,
    epsilon: float,
    delta: float,
    public: list[str] | None,
    beam: bool,
) -> list[Any]:
    import pipeline_dp

    columns = ["user_id", *([partition] if partition else []), *(["value"] if parameters.min_value is not None else [])]
    extractors = pipeline_dp.DataExtractors(
        privacy_id_extractor=lambda row: row[0],
        partition_extractor=lambda row: row[1] if partition else "",
        value_extractor=lambda row: row[-1],
    )
    accountant = pipeline_dp.NaiveBudgetAccountant(total_epsilon=epsilon, total_delta=delta)
    files = [str(path) for path in sorted(folder.glob("*.parquet"))]
    if not beam:
        rows = [row for path in files for row in _rows(path, columns)]
        engine = pipeline_dp.DPEngine(accountant, pipeline_dp.LocalBackend())
        found = engine.aggregate(rows, parameters, extractors, public_partitions=public)
        accountant.compute_budgets()
        return [(key, metrics._asdict()) for key, metrics in found]

    import apache_beam
    from apache_beam.runners.portability.fn_api_runner import FnApiRunner

    with tempfile.TemporaryDirectory() as out:
        with apache_beam.Pipeline(runner=FnApiRunner()) as root:
            data = root | apache_beam.Create(files) | apache_beam.FlatMap(_rows, columns)
            engine = pipeline_dp.DPEngine(accountant, pipeline_dp.BeamBackend())
            found = engine.aggregate(data, parameters, extractors, public_partitions=public)
            accountant.compute_budgets()
            lines = found | apache_beam.MapTuple(lambda key, metrics: json.dumps([key, metrics._asdict()]))
            _ = lines | apache_beam.io.WriteToText(f"{out}/found")
        texts = [path.read_text() for path in Path(out).iterdir()]
    return [json.loads(line) for text in texts for line in text.splitlines()]


def _rows(path: str, columns: list[str]) -> Iterator[tuple[Any, ...]]:
    import pyarrow.parquet as pq

    for batch in pq.ParquetFile(path).iter_batches(65536, columns=columns):
        yield from zip(*(batch.column(name).to_pylist() for name in columns), strict=True)


# OpenDP with Polars


def opendp_counts(folder: Path, epsilon: float, delta: float, bound: int, noise: str = "laplace") -> dict[str, float]:
    """Users by item: stable keys, found by a threshold on the noisy count."""
    import opendp.prelude as dp

    loss = dp.loss_of(epsilon=epsilon, delta=delta)
    if noise == "gaussian":  # half of delta for the conversion, half for the threshold
        loss = dp.loss_of(rho=_rho(epsilon, delta / 2), delta=delta / 2)
    query = _opendp(folder, loss, ["item"]).query().truncate_per_group(1, by=["item"]).truncate_per_group(bound)
    found = query.group_by("item").agg(dp.len(signed=True)).release().collect()
    return dict(found.iter_rows())


def _rho(epsilon: float, delta: float) -> float:
    """The largest rho of zCDP that OpenDP converts to (epsilon, delta)."""
    import opendp.prelude as dp

    dp.enable_features("contrib")
    space = dp.atom_domain(T=int), dp.absolute_distance(T=int)

    def converted(scale: float) -> float:
        return dp.c.make_zCDP_to_approxDP(dp.m.make_gaussian(*space, scale)).map(1).epsilon(delta)

    return 1 / (2 * dp.binary_search(lambda scale: converted(scale) <= epsilon, bounds=(0.1, 1e6)) ** 2)


def opendp_quantiles(folder: Path, epsilon: float, **_: float) -> list[float]:
    """The exponential mechanism for each quantile, by report-noisy-max over evenly spaced candidates."""
    import opendp.prelude as dp
    import polars as pl

    candidates = np.linspace(*RANGE, CANDIDATES + 1).tolist()
    value = pl.col("value").fill_null(0.0).fill_nan(0.0)
    query = _opendp(folder, dp.loss_of(epsilon=epsilon)).query().truncate_per_group(1)
    columns = [value.dp.quantile(share, candidates).alias(str(share)) for share in QUANTILES]
    return list(query.select(*columns).release().collect().row(0))


def opendp_moments(folder: Path, epsilon: float, statistics: Sequence[str] = ("mean",), **_: float) -> pd.DataFrame:
    """Counts, sums of distances from the middle of the range and, for variances, of their squares."""
    import opendp.prelude as dp
    import polars as pl

    low, high = RANGE
    middle, half = (low + high) / 2, (high - low) / 2
    distance = (pl.col("value").fill_null(0.0).fill_nan(0.0) - middle).clip(-half, half)
    units = {"distance": distance / UNIT, "square": distance**2 / UNIT}
    data = {name: (column).round().cast(pl.Int64) for name, column in units.items()}
    sums = [dp.len(signed=True), pl.col("distance").dp.sum((round(-half / UNIT), round(half / UNIT)))]
    if "variance" in statistics:
        sums.append(pl.col("square").dp.sum((0, round(half**2 / UNIT))))
    query = _opendp(folder, dp.loss_of(epsilon=epsilon), ["group"], **data).query().truncate_per_group(1)
    found = query.group_by("group").agg(*sums).with_keys(pl.LazyFrame({"group": GROUPS})).release().collect()
    table = pd.DataFrame(found.to_dict(as_series=False)).set_index("group")
    mean = table["distance"] * UNIT / table["len"]
    result = {"mean": mean + middle}
    if "variance" in statistics:
        result["variance"] = table["square"] * UNIT / table["len"] - mean**2
    return pd.DataFrame(result)


def _opendp(folder: Path, loss: Any, by: Sequence[str] = (), **columns: Any) -> Any:
    import opendp.prelude as dp
    import polars as pl

    dp.enable_features("contrib")
    return dp.Context.compositor(
        data=pl.scan_parquet(_pattern(folder)).with_columns(**columns),
        privacy_unit=dp.unit_of(contributions=1, identifier=pl.col("user_id")),
        privacy_loss=loss,
        split_evenly_over=1,
        margins=[dp.polars.Margin(by=by, max_length=(1 << 32) - 1, max_groups=1 << 20)],
    )


TASKS: dict[str, dict[str, Task]] = {
    "counts": {
        "duckdb": duckdb_counts,
        "OpenDP": opendp_counts,
        "PyDP": pydp_counts,
        "PipelineDP": pipeline_dp_counts,
    },
    "quantiles": {
        "duckdb": duckdb_quantiles,
        "OpenDP": opendp_quantiles,
        "PyDP": pydp_quantiles,
        "PipelineDP": pipeline_dp_quantiles,
    },
    "moments": {
        "duckdb": duckdb_moments,
        "OpenDP": opendp_moments,
        "PyDP": pydp_moments,
        "PipelineDP": pipeline_dp_moments,
    },
}

if __name__ == "__main__":
    logging.disable(logging.WARNING)  # PipelineDP warns of every input that it cannot count beforehand
    task, library, logs, parameters = sys.argv[1:]
    TASKS[task][library](Path(logs), **json.loads(parameters))
