"""What `sfumato inspect` finds in logs, against counts by hand."""

from __future__ import annotations

from collections import Counter
from dataclasses import astuple
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from sfumato.pipelines.operations.log_causes import causes, date_order, suggested_form
from sfumato.pipelines.operations.log_facts import Facts, inspect_logs
from sfumato.pipelines.operations.log_places import bound_of, shares_text, suggested_region
from sfumato.schemas.errors import DataError
from sfumato.schemas.log_layout import LogLayout
from sfumato.schemas.log_roles import check_unit, find_roles, ids_among
from sfumato.schemas.rectangle import Region
from sfumato.transforms.inputs.log_file import LogFile
from tests.rejections import rejects
from tests.seeds import seeded_rng

ROWS = 5000


def rides(**changes: Any) -> pd.DataFrame:
    """Returns 5,000 rides of some 400 riders around 52.5 N, 13.4 E, with some columns changed."""
    rng = seeded_rng(7)
    log = pd.DataFrame(
        {
            "ride": np.arange(ROWS),
            "rider": [f"r{number}" for number in rng.integers(0, 400, ROWS)],
            "lat": (52.5 + 0.05 * rng.standard_normal(ROWS)).round(6),
            "lon": (13.4 + 0.08 * rng.standard_normal(ROWS)).round(6),
            "time": pd.Timestamp("2026-11-20T08:00") + pd.to_timedelta(np.arange(ROWS), unit="s"),
        }
    )
    return log.assign(**changes)


def facts_of(log: pd.DataFrame, folder: Path, suffix: str = "csv", region: Region | None = None, **given: str) -> Facts:
    path = folder / f"log.{suffix}"
    if suffix == "csv":
        log.to_csv(path, index=False)
    else:
        log.to_parquet(path)
    return inspect_logs([LogFile(str(path))], given, region)


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_inspect_logs_counts_rows_users_and_unusable(tmp_path: Path, suffix: str) -> None:
    log = rides()
    log.loc[log.index[:30], "rider"] = None
    log.loc[log.index[30:80], "lat"] = np.nan
    log.loc[log.index[80:90], "lon"] = 200.0
    log.loc[log.index[90:110], ["lat", "lon"]] = 0.0
    facts = facts_of(log, tmp_path, suffix)
    each = log.rider.value_counts()
    assert (facts.rows, facts.users) == (ROWS, len(each))
    assert facts.rows_a_user[2] == each.max()
    assert facts.rows_a_user[0] in (int(np.floor(each.median())), int(np.ceil(each.median())))
    assert list(facts.unusable.values()) == [30, 50, 10]
    assert (facts.signs["at 0, 0"], facts.signs["naive"]) == (20, ROWS)
    assert causes(facts) == []


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"lat": lambda log: log.lat.astype(str).str.replace(".", ",")}, "decimal commas"),
        ({"lat": lambda log: log.lat * 1e5, "lon": lambda log: log.lon * 1e5}, "a projected grid"),
        ({"lat": 113.4, "lon": 22.5}, "swapped"),
        ({"time": lambda log: log.time.dt.strftime("%m/%d/%Y %H:%M")}, "11/27/2026"),
        ({"time": lambda log: log.time.dt.strftime("%d.%m.%Y %H:%M")}, "27.11.2026"),
        ({"time": "yesterday"}, "no time"),
        ({"rider": lambda log: log.ride}, "occurs once"),
        ({"rider": lambda log: log.ride.clip(lower=20)}, "occurs once"),  # but for some rows
        ({"rider": lambda log: log.ride % 4900}, "occurs once"),  # but for rows that are there twice
        ({"rider": "app"}, "one value"),
        ({"person_id": lambda log: log.rider, "rider": lambda log: log.ride % 3}, "perhaps person_id"),
    ],
)
def test_causes_names_the_one_that_applies(tmp_path: Path, changes: dict[str, Any], word: str) -> None:
    (cause,) = causes(facts_of(rides(**changes), tmp_path))
    assert word in cause


