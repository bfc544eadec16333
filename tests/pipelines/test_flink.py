"""The jobs on Apache Flink: releases are the DirectRunner's, byte for byte, and failures are as short as there."""

from __future__ import annotations

import gc
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow as pa
import pytest

from sfumato.pipelines import cli
from sfumato.pipelines.flink import JAR_VARIABLE
from tests.conftest import make_logs, write_files
from tests.digests import undated
from tests.keys import write_key

pytestmark = [
    pytest.mark.flink,
    pytest.mark.filterwarnings(
        "ignore::pytest.PytestUnraisableExceptionWarning"
    ),  # Beam leaves a pipe to the collector
]
REGION = ["--region", "-1,50,1,51"]
NORTH = ["--column", "latitude", "--bits", "12", "--fraction_bits", "4"]
ON_FLINK = ["--runner_config", "flink", "--flink_open_servers"]  # for a test, of made-up data
SMALL = [*REGION, "--depth", "6", "--epsilon", "4", "--shard_size", "300", "--dropout", "0.4"]


@pytest.fixture(scope="module", autouse=True)
def _needs_flink() -> None:
    if shutil.which("java") is None:
        pytest.skip("Flink needs Java: there is no `java` here")
    if not os.path.isfile(os.environ.get(JAR_VARIABLE, "")):
        pytest.skip(f"Flink needs its job server: {JAR_VARIABLE} names no file (`make flink-jar` makes one)")


@pytest.fixture(autouse=True)
def _pipes_collected() -> Iterator[None]:
    """Collects within the test what would else make a warning in another."""
    yield
    gc.collect()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Logs in four files of small row groups, and a key."""
    folder = tmp_path_factory.mktemp("flink")
    table = make_logs(3000, 2, seed=0)
    kinds = np.random.default_rng(1).geometric(0.2, table.num_rows)
    table = table.append_column("kind", pa.array([f"kind-{'abc'[k % 3]}-{k}" for k in kinds.tolist()]))
    write_files(table, folder / "logs", 4)
    write_key(folder / "key")
    return folder


def command(job: str, folder: Path, output: Path, *more: str, logs: str = "logs") -> list[str]:
    return [
        job, "--input", str(folder / logs / "*.parquet"), "--output", str(output),
        "--key_file", str(folder / "key"), "--release_id", "monday", *more,
    ]  # fmt: skip


def differences(one: Path, two: Path) -> list[str]:
    """Names of the files that only one release has or that differ by a byte; when each was created does not count."""
    first, second = undated(one), undated(two)
    return sorted(name for name in first.keys() | second.keys() if first.get(name) != second.get(name))


@pytest.mark.parametrize(
    ("job", "options"),
    [
        ("heatmap", SMALL),
        ("heatmap", [*SMALL, "--contribution", "all", "--gamma", "100", "--cohorts", "disjoint"]),
        ("histogram", ["--column", "kind"]),
        ("histogram", [*REGION, "--cells", "5"]),
        ("hotspots", [*REGION, "--depth", "4", "--levels", "2"]),
        ("quantiles", ["--column", "latitude", "--range", "50,51", "--method", "interactive", "--bits", "4"]),
        ("moments", [*NORTH, "--statistics", "mean,variance", "--epsilon", "2"]),
        ("moments", [*NORTH, "--rows_are_users", "--trust", "secagg", "--no_dp", "--cells", "2", *REGION]),
    ],
    ids=[
        "heatmap",
        "heatmap of all places",
        "histogram",
        "histogram of cells",
        "hotspots",
        "quantiles",
        "moments",
        "moments of cells",
    ],
)
def test_the_release_is_the_direct_runners(folder: Path, tmp_path: Path, job: str, options: list[str]) -> None:
    assert cli.main(command(job, folder, tmp_path / "direct", *options)) == 0
    assert cli.main(command(job, folder, tmp_path / "flink", *options, *ON_FLINK)) == 0
    assert differences(tmp_path / "direct", tmp_path / "flink") == []
    # What the comparison is worth: another key's release differs in all but its form.
    other = command(job, folder, tmp_path / "other", *options)
    other[other.index("monday")] = "tuesday"
    assert cli.main(other) == 0
    assert {"manifest.json", "index.html"} <= set(differences(tmp_path / "direct", tmp_path / "other"))
    assert len(differences(tmp_path / "direct", tmp_path / "other")) > 2


def terminal(arguments: list[str], temporary: Path) -> tuple[int, str, str]:
    """Exit status, standard output and standard error of the command, to its very end; checks that no data are left."""
    temporary.mkdir()
    done = subprocess.run(
        [sys.executable, "-m", "sfumato.pipelines.cli", *arguments],
        env={**os.environ, "TMPDIR": str(temporary)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    left = {path.name for path in temporary.rglob("*") if path.is_file()}
    assert left <= {"submission_environment_dependencies.txt"}  # Beam's list of installed packages
    told = [" ".join(process.info["cmdline"] or []) for process in psutil.process_iter(["cmdline"])]
    assert not [one for one in told if str(temporary) in one]  # Java is told where its temporary files go
    return done.returncode, done.stdout, done.stderr


def test_a_terminal_shows_what_it_shows_of_a_local_run(folder: Path, tmp_path: Path) -> None:
    direct = terminal(command("heatmap", folder, tmp_path / "direct", *SMALL), tmp_path / "1")
    flink = terminal(command("heatmap", folder, tmp_path / "flink", *SMALL, *ON_FLINK), tmp_path / "2")
    assert direct[0] == flink[0] == 0, flink[2]
    assert flink[1] == direct[1].replace("direct", "flink")
    assert sorted(flink[2].splitlines()) == sorted(direct[2].splitlines())


@pytest.mark.parametrize(
    ("logs", "more", "message"),
    [
        ("damaged", [], "log-1.parquet: cannot be read as Parquet"),
        ("few", ["--population", "1000"], "--population says 1,000 users, and the logs hold about"),
    ],
)
def test_a_workers_error_is_one_line(folder: Path, tmp_path: Path, logs: str, more: list[str], message: str) -> None:
    if logs == "few":
        write_files(make_logs(30, 1, seed=2), folder / logs, 2)
    else:
        shutil.copytree(folder / "logs", folder / logs)
        damaged = folder / logs / "log-1.parquet"
        content = bytearray(damaged.read_bytes())
        content[200:5000] = bytes(4800)  # the footer, which is read before the job starts, is whole
        damaged.write_bytes(content)
    flink = command("heatmap", folder, tmp_path / "out", *SMALL, *more, *ON_FLINK, logs=logs)
    status, out, err = terminal(flink, tmp_path / "temporary")
    assert (status, out) == (1, "")
    shown = [line for line in err.splitlines() if not line.startswith("  ")]  # indented: progress
    assert len(shown) == 2, err
    assert shown[0].endswith("files to read")
    assert shown[1].startswith("sfumato heatmap: ")
    assert message in shown[1]
    assert sorted(os.listdir(tmp_path)) == (["out", "temporary"] if logs == "few" else ["temporary"])  # the reason


def fail_once(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Makes the stage that sums shards fail at its second element; returns what it was called with."""
    from sfumato.transforms.heatmap import refine

    sum_shards, calls = refine.sum_shards, []

    def failing(group: Any, *arguments: Any) -> Any:
        calls.append(group.first)
        if len(calls) == 2:
            raise RuntimeError("a worker is lost")
        return sum_shards(group, *arguments)

    monkeypatch.setattr(refine, "sum_shards", failing)
    return calls


