"""Changes between two releases of zones: what is compared, what is found, and what cannot be compared."""

from __future__ import annotations

import dataclasses
import json
import re
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import shapely

import sfumato
from sfumato.pipelines.command_line.cli import main
from sfumato.schemas.errors import RequestError
from sfumato.schemas.release import zones_schema
from sfumato.schemas.views.map_views import MapBody
from sfumato.transforms.changes.differences import Side, differences
from sfumato.transforms.changes.release import compare_releases
from sfumato.transforms.changes.view import changes_view
from sfumato.transforms.changes.zone_changes import compare_zones
from sfumato.transforms.release.metadata import parquet_bytes
from sfumato.transforms.release.published_release import Release, open_release
from tests.releases import Releases
from tests.seeds import seeded_rng

# Four wards of six blocks each, level by level from the finest, and the wards that hold the blocks.
WARDS, BLOCKS = 4, 24
PARENTS = np.concatenate([BLOCKS + np.arange(BLOCKS) % WARDS, np.full(WARDS, -1)])


def side(blocks: np.ndarray, noise: float, rng: np.random.Generator) -> Side:
    """One day of blocks and of wards, their sums: Poisson users with Laplace noise."""
    noisy = rng.poisson(blocks) + rng.laplace(0, noise / np.sqrt(2), BLOCKS)
    wards = np.bincount(np.arange(BLOCKS) % WARDS, noisy, WARDS)
    variance = np.concatenate([np.full(BLOCKS, noise**2), np.full(WARDS, noise**2 * BLOCKS / WARDS)])
    return Side(np.concatenate([noisy, wards]), variance, (wards.sum(), noise**2 * BLOCKS), 1)


@pytest.mark.false_alarm(1e-9)
def test_differences_of_equal_days_are_rarely_found() -> None:
    rng, blocks = seeded_rng(1), np.linspace(5, 300, BLOCKS)
    pairs = [differences(*(side(blocks, 5.0, rng) for _ in range(2)), PARENTS) for _ in range(200)]
    # Each of 200 independent pairs is wrong with a probability of at most 5%: more than 32 have one of 4e-10.
    assert sum(bool(one.changed.any()) for one in pairs) <= 32
    assert sum(bool(one.shown.any()) for one in pairs) <= 32


@pytest.mark.false_alarm(1e-9)
def test_visits_to_several_places_of_equal_days_are_rarely_found() -> None:
    """Each of 2,000 people is at up to four of 24 places, which people choose by habits that are the same each day."""
    rng, without = seeded_rng(4), np.full(BLOCKS, -1)
    habits = rng.dirichlet(np.full(BLOCKS, 0.3), 2_000)

    def day() -> Side:
        visits = np.cumsum(habits, axis=1)[:, None] > rng.random((2_000, 4))[..., None]
        places = visits.argmax(axis=2)  # int64[people, 4]
        users = np.array([(places == place).any(axis=1).sum() for place in range(BLOCKS)])
        return Side(users + rng.laplace(0, 5 / np.sqrt(2), BLOCKS), np.full(BLOCKS, 25.0), (2_000.0, 25.0), 1)

    pairs = [differences(day(), day(), without) for _ in range(200)]
    # Each of 200 independent pairs is wrong with a probability of at most 5%: more than 32 have one of 4e-10.
    assert sum(bool(one.changed.any()) for one in pairs) <= 32


@pytest.mark.false_alarm(1e-9)
def test_average_days_of_equal_weeks_are_rarely_found() -> None:
    """Each of 2,000 people is active with a probability of 0.5, and then at the same place on all five days."""
    rng, without = seeded_rng(5), np.full(BLOCKS, -1)
    habits = rng.dirichlet(np.full(BLOCKS, 0.3))

    def week() -> Side:
        users = rng.multinomial(rng.binomial(2_000, 0.5), habits).astype(float)  # on each day, so their mean too
        return Side(users + rng.laplace(0, 1 / np.sqrt(2), BLOCKS), np.full(BLOCKS, 1.0), (2_000.0, 25.0), 1)

    pairs = [differences(week(), week(), without) for _ in range(200)]
    # Each of 200 independent pairs is wrong with a probability of at most 5%: more than 32 have one of 4e-10.
    assert sum(bool(one.changed.any()) for one in pairs) <= 32


