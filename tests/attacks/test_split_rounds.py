"""An adaptive map of devices: which tasks a device answers, so that nobody makes it spend more than the map's epsilon.

These tests fail if a device answers a task twice, a round without the one before, or a task with other keys, another
minimum or more epsilon than the first round stated; or if its report leaves before it has recorded that it answered.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sfumato.pipelines import split
from sfumato.pipelines.command_line import cli
from sfumato.schemas.errors import RequestError
from sfumato.schemas.tree import Tree
from sfumato.transforms.heatmap.device_rounds import map_state, next_task
from sfumato.transforms.split.answered import answer
from sfumato.transforms.split.collect import Collected
from sfumato.transforms.split.task import Task
from tests.rejections import rejects
from tests.two_servers import City

DAY = 86_400
FINER = Tree.of(10, np.array([4, 5, 6, 7, 28, 29, 30, 31], dtype=np.uint64))


@pytest.fixture
def city(tmp_path: Path) -> City:
    return City.new(tmp_path, min_batch=1, epsilon=3.0)


@pytest.fixture
def first(city: City) -> Task:
    return city.map(500, depth=10)


def at(monkeypatch: pytest.MonkeyPatch, seconds: int) -> None:
    monkeypatch.setattr("time.time", lambda: float(seconds))


def edited(task: Task, **entries: Any) -> Task:
    """Returns the task of a file that somebody else wrote."""
    content = json.loads(task.text)
    for name in [name for name in entries if name.startswith("map_")]:
        content["map"][name.removeprefix("map_")] = entries.pop(name)
    return Task.parse(json.dumps(content | entries))


def test_a_device_answers_rounds_once_and_in_order(first: Task, monkeypatch: pytest.MonkeyPatch) -> None:
    second = first.next_round(FINER, 1.0)
    third = second.next_round(FINER, 1.0)
    at(monkeypatch, first.start + 60)
    kept = answer(first, None)
    with rejects("task"):
        answer(first, kept)
    at(monkeypatch, second.start + 60)
    for wrong in (first, third):
        with rejects("task"):
            answer(wrong, kept)
    with rejects("task"):
        answer(second, None)  # a device that did not answer the first round
    kept = answer(second, kept)
    with rejects("task"):
        answer(second, kept)
    at(monkeypatch, third.start + 60)
    answer(third, kept)


@pytest.mark.parametrize(
    "entries",
    [
        {"min_batch": 2},
        {"epsilon": 2.5},
        {"map_spent": 0.1},
        {"map_epsilon": 6.0},
        {"map_users": 7},
        {"map_round": 3},
        {"map_first": "ab" * 32},
        {"name": "another"},
        {"region": [3.0, 1.0, 3.1, 1.1]},
        {"depth": 9},
        {"max_value": 2},
        {"leader": "ab" * 31 + "00"},
        {"helper": "ab" * 31 + "00"},
        {"collector": "ab" * 31 + "00"},
        {"verify": "ab" * 31 + "00"},
        {"end": "2026-12-22T00:00:00+00:00"},
    ],
    ids=lambda entries: next(iter(entries)),
)
def test_a_device_refuses_a_forged_round(first: Task, entries: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """All but the tree and its share of the epsilon follow from the round that the device answered."""
    second = first.next_round(FINER, 1.0)
    at(monkeypatch, first.start)
    kept = answer(first, None)
    at(monkeypatch, second.start)
    with rejects("task"):
        answer(edited(second, **entries), kept)
    answer(second, kept)


def test_rounds_cost_a_device_no_more_than_the_map(first: Task, monkeypatch: pytest.MonkeyPatch) -> None:
    task, kept, spent = first, None, 0.0
    for _ in range(10):
        at(monkeypatch, task.start)
        kept = answer(task, kept)
        spent += task.epsilon
        try:
            task = task.next_round(FINER, 1.0)
        except RequestError:
            break
    assert 2.0 < spent <= 3.0
    with rejects("task"):
        edited(task, map_spent=2.9)


@pytest.mark.parametrize("late", [-1, DAY])
def test_a_device_answers_within_the_window_only(city: City, late: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A report outside of it would be left out, and would still tell both operators that the device exists."""
    at(monkeypatch, city.task.start + late)
    with rejects("task"):
        answer(city.task, None)


def test_a_clock_set_back_opens_no_answered_task_again(city: City, monkeypatch: pytest.MonkeyPatch) -> None:
    kept, tasks = None, []
    for day in range(20):
        start = city.task.start + day * DAY
        at(monkeypatch, start)
        days = {"start": f"2026-11-{20 + day}" if day < 11 else f"2026-12-{day - 10:02}"}
        days["end"] = f"2026-11-{21 + day}" if day < 10 else f"2026-12-{day - 9:02}"
        task = edited(city.task, **{name: f"{value}T00:00:00+00:00" for name, value in days.items()})
        kept = answer(task, kept)
        tasks.append(task)
    for task in tasks:
        at(monkeypatch, task.start)
        with rejects("task"):
            answer(task, kept)


@pytest.mark.parametrize("kept", [b"", b"[]", b"{", b"[" * 100_000, b'{"a": 1}', b'{"a": "{}"}', b"\xff"])
def test_a_damaged_record_stops_a_device(city: City, kept: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    at(monkeypatch, city.task.start)
    with rejects("answered"):
        answer(city.task, kept)


def test_a_report_leaves_after_its_record(city: City, first: Task, monkeypatch: pytest.MonkeyPatch) -> None:
    """A device that is killed in between does not answer; one that answered twice would spend epsilon twice."""
    at(monkeypatch, first.start)
    report, record = city.folder / "report.bin", city.folder / "answered.json"
    arguments = ["client", "report", "--task", f"{city.folder}/round1.json", "--location", "3.05,1.07"]
    arguments += ["--output", str(report)]
    assert cli.main(arguments) == RequestError.exit_code  # a round of a map requires the record
    arguments += ["--answered", str(record)]

    def killed(path: str, content: bytes) -> None:
        assert record.exists()
        raise RequestError("output: killed")

    with monkeypatch.context() as patch:
        patch.setattr(split, "write_output", killed)
        assert cli.main(arguments) == RequestError.exit_code
    assert record.exists()
    assert cli.main(arguments) == RequestError.exit_code
    assert not report.exists()


def test_a_collector_makes_rounds_of_one_map_only(first: Task) -> None:
    counts = Collected([500 // first.circuit.length] * first.circuit.length, [500, 500])
    state = map_state([first], [counts])
    second = next_task(first, state)
    more = Collected([0] * second.circuit.length, [500, 500])
    assert len(map_state([first, second], [counts, more]).results) == 2
    other = edited(first, name="another")
    for tasks in ([other, second], [second, first], [second]):
        rounds = [Collected([0] * task.circuit.length, [500, 500]) for task in tasks]
        with rejects("task"):
            map_state(tasks, rounds)
    with rejects("task"):
        map_state([edited(first, epsilon=0.1)], [counts])
