"""The page of nightly releases: each night's map against brute force, and what the page is made of."""

from __future__ import annotations

import base64
import gzip
import json
import re
import shutil
from datetime import date, timedelta
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from numpy.random import default_rng
from numpy.typing import NDArray

from sfumato.pipelines.command_line.cli import main
from sfumato.schemas.errors import FormatError, RequestError
from sfumato.schemas.ranges import Field
from sfumato.schemas.release import ANSWERS_FILE, ANSWERS_SCHEMA, CELLS_FILE, MANIFEST_FILE, PAGE_FILE, ZONES_FILE
from sfumato.schemas.rotation import Rotation
from sfumato.schemas.timeline import DatedRelease, PlaceChange, Spending
from sfumato.schemas.tree import Tree, node_names, node_positions
from sfumato.schemas.views.chart_views import MomentsBody
from sfumato.schemas.views.flow_views import NightMap, TimelineBody
from sfumato.schemas.views.map_views import MapBody
from sfumato.transforms.release import timeline_view as module
from sfumato.transforms.release.metadata import parquet_bytes
from sfumato.transforms.release.published_release import Release, open_release
from sfumato.transforms.release.release_folder import publish
from sfumato.transforms.release.release_index import update_timeline
from sfumato.transforms.release.timeline_view import TIMELINE_FILE, night_map, timeline_bytes, timeline_view
from sfumato.transforms.report.report import view_in_page
from tests.releases import Releases
from tests.seeds import seeded_rng
from tests.unit.release.city import city_release

REGION = {"west": -122.5, "south": 37.7, "east": -122.3, "north": 37.8}
FIRST = date(2026, 10, 22)
PRINTED = re.compile(r'sfumatoMap\("([0-9-]*)","([A-Za-z0-9+/=]*)"\);\n')


# --- one night's map ---


def a_tree(seed: int, depth: int) -> Tree:
    """Some nodes of every level; several own what their descendants leave over."""
    rng = default_rng(seed)  # not seeded_rng: stored changes of the page are made of these trees
    nodes = [np.uint64(1)]
    for level in range(1, depth + 1):
        nodes += [np.uint64((1 << (2 * level)) + code) for code in np.flatnonzero(rng.random(4**level) < 0.4 / level)]
    return Tree.of(depth, np.array(nodes, np.uint64))


def a_release(folder: Path, depth: int, names: list[str], count: Any, stddev: Any, **manifest: Any) -> Release:
    """A release of cells alone, as an earlier version without digests would have published it."""
    table = {"cell_id": names, "count": np.asarray(count, np.float64), "stddev": np.asarray(stddev, np.float64)}
    (folder / CELLS_FILE).write_bytes(parquet_bytes(pa.table(table)))
    told = {"format": "sfumato-release/2", "job": "heatmap", "region": REGION, "grid": {"depth": depth}, **manifest}
    return Release(str(folder), told, "")


def read(file: bytes) -> NightMap:
    found = PRINTED.fullmatch(file.decode())
    assert found
    night = NightMap.model_validate_json(gzip.decompress(base64.b64decode(found[2])))
    assert night.date == found[1]
    return night


