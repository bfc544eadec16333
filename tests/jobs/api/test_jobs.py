"""Functions of the public API run jobs as the command line does, and read what is published."""

from __future__ import annotations

import gc
import inspect
import json
import re
import traceback
from itertools import combinations, pairwise
from pathlib import Path

import duckdb
import geopandas
import matplotlib
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import shapely

import sfumato
from sfumato.pipelines.command_line import cli
from sfumato.pipelines.command_line.run import request_class
from sfumato.schemas import guarantee
from tests.jobs.api.conftest import REGION
from tests.rejections import rejects

# --- the functions of the public API run jobs as the command line does ---

pytestmark = pytest.mark.usefixtures("blank_pictures")  # nothing here looks at them

TEXT_REGION = "3.0,1.0,3.13,1.13"
JOBS = ("heatmap", "histogram", "hotspots", "quantiles", "moments", "flows", "ranges", "synth", "plan", "zones")


@pytest.mark.slow
def test_gives_what_the_command_line_gives_under_the_same_seed(city: Path, tmp_path: Path):
    logs = str(city / "logs" / "*.parquet")
    options = {"depth": 5, "epsilon": 1.0, "seed": 3}
    found = sfumato.heatmap(logs, region=REGION, output=tmp_path / "python", **options)
    command = ["heatmap", "--input", logs, "--region", TEXT_REGION, "--output", str(tmp_path / "command")]
    assert cli.main([*command, "--depth", "5", "--epsilon", "1", "--seed", "3"]) == 0
    by_command = sfumato.open_release(tmp_path / "command")
    assert found.manifest["parameters"] == by_command.manifest["parameters"]
    assert found.cells.equals(by_command.cells)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"epsilon": -1}, "epsilon"),
        ({"depth": 99}, "depth"),
        ({"method": "adaptiv"}, "adaptive"),
        ({"no_such_option": 1}, "no_such_option"),
        ({"region": (1, 2, 3)}, "region"),
        ({"input": "nowhere/*.parquet"}, "nowhere"),
        ({"dry_run": True}, "dry_run"),
        ({"region": pd.DataFrame({"a": [1]})}, "^region: .*DataFrame'$"),
        ({"basemap": pd.DataFrame({"a": [1]})}, "^basemap: .*DataFrame$"),
        ({"ledger": "ledger.db", "dataset": "city"}, "output"),
    ],
)
def test_errors_are_exceptions_that_name_the_option(options: dict[str, object], message: str, city: Path):
    given = {"input": city / "logs" / "*.parquet", "region": REGION, **options}
    with pytest.raises(sfumato.RequestError, match=message):
        sfumato.heatmap(**given)


def test_a_refusal_of_a_worker_is_the_same_exception(city: Path, tmp_path: Path):
    """No user is in the region, by noisy counts."""
    with pytest.raises(sfumato.DataError, match="no usable record") as refused:
        sfumato.heatmap(city / "logs" / "*.parquet", region=(100, 50, 101, 51), output=tmp_path / "refused")
    assert "apache_beam" not in "".join(traceback.format_exception(refused.value))
    with pytest.raises(sfumato.RequestError, match="refused"):
        sfumato.open_release(tmp_path / "refused")


def test_a_ledger_is_charged_once_and_then_refuses(city: Path, tmp_path: Path):
    assert cli.main(["key", "new", str(tmp_path / "key")]) == 0
    ledger = str(tmp_path / "ledger.db")
    given = {
        "region": REGION,
        "depth": 4,
        "ledger": ledger,
        "budget": "1.5/30d",
        "dataset": "city",
        "period": "2026-11-17",
        "key_file": tmp_path / "key",
    }
    logs = city / "logs" / "*.parquet"
    first = sfumato.heatmap(logs, release_id="one", output=tmp_path / "one", **given)
    again = sfumato.heatmap(logs, release_id="one", output=tmp_path / "one", **given)
    assert again.digest == first.digest
    with pytest.raises(sfumato.BudgetError):
        sfumato.heatmap(logs, release_id="two", output=tmp_path / "two", **given)


OPTIONS_OF = {"ranges": "ranges build", "plan": "heatmap"}  # a plan's options are the heatmap's
REQUIRED = {("plan", "users")}  # by the function alone


