"""The place for bulky data between the stages of a run: memory, a private folder, or the runner.

A plan uses the number of rows that the files' footers state, the memory and the threads. No result depends on it.
"""

from __future__ import annotations

import os
import resource
import shutil
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from sfumato.pipelines.frame.job import PLAIN_BYTES, RunBytes
from sfumato.pipelines.runners.folders import private_folder, sweep
from sfumato.pipelines.runners.runner_settings import RunnerSettings
from sfumato.schemas.errors import RequestError
from sfumato.schemas.known_digits import byte_text
from sfumato.transforms.locations.spill import MEMORY, Spill, forget
from sfumato.transforms.locations.users import MAX_GROUP_BYTES, ROW_BYTES, group_bits

_FREE_SHARE = 0.8  # of free memory: the rest is for other programs and for files that the system keeps in memory


def available_memory(system: Path = Path("/")) -> int:
    """Returns the bytes that this process may use in all; 0 if unknown.

    On Linux it is the process's own memory plus four fifths of the memory that is left, by the tightest of three
    limits: the machine, every control group around it (versions 1 and 2), and its address space (`ulimit -v`). On
    other systems it is half of the machine's memory.

    system: where /proc and /sys are.
    """
    machine = _fields(system / "proc/meminfo")
    if "MemAvailable" not in machine:
        try:
            return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
        except (AttributeError, OSError, ValueError):
            return 0
    process = _fields(system / "proc/self/status")
    left = [machine["MemAvailable"], *_left_in_groups(system)]
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit != resource.RLIM_INFINITY:
        left.append(limit - process.get("VmSize", 0))
    return process.get("VmRSS", 0) + int(_FREE_SHARE * max(min(left), 0))


def _fields(path: Path) -> dict[str, int]:
    """Returns the numbers of a file of lines `name: number kB`, in bytes; none if the file cannot be read."""
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
    """Yields the bytes that each control group around this process has left."""
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
    """Yields the folders of a control group and of all groups that contain it, below the root."""
    parts = [part for part in group.split("/") if part not in ("", "..")]
    for length in range(len(parts), 0, -1):
        yield root.joinpath(*parts[:length])


def _left(folder: Path, limit: str, usage: str, reclaimable: str) -> Iterator[int]:
    """Yields the bytes that a group has left, including cached files that it may drop; nothing without a limit."""
    try:
        most, used = (folder / limit).read_text(), int((folder / usage).read_text())
        counts = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
    except (OSError, ValueError):
        return
    if most.strip().isdigit():  # not `max`
        yield int(most) - used + int(counts.get(reclaimable, 0))


_WORKER_BYTES = 150_000_000  # of one thread: rows that are decoded, and those that wait for their group
_DECODED_ROW_BYTES = 100  # of them, where there are few rows
_SKEW = 1.25  # the largest group of users over the mean
_MIN_GROUP_BYTES = 64_000_000


@dataclass(frozen=True)
class MemoryPlan:
    """How a run keeps within its memory."""

    place: str  # `memory`, `folder`, or `runner` where the workers are elsewhere
    workers: int  # threads of a local run
    group_bits: int  # see `users.group_bits`
    needed: int  # expected bytes of memory; 0 where it is not known


def plan_memory(settings: RunnerSettings, rows: int, size: RunBytes, memory: int | None = None) -> MemoryPlan:
    """Returns the plan of a run.

    Memory is the place if it suffices. Otherwise the data are written to a folder, with as many threads as the memory
    allows. Where the workers are elsewhere, the memory is that of one worker, and a group may have a quarter of it.

    Args:
        settings: where the run takes place, with the number of threads.
        rows: rows of the logs.
        size: expected bytes of the run.
        memory: bytes that the run may use; None for what is available.

    Raises RequestError: the memory or the temporary folder is too small.
    """
    if not settings.local:
        share = MAX_GROUP_BYTES if memory is None else min(memory / 4, MAX_GROUP_BYTES)
        if share < _MIN_GROUP_BYTES:
            raise RequestError(f"memory: a worker needs at least 0.25G, got {byte_text(int(4 * share))}")
        return MemoryPlan("runner", 0, group_bits(rows, share), 0)
    budget = memory or available_memory()
    chosen = settings.workers()
    if not budget:  # on systems that do not state it
        return MemoryPlan("folder", chosen, group_bits(rows), 0)
    on_disk = replace(size, held=0)
    choices = [(size, chosen), (on_disk, chosen)] + [(on_disk, 1)] * (not settings.workers_chosen)
    plans = [_plan(budget, rows, one, workers) for one, workers in choices]
    plan = next((one for one in plans if one.needed <= budget), None)
    if plan is None:
        least = min(one.needed for one in plans)
        remedy = "and state it with --memory" if memory else "(a container or `ulimit -v` may limit it)"
        raise RequestError(
            f"memory: this run needs about {byte_text(least)} and may use {byte_text(budget)}; give it more memory "
            f"{remedy}, or read fewer rows"
        )
    free = shutil.disk_usage(tempfile.gettempdir()).free
    if plan.place == "folder" and size.stored > free:
        raise RequestError(
            f"memory: users' records are too many for {byte_text(budget)} and need {byte_text(size.stored)} of disk; "
            f"{tempfile.gettempdir()} has {byte_text(free)}; set TMPDIR to a larger disk, or give more memory"
        )
    return plan


def _plan(budget: int, rows: int, size: RunBytes, workers: int) -> MemoryPlan:
    """Returns a plan with this many threads. If `size.held` is 0, the place is a folder."""
    left = (budget - PLAIN_BYTES - size.held) / (workers * _SKEW)
    bits = group_bits(rows, min(max(left, _MIN_GROUP_BYTES), MAX_GROUP_BYTES))
    group = _SKEW * rows / (1 << bits) * ROW_BYTES
    reading = PLAIN_BYTES + size.held + workers * max(min(_WORKER_BYTES, _DECODED_ROW_BYTES * rows), group)
    needed = max(reading, size.release + size.held / 3)  # the index is left then
    return MemoryPlan("memory" if size.held else "folder", workers, bits, int(needed))


@contextmanager
def scratch(plan: MemoryPlan) -> Iterator[Spill]:
    """Yields a place for bulky data, cleared when the block ends.

    If the place is memory, users' cells never reach a disk. A folder can be read by this user only.
    """
    sweep()
    if plan.place == "runner":
        yield Spill(None, plan.group_bits)
    elif plan.place == "memory":
        name = f"{MEMORY}{uuid.uuid4().hex}"
        try:
            yield Spill(name, plan.group_bits)
        finally:
            forget(name)
    else:
        with private_folder() as folder:
            yield Spill(folder, plan.group_bits)


def memory_lines(settings: RunnerSettings, row_bytes: int, memory: int | None) -> list[str]:
    """Returns what a dry run states about memory, without reading the logs.

    settings: where the run takes place. row_bytes: expected bytes of bulky data in memory for one row. memory: bytes
    that the run may use; None for what is available.
    """
    if not settings.local:
        stated = "not stated (--memory)" if memory is None else byte_text(memory)
        return [f"of one worker: {stated}"]
    budget = memory or available_memory()
    if not budget:
        return ["the system does not state it (--memory); users' records are written to a temporary folder"]
    rows = max(budget - PLAIN_BYTES - 2 * _WORKER_BYTES, 0) // row_bytes
    origin = "--memory" if memory else "what is available; --memory"
    return [
        f"{byte_text(budget)} ({origin}); records of up to {rows // 10**6:,} million rows stay in it, those of more "
        f"rows are written to a folder in {tempfile.gettempdir()}"
    ]