def owners(tree: Tree) -> NDArray[np.int64]:
    """The entry of each finest cell, int64[side, side]: the deepest node over it, by asking every node."""
    side = 1 << tree.depth
    levels, columns, rows = node_positions(tree.entries)
    owner = np.zeros((side, side), int)
    for y in range(side):
        for x in range(side):
            over = [
                i
                for i in range(len(levels))
                if (x >> (tree.depth - levels[i]), y >> (tree.depth - levels[i])) == (columns[i], rows[i])
            ]
            owner[y, x] = max(over, key=lambda i: levels[i])
    return owner


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("most", [1 << 15, 7])
def test_a_night_agrees_with_brute_force(seed: int, most: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_CELLS", most)
    tree, rng = a_tree(seed, 4), seeded_rng(100 + seed)
    counts, stddev = rng.normal(50, 40, len(tree.entries)), rng.uniform(0.1, 9, len(tree.entries))
    order = rng.permutation(len(counts))
    release = a_release(tmp_path, 4, np.array(node_names(tree.entries))[order].tolist(), counts[order], stddev[order])
    file = night_map("2026-11-20", release)
    assert file == night_map("2026-11-20", release)
    night = read(file)
    layer, owner, side = night.layer, owners(tree), 16
    assert len(layer.level) <= most
    assert night.finest_metres == pytest.approx(Field(release.grid).cell_metres)  # type: ignore[arg-type]
    # Every pixel's owner in the map, deepest first, must have the sums of its pixels' owners.
    shown = np.full((side, side), -1)
    for row, (level, x, y) in enumerate(zip(layer.level, layer.x, layer.y, strict=True)):
        wide = side >> level
        shown[y * wide : (y + 1) * wide, x * wide : (x + 1) * wide] = row
    assert set(shown.ravel().tolist()) == set(range(len(layer.level)))
    for row in range(len(layer.level)):
        pixels = shown == row
        inside = np.unique(owner[pixels])
        assert not np.isin(owner[~pixels], inside).any()  # no cell is torn apart
        np.testing.assert_allclose(layer.area[row], pixels.sum() / (side >> layer.level[row]) ** 2, rtol=1e-6)
        np.testing.assert_allclose(layer.measures[0].value[row], counts[inside].sum(), rtol=1e-4)
        np.testing.assert_allclose(night.users[row], counts[inside].sum(), rtol=1e-4)
        np.testing.assert_allclose(night.stddev[row], np.sqrt((stddev[inside] ** 2).sum()), rtol=1e-3)


def test_uncertain_cells_are_marked(tmp_path: Path) -> None:
    tree = Tree.uniform(3, 1)
    release = a_release(tmp_path, 3, node_names(tree.entries), [100.0, 19.0, 20.0, -5.0], [10.0] * 4)
    measure = read(night_map("2026-11-20", release)).layer.measures[0]
    assert measure.uncertain == [False, True, False, True]
    assert measure.low[0] == pytest.approx(80.4)
    assert measure.low[1] == 0


def test_differences_rest_on_unshrunk_users(tmp_path: Path) -> None:
    """Users and deviations are those of `Release.total` where errors go together; variances of sums are not above."""
    made = city_release("adaptive")
    publish(str(tmp_path / "out"), made.files, "made-up", False)
    release = open_release(tmp_path / "out")
    users, stddev = release.unbiased_cells()
    names = release.arrow_table(CELLS_FILE)["cell_id"].to_pylist()
    night = read(night_map("2026-11-20", release))
    assert not night.lower_bound
    for row in (0, 5, len(night.users) - 1):
        cell = names.index(night.layer.cell_id[row])
        exact = release.total(np.arange(len(names)) == cell)
        assert night.users[row] == pytest.approx(exact[0], rel=1e-4)
        assert exact[1] <= night.stddev[row] * (1 + 1e-3)
    whole = [i for i, name in enumerate(night.layer.cell_id) if night.layer.area[i] == 1]
    single = release.total(np.arange(len(names)) == names.index(night.layer.cell_id[whole[0]]))
    assert night.stddev[whole[0]] == pytest.approx(single[1], rel=1e-3)
    rng = seeded_rng(4)
    for _ in range(50):
        chosen = rng.random(len(names)) < rng.uniform(0.05, 0.95)
        total, deviation = release.total(chosen)
        assert total == pytest.approx(users[chosen].sum())
        assert deviation <= np.sqrt((stddev[chosen] ** 2).sum()) * (1 + 1e-9)


@pytest.mark.parametrize(
    ("cells", "words"),
    [
        ({"names": ["r4"]}, "names"),
        ({"names": ["r00000"]}, "names"),
        ({"names": ["x"]}, "names"),
        ({"stddev": [np.nan]}, "damaged"),
        ({"count": [np.inf]}, "damaged"),
        ({"names": ["r", "r0", "r1", "r2", "r3"], "count": [1.0] * 5, "stddev": [1.0] * 5}, "damaged"),
        ({"region": None}, "region or depth"),
    ],
)
def test_a_map_that_makes_no_sense_is_refused(cells: dict[str, Any], words: str, tmp_path: Path) -> None:
    whole = {"names": ["r"], "count": [1.0], "stddev": [1.0]} | cells
    with pytest.raises(RequestError, match=words):
        night_map("2026-11-20", a_release(tmp_path, 4, **whole))


def test_night_of_zones_shows_what_its_page_shows(published: Releases, tmp_path: Path) -> None:
    release = open_release(published["visits"])
    night = read(night_map("2026-11-20", release))
    body = view_in_page(release.read(PAGE_FILE).decode()).body
    assert isinstance(body, MapBody)
    assert night.layer == body.layers[-1]
    assert night.layer.measures[0].value == release.arrow_table(ZONES_FILE)["count"].to_pylist()
    assert night.region == body.region
    assert not night.users  # so no change is tested on the page
    older = {name: value for name, value in release.manifest.items() if name != "files"}
    for page in ("", '<script type="text/plain" id="view">AAAA</script>'):
        (tmp_path / PAGE_FILE).write_text(page)
        with pytest.raises(FormatError):
            night_map("2026-11-20", Release(str(tmp_path), older, ""))


def test_nights_of_other_zones_show_the_layer_of_their_page(published: Releases, tmp_path: Path) -> None:
    """Of zones in levels the finest, which the page shows first; of moments their first statistic too."""
    levels = open_release(published["zones, levels"])
    zones = levels.arrow_table(ZONES_FILE).to_pandas()
    finest = zones["zone"][zones["level"] == "tract"].tolist()
    found = read(night_map("2026-11-20", levels)).layer.zones
    assert [one for one, _ in found or ()] == finest
    city, moments = published.city, tmp_path / "moments"
    job = ["moments", "--column", "latitude", "--range", "37,38", "--trust", "central", "--epsilon", "9"]
    job += ["--zones", str(city / "zones.geojson"), "--id_column", "tract"]
    assert main([*job, "--input", str(city / "logs" / "*.parquet"), "--output", str(moments)]) == 0
    release = open_release(moments)
    body = view_in_page(release.read(PAGE_FILE).decode()).body
    assert isinstance(body, MomentsBody)
    assert body.map is not None
    assert read(night_map("2026-11-20", release)).layer == body.map.layers[-1]


def test_timeline_lists_the_maps_of_zones(published: Releases, tmp_path: Path) -> None:
    """A page that was changed, or that another version made, is shown by itself, and ends no refresh."""
    root, day = tmp_path / "published", "2026-11-20"
    folder = root / "releases" / day
    shutil.copytree(published["visits"], folder)
    update_timeline(str(root), None)
    night = json.loads((root / TIMELINE_FILE).read_text())["nights"][0]
    assert read((root / night["map"]).read_bytes()).date == day
    (folder / PAGE_FILE).write_text("of another version")
    (root / night["map"]).unlink()
    update_timeline(str(root), None)
    assert json.loads((root / TIMELINE_FILE).read_text())["nights"][0]["map"] is None
    manifest = json.loads((folder / MANIFEST_FILE).read_text())
    manifest["files"][PAGE_FILE]["sha256"] = sha256(b"of another version").hexdigest()
    (folder / MANIFEST_FILE).write_text(json.dumps(manifest))
    update_timeline(str(root), None)
    assert json.loads((root / TIMELINE_FILE).read_text())["nights"][0]["map"] is None


# --- the page ---


def day(number: int) -> str:
    return str(FIRST + timedelta(number))


def a_night(number: int, **changes: Any) -> DatedRelease:
    told = {
        "date": day(number),
        "release_id": f"bay-{day(number)}",
        "folder": f"releases/{day(number)}",
        "job": "heatmap",
        "epsilon": 0.5,
        "delta": 0.0,
        "users": 120_000.0 + 1000 * number,
        "created": f"{day(number)}T03:00:00+00:00",
        "warm_start": f"bay-{day(number - 1)}" if number else None,
        "map": f"maps/{day(number)}.js",
        "safe": True,
    }
    return DatedRelease(**(told | changes))


def a_limit(nights: int, days: int = 365, epsilon: float = 200.0) -> Spending:
    return Spending(epsilon, 0.0, days, [(day(i), 0.5 * min(i + 1, days)) for i in range(nights)])


def view(nights: list[DatedRelease], spending: tuple[Spending, ...] = ()) -> Any:
    return timeline_view({TIMELINE_FILE: timeline_bytes("bay", nights, spending)})


def test_nights_come_in_the_order_of_their_dates() -> None:
    nights = [a_night(i) for i in range(9)]
    assert timeline_bytes("bay", nights[::-1], [a_limit(9)]) == timeline_bytes("bay", nights, [a_limit(9)])
    made = view(nights[::-1], (a_limit(9),))
    assert isinstance(made.body, TimelineBody)
    assert [night.date for night in made.body.nights] == [night.date for night in nights]
    assert [night.folder for night in made.body.nights] == [night.folder for night in nights]
    assert any("4.5 of 200 was spent" in text for one in made.sections for text in one.paragraphs)
    assert made.headline == "9 days, 22 October 2026 to 30 October 2026"
    table = made.sections[-1].table
    assert (table.rows[0][0], table.links[0]) == (day(8), f"releases/{day(8)}/index.html")


def test_pruned_night_leads_to_its_manifest() -> None:
    made = view([a_night(0, map=None, pruned=True), a_night(1)])
    table = made.sections[-1].table
    assert [row[1] for row in table.rows] == ["heatmap", "heatmap (pruned)"]
    assert table.links == [f"releases/{day(1)}/index.html", f"releases/{day(0)}/manifest.json"]
    assert [night.pruned for night in made.body.nights] == [True, False]


def test_change_between_nights_of_zones_is_the_commands() -> None:
    """The page itself compares heatmaps only."""
    zones = [a_night(i, job="zones") for i in range(2)]
    texts = [
        [" ".join(one.paragraphs) for one in view(nights).sections if one.title == "How to read the change"]
        for nights in (zones, [a_night(0), a_night(1)], [a_night(0, job="flows", map=None)])
    ]
    assert [len(one) for one in texts] == [1, 1, 0]
    assert "change map" not in texts[0][0]
    assert "sfumato changes" in texts[0][0]


def test_pages_without_a_night_or_with_one_twice_are_refused() -> None:
    with pytest.raises(ValueError, match="at least one"):
        timeline_bytes("bay", [], [])
    with pytest.raises(ValueError, match="once"):
        timeline_bytes("bay", [a_night(0), a_night(0)], [])


def test_known_seeds_raise_the_alarm() -> None:
    nights = [a_night(i) for i in range(3)]
    assert view(nights).alarm is None
    one = view([*nights, a_night(3, safe=False)])
    assert "The noise of one of them came from a known source" in str(one.alarm)
    assert [row[1] for row in one.sections[-1].table.rows].count("heatmap (not private)") == 1
    assert "all of these releases" in str(view([a_night(i, safe=False) for i in range(3)]).alarm)


def test_cell_without_an_answer_is_measured_by_its_parent(tmp_path: Path) -> None:
    names = ["r0", "r1", "r2", "r30", "r31", "r32", "r33"]
    answers = pa.table(
        {
            "sub_query": pa.array([1] * 7 + [2] * 4, ANSWERS_SCHEMA.field("sub_query").type),
            "cell_id": [*names, "r0", "r1", "r2", "r3"],
            "users": np.full(11, 9.0),
            "stddev": np.ones(11),
        },
        schema=ANSWERS_SCHEMA,
    )
    (tmp_path / ANSWERS_FILE).write_bytes(parquet_bytes(answers))
    release = a_release(tmp_path, 3, names, np.full(7, 9.0), np.ones(7))
    assert read(night_map("2026-11-19", release)).measured == [1, 1, 1, 2, 2, 2, 2]  # no answers are listed
    files = {
        name: {"sha256": sha256((tmp_path / name).read_bytes()).hexdigest()} for name in (CELLS_FILE, ANSWERS_FILE)
    }
    release = a_release(tmp_path, 3, names, np.full(7, 9.0), np.ones(7), files=files)
    assert read(night_map("2026-11-19", release)).measured == [1, 1, 1, 1, 1, 1, 1]


# --- cohorts, and what rests on what ---

PARTITION, OTHER = "0" * 32, "1" * 32


def rotated(number: int, cohorts: int, partition: str = PARTITION, **changes: Any) -> DatedRelease:
    rotation = Rotation(1 + number % cohorts, cohorts, partition)
    return a_night(number, rotation=rotation, **{"epsilon": 1.0, "warm_start": None} | changes)


def brute_force(nights: list[DatedRelease], seed: int) -> tuple[int, float]:
    """How often the user who is asked most is asked, and what that costs: users drawn one by one, in every division."""
    divisions = {night.rotation.partition: night.rotation.cohorts for night in nights if night.rotation}
    rng = seeded_rng(seed)
    cohort_of = {division: rng.integers(1, cohorts + 1, 4000) for division, cohorts in divisions.items()}
    times_queried, cost = np.zeros(4000, np.int64), np.zeros(4000)
    for night in nights:
        is_asked: Any = np.ones(4000, bool)
        if night.rotation is not None:
            is_asked = cohort_of[night.rotation.partition] == night.rotation.cohort
        times_queried += is_asked
        cost += is_asked * night.epsilon
    return int(times_queried.max()), float(cost.max())


@pytest.mark.parametrize(
    "nights",
    [
        [rotated(i, 30) for i in range(30)],
        [rotated(i, 30) for i in range(31)],
        [rotated(i, 4, epsilon=0.25) for i in range(0, 29, 3)],
        [rotated(i, 5) for i in range(9)] + [rotated(i, 3, OTHER, epsilon=0.5) for i in range(9, 20)],
        [rotated(i, 5) for i in range(9)] + [a_night(i, epsilon=0.2) for i in range(9, 12)],
        [rotated(i, 4, epsilon=0.1 * (1 + i % 3)) for i in range(20)],
    ],
)
def test_the_page_states_the_sums_of_the_user_who_was_asked_most(nights: list[DatedRelease]) -> None:
    # 4,000 users are in every combination of at most 15 cohorts, but for a probability of 15 (1 - 1/15)^4000 < 1e-100;
    # with 30 cohorts, 30 (1 - 1/30)^4000 < 1e-50.
    times_queried, cost = brute_force(nights, 5)
    made = view(nights)
    words = {1: "once", 2: "twice"}.get(times_queried, f"{times_queried} times")
    text = next(one for one in made.sections if one.title == "Budget spent").paragraphs[0]
    assert f"queried no user more than {words}." in text
    assert f"loses at most ε {cost:.6g}." in text
    assert made.chips[0].text == f"ε {cost:.4g}"
    assert f"any one user is at most ε {cost:.4g}." in made.guarantee


def test_divisions_that_are_not_known_count_as_several() -> None:
    """Without a partition two nights may have divided the users differently, so that a user was asked on both."""
    made = view([rotated(i, 30, "") for i in range(30)])
    assert made.chips[0].text == "ε 30"


def test_guarantee_of_nights_is_the_ledgers_worst_user() -> None:
    nights = [rotated(i, 30) for i in range(30)]
    made = view(nights, (Spending(1.0, 0.0, 30, [(day(i), 1.0) for i in range(30)]),))
    assert "any one user is at most ε 1 in 30 days" in made.guarantee
    last = made.chips[-1]
    term = "Most spent on one user in the last 30 days, with refused runs"
    assert (last.term, last.text) == (term, "ε 1 of 1")  # others have all of it left
    text = " ".join(next(one for one in made.sections if one.title == "Budget spent").paragraphs)
    assert "a user who was queried most often: once in these days." in text
    assert "ε 30" not in text
    alone = view(nights[:1], (Spending(1.0, 0.0, 30, [(day(0), 1.0)]),))
    assert "Together" not in alone.guarantee


def test_night_tells_its_cohort_its_start_and_changes() -> None:
    gap = (f"{day(0)}:{day(12)}", f"{day(14)}:{day(29)}")
    event = PlaceChange(("r0213",), 2100.0, 1500.0, 2700.0, 150.0)
    nights = [
        rotated(0, 30, rests_on=(day(0),), started_anew="The depth changed from 8 to 7.", changes=()),
        rotated(29, 30, rests_on=gap, changes=(event,)),
    ]
    made = view(nights)
    first, last = made.body.nights
    assert first.notes[1:] == [
        "The estimate is based only on the answers of this day, 22 October 2026.",
        "The series was restarted. The depth changed from 8 to 7.",
    ]
    assert last.notes[0].startswith("Cohort 30 of 30 was queried.")
    assert "29 days, 22 October to 20 November 2026, without 4 November." in last.notes[1]
    assert last.rests_on == [(day(0), day(12)), (day(14), day(29))]
    assert last.changes == [event]
    table = next(one for one in made.sections if one.folded).table
    assert table.rows == [
        [day(29), "30/30", f"29 days since {day(0)}, 1 missing", "1"],
        [day(0), "1/30", "this day. Restarted. The depth changed from 8 to 7.", "0"],
    ]


def test_the_file_of_an_earlier_version_is_read() -> None:
    content = json.loads(timeline_bytes("bay", [a_night(0)], []))
    for night in content["nights"]:
        for name in ("rotation", "rests_on", "started_anew", "changes", "users_stddev"):
            del night[name]
    assert timeline_view({TIMELINE_FILE: json.dumps(content).encode()}) == view([a_night(0)])
