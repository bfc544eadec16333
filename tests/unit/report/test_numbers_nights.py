"""What pages say of a night among others, against a brute force over days."""

from __future__ import annotations

from datetime import date, timedelta

import pytest
from numpy.random import default_rng

from sfumato.schemas.rotation import Rotation
from sfumato.schemas.timeline import PlaceChange
from sfumato.transforms.report.numbers import changes_table, night_sentences, rests_sentence, spoken, times


def test_cohorts_are_named_and_all_users_are_not() -> None:
    (text,) = night_sentences(Rotation(7, 30), None)
    assert text.startswith("Cohort 7 of 30 was asked. The counts are scaled to all users")
    assert night_sentences(Rotation(1, 1), None) == night_sentences(None, None) == night_sentences(None, ()) == []


@pytest.mark.parametrize(
    ("rests_on", "text"),
    [
        (["2026-11-20"], "of this night alone, 20 November 2026."),
        (["2026-10-01:2026-11-20"], "of 51 nights, 1 October to 20 November 2026."),
        (
            ["2026-10-01:2026-11-03", "2026-11-05:2026-11-20"],
            "of 50 nights, 1 October to 20 November 2026, without 4 November.",
        ),
        (
            ["2026-11-01", "2026-11-03", "2026-11-06:2026-11-07"],
            "of 4 nights, 1 November to 7 November 2026, without 2 November, 4 November and 5 November.",
        ),
        (["2026-11-01", "2026-11-09"], "of 2 nights, 1 November to 9 November 2026, without 7 nights between them."),
        (
            ["2025-12-30:2025-12-31", "2026-01-02:2026-01-03"],
            "of 4 nights, 30 December 2025 to 3 January 2026, without 1 January 2026.",
        ),
    ],
)
def test_the_nights_of_an_estimate_are_counted_and_gaps_named(rests_on: list[str], text: str) -> None:
    assert rests_sentence(rests_on) == f"The estimate rests on the answers {text}"


@pytest.mark.parametrize("seed", range(8))
def test_nights_and_missing_nights_add_up_to_the_span(seed: int) -> None:
    rng = default_rng(seed)
    first = date(2026, 1, 1)
    is_there = rng.random(60) < 0.9
    is_there[[0, -1]] = True
    rests_on, start = [], None
    for number in range(61):
        if number < 60 and is_there[number]:
            start = number if start is None else start
        elif start is not None:
            rests_on.append(f"{first + timedelta(start)}:{first + timedelta(number - 1)}")
            start = None
    text = rests_sentence(rests_on)
    missing = [first + timedelta(number) for number in range(60) if not is_there[number]]
    assert f"{60 - len(missing)} nights" in text
    if len(missing) > 4:
        assert f"without {len(missing)} nights between them." in text
    else:
        assert all(f"{day.day} {day:%B}" in text.partition("without")[2] for day in missing)


def test_a_new_start_gives_its_reason() -> None:
    texts = night_sentences(None, ["2026-11-20"], "The region changed.")
    assert texts[1:] == ["It was started anew. The region changed."]


def test_the_places_that_differ_most_come_first_with_the_digits_that_are_known() -> None:
    changes = [PlaceChange(("r1",), 310.0, 120.0, 500.0, 640.0), PlaceChange(("r0213",), 2100.0, 1500.0, 2700.0, 150.0)]
    assert changes_table(changes).rows == [
        ["r0213", "2,100", "1,500", "2,700", "150"],
        ["r1", "300", "100", "500", "640"],
    ]


def test_words_of_dates_and_numbers() -> None:
    assert spoken("2026-11-05") == "5 November 2026"
    assert [times(number) for number in (0, 1, 2, 3, 1000)] == ["never", "once", "twice", "3 times", "1,000 times"]
