"""Tests of benchmarks/month.py and benchmarks/month_year.py: they run, and their tables say what was found."""

from dataclasses import replace
from datetime import date, timedelta
from pathlib import Path

import numpy as np
import pytest

from benchmarks import month
from benchmarks.city_nights import Crowd, make_nights
from benchmarks.month_ways import REFERENCE, WAYS, Publisher, publish_all
from sfumato.schemas.trust import Trust

SMALL = replace(month.QUICK, people=10_000, nights=3, learned=1)


def test_all_parts_print_their_tables(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(month, "QUICK", replace(SMALL, users=20_000, year=3))
    monkeypatch.setattr(month, "SIZES", (500,))
    monkeypatch.setattr(
        month, "ways_of", lambda trust: (WAYS[5], *month.GAUSSIAN_WAYS[1:2]) if trust == Trust.CENTRAL else WAYS[5:6]
    )
    monkeypatch.setattr("sys.argv", ["month", "--quick", "--seeds", "1", "--plot", str(tmp_path)])
    month.main()
    printed = capsys.readouterr().out
    assert printed.count("1 of 30 cohorts, posterior") >= 8
    assert "nan" not in printed
    assert (tmp_path / "month.png").read_bytes()[:4] == b"\x89PNG"


def test_unknown_part_is_refused(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.argv", ["month", "--only", "town"])
    with pytest.raises(SystemExit):
        month.main()
    assert "town" in capsys.readouterr().err


def test_nights_again_have_no_event_on_them_or_on_the_next() -> None:
    numbers = month.nights_again(month.Size())
    assert len(numbers) == len(set(numbers)) == month.Size().again
    for number in numbers:
        days = [month.FIRST + timedelta(number), month.FIRST + timedelta(number + 1)]
        assert number >= month.Size().learned
        assert not any(month.is_event(day) for day in days)
    assert month.is_event(date(2026, 11, 7))  # the city's own
    assert all(month.is_event(day) for day in month.CROWDS)


def test_ratios_are_errors_over_the_reference() -> None:
    nights = make_nights(SMALL.days, SMALL.people, 0)
    maps, _ = publish_all(nights, [Publisher(way, Trust.SECAGG) for way in (REFERENCE, WAYS[3])])
    made = month.Month(WAYS[3], SMALL.days, np.array([False, True, True]), maps[1], maps[0])
    for at, night in enumerate(nights):
        errors = [((one[at].density - night.expected) ** 2).mean() for one in maps[::-1]]
        assert made.ratios("expected")[at] == pytest.approx(errors[0] / errors[1])
        errors = [((one[at].density - night.exact()) ** 2).mean() for one in maps[::-1]]
        assert made.ratios("exact")[at] == pytest.approx(errors[0] / errors[1])


def test_place_of_a_crowd_is_within_two_radii() -> None:
    crowd = Crowd((7.0, 3.5), 10)
    place = month.near(crowd)
    assert 0.98 < crowd.density()[place].sum() <= 1
    rows, columns = np.nonzero(place)
    assert (np.abs(rows - 31.5).max(), np.abs(columns - 63.5).max()) == (5.5, 5.5)  # 600 m are 5.49 cells