def test_some_swapped_rows_are_named_and_move_no_border(tmp_path: Path) -> None:
    log, plain = rides(), facts_of(rides(), tmp_path)
    some = log.rider.isin(log.rider.unique()[:4])
    log.loc[some, ["lat", "lon"]] = [13.4, 52.5]  # the middle of all places, swapped
    facts = facts_of(log, tmp_path)
    assert plain.swapped == 0
    assert facts.swapped == pytest.approx(4 / log.rider.nunique())
    (cause,) = causes(facts)
    assert "swapped" in cause
    assert facts.region is not None
    assert plain.region is not None
    assert np.abs(np.subtract(astuple(facts.region), astuple(plain.region))).max() < 0.5


def test_rows_without_their_sign_are_counted_and_named(tmp_path: Path) -> None:
    log = rides(lon=lambda one: -one.lon)
    region = facts_of(log, tmp_path).region
    log.loc[log.index[::50], "lon"] *= -1
    log.loc[log.index[1::500], "lat"] *= -1
    facts = facts_of(log, tmp_path)
    assert facts.signless == pytest.approx(0.022, abs=0.002)  # but for the few at the region's edges
    assert facts.region == region
    (cause,) = causes(facts)
    assert "another sign" in cause
    assert facts_of(rides(), tmp_path).signless == 0


def test_bounds_of_places_keep_the_counted_visits(tmp_path: Path) -> None:
    """Against a count by hand: 300 users at up to five places, 0.1 degrees apart, on up to three days."""
    rng = seeded_rng(11)
    user, place, day = rng.integers(0, 300, ROWS), rng.integers(0, 5, ROWS), rng.integers(0, 3, ROWS)
    hour = rng.integers(7, 10, ROWS)
    time = pd.Timestamp("2026-11-20") + pd.to_timedelta(24 * day + hour, unit="h")
    facts = facts_of(rides(rider=user, lat=50.0005 + 0.1 * place, lon=9.0005, time=time), tmp_path)
    for shares, kept in ((facts.shares_then, hour == 8), (facts.shares_all_day, hour > 0)):
        visits = {(u, p, d) for u, p, d in zip(user[kept], place[kept], day[kept], strict=True)}
        days = Counter((u, p) for u, p, _ in visits)
        best = {u: sorted((days[u, p] for p in range(5)), reverse=True) for u in range(300)}
        expected = [sum(sum(one[:bound]) for one in best.values()) / len(visits) for bound in range(1, 11)]
        assert shares == pytest.approx(expected)
    assert facts.places_a_user == bound_of(facts.shares_then) == 5
    assert facts.users_then == len(set(user[hour == 8]))
    assert bound_of([]) == 1
    assert shares_text([0.8, 0.95, 0.9985, 1]) == "95.0% with --max_items_per_user 2, 99.9% with 3"


def test_completely_swapped_places_are_named(tmp_path: Path) -> None:
    log = rides().rename(columns={"lat": "lon", "lon": "lat"})
    (cause,) = causes(facts_of(log, tmp_path))
    assert "Berlin" in cause
    assert "--latitude_column lon" in cause
    facts = facts_of(log, tmp_path, region=Region(13.0, 52.0, 14.0, 53.0))
    assert (facts.outside, facts.swapped) == (1.0, pytest.approx(1.0, abs=0.01))
    (cause,) = causes(facts)
    assert "--latitude_column lon" in cause
    assert facts.are_columns_swapped


def test_a_region_in_another_order_is_named(tmp_path: Path) -> None:
    (cause,) = causes(facts_of(rides(), tmp_path, region=Region(52.0, 13.0, 53.0, 14.0)))
    assert "--region=13,52,14,53" in cause
    assert cause.startswith("the region")
    assert not facts_of(rides(), tmp_path, region=Region(52.0, 13.0, 53.0, 14.0)).are_columns_swapped


