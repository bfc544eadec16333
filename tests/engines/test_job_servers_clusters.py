"""Clusters whose processes are killed in mid-job: the release is the same, or the job fails and can be run again."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from sfumato.pipelines.command_line import cli
from sfumato.transforms.counting import transform
from sfumato.transforms.privacy.ledger.ledger import open_ledger
from tests.clusters import flink_cluster, free_ports, listens, spark_cluster, wait_until
from tests.engine_runs import ENGINES, command, differences, missing

pytestmark = [
    pytest.mark.engines,
    # Beam leaves a pipe to the collector, and threads of workers whose engine is gone.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning"),
]
NIGHT = "heatmap, a night of a rotation"  # the release that is charged to a ledger


@pytest.fixture
def direct(folder: Path) -> Path:
    """The DirectRunner's release of a night, made once."""
    output = folder / "direct" / "release"
    if not output.exists():
        assert cli.main(command(NIGHT, folder, output)) == 0
    return output


def at_first_sub_query(monkeypatch: pytest.MonkeyPatch, act: Callable[[], None]) -> list[Any]:
    """Acts once, after the charge: when a worker sums shards for the first time. Returns the calls."""
    sum_shards, calls = transform.sum_shards, []

    def acting(group: Any, *arguments: Any) -> Any:
        calls.append(group.first)
        if len(calls) == 1:
            act()
        return sum_shards(group, *arguments)

    monkeypatch.setattr(transform, "sum_shards", acting)
    return calls


def charges(folder: Path) -> int:
    """Number of charges in the ledger of the night."""
    return len(open_ledger(str(folder / "ledger.db")).history().charges)


def test_a_task_manager_of_flink_that_is_killed_changes_nothing(
    folder: Path, direct: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if (lack := missing("flink")) is not None:
        pytest.skip(lack)
    with flink_cluster(tmp_path / "cluster") as cluster:

        def lose_task_manager() -> None:
            cluster.kill("task_manager")
            cluster.start_task_manager()

        calls = at_first_sub_query(monkeypatch, lose_task_manager)
        assert cli.main(command(NIGHT, folder, tmp_path / "release", *cluster.options)) == 0
    assert len(calls) > 2
    assert differences(direct, tmp_path / "release") == []
    assert charges(folder) == 1


def test_second_run_completes_after_flinks_job_manager_ends(
    folder: Path, direct: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """A batch job has no checkpoint from which a new job manager could go on."""
    if (lack := missing("flink")) is not None:
        pytest.skip(lack)
    with flink_cluster(tmp_path / "cluster") as cluster:
        arguments = command(NIGHT, folder, tmp_path / "release", *cluster.options)
        with monkeypatch.context() as patch:
            at_first_sub_query(patch, lambda: cluster.kill("job_manager"))
            assert cli.main(arguments) == 1
        assert_one_line(capfd.readouterr().err, "Flink ended the job")
        assert not (tmp_path / "release").exists()
        assert charges(folder) == 1
        cluster.start_job_manager()
        assert cli.main(arguments) == 0
    assert differences(direct, tmp_path / "release") == []
    assert charges(folder) == 1


def assert_one_line(err: str, message: str) -> None:
    """Beside progress, which is indented, and hints, a run shows its number of files and its failure."""
    lines = [line for line in err.splitlines() if line.startswith("sfumato")]
    hints = "no coast", "no ledger", "--trust central", "--period without"
    shown = [line for line in lines if not any(hint in line for hint in hints)]
    assert len(shown) == 2, err
    assert message in shown[1]
    assert "Traceback" not in err


def test_an_executor_of_spark_that_is_killed_changes_nothing(
    folder: Path, direct: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if (lack := missing("spark")) is not None:
        pytest.skip(lack)
    with spark_cluster(tmp_path / "cluster") as cluster:
        killed = []

        def lose_executor() -> None:
            (executor,) = cluster.executors()
            executor.kill()
            killed.append(executor)

        calls = at_first_sub_query(monkeypatch, lose_executor)
        assert cli.main(command(NIGHT, folder, tmp_path / "release", *cluster.options)) == 0
        assert killed
    assert len(calls) > 2
    assert differences(direct, tmp_path / "release") == []
    assert charges(folder) == 1


@pytest.mark.parametrize("engine", list(ENGINES))
def test_second_run_completes_after_a_job_server_ends(
    engine: str,
    folder: Path,
    direct: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """The embedded engine ends with its job server."""
    if (lack := missing(engine)) is not None:
        pytest.skip(lack)
    program = "java" if ENGINES[engine].engine.needs_java else "prism"
    arguments = command(NIGHT, folder, tmp_path / "release", "--runner_config", engine, "--open_job_server")

    others = set(psutil.Process().children())  # servers of tests before, in the same process

    def lose_server() -> None:
        (server,) = [one for one in set(psutil.Process().children()) - others if one.name() == program]
        server.kill()

    with monkeypatch.context() as patch:
        at_first_sub_query(patch, lose_server)
        assert cli.main(arguments) == 1
    assert_one_line(capfd.readouterr().err, f"{ENGINES[engine].engine.name} ended the job")
    assert not (tmp_path / "release").exists()
    assert charges(folder) == 1
    assert cli.main(arguments) == 0
    assert differences(direct, tmp_path / "release") == []
    assert charges(folder) == 1


def test_worker_pool_at_a_task_manager_gives_the_same_release(folder: Path, tmp_path: Path) -> None:
    """As on a cluster: the workers are neither this process nor started by it, and read the key from its file."""
    if (lack := missing("flink")) is not None:
        pytest.skip(lack)
    with flink_cluster(tmp_path / "cluster") as cluster:
        (port,) = free_ports(1)
        path = os.pathsep.join([os.path.dirname(sys.executable), os.environ["PATH"]])  # the pool starts `python`
        pool = [sys.executable, "-m", "apache_beam.runners.worker.worker_pool_main", f"--service_port={port}"]
        cluster.start("pool", pool, PATH=path)
        wait_until(lambda: listens(port))
        outside = [*cluster.options, "--environment_type", "EXTERNAL", "--environment_config", f"localhost:{port}"]
        for name, options in {"direct": [], "outside": outside}.items():
            arguments = command("heatmap", folder, tmp_path / name, *options)
            done = subprocess.run(
                [sys.executable, "-m", "sfumato.pipelines.command_line.cli", *arguments],
                capture_output=True,
                text=True,
                check=False,
            )
            assert done.returncode == 0, done.stderr
    assert differences(tmp_path / "direct", tmp_path / "outside") == []
