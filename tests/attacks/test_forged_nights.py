"""Somebody who may write to the output folder forges what a night continues: an honest error before any charge.

The files are data: nothing in them runs, and a small file does not fill the memory. Whatever is accepted gives a map
and a state that the next night can read, because a night that fails after its charge is lost.
"""

from __future__ import annotations

import hashlib
import io
import json
import shutil
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sfumato.pipelines import cli
from sfumato.schemas.errors import RequestError
from sfumato.schemas.ledger import Period
from sfumato.transforms.heatmap.nights import nights_state
from sfumato.transforms.heatmap.nights.nights_state import MAX_NODES, MAX_SCALE, NightsState
from sfumato.transforms.heatmap.nights.nights_update import update
from sfumato.transforms.heatmap.posterior.full_tree import TreeMeasurement
from sfumato.transforms.heatmap.warm_start import nights_before
from tests.conftest import make_logs, write_files
from tests.keys import write_key
from tests.rejections import rejects
from tests.seeds import seeded_rng
from tests.unit.heatmap.nights.nights import CELLS, STDDEV, TREE, counts_of, measure_night, night_of, run_nights

STATE, _ = run_nights(range(6))
NEXT = date(2026, 11, 20)


def with_metadata(**values: object) -> pa.Table:
    table = STATE.to_table()
    about = json.loads(table.schema.metadata[nights_state._METADATA])
    return table.replace_schema_metadata({nights_state._METADATA: json.dumps({**about, **values}).encode()})


def scales(**values: float) -> pa.Table:
    return with_metadata(scales={"drift": 1.0, "night": 1.0, **values})


FORGED = {
    "nested": STATE.to_table().replace_schema_metadata({nights_state._METADATA: b"[" * 100_000 + b"]" * 100_000}),
    "a negative node": with_metadata(events=[[-16, "2026-03-07", 0.1, 0.1]]),
    "a scale beyond the range": scales(night=1.01 * MAX_SCALE),
    "a scale below the range": scales(drift=0.99 / MAX_SCALE),
}


@pytest.mark.parametrize("name", FORGED)
def test_a_forged_state_is_an_honest_error(name: str) -> None:
    with pytest.raises(RequestError, match=r"nights\.parquet is damaged"):
        NightsState.from_table(FORGED[name], 8)


ACCEPTED = {
    "the largest scales": scales(night=MAX_SCALE, drift=MAX_SCALE),
    "the smallest scales": scales(night=1 / MAX_SCALE, drift=1 / MAX_SCALE),
    "a huge event": with_metadata(events=[[16, "2026-03-07", 9e5, 0.0]]),
}


@pytest.mark.parametrize("name", ACCEPTED)
@pytest.mark.parametrize("users", [0.0, 1e-9, 200_000.0])
def test_what_is_accepted_gives_a_map_and_a_state_that_can_be_read(name: str, users: float) -> None:
    state = NightsState.from_table(ACCEPTED[name], 8)
    after, tonight = update(state, night_of(6), [measure_night(6, counts_of(6))], users, 50.0)
    assert np.isfinite(tonight.estimate.counts).all()
    assert NightsState.from_table(after.to_table(), 8).night == night_of(6)


@pytest.mark.parametrize("users", [0.0, 1e-9, 1.0])
def test_a_night_of_nobody_but_a_crowd_is_no_lost_night(users: float) -> None:
    """The noisy number of users is cut off at 0, and a noisy count may still stand out."""
    counts = seeded_rng(1).laplace(0, STDDEV / 2**0.5, CELLS)
    counts[5] += 20 * STDDEV
    measured = [TreeMeasurement(TREE, counts, np.full(CELLS, STDDEV**2), 29.0)]
    after, tonight = update(STATE, night_of(6), measured, users, 60.0)
    assert tonight.changes
    again = NightsState.from_table(after.to_table(), 8)
    assert again.events == after.events
    assert update(again, night_of(7), [measure_night(7, counts_of(7))], 200_000.0, 60.0)[0].rests_on == (
        Period(night_of(0), night_of(7)),
    )