def test_a_wrong_region_is_named(tmp_path: Path) -> None:
    facts = facts_of(rides(), tmp_path, region=Region(2.0, 48.0, 3.0, 49.0))
    assert facts.is_outside
    (cause,) = causes(facts)
    assert str(facts.region) in cause
    assert not facts_of(rides(), tmp_path, region=Region(13.0, 52.0, 14.0, 53.0)).is_outside


def test_trips_are_told_from_people(tmp_path: Path) -> None:
    """Only a text with fewer values may identify people: no kind of ticket, and no number, time or larger set."""
    log = rides(
        trip=[f"t{row // 3}" for row in range(ROWS)],
        ticket=[f"k{row % 3}" for row in range(ROWS)],
        fare=[f"{row % 900}.50" for row in range(ROWS)],
    )
    assert facts_of(log, tmp_path, user_id_column="trip").fewer == {"rider": log.rider.nunique()}
    assert facts_of(log, tmp_path, user_id_column="rider").fewer == {}


def test_odd_columns_stop_nothing(tmp_path: Path) -> None:
    """Two columns of a name that nothing reads, and ids without a type."""
    log, path = pa.Table.from_pandas(rides()), str(tmp_path / "log.parquet")
    spare = pa.array(np.arange(ROWS).astype(str))
    pq.write_table(log.append_column("spare", spare).append_column("spare", spare), path)
    assert inspect_logs([LogFile(path)], {}).users == pc.count_distinct(log["rider"]).as_py()
    empty = str(tmp_path / "empty.parquet")
    pq.write_table(log.set_column(1, "rider", pa.nulls(ROWS)), empty)
    assert inspect_logs([LogFile(empty)], {}).users == 0


def test_dates_in_the_other_order_are_named(tmp_path: Path) -> None:
    log = rides(time=[f"{13 + row % 15}.10.2026 08:30" for row in range(ROWS)])
    path = tmp_path / "log.csv"
    log.to_csv(path, index=False)
    for order, expected in (("mdy", True), ("dmy", False)):
        facts = inspect_logs([LogFile(str(path), layout=LogLayout(dates=order))], {})
        assert any("--dates dmy" in cause for cause in causes(facts)) == expected


def test_suggested_form_reads_what_was_unreadable(tmp_path: Path) -> None:
    log = rides(time=lambda log: log.time.dt.strftime("%d.%m.%Y %H:%M"))
    for name in ("lat", "lon"):
        log[name] = log[name].astype(str).str.replace(".", ",")
    log.to_csv(tmp_path / "log.csv", index=False, sep=";")
    form = suggested_form(inspect_logs([LogFile(str(tmp_path / "log.csv"))], {}))
    assert form == {"decimal": ",", "dates": "dmy"}
    facts = inspect_logs([LogFile(str(tmp_path / "log.csv"), layout=LogLayout(**form))], {})
    assert causes(facts) == []
    assert facts.region == facts_of(rides(), tmp_path).region
    assert suggested_form(facts_of(rides(time=lambda log: log.time.dt.strftime("%m/%d/%Y")), tmp_path)) == {
        "dates": "mdy"
    }


@pytest.mark.parametrize(
    ("dates", "order", "open_dates"),
    [
        (["11/10/2026 8:05", "11/13/2026 8:05"], "mdy", []),
        (["11.10.2026 8:05", "13.10.2026 8:05"], "dmy", []),
        (["11/10/2026 8:05", "11/11/2026 8:05"], "mdy", ["11/10/2026"]),  # a month apart in the other order
        (["10.11.2026 8:05", "11.11.2026 8:05"], "dmy", ["10.11.2026"]),
        (["11/10/2026 8:05 AM"], "mdy", ["11/10/2026"]),
        (["11/10/2026 8:05"], "dmy", ["11/10/2026"]),
        (["12/30/2026 8:05", "1/2/2027 8:05"], "mdy", []),
    ],
)
def test_the_order_of_dates_follows_from_all_of_them(
    dates: list[str], order: str, open_dates: list[str], tmp_path: Path
) -> None:
    facts = facts_of(rides(time=[dates[row % len(dates)] for row in range(ROWS)]), tmp_path)
    assert date_order(facts) == (order, tuple(open_dates))
    assert suggested_form(facts) == {"dates": order}


