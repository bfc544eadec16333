"""The TypeScript client of phones against the Python client: the same bytes, and the same refusals."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sfumato.schemas.errors import RequestError
from sfumato.transforms.split.answered import answer
from sfumato.transforms.split.parties import party_key, private_key
from sfumato.transforms.split.prio3 import LEADER
from sfumato.transforms.split.reports import Formats, make_reports, open_records
from sfumato.transforms.split.task import Task
from tests import ROOT
from tests.phones import bundle, case, reports, run_script
from tests.seeds import seeded_rng
from tests.two_servers import City

HERE = {"longitude": 3.05, "latitude": 1.07}
MAP = {"epsilon": 1.0, "users": 1000}


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return bundle(tmp_path_factory.mktemp("client"))


@pytest.fixture
def city(tmp_path: Path) -> City:
    return City.new(tmp_path)


def tree_of(entries: int) -> list[str]:
    """Returns the names of a tree with this number of entries, 1 and a multiple of 3."""
    names = ["r"]
    for name in names:  # grows
        if len(names) < (4 * entries - 1) // 3:
            names += [f"{name}{digit}" for digit in range(4)]
    return names[1:]


def text_of(city: City, **entries: Any) -> str:
    """Returns a task file."""
    city.write_task(city.folder / "other.json", **entries)
    return (city.folder / "other.json").read_text()


def python_report(task: Task, place: Any, now: float, randomness: bytes) -> str:
    """Returns the Python client's report."""
    given = {"location": tuple(place.values())} if isinstance(place, dict) else {"weights": place}
    measurement = task.measurement(**given)
    return make_reports(task, [measurement], now, randomness).hex()


def test_both_clients_make_the_same_bytes(city: City, client: Path) -> None:
    tasks: list[tuple[dict[str, Any], Any, int | None]] = [
        ({}, HERE, 16),
        ({"depth": 4, "name": "Köln, \U0001d49f, 1 ☂"}, {"longitude": 3.13, "latitude": 1.0}, 256),
        ({"depth": 5, "region": [3, 1, 3.13, 1.13]}, HERE, 1024),
        ({"depth": 5, "tree": tree_of(340)}, HERE, 340),
        ({"depth": 15, "tree": ["r2", "r3", "r30", "r31", "r32", "r33"]}, HERE, 6),
        ({"depth": 4, "max_value": 10}, HERE, 256),
        ({"depth": 5, "tree": tree_of(340), "max_value": 5}, [[3.05, 1.07, 2], [3.0, 1.13, 2], [3.05, 1.07, 1]], 340),
        ({"depth": 1, "max_value": 1 << 16}, [[3.05, 1.07, 1 << 15], [3.1, 1.1, 0]], 4),
        ({"depth": 1, "max_value": 3}, [], 4),
    ]
    rng, cases, expected = seeded_rng(38), [], []
    for entries, place, length in tasks:
        text, randomness = text_of(city, **entries), rng.bytes(208)
        task = Task.parse(text)
        assert task.circuit.length == length
        cases.append(case(text, place, task.start + 7201.5, randomness))
        expected.append(python_report(task, place, task.start + 7201.5, randomness))
    assert [found.get("report") for found in reports(client, cases)] == expected


def test_both_clients_find_the_same_cells(city: City, client: Path) -> None:
    """Places on the borders of cells, and next to them, of a region without round numbers."""
    region, path = [3.1, 1.07, 3.33, 1.29], "r" + "120330211203"
    tree = [path[: level + 1] + digit for level in range(len(path)) for digit in "0123"]
    text = text_of(city, region=region, depth=15, tree=tree)
    task, rng = Task.parse(text), seeded_rng(39)
    side = 1 << len(path) - 1
    column, row = (int("".join(str(int(digit) >> bit & 1) for digit in path[1:]), 2) for bit in (1, 0))
    places = []
    for x, y in zip(rng.integers(-3, 4, 40) + column, rng.integers(-3, 4, 40) + row, strict=True):
        longitude, latitude = (
            region[0] + x * (region[2] - region[0]) / side,
            region[3] - y * (region[3] - region[1]) / side,
        )
        places.append({
            "longitude": float(np.nextafter(longitude, rng.choice([-np.inf, longitude, np.inf]))),
            "latitude": float(np.nextafter(latitude, rng.choice([-np.inf, latitude, np.inf]))),
        })  # fmt: skip
    randomness = rng.bytes(208)
    found = reports(client, [case(text, place, task.start, randomness) for place in places])
    assert len({task.cell_of(**place) for place in places}) > 3
    assert [one["report"] for one in found] == [python_report(task, one, task.start, randomness) for one in places]


