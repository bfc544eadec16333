"""The memory that this process may use: of the machine, and of the control groups (containers) that limit it."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from pathlib import Path

_FREE_SHARE = 0.8  # of free memory: the rest is for other programs and for files that the system keeps in memory


def available_memory(system: Path = Path("/")) -> int:
    """Bytes that this process may use in all; 0 if nobody says.

    On Linux it is what the process has, and four fifths of what the machine, every control group around it (versions
    1 and 2) and the limit of its address space (`ulimit -v`) have left. On other systems it is half of the machine's
    memory.

    Args:
        system: where /proc and /sys are.
    """
    machine = _fields(system / "proc/meminfo")
    if "MemAvailable" not in machine:
        return _half_of_physical()
    process = _fields(system / "proc/self/status")
    left = [machine["MemAvailable"], *_left_in_groups(system)]
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit != resource.RLIM_INFINITY:
        left.append(limit - process.get("VmSize", 0))
    return process.get("VmRSS", 0) + int(_FREE_SHARE * max(min(left), 0))


def _fields(path: Path) -> dict[str, int]:
    """The numbers of a file of lines `name: number kB`, in bytes. None of a file that cannot be read."""
    found = {}
    try:
        for line in path.read_text().splitlines():
            name, _, value = line.partition(":")
            if value.endswith(" kB"):
                found[name] = 1024 * int(value.split()[0])
    except (OSError, ValueError):
        pass
    return found


def _left_in_groups(system: Path) -> Iterator[int]:
    """Bytes that each control group around this process has left."""
    try:
        lines = (system / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        number, controllers, group = line.split(":", 2)
        roots: tuple[str, ...] = ("sys/fs/cgroup/memory",)
        if number == "0":  # version 2
            names, roots = ("memory.max", "memory.current", "inactive_file"), ("sys/fs/cgroup", "sys/fs/cgroup/unified")
        elif "memory" in controllers.split(","):
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
        else:
            continue
        for root in roots:
            # A container may see its own group as the root, although its path is stated as the host sees it.
            for folder in {*_upwards(system / root, group), system / root}:
                yield from _left(folder, *names)


def _upwards(root: Path, group: str) -> Iterator[Path]:
    """The folders of a group and of all that hold it, below the root."""
    parts = [part for part in group.split("/") if part not in ("", "..")]
    for length in range(len(parts), 0, -1):
        yield root.joinpath(*parts[:length])


def _left(folder: Path, limit: str, usage: str, reclaimable: str) -> Iterator[int]:
    """Bytes that a group has left, with those of files that it may drop; nothing without a limit."""
    try:
        most, used = (folder / limit).read_text(), int((folder / usage).read_text())
        counts = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
    except (OSError, ValueError):
        return
    if most.strip().isdigit():  # not `max`
        yield int(most) - used + int(counts.get(reclaimable, 0))


def _half_of_physical() -> int:
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
    except (AttributeError, OSError, ValueError):
        return 0