def test_times_are_found_by_their_values_also_with_am_pm(tmp_path: Path) -> None:
    """Some rows have another form, some none, and one a day of 1970, which is not of the period."""
    log = rides().rename(columns={"time": "Data/Hora"})
    times = log["Data/Hora"].dt.strftime("%d/%m/%Y %I:%M:%S %p")
    times = times.where(log.ride % 10 > 0, log["Data/Hora"].dt.strftime("%Y-%m-%d %H:%M"))
    times[:60], times[60] = "", "01/01/1970 08:00 AM"
    log["Data/Hora"] = times
    facts = facts_of(log, tmp_path)
    assert facts.roles["time_column"] == "Data/Hora"
    form = suggested_form(facts)
    assert form == {"dates": "dmy"}
    facts = inspect_logs([LogFile(str(tmp_path / "log.csv"), layout=LogLayout(**form))], {})
    assert facts.signs["no time"] == 60
    assert str(facts.period) == "2026-11-20"
    assert "--dates" not in causes(facts)[0]
    assert facts_of(log.assign(**{"Data/Hora": "none"}), tmp_path).period is None


@pytest.mark.parametrize(
    ("longitude", "latitude", "zone"),
    [(72.82, 19.0, "Asia/Kolkata"), (24.95, 60.15, "Europe/Helsinki"), (-30.0, 10.0, None)],  # two coasts, and the sea
)
def test_the_time_zone_is_that_of_most_places_on_land(
    longitude: float, latitude: float, zone: str | None, tmp_path: Path
) -> None:
    """The nearest main city of a time zone would be Karachi for Mumbai."""
    log = rides()
    log = log.assign(lat=log["lat"] - 52.5 + latitude, lon=log["lon"] - 13.4 + longitude)
    assert facts_of(log, tmp_path).time_zone == zone


def test_integers_are_degrees_times_ten_million(tmp_path: Path) -> None:
    log = rides()
    scaled = log.assign(lat=(log.lat * 1e7).astype("int64"), lon=(log.lon * 1e7).astype("int64"))
    facts, plain = facts_of(scaled, tmp_path, "parquet"), facts_of(log, tmp_path, "parquet")
    assert (facts.is_e7, plain.is_e7) == (True, False)
    assert facts.region == plain.region
    assert facts.unusable == {}


def test_ids_that_are_not_utf8_are_counted_and_named(tmp_path: Path) -> None:
    log = rides(rider=lambda log: np.where(log.ride < 7, "Jürgen", "Zoë"))
    for encoding, number in (("utf-8", None), ("cp1252", ROWS)):
        log.to_csv(tmp_path / "log.csv", index=False, encoding=encoding)
        facts = inspect_logs([LogFile(str(tmp_path / "log.csv"))], {})
        assert (facts.users, facts.signs.get("not UTF-8")) == (2, number)
        assert len([cause for cause in causes(facts) if "iconv -f CP1252" in cause]) == bool(number)


def test_fields_of_json_records_are_columns(tmp_path: Path) -> None:
    path = tmp_path / "log.ndjson"
    rides().to_json(path, orient="records", lines=True, date_format="iso")
    facts, plain = inspect_logs([LogFile(str(path))], {}), facts_of(rides(), tmp_path)
    assert list(facts.columns) == list(plain.columns)
    assert (facts.roles, facts.rows, facts.users, facts.region) == (plain.roles, ROWS, plain.users, plain.region)
    text = path.read_text()
    path.write_bytes(text.replace("r1", "\u00fc").replace('"rider":"', '"rider":"\u00fc').encode("cp1252"))
    (cause,) = causes(inspect_logs([LogFile(str(path))], {}))
    assert "iconv -f CP1252" in cause
    path.write_bytes(text.encode("utf-16-le"))
    with pytest.raises(DataError, match="iconv -f UTF-16LE"):
        inspect_logs([LogFile(str(path))], {})


