"""The place for bulky data between the stages of a local run: memory, or a private folder."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sfumato.pipelines.folders import private_folder, sweep
from sfumato.pipelines.runner_settings import RunnerSettings
from sfumato.transforms.locations.spill import MEMORY, forget

BYTES_PER_ROW = 30  # 12 of a record's chunk, then 8, 4 and 4 of its user
VALUE_BYTES_PER_ROW = 8  # of a record's chunk, where records have weights or times
DISTRIBUTION_BYTES_PER_ROW = 76  # 12, and then 20, 20 and 16, or 24 with many levels, of each of its user's cells


@contextmanager
def scratch(settings: RunnerSettings, size: int) -> Iterator[str | None]:
    """A place for `Spill`, cleared when the block ends; None if the workers are not on this machine.

    It is this process's memory if a third of the available memory suffices. Then users' cells never reach a disk.
    Otherwise it is a folder that only this user can read.

    Args:
        settings: where the run takes place.
        size: expected bytes.
    """
    sweep()
    if not settings.local:
        yield None
    elif 3 * size <= available_memory():
        name = f"{MEMORY}{uuid.uuid4().hex}"
        try:
            yield name
        finally:
            forget(name)
    else:
        with private_folder() as folder:
            yield folder


def available_memory() -> int:
    """Available bytes by Linux's /proc/meminfo; 0 on other systems."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration, ValueError):
        return 0
