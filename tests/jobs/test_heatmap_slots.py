"""Maps of every slot through the whole job: against the oracle, its files, Python, and bad options."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pytest

import sfumato
from sfumato.pipelines import cli
from sfumato.schemas.locations import LocationColumns
from sfumato.schemas.slots import Slots
from sfumato.schemas.views import MapBody
from sfumato.transforms.heatmap.parameters import HeatmapParameters
from sfumato.transforms.heatmap.private_heatmap import PrivateHeatmap, bind_key
from sfumato.transforms.heatmap.request import heatmap_parameters
from sfumato.transforms.heatmap.view import heatmap_view
from tests.conftest import REGION, make_logs, write_files
from tests.jobs import oracle
from tests.jobs.test_heatmap import KEY, assert_same, command
from tests.jobs.test_heatmap_columns import run_state
from tests.rejections import rejects
from tests.seeds import seeded_rng

SMALL: dict[str, Any] = {"depth": 6, "shard_size": 400, "dropout": 0.4, "epsilon": 4.0, "max_bad_fraction": 0.4}


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
        (Slots("seconds", "weekday", "Asia/Tokyo"), {"trust": "central"}),
        (Slots("time", "edges", "UTC", (0, 7, 24)), {"simulated_dropout": 0.2, "noise": "gaussian", "delta": 1e-6}),
        (Slots("time", "hour_of_week", "Europe/Berlin"), {"contribution": "top", "depth": 5}),
        (Slots("time", "edges", "UTC", (0, 6, 12, 18, 24)), {"depth": 14, "users": 900, "population": 1200}),
        (Slots("time", "hour"), {"noise_source": "client", "schedule": "lean"}),
        (Slots("time", "weekday", "Europe/Berlin"), {"records_per_user": 3}),
        (Slots("time", "edges", "UTC", (0, 7, 24)), {"records_per_user": 2, "trust": "central"}),
        (Slots("time", "hour"), {"records_per_user": 24, "noise": "gaussian", "delta": 1e-6, "epsilon": 8.0}),
    ],
)
def test_the_job_equals_the_in_memory_oracle(tmp_path: Path, slots: Slots, changes: dict[str, Any]) -> None:
    most = changes.pop("records_per_user", 1)
    columns = LocationColumns(slots=slots, records_per_user=most)
    pattern = write_files(timed_logs(1200, 5 if most > 1 else 3), tmp_path / "logs", 4)
    parameters = heatmap_parameters("adaptive", {**SMALL, **changes}, slots=len(slots), records_per_user=most)
    state = run_state(pattern, parameters, columns)
    assert len(state.results) in (2, 3, 4)
    assert state.slot_result is state.results[-1]
    assert len(state.results[-1].counts) == len(slots) * len(state.results[-1].tree.entries)
    assert all(len(one.counts) == len(one.tree.entries) for one in state.map_results)
    assert_same(state, oracle.heatmap(pattern, REGION, parameters, KEY, columns))


@pytest.mark.slow
def test_slots_of_a_log_of_text_are_those_of_its_times(tmp_path: Path) -> None:
    """The column of the slots is read as times, and not as text, from CSV."""
    table, columns = timed_logs(600, 2).drop_columns(["seconds"]), LocationColumns(slots=Slots("time", "hour", "UTC"))
    table = table.set_column(0, "user_id", table["user_id"].cast(pa.string()))
    parameters = heatmap_parameters("adaptive", SMALL, slots=24)
    pa.csv.write_csv(table, tmp_path / "log.csv")
    from_text = run_state(str(tmp_path / "log.csv"), parameters, columns)
    assert_same(from_text, run_state(write_files(table, tmp_path / "logs", 1), parameters, columns))


@pytest.mark.slow
def test_files_bundles_and_row_groups_do_not_show(tmp_path: Path) -> None:
    table, columns = timed_logs(1000, 3), LocationColumns(slots=Slots("time", "hour", "Asia/Tokyo"))
    shuffled = table.take(seeded_rng(1).permutation(table.num_rows))
    parameters = heatmap_parameters("adaptive", SMALL, slots=24)
    one = run_state(write_files(table, tmp_path / "a", 1, row_group_size=10_000), parameters, columns)
    many = run_state(write_files(shuffled, tmp_path / "b", 6, row_group_size=97), parameters, columns)
    assert_same(many, one)


def test_the_command_publishes_every_slot(tmp_path: Path) -> None:
    pattern, out = write_files(timed_logs(2000, 2), tmp_path / "logs", 2), tmp_path / "out"
    slots = ("--time_column", "time", "--slots", "0,7,16,24", "--time_zone", "Asia/Tokyo", "--max_bad_fraction", "0.4")
    assert cli.main(command(pattern, out, "--depth", "6", *slots)) == 0
    release = sfumato.open_release(out)
    table = release.table("slots")
    assert sorted(set(table["slot_name"])) == ["00-07 h", "07-16 h", "16-24 h"]
    manifest = json.loads((out / "manifest.json").read_text())
    stated = {name: manifest["slots"][name] for name in ("column", "kind", "edges", "time_zone")}
    assert stated == {"column": "time", "kind": "edges", "edges": [0, 7, 16, 24], "time_zone": "Asia/Tokyo"}
    assert "counts once in all" in manifest["privacy"]["contribution_bound"]
    assert np.load(out / "slots.npy").shape == (3, 64, 64)
    assert manifest["privacy"]["epsilon_spent"] == pytest.approx(manifest["privacy"]["epsilon"])


def test_several_records_a_user_count_user_slots_and_say_so(tmp_path: Path) -> None:
    """3,000 users with about six records in three slots: the slots add up to the user-slots, and users stay users."""
    table = timed_logs(3000, 6)
    pattern, out = write_files(table, tmp_path / "logs", 2), tmp_path / "out"
    slots = ("--time_column", "time", "--slots", "0,8,16,24", "--records_per_user", "3", "--trust", "central")
    assert cli.main(command(pattern, out, "--depth", "5", "--epsilon", "4", "--max_bad_fraction", "0.4", *slots)) == 0
    manifest = json.loads((out / "manifest.json").read_text())
    known = table.filter(pa.compute.is_valid(table["time"]))
    slot = pa.compute.floor(pa.compute.divide(pa.compute.hour(known["time"]), 8))
    truth = len({*zip(known["user_id"].to_pylist(), slot.to_pylist(), strict=True)})
    results = manifest["results"]
    assert abs(results["user_slots"] - truth) < 6 * results["user_slots_stddev"]
    assert abs(results["users"] - 3000) < 6 * results["users_stddev"]
    assert results["users"] < 0.6 * results["user_slots"]
    total = sum(sfumato.open_release(out).table("slots")["users"])
    assert total == pytest.approx(results["user_slots"])
    assert "at most 3 records a user" in manifest["privacy"]["contribution_bound"]
    body = heatmap_view({path.name: path.read_bytes() for path in out.iterdir()}).body
    assert isinstance(body, MapBody)
    assert body.slots is not None
    assert body.layers[-1].measures[0].unit == "user-slots"
    assert body.slots.layer.measures[0].unit == "users"
    assert "in 3 slots at most, once in each" in body.slots.note


def test_python_has_slots_too(tmp_path: Path) -> None:
    pattern = write_files(timed_logs(2000, 1), tmp_path / "logs", 2)
    release = sfumato.heatmap(
        pattern,
        output=tmp_path / "out",
        region=(-1, 50, 1, 51),
        depth=5,
        slots="weekday",
        time_column="seconds",
        seed=1,
        max_bad_fraction=0.4,
    )
    table = release.table("slots")
    assert len(table) % 7 == 0
    assert table["slot_name"].iloc[0] == "Monday"


def test_a_map_without_slots_is_bound_as_before() -> None:
    """A key is bound to names and values, so a new name would give every earlier release another noise."""
    assert "slots" not in LocationColumns().metadata()
    assert "slots" not in HeatmapParameters().metadata()


def test_the_key_is_bound_to_column_kind_edges_and_zone() -> None:
    slots = [
        Slots("t", "hour"),
        Slots("u", "hour"),
        Slots("t", "hour", "Asia/Tokyo"),
        Slots("t", "weekday"),
        Slots("t", "edges", "UTC", (0, 7, 24)),
        Slots("t", "edges", "UTC", (0, 8, 24)),
    ]
    several = LocationColumns(slots=slots[0], records_per_user=2)
    keys = [bind_key(KEY, REGION, heatmap_parameters("adaptive", {}, slots=24, records_per_user=2), several)]
    keys += [
        bind_key(KEY, REGION, heatmap_parameters("adaptive", {}, slots=len(one)), LocationColumns(slots=one))
        for one in slots
    ]
    keys.append(bind_key(KEY, REGION, HeatmapParameters(), LocationColumns()))
    assert len({key.subkey("x") for key in keys}) == len(keys) == 8


def test_slots_of_columns_and_parameters_must_agree() -> None:
    with rejects("slots"):
        PrivateHeatmap(REGION, HeatmapParameters(), KEY, LocationColumns(slots=Slots("t", "hour")))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("--slots hour", "slots: are of times, which need --time_column NAME"),
        ("--time_column time --slots hours", "slots: must be hour, weekday, hour_of_week, or edges"),
        ("--time_column time --slots 7,24", "slots: edges are ascending hours"),
        ("--time_column time --slots hour --time_zone Mars", "time_zone: no time zone is named 'Mars'"),
        ("--time_column time --time_zone UTC", "time_zone: requires"),
        ("--time_column time --slots hour --max_dwell 60", "max_dwell: with --slots a record does not weigh its time"),
        ("--time_column time --slots hour --auxiliary ill", "auxiliary: a map has slots or rates, not both"),
        ("--time_column time --slots hour --method flat", "slots: method flat makes no maps of slots; use adaptive"),
        ("--time_column time --slots hour --schedule paper", "schedule: paper makes no maps of slots"),
        ("--time_column time --slots hour --contribution all", "contribution: with slots a user gives records"),
        ("--records_per_user 2", "records_per_user: is of slots; give --slots hour"),
        ("--time_column time --slots 0,7,24 --records_per_user 3", "records_per_user: at most one a slot, so 2; got 3"),
        ("--time_column time --slots hour --records_per_user 0", "records_per_user: must be a whole number in 1..168"),
        (
            "--time_column time --slots hour --records_per_user 2 --weight_column seconds",
            "weight_column: with several records a user all weigh the same",
        ),
        (
            "--time_column time --slots hour --records_per_user 2 --contribution top",
            "contribution: with several records a user it must be one, got top",
        ),
        (
            "--time_column time --slots hour --records_per_user 2 --simulated_dropout 0.1",
            "simulated_dropout: with several records a user it must be 0, got 0.1",
        ),
        ("--time_column when --slots hour", "no column 'when'; set --time_column"),
        ("--time_column user_name --slots hour", "must hold timestamps, or seconds as numbers, it holds string"),
    ],
)
def test_bad_options_are_refused_by_name(tmp_path: Path, capsys: Any, options: str, words: str) -> None:
    table = timed_logs(60, 1)
    table = table.append_column("user_name", pa.array(["x"] * table.num_rows))
    pattern = write_files(table, tmp_path / "logs", 2)
    assert cli.main(command(pattern, tmp_path / "out", "--depth", "5", *options.split())) == 2
    assert words in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_warm_start_has_no_slots(tmp_path: Path, capsys: Any) -> None:
    pattern, first = write_files(timed_logs(900, 1), tmp_path / "logs", 2), tmp_path / "first"
    assert cli.main(command(pattern, first, "--depth", "5")) == 0
    more = ("--time_column", "time", "--slots", "hour", "--warm_start", str(first))
    assert cli.main(command(pattern, tmp_path / "out", "--depth", "5", *more)) == 2
    assert "warm_start: a map with slots cannot start from an earlier release" in capsys.readouterr().err