@pytest.mark.false_alarm(1e-9)
def test_differences_show_the_block_or_the_ward_but_not_both() -> None:
    """A move of 200 users is 11 deviations of a block of 150 before and 150 after with noise of 5."""
    rng, blocks = seeded_rng(2), np.full(BLOCKS, 150.0)
    crowd = np.where(np.arange(BLOCKS) == 9, 200.0, 0.0)
    found = differences(side(blocks, 5.0, rng), side(blocks + crowd, 5.0, rng), PARENTS)
    assert found.changed[9]
    assert found.shown[9] != found.shown[BLOCKS + 9 % WARDS]


def test_differences_never_show_the_zone_that_holds_all() -> None:
    rng = seeded_rng(3)
    parents = np.where(PARENTS < 0, BLOCKS + WARDS, PARENTS)
    before, after = (side(np.full(BLOCKS, users), 5.0, rng) for users in (100.0, 300.0))
    whole = [Side(*(np.append(a, b) for a, b in zip((one.users, one.variance), one.total, strict=True)), one.total, 1)
             for one in (before, after)]  # fmt: skip
    found = differences(*whole, np.append(parents, -1))
    assert found.changed[-1]
    assert not found.shown[-1]
    assert found.shown.any()
    assert not differences(*whole, np.append(parents, -1), shares=True).changed[-1]