@pytest.mark.parametrize("name", JOBS)
def test_defaults_are_those_of_the_command_line(name: str):
    options = request_class(OPTIONS_OF.get(name, name)).model_fields
    for parameter in inspect.signature(getattr(sfumato, name)).parameters.values():
        if parameter.kind is inspect.Parameter.VAR_KEYWORD or parameter.name == "output":
            continue
        option = options.get(parameter.name) or request_class(name).model_fields[parameter.name]
        required = parameter.default is inspect.Parameter.empty
        assert required == (option.is_required() or (name, parameter.name) in REQUIRED), parameter
        if not required and parameter.default is not None:  # None gives the request's own default
            assert as_text(parameter.default) == as_text(option.default), parameter


def as_text(value: object) -> str:
    return ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


@pytest.mark.parametrize("kind", ["pandas", "pyarrow"])
def test_takes_a_table_in_place_of_files(kind: str, city: Path):
    logs = city / "logs" / "*.parquet"
    table = pa.concat_tables([pq.read_table(file) for file in sorted((city / "logs").glob("*.parquet"))])
    given = table if kind == "pyarrow" else table.to_pandas()
    options = {"column": "infected", "epsilon": 1.0, "delta": 1e-6}
    of_table, of_files = sfumato.histogram(given, **options), sfumato.histogram(logs, **options)
    assert sorted(of_table.items["item"]) == sorted(of_files.items["item"])
    assert of_table.manifest["parameters"] == of_files.manifest["parameters"]


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (5, "input: must be files, a pattern or several, a pandas data frame or a pyarrow table, got int"),
        ([1, 2], "got list"),
        (pd.DataFrame([[1, "secret", 3]], columns=["user_id", "kind", "kind"]), "several columns named 'kind'"),
        (pd.DataFrame({"user_id": [1, 2]}), "kind"),
        (None, "input: required"),
    ],
    ids=["number", "list", "two columns", "no column", "none"],
)
def test_a_table_that_cannot_be_is_refused_without_a_value_of_it(table, message: str):
    with pytest.raises(sfumato.RequestError, match=message) as refused:
        sfumato.histogram(table, column="kind", epsilon=1.0, delta=1e-6)
    assert "secret" not in str(refused.value)


# --- releases as people meet them in Python: printed, shown in a notebook, plotted, kept ---

matplotlib.use("Agg")


def test_plots_on_given_axes(release: sfumato.Release):
    from matplotlib import pyplot

    figure, axes = pyplot.subplots()
    assert release.plot(axes) is axes
    assert axes.has_data() or axes.child_axes[0].has_data()
    assert "ε" in axes.get_title()
    assert "sfumato" not in axes.get_title()
    figure.canvas.draw()
    pyplot.close(figure)


def test_other_libraries_read_a_release_without_a_copy(releases: dict[str, sfumato.Release]):
    release = releases["heatmap"]
    table = release.arrow_table("cells.parquet")
    (found,) = duckdb.sql("select count(*), sum(count) from release").fetchall()
    assert found == pytest.approx((table.num_rows, sum(table["count"].to_pylist())))
    assert pl.DataFrame(release)["cell_id"].to_list() == table["cell_id"].to_pylist()
    frame = geopandas.GeoDataFrame.from_arrow(release)
    assert frame.crs == "OGC:CRS84"
    features = geopandas.GeoDataFrame.from_features(release)
    assert (features.geometry.values == frame.geometry.values).all()
    assert features["count"].to_list() == frame["count"].to_list()


def test_a_heatmap_has_users_of_zones(releases: dict[str, sfumato.Release]):
    geopandas = pytest.importorskip("geopandas")
    release = releases["heatmap"]
    halves = [shapely.box(-122.51, 37.7, -122.43, 37.82), shapely.box(-122.43, 37.7, -122.35, 37.82)]
    table = release.zones(halves)
    assert isinstance(table, geopandas.GeoDataFrame)
    assert table["users"].sum() == pytest.approx(release.manifest["results"]["users"], rel=0.01)
    assert (table["low"] <= table["users"]).all()
    with pytest.raises(sfumato.RequestError, match="got one of `sfumato moments`"):
        releases["moments"].zones(halves)


def test_release_without_output_goes_with_its_object(city: Path, tmp_path: Path, releases: dict[str, sfumato.Release]):
    release = sfumato.histogram(city / "logs" / "*.parquet", column="infected", epsilon=1.0, delta=1e-6)
    place = Path(release.path)
    kept = release.save(tmp_path / "kept")
    assert place.exists()
    assert kept.digest == release.digest
    with pytest.raises(sfumato.RequestError, match="already exists"):
        releases["quantiles"].save(kept.path)
    del release
    gc.collect()
    assert not place.parent.exists()
    assert kept.items.equals(sfumato.open_release(tmp_path / "kept").items)


