"""`--trust central` of histogram and hotspots: what they publish against the in-memory answer, and what they refuse."""

from __future__ import annotations

import io
import os
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from scipy import stats
from shapely import box

from sfumato.pipelines.command_line import cli
from sfumato.schemas.locations import LocationColumns
from sfumato.schemas.region import Grid, Region
from sfumato.schemas.views.map_views import MapBody
from sfumato.transforms.audit.answers import contradictions
from sfumato.transforms.geo.zone_raster import ZoneLocator
from sfumato.transforms.histogram.central_counts import CentralCountPlan, noisy_levels
from sfumato.transforms.histogram.central_counts_view import counts_view
from sfumato.transforms.histogram.count_noise import ItemBound, choose_noise
from sfumato.transforms.histogram.item_encoding import CellItems, ZoneItems
from sfumato.transforms.histogram.release import CountMetadata, central_files
from sfumato.transforms.histogram.request import HistogramRequest, HotspotsRequest
from sfumato.transforms.histogram.user_sample import ItemCounts
from sfumato.transforms.privacy.admission import NoisyUserCounts
from sfumato.transforms.privacy.keys import FixedSecret, RunKey
from sfumato.transforms.release.metadata import ReleaseMetadata
from sfumato.transforms.release.published_release import open_release
from sfumato.transforms.report.report import view_in_page
from tests.conftest import make_logs, write_files
from tests.digests import page_text
from tests.rejections import rejects
from tests.releases import assert_page_follows
from tests.seeds import seeded_rng
from tests.statistics import FLAKE_RATE
from tests.unit.zones.polygons import write_geojson, zones_of

REGION = ["--region", "-1,50,1,51"]
CENTRAL = ["--trust", "central"]


def table() -> pa.Table:
    logs = make_logs(4000, 3, 0)
    rng = seeded_rng(2)
    kinds = rng.geometric(0.15, logs.num_rows)
    return logs.append_column("kind", pa.array([f"kind-{'abc'[k % 3]}-{k:02d}" for k in kinds.tolist()])).append_column(
        "code", pa.array(100 * kinds)
    )


