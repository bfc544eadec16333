"""What a device does with a task: its report, and the record that it keeps, so that it answers each task once."""

from __future__ import annotations

import json
from collections.abc import Sequence

from sfumato.schemas.errors import RequestError, reason_of
from sfumato.transforms.io.files import read_file, write_output
from sfumato.transforms.split.reports import make_reports
from sfumato.transforms.split.task import Task


def answer(task: Task, kept: bytes | None) -> bytes:
    """Returns what a device keeps before it sends its report for a task.

    It keeps every task, about 700 bytes each. If it forgot those whose window has ended, a device whose clock is set
    back would answer one twice.

    Args:
        task: to answer.
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
    return json.dumps({name: one.text for name, one in answered.items()} | {series: task.text}).encode()


def device_report(task: Task, location: Sequence[float] | None, weights: object, answered: str | None) -> bytes:
    """Returns a device's report, after it has recorded that it answers the task.

    location, weights: see `Task.measurement`. answered: see `record_answer`. Raises RequestError.
    """
    report = make_reports(task, [task.measurement(location, weights)])
    record_answer(task, answered)
    return report


def record_answer(task: Task, path: str | None) -> None:
    """Records in a device's file that it answers a task, before its report leaves. Raises RequestError, see `answer`.

    path: of the file, which need not exist; None for a device that answers this task only.
    """
    if path is None and task.map is not None:
        raise RequestError("answered: the task is a round of a map; name the file that the device keeps")
    try:
        kept = None if path is None else read_file(path)
    except FileNotFoundError:
        kept = None
    except OSError as error:
        raise RequestError(f"answered: {path} cannot be read ({reason_of(error)})") from None
    content = answer(task, kept)
    if path is not None:
        write_output(path, content)


def _series(task: Task) -> str:
    """Returns the id of the first round of a task's map, or of a task of its own."""
    return task.id.hex() if task.map is None else task.map.first or task.id.hex()


def _read(kept: bytes | None) -> dict[str, Task]:
    try:
        tasks = [Task.parse(text) for text in (json.loads(kept) if kept is not None else {}).values()]
    except (ValueError, RecursionError, AttributeError, TypeError, RequestError) as error:
        raise RequestError(f"answered: is not the file that a device keeps ({error})") from None
    return {_series(task): task for task in tasks}