WRONG: list[dict[str, Any]] = [
    {"name": ""},
    {"name": "a\u200bb"},
    {"epsilon": 31},
    {"epsilon": "1"},
    {"epsilon": True},
    {"depth": 9},
    {"depth": 16, "tree": ["r0"]},
    {"min_batch": 0},
    {"max_value": 1 << 17},
    {"max_value": 1 << 16, "depth": 8},
    {"region": [3, 1, 3]},
    {"region": ["3", 1, 3.1, 1.13]},
    {"region": [True, 1, 3.1, 1.13]},
    {"region": [3.0, 1.0, 2.9, 1.13]},
    {"region": [3.0, 1.0, 181.0, 1.13]},
    {"start": "2026-11-20"},
    {"start": "2026-02-30T00:00:00+00:00"},
    {"start": "2026-11-20T00:00:00.5+00:00"},
    {"start": "2026-11-20T00:30:00+00:00"},
    {"end": "2026-11-19T00:00:00Z"},
    {"leader": "00"},
    {"leader": "00" * 32},
    {"helper": "01" + "00" * 31},
    {"helper": "ec" + "ff" * 30 + "7f"},
    {"helper": "ed" + "ff" * 30 + "7f"},
    {"collector": "e0eb7a7c3b41b8ae1656e3faf19fc46ada098deb9c32b1fd866205165f49b800"},
    {"verify": "5f9c95bca3508c24b1d0b1559c83ef5b04445cc4581c8e86d8224eddd09f1157"},
    {"verify": "AB" * 32},
    {"unknown": 1},
    {"format": "sfumato split task 2"},
    {"tree": "r0"},
    {"tree": ["r0", "r4"]},
    {"tree": ["r0", "r000"]},
    {"tree": ["r1", "r0"]},
    {"tree": ["r0", "r0"]},
    {"tree": ["r"]},
    {"map": MAP},
    {"map": 1, "tree": ["r0"]},
    {"map": {**MAP, "unknown": 1}, "tree": ["r0"]},
    {"map": {"epsilon": 1.0}, "tree": ["r0"]},
    {"map": {**MAP, "users": 0}, "tree": ["r0"]},
    {"map": {**MAP, "epsilon": 1e-9}, "tree": ["r0"]},
    {"map": {**MAP, "round": 41, "spent": 0.1, "first": "ab" * 32}, "tree": ["r0"]},
    {"map": {**MAP, "round": 2, "first": "ab" * 32}, "tree": ["r0"]},
    {"map": {**MAP, "round": 2, "spent": 0.1}, "tree": ["r0"]},
    {"map": {**MAP, "round": 2, "spent": 0.1, "first": "ab" * 32}, "tree": ["r0"]},
]


def test_both_clients_refuse_the_same_tasks_with_the_same_words(city: City, client: Path) -> None:
    good = json.loads((city.folder / "task.json").read_text())
    texts = [json.dumps({**good, **entries}) for entries in WRONG]
    texts += [json.dumps({**good, "verify": good["leader"]}), "[]"]
    for name in ("verify", "end"):
        del good[name]
        texts.append(json.dumps(good))
    start = city.task.start
    refusals = [one.get("refusal") for one in reports(client, [case(text, HERE, start) for text in [*texts, "{"]])]
    for text, refusal in zip(texts, refusals, strict=False):
        with pytest.raises(RequestError) as refused:
            Task.parse(text)
        assert refusal == str(refused.value), text
    assert str(refusals[-1]).startswith("task: is no JSON (")