@pytest.mark.parametrize(
    ("privacy", "text"),
    [
        ({}, "No differential privacy"),
        ({"epsilon": None, "meter": {"bits_per_client": 3}}, "sent 3 bits"),
        ({"epsilon": 1.0}, "Protects nobody"),
        ({"epsilon": 1.0, "randomness": {"safe": True}}, "factor of at most e^ε = 2.72. The operator of the job"),
        ({"epsilon": 1.0, "delta": 1e-6, "randomness": {"safe": True}}, "plus δ = 1e-06"),
        ({"epsilon": 1.0, "randomness": {"safe": True}, "participation": {"protected": False}}, "not protected"),
        ({"epsilon": 1.0, "randomness": {"safe": True}, "trust": "local"}, "sent one bit after randomised response"),
        (
            {"epsilon": 1.0, "randomness": {"safe": True}, "adjacency": guarantee.ADJACENCY_TEXTS[guarantee.ZERO_OUT]},
            "zeroing the report",
        ),
    ],
)
def test_guarantees_in_two_sentences(privacy: dict[str, object], text: str):
    said = guarantee.two_sentences({"privacy": privacy})
    assert text in said
    assert said.count(". ") == 1


LAKE = {"type": "Polygon", "coordinates": [[[3.02, 1.02], [3.05, 1.02], [3.05, 1.06], [3.02, 1.02]]]}
PLACES = {
    "type": "FeatureCollection",
    "features": [
        {"type": "Feature", "properties": {"natural": "water"}, "geometry": LAKE},
        *(
            {"type": "Feature", "properties": {"name": name}, "geometry": {"type": "Point", "coordinates": place}}
            for name, place in {"Mill": [3.04, 1.05], "Outside": [3.15, 1.05]}.items()
        ),
    ],
}


@pytest.mark.parametrize("is_table", [False, True])
def test_zones_of_a_frame_are_those_of_its_file(city: Path, tmp_path: Path, is_table: bool):
    geopandas = pytest.importorskip("geopandas")
    west, south, east, north = REGION
    middle = (west + east) / 2
    halves = [shapely.box(west, south, middle, north), shapely.box(middle, south, east, north)]
    frame = geopandas.GeoDataFrame({"half": ["west", "east"]}, geometry=halves, crs="OGC:CRS84")
    frame.to_file(tmp_path / "halves.gpkg")
    logs = city / "logs" / "*.parquet"
    table = pd.read_parquet(city / "logs") if is_table else logs
    by_frame = sfumato.zones(table, zones=frame, id_column="half", seed=1).zones_table
    (tmp_path / "places.geojson").write_text(json.dumps(PLACES))
    basemap = tmp_path / "places.geojson"
    release = sfumato.zones(table, zones=tmp_path / "halves.gpkg", id_column="half", seed=1, basemap=basemap)
    by_file = release.zones_table
    axes = release.plot()
    (sheet,) = axes.child_axes
    assert {text.get_text() for text in sheet.texts} >= {"Mill", "west", "east"}
    axes.set_xlim(west, east)
    axes.set_ylim(south, north)
    outlines = [path.get_extents(one.get_transform()) for one in sheet.collections for path in one.get_paths()]
    wanted = axes.get_window_extent().extents
    assert any(one.extents[[0, 1, 3]] == pytest.approx(wanted[[0, 1, 3]], abs=0.5) for one in outlines)
    assert by_frame["zone"].to_list() == ["west", "east"]
    assert by_file["users"].min() > 100
    # A table is a new file in each run, and so has other noise, of a standard deviation of 1.4.
    assert by_frame["users"].to_list() == pytest.approx(by_file["users"].to_list(), abs=60 if is_table else 0)
    with rejects("zones"):
        sfumato.zones(table, zones=frame.set_crs(None, allow_override=True), id_column="half")
    for other in (pd.DataFrame({"half": ["west"], "geometry": ["secret"]}), geopandas.GeoDataFrame({"half": ["west"]})):
        with pytest.raises(sfumato.RequestError, match=r"^zones: .*geopandas.GeoDataFrame\(") as refused:
            sfumato.zones(table, zones=other, id_column="half")
        assert "west" not in str(refused.value)
    pd.testing.assert_frame_equal(release.table(), by_file)
    with pytest.raises(sfumato.RequestError, match="zones_total"):
        release.total([1, 0])