@pytest.fixture(scope="module")
def pattern(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_files(table(), tmp_path_factory.mktemp("central") / "logs", 4)


def run(job: str, pattern: str, output: Path, *more: str) -> int:
    return cli.main([job, "--input", pattern, "--output", str(output), "--seed", "1", *more])


def exact_counts(frame: pd.DataFrame, item: str, most: int) -> dict:
    """Counts of users, or of their records up to `most`; for bounds of items that no user reaches."""
    pairs = frame.groupby(["user_id", item]).size().clip(upper=most)
    return pairs.groupby(level=item).sum().to_dict()


@pytest.mark.false_alarm(1e-7)  # so rarely the noises of 30 items are all 0, each with probability 0.58
@pytest.mark.parametrize(
    ("column", "options", "most"), [("kind", CENTRAL, 1), ("code", [*CENTRAL, "--max_records_per_item", "2"], 2)]
)
def test_counts_are_exact_but_for_the_stated_noise(
    pattern: str, tmp_path: Path, column: str, options: list[str], most: int
) -> None:
    more = ["--column", column, "--epsilon", "4", "--delta", "1e-6", "--max_items_per_user", "3", *options]
    assert run("histogram", pattern, tmp_path / "out", *more) == 0
    release = open_release(tmp_path / "out")
    privacy, items = release.manifest["privacy"], release.items
    assert list(items.columns) == ["item", "level", "count", "stddev", "low", "high"]
    noise = choose_noise(0.99 * 4, 1e-6, ItemBound(3, most))
    (stated,) = privacy["rounds"]
    assert (stated["noise"], stated["threshold"]) == (noise.kind, noise.threshold)
    assert stated["delta"] == privacy["delta_spent"] == noise.delta <= privacy["delta"] == 1e-6
    assert privacy["epsilon_spent"] == stated["epsilon"] + privacy["admission"]["epsilon"] == 4
    assert privacy["trust"] == "central"
    assert abs(privacy["admission"]["users"] - 4000) < 21 * 25  # P[|Z| > 21 / 0.04] < 1e-9
    assert "at most 3 different items a user" in privacy["contribution_bound"]
    # Every user has three records, so at most three items: the drawn items are all of them.
    exact = exact_counts(table().to_pandas(), column, most)
    errors = items["count"].to_numpy() - items["item"].map(exact).to_numpy()
    bound = noise.simultaneous(10**9)  # probability of an excess: 0.05 * 60 / 10^9
    assert 0 < np.abs(errors).max() <= bound
    assert (items["count"] >= noise.threshold).all()
    assert {name for name, count in exact.items() if count >= noise.threshold + bound} <= set(items["item"])
    assert release.manifest["results"]["hidden_count"] == noise.hidden_count()


@pytest.mark.false_alarm(2e-9)
@pytest.mark.drawn
def test_small_maps_have_noise_everywhere_and_no_delta(pattern: str, tmp_path: Path) -> None:
    more = ["--cells", "4", *REGION, *CENTRAL, "--max_items_per_user", "3"]
    assert run("histogram", pattern, tmp_path / "out", *more) == 0
    files = {"index.html", "manifest.json", "cells.parquet", "histogram.png", "basemap.json"}
    assert set(os.listdir(tmp_path / "out")) == files
    release = open_release(tmp_path / "out")
    assert (release.manifest["privacy"]["delta"], release.manifest["results"]["hidden_count"]) == (0, 0)
    cells = release.cells
    assert len(cells) == 256
    frame = table().to_pandas()
    grid = Grid(Region(-1, 50, 1, 51), 4)
    frame["cell"] = grid.codes(frame["longitude"].to_numpy(), frame["latitude"].to_numpy())
    exact = exact_counts(frame, "cell", 1)
    truth = np.array([exact.get(code, 0) for code in range(256)])
    codes = [int(name[1:], 4) for name in cells["cell_id"]]
    errors = cells["count"].to_numpy() - truth[codes]
    assert (truth == 0).any()
    assert 0.3 < errors.std() / cells["stddev"].iloc[0] < 3
    covered = ((cells["low"] <= truth[codes]) & (truth[codes] <= cells["high"])).sum()
    assert covered >= stats.binom.ppf(1e-9, 256, 0.95)
    assert "Negative counts are noise" in page_text((tmp_path / "out" / "index.html").read_text())
    assert_page_follows(tmp_path / "out")


@pytest.mark.false_alarm(2e-7)  # above all, that all nine draws are 0, with either kind of noise
@pytest.mark.parametrize("trust", ["central", "split"])
def test_average_day_is_the_mean_of_users_by_day(tmp_path: Path, trust: str) -> None:
    """Users have several rows of a day in a zone, on up to three days by the clocks of Auckland; one is a day late."""
    rng, users = seeded_rng(7), 400
    rows = 12 * users
    times = np.datetime64("2026-11-15T11:00", "s") + rng.integers(0, 96 * 3600, rows)
    frame = pd.DataFrame({"user_id": rng.integers(0, users, rows), "longitude": rng.choice([-0.75, -0.25, 0.25], rows)})
    logs = pa.Table.from_pandas(frame).append_column("latitude", pa.array(rng.uniform(50, 51, rows)))
    pattern = write_files(logs.append_column("time", pa.array(times, pa.timestamp("s", "UTC"))), tmp_path / "logs", 3)
    boxes = [(box(x / 2, 50, (x + 1) / 2, 51), {"ward": str(x)}) for x in range(-2, 7)]
    options = ["--zones", write_geojson(tmp_path / "wards.geojson", boxes), "--id_column", "ward", "--trust", trust]
    days = ["--day_column", "time", "--period", "2026-11-16:2026-11-18", "--time_zone", "Pacific/Auckland"]
    more = [*options, *days, "--max_items_per_user", "3", "--average_day"]
    assert run("histogram", pattern, tmp_path / "out", *more) == 0
    release = open_release(tmp_path / "out")
    published, (round_,) = release.table("zones"), release.manifest["privacy"]["rounds"]
    frame["ward"] = np.floor(2 * frame["longitude"]).astype(int).astype(str)
    frame["day"] = (times + np.timedelta64(13, "h")).astype("datetime64[D]").astype(str)  # of Auckland in November
    visits = frame[frame["day"] <= "2026-11-18"].drop_duplicates(["user_id", "ward", "day"])
    assert 3 * users < len(visits) < len(frame) * 0.7
    exact = visits.groupby("ward").size() / 3
    errors = published["count"] - published["zone"].map(exact).fillna(0)
    assert release.manifest["parameters"]["bound"] == {"max_items": 3, "max_records": 3}
    noise = choose_noise(round_["epsilon"], 0, ItemBound(3, 3), public=True)
    assert published["stddev"].iloc[0] == pytest.approx(round_["noise_stddev"] / 3)
    assert 0 < np.abs(errors).max() <= 2 * noise.simultaneous(10**9) / 3
    np.testing.assert_allclose((3 * errors).round(6) % 1, 0)  # noise was added before the division
    assert (published["low"] <= published["count"]).all()
    assert (published["count"] <= published["high"]).all()
    page = page_text((tmp_path / "out" / "index.html").read_text())
    assert "mean of 3 days" in page
    assert "(all days together: " in page
    assert list(contradictions(release)) == []
    assert_page_follows(tmp_path / "out")


@pytest.mark.false_alarm(1e-7)  # above all, that all nine draws are 0
def test_zones_count_each_user_in_every_zone_of_theirs(pattern: str, tmp_path: Path) -> None:
    """Every user has three records, so at most three zones. Two of the zones have a name; the last is empty."""
    boxes = [(box(x / 2, 50 + y / 2, (x + 1) / 2, 50 + (y + 1) / 2), f"{x},{y}") for x in range(-2, 2) for y in (0, 1)]
    names = {"-2,0": "Harbour", "0,1": "Market"}
    rows = [(shape, {"ward": ward, "title": names.get(ward)}) for shape, ward in [*boxes, (box(2, 50, 3, 51), "sea")]]
    zones = write_geojson(tmp_path / "wards.geojson", rows)
    more = ["--zones", zones, "--id_column", "ward", "--label_column", "title", "--max_items_per_user", "3", *CENTRAL]
    assert run("histogram", pattern, tmp_path / "out", *more) == 0
    release = open_release(tmp_path / "out")
    published, (round_,) = release.table("zones"), release.manifest["privacy"]["rounds"]
    assert published["zone"].tolist() == [row["ward"] for _, row in rows]
    assert dict(published[["zone", "name"]].dropna().to_numpy()) == names
    assert (release.manifest["privacy"]["delta"], round_["threshold"]) == (0, None)
    frame = table().to_pandas()
    column, row = np.floor(2 * frame["longitude"]), np.floor(2 * frame["latitude"]) - 100
    frame["ward"] = column.astype(int).astype(str) + "," + row.astype(int).astype(str)
    exact = exact_counts(frame, "ward", 1)
    errors = published["count"] - published["zone"].map(exact).fillna(0)
    noise = choose_noise(round_["epsilon"], 0, ItemBound(3), public=True)
    assert round_["noise_stddev"] == noise.stddev
    assert 0 < np.abs(errors).max() <= noise.simultaneous(10**9)
    page = page_text((tmp_path / "out" / "index.html").read_text())
    assert "Harbour" in page
    assert "counted" in page


def test_zones_around_stops_have_the_points_of_the_stops(pattern: str, tmp_path: Path) -> None:
    """Also in CSV, and where circles are cut: the last two are."""
    stops = pd.DataFrame({"stop": ["a", "b", "c"], "lat": [50.5, 50.7, 50.7001], "lon": [0.25, 0.5, 0.5]})
    stops.to_csv(tmp_path / "stops.csv", index=False)
    more = [
        "--zones",
        str(tmp_path / "stops.csv"),
        "--id_column",
        "stop",
        "--radius",
        "9000",
        "--max_bad_fraction",
        "1",
    ]
    assert run("histogram", pattern, tmp_path / "out", *more, *CENTRAL) == 0
    release = open_release(tmp_path / "out")
    assert cli.main(["export", release.path, "--output", str(tmp_path / "out.csv")]) == 0
    for found in (release.table("zones"), pd.read_csv(tmp_path / "out.csv")):
        assert found[["zone", "latitude", "longitude"]].to_numpy().tolist() == stops.to_numpy().tolist()


@pytest.mark.parametrize(("square", "unit"), [("Market Square", "riders"), ("Users Square", "users")])
def test_a_page_calls_users_and_zones_as_their_columns_do(tmp_path: Path, square: str, unit: str) -> None:
    """But a place keeps its name in every sentence, and tables their columns."""
    rng = seeded_rng(3)
    frame = {"rider_id": np.arange(999), "longitude": rng.choice([-0.75, 0.25], 999), "latitude": [50.5] * 999}
    pq.write_table(pa.table(frame), tmp_path / "logs.parquet")
    (tmp_path / "stops.csv").write_text(
        f"stop_id,name,lat,lon\na,{square},50.5,-0.75\nb,Industrial Zone,50.5,0.25\nc,Gate,50.5005,0.25\n"
    )
    stops = ["--zones", str(tmp_path / "stops.csv"), "--id_column", "stop_id", "--label_column", "name"]
    more = [*stops, "--radius", "300", "--trust", "central", "--user_id_column", "rider_id"]
    assert run("histogram", str(tmp_path / "logs.parquet"), tmp_path / "out", *more) == 0
    view = view_in_page((tmp_path / "out" / "index.html").read_text())
    assert isinstance(view.body, MapBody)
    (layer,) = view.body.layers
    assert (view.title, layer.noun, layer.measures[0].unit) == (f"{unit.capitalize()} by stop", "stop", unit)
    assert sorted(layer.cell_id) == ["Gate", "Industrial Zone", square]
    note = layer.measures[0].listed_note
    assert re.search(rf"2 stops are within 200 m of another.*Gate.*\(56 m apart\).*move {unit} between", note)
    texts = [view.headline, view.description, layer.note, layer.measures[0].name, *(chip.text for chip in view.chips)]
    assert re.search(f"{square}|Industrial Zone", view.headline)
    words = {one.lower() for one in re.findall(r"\w+", " ".join(texts).replace("Industrial Zone", ""))}
    assert words.isdisjoint({"zone", "zones", *(("user", "users") if unit == "riders" else ("rider", "riders"))})
    page = page_text((tmp_path / "out" / "index.html").read_text())
    assert "by the column rider_id" in page
    assert ("one stop a rider, chosen at random" in page) == (unit == "riders")
    assert "Threshold" not in page  # there is none, and one level
    assert "errors of position" in page  # whatever the points are called
    assert "count" in open_release(tmp_path / "out").table("zones")


def test_a_page_with_all_zones_states_users_as_they_are_known() -> None:
    """The counts of 3,600 zones add up to noise of some thousands; the run's own count of users is better."""
    zones = zones_of([box(i / 60, j / 60, (i + 1) / 60, (j + 1) / 60) for i in range(60) for j in range(60)])
    counted, plan = ZoneItems(LocationColumns(), ZoneLocator(zones)), CentralCountPlan(epsilon=0.02, domains=(3_600,))
    exact = ItemCounts(np.arange(3, dtype=np.uint64), np.full(3, 1_000))
    counts = noisy_levels([exact], plan, RunKey.derive(FixedSecret(b"users" * 7), {"job": "page"}), (0,))
    described = ReleaseMetadata(
        "histogram", "page", "2026-11-29T00:00:00", "test", True, {"bound": {"max_items": 1, "max_records": 1}}
    )
    headlines = []
    for stddev in (10.0, 140.0):
        users = NoisyUserCounts(3_050.0, 0.0, 0.01, stddev)
        files = central_files(replace(counts, admission=users), CountMetadata(described, plan, counted))
        assert pq.read_table(io.BytesIO(files["zones.parquet"])).num_rows == 3_600
        headlines.append(counts_view(files).headline)
    assert headlines[0] == "About 3,050 users, each in one of 3,600 zones"
    assert headlines[1].startswith("About 3,000 (±\u00a0300) users, each in ")


@pytest.mark.parametrize(("metres", "depth"), [(150, 1), (12_800, 7), (26_000, 8), (4e6, 12)])
def test_hotspots_count_in_cells_of_some_100_metres(metres: float, depth: int) -> None:
    side = metres / 111_195
    options = {"input": "x", "output": "y", "region": f"0,0,{side},{side}", "trust": "central"}
    for more, expected in (({}, depth), ({"depth": 5}, 5)):
        counted = HotspotsRequest(**options, **more).resolve().counted
        assert isinstance(counted, CellItems)
        assert counted.grid.depth == expected


@pytest.mark.parametrize("users", [0, 9_000])
def test_a_page_lists_no_zone_that_may_be_empty(users: int) -> None:
    """A list of the highest lower bounds contains none at or below zero, however few others there are."""
    zones = zones_of([box(i, 50, i + 1, 51) for i in range(8)])
    counted, plan = ZoneItems(LocationColumns(), ZoneLocator(zones)), CentralCountPlan(bound=ItemBound(3), domains=(8,))
    exact = ItemCounts(np.arange(8, dtype=np.uint64), np.array([users] + [0] * 7))
    counts = noisy_levels([exact], plan, RunKey.derive(FixedSecret(b"zones" * 7), {"job": "page"}), (0,))
    parameters = {"bound": {"max_items": 3, "max_records": 1}}
    described = ReleaseMetadata("histogram", "page", "2026-11-29T00:00:00", "test", True, parameters)
    admitted = NoisyUserCounts(9_000.0, 0.0, 0.01, 141.0)
    view = counts_view(central_files(replace(counts, admission=admitted), CountMetadata(described, plan, counted)))
    body = view.body
    assert isinstance(body, MapBody)
    (measure,) = body.layers[0].measures
    assert len(measure.value) == 8
    assert {row for row, *_ in measure.listed} == {row for row in range(8) if not measure.uncertain[row]}
    assert all(low > 0 for _, _, low, _ in measure.listed)
    assert users == 0 or measure.listed[0][0] == 0
    assert measure.listed_note
    headline = view.headline
    assert headline.startswith("Zone 0 has the highest count of 8 zones: about ") == (users > 0)
    texts = [text for section in view.sections for text in section.paragraphs]
    assert any(text.startswith("About 9,000") for text in [headline, *texts])
    assert not any("the threshold selected" in text for text in texts)  # every zone is published
    assert "without an id, a place or a time are not counted" in body.layers[0].note


@pytest.mark.parametrize("published", [0, 2])
def test_a_page_of_hidden_zones_credits_no_users_to_the_others(published: int) -> None:
    """A threshold hid most of 5,000 zones: nobody knows how many users the published ones hold."""
    zones = zones_of([box(i / 50, j / 50, (i + 1) / 50, (j + 1) / 50) for i in range(50) for j in range(100)])
    counted, plan = (
        ZoneItems(LocationColumns(), ZoneLocator(zones)),
        CentralCountPlan(bound=ItemBound(3), domains=(5000,)),
    )
    exact = ItemCounts(np.arange(published, dtype=np.uint64), np.full(published, 9_000))
    counts = noisy_levels([exact], plan, RunKey.derive(FixedSecret(b"zones" * 7), {"job": "page"}), (0,))
    parameters = {"bound": {"max_items": 3, "max_records": 1}}
    described = ReleaseMetadata("histogram", "page", "2026-11-29T00:00:00", "test", True, parameters)
    users = NoisyUserCounts(50_000.0, 0.0, 0.01, 141.0)
    files = central_files(replace(counts, admission=users), CountMetadata(described, plan, counted))
    assert pq.read_table(io.BytesIO(files["zones.parquet"])).num_rows == published
    view = counts_view(files)
    assert ("pairs of a user and a zone" in view.headline) == (published == 2)
    assert ("no zone" in view.headline) == (published == 0)
    assert any("the threshold selected" in text for section in view.sections for text in section.paragraphs)
    assert "hold about 50,000" not in view.model_dump_json()
    assert isinstance(view.body, MapBody)
    assert view.body.missing.startswith("No zone here, or not published")


# --- a public list of items: pure differential privacy, and every item is published, present or not ---


USERS = 3000


def write_logs(folder: Path, kinds: pa.Array) -> str:
    """Two files of one record a user."""
    folder.mkdir()
    table = pa.table({"user_id": np.arange(len(kinds)), "kind": kinds})
    for number in range(2):
        pq.write_table(table.slice(number * len(kinds) // 2, len(kinds) // 2), folder / f"{number}.parquet")
    return str(folder / "*.parquet")


def run_listed(tmp_path: Path, kinds: pa.Array, listed: str, *more: str, trust: str = "central") -> int:
    (tmp_path / "items").write_text(listed)
    options = ["--column", "kind", "--trust", trust, "--items_file", str(tmp_path / "items"), "--seed", "1", *more]
    return cli.main(
        ["histogram", "--input", write_logs(tmp_path / "logs", kinds), "--output", str(tmp_path / "out"), *options]
    )


@pytest.mark.false_alarm(1e-9)
@pytest.mark.parametrize(("numbers", "trust"), [(True, "central"), (False, "split")])
def test_every_listed_item_is_published_with_noise_at_delta_0(tmp_path: Path, numbers: bool, trust: str) -> None:
    names = ["3", "14", "159"] if numbers else ["bus", "tram", "straße"]
    kinds = seeded_rng(0).choice([*names, "26"], USERS, p=[0.5, 0.3, 0.1, 0.1])
    column = pa.array(kinds.astype(np.int64)) if numbers else pa.array(kinds).dictionary_encode()
    assert run_listed(tmp_path, column, "\n".join([*names, "none"]), trust=trust) == 0
    release = open_release(tmp_path / "out")
    privacy = release.manifest["privacy"]
    assert (privacy["trust"], privacy["delta"], privacy["rounds"][0]["threshold"]) == (trust, 0, None)
    counts = release.items.set_index("item")["count"]
    assert set(counts.index) == {*names, "none", "other"}
    truth = {**{name: (kinds == name).sum() for name in names}, "none": 0, "other": (kinds == "26").sum()}
    far = stats.laplace.isf(FLAKE_RATE / 20, scale=1 / privacy["rounds"][0]["epsilon"])
    far *= 2 if trust == "split" else 1  # neither server's noise is larger
    assert all(abs(counts[name] - number) <= far + 1 for name, number in truth.items())
    assert "26" not in str(release.manifest["parameters"])


def test_unlisted_values_never_leave(tmp_path: Path) -> None:
    assert run_listed(tmp_path, pa.array([*["bus"] * 999, "zebra-1871"]), "bus\ntram\n") == 0
    files = [path.read_bytes() for path in (tmp_path / "out").iterdir()]
    assert not any(b"zebra-1871" in content for content in files)
    assert set(open_release(tmp_path / "out").items["item"]) == {"bus", "tram", "other"}


@pytest.mark.parametrize("listed", ["", "a\na\n", "a\nother\n"])
def test_histogram_rejects_a_list_without_different_items(tmp_path: Path, listed: str) -> None:
    (tmp_path / "items").write_text(listed)
    with rejects("items_file"):
        options = {"column": "kind", "trust": "central", "items_file": str(tmp_path / "items")}
        HistogramRequest.of({"input": "x", "output": "out", **options}).resolve()


@pytest.mark.parametrize(
    ("options", "option"),
    [
        ({"column": "kind"}, "items_file"),  # two servers count public items only
        ({"region": "-1,50,1,51", "cells": 3, "delta": 1e-6}, "delta"),
        ({"region": "-1,50,1,51", "cells": 3, "noise": "gaussian"}, "noise"),
        ({"region": "-1,50,1,51", "cells": 3, "items": 9}, "items"),
    ],
)
def test_histogram_rejects_what_two_servers_cannot_do(options: dict[str, object], option: str) -> None:
    with rejects(option):
        HistogramRequest.of({"input": "x", "output": "out", "trust": "split", **options}).resolve()
