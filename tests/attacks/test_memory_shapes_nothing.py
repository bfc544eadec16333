"""Memory, threads and groups of users are where a run takes place: no byte of a release depends on them.

Otherwise one key would publish two versions of the same counts, whose difference has less noise than either.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pyarrow as pa
import pytest

from sfumato.pipelines import cli, scratch
from sfumato.schemas.ranges import BASE_DEPTH, Field
from sfumato.schemas.region import Grid
from sfumato.schemas.requests.publish_request import ReleaseRequest
from tests.conftest import REGION, make_logs, write_files
from tests.digests import undated
from tests.keys import write_key
from tests.seeds import seeded_rng

MAP = [
    "heatmap",
    "--region",
    ",".join(map(str, (REGION.west, REGION.south, REGION.east, REGION.north))),
    "--depth",
    "5",
]
JOBS = {
    "heatmap": MAP,
    "heatmap, several locations": [*MAP, "--contribution", "all"],
    "heatmap, weights": [*MAP, "--time_column", "timestamp"],
    "histogram": ["histogram", "--column", "kind", "--delta", "1e-5"],
    "quantiles": ["quantiles", "--column", "length", "--range", "0,100", "--population", "400"],
    "ranges": ["ranges", "build", *MAP[1:3], "--method", "grid", "--sizes", "500,5000"],
    "mean": ["moments", "--column", "length", "--bits", "8"],
}
PLANS = {"folder, 1 group a bit": ("folder", 2, 1), "memory, 512 groups": ("memory", 1, 9), "runner": ("runner", 1, 4)}


@pytest.fixture
def pattern(tmp_path: Path) -> str:
    """400 users with three records each: a time, a kind, a length, and some rows without a place."""
    table, rng = make_logs(400, 3, 0), seeded_rng(1)
    n = len(table)
    table = table.set_column(1, "latitude", pa.array(table["latitude"].to_numpy(), mask=rng.random(n) < 0.02))
    table = table.append_column("timestamp", pa.array(rng.integers(0, 86_400, n)))
    table = table.append_column("kind", pa.array([f"kind {number}" for number in rng.integers(0, 3, n)]))
    return write_files(table.append_column("length", pa.array(rng.uniform(0, 100, n))), tmp_path / "logs", 3)


@pytest.fixture
def key(tmp_path: Path) -> str:
    write_key(tmp_path / "key")
    return str(tmp_path / "key")


@pytest.mark.slow
@pytest.mark.parametrize("name", JOBS)
def test_a_release_is_the_same_in_any_memory(name: str, pattern: str, key: str, tmp_path: Path) -> None:
    found = []
    for place, workers, bits in [("memory", 1, 2), *PLANS.values()]:
        with pytest.MonkeyPatch.context() as patch:
            chosen = scratch.MemoryPlan(place, workers, bits, 0)
            patch.setattr("sfumato.pipelines.release_run.plan_memory", lambda *_, chosen=chosen: chosen)
            words = [*JOBS[name], "--input", pattern, "--epsilon", "2", "--output", str(tmp_path / "out")]
            assert cli.main([*words, "--key_file", key, "--release_id", "one"]) == 0
        found.append(undated(tmp_path / "out"))
        shutil.rmtree(tmp_path / "out")
    assert len(found[0]) > 2
    assert all(one == found[0] for one in found)


def test_memory_is_no_part_of_a_key() -> None:
    given = {"input": "in", "output": "out"}
    assert ReleaseRequest.of({**given, "memory": "1.5G"}).memory == 1_500_000_000
    assert ReleaseRequest.of({**given, "memory": "1.5G"}).shaping() == ReleaseRequest.of(given).shaping()


def test_too_little_memory_is_refused_before_anything_is_charged(
    pattern: str, key: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ledger = tmp_path / "ledger.db"
    words = [*MAP, "--input", pattern, "--epsilon", "1", "--output", str(tmp_path / "out"), "--key_file", key]
    words += ["--ledger", str(ledger), "--dataset", "city", "--period", "2026-11-20", "--budget", "1/1d"]
    words += ["--release_id", "day"]
    assert cli.main([*words, "--memory", "300M"]) == 2
    assert "memory: this run needs about 600M and may use 300M" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
    assert cli.main([*words, "--memory", "2G"]) == 0  # the whole budget of the day is left


def test_a_model_of_ranges_that_does_not_fit_is_refused_before_anything_is_charged(
    pattern: str, key: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The tables of all base cells take far more memory than the logs."""
    ledger = tmp_path / "ledger.db"
    words = [
        "ranges",
        "build",
        *MAP[1:3],
        "--method",
        "grid",
        "--sizes",
        "500,5000",
        "--cell_width",
        "0.01",
        "--input",
        pattern,
    ]
    words += ["--epsilon", "1", "--output", str(tmp_path / "out"), "--key_file", key, "--ledger", str(ledger)]
    words += ["--dataset", "city", "--period", "2026-11-20", "--budget", "1/1d", "--release_id", "day"]
    field = Field(Grid(REGION, BASE_DEPTH))
    words[words.index("0.01")] = str(1.01 * max(field.cell_metres))
    assert cli.main([*words, "--memory", "1G"]) == 2
    assert "memory: this run needs about 1." in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
    words[words.index("--cell_width") + 1] = str(min(field.metres) / 4)
    assert cli.main([*words, "--memory", "1G"]) == 0  # the whole budget of the day is left
