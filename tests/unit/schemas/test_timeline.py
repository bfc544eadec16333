"""Nights and limits of the timeline."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from typing import Any

import pytest

from sfumato.schemas.errors import RequestError
from sfumato.schemas.rotation import Rotation
from sfumato.schemas.timeline import DatedRelease, PlaceChange, Spending
from tests.rejections import rejects

MANIFEST: dict[str, Any] = {
    "release_id": "bay-2026-11-20",
    "job": "heatmap",
    "created": "2026-11-21T03:00:00+00:00",
    "privacy": {
        "epsilon": 0.5,
        "delta": 0.0,
        "population": {"users": 1234.5},
        "randomness": {"source": "key file", "safe": True},
    },
    "parameters": {"warm_start": {"release_id": "bay-2026-11-19", "epsilon": 0.5}},
}


def night(**changes: Any) -> DatedRelease:
    return replace(DatedRelease.from_manifest("2026-11-20", "releases/2026-11-20", MANIFEST, "maps/a.js"), **changes)


def changed(**privacy: Any) -> dict[str, Any]:
    return MANIFEST | {"privacy": MANIFEST["privacy"] | privacy}


def test_a_night_says_what_its_manifest_says() -> None:
    assert night() == DatedRelease(
        date="2026-11-20",
        release_id="bay-2026-11-20",
        folder="releases/2026-11-20",
        job="heatmap",
        epsilon=0.5,
        delta=0.0,
        users=1234.5,
        created="2026-11-21T03:00:00+00:00",
        warm_start="bay-2026-11-19",
        map="maps/a.js",
        safe=True,
    )
    assert night().map == "maps/a.js"


def test_what_a_manifest_does_not_say_is_not_made_up() -> None:
    bare = DatedRelease.from_manifest("2026-11-20", "x", changed(population=None) | {"parameters": {}})
    assert (bare.users, bare.warm_start, bare.map) == (None, None, None)
    assert DatedRelease.from_manifest("2026-11-20", "x", changed(population={"users": None})).users is None
    assert (
        DatedRelease.from_manifest("2026-11-20", "x", changed(population={"users": -3.0})).users == 0
    )  # a count with noise
    assert not DatedRelease.from_manifest("2026-11-20", "x", changed(randomness={"source": "seed"})).safe


@pytest.mark.parametrize("missing", ["release_id", "job", "created", "privacy"])
def test_a_manifest_without_a_promise_is_refused(missing: str) -> None:
    manifest = {name: value for name, value in MANIFEST.items() if name != missing}
    with pytest.raises(RequestError, match="releases/2026-11-20: cannot be shown on the timeline"):
        DatedRelease.from_manifest("2026-11-20", "releases/2026-11-20", manifest)


@pytest.mark.parametrize("privacy", [{"epsilon": None}, {"epsilon": float("nan")}, {"delta": -1.0}, {"randomness": []}])
def test_a_promise_that_makes_no_sense_is_refused(privacy: dict[str, Any]) -> None:
    with pytest.raises(RequestError, match="cannot be shown on the timeline"):
        DatedRelease.from_manifest("2026-11-20", "x", changed(**privacy))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("date", "2026-02-30"),
        ("date", "20 November"),
        ("folder", "../elsewhere"),
        ("folder", "/etc"),
        ("folder", "javascript:alert(1)"),
        ("folder", 'a"onclick="x'),
        ("map", "https://example.org/a.js"),
        ("map", "maps/../../a.js"),
        ("map", ""),
        ("epsilon", float("inf")),
        ("users", float("nan")),
    ],
)
def test_a_night_refuses(field: str, value: Any) -> None:
    with pytest.raises(ValueError, match=field if field != "date" else "date|day|month"):
        night(**{field: value})


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("epsilon", 0.0),
        ("epsilon", float("nan")),
        ("delta", 1.0),
        ("days", 0),
        ("spent", [("2026-11-20", float("nan"))]),
        ("spent", [("2026-11-20", 1.0), ("2026-11-19", 1.0)]),
        ("spent", [("2026-11-20", 1.0), ("2026-11-20", 1.0)]),
        ("spent", [("yesterday", 1.0)]),
    ],
)
def test_a_limit_refuses(field: str, value: Any) -> None:
    with pytest.raises(ValueError, match=field if field != "spent" else "spent|date"):
        replace(Spending(10.0, 0.0, 365, [("2026-11-20", 1.0)]), **{field: value})


NIGHTS: dict[str, Any] = {
    "night": "2026-11-20",
    "rests_on": ["2026-10-01:2026-11-03", "2026-11-05:2026-11-20"],
    "started_from": "bay-2026-11-19",
    "started_anew": None,
    "changes": [{"cell_ids": ["r0213"], "users": 2100.0, "low": 1500.0, "high": 2700.0, "expected": 150.0}],
    "parameters": {"drift": 0.02},
}


def rotated(**entries: Any) -> DatedRelease:
    rotation = {"cohort": 7, "cohorts": 30}
    manifest = changed(rotation=rotation) | {"nights": NIGHTS | entries}
    return DatedRelease.from_manifest("2026-11-20", "x", manifest)


def test_a_night_among_others_says_its_cohort_what_it_rests_on_and_what_changed() -> None:
    found = rotated(started_anew="The depth changed from 8 to 7.")
    assert found.rotation == Rotation(7, 30)
    assert found.rests_on == ("2026-10-01:2026-11-03", "2026-11-05:2026-11-20")
    assert found.started_anew == "The depth changed from 8 to 7."
    assert found.changes == (PlaceChange(("r0213",), 2100.0, 1500.0, 2700.0, 150.0),)
    assert (night().rotation, night().rests_on, night().started_anew, night().changes) == (None, None, None, None)


@pytest.mark.parametrize("one", [night(), rotated(), replace(rotated(changes=[]), rotation=Rotation(7, 30, "0" * 32))])
def test_a_night_is_read_from_json_as_it_was_written(one: DatedRelease) -> None:
    assert DatedRelease.from_json(json.loads(json.dumps(asdict(one)))) == one


@pytest.mark.parametrize(
    "entries",
    [
        {"rests_on": ["yesterday"]},
        {"rests_on": ["2026-11-05:2026-11-20", "2026-10-01:2026-11-03"]},
        {"rests_on": ["2026-11-01:2026-11-05", "2026-11-05:2026-11-20"]},
        {"rests_on": 7},
        {"changes": [{"cell_ids": ["r0213"]}]},
        {"changes": [NIGHTS["changes"][0] | {"cell_ids": ["r4"]}]},
        {"changes": [NIGHTS["changes"][0] | {"cell_ids": ['r"onclick="x']}]},
        {"changes": [NIGHTS["changes"][0] | {"users": float("nan")}]},
        {"changes": [NIGHTS["changes"][0] | {"low": 3000.0}]},
        {"changes": None},
    ],
)
def test_entries_on_nights_that_make_no_sense_are_refused(entries: dict[str, Any]) -> None:
    with rejects("x"):
        rotated(**entries)


@pytest.mark.parametrize("rotation", [{"cohort": 31, "cohorts": 30}, {"cohort": 1}, {"cohort": 1, "cohorts": 0}, []])
def test_a_cohort_that_makes_no_sense_is_refused(rotation: Any) -> None:
    manifest = changed(rotation=rotation or {"cohort": 0, "cohorts": 30})
    with pytest.raises(RequestError, match="cannot be shown on the timeline"):
        DatedRelease.from_manifest("2026-11-20", "x", manifest)


@pytest.mark.parametrize(
    ("epsilon", "spent", "left"), [(1.0, 1.0, 0.0), (0.3, 0.1, 0.2), (1.0, 0.0, 1.0), (1.0, 1.2, 0.0)]
)
def test_what_a_limit_leaves_has_no_rounding_errors(epsilon: float, spent: float, left: float) -> None:
    assert Spending(epsilon, 0.0, 30, []).left(spent) == left
