"""Options of a map's geography: every job with a map has them, and no noise depends on them."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sfumato.pipelines.command_line import cli
from sfumato.pipelines.command_line.cli import run_command
from sfumato.pipelines.command_line.run import JOBS, request_class
from sfumato.schemas.errors import RequestError
from sfumato.schemas.views.map_views import Geography
from sfumato.transforms.release.published_release import open_release
from tests.conftest import make_logs, write_files

TILES = "https://tile.example.org/{z}/{x}/{y}.png"
HARBOUR = {
    "type": "Feature",
    "properties": {"name": "Harbour"},
    "geometry": {"type": "Point", "coordinates": [0, 50.5]},
}
# Each job with a map, and what it needs besides input, output and region.
MAPS = {
    "heatmap": ["--depth=3", "--shard_size=300"],
    "histogram": ["--cells=2"],
    "hotspots": ["--depth=3"],
    "moments": ["--column=weight", "--bits=4", "--epsilon=2", "--cells=1"],
    "flows": ["--time_column=weight", "--min_distance=0"],
    "ranges build": ["--epsilon=1", "--method=grid", "--sizes=100,1000"],
    "zones": ["--h3=4"],
}
REGION = "--region=-1,50,1,51"


@pytest.fixture(scope="module")
def pattern(tmp_path_factory: pytest.TempPathFactory) -> str:
    logs = make_logs(3000, 1, 0)
    return write_files(logs.append_column("weight", logs["user_id"]), tmp_path_factory.mktemp("geography"), 1)


@pytest.fixture
def basemap(tmp_path: Path) -> str:
    path = tmp_path / "map.geojson"
    path.write_text(json.dumps(HARBOUR))
    return str(path)


def words(job: str, pattern: str, output: Path, *more: str) -> list[str]:
    return [*job.split(), f"--input={pattern}", f"--output={output}", "--seed=1", REGION, *MAPS[job], *more]


def test_the_jobs_with_maps_have_the_options_and_no_others() -> None:
    assert {name for name in JOBS if "tiles" in request_class(name).model_fields} == set(MAPS)


@pytest.mark.slow
@pytest.mark.parametrize("job", MAPS)
def test_geography_is_published_and_changes_no_number(job: str, pattern: str, basemap: str, tmp_path: Path) -> None:
    assert cli.main(words(job, pattern, tmp_path / "plain")) == 0
    assert cli.main(words(job, pattern, tmp_path / "drawn", f"--basemap={basemap}", f"--tiles={TILES}")) == 0
    plain, drawn = open_release(str(tmp_path / "plain")), open_release(str(tmp_path / "drawn"))
    assert plain.listed
    assert set(drawn.listed or ()) == {*plain.listed, "basemap.json"}
    for name in plain.listed:
        if not name.endswith((".html", ".png", "basemap.json")):
            assert drawn.read(name) == plain.read(name), name
    stated = [
        {key: one for key, one in release.manifest.items() if key not in ("created", "files")}
        for release in (plain, drawn)
    ]
    assert stated[0] == stated[1]
    published = Geography.of({"basemap.json": drawn.read("basemap.json")})
    assert published.tiles == TILES
    assert published.basemap is not None
    assert [place.name for place in published.basemap.places] == ["Harbour"]
    assert not drawn.damage()


BAD: list[tuple[list[str], str]] = [
    (["--basemap=nowhere.geojson"], "basemap: nowhere.geojson cannot be read"),
    (["--basemap={folder}"], "basemap: the folder .* must contain one .shp"),
    (["--basemap={logs}"], "basemap: .* is Parquet, but not GeoParquet"),
    (["--basemap=other://x/y"], "basemap: other://x/y cannot be read"),
    (["--tiles=https://tile.example.org/tile.png"], "tiles: must be the address of a tile server"),
    (["--tiles=http://tile.example.org/{{z}}/{{x}}/{{y}}.png"], "tiles: must be the address of a tile server"),
]


@pytest.mark.parametrize(("bad", "message"), BAD)
def test_bad_geography_is_refused_before_anything_is_read(
    bad: list[str], message: str, pattern: str, tmp_path: Path
) -> None:
    filled = [one.format(folder=tmp_path, logs=pattern.replace("*", "log-0")) for one in bad]
    for more in ([], ["--dry_run"]):
        with pytest.raises(RequestError, match=f"^{message}"):
            run_command("hotspots", [*words("hotspots", "no/such/logs", tmp_path / "out")[1:], *filled, *more])
    assert not os.path.exists(tmp_path / "out")


@pytest.mark.slow
def test_changes_show_the_geography_of_the_later_map(pattern: str, basemap: str, tmp_path: Path) -> None:
    maps = ["--depth=3", "--shard_size=300", "--epsilon=4"]
    for day, more in (("monday", []), ("tuesday", [f"--basemap={basemap}", "--seed=2"])):
        arguments = [f"--input={pattern}", f"--output={tmp_path / day}", REGION, *maps, *(more or ["--seed=1"])]
        assert run_command("heatmap", arguments) == 0
    assert (tmp_path / "monday" / "basemap.json").read_text() != (tmp_path / "tuesday" / "basemap.json").read_text()
    for sides in (("monday", "tuesday"), ("tuesday", "monday")):
        folder = tmp_path / "-".join(sides)
        assert run_command("changes", [*(str(tmp_path / day) for day in sides), f"--output={folder}"]) == 0
        assert (folder / "basemap.json").read_text() == (tmp_path / sides[1] / "basemap.json").read_text()


@pytest.mark.usefixtures("no_coast")
def test_a_run_logs_what_it_takes_for_granted(
    pattern: str, basemap: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """No geography, local or converted times, no ledger, secagg: one line each, and none for types with a zone.

    The page's manifest states what times without a zone are.
    """
    table = pq.read_table(Path(pattern).parent)
    seconds = table["weight"].cast(pa.int64()).cast(pa.timestamp("s"))
    for name, kind in (("naive", pa.timestamp("s")), ("zoned", pa.timestamp("s", "UTC"))):
        table = table.append_column(name, seconds.cast(kind))
    (tmp_path / "logs").mkdir()
    pattern = write_files(table, tmp_path / "logs", 1)
    levels = dict[str, str]()

    def events(name: str, *more: str) -> set[str]:
        arguments = words("heatmap", pattern, tmp_path / name, "--log_format=json", *more)
        assert cli.main(arguments) == 0
        lines = [json.loads(line) for line in capfd.readouterr().err.splitlines()]
        levels.update({line["event"]: line["severity"] for line in lines})
        return {line["event"] for line in lines}

    def times(name: str) -> str | None:
        return json.loads((tmp_path / name / "manifest.json").read_text()).get("times")

    taken = {"no_coast", "local_times", "no_ledger"}
    assert taken & events("plain") == {"no_coast"}  # with a seed, which protects nobody
    hours, lisbon = ["--hours=0-24", f"--basemap={basemap}"], "--time_zone=Europe/Lisbon"
    assert taken & events("hours", *hours, "--day_column=naive") == {"local_times"}
    assert levels["local_times"] == "INFO"
    assert taken & events("moved", *hours, "--day_column=naive", lisbon) == {"local_times"}
    assert levels["local_times"] == "WARNING"
    assert "converted to Europe/Lisbon" in str(times("moved"))
    for name, *more in (("zoned", lisbon), ("zoned",), ("weight", lisbon), ("naive", "--time_zone=UTC")):
        assert not taken & events(name, *hours, f"--day_column={name}", "--overwrite", *more)
        assert times(name) is None
    arguments = [word for word in words("heatmap", pattern, tmp_path / "keyed") if word != "--seed=1"]
    for trust in ([], ["--trust=secagg", "--overwrite"]):
        assert cli.main([*arguments, f"--basemap={basemap}", *trust]) == 0
        err = capfd.readouterr().err
        assert "--ledger" in err
        assert ("--trust central" in err) == (not trust)
