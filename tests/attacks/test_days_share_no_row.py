"""Releases of neighbouring days may read one file without paying twice, only because no row of it is in both."""

from __future__ import annotations

from datetime import date, timedelta
from pathlib import Path
from typing import Any
from zoneinfo import available_timezones

import numpy as np
import pyarrow as pa
import pytest

from sfumato.schemas.ledger import Limit
from sfumato.schemas.log_layout import DayRows
from sfumato.transforms.inputs.local_time import of_days
from sfumato.transforms.privacy.ledger.ledger import ReusedFileError
from tests.seeds import seeded_rng
from tests.unit.privacy.ledger.helpers import charge, ledger

FILES: dict[str, Any] = {"files": ("0" * 32,)}
BY = "time Europe/Berlin"


@pytest.mark.parametrize("zone", sorted(available_timezones())[::40])
def test_every_row_is_of_one_day_of_a_zone(zone: str) -> None:
    rng = seeded_rng(5)
    seconds = pa.array(rng.integers(-(10**9), 2 * 10**9, 2000))
    first = date(2026, 3, 27)
    near = pa.array(rng.integers(1774500000, 1774500000 + 8 * 86400, 5000))
    for column, days in ((near, [first + timedelta(days=one) for one in range(-2, 12)]),):
        counted = sum(of_days(column, DayRows("time", zone, day, day))[0].astype(int) for day in days)
        assert (np.asarray(counted) == 1).all()
    kept, before, after = of_days(seconds, DayRows("time", zone, first, first + timedelta(days=6)))
    assert kept.sum() + before + after == len(seconds)


def test_days_that_share_no_row_share_a_file(tmp_path: Path) -> None:
    book = ledger(tmp_path)
    for day in ("2026-03-28", "2026-03-29"):
        book.reserve(charge(day, day, rows_by=BY, **FILES), Limit.parse_all("1/1d,2/30d"))
    charges = book.history(with_limits=True).charges
    assert [(str(one.period), one.rows_by, one.also_charged) for one in charges] == [
        ("2026-03-28", BY, ()), ("2026-03-29", BY, ()),
    ]  # fmt: skip


@pytest.mark.parametrize(
    "other",
    [
        {"rows_by": "time Europe/Lisbon"},  # an hour would be in both days
        {"rows_by": "created Europe/Berlin"},
        {},  # all rows
        {"rows_by": BY, "dataset": "other"},
    ],
)
@pytest.mark.parametrize("swapped", [False, True])
def test_all_else_shares_rows_and_is_refused(tmp_path: Path, other: dict[str, Any], swapped: bool) -> None:
    book = ledger(tmp_path)
    pair = [{"rows_by": BY}, other]
    first, second = pair[::-1] if swapped else pair
    book.reserve(charge("one", "2026-03-28", **first, **FILES), Limit.parse_all("9/1d"))
    with pytest.raises(ReusedFileError):
        book.reserve(charge("two", "2026-03-29", **second, **FILES), Limit.parse_all("9/1d"))
    book.reserve(charge("two", "2026-03-29", **second, **FILES), Limit.parse_all("9/1d"), allow_reuse=True)
    assert len(book.history().charges) == 3  # the second counts for both days


def test_periods_that_overlap_add_up(tmp_path: Path) -> None:
    book = ledger(tmp_path)
    book.reserve(charge("one", "2026-03-28:2026-03-29", rows_by=BY, **FILES), Limit.parse_all("1/1d"))
    with pytest.raises(Exception, match="exceeds it"):
        book.reserve(charge("two", "2026-03-29:2026-03-30", rows_by=BY, **FILES), ())