def test_work_that_flink_starts_again_gives_the_same_release(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert cli.main(command("heatmap", folder, tmp_path / "direct", *SMALL)) == 0
    configuration = tmp_path / "conf"
    configuration.mkdir()
    (configuration / "flink-conf.yaml").write_text(
        "restart-strategy.type: fixed-delay\n"
        "restart-strategy.fixed-delay.attempts: 1\n"
        "restart-strategy.fixed-delay.delay: 100 ms\n"
    )
    on_flink = [*SMALL, *ON_FLINK, "--flink_conf_dir", str(configuration)]
    with monkeypatch.context() as patch:
        calls = fail_once(patch)
        assert cli.main(command("heatmap", folder, tmp_path / "flink", *on_flink)) == 0
        assert len(calls) > 2
    assert differences(tmp_path / "direct", tmp_path / "flink") == []


def test_without_retries_an_unexpected_error_ends_the_job_and_is_told(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fail_once(monkeypatch)
    with pytest.raises(RuntimeError, match="a worker is lost"):
        cli.main(command("heatmap", folder, tmp_path / "out", *SMALL, *ON_FLINK))
    assert os.listdir(tmp_path) == []


def test_a_job_that_is_told_to_end_takes_its_job_server_with_it(folder: Path, tmp_path: Path) -> None:
    arguments = command("heatmap", folder, tmp_path / "out", *SMALL, *ON_FLINK)
    with subprocess.Popen(
        [sys.executable, "-m", "sfumato.pipelines.cli", *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as job:
        process = psutil.Process(job.pid)
        while not (servers := [one for one in process.children() if one.name() == "java"]):
            assert job.poll() is None
            time.sleep(0.1)
        time.sleep(1)
        job.terminate()
        job.communicate(timeout=60)
    assert job.returncode == 143
    assert psutil.wait_procs(servers, timeout=30)[1] == []
    assert os.listdir(tmp_path) == []
