"""Weights, dwell times, auxiliary data, slots and cells through the whole job, against the oracle."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pytest

import sfumato
from sfumato.pipelines.command_line import cli
from sfumato.schemas.locations import Auxiliary, LocationColumns
from sfumato.schemas.region import Region
from sfumato.schemas.slots import Slots
from sfumato.schemas.tree import Tree
from sfumato.schemas.views.map_views import MapBody
from sfumato.transforms.counting.methods import Method
from sfumato.transforms.counting.parameters import CountParameters
from sfumato.transforms.counting.state import ALL_REMAINING, CountState, Estimate, Query
from sfumato.transforms.heatmap.request import heatmap_parameters
from sfumato.transforms.heatmap.transform import bind_key
from sfumato.transforms.heatmap.view import heatmap_view
from sfumato.transforms.secagg.encodings import TreeEncoding
from tests.conftest import REGION, make_logs, write_files
from tests.jobs import oracle
from tests.jobs.heatmap.test_heatmap import KEY, assert_same, command, run_state
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

    def most_sub_queries(self, depth: int) -> int:
        return 2

    def next_query(self, state: CountState, depth: int) -> Query | None:
        if len(state.results) == 2:
            return None
        below = np.linspace(4**depth, 2 * 4**depth - 1, 300).astype(np.uint64)
        tree = Tree.of(depth, np.append(np.arange(4, 8), below)) if state.results else Tree.uniform(depth, 2)
        return Query(TreeEncoding(tree, state.categories), ALL_REMAINING if state.results else 1.0)

    def decode(self, state: CountState, depth: int) -> Estimate:
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


@pytest.mark.parametrize(
    ("columns", "changes"),
    [
        (LocationColumns(weight="weight"), {}),
        (LocationColumns(weight="weight"), {"contribution": "top", "population": 800, "users": 500}),
        (LocationColumns(time="time", max_dwell=600), {"contribution": "all", "gamma": 1000}),
        (LocationColumns(auxiliary=STATUS), {"simulated_dropout": 0.2}),
        (LocationColumns(auxiliary=LEVEL), {"contribution": "all", "gamma": 8, "noise_source": "client"}),
        (LocationColumns(weight="weight", auxiliary=STATUS), {"contribution": "all", "gamma": 60, "depth": 15}),
        (LocationColumns(time="time", auxiliary=ILL), {"contribution": "top", "trust": "central"}),
    ],
)
def test_columns_equal_the_oracle(tmp_path: Path, columns: LocationColumns, changes: dict) -> None:
    pattern = write_files(table_of(800, 4), tmp_path / "logs", 4)
    options = {**SMALL, "max_bad_fraction": 0.4, "gamma": 40, **changes, "categories": columns.categories}
    parameters = CountParameters(**options, method=TwoLevels())
    state = run_state(pattern, parameters, columns)
    assert len(state.results) == 2
    assert state.shard_plan.shards > 1
    assert_same(state, oracle.heatmap(pattern, REGION, parameters, KEY, columns))


@pytest.fixture(scope="module")
def every_column(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_files(table_of(60, 1), tmp_path_factory.mktemp("columns") / "logs", 2)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("--input nothing/*.parquet", "input"),
        ("--no_such_option 1", "--no_such_option"),
        ("--runner NoSuchRunner", "runner"),
        ("--user_id_column rider", "no column 'rider' (--user_id_column); choose from user_id, latitude"),
        ("--latitude_column status", "column 'status' must hold degrees"),
        ("--weight_column status", "column 'status' must hold weights"),
        ("--time_column status --slots hour", "column 'status' must hold timestamps"),
        ("--auxiliary status", "column 'status' holds string; give its values as --categories a,b,c"),
        ("--auxiliary level --categories low,high", "column 'level' holds int64"),
    ],
)
def test_command_rejects_bad_files_and_columns(
    every_column: str, tmp_path: Path, capsys: Any, options: str, words: str
) -> None:
    assert cli.main(command(every_column, tmp_path / "out", "--depth", "5", *options.split())) == 2
    assert words in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_columns_of_bad_values_are_refused(tmp_path: Path, capsys) -> None:
    """The refusal rests on noisy counts; what was wrong with the rows is operations data."""
    table = table_of(600, 1).append_column("negative", pa.array(np.full(600, -1.0)))
    arguments = command(write_files(table, tmp_path / "logs", 2), tmp_path / "out", "--weight_column", "negative")
    assert cli.main(arguments) == 1
    assert "bad_weight" not in capsys.readouterr().err
    assert cli.main([*arguments, "--verbose"]) == 1
    assert re.search(r"dropped: .*bad_weight \d+", capsys.readouterr().err)


SLOTS_SMALL: dict[str, Any] = {"depth": 6, "shard_size": 400, "dropout": 0.4, "epsilon": 4.0, "max_bad_fraction": 0.4}


def timed_logs(users: int, records: int) -> pa.Table:
    """Logs with times of two kinds around the end of summer time in Europe; every 20th time is missing."""
    table, rng = make_logs(users, records, 3), seeded_rng(4)
    begin = datetime(2026, 10, 22, 12, tzinfo=UTC)
    seconds = rng.integers(0, 6 * 86_400, table.num_rows)
    missing = np.arange(table.num_rows) % 20 == 0
    stamps = [None if gone else begin + timedelta(seconds=s) for s, gone in zip(seconds.tolist(), missing, strict=True)]
    table = table.append_column("time", pa.array(stamps, pa.timestamp("us", "UTC")))
    return table.append_column("seconds", pa.array(np.where(missing, np.nan, begin.timestamp() + seconds)))


@pytest.mark.parametrize(
    ("slots", "changes"),
    [
        (Slots("time", "hour", "Europe/Berlin"), {}),
        (Slots("time", "edges", "UTC", (0, 7, 24)), {"simulated_dropout": 0.2, "noise": "gaussian", "delta": 1e-6}),
        (Slots("time", "hour_of_week", "Europe/Berlin"), {"contribution": "top", "depth": 5}),
        (Slots("time", "edges", "UTC", (0, 6, 12, 18, 24)), {"depth": 14, "users": 900, "population": 1200}),
        (Slots("time", "weekday", "Europe/Berlin"), {"records_per_user": 3}),
        (Slots("time", "edges", "UTC", (0, 7, 24)), {"records_per_user": 2, "trust": "central"}),
    ],
)
def test_slots_equal_the_oracle(tmp_path: Path, slots: Slots, changes: dict[str, Any]) -> None:
    most = changes.pop("records_per_user", 1)
    columns = LocationColumns(slots=slots, records_per_user=most)
    pattern = write_files(timed_logs(1200, 5 if most > 1 else 3), tmp_path / "logs", 4)
    parameters = heatmap_parameters("adaptive", {**SLOTS_SMALL, **changes}, slots=len(slots), records_per_user=most)
    state = run_state(pattern, parameters, columns)
    assert len(state.results) in (2, 3, 4)
    assert state.slot_result is state.results[-1]
    assert len(state.results[-1].counts) == len(slots) * len(state.results[-1].tree.entries)
    assert all(len(one.counts) == len(one.tree.entries) for one in state.map_results)
    assert_same(state, oracle.heatmap(pattern, REGION, parameters, KEY, columns))


def test_command_publishes_every_slot(tmp_path: Path) -> None:
    pattern, out = write_files(timed_logs(900, 2), tmp_path / "logs", 2), tmp_path / "out"
    slots = ("--time_column", "time", "--slots", "0,7,16,24", "--time_zone", "Asia/Tokyo", "--max_bad_fraction", "0.4")
    assert cli.main(command(pattern, out, "--depth", "6", *slots)) == 0
    table = sfumato.open_release(out).table("slots")
    assert sorted(set(table["slot_name"])) == ["00-07 h", "07-16 h", "16-24 h"]
    manifest = json.loads((out / "manifest.json").read_text())
    stated = {name: manifest["slots"][name] for name in ("column", "kind", "edges", "time_zone")}
    assert stated == {"column": "time", "kind": "edges", "edges": [0, 7, 16, 24], "time_zone": "Asia/Tokyo"}
    assert "counts once in all" in manifest["privacy"]["contribution_bound"]
    assert np.load(out / "slots.npy").shape == (3, 64, 64)
    assert manifest["privacy"]["epsilon_spent"] == pytest.approx(manifest["privacy"]["epsilon"])


@pytest.mark.false_alarm(2e-9)
def test_several_records_a_user_are_counted_as_user_slots(tmp_path: Path) -> None:
    """3,000 users with about six records in three slots: the slots add up to the user-slots, and users stay users.

    Laplace noise is beyond 15 deviations with a probability of 6e-10.
    """
    table = timed_logs(3000, 6)
    table = table.set_column(3, "time", table["time"].cast(pa.timestamp("us")))  # local times, as in the logs
    pattern, out = write_files(table, tmp_path / "logs", 2), tmp_path / "out"
    slots = ("--time_column", "time", "--slots", "0,8,16,24", "--records_per_user", "3", "--trust", "central")
    assert cli.main(command(pattern, out, "--depth", "5", "--max_bad_fraction", "0.4", *slots)) == 0
    manifest = json.loads((out / "manifest.json").read_text())
    known = table.filter(pa.compute.is_valid(table["time"]))
    slot = pa.compute.floor(pa.compute.divide(pa.compute.hour(known["time"]), 8))
    truth = len({*zip(known["user_id"].to_pylist(), slot.to_pylist(), strict=True)})
    results = manifest["results"]
    assert abs(results["user_slots"] - truth) < 15 * results["user_slots_stddev"]
    assert abs(results["users"] - 3000) < 15 * results["users_stddev"]
    assert results["users"] < 0.6 * results["user_slots"]
    total = sum(sfumato.open_release(out).table("slots")["users"])
    assert total == pytest.approx(results["user_slots"])
    assert "at most 3 records a user" in manifest["privacy"]["contribution_bound"]
    body = heatmap_view({path.name: path.read_bytes() for path in out.iterdir()}).body
    assert isinstance(body, MapBody)
    assert body.slots is not None
    assert body.layers[-1].measures[0].unit == "user-slots"
    assert body.slots.layer.measures[0].unit == "users"
    assert body.slots.note.startswith("Local time, as in the logs. Each user counts in at most 3 slots, once in each")
    assert "as in the logs" in manifest["privacy"]["contribution_bound"]


def test_bind_key_is_another_for_every_column_slot_and_region() -> None:
    """One key, one input: the question may be the same, so the noise must not be."""
    columns = [
        LocationColumns(),
        LocationColumns(weight="w"),
        LocationColumns(time="w"),
        LocationColumns(time="w", max_dwell=60),
        LocationColumns(auxiliary=Auxiliary("w")),
        LocationColumns(auxiliary=Auxiliary("w", ("a", "b"))),
        LocationColumns(auxiliary=Auxiliary("w", ("b", "a"))),
    ]
    slots = [
        Slots("t", "hour"),
        Slots("u", "hour"),
        Slots("t", "hour", "Asia/Tokyo"),
        Slots("t", "weekday"),
        Slots("t", "edges", "UTC", (0, 7, 24)),
        Slots("t", "edges", "UTC", (0, 8, 24)),
    ]
    bound = [(REGION, CountParameters(), one) for one in columns]
    bound += [(REGION, heatmap_parameters("adaptive", {}, slots=len(one)), LocationColumns(slots=one)) for one in slots]
    several = heatmap_parameters("adaptive", {}, slots=24, records_per_user=2)
    bound.append((REGION, several, LocationColumns(slots=slots[0], records_per_user=2)))
    bound.append((REGION, CountParameters(epsilon=2.0), LocationColumns()))
    bound.append((Region(-1.0, 50.0, 1.0, 51.5), CountParameters(), LocationColumns()))
    assert len({bind_key(KEY, *one).subkey("x") for one in bound}) == len(bound) == 16
