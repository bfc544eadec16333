"""What a device keeps of the tasks that it answered, so that it answers each once, and a map's rounds in order."""

from __future__ import annotations

import json
import time

from sfumato.schemas.errors import RequestError
from sfumato.transforms.split.task import Task


def answer(task: Task, kept: bytes | None) -> bytes:
    """Returns what a device keeps before it sends its report for a task.

    It forgets a task when neither that task nor the next round of its map can still be open.

    Args:
        task: that the device was asked to answer.
        kept: what it kept before; None on a new device.

    Raises:
        RequestError: the device must not answer: it did so before, the task's window does not include the present, or
            the task is an old or forged round of a map.
    """
    task.check_open()
    answered = _read(kept)
    series = _series(task)
    previous = answered.get(series)
    if previous is not None:
        if previous.id == task.id or task.map is None:
            raise RequestError("task: this device has answered it; a device answers a task once")
        task.check_follows(previous)
    elif task.map is not None and task.map.round > 1:
        raise RequestError("task: this device has not answered the first round of the map; it can answer the next map")
    now = time.time()
    open_still = {name: one.text for name, one in answered.items() if 2 * one.end - one.start > now}
    return json.dumps(open_still | {series: task.text}).encode()


def _series(task: Task) -> str:
    """Returns the id of the first round of a task's map, or of a task of its own."""
    return task.id.hex() if task.map is None else task.map.first or task.id.hex()


def _read(kept: bytes | None) -> dict[str, Task]:
    try:
        tasks = [Task.parse(text) for text in (json.loads(kept) if kept is not None else {}).values()]
    except (ValueError, RecursionError, AttributeError, TypeError, RequestError) as error:
        raise RequestError(f"answered: is not the file that a device keeps ({error})") from None
    return {_series(task): task for task in tasks}