# --- through the releases of a ledger ---


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two nights and a key."""
    folder = tmp_path_factory.mktemp("forged")
    write_key(folder / "key")
    for number in (1, 2):
        write_files(make_logs(600, 2, seed=number), folder / f"logs{number}", 2)
        assert run(folder, number, *([folder / "night1"] if number == 2 else [])) == 0
    return folder


def run(folder: Path, number: int, *starts: Path) -> int:
    night = f"2026-11-1{number}"
    arguments = ["--input", folder / f"logs{number}", "--region", "-1,50,1,51", "--depth", 5, "--epsilon", 1]
    arguments += ["--output", folder / f"night{number}", "--release_id", f"night{number}", "--key_file", folder / "key"]
    arguments += ["--ledger", folder / "ledger.db", "--dataset", "city", "--period", night, "--night", night]
    arguments += ["--budget", "1/30d", "--rotation", f"{number}/3"]
    arguments += ["--warm_start", ",".join(map(str, starts))] if starts else []
    return cli.main(["heatmap", *map(str, arguments)])


CHANGES: list[tuple[tuple[str | int, ...], Any]] = [
    (("results", "users"), float("nan")),
    (("results", "users"), 1e300),
    (("results", "users"), -5),
    (("results", "users_stddev"), float("inf")),
    (("results", "users_stddev"), 1e300),
    (("privacy", "sub_queries"), []),
    (("privacy", "sub_queries"), {}),
    (("privacy", "sub_queries"), [{"index": 1, "shards": 1, "shards_lost": 0}] * 1000),
    (("privacy", "sub_queries", 0, "index"), float("inf")),
    (("privacy", "sub_queries", 0, "shards_lost"), 1),
    (("privacy", "sub_queries", 0, "shards_lost"), -1e9),
    (("privacy", "cohort", "shards"), 0),
    (("privacy", "cohort", "shards"), float("inf")),
    (("privacy", "rotation"), {"cohort": 1, "cohorts": 0}),
    (("privacy", "rotation"), {"cohort": 1, "cohorts": 10**9}),
    (("privacy", "rotation"), [3]),
    (("grid",), None),
    (("grid", "depth"), 10**9),
]


@pytest.mark.parametrize(("at", "value"), CHANGES)
def test_a_forged_manifest_is_an_honest_error(
    place: Path, tmp_path: Path, at: tuple[str | int, ...], value: Any
) -> None:
    shutil.copytree(place / "night2", tmp_path / "night2")
    manifest = json.loads((tmp_path / "night2" / "manifest.json").read_bytes())
    inner: Any = manifest
    for one in at[:-1]:
        inner = inner[one]
    inner[at[-1]] = value
    (tmp_path / "night2" / "manifest.json").write_text(json.dumps(manifest))
    with rejects("warm_start"):
        nights_before([str(place / "night1"), str(tmp_path / "night2")], NEXT)


def test_an_honest_release_is_added(place: Path) -> None:
    """So the tests above fail for what they change."""
    state = nights_before([str(place / "night1"), str(place / "night2")], NEXT).state
    assert state is not None
    assert state.night == date(2026, 11, 12)


@pytest.mark.parametrize("name", ["nights.parquet", "cells.parquet", "answers.parquet"])
def test_a_small_file_of_very_many_rows_is_not_read(
    place: Path, tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its footer says how many there are. A writer makes billions of equal rows of a few kilobytes."""
    rows = 20_000_000
    sink = io.BytesIO()
    pq.write_table(pa.table({"node": pa.array(np.zeros(rows, dtype=np.uint8))}), sink)
    content = sink.getvalue()
    assert len(content) < 100_000
    assert rows > 2 * MAX_NODES
    for number in (1, 2):
        shutil.copytree(place / f"night{number}", tmp_path / f"night{number}")
    forged = tmp_path / ("night2" if name == "answers.parquet" else "night1")
    (forged / name).write_bytes(content)
    manifest = json.loads((forged / "manifest.json").read_bytes())
    manifest["files"][name]["sha256"] = hashlib.sha256(content).hexdigest()
    (forged / "manifest.json").write_text(json.dumps(manifest))
    before = pa.total_allocated_bytes()
    for one in ("key", "ledger.db"):
        shutil.copy(place / one, tmp_path / one)
    write_files(make_logs(600, 2, seed=3), tmp_path / "logs3", 2)
    capsys.readouterr()
    assert run(tmp_path, 3, tmp_path / "night1", tmp_path / "night2") == 2
    assert f"{name} has 20,000,000 rows" in capsys.readouterr().err
    assert pa.total_allocated_bytes() - before < rows
