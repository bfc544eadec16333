"""Limits, periods and amounts as people write them."""

from __future__ import annotations

from decimal import Decimal

import pytest

from sfumato.schemas.errors import RequestError
from sfumato.schemas.ledger import Limit, Period, format_amount, parse_amount, parse_day
from tests.rejections import rejects


def test_limits_as_they_are_written() -> None:
    limits = Limit.parse_all("10:1e-6/365d, 1/1d")
    assert [str(limit) for limit in limits] == ["1/1d", "10:1e-6/365d"]
    assert limits[1] == Limit(Decimal(10), Decimal("1e-6"), 365)
    assert limits[0].describe() == "epsilon 1 in 1 day"
    assert Limit.parse_all(",".join(map(str, limits))) == limits


@pytest.mark.parametrize(
    "text",
    [
        "",
        "10",
        "10/365",
        "10/0d",
        "0/1d",
        "-1/1d",
        "nan/1d",
        "inf/1d",
        "1:1/1d",
        "1:-1/1d",
        "1/99999d",
        "1/1d,2/1d",
        "x/1d",
    ],
)
def test_limits_that_are_none(text: str) -> None:
    with pytest.raises(RequestError, match="budget"):
        Limit.parse_all(text)


def test_periods() -> None:
    assert str(Period.parse("2026-11-20")) == "2026-11-20"
    assert [str(one) for one in Period.parse("2026-02-27:2026-03-01").days()] == [
        "2026-02-27",
        "2026-02-28",
        "2026-03-01",
    ]
    for text in ("", "20261120", "2026-11-31", "2026-11-20:", "2026-11-20:2026-11-19", "tomorrow", "2026-1-1"):
        with pytest.raises(RequestError, match="period"):
            Period.parse(text)
    with rejects("date"):
        parse_day("date", "x")


def test_amounts_are_the_decimals_that_people_wrote() -> None:
    assert sum([parse_amount("epsilon", 0.1)] * 10) == 1
    assert format_amount(parse_amount("epsilon", 1.0)) == "1"
    assert format_amount(parse_amount("epsilon", 10.0)) == "10"
    assert format_amount(parse_amount("delta", 1e-8)) == "1e-8"
    assert format_amount(parse_amount("delta", 0.0)) == "0"
    assert format_amount(parse_amount("epsilon", 0.25)) == "0.25"
    for bad in (float("nan"), float("inf"), -1.0, "much"):
        with pytest.raises(RequestError, match="epsilon"):
            parse_amount("epsilon", bad)


def test_plain_is_read_back_exactly() -> None:
    for text in ("0.1", "1e-12", "123.456", "0.0001", "0.00009", "1E+2", "3e-10"):
        assert Decimal(format_amount(Decimal(text))) == Decimal(text)