def test_both_clients_refuse_the_same_places_with_the_same_words(city: City, client: Path) -> None:
    text = (city.folder / "task.json").read_text()
    places = [{"longitude": 2.999, "latitude": 1.1}, {"longitude": 3.1, "latitude": 1.131}]
    found = reports(client, [case(text, place, city.task.start) for place in places])
    for place, one in zip(places, found, strict=True):
        with pytest.raises(RequestError) as refused:
            city.task.measurement(tuple(place.values()))
        assert one == {"refusal": str(refused.value)}
    weights = text_of(city, max_value=3)
    over = reports(client, [case(weights, [[3.05, 1.07, 4]], city.task.start), case(text, [], city.task.start)])
    with pytest.raises(RequestError) as refused:
        Task.parse(weights).circuit.encode([4] + [0] * 15)
    assert over[0] == {"refusal": str(refused.value)}
    assert over[1]["refusal"].startswith("weights: ")


def python_refusal(steps: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch) -> str | None:
    """Returns how the Python client refuses the last of these cases, after it answered the others."""
    kept = None
    try:
        for step in steps:
            monkeypatch.setattr("time.time", lambda now=step["now"]: now)
            kept = answer(Task.parse(bytes.fromhex(step["task"]).decode()), kept)
    except RequestError as error:
        assert step is steps[-1]
        return str(error)
    return None


def test_both_clients_follow_the_same_rounds(city: City, client: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = Task.parse(text_of(city, epsilon=0.3, tree=["r0"], map=MAP))
    second = first.next_round(Task.parse(text_of(city, tree=tree_of(16))).counted, 0.1)
    third = second.next_round(second.counted, 0.6)
    assert third.map is not None
    assert third.map.spent == 0.3 + 0.1
    rounds = [case(task.text, HERE, task.start) for task in (first, second, third)]
    forged = json.loads(second.text)
    forged["map"]["users"] = 1001
    steps = [*rounds, case(json.dumps(forged), HERE, second.start), {**rounds[0], "now": first.end}]
    steps.append(case((city.folder / "task.json").read_text(), HERE, city.task.start))
    histories = ([0], [0, 1], [0, 1, 2], [1], [0, 2], [0, 0], [0, 1, 0], [0, 1, 1], [0, 3], [4], [0, 5], [5, 5])
    found = reports(
        client, [{**steps[last], "answered": [steps[one] for one in before]} for *before, last in histories]
    )
    expected = [python_refusal([steps[one] for one in history], monkeypatch) for history in histories]
    assert [one.get("refusal") for one in found] == expected
    assert [one is None for one in expected] == [True] * 3 + [False] * 7 + [True, False]


def test_the_app_of_the_tutorial_sends_a_report(city: City, client: Path) -> None:
    (code,) = re.findall(r"```js\n(.*?)```", (ROOT / "docs/tutorials/two_servers.md").read_text(), flags=re.DOTALL)
    city.write_task(city.folder / "task.json", start="2000-01-01T00:00:00+00:00", end="2100-01-01T00:00:00+00:00")
    served = f"""
        import {{ readFileSync }} from "node:fs";
        const kept = {{}};
        const setItem = (key, value) => (kept[key] = value);
        globalThis.localStorage = {{ getItem: (key) => kept[key] ?? null, setItem }};
        globalThis.fetch = async (address, sent) => {{
          if (!sent) return new Response(readFileSync({json.dumps(str(city.folder / "task.json"))}));
          if (sent.method === "POST") process.stdout.write(Buffer.from(sent.body).toString("hex"));
        }};
    """
    app = code.replace('import { report } from "sfumato-client";', "const { report } = await import(process.argv[1]);")
    task = city.task
    content = bytes.fromhex(run_script(served + app, client))
    records, rest = Formats(task).parse(content, Formats(task).report)
    opened = open_records(task, LEADER, records, private_key(party_key(str(city.folder / "leader.key"))))
    assert (len(records), rest, opened.errors.tolist()) == (1, 0, [0])
