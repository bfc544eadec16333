"""Weights, dwell times, top places and auxiliary data through the whole job, against the oracle; and bad options."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, ClassVar

import apache_beam as beam
import numpy as np
import pyarrow as pa
import pytest
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.runners.portability.fn_api_runner import FnApiRunner

from sfumato.pipelines import cli
from sfumato.pipelines.inputs import match_files
from sfumato.schemas.locations import Auxiliary, LocationColumns
from sfumato.schemas.tree import Tree
from sfumato.transforms.heatmap.methods import Method
from sfumato.transforms.heatmap.parameters import HeatmapParameters
from sfumato.transforms.heatmap.private_heatmap import PrivateHeatmap, bind_key
from sfumato.transforms.heatmap.state import ALL_REMAINING, Estimate, HeatmapState, Query
from sfumato.transforms.secagg.encodings import TreeEncoding
from tests.conftest import REGION, make_logs, write_files
from tests.jobs import oracle
from tests.jobs.test_heatmap import KEY, _keep, assert_same, command
from tests.rejections import rejects
from tests.seeds import seeded_rng

SMALL: dict[str, Any] = {"depth": 5, "shard_size": 200, "dropout": 0.4, "epsilon": 4.0}
ILL = Auxiliary("ill")
STATUS = Auxiliary("status", ("well", "ill", "gone"))
LEVEL = Auxiliary("level", tuple("01234"))


@dataclass(frozen=True)
class TwoLevels(Method):
    """Asks two trees by category, the second with gaps between its nodes; decodes nothing."""

    NAME: ClassVar[str] = "two_levels"
    TEXT: ClassVar[str] = "for tests"
    CATEGORIES: ClassVar[bool] = True

    def max_rounds(self, depth: int) -> int:
        return 2

    def next_query(self, state: HeatmapState, depth: int) -> Query | None:
        if len(state.results) == 2:
            return None
        below = np.linspace(4**depth, 2 * 4**depth - 1, 300).astype(np.uint64)
        tree = Tree.of(depth, np.append(np.arange(4, 8), below)) if state.results else Tree.uniform(depth, 2)
        return Query(TreeEncoding(tree, state.categories), ALL_REMAINING if state.results else 1.0)

    def decode(self, state: HeatmapState, depth: int) -> Estimate:
        raise NotImplementedError


def table_of(users: int, records: int) -> pa.Table:
    """Logs with weights, times of two kinds, and categories of three kinds, in each of which some rows are bad."""
    table, rng = make_logs(users, records, 3), seeded_rng(4)
    n = table.num_rows
    weights = rng.choice([0.0, 0.25, 1.0, 3.5, 1e300, -1.0, np.nan, np.inf], n, p=[0.2, *[0.18] * 4, 0.03, 0.03, 0.02])
    seconds = rng.integers(0, 20_000, n)
    stamps = [None if s % 50 == 0 else datetime.fromtimestamp(1_700_000_000 + s) for s in seconds.tolist()]
    status = rng.choice(["well", "ill", "gone", "else", None], n, p=[0.6, 0.2, 0.13, 0.05, 0.02])
    ill = [None if i % 40 == 0 else bool(v) for i, v in enumerate(rng.random(n) < 0.3)]
    columns = {
        "weight": pa.array(weights),
        "seconds": pa.array(np.where(seconds % 50 == 0, np.nan, seconds.astype(float))),
        "time": pa.array(stamps, pa.timestamp("ms")),
        "status": pa.array(status.tolist()).dictionary_encode(),
        "ill": pa.array(ill),
        "level": pa.array(rng.integers(0, 6, n)),
    }
    for name, column in columns.items():
        table = table.append_column(name, column)
    return table


def run_state(pattern: str, parameters: HeatmapParameters, columns: LocationColumns) -> HeatmapState:
    out = Path(pattern).parent / "state.pickle"
    paths = [file.path for file in match_files(pattern)]
    with beam.Pipeline(runner=FnApiRunner(), options=PipelineOptions([])) as root:
        state = root | beam.Create(paths) | PrivateHeatmap(REGION, parameters, KEY, columns)
        _ = state | beam.Map(_keep, str(out))
    return beam.coders.registry.get_coder(object).decode(out.read_bytes())


@pytest.mark.parametrize(
    ("columns", "changes"),
    [
        (LocationColumns(weight="weight"), {}),
        (LocationColumns(weight="weight"), {"contribution": "all", "gamma": 100}),
        (LocationColumns(weight="weight"), {"contribution": "top", "population": 800, "users": 500}),
        (LocationColumns(time="time", max_dwell=600), {"contribution": "all", "gamma": 1000}),
        (LocationColumns(time="seconds", max_dwell=4000), {}),
        (LocationColumns(), {"contribution": "top"}),
        (LocationColumns(auxiliary=ILL), {}),
        (LocationColumns(auxiliary=STATUS), {"simulated_dropout": 0.2}),
        (LocationColumns(auxiliary=LEVEL), {"contribution": "all", "gamma": 8, "noise_source": "client"}),
        (LocationColumns(weight="weight", auxiliary=STATUS), {"contribution": "all", "gamma": 60, "depth": 15}),
        (LocationColumns(time="time", auxiliary=ILL), {"contribution": "top", "trust": "central"}),
    ],
)
def test_the_job_equals_the_in_memory_oracle(tmp_path: Path, columns: LocationColumns, changes: dict) -> None:
    pattern = write_files(table_of(800, 4), tmp_path / "logs", 4)
    options = {**SMALL, "max_bad_fraction": 0.4, "gamma": 40, **changes, "categories": columns.categories}
    parameters = HeatmapParameters(**options, method=TwoLevels())
    state = run_state(pattern, parameters, columns)
    assert len(state.results) == 2
    assert state.cohort.shards > 1
    assert_same(state, oracle.heatmap(pattern, REGION, parameters, KEY, columns))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("columns", "contribution"),
    [
        (LocationColumns(weight="weight"), "one"),
        (LocationColumns(time="time", auxiliary=STATUS), "top"),
        (LocationColumns(time="time", auxiliary=STATUS), "all"),
    ],
)
def test_files_bundles_and_row_groups_do_not_show(tmp_path: Path, columns: LocationColumns, contribution: str) -> None:
    table = table_of(700, 4)
    shuffled = table.take(seeded_rng(1).permutation(table.num_rows))
    parameters = HeatmapParameters(
        **SMALL,
        max_bad_fraction=0.4,
        contribution=contribution,  # type: ignore[arg-type]
        categories=columns.categories,
        method=TwoLevels(),
    )
    one = run_state(write_files(table, tmp_path / "a", 1, row_group_size=10_000), parameters, columns)
    many = run_state(write_files(shuffled, tmp_path / "b", 6, row_group_size=97), parameters, columns)
    assert_same(many, one)


def test_the_key_is_bound_to_every_column() -> None:
    columns = [
        LocationColumns(),
        LocationColumns(weight="w"),
        LocationColumns(time="w"),
        LocationColumns(time="w", max_dwell=60),
        LocationColumns(auxiliary=Auxiliary("w")),
        LocationColumns(auxiliary=Auxiliary("w", ("a", "b"))),
        LocationColumns(auxiliary=Auxiliary("w", ("b", "a"))),
    ]
    assert len({bind_key(KEY, REGION, HeatmapParameters(), one).subkey("x") for one in columns}) == len(columns)


def test_categories_of_columns_and_parameters_must_agree() -> None:
    with rejects("categories"):
        PrivateHeatmap(REGION, HeatmapParameters(), KEY, LocationColumns(auxiliary=ILL))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("--weight_column load", "no column 'load'; set --weight_column to one of: user_id, latitude"),
        ("--weight_column status", "column 'status' must hold weights as numbers, it holds string"),
        ("--weight_column weight --time_column time", "give one"),
        ("--time_column when", "no column 'when'; set --time_column"),
        ("--time_column ill", "column 'ill' must hold timestamps, or seconds as numbers, it holds bool"),
        ("--max_dwell 60", "max_dwell: is of dwell times, which need --time_column NAME"),
        ("--time_column time --max_dwell 0", "max_dwell: must be a finite number of seconds > 0, got 0.0"),
        ("--time_column time --max_dwell nan", "max_dwell: must be a number, got 'nan'"),
        ("--time_column time --max_dwell soon", "max_dwell: must be a number, got 'soon'"),
        ("--categories a,b", "categories: are of a column, which needs --auxiliary NAME"),
        ("--contribution most", "contribution: must be one of one, top, all, got 'most'"),
    ],
)
def test_bad_options_are_refused_by_name(tmp_path: Path, capsys, options: str, words: str) -> None:
    pattern = write_files(table_of(60, 1), tmp_path / "logs", 2)
    assert cli.main(command(pattern, tmp_path / "out", "--depth", "5", *options.split())) == 2
    assert words in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("--auxiliary sick", "no column 'sick'; set --auxiliary to one of"),
        ("--auxiliary status", "column 'status' holds string; give its values as --categories a,b,c"),
        ("--auxiliary weight", "column 'weight' must hold booleans, integers or text of a few values, it holds double"),
        ("--auxiliary ill --categories yes,no", "column 'ill' holds booleans, whose categories are false,true"),
        ("--auxiliary level --categories low,high", "column 'level' holds int64; its categories are whole numbers"),
        ("--auxiliary level --categories 1", "categories: give 2 to 16, got '1'"),
        ("--auxiliary level --categories 1,2,1", "categories: '1' is there twice"),
        ("--auxiliary level --categories 1,,2", "categories: one of them is empty"),
        (f"--auxiliary level --categories {','.join(map(str, range(17)))}", "categories: too many, 17"),
        ("--auxiliary user_id", "auxiliary: 'user_id' is the column of user ids"),
        ("--auxiliary ill --method emd", "auxiliary: method emd makes no rates; use adaptive or flat"),
    ],
)
def test_bad_auxiliary_data_are_refused_by_name(tmp_path: Path, capsys, options: str, words: str) -> None:
    pattern = write_files(table_of(60, 1), tmp_path / "logs", 2)
    assert cli.main(command(pattern, tmp_path / "out", "--depth", "5", *options.split())) == 2
    assert words in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ("--auxiliary status --categories good,bad", "unknown_category"),
        ("--weight_column negative", "bad_weight"),
    ],
)
def test_columns_of_bad_values_are_refused(tmp_path: Path, capsys, options: str, reason: str) -> None:
    """The refusal rests on noisy counts; what was wrong with the rows is operations data."""
    table = table_of(600, 1).append_column("negative", pa.array(np.full(600, -1.0)))
    pattern = write_files(table, tmp_path / "logs", 2)
    assert cli.main(command(pattern, tmp_path / "out", *options.split())) == 1
    error = capsys.readouterr().err
    assert "have no usable record" in error
    assert reason not in error
    assert cli.main(command(pattern, tmp_path / "out", *options.split(), "--verbose")) == 1
    assert re.search(rf"dropped: .*{reason} \d+", capsys.readouterr().err)


def test_a_release_says_what_records_weigh(tmp_path: Path) -> None:
    pattern = write_files(table_of(900, 4), tmp_path / "logs", 3)
    has_weights = ["--time_column", "time", "--max_dwell", "90", "--contribution", "all", "--max_bad_fraction", "0.4"]
    assert cli.main(command(pattern, tmp_path / "out", *has_weights)) == 0
    columns = json.loads((tmp_path / "out" / "manifest.json").read_text())["parameters"]["columns"]
    assert columns == {
        "user_id": "user_id",
        "latitude": "latitude",
        "longitude": "longitude",
        "weight": None,
        "time": "time",
        "max_dwell": 90.0,
        "auxiliary": None,
    }
