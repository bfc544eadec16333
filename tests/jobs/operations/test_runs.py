"""Dry runs report what a run does and change nothing; runs that fail publish nothing."""

from __future__ import annotations

import hashlib
import importlib
import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from apache_beam.runners.direct.direct_runner import BundleBasedDirectRunner
from apache_beam.runners.runner import PipelineResult, PipelineState

from sfumato.pipelines.command_line import cli, run
from sfumato.pipelines.command_line.run import request_of
from sfumato.pipelines.frame.dry_run import trust_lines
from sfumato.pipelines.frame.release_run import run_release
from sfumato.pipelines.heatmap import HeatmapJob
from sfumato.pipelines.runners.runner_settings import runner_settings
from sfumato.schemas.errors import DataError
from sfumato.schemas.known_digits import NOISE_Z
from sfumato.transforms.counting.parameters import CountParameters
from sfumato.transforms.counting.plan import count_plan_text, make_plan
from sfumato.transforms.heatmap.request import HeatmapRequest, heatmap_parameters
from tests.conftest import REGION
from tests.keys import write_key

# --- what a dry run reports, that it is what the run does, and that it changes nothing ---

REGION_OPTION = ["--region", "-1,50,1,51"]
LEDGER = ["--dataset", "rides", "--period", "2026-11-20", "--budget", "2/365d,1/1d"]
JOBS: dict[str, list[str]] = {
    "heatmap": [*REGION_OPTION, "--depth", "5"],
    "histogram": [*REGION_OPTION, "--cells", "4"],
    "hotspots": ["--column", "word"],
    "quantiles": ["--column", "length", "--range", "0,9"],
    "moments": ["--column", "length", "--epsilon", "0.5", "--group_by", "word", "--groups", "a,b"],
    "flows": [*REGION_OPTION, "--time_column", "length"],
    "ranges build": [*REGION_OPTION, "--method", "grid", "--cell_width", "900", "--sizes", "500,2000"],
    "zones": [*REGION_OPTION, "--h3", "3"],
}
_CHANGES = {"os.mkdir", "os.rename", "os.remove", "os.truncate", "sqlite3.connect"}
_watched: list[tuple[str, Any]] | None = None


def _watch(event: str, arguments: tuple) -> None:
    if _watched is not None and (event == "open" or event in _CHANGES):
        _watched.append((event, arguments))


sys.addaudithook(_watch)  # stays as long as the process, so it only looks when asked to


@contextmanager
def watching() -> Iterator[list[tuple[str, bool]]]:
    """Paths that the block opens or changes, and whether it writes to them, but for the cache of Python's modules."""
    global _watched
    seen: list[tuple[str, bool]] = []
    _watched = []
    try:
        yield seen
    finally:
        found, _watched = _watched, None
    for event, arguments in found:
        if not isinstance(arguments[0], str | bytes | os.PathLike):
            continue  # a descriptor that is open already
        path = os.fsdecode(arguments[0])
        if "__pycache__" not in path and path != os.devnull:
            flags = arguments[2] if event == "open" else os.O_RDWR
            seen.append((path, bool(flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT))))


@pytest.fixture
def unreadable(tmp_path: Path) -> str:
    """A file without rows, and two that are no Parquet: whatever opens those fails."""
    (tmp_path / "dt=2026-11-20").mkdir()
    columns = {"user_id": pa.int64(), "latitude": pa.float64(), "longitude": pa.float64(), "word": pa.string()}
    pq.write_table(
        pa.schema({**columns, "length": pa.float64()}).empty_table(), tmp_path / "dt=2026-11-20" / "0.parquet"
    )
    for number in (1, 2):
        (tmp_path / "dt=2026-11-20" / f"{number}.parquet").write_bytes(b"x" * 1_500_000)
    return str(tmp_path / "dt=2026-11-20" / "*.parquet")


def snapshot(folder: Path) -> dict[str, tuple[int, str]]:
    """Every file and folder with the time of its last change and its content."""
    return {
        str(path): (path.stat().st_mtime_ns, hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "")
        for path in sorted([folder, *folder.rglob("*")])
    }


