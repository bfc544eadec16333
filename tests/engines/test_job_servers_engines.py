"""The jobs on Flink, Spark and Prism: releases equal the DirectRunner's byte for byte, and failures are as short."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from sfumato.pipelines.command_line import cli
from tests.conftest import make_logs, write_files
from tests.engine_runs import ENGINES, RELEASES, command, differences, missing, started
from tests.two_servers import City

pytestmark = [
    pytest.mark.engines,
    # Beam leaves a pipe to the collector.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
# One process of pytest-xdist runs all releases of an engine, and so starts it once.
ON_EACH = [pytest.param(name, marks=pytest.mark.xdist_group(name)) for name in ENGINES]
EACH_ENGINE = pytest.mark.parametrize("engine", list(ENGINES))


@pytest.fixture(scope="module")
def running(request: pytest.FixtureRequest) -> Iterator[list[str]]:
    """An engine that runs for all tests of this module; the options of jobs on it."""
    if (lack := missing(request.param)) is not None:
        pytest.skip(lack)
    with started(request.param) as options:
        yield options


@pytest.fixture
def open_server(engine: str) -> list[str]:
    """The options of a job that starts its own engine; for made-up data."""
    if (lack := missing(engine)) is not None:
        pytest.skip(lack)
    return ["--runner_config", engine, "--open_job_server"]


@pytest.fixture(scope="module")
def direct(folder: Path) -> dict[str, Path]:
    """The DirectRunner's release of each job that was asked for."""
    return {}


@pytest.mark.parametrize("running", ON_EACH, indirect=True)
@pytest.mark.parametrize("release", list(RELEASES))
def test_the_release_is_the_direct_runners(
    folder: Path, tmp_path: Path, direct: dict[str, Path], running: list[str], release: str
) -> None:
    """`folder / NUMBER`: the timeline of each release is its own."""
    if release not in direct:
        direct[release] = folder / str(len(direct)) / "release"
        assert cli.main(command(release, folder, direct[release])) == 0
    assert cli.main(command(release, folder, tmp_path / "release", *running)) == 0
    assert differences(direct[release], tmp_path / "release") == []


@pytest.mark.parametrize("running", ON_EACH, indirect=True)
@pytest.mark.false_alarm(1e-10)  # noise of 190 below the number of reports
def test_two_servers_write_what_the_direct_runner_writes(tmp_path: Path, running: list[str]) -> None:
    """Five blocks, of a file of 2,500 reports and of copies of 30 in files of their own."""
    city = City.new(tmp_path)
    content = city.report([5] * 2500)
    size = len(content) // 2500
    for number in range(30):
        city.write(f"one {number}", content[number * size : (number + 1) * size])
    direct = city.run()
    city.forget()
    assert city.run(*running) == direct
    assert len(direct) == 2 * (5 + 1) + 2
    assert len(city.spent("leader")) == len(city.spent("helper")) == 1


