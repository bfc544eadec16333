"""An adaptive map of devices: rounds that follow from the released tree, and the heatmap's release after the last."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest

from sfumato.pipelines.command_line import cli
from sfumato.schemas.errors import RequestError
from sfumato.transforms.heatmap import device_rounds as maps
from sfumato.transforms.release.published_release import open_release
from sfumato.transforms.split.reports import Formats, make_reports
from sfumato.transforms.split.task import Task
from tests.digests import page_text
from tests.rejections import rejects
from tests.seeds import seeded_rng
from tests.two_servers import City

PLACES = [(3.0211, 1.1017), (3.0707, 1.0333), (3.1111, 1.0999)]  # each with as many users
USERS = 60


@pytest.fixture
def city(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> City:
    monkeypatch.setattr(maps, "MAX_MAP_ENTRIES", 256)  # small reports and fast runs
    # At a round's epsilon of 6 the noise is below -59, and so the batch refused, with a probability of 1e-15. With the
    # share of half a per cent it would be in one of ten rounds.
    monkeypatch.setattr("sfumato.transforms.split.task.COUNT_SHARE", 0.1)
    monkeypatch.setattr(maps, "_COUNTS_SHARE", 0.2)
    return City.new(tmp_path, min_batch=1)


def reports(task: Task, seed: int, weights: object = None) -> bytes:
    """Returns the reports of all users. Ids and shares are those of the seed, so operators draw the same noise."""
    rng, made = seeded_rng([seed, 38]), []
    for user in range(USERS):
        place = PLACES[user % len(PLACES)] if weights is None else None
        drawn = rng.bytes(16 + task.prio3.randomness_size).ljust(Formats(task).randomness_size, b"0")
        made.append(make_reports(task, [task.measurement(place, weights)], task.start, drawn))
    return b"".join(made)


def count_at(cells: pd.DataFrame, longitude: float, latitude: float, least: int = 8) -> float:
    """Returns the count of the finest cell of a map at a place, which has at least this depth."""
    inside = (cells.west <= longitude) & (longitude < cells.east) & (cells.south <= latitude)
    cell = cells[inside & (latitude < cells.north)].sort_values("depth").iloc[-1]
    assert cell.depth >= least
    return float(cell["count"])


def test_three_rounds_make_a_heatmap(city: City, capsys: pytest.CaptureFixture[str]) -> None:
    first = task = city.map(USERS, depth=11)
    for number in (1, 2, 3):
        assert task.map is not None
        assert task.map.round == number
        assert not (city.folder / "release").exists()
        assert city.run_round(number, reports(task, number)) == 0
        if number < 3:
            task = Task.read(str(city.folder / f"round{number + 1}.json"))
    assert not (city.folder / "round4.json").exists()
    assert task.map.first == first.id.hex()
    assert sum(city.spent("leader")) == pytest.approx(first.map.epsilon if first.map else 0)
    release = open_release(str(city.folder / "release"))
    privacy = release.manifest["privacy"]
    assert release.manifest["job"] == "heatmap"
    assert (privacy["trust"], privacy["epsilon"], privacy["devices"]) == ("split", 30, True)
    assert privacy["epsilon_spent"] == pytest.approx(30)
    assert len(privacy["sub_queries"]) == len(release.manifest["parameters"]["tasks"]) == 3
    cells = pq.read_table(city.folder / "release" / "cells.parquet").to_pandas()
    for place in PLACES:
        assert abs(count_at(cells, *place) - USERS / len(PLACES)) < 5
    page = page_text((city.folder / "release" / "index.html").read_text())
    assert "Two servers received shares of the reports" in page
    capsys.readouterr()
    assert cli.main(["audit", str(city.folder / "release")]) == 0
    assert cli.main(["statement", str(city.folder / "release")]) == 0
    assert "simulates this" not in capsys.readouterr().out


def test_rounds_make_a_map_of_weights(city: City) -> None:
    """Every device spreads a weight of 4 over two of the places."""
    task, number = city.map(USERS, depth=10, max_value=4), 1
    weights = [(*PLACES[0], 1), (*PLACES[1], 3)]
    while city.run_round(number, reports(task, number, weights)) == 0 and not (city.folder / "release").exists():
        number += 1
        task = Task.read(str(city.folder / f"round{number}.json"))
    cells = pq.read_table(city.folder / "release" / "cells.parquet").to_pandas()
    assert abs(count_at(cells, *PLACES[0], least=3) - USERS / 4) < 2
    assert abs(count_at(cells, *PLACES[1], least=3) - 3 * USERS / 4) < 2
    assert open_release(str(city.folder / "release")).manifest["privacy"]["trust"] == "split"


def test_trees_of_rounds_place_each_location(city: City) -> None:
    """Against the definition: the entry with the longest name that begins the name of the location's finest cell."""
    city.write_task(city.folder / "task.json", tree=["r0", "r1", "r2", "r3", "r30", "r31", "r32", "r33"])
    task, fine = city.task, City.new(city.folder, depth=2).task
    entries = ["r0", "r1", "r2", "r30", "r31", "r32", "r33"]
    assert task.circuit.length == len(entries)
    rng = seeded_rng(5)
    for longitude, latitude in zip(rng.uniform(3, 3.13, 50), rng.uniform(1, 1.13, 50), strict=True):
        finest = fine.cell_of(longitude, latitude)
        name = f"r{finest >> 2}{finest & 3}"
        due = max((one for one in entries if name.startswith(one)), key=len)
        assert entries[task.cell_of(longitude, latitude)] == due


def test_collect_requires_a_file_for_the_next_round(city: City) -> None:
    task = city.map(USERS, depth=11)
    city.run_round(1, reports(task, 1))
    place = city.folder
    assert city.collect() == RequestError.exit_code
    assert not (place / "release").exists()
    arguments = ["split", "collect", "--task", f"{place}/task.json", f"{place}/task.json", "--output", f"{place}/two"]
    keys = ["--key_file", f"{place}/collector.key"]
    shares = ["--leader", str(city.share("leader")), "--helper", str(city.share("helper"))]
    assert cli.main([*arguments, *keys, *shares]) == RequestError.exit_code


@pytest.mark.parametrize("plan", ["", "[]", "{}", '"epsilon"', "[" * 100_000])
def test_split_task_rejects_what_is_no_plan(city: City, plan: str) -> None:
    (city.folder / "plan.json").write_text(plan)
    arguments = ["--plan", f"{city.folder}/plan.json", "--users", "100", "--output", f"{city.folder}/round1.json"]
    assert cli.main(["split", "task", *arguments]) == RequestError.exit_code
    assert not (city.folder / "round1.json").exists()


def test_split_task_rejects_a_plan_with_a_tree(city: City) -> None:
    content = json.loads(city.task.text)
    with rejects("plan"):
        maps.first_task(json.dumps(content | {"tree": ["r0"]}), 100)
    with rejects("task"):
        maps.first_task(json.dumps(content), 0)
    assert np.isclose(maps.first_task(json.dumps(content), 100).epsilon, 6)
