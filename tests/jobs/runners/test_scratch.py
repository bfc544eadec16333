"""Where a local run keeps users' cells, and how much memory a process has."""

from __future__ import annotations

import contextlib
import os
import resource
import shutil
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.runners.direct import DirectRunner

from sfumato.pipelines.frame import scratch
from sfumato.pipelines.frame.scratch import available_memory
from sfumato.pipelines.runners import folders
from sfumato.pipelines.runners.runner_settings import RunnerSettings, runner_settings
from sfumato.schemas.errors import RequestError
from sfumato.transforms.locations.spill import MEMORY, load

# --- where a local run keeps users' cells ---

GB = 10**9
FLINK = RunnerSettings(DirectRunner(), PipelineOptions([]), local=False, workers_chosen=False)
HOLD = (
    "import time\n"
    "from sfumato.pipelines.runners.folders import private_folder\n"
    "with private_folder() as place:\n"
    "    open(place + '/cells', 'w').write('of a user')\n"
    "    print(place, flush=True)\n"
    "    time.sleep(60)\n"
)


@pytest.fixture(autouse=True)
def _own_temporary_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))


def settings(*beam: str) -> RunnerSettings:
    return runner_settings(None, list(beam)).sized(1000)


def plan(rows: int, memory: float | None, *beam: str, where: RunnerSettings | None = None) -> scratch.MemoryPlan:
    return scratch.plan_memory(
        where or settings(*beam),
        rows,
        scratch.RunBytes(30 * rows, 15 * rows, 6 * GB // 10),
        None if memory is None else int(memory),
    )


IN_MEMORY, ON_DISK = scratch.MemoryPlan("memory", 1, 3, 0), scratch.MemoryPlan("folder", 1, 3, 0)


def test_one_process_holds_its_data_in_memory_and_lets_go() -> None:
    with scratch.scratch(IN_MEMORY) as spill:
        assert (spill.place or "").startswith(MEMORY)
        assert spill.group_bits == 3
        stored = spill.store(b"cells")
        assert bytes(load(stored)[0]) == b"cells"
    with pytest.raises(KeyError):
        load(stored)


def test_else_a_private_folder_is_made_and_removed(tmp_path: Path) -> None:
    with scratch.scratch(ON_DISK) as spill:
        place = str(spill.place)
        assert Path(place).parent == tmp_path
        assert stat.S_IMODE(os.stat(place).st_mode) == 0o700
        stored = spill.store(b"cells")
        assert bytes(load(stored)[0]) == b"cells"
        assert {stat.S_IMODE(path.stat().st_mode) for path in Path(place).iterdir()} == {0o600}
    assert list(tmp_path.iterdir()) == []
    with contextlib.suppress(ZeroDivisionError), scratch.scratch(ON_DISK):
        raise ZeroDivisionError
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_a_run_sweeps_what_a_killed_run_left_and_nothing_else(tmp_path: Path) -> None:
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    jobs = [
        subprocess.Popen([sys.executable, "-c", HOLD], stdout=subprocess.PIPE, text=True, env=environment)
        for _ in range(2)
    ]
    killed, alive = (Path(job.stdout.readline().strip()) for job in jobs)  # type: ignore[union-attr]
    try:
        jobs[0].kill()
        jobs[0].wait()
        assert (killed / "cells").is_file()  # the attack: raw cells are left on the disk
        theirs = [
            tmp_path / name for name in ("sfumato-scratch-of-mine", "sfumato-releases", "sfumato-scratch-abcd1234")
        ]
        for folder in theirs:
            folder.mkdir(mode=0o755)  # of the names, none is a scratch folder's and private
        (tmp_path / "sfumato-scratch-abcdefgh").symlink_to(theirs[1])
        with scratch.scratch(IN_MEMORY):
            assert not killed.exists()
            assert (alive / "cells").is_file()
        assert all(folder.is_dir() for folder in theirs)
        jobs[1].send_signal(signal.SIGKILL)
        jobs[1].wait()
        folders.sweep()
        assert not alive.exists()
    finally:
        for job in jobs:
            job.kill()
            job.communicate()


def test_the_place_follows_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = 54_600_000
    assert plan(rows, 2 * GB, "--direct_num_workers=2").place == "memory"
    small = plan(rows, 1 * GB, "--direct_num_workers=2")
    assert (small.place, small.workers) == ("folder", 2)
    assert small.needed <= GB
    monkeypatch.setattr(scratch, "available_memory", lambda: 2 * GB)
    assert plan(rows, None).place == "memory"
    monkeypatch.setattr(scratch, "available_memory", lambda: 1 * GB)
    assert plan(rows, None).place == "folder"
    monkeypatch.setattr(scratch, "available_memory", lambda: 0)  # nobody says
    assert plan(rows, None).place == "folder"


def test_more_rows_in_the_same_memory_have_more_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda _: shutil._ntuple_diskusage(10**15, 0, 10**15))
    few, many = (plan(rows, GB, "--direct_num_workers=2") for rows in (10**7, 10**10))
    assert many.group_bits > few.group_bits
    assert max(few.needed, many.needed) <= GB