@pytest.mark.parametrize("with_ledger", [False, True], ids=["plain", "ledger"])
@pytest.mark.parametrize("job", JOBS)
def test_nothing_is_touched(
    job: str, with_ledger: bool, unreadable: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    ledger, output, key = tmp_path / "ledger.db", tmp_path / "out", tmp_path / "key"
    write_key(key)
    command = [*job.split(), "--input", unreadable, "--output", str(output), *JOBS[job], "--dry_run"]
    if with_ledger:
        command += ["--ledger", str(ledger), *LEDGER, "--budget", "2:1e-6/365d", "--key_file", str(key)]
    module = str(run.JOBS[job].release).partition(":")[0]
    importlib.import_module(f"sfumato.{module}")  # with libraries that look for their own settings
    before = snapshot(tmp_path)
    with watching() as seen:
        assert cli.main(command) == 0
    assert [path for path, writes in seen if writes] == []
    opened = {path for path, _ in seen if path.startswith(str(tmp_path))}
    assert opened == ({str(key)} if with_ledger else set())  # a bad key is refused; Arrow opens the first file of logs
    assert snapshot(tmp_path) == before
    told = capfd.readouterr()
    assert told.err == ""
    assert "3 files, 3MB" in told.out
    assert str(output) in told.out
    assert ("to dataset rides for 2026-11-20" in told.out) == with_ledger
    assert ("spent will not be recorded" in told.out) != with_ledger
    assert max(map(len, told.out.replace(str(tmp_path), "").splitlines())) <= 105  # sfumato plan has lines of 104
    assert cli.main([one for one in command if one != "--dry_run"]) != 0  # as soon as a file is opened


@pytest.mark.slow
def test_what_is_charged_and_whether_it_fits(logs, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    key = tmp_path / "key"
    write_key(key)
    command = [
        "heatmap",
        "--input",
        logs(900),
        *REGION_OPTION,
        "--depth",
        "4",
        "--shard_size",
        "300",
        "--dropout",
        "0.4",
    ]
    command += ["--key_file", str(key), "--ledger", str(tmp_path / "ledger.db"), *LEDGER]

    def dry(day: str, *more: str) -> str:
        assert cli.main([*command, "--output", str(tmp_path / day), "--period", day, *more, "--dry_run"]) == 0
        return " ".join(capfd.readouterr().out.split())

    fits = "charges epsilon 1 to dataset rides for 2026-11-20"
    assert re.search(
        rf"{fits}.* limit: epsilon 1 in 1 day; .* limit: epsilon 2 in 365 days; epsilon 0 is spent .* it fits",
        dry("2026-11-20"),
    )
    for seed, day in enumerate(("2026-11-20", "2026-11-21")):
        other = ["--input", logs(900, seed=seed), "--output", str(tmp_path / day)]
        assert cli.main([*command, *other, "--period", day, "--release_id", day]) == 0
    capfd.readouterr()
    before = snapshot(tmp_path)
    assert "it would be refused: rides may spend epsilon 2 in 365 days" in dry("2026-11-22")
    assert "was charged before" in dry("2026-11-20", "--release_id", "2026-11-20")
    assert snapshot(tmp_path) == before


@pytest.mark.parametrize(
    "given",
    [{}, {"schedule": "paper"}, {"max_entries": 500, "categories": 3}, {"shards": "disjoint"}, {"modulus": 1 << 40}],
    ids=str,
)
def test_without_a_number_of_users_bounds_hold_for_any(given: dict) -> None:
    given = {"depth": 6, **given}
    categories = given.pop("categories", 1)
    parameters = heatmap_parameters("adaptive", given, categories)
    text = count_plan_text(parameters)
    rounds, most = (
        int(one.replace(",", "")) for one in re.findall(r"at most ([\d,]+) sub-queries of at most ([\d,]+)", text)[0]
    )
    bits = int(re.search(r"at most: ([\d,]+) bits", text)[1].replace(",", ""))  # type: ignore[index]
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines() if line.startswith("|")]
    assert rows[0][:4] == ["users", "sub-queries", "entries", "bits a client"]
    assert len(rows) > 4
    for users, *row in rows[2:]:
        plan = make_plan(heatmap_parameters("adaptive", {**given, "users": int(users.replace(",", ""))}, categories))
        assert row[:3] == [f"{len(plan.sub_queries)}", f"{plan.entries:,}", f"{plan.bits:,}"]
        assert len(plan.sub_queries) <= rounds
        assert max(one.vector_length for one in plan.sub_queries) <= most
        assert plan.entries <= rounds * most
        assert plan.bits <= bits
    assert "--population" in text


@pytest.mark.slow
def test_trust_models_stand_side_by_side_the_runs_own_first() -> None:
    request = request_of("heatmap", {"input": "in", "output": "out", "region": "3,1,3.1,1.1", "population": 1_000_000})
    own, central, _, local = trust_lines(HeatmapJob.of(request))
    assert own.startswith("secagg, this run: ")
    assert local == "local: not offered"
    noise = [float(re.findall(r"±([\d.]+) users", line)[0]) for line in (own, central)]
    parameters = CountParameters(population=1_000_000)
    plans = [make_plan(replace(parameters, trust=trust)) for trust in ("secagg", "central")]
    assert noise == [pytest.approx(NOISE_Z * plan.noise_stddev, rel=0.01) for plan in plans]
    assert noise[0] > 5 * noise[1]  # 100 shards, of two halves of the users, against one curator


# --- a runner that ends a job without success: the command fails, and nothing is called published ---


class Ended(BundleBasedDirectRunner):
    """A runner that runs nothing and reports a state."""

    def __init__(self, state: str):
        super().__init__()
        self.state = state

    def run_pipeline(self, pipeline: Any, options: Any) -> PipelineResult:
        result = PipelineResult(self.state)
        result.wait_until_finish = lambda duration=None: self.state
        result.metrics = lambda: None
        return result


@pytest.mark.parametrize("state", [PipelineState.FAILED, PipelineState.CANCELLED, PipelineState.DONE])
def test_run_without_a_release_is_a_failure(state: str, logs: Callable[..., str], tmp_path: Path) -> None:
    output = tmp_path / "release"
    job = HeatmapJob.of(HeatmapRequest.of({"input": logs(600), "output": str(output), "region": REGION, "seed": 1}))
    with pytest.raises(DataError, match=state if state != PipelineState.DONE else "there is no release"):
        run_release(job, replace(runner_settings(None, []), runner=Ended(state)))
    assert not output.exists()
