"""Options as people write them: sizes, limits, periods, slots, configurations; errors name their option."""

from __future__ import annotations

import ast
from datetime import date, datetime
from decimal import Decimal
from typing import Any

import pandas as pd
import pytest

from sfumato.schemas.errors import LedgerError, RequestError
from sfumato.schemas.known_digits import parse_memory
from sfumato.schemas.ledger import Limit, Period, format_amount, parse_amount, parse_day
from sfumato.schemas.locations import LocationColumns
from sfumato.schemas.refresh import RefreshConfig
from sfumato.schemas.requests.publish_request import ReleaseRequest
from sfumato.schemas.slots import Slots, check_time_zone
from sfumato.transforms.heatmap.request import HeatmapRequest
from sfumato.transforms.privacy.budget import check_epsilon
from tests import ROOT
from tests.rejections import rejects
from tests.unit.schemas.cases import each

# Errors that are about an option or a file; the others are about a run, or about users.
KINDS = {"RequestError", "FormatError", "LedgerError", "BudgetError"}
# Wrapped by whoever knows the option, or about the command line as a whole.
WITHOUT = {
    "no file matches ", "the folder ", "no job named ", "unknown option ", "no credentials for Google Cloud",

    "column ", "there are none", "the release's manifest ", "a release of `sfumato heatmap`", "second_",
    "delta:", "iceberg:", "FILE: ", "format "
}  # fmt: skip


@pytest.mark.parametrize(
    ("message", "option", "file"),
    [
        ("epsilon: must be > 0, got 0", "epsilon", None),
        ("log.parquet: cannot be opened", None, "log.parquet"),
        ("region, column: give one of them", "region, column", None),
        ("h3 and quadkey: give one of them", "h3 and quadkey", None),
        ("zones: city.geojson: damaged", "zones", None),
        ("gs://bucket/release: no release found", None, "gs://bucket/release"),
        ("/tmp/a/release: cells.parquet: is damaged", None, "/tmp/a/release"),
        ("too few users: none of 3 shards had the required 40 survivors", None, None),
        ("nothing is said of it", None, None),
    ],
)
def test_an_error_names_its_option_or_its_file(message: str, option: str | None, file: str | None) -> None:
    error = LedgerError(message)
    assert (error.option, error.file, str(error)) == (option, file, message)


def _heads() -> list[tuple[str, str]]:
    """How the messages in the product begin: where they stand, and their first words, {} for a value."""
    found = []
    for folder in ("api", "pipelines", "transforms", "schemas"):
        for path in (ROOT / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in KINDS):
                    continue
                first = node.args[0]
                parts = first.values if isinstance(first, ast.JoinedStr) else [first]
                texts = [str(one.value) if isinstance(one, ast.Constant) else "{}" for one in parts]
                found.append((f"{path.relative_to(ROOT)}:{node.lineno}", "".join(texts)))
    return found


def test_every_message_begins_with_what_it_is_about() -> None:
    heads = _heads()
    assert len(heads) > 500
    bad = [
        (place, head)
        for place, head in heads
        if RequestError(head).option is None and not head.startswith("{}") and not head.startswith(tuple(WITHOUT))
    ]
    assert bad == []


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("1.5G", 1_500_000_000),
        ("2GB", 2_000_000_000),
        ("1GiB", 1 << 30),
        ("3 T", 3 * 10**12),
        (42, 42),
    ],
)
def test_sizes(text: str | int, size: int) -> None:
    assert parse_memory(text) == size


@pytest.mark.parametrize("text", ["", "-1G", "1.5 gigabytes", "1i", "0.1", "nan"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with rejects("memory"):
        parse_memory(text)


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
        "10/0d",
        "0/1d",
        "nan/1d",
        "1:1/1d",
        "1/99999d",
        "1/1d,2/1d",
        "x/1d",
    ],
)
def test_limits_that_are_none(text: str) -> None:
    with rejects("budget"):
        Limit.parse_all(text)


def test_periods() -> None:
    assert str(Period.parse("2026-11-20")) == "2026-11-20"
    days = [str(one) for one in Period.parse("2026-02-27:2026-03-01").days()]
    assert days == ["2026-02-27", "2026-02-28", "2026-03-01"]
    for text in ("", "20261120", "2026-11-31", "2026-11-20:", "2026-11-20:2026-11-19", "tomorrow", "2026-1-1"):
        with rejects("period"):
            Period.parse(text)
    with rejects("date"):
        parse_day("date", "x")


@pytest.mark.parametrize(
    ("text", "written"),
    [("16/11/2026", "write 2026-11-16"), ("6.10.2026", "write 2026-10-06 or 2026-06-10"), ("16/16/2026", "2026'")],
)
def test_a_date_of_another_order_is_rewritten(text: str, written: str) -> None:
    with rejects("period") as caught:
        Period.parse(text)
    assert str(caught.value).endswith(written)


