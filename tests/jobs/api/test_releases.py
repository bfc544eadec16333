"""Releases as people meet them in Python: printed, shown in a notebook, plotted, kept."""

from __future__ import annotations

import gc
from pathlib import Path

import matplotlib
import pytest
import shapely

import sfumato
from sfumato.schemas import guarantee

matplotlib.use("Agg")
KINDS = (
    "heatmap",
    "histogram of items",
    "histogram of cells",
    "hotspots",
    "quantiles",
    "moments",
    "ranges",
)


@pytest.fixture(params=KINDS)
def release(request: pytest.FixtureRequest, releases: dict[str, sfumato.Release]) -> sfumato.Release:
    return releases[request.param]


def test_prints_in_a_few_lines(release: sfumato.Release):
    lines = repr(release).splitlines()
    assert 4 <= len(lines) <= 8
    assert max(map(len, lines)) <= 140
    assert f"sfumato {release.manifest['job']}" in lines[0]
    assert "ε" in repr(release)


def test_prints_the_number_of_rows(releases: dict[str, sfumato.Release]):
    assert f"cells ({len(releases['heatmap'].cells):,} rows)" in repr(releases["heatmap"])


def test_the_guarantee_is_two_sentences(release: sfumato.Release):
    assert release.guarantee.count(". ") == 1
    assert release.guarantee.endswith(".")


def test_plots_on_given_axes(release: sfumato.Release):
    from matplotlib import pyplot

    figure, axes = pyplot.subplots()
    assert release.plot(axes) is axes
    assert axes.has_data()
    assert "ε = " in axes.get_title()
    figure.canvas.draw()
    pyplot.close(figure)


def test_plots_on_axes_of_its_own(releases: dict[str, sfumato.Release]):
    from matplotlib import pyplot

    axes = releases["quantiles"].plot()
    assert axes.get_xlabel() == "km_from_home"
    pyplot.close("all")


def test_a_table_that_is_not_there_names_those_that_are(releases: dict[str, sfumato.Release]):
    with pytest.raises(sfumato.RequestError, match=r"no cells\.parquet; it has .*moments\.parquet"):
        _ = releases["moments"].cells
    with pytest.raises(sfumato.RequestError, match=r"no model\.npz; it has"):
        _ = releases["heatmap"].model


def test_cells_have_shapes(releases: dict[str, sfumato.Release]):
    geopandas = pytest.importorskip("geopandas")
    cells = releases["heatmap"].cells
    assert isinstance(cells, geopandas.GeoDataFrame)
    assert cells.crs == "OGC:CRS84"


def test_a_heatmap_has_users_of_zones(releases: dict[str, sfumato.Release]):
    geopandas = pytest.importorskip("geopandas")
    release = releases["heatmap"]
    halves = [shapely.box(3.0, 1.0, 3.07, 1.13), shapely.box(3.07, 1.0, 3.13, 1.13)]
    table = release.zones(halves)
    assert isinstance(table, geopandas.GeoDataFrame)
    assert table["users"].sum() == pytest.approx(release.manifest["results"]["users"], rel=0.01)
    assert (table["low"] <= table["users"]).all()
    with pytest.raises(sfumato.RequestError, match="is of `sfumato moments`"):
        releases["moments"].zones(halves)


def test_every_listed_table_opens(release: sfumato.Release):
    assert all(len(release.table(name).columns) for name in release.tables)


def test_a_release_without_output_goes_with_its_object_and_can_be_kept(
    city: Path, tmp_path: Path, releases: dict[str, sfumato.Release]
):
    release = sfumato.histogram(city / "logs" / "*.parquet", column="infected", epsilon=1.0, delta=1e-6)
    place = Path(release.path)
    kept = release.save(tmp_path / "kept")
    assert place.exists()
    assert kept.digest == release.digest
    with pytest.raises(sfumato.RequestError, match="exists already"):
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
        ({"epsilon": 1.0, "randomness": {"safe": True}, "adjacency": guarantee.ZERO_OUT}, "zeroing the report"),
    ],
)
def test_guarantees_in_two_sentences(privacy: dict[str, object], text: str):
    said = guarantee.two_sentences({"privacy": privacy})
    assert text in said
    assert said.count(". ") == 1