@pytest.mark.drawn
@pytest.mark.parametrize("small", [False, True])
def test_plot_names_zones_within_axes_and_apart(city: Path, small: bool):
    """Of strips that are partly so narrow that the names of neighbours would cover each other."""
    from matplotlib import pyplot

    geopandas = pytest.importorskip("geopandas")
    west, south, east, north = REGION
    ends = [west + (east - west) * (number / 20) ** 3 for number in range(21)]
    strips = [shapely.box(left, south, right, north) for left, right in pairwise(ends)]
    names = [f"Strip {number}" for number in range(20)]
    frame = geopandas.GeoDataFrame({"strip": names, "name": names}, geometry=strips, crs="OGC:CRS84")
    release = sfumato.zones(city / "logs" / "*.parquet", zones=frame, id_column="strip", label_column="name", seed=1)
    _, panels = pyplot.subplots(2, 3, squeeze=False, layout="constrained" if small else None)
    axes = release.plot(panels[0, 1] if small else None)
    axes.get_figure().canvas.draw()
    frame_x = axes.get_window_extent().intervalx
    boxes = [one.get_window_extent() for one in axes.child_axes[0].texts if one.get_text() in names]
    assert small or boxes
    assert all(frame_x[0] - 1 <= box.x0 < box.x1 <= frame_x[1] + 1 for box in boxes)
    assert not any(one.overlaps(other) for one, other in combinations(boxes, 2))
    ticks = [one.get_window_extent() for one in axes.get_xticklabels() if one.get_text()]
    assert not any(one.overlaps(other) for one, other in pairwise(ticks))
    pyplot.close("all")


def test_points_of_a_frame_are_converted_to_degrees(city: Path):
    geopandas = pytest.importorskip("geopandas")
    logs = pd.read_parquet(city / "logs").drop_duplicates("user_id")
    points = geopandas.points_from_xy(logs["longitude"], logs["latitude"], crs="OGC:CRS84")
    frame = geopandas.GeoDataFrame({"user_id": logs["user_id"]}, geometry=points).to_crs("EPSG:3857")
    options = {"region": REGION, "depth": 3, "trust": "central", "epsilon": 20}  # the frame names its geometry
    release = sfumato.heatmap(frame.rename_geometry("where"), **options)
    assert release.cells["count"].sum() == pytest.approx(len(logs), abs=len(logs) / 100)
    with rejects("input"):
        sfumato.heatmap(frame.set_crs(None, allow_override=True), **options)
    kinds = sfumato.histogram(frame.assign(kind="tram"), column="kind", trust="central")  # which reads no places
    assert kinds.items["item"].tolist() == ["tram"]


@pytest.mark.parametrize("kind", ["files", "frame", "points"])
def test_inspect_prints_a_call_that_runs(kind: str, city: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    geopandas = pytest.importorskip("geopandas")
    logs = pd.read_parquet(city / "logs").assign(
        timestamp=lambda rows: (16 + rows.index % 2).map("{}.11.2026 08:30".format)
    )
    logs.to_csv(tmp_path / "logs.csv", index=False)
    logs["user_id"] = logs["user_id"].where(logs.index > 0).astype(object)  # a missing id makes no other one a number
    halves = [shapely.box(3.00, 1.00, 3.06, 1.13), shapely.box(3.06, 1.00, 3.13, 1.13)]
    zones = geopandas.GeoDataFrame({"half": ["west", "east"]}, geometry=halves, crs="OGC:CRS84").to_crs(3857)
    input = {"files": str(tmp_path / "logs.csv"), "frame": logs}.get(kind)
    if input is None:
        points = geopandas.points_from_xy(logs.pop("longitude"), logs.pop("latitude"), crs="OGC:CRS84")
        input = geopandas.GeoDataFrame(logs, geometry=points).to_crs(3857)
    sfumato.inspect(input, zones=zones, region=REGION)
    printed = capsys.readouterr().out
    call = next(line.strip() for line in printed.splitlines() if line.startswith("    sfumato."))
    assert "dates='dmy'" in call
    assert "average_day=True" in call
    assert ("(logs," in call) == (kind != "files")
    assert "zones=zones" in call
    assert "--" not in re.sub("-{3,}", "", printed)  # lines of the table
    assert "| user_id_column " in printed
    assert "dates='dmy'" in printed.split("\n\nNext", 1)[0]
    assert eval(call.replace("'at_eight'", "None"), {"sfumato": sfumato, "logs": input, "zones": zones})
    logged = capsys.readouterr().err
    assert "give time_zone" in logged
    assert " --" not in logged
    with rejects("user_id_column"):
        sfumato.inspect(input, user_id_column="nobody")
    with rejects("geometry_column"):
        sfumato.inspect(input, geometry_column="x")
