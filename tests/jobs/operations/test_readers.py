"""Commands that read releases, and the page of a release, made again from its folder."""

from __future__ import annotations

import itertools
import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from sfumato.pipelines.command_line.cli import main, parse_command, run_command
from sfumato.pipelines.command_line.run import request_class, request_of
from sfumato.pipelines.operations.inspect_logs import around_zones, inspect_command
from sfumato.schemas.errors import RequestError
from sfumato.schemas.rectangle import Region
from sfumato.transforms.release.published_release import Release, open_release
from sfumato.transforms.release.release_folder import publish
from tests.refreshes import DAYS, Place
from tests.releases import COMMANDS, Releases, assert_page_follows
from tests.unit.release.city import city_release

# --- `sfumato export` as a command: what it writes, what it refuses, and what it does not need ---


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("city") / "release"
    publish(str(folder), city_release("adaptive", depth=4).files, "made-up", overwrite=False)
    return folder


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--output", "{out}/map.png"], "format: the suffix of {out}/map.png is unknown; use one of .tif"),
        (["--output", "{out}/map", "--format", "geotif"], "did you mean geotiff?"),
        (["--output", "{out}", "--format", "csv"], "output: must name a file"),
        (["--output", "{out}/map.csv", "--table", "items"], "table: {folder} has no table 'items'; it has answers,"),
        (["--output", "{out}/map.csv", "--table", "cell"], "; did you mean cells?"),
        (["--output", "{out}/map.tif", "--table", "cells"], "table: cannot be combined with --format geotiff"),
        (["--output", "{out}/map.tif", "--lisence", "x"], "unknown option --lisence; did you mean --licence?"),
        ([], "output: required"),
        (["--output", "{folder}/manifest.json/x.csv"], "output: cannot create {folder}/manifest.json/x.csv"),
        (["--output", "{folder}/manifest.json"], "output: {folder}/manifest.json already exists"),
    ],
)
def test_a_wrong_option_is_named(
    arguments: list[str], words: str, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    places = {"out": str(tmp_path), "folder": str(folder)}
    assert main(["export", str(folder), *(one.format(**places) for one in arguments)]) == 2
    assert words.format(**places) in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_table_that_is_missing_has_a_near_name(folder: Path) -> None:
    with pytest.raises(RequestError, match=r"has no table 'cellls'; it has answers, .*; did you mean cells\?$"):
        open_release(folder).table("cellls")


def test_a_table_without_a_name_is_the_main_or_only_one(folder: Path) -> None:
    release = open_release(folder)
    assert release.table()["cell_id"].tolist() == release.cells["cell_id"].tolist()

    def main_of(*names: str) -> str:
        return Release("folder", {"files": {f"{name}.parquet": {"sha256": ""} for name in names}}, "").main_table

    assert (main_of("words"), main_of("answers", "zones")) == ("words", "zones")
    with pytest.raises(RequestError, match="name a table; it has answers, totals"):
        main_of("answers", "totals")


def test_export_refuses_what_is_no_release(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="no release found"):
        run_command("export", [str(tmp_path), "--output", "map.csv"])


@pytest.mark.slow
def test_export_loads_no_beam_and_no_unused_library(folder: Path, tmp_path: Path) -> None:
    code = f"""import sys
from sfumato.pipelines.command_line.cli import main
assert main(["export", {str(folder)!r}, "--output", {str(tmp_path / "map.xyz")!r}]) == 2
heavy = [name for name in ("apache_beam", "rasterio", "geopandas", "xarray", "pyogrio", "h3") if name in sys.modules]
assert not heavy, heavy
assert main(["export", {str(folder)!r}, "--output", {str(tmp_path / "map.tif")!r}]) == 0
assert "apache_beam" not in sys.modules
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


# --- a release's page made again from its folder alone ---


@pytest.mark.parametrize("kind", COMMANDS)
def test_page_follows_from_published_files(kind: str, published: Releases) -> None:
    assert_page_follows(published[kind])


def test_a_night_leads_to_its_timeline(backfilled: Place) -> None:
    night = backfilled.night(DAYS[2])
    (link,) = re.findall(r'<a href="([^"]*)">All days</a>', (night / "index.html").read_text())
    assert (night / link).resolve() == backfilled.published / "index.html"
    assert_page_follows(night)


def test_inspect_command_holds_the_options_of_the_job(tmp_path: Path) -> None:
    options = {"input": "a b.csv", "output": "x", "region": "2,48,3,49", "user_id_column": "rider", "decimal": ","}
    request = request_of("heatmap", {**options, "day_column": "t", "hours": "8-9"})
    command = inspect_command(request)
    assert command is not None
    kind, arguments = request_class("inspect"), shlex.split(command)[2:]
    parsed, _ = parse_command(kind, arguments)
    assert parsed.given(kind.model_fields) == {
        "input": ("a b.csv",), "region": Region(2, 48, 3, 49), "user_id_column": "rider", "decimal": ",",
        "time_column": "t",
    }  # fmt: skip
    assert inspect_command(request_of("key", {"action": "new", "file": "k"})) is None


@pytest.mark.parametrize("swapped", [6, 300])
def test_inspect_looks_again_with_exchanged_columns(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], swapped: int
) -> None:
    """Not for a few rows. Its next command is not a map of the wrong place, and finds nothing more to exchange."""
    logs, region = tmp_path / "taxis.csv", "--region=-122.5,37.6,-122.3,37.8"
    places = [(37.7 + n / 1e4, -122.4 + n / 1e4) for n in range(300)]
    places = [place[::-1] if n < swapped else place for n, place in enumerate(places)]
    rows = (f"{n % 90},{lat},{lon},2026-11-20T08:00:00Z\n" for n, (lat, lon) in enumerate(places))
    logs.write_text("rider,lat,lon,time\n" + "".join(rows))
    assert main(["inspect", "--input", str(logs), region]) == 0
    first = capsys.readouterr().out
    assert ("sfumato heatmap" in first) == (swapped < 300)
    if swapped == 300:
        again = shlex.split(first.splitlines()[-1])
        assert again[:2] == ["sfumato", "inspect"]
        assert again[again.index("--latitude_column") + 1] == "lon"
        assert region in again
        assert main(again[1:]) == 0
        assert "sfumato heatmap" in capsys.readouterr().out


def inspected(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[list[str]]:
    """Returns the words of the commands that inspect prints. Each parses, and names no option twice."""
    assert main(["inspect", *arguments]) == 0
    commands = [shlex.split(line) for line in capsys.readouterr().out.splitlines() if line.startswith("    sfumato ")]
    for _, command, *words in commands:
        parse_command(request_class(command), words)
        options = [word.partition("=")[0] for word in words if word.startswith("--")]
        assert len(set(options)) == len(options)
    return commands


def write_visits(path: Path, several: int, zone: str = "", swapped: bool = False, day: str = "09.10.2026") -> str:
    """Writes 400 users' visits at half past eight to places 1.1 km apart; the first `several` are at two of them."""
    rows = [
        f"c{user};{day} 08:30{zone};{places}"
        for user in range(400)
        for stop in range(2 if user < several else 1)
        for y, x in [("57,70", f"11,{90 + (user + stop) % 4 * 2}")]
        for places in [f"{x};{y}" if swapped else f"{y};{x}"]
    ]
    path.write_text("card;Tidpunkt;lat;lon\n" + "\n".join(rows) + "\n")
    return str(path)


def test_inspect_of_swapped_columns_names_no_map(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The commands for exchanged columns, and for right ones with a region, run and lead to maps."""
    log = write_visits(tmp_path / "log.csv", 100, swapped=True)
    first, second = inspected(capsys, "--input", log)
    assert first[first.index("--latitude_column") + 1] == "lon"
    assert second[second.index("--latitude_column") + 1] == "lat"
    for again in (first, second):
        assert again[1] == "inspect"
        assert inspected(capsys, *again[2:])[0][1] == "heatmap"


def test_inspect_suggests_a_region_that_holds_the_zones(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = write_visits(tmp_path / "log.csv", 400)
    far = {"type": "Point", "coordinates": [12.05, 57.75]}
    stops = [
        {"type": "Feature", "properties": {"stop": f"s{i}"}, "geometry": shape}
        for i, shape in enumerate([{"type": "Point", "coordinates": [11.9 + 0.02 * i, 57.7]} for i in range(4)] + [far])
    ]
    (tmp_path / "stops.geojson").write_text(json.dumps({"type": "FeatureCollection", "features": stops}))
    for command in inspected(capsys, "--input", log, "--zones", str(tmp_path / "stops.geojson"))[1:]:
        (borders,) = (word.removeprefix("--region=") for word in command if word.startswith("--region="))
        west, south, east, north = map(float, borders.split(","))
        assert west < 11.9 < 12.05 < east
        assert south < 57.7 < 57.75 < north


def test_a_region_holds_zones_unless_one_is_far_away() -> None:
    city, near = Region(13.0, 52.0, 13.4, 52.3), Region(12.9004, 52.1, 13.2, 52.4006)
    assert around_zones(city, near) == Region(12.9, 52.0, 13.4, 52.401)
    assert around_zones(city, Region(0, 0, 13.2, 52.2)) == city


def test_inspect_with_ids_of_rows_names_people(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Whether the ids are those of people is for the operator to say: both commands lead to maps."""
    lines = Path(write_visits(tmp_path / "log.csv", 400)).read_text().splitlines()
    (tmp_path / "rows.csv").write_text("\n".join(f"{row or 'user_id'};{line}" for row, line in enumerate(lines)))
    commands = inspected(capsys, "--input", str(tmp_path / "rows.csv"))
    assert [one[one.index("--user_id_column") + 1] for one in commands] == ["card", "user_id"]
    for again in commands:
        assert again[1] == "inspect"
        assert inspected(capsys, *again[2:])[0][1] == "heatmap"


def test_inspect_ends_runs_with_few_of_many_users(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A mistake then costs a hundredth of the epsilon. The number is one digit of half the users."""
    (tmp_path / "log.csv").write_text("user,lat,lon\n" + "".join(f"{user},57.7,11.9\n" for user in range(25_999)))
    command = inspected(capsys, "--input", str(tmp_path / "log.csv"))[0]
    assert command[command.index("--min_users") + 1] == "10000"
    assert "--min_users" not in inspected(capsys, "--input", write_visits(tmp_path / "few.csv", 0))[0]


@pytest.mark.parametrize(("several", "most"), [(0, "1"), (200, "2")])
def test_inspect_counts_the_visitors_of_zones(
    several: int, most: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each user in the number of zones that nearly all visits need. With a file of zones the command runs."""
    log, stops = write_visits(tmp_path / "log.csv", several), tmp_path / "stops.geojson"
    assert inspected(capsys, "--input", log)[-1][1] == "histogram"
    features = [
        {
            "type": "Feature",
            "properties": {"number": number, "line": "A", "stop": f"s{number}", "name": f"Stop {number}"},
            "geometry": {"type": "Point", "coordinates": [11.9 + 0.02 * number, 57.7]},
        }
        for number in range(4)
    ]
    stops.write_text(json.dumps({"type": "FeatureCollection", "features": features}))
    command = inspected(capsys, "--input", log, "--zones", str(stops))[0]
    stated = dict(itertools.pairwise(command))
    assert (stated["--id_column"], stated["--label_column"], stated["--radius"]) == ("stop", "name", "300")
    assert stated["--max_items_per_user"] == most
    assert "--average_day" not in command
    assert main([*command[1:-1], str(tmp_path / "out"), "--epsilon=8", "--seed=1"]) == 0
    rows = [(one["properties"], one["geometry"]["coordinates"]) for one in features]
    lines = [f"{about['stop']},{about['name']},{y},{x}\n" for about, (x, y) in rows]
    (tmp_path / "stops.txt").write_text("stop,name,stop_lat,stop_lon\n" + "".join(lines))  # GTFS: the same release
    words = [str(tmp_path / "stops.txt") if word == str(stops) else word for word in command[1:-1]]
    assert main([*words, str(tmp_path / "of_csv"), "--epsilon=8", "--seed=1"]) == 0
    of_csv, of_geojson = (tmp_path / name / "zones.parquet" for name in ("of_csv", "out"))
    assert of_csv.read_bytes() == of_geojson.read_bytes()
    stops.write_text(json.dumps({"type": "FeatureCollection", "features": features[:1]}))
    command = inspected(capsys, "--input", log, "--zones", str(stops))[0]
    assert main([*command[1:-1], str(tmp_path / "few"), "--epsilon=8"]) == 0  # though three in four are in no zone
    stops.write_text(stops.read_text().replace("57.7", "47.7"))
    assert main(["inspect", "--input", log, "--zones", str(stops)]) == 0
    text = capsys.readouterr().out
    assert "47.7" in text
    assert "sfumato histogram" not in text


@pytest.mark.parametrize("label", ["stop_name", "wording"])
def test_inspect_suggests_an_average_day_and_names_close_stops(
    label: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The commands of two days run. Of four stops, two (67 m apart) apart; wrong dates are corrected."""
    for day in (15, 16):
        write_visits(tmp_path / f"{day}.csv", 0, day=f"{day}.10.2026")
    at = {"a": [11.9, 57.7], "b": [11.9, 57.7006], "c": [11.92, 57.7], "d": [11.904, 57.7]}
    stops = [
        {"type": "Feature", "properties": {"stop": name, label: f"{name} Street"},
         "geometry": {"type": "Point", "coordinates": place}}
        for name, place in at.items()
    ]  # fmt: skip
    file = tmp_path / "stops.geojson"
    file.write_text(json.dumps({"type": "FeatureCollection", "features": stops}))
    words = ["--input", str(tmp_path / "*.csv"), "--zones", str(file), "--dates", "mdy"]
    assert main(["inspect", *words]) == 0
    text = capsys.readouterr().out
    assert "2 points" in text
    assert re.search(r"(a Street and b|b Street and a) Street \(67 m apart\)", text)
    command, of_map = inspected(capsys, *words)
    assert ("--basemap" in of_map) == (label == "stop_name")
    assert main([*of_map[1:-1], str(tmp_path / "map"), "--seed=3"]) == 0
    stated = dict(itertools.pairwise(command))
    assert (stated["--dates"], stated["--decimal"], stated["--period"]) == ("dmy", ",", "2026-10-15:2026-10-16")
    assert "--average_day" in command
    assert main([*command[1:-1], str(tmp_path / "out"), "--epsilon=8", "--seed=3"]) == 0
    users = open_release(tmp_path / "out").table("zones").set_index("zone")["count"]
    assert users["a"] + users["b"] + users["c"] == pytest.approx(200, abs=20)


@pytest.mark.parametrize(("zone", "is_kept"), [("", False), ("+02:00", True)])
def test_inspect_keeps_a_time_zone_only_for_zoned_times(
    zone: str, is_kept: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = write_visits(tmp_path / "log.csv", 0, zone)
    commands = inspected(capsys, "--input", log, "--time_zone", "Europe/Stockholm")
    assert len(commands) == 2
    assert all(("--time_zone" in command) == is_kept for command in commands)
    commands = inspected(capsys, "--input", log)  # with the zone of the place
    zones = {dict(itertools.pairwise(command)).get("--time_zone") for command in commands}
    assert zones == ({"Europe/Stockholm"} if is_kept else {None})
