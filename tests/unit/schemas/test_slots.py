"""Slots of local time: their names and number, and clear answers to bad ones."""

from __future__ import annotations

import pytest

from sfumato.schemas.errors import RequestError
from sfumato.schemas.slots import Slots


@pytest.mark.parametrize(
    ("text", "count", "first", "last"),
    [
        ("hour", 24, "00-01 h", "23-24 h"),
        ("weekday", 7, "Monday", "Sunday"),
        ("hour_of_week", 168, "Monday 00-01 h", "Sunday 23-24 h"),
        ("0,7,10,16,19,24", 5, "00-07 h", "19-24 h"),
        ("0, 7.5, 24", 2, "00-07:30 h", "07:30-24 h"),
    ],
)
def test_a_text_gives_slots_with_names(text: str, count: int, first: str, last: str) -> None:
    slots = Slots.parse("t", text, "Asia/Tokyo")
    assert (len(slots), len(slots.names), len(set(slots.names))) == (count, count, count)
    assert (slots.names[0], slots.names[-1]) == (first, last)
    assert all(0 <= slot <= count for slot, _ in slots.ticks)
    assert slots.metadata()["time_zone"] == "Asia/Tokyo"


@pytest.mark.parametrize(
    ("text", "zone", "message"),
    [
        ("hours", "UTC", r"slots: .*did you mean hour\?"),
        ("", "UTC", "slots: must be hour"),
        ("edges", "UTC", "slots: edges are ascending"),
        ("0,24", "UTC", "slots: edges are ascending"),
        ("7,10,16", "UTC", "slots: edges are ascending"),
        ("0,10,7,24", "UTC", "slots: edges are ascending"),
        ("0,7,7,24", "UTC", "slots: edges are ascending"),
        ("0,a,24", "UTC", "slots: edges are numbers of hours"),
        ("0,nan,24", "UTC", "slots: edges"),
        ("0,7.3333,24", "UTC", "slots: edges are at most 25, in hours or whole minutes"),
        ("hour", "Asia/Tokio", r"time_zone: no time zone is named 'Asia/Tokio'; did you mean Asia/Tokyo\?"),
        ("hour", "../etc/passwd", "time_zone: no time zone"),
        ("hour", "", "time_zone: no time zone"),
    ],
)
def test_bad_slots_get_an_answer_that_names_the_option(text: str, zone: str, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        Slots.parse("t", text, zone)