@pytest.mark.parametrize("separator", ["-", "..", "/", " to ", ",", " : "])
def test_two_dates_of_another_form_are_rewritten(separator: str) -> None:
    with rejects("period") as caught:
        Period.parse(f"2026-11-09{separator}2026-11-13")
    assert str(caught.value).endswith("write 2026-11-09:2026-11-13")


NOON = datetime(2026, 11, 16, 12)


@pytest.mark.parametrize(
    ("period", "days"),
    [
        (NOON.date(), 1),
        (pd.Timestamp(NOON), 1),
        ((NOON.date(), "2026-11-18"), 3),
        ([pd.Timestamp(NOON), date(2026, 11, 17)], 2),
    ],
)
def test_days_and_hours_may_be_python_values(period: Any, days: int) -> None:
    values = {"input": "a", "output": "b", "day_column": "time", "period": period, "hours": (8, 9)}
    request = ReleaseRequest.of(values)
    assert request.period is not None
    assert (str(request.period.first), request.period.length, request.hours) == ("2026-11-16", days, "8-9")
    for name, value in (("hours", (8, 9, 10)), ("period", (NOON, NOON, NOON)), ("period", ())):
        with rejects(name):
            ReleaseRequest.of({**values, name: value})


@pytest.mark.parametrize("epsilon", ["0", "-1"])
def test_an_epsilon_of_0_has_usual_values(epsilon: str) -> None:
    with pytest.raises(RequestError, match=r"^epsilon: must be .*; usual values are .*--epsilon 1$"):
        HeatmapRequest.of({"input": "a", "output": "b", "region": "0,0,1,1", "epsilon": epsilon})
    with pytest.raises(RequestError, match=r"^epsilon: must be .*; usual values are .*--epsilon 1$"):
        check_epsilon(float(epsilon))


def test_a_decimal_comma_is_rewritten() -> None:
    with rejects("max_bad_fraction") as caught:
        HeatmapRequest.of({"input": "a", "output": "b", "region": "0,0,1,1", "max_bad_fraction": "0,5"})
    assert str(caught.value).endswith("write 0.5")


def test_amounts_are_the_decimals_that_people_wrote() -> None:
    assert sum([parse_amount("epsilon", 0.1)] * 10) == 1
    for number, text in ((1.0, "1"), (10.0, "10"), (1e-8, "1e-8"), (0.0, "0"), (0.25, "0.25")):
        assert format_amount(parse_amount("epsilon", number)) == text
    for text in ("0.1", "1e-12", "123.456", "0.0001", "0.00009", "1E+2", "3e-10"):
        assert Decimal(format_amount(Decimal(text))) == Decimal(text)
    for bad in (float("nan"), float("inf"), -1.0, "much"):
        with rejects("epsilon"):
            parse_amount("epsilon", bad)


GOOD: dict[str, Any] = {
    "dataset": "taxis",
    "input": "logs",
    "output": "./published",
    "ledger": "/var/lib/ledger.db",
    "key_file": "../key",
    "budget": [{"epsilon": 10, "delta": "1e-6", "days": 365}, {"epsilon": 1, "days": 1}],
    "options": {"region": "-1,50,1,51"},
}


def test_places_are_relative_to_the_file() -> None:
    config = RefreshConfig.read(GOOD, "/etc/sfumato")
    assert (config.input, config.output, config.ledger, config.key_file) == (
        "/etc/sfumato/logs",
        "/etc/sfumato/published",
        "/var/lib/ledger.db",
        "/etc/key",
    )
    remote = RefreshConfig.read({**GOOD, "key_file": "gs://private/key"}, "gs://bucket/jobs/")
    assert (remote.input, remote.output) == ("gs://bucket/jobs/logs", "gs://bucket/jobs/published")
    assert remote.key_file == "gs://private/key"


def test_limits_and_defaults() -> None:
    config = RefreshConfig.read(GOOD, "/")
    assert [(limit.epsilon, limit.delta, limit.days) for limit in config.budget] == [
        (Decimal(1), Decimal(0), 1),
        (Decimal(10), Decimal("1e-6"), 365),
    ]
    assert (config.job, config.warm_start, config.min_users, config.runner_config) == ("heatmap", True, 0, None)


