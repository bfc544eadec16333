"""The commands of devices, leader, helper and collector, and the release that comes of them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

import sfumato
from sfumato.pipelines.command_line import cli
from sfumato.schemas.errors import DataError, NotReadyError, RequestError
from sfumato.transforms.release.published_release import open_release
from sfumato.transforms.split.blocks import blocks_of
from sfumato.transforms.split.reports import Formats
from sfumato.transforms.split.task import Task
from tests.digests import page_text
from tests.rejections import rejects
from tests.two_servers import PARTIES as KEYS
from tests.two_servers import WRITTEN, City, cells_of

HONEST = 14 * np.array([0, 3, 5, 0, 1, 0, 0, 2, 0, 0, 9, 0, 4, 0, 0, 7])
EXACTLY = pytest.mark.false_alarm(1e-10)  # noise of counts that is not 0 at epsilon 30, or above 190 at 0.15


@pytest.fixture
def city(tmp_path: Path) -> City:
    return City.new(tmp_path)


def report_by_command(city: City, *options: str) -> int:
    (city.folder / "reports").mkdir(exist_ok=True)
    task = f"{city.folder}/task.json"
    return cli.main(["client", "report", "--task", task, "--output", f"{city.folder}/reports/one.bin", *options])


def now(city: City, **entries: object) -> None:
    """Gives the task a window that holds the present."""
    city.write_task(city.folder / "task.json", start="2000-01-01T00:00:00+00:00", end="2100-01-01T00:00:00Z", **entries)


@EXACTLY
def test_a_city_reports_and_its_map_is_published(city: City, capsys: pytest.CaptureFixture[str]) -> None:
    now(city)
    path = f"{city.folder}/task.json"
    assert report_by_command(city, "--location", "3.001,1.129") == 0  # the north-west corner: cell 0
    city.write("function", sfumato.client_report(path, location=(3.001, 1.129)))
    city.report(cells_of(HONEST))
    city.run()
    assert city.collect() == 0
    release = open_release(str(city.folder / "release"))
    privacy, found = release.manifest["privacy"], release.manifest["results"]
    assert (privacy["trust"], privacy["epsilon"], privacy["delta"], privacy["devices"]) == ("split", 30, 0, True)
    counts = pq.read_table(city.folder / "release" / "cells.parquet")["count"].to_pylist()
    assert sorted(counts) == sorted([2, *HONEST[1:].tolist()])
    assert abs(found["estimated_users"] - HONEST.sum() - 2) < 190
    page = page_text((city.folder / "release" / "index.html").read_text())
    assert "Devices made the reports" in page
    capsys.readouterr()
    assert cli.main(["audit", str(city.folder / "release")]) == 0
    assert cli.main(["statement", str(city.folder / "release")]) == 0
    shown = " ".join(capsys.readouterr().out.split())  # lines of YAML are folded
    assert "No party saw a report" in shown
    assert "simulates this" not in shown
    assert "raw logs" not in shown


@EXACTLY
def test_devices_may_spread_their_weight(city: City) -> None:
    now(city, max_value=4)
    (city.folder / "weights.json").write_text(json.dumps([[3.001, 1.129, 1], [3.129, 1.001, 2]]))
    assert report_by_command(city, "--weights", str(city.folder / "weights.json")) == 0
    task = city.task
    city.report([[0] * 15 + [4]] * 400, task=task)  # type: ignore[list-item]
    places = [(3.001, 1.129, 1), (3.002, 1.128, 3)]
    city.write("function", sfumato.client_report(f"{city.folder}/task.json", weights=places))
    city.run()
    assert city.collect() == 0
    counts = pq.read_table(city.folder / "release" / "cells.parquet").to_pandas().sort_values("count")["count"]
    assert np.abs(counts.to_numpy()[-2:] - [5, 1602]).max() <= 8  # noise of epsilon 7.5 for one unit
    assert open_release(str(city.folder / "release")).manifest["parameters"]["task"]["max_value"] == 4


@pytest.mark.parametrize(
    ("options", "status"),
    [
        (["--location", "9,9"], RequestError.exit_code),
        (["--location", "nan,1.1"], RequestError.exit_code),
        ([], RequestError.exit_code),
        (["--location", "3.01,1.01", "--weights", "x"], RequestError.exit_code),
        (["--weights", "missing"], RequestError.exit_code),
    ],
)
def test_client_report_rejects_what_a_task_does_not_count(city: City, options: list[str], status: int) -> None:
    assert report_by_command(city, *options) == status
    assert not (city.folder / "reports" / "one.bin").exists()


@pytest.mark.parametrize(
    ("entry", "value"),
    [
        ("epsilon", 0),
        ("epsilon", "1"),
        ("epsilon", 31),
        ("depth", 9),
        ("depth", True),
        ("min_batch", 0),
        ("start", "2026-11-20"),
        ("start", "2026-11-20T00:30:00+00:00"),
        ("end", "2026-11-19T00:00:00+00:00"),
        ("region", [3, 1, 3]),
        ("leader", "00"),
        ("leader", "helper"),
        ("collector", "leader"),
        ("verify", "helper"),
        ("collector", "verify"),
        ("leader", "00" * 32),
        ("verify", "01" + "00" * 31),
        ("helper", "ff" * 32),
        ("helper", "e0eb7a7c3b41b8ae1656e3faf19fc46ada098deb9c32b1fd866205165f49b800"),
        ("verify", None),
        ("tree", "r0"),
        ("tree", ["r1", "r0"]),
        ("tree", ["r0", "r0"]),
        ("tree", ["r"]),
        ("tree", ["r4"]),
        ("tree", ["r000"]),
        ("tree", [["r0"]]),
        ("map", {"epsilon": 40, "users": 10}),
        ("map", {"epsilon": 30, "users": 10}),
        ("format", "sfumato split task 2"),
        ("max_value", 0),
        ("unknown", 1),
        ("name", ""),
        ("name", None),
    ],
)
def test_task_rejects_entries_out_of_range(city: City, entry: str, value: object) -> None:
    content = json.loads((city.folder / "task.json").read_text())
    content[entry] = content.get(value, value) if entry in KEYS else value
    with rejects("task"):
        Task.parse(json.dumps(content))


def test_each_entry_of_a_task_changes_its_id(city: City) -> None:
    content = json.loads((city.folder / "task.json").read_text())
    others = {
        "name": "b",
        "region": [3.0, 1.0, 3.13, 1.12],
        "depth": 3,
        "epsilon": 2.0,
        "min_batch": 201,
        "start": "2026-11-20T01:00:00+00:00",
        "end": "2026-11-21T01:00:00+00:00",
        "leader": "ab" * 31 + "00",
        "helper": "ab" * 31 + "00",
        "collector": "ab" * 31 + "00",
        "verify": "ab" * 31 + "00",
        "max_value": 2,
        "tree": ["r0"],
    }
    ids = {Task.parse(json.dumps({**content, name: value})).id for name, value in others.items()}
    assert set(others) | {"format"} == set(content) | {"max_value", "tree"}
    assert len(ids | {city.task.id}) == len(others) + 1


def test_aggregate_waits_and_names_what_is_wrong(city: City) -> None:
    city.report(cells_of(HONEST))
    assert city.aggregate("helper") == NotReadyError.exit_code
    assert city.aggregate("helper", "--key_file", f"{city.folder}/collector.key") == RequestError.exit_code
    assert city.aggregate("helper", "--input", "x") == RequestError.exit_code
    assert city.aggregate("leader") == 0
    city.write_task(city.folder / "task.json", name="another day")
    assert city.aggregate("leader") == 0  # the requests of its own task, in the same folder
    (city.folder / "exchange" / "requests" / "00000000.bin").write_bytes(b"cut")
    assert city.aggregate("helper") == DataError.exit_code
    assert city.spent("helper") == []


def test_blocks_cover_every_record_once(city: City) -> None:
    size = Formats(city.task).report.itemsize
    files = [("a", 1300 * size + 5), ("b", 0), ("c", size - 1), ("d", size)]
    blocks = blocks_of(files, size)
    assert [block.number for block in blocks] == list(range(len(blocks)))
    parts = [part for block in blocks for part in block.parts]
    rows = [(part.path, row) for part in parts for row in range(part.first, part.first + part.rows)]
    assert rows == [*(("a", row) for row in range(1300)), ("d", 0)]


@EXACTLY
def test_files_of_one_report_make_no_more_blocks(city: City) -> None:
    content = city.report([5] * 600)
    together = city.run()
    city.forget()
    (city.folder / "reports" / "a.bin").unlink()
    size = len(content) // 600
    for number in range(600):
        city.write(f"{number:03}", content[number * size : (number + 1) * size])
    assert city.run() == together
    assert len(together) == 2 * (2 + 1) + 2


@EXACTLY
@pytest.mark.slow
def test_aggregate_works_in_buckets_as_in_folders(city: City) -> None:
    pytest.importorskip("gcp_storage_emulator.server", reason="needs the package gcp-storage-emulator")
    from tests.storage import BUCKET, put, storage_emulator

    city.report([5] * 600)
    city.report([6], "b")
    inputs = [path for path in city.folder.rglob("*") if path.is_file()]
    local = city.run()
    with storage_emulator() as running:
        for path in inputs:
            put(f"{BUCKET}/city/{path.relative_to(city.folder)}", path.read_bytes())
        for role in ("leader", "helper", "leader"):
            assert city.aggregate(role, place=f"{BUCKET}/city") == 0
        found = running.objects("city")
    folders = tuple(f"{name}/" for name in WRITTEN)
    assert {name: content for name, content in found.items() if name.startswith(folders)} == local


def test_client_report_function_rejects_two_measurements(city: City) -> None:
    with rejects("location, weights"):
        sfumato.client_report(f"{city.folder}/task.json")