def terminal(arguments: list[str], temporary: Path) -> tuple[int, str, str]:
    """Exit status, standard output and standard error of the command, to its very end; checks that no data are left."""
    temporary.mkdir()
    done = subprocess.run(
        [sys.executable, "-m", "sfumato.pipelines.command_line.cli", *arguments],
        env={**os.environ, "TMPDIR": str(temporary)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    left = {path.name for path in temporary.rglob("*") if path.is_file()}
    assert left <= {"submission_environment_dependencies.txt"}  # Beam's list of installed packages
    command_lines = [" ".join(process.info["cmdline"] or []) for process in psutil.process_iter(["cmdline"])]
    assert not [one for one in command_lines if str(temporary) in one]  # an argument of Java names it
    return done.returncode, done.stdout, done.stderr


@pytest.fixture(scope="module")
def direct_terminal(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[int, str, str]:
    """What the DirectRunner shows of a heatmap whose output is `OUT`."""
    place = tmp_path_factory.mktemp("direct")
    status, out, err = terminal(command("heatmap", folder, place / "out"), place / "temporary")
    return status, out.replace(str(place), "OUT"), err


@EACH_ENGINE
def test_a_terminal_shows_what_it_shows_of_a_local_run(
    folder: Path, tmp_path: Path, open_server: list[str], direct_terminal: tuple[int, str, str]
) -> None:
    status, out, err = terminal(command("heatmap", folder, tmp_path / "out", *open_server), tmp_path / "temporary")
    assert status == direct_terminal[0] == 0, err
    assert out.replace(str(tmp_path), "OUT") == direct_terminal[1]
    assert sorted(err.splitlines()) == sorted(direct_terminal[2].splitlines())


def metrics_of(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    """The metrics that a run reports with --verbose, without times and without the size of a page that states one."""
    assert cli.main([*arguments, "--verbose", "--log_format", "json"]) == 0
    events = [json.loads(line) for line in capsys.readouterr().err.splitlines() if line.startswith("{")]
    (found,) = [one["metrics"] for one in events if "metrics" in one]
    assert found["release_bytes"]["count"] == 1
    return {name: value for name, value in found.items() if not name.endswith(("_milliseconds", "release_bytes"))}


@pytest.mark.parametrize("running", ON_EACH, indirect=True)
def test_the_metrics_are_the_direct_runners(
    folder: Path, tmp_path: Path, running: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """Prism reports counters that stayed at 0 in a form that Beam reads as None."""
    direct = metrics_of(command("heatmap", folder, tmp_path / "direct"), capsys)
    found = metrics_of(command("heatmap", folder, tmp_path / "engine", *running), capsys)
    assert direct["read_rows"] == 6000
    assert found == direct


@EACH_ENGINE
@pytest.mark.parametrize(
    ("logs", "more", "message"),
    [
        ("damaged", [], "log-1.parquet: cannot be read as Parquet"),
        ("few", ["--population", "1000"], "1,000 users, and the logs hold about"),
    ],
)
def test_a_workers_error_is_one_line(
    folder: Path, tmp_path: Path, open_server: list[str], logs: str, more: list[str], message: str
) -> None:
    if logs == "few":
        write_files(make_logs(30, 1, seed=2), folder / logs, 2)
    elif not (folder / logs).exists():
        shutil.copytree(folder / "logs", folder / logs)
        damaged = folder / logs / "log-1.parquet"
        content = bytearray(damaged.read_bytes())
        content[200:5000] = bytes(4800)  # the footer, which is read before the job starts, is whole
        damaged.write_bytes(content)
    arguments = command("heatmap", folder, tmp_path / "out", *more, *open_server, logs=logs)
    status, out, err = terminal(arguments, tmp_path / "temporary")
    assert (status, out) == (1, "")
    lines = [line for line in err.splitlines() if not line.startswith("  ")]  # without progress
    start, files, ledger, trust, coast, *cost, failure = lines
    assert start == "sfumato heatmap: starting"
    assert files.endswith("files to read")
    assert "--ledger" in ledger
    assert "--trust central" in trust
    assert "no coast" in coast
    assert ["costs epsilon" in line for line in cost] == [True] * (logs == "few")  # a refusal costs a part of it
    assert failure.startswith("sfumato heatmap: ")
    assert message in failure
    assert sorted(os.listdir(tmp_path)) == (["out", "temporary"] if logs == "few" else ["temporary"])  # the reason


def fail_once(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Makes the stage that sums shards fail at its second element; returns what it was called with."""
    from sfumato.transforms.counting import transform

    sum_shards, calls = transform.sum_shards, []

    def failing(group: Any, *arguments: Any) -> Any:
        calls.append(group.first)
        if len(calls) == 2:
            raise RuntimeError("a worker is lost")
        return sum_shards(group, *arguments)

    monkeypatch.setattr(transform, "sum_shards", failing)
    return calls


@pytest.mark.parametrize("engine", ["flink", "spark"])
def test_work_that_is_started_again_gives_the_same_release(
    folder: Path, tmp_path: Path, engine: str, open_server: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Prism does not repeat work."""
    assert cli.main(command("heatmap", folder, tmp_path / "direct")) == 0
    configuration = tmp_path / "conf"
    configuration.mkdir()
    (configuration / "flink-conf.yaml").write_text(
        "restart-strategy.type: fixed-delay\n"
        "restart-strategy.fixed-delay.attempts: 1\n"
        "restart-strategy.fixed-delay.delay: 100 ms\n"
    )
    repeating = {"flink": ["--flink_conf_dir", str(configuration)], "spark": ["--spark_master_url", "local[2,2]"]}
    with monkeypatch.context() as patch:
        calls = fail_once(patch)
        arguments = command("heatmap", folder, tmp_path / "engine", *open_server, *repeating[engine])
        assert cli.main(arguments) == 0
        assert len(calls) > 2
    assert differences(tmp_path / "direct", tmp_path / "engine") == []


@EACH_ENGINE
def test_unexpected_error_without_retries_ends_the_job(
    folder: Path, tmp_path: Path, open_server: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    fail_once(monkeypatch)
    with pytest.raises(RuntimeError, match="a worker is lost"):
        cli.main(command("heatmap", folder, tmp_path / "out", *open_server))
    assert os.listdir(tmp_path) == []


@EACH_ENGINE
def test_a_job_that_is_told_to_end_takes_its_job_server_with_it(
    folder: Path, tmp_path: Path, engine: str, open_server: list[str]
) -> None:
    arguments = command("heatmap", folder, tmp_path / "out", *open_server)
    program = "java" if ENGINES[engine].engine.needs_java else "prism"
    with subprocess.Popen(
        [sys.executable, "-m", "sfumato.pipelines.command_line.cli", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as job:
        process = psutil.Process(job.pid)
        while not (servers := [one for one in process.children() if one.name() == program]):
            assert job.poll() is None
            time.sleep(0.02)
        time.sleep(0.3)
        job.terminate()
        job.communicate(timeout=60)
    assert job.returncode == 143
    assert psutil.wait_procs(servers, timeout=30)[1] == []
    assert os.listdir(tmp_path) == []