@pytest.fixture(scope="module")
def later(published: Releases, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Zones with levels as they are published a day later, under another key."""
    folder, city = tmp_path_factory.mktemp("later"), published.city
    main(["key", "new", str(folder / "key")])
    job = ["zones", "--zones", str(city / "tracts.geojson"), "--levels", "tract,county", "--trust", "central"]
    logs = ["--input", str(city / "logs" / "*.parquet"), "--key_file", str(folder / "key"), "--release_id", "later"]
    assert main([*job, *logs, "--output", str(folder / "release")]) == 0
    return folder / "release"


def test_command_compares_zones_of_all_levels(
    published: Releases, later: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pair = str(published["zones, levels"]), str(later)
    assert main(["changes", *pair, "--output", str(tmp_path / "changes")]) == 0
    assert capsys.readouterr().out
    table = pq.read_table(tmp_path / "changes" / "changes.parquet")
    zones = [open_release(one).arrow_table("zones.parquet") for one in pair]
    assert table["zone"].to_pylist() == zones[1]["zone"].to_pylist()
    users = [dict(zip(zip(one["level"].to_pylist(), one["zone"].to_pylist(), strict=True), one["users"].to_pylist(),
                      strict=True)) for one in zones]  # fmt: skip
    keys = list(zip(table["level"].to_pylist(), table["zone"].to_pylist(), strict=True))
    assert table["before"].to_pylist() == [users[0][key] for key in keys]
    assert table["after"].to_pylist() == [users[1][key] for key in keys]
    manifest = json.loads((tmp_path / "changes" / "manifest.json").read_text())
    assert [one["name"] for one in manifest["zones"]["levels"]] == ["tract", "county"]
    assert sfumato.changes(*pair)["difference"].to_list() == table["difference"].to_pylist()
    files = {name: (tmp_path / "changes" / name).read_bytes() for name in ("changes.parquet", "manifest.json")}
    body = changes_view(files).body
    assert isinstance(body, MapBody)
    assert [len(layer.cell_id) for layer in body.layers] == [one["zones"] for one in manifest["zones"]["levels"][::-1]]


def test_export_of_zone_changes_has_shapes_and_no_raster(published: Releases, later: Path, tmp_path: Path) -> None:
    folder = str(tmp_path / "changes")
    assert main(["changes", str(published["zones, levels"]), str(later), "--output", folder]) == 0
    assert main(["export", folder, "--output", str(tmp_path / "map.geojson")]) == 0
    exported = json.loads((tmp_path / "map.geojson").read_text())["features"]
    assert [one["properties"]["zone"] for one in exported] == pq.read_table(f"{folder}/changes.parquet")[
        "zone"
    ].to_pylist()
    assert main(["export", folder, "--output", str(tmp_path / "map.tif")]) == 2


def test_histograms_of_zones_are_compared_by_their_users(
    published: Releases, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before, after = published["visits"], tmp_path / "after"
    stated = open_release(before).manifest["parameters"]["bound"]
    assert stated == {"max_items": 3, "max_records": 1}
    logs, zones = published.city / "logs" / "*.parquet", published.city / "zones.geojson"
    job = ["histogram", "--input", str(logs), "--zones", str(zones), "--id_column", "tract", "--trust", "central"]
    assert main([*job, "--max_items_per_user", "3", "--output", str(after)]) == 0
    assert main(["changes", str(before), str(after), "--output", str(tmp_path / "changes")]) == 0
    table = pq.read_table(tmp_path / "changes" / "changes.parquet")
    counts = [open_release(str(one)).arrow_table("zones.parquet")["count"].to_pylist() for one in (before, after)]
    assert [table[name].to_pylist() for name in ("before", "after")] == counts
    manifest = json.loads((tmp_path / "changes" / "manifest.json").read_text())
    counted = open_release(str(after)).manifest["results"]["estimated_users"]
    assert (manifest["zones"]["zones_per_user"], manifest["after"]["users"]) == (3, counted)
    page = (tmp_path / "changes" / "index.html").read_text()
    assert "All users before" in page
    assert "Their difference" not in page
    scaled = sfumato.changes(str(before), str(after), shares=True)["before"]
    first = open_release(str(before)).manifest["results"]["estimated_users"]
    assert scaled.to_numpy() == pytest.approx(table["before"].to_numpy() * counted / first)  # noise may make one 0
    assert manifest["warnings"] == []
    fewer = ["--max_items_per_user", "1", "--output", str(tmp_path / "one")]
    assert main([*job, *fewer]) == 0
    capsys.readouterr()
    assert main(["changes", str(before), str(tmp_path / "one"), "--output", str(tmp_path / "unlike")]) == 0
    (warning,) = json.loads((tmp_path / "unlike" / "manifest.json").read_text())["warnings"]
    assert warning in capsys.readouterr().err
    assert "3 before, 1 after" in warning
    few = tmp_path / "few"  # a threshold selects what is published
    assert main([*job[:-2], "--delta", "1e-6", "--epsilon", "2", "--output", str(few)]) == 0
    assert main(["changes", str(before), str(few), "--output", str(tmp_path / "none")]) == 2
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize(
    ("first", "second", "is_compared"), [("8-9", "17-18", True), ("22-2", "1-5", True), ("8-9", None, False)]
)
def test_hours_are_compared_with_equally_many(
    first: str | None, second: str | None, is_compared: bool, published: Releases, tmp_path: Path
) -> None:
    sides = []
    for number, hours in enumerate((first, second)):
        one = open_release(published["visits"])
        given = {} if hours is None else {"hours": hours}
        parameters = {**one.manifest["parameters"], **given}
        manifest = {**one.manifest, "release_id": f"{number}", "parameters": parameters}
        sides.append(dataclasses.replace(one, manifest=manifest))
    for before, after in (sides, sides[::-1]):
        with nullcontext() if is_compared else pytest.raises(RequestError, match="hours a day"):
            compare_releases(before, after, 0.05, shares=False)


@pytest.mark.parametrize("named", [True, False])
def test_means_of_average_days_are_compared_a_day(
    named: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Three days with 60 people in each of four zones, then two days with 200 people in the first."""
    square, days = ["--quadkey", "8", "--region", "0,50,2.8,50.8"], ["--day_column", "day", "--trust", "central"]
    if named:
        shapes = [shapely.box(0.7 * i, 50, 0.7 * (i + 1), 50.8) for i in range(4)]
        zones = [
            {"type": "Feature", "properties": {"name": name}, "geometry": shapely.geometry.mapping(shape)}
            for name, shape in zip(("West", "Centre", "East", "End"), shapes, strict=True)
        ]
        (tmp_path / "zones.geojson").write_text(json.dumps({"type": "FeatureCollection", "features": zones}))
        square = ["--zones", str(tmp_path / "zones.geojson"), "--id_column", "name"]
    more = [*square, *days, "--average_day", "--max_items_per_user", "2", "--epsilon", "8"]
    for name, dates, people in (("before", range(16, 19), (60,) * 4), ("after", range(23, 25), (200, 60, 60, 60))):
        place = np.repeat(np.arange(4), people)
        day = [np.full(len(place), np.datetime64(f"2026-11-{one}T12:00", "s")) for one in dates]
        rows = {"user_id": np.tile(np.arange(len(place)), len(dates)), "day": np.concatenate(day)}
        rows |= {
            "longitude": np.tile(place * 0.7 + 0.3, len(dates)),
            "latitude": np.full(len(place) * len(dates), 50.3),
        }
        pq.write_table(pa.table(rows), logs := str(tmp_path / f"{name}.parquet"))
        period = f"2026-11-{dates[0]}:2026-11-{dates[-1]}"
        assert main(["histogram", "--input", logs, *more, "--period", period, "--output", str(tmp_path / name)]) == 0
    capsys.readouterr()
    pair = [str(tmp_path / "before"), str(tmp_path / "after")]
    assert main(["changes", *pair, "--shares", "--output", str(tmp_path / "shares")]) == 2
    assert "shares" in capsys.readouterr().err
    assert main(["changes", *pair, "--output", str(tmp_path / "changes")]) == 0
    shown = capsys.readouterr().out
    assert re.search(r" \+[1-9]\d*0 to \+[1-9]\d*0 users a day\n", shown), shown  # no more digits than are known
    table = pq.read_table(tmp_path / "changes" / "changes.parquet")
    changed = table.filter(table["changed"]).to_pylist()
    assert [round(one["difference"], -2) for one in changed] == [100]
    manifest = json.loads((tmp_path / "changes" / "manifest.json").read_text())
    assert manifest["results"]["compared"] == "users a day"
    (warning,) = manifest["warnings"]  # a bound on zones in the period is another one a day
    assert "3 before, 2 after" in warning
    files = {one.name: one.read_bytes() for one in (tmp_path / "changes").iterdir()}
    page = changes_view(files)
    assert isinstance(page.body, MapBody)
    assert [one.unit for one in page.body.layers[0].measures][1] == "users a day"
    assert re.fullmatch(r"(One place|West): [1-9]\d*0 to [1-9]\d*0 more users a day", page.headline)  # the only change
    assert page.headline.startswith("West") == named
    tested = {fact.term: fact.text for fact in page.sections[0].facts}["Places tested"]
    assert re.fullmatch(r"(\d) of \1|\d of \d; (1 is|\d are) almost empty", tested)


@pytest.mark.parametrize("pair", [("zones, levels", "monday"), ("monday", "zones, levels"), ("zones", "zones, levels"),
                                  ("visits", "zones"), ("zones", "zones")])  # fmt: skip
def test_changes_reject_releases_without_common_zones(published: Releases, pair: tuple[str, str]) -> None:
    assert main(["changes", *(str(published[kind]) for kind in pair)]) == 2


def test_zones_with_another_border_are_not_compared(published: Releases, tmp_path: Path) -> None:
    """A zone whose polygon moved has another population: its id does not make it the same."""
    release = open_release(published["zones"])
    table = release.arrow_table("zones.parquet")
    shapes = table["geometry"].to_pylist()
    shapes[3], shapes[4] = shapes[4], shapes[3]
    field = zones_schema().field("geometry")
    moved = table.set_column(table.schema.get_field_index("geometry"), field, pa.array(shapes, field.type))
    (tmp_path / "zones.parquet").write_bytes(parquet_bytes(moved))
    other = Release(str(tmp_path), {**release.manifest, "release_id": "moved", "files": None}, release.digest)
    found = compare_zones(release, other, 0.05, shares=False)
    kept = [zone for row, zone in enumerate(table["zone"].to_pylist()) if row not in (3, 4)]
    assert found.rows["zone"].to_pylist() == kept
    assert not found.changed.any()
