"""The memory of a process by real files as Linux writes them: machine, control groups of both versions, containers."""

from __future__ import annotations

import os
import resource
from pathlib import Path

import pytest

from sfumato.pipelines.scratch import available_memory

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
    return {
        "memory.limit_in_bytes": f"{limit * MB}\n",
        "memory.usage_in_bytes": f"{used * MB}\n",
        "memory.stat": stat,
    }


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


def test_a_container_of_version_1_has_the_path_of_its_host(tmp_path: Path) -> None:
    root = system(tmp_path, "4:memory:/docker/0123abcd\n", memory=v1(1000, 400, 0))
    assert available_memory(root) == expected(600)


def test_a_group_that_is_full_leaves_what_the_process_has(tmp_path: Path) -> None:
    assert available_memory(system(tmp_path, "0::/\n", **{".": v2(str(500 * MB), 600, 0)})) == OWN


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


def test_files_that_say_something_else_are_no_limit(tmp_path: Path) -> None:
    odd = {"memory.max": "lots\n", "memory.current": "?\n", "memory.stat": ""}
    assert available_memory(system(tmp_path, "0::/a\n", a=odd)) == expected(10_000)


def test_systems_without_these_files_give_half_of_the_machine(tmp_path: Path) -> None:
    assert available_memory(tmp_path) == os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2


def test_this_machine() -> None:
    assert 50 * MB < available_memory() < os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