@pytest.mark.parametrize("name", ["trip_id", "rideId", "session", "Order-No", "bookings", "check_in", "user_event_id"])
def test_trips_must_be_named_for_readers(name: str) -> None:
    for title in (None, "People at stops"):
        with rejects("user_id_column"):
            check_unit(name, title)
    check_unit(name, "A trip, ride, session, order, booking, check-in check_in or event each")


@pytest.mark.parametrize(
    "name", ["rider", "driver", "rider_id", "user_id", "id", "strip", "recorder", "event_user_id", "trip_card", "uid"]
)
def test_columns_of_people_need_no_title(name: str) -> None:
    check_unit(name, None)


def test_find_roles_prefers_what_is_given_and_knows_usual_names() -> None:
    assert find_roles(["ID", "Lat", "LNG", "user"], {}) == {
        "user_id_column": "user", "latitude_column": "Lat", "longitude_column": "LNG",
    }  # fmt: skip
    assert find_roles(["a", "user_id"], {"user_id_column": "a"}) == {"user_id_column": "a"}
    found = find_roles(["kort_nr", "lat_wgs84", "lon_wgs84", "long_name"], {})
    assert list(found.values()) == ["kort_nr", "lat_wgs84", "lon_wgs84"]
    with rejects("latitude_column"):
        find_roles(["lat"], {"latitude_column": "latt"})


@pytest.mark.parametrize(
    ("columns", "user"),
    [
        (["id", "trip_id", "hashed_card_number"], "hashed_card_number"),
        (["ID", "anonUserId"], "anonUserId"),
        (["id", "user_type", "discard", "Kundennummer"], "Kundennummer"),
        (["trip_id", "card", "tarjeta"], "card"),
        (["id", "trip_id", "device_model"], "id"),
    ],
)
def test_find_roles_prefers_ids_of_people_to_those_of_records(columns: list[str], user: str) -> None:
    assert find_roles(columns, {})["user_id_column"] == user


def test_rows_outside_are_counted_by_row(tmp_path: Path) -> None:
    log = rides()
    few = log.rider.isin(log.rider.unique()[:5])
    log.loc[few, "lat"] = 10.0
    facts = facts_of(log.assign(card_id=log.rider).drop(columns="rider"), tmp_path)
    assert facts.region is not None
    outside = ~((log.lat >= facts.region.south) & (log.lat <= facts.region.north))
    outside |= ~((log.lon >= facts.region.west) & (log.lon <= facts.region.east))
    assert facts.rows_outside == pytest.approx(outside.mean(), abs=1e-9)
    assert facts.rows_outside >= few.mean()
    assert ids_among(facts.others) == []


@pytest.mark.parametrize("scale", [1e-4, 0.01, 1.0, 40.0])
def test_suggested_region_is_round_and_holds_the_middle(scale: float) -> None:
    places = np.stack([13.4 + scale * seeded_rng(1).random(9999), 2 + scale * seeded_rng(2).random(9999)])
    region = suggested_region(places)
    assert region is not None
    inside = (places[0] >= region.west) & (places[0] <= region.east)
    inside &= (places[1] >= region.south) & (places[1] <= region.north)
    assert inside.mean() >= 0.97
    assert region.east - region.west <= max(2.2 * scale, 0.003)
    borders = [region.west, region.south, region.east, region.north]
    assert all(len(f"{border:g}".replace(".", "").lstrip("-0")) <= 5 for border in borders)


def test_a_user_with_many_rows_does_not_decide_the_region(tmp_path: Path) -> None:
    log = rides()
    far = pd.DataFrame(
        {"ride": 0, "rider": "courier", "lat": 48.1, "lon": 11.6, "time": log.time[0]}, index=range(3000)
    )
    region, without = (facts_of(rows, tmp_path).region for rows in (pd.concat([log, far]), log))
    assert region is not None
    assert without is not None
    assert region.south > 50
    # One more user may move a quantile of 600, and with it a border, by a round number or two.
    assert np.abs(np.subtract(astuple(region), astuple(without))).max() < 0.5