def test_threads_that_nobody_asked_for_are_given_up_for_memory() -> None:
    chosen = runner_settings(None, []).with_workers(8)
    assert plan(10**8, 1 * GB, where=chosen).workers == 1
    with pytest.raises(RequestError, match="--memory"):
        plan(10**8, 1 * GB, "--direct_num_workers=8")


def test_a_run_that_does_not_fit_is_refused_with_what_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RequestError, match=r"needs about 600M and may use 400M.*--memory"):
        plan(1000, 0.4 * GB)
    monkeypatch.setattr(scratch, "available_memory", lambda: int(0.3 * GB))
    with pytest.raises(RequestError, match=r"needs about 600M and may use 300M"):
        plan(1000, None)
    monkeypatch.setattr("shutil.disk_usage", lambda _: shutil._ntuple_diskusage(GB, 0, GB))
    with pytest.raises(RequestError, match=r"3G of disk.*has 1G; set TMPDIR"):
        plan(10**8, 1 * GB)


def test_workers_elsewhere_have_groups_by_their_own_memory() -> None:
    assert plan(20 * 10**9, None, where=FLINK).place == "runner"
    assert 1 << plan(20 * 10**9, None, where=FLINK).group_bits >= 1000
    assert plan(20 * 10**9, 1 * GB, where=FLINK).group_bits > plan(20 * 10**9, None, where=FLINK).group_bits
    with pytest.raises(RequestError, match="worker"):
        plan(1000, 0.1 * GB, where=FLINK)
    with scratch.scratch(plan(1000, None, where=FLINK)) as spill:
        assert spill.place is None


# --- the memory of a process by real files as Linux writes them ---

MB = 1024 * 1024
OWN = 300 * MB


def system(root: Path, cgroup: str, **groups: dict[str, str]) -> Path:
    """A machine with 10,000 MB left, on which this process has 300 MB. groups: files by folder below /sys/fs/cgroup."""
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/meminfo").write_text(
        f"MemTotal: {16_000 * 1024} kB\nMemAvailable: {10_000 * 1024} kB\nHugePages: 0\n"
    )
    (root / "proc/self/status").write_text(f"Name:\tpython\nVmRSS:\t{300 * 1024} kB\n")
    (root / "proc/self/cgroup").write_text(cgroup)
    for folder, files in groups.items():
        place = root / "sys/fs/cgroup" / folder
        place.mkdir(parents=True, exist_ok=True)
        for name, content in files.items():
            (place / name).write_text(content)
    return root


def v2(limit: str, used: int, cached: int) -> dict[str, str]:
    stat = f"anon {used - cached}\ninactive_file {cached * MB}\nactive_file 7\n"
    return {"memory.max": f"{limit}\n", "memory.current": f"{used * MB}\n", "memory.stat": stat}


def v1(limit: int, used: int, cached: int) -> dict[str, str]:
    stat = f"inactive_file 0\ntotal_inactive_file {cached * MB}\n"
    return {"memory.limit_in_bytes": f"{limit * MB}\n", "memory.usage_in_bytes": f"{used * MB}\n", "memory.stat": stat}


def expected(left: int) -> int:
    return OWN + int(0.8 * left * MB)


def test_the_machine_alone(tmp_path: Path) -> None:
    assert available_memory(system(tmp_path, "0::/\n")) == expected(10_000)


@pytest.mark.parametrize(("limit", "left"), [(str(1500 * MB), 1200), ("max", 10_000), (str(50_000 * MB), 10_000)])
def test_a_container_of_version_2_sees_its_group_as_the_root(tmp_path: Path, limit: str, left: int) -> None:
    root = system(tmp_path, "0::/\n", **{".": v2(limit, 500, 200)})
    assert available_memory(root) == expected(left)


def test_the_narrowest_of_all_groups_around_a_process_counts(tmp_path: Path) -> None:
    groups = {
        "work.slice": v2(str(2000 * MB), 1500, 100),
        "work.slice/job.scope": v2(str(4000 * MB), 400, 0),
        "work.slice/other.scope": v2(str(10 * MB), 10, 0),
    }
    assert available_memory(system(tmp_path, "0::/work.slice/job.scope\n", **groups)) == expected(600)


def test_a_group_of_version_1(tmp_path: Path) -> None:
    cgroup = "5:cpu,cpuacct:/job\n4:memory:/jobs/job\n0::/\n"
    root = system(tmp_path, cgroup, **{"memory/jobs/job": v1(1000, 350, 50), "memory": v1(9_000_000, 5000, 0)})
    assert available_memory(root) == expected(700)


@pytest.mark.parametrize(("left", "counted"), [(500, 500), (20_000, 10_000)])
def test_a_limit_of_address_space_counts(tmp_path: Path, left: int, counted: int) -> None:
    """That of `ulimit -v`."""
    root, limits = system(tmp_path, "0::/\n"), resource.getrlimit(resource.RLIMIT_AS)
    used = 100_000 * MB  # as the files state it, so that this process keeps what it has
    with (root / "proc/self/status").open("a") as file:
        file.write(f"VmSize: {used // 1024} kB\n")
    resource.setrlimit(resource.RLIMIT_AS, (used + left * MB, limits[1]))
    try:
        found = available_memory(root)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limits)
    assert found == expected(counted)