@pytest.mark.parametrize(
    ("key", "change"),
    each(
        {
            "unknown key": ({"datset": "taxis"}, {"wram_start": True}, {"zzz": 1}, {3: 1}),
            "dataset": [{"dataset": bad} for bad in (None, 7, "my taxis")],
            "input": [{"input": bad} for bad in ("logs/*", ["logs"])],
            "output": ({"output": "s3://bucket/x"},),
            "runner_config": ({"runner_config": "ftp://x.yaml"},),
            "key_secret": ({"key_secret": 5, "key_file": None},),
            "beam": ({"beam": ["x"]},),
            "min_users": [{"min_users": bad} for bad in (1.0, -1, True, "many")],
            "key_file, key_secret": ({"key_file": None}, {"key_secret": "projects/p/secrets/s/versions/1"}),
            "budget": [
                *({"budget": bad} for bad in (None, {"epsilon": 1}, [])),
                *(
                    {"budget": [bad]}
                    for bad in ({"epsilon": 1, "dayz": 1}, {"epsilon": 1}, {"epsilon": 1, "days": 1.5})
                ),
                *({"budget": [{"epsilon": bad, "days": 1}]} for bad in (0, float("nan"))),
                {"budget": [{"epsilon": 1, "days": 1}, {"epsilon": 2, "days": 1}]},
            ],
            "warm_start": ({"warm_start": "yes"},),
            "options": ({"options": None}, {"options": "depth=4"}),
        }
    ),
)
def test_bad_configurations_are_refused_by_key(key: str, change: dict[Any, Any]) -> None:
    with rejects("config") as caught:
        RefreshConfig.read({**GOOD, **change}, "/")
    assert str(caught.value).startswith(f"config: {key}")


@pytest.mark.parametrize("settings", [None, [], "text", 3])
def test_a_file_that_holds_no_map(settings: Any) -> None:
    with rejects("config"):
        RefreshConfig.read(settings, "/")


@pytest.mark.parametrize(
    ("text", "count", "first", "last"),
    [
        ("hour", 24, "00-01 h", "23-24 h"),
        ("hour_of_week", 168, "Monday 00-01 h", "Sunday 23-24 h"),
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
    "text",
    [
        *("", "edges", "0,24", "7,10,16", "0,7,7,24", "0,a,24", "0,nan,24", "0,7.3333,24"),
        ",".join(map(str, range(25))) + ",23.5",
    ],
)
def test_bad_slots_are_refused(text: str) -> None:
    with rejects("slots"):
        Slots.parse("t", text, "UTC")


@pytest.mark.parametrize("zone", ["Asia/Tokio", "../etc/passwd", ""])
def test_bad_time_zones_are_refused(zone: str) -> None:
    with rejects("time_zone"):
        Slots.parse("t", "hour", zone)


@pytest.mark.parametrize(
    ("name", "zone"),
    [("Europe/Gothenburg", "Europe/Stockholm"), ("munich", "Europe/Berlin"), ("Granada", "Europe/Madrid")],
)
def test_a_city_without_a_zone_of_its_name_has_one(name: str, zone: str) -> None:
    with rejects("time_zone") as caught:
        check_time_zone("time_zone", name)
    assert zone in str(caught.value)


def test_days_are_local_unless_a_zone_is_given() -> None:
    values = {"input": "-", "output": "-", "day_column": "t", "hours": "8-9"}
    assert "in local time, as in the logs" in str(Published.of(values).day_rows)
    assert "in Asia/Tokyo" in str(Published.of({**values, "time_zone": "Asia/Tokyo"}).day_rows)


def test_location_columns_bound_the_records_of_a_user() -> None:
    slots = Slots("time", "edges", "UTC", (0, 8, 16, 24))
    assert LocationColumns(slots=slots, records_per_user=3).records_per_user == 3
    for columns in ({"slots": slots, "records_per_user": 4}, {"records_per_user": 2}):
        with rejects("records_per_user"):
            LocationColumns(**columns)


class Published(ReleaseRequest):
    JOB = "published"


CHARGED = {"input": ("a.parquet",), "output": "release", "ledger": "ledger.db", "dataset": "rides"}
CHARGED |= {"period": "2026-11-17", "key_file": "key"}


@pytest.mark.parametrize(
    ("changes", "option"),
    [
        ({"seed": 1, "key_file": None}, "seed"),  # its noise can be taken away again
        ({"key_file": None}, "key_file"),
        ({"period": None}, "period"),
        ({"ledger": None}, "dataset"),
    ],
)
def test_a_ledger_needs_what_it_charges_and_a_kept_key(changes: dict[str, Any], option: str) -> None:
    assert Published.of(CHARGED).ledger == "ledger.db"
    with rejects(option):
        Published.of({name: value for name, value in (CHARGED | changes).items() if value is not None})


@pytest.mark.parametrize("title", ["", " ", "two\nlines", "x" * 101, "\x1b[31mred"])
def test_a_title_is_one_printable_line(title: str) -> None:
    with rejects("title"):
        ReleaseRequest.of({"input": "in", "output": "out", "title": title})


def test_a_title_shapes_no_number() -> None:
    """The key, and so the noise, stays the same under another title."""
    plain, titled = (ReleaseRequest.of({"input": "in", "output": "out", **more}) for more in ({}, {"title": " Buses "}))
    assert titled.title == "Buses"
    assert plain.shaping() == titled.shaping()
