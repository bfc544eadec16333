"""The place for bulky data between the stages of a run: memory, a private folder, or the runner.

A plan is made of public figures alone: the rows by the files' footers, the memory, the threads. No result depends on
it.
"""

from __future__ import annotations

import shutil
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from sfumato.pipelines.folders import private_folder, sweep
from sfumato.pipelines.memory import available_memory
from sfumato.pipelines.runner_settings import RunnerSettings
from sfumato.schemas.errors import RequestError
from sfumato.schemas.known_digits import byte_text
from sfumato.transforms.locations.spill import MEMORY, Spill, forget
from sfumato.transforms.locations.users import MAX_GROUP_BYTES, ROW_BYTES, group_bits

BYTES_PER_ROW = 30  # 12 of a record's chunk, then 8, 4 and 4 of its user
VALUE_BYTES_PER_ROW = 8  # of a record's chunk, where records have weights or times
DISTRIBUTION_BYTES_PER_ROW = 76  # 12, and then 20, 20 and 16, or 24 with many levels, of each of its user's cells

# Memory by `python -m benchmarks.memory`.
PLAIN_BYTES = 350_000_000  # of Python, Beam and NumPy, and of a small release
MAP_BYTES = 600_000_000  # while a map of depth 10 is estimated, drawn and written
_WORKER_BYTES = 150_000_000  # of one thread: rows that are decoded, and those that wait for their group
_DECODED_ROW_BYTES = 100  # of them, where there are few rows
_SKEW = 1.25  # the largest group of users over the mean
_MIN_GROUP_BYTES = 64_000_000


@dataclass(frozen=True)
class RunBytes:
    """Expected bytes of a run.

    Attributes:
        stored: bulky data that are written in all.
        held: those in memory at one time, if they are not written to a folder.
        release: the process while it makes the release.
    """

    stored: int
    held: int
    release: int


@dataclass(frozen=True)
class MemoryPlan:
    """How a run keeps within its memory.

    Attributes:
        place: `memory`, `folder`, or `runner` where the workers are elsewhere.
        workers: threads of a local run.
        group_bits: see `users.group_bits`.
        needed: expected bytes of memory; 0 where it is not known.
    """

    place: str
    workers: int
    group_bits: int
    needed: int


def plan_memory(settings: RunnerSettings, rows: int, size: RunBytes, memory: int | None = None) -> MemoryPlan:
    """The plan of a run.

    Memory is the place if it suffices. Otherwise the data are written to a folder, with as many threads as the memory
    allows. Where the workers are elsewhere, the memory is that of one worker, and a group may have a quarter of it.

    Args:
        settings: where the run takes place, with the number of threads.
        rows: of the logs.
        size: of the run.
        memory: bytes that the run may use; None for what is available.

    Raises:
        RequestError: the memory or the temporary folder is too small.
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
    """A plan with so many threads. Without held bytes the place is a folder."""
    left = (budget - PLAIN_BYTES - size.held) / (workers * _SKEW)
    bits = group_bits(rows, min(max(left, _MIN_GROUP_BYTES), MAX_GROUP_BYTES))
    group = _SKEW * rows / (1 << bits) * ROW_BYTES
    reading = PLAIN_BYTES + size.held + workers * max(min(_WORKER_BYTES, _DECODED_ROW_BYTES * rows), group)
    needed = max(reading, size.release + size.held / 3)  # the index is left then
    return MemoryPlan("memory" if size.held else "folder", workers, bits, int(needed))


@contextmanager
def scratch(plan: MemoryPlan) -> Iterator[Spill]:
    """A place for bulky data, cleared when the block ends.

    In memory users' cells never reach a disk. A folder can be read by this user alone.
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
    """What a dry run says of memory, without a look at the logs.

    Args:
        settings: where the run takes place.
        row_bytes: expected bytes of bulky data in memory for one row.
        memory: bytes that the run may use; None for what is available.
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
