"""One published release for each job and trust model, made once a session and shared by all its processes.

Views, exports, pages and the API read these. A release is made when the first test asks for it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import shapely
from matplotlib.backends.backend_agg import FigureCanvasAgg

from sfumato.pipelines.command_line.cli import main
from sfumato.pipelines.operations.readers import release_view
from sfumato.transforms.release.builder import page_files
from sfumato.transforms.release.published_release import open_release
from sfumato.transforms.release.release_folder import publish
from tests.attacks.city import make_city
from tests.once import made_once
from tests.unit.release.city import city_release

REGION = (-122.51, 37.70, -122.35, 37.82)
_CELLS = ("--region", ",".join(map(str, REGION)))
_SMALL = (*_CELLS, "--depth", "5", "--epsilon", "4", "--shard_size", "300")
_CURATED = ("--trust", "central")
_LOOSE = ("--epsilon", "4", "--delta", "1e-3")
_KINDS = ("--auxiliary", "kind", "--categories", "k0,k1,k2,k3,k4")
_THREE = ("--max_items_per_user", "3")
_LATITUDE = ("--column", "latitude")

# Commands by the kind of release, without input, key and output.
COMMANDS: Mapping[str, tuple[str, ...]] = {
    "monday": ("heatmap", *_SMALL),
    "tuesday": ("heatmap", *_SMALL),
    "rates": ("heatmap", *_SMALL, *_KINDS),
    "heatmap, central": ("heatmap", *_SMALL, *_CURATED),
    "words": ("histogram", "--column", "kind"),
    "histogram": ("histogram", *_CELLS, "--cells", "4", *_LOOSE),
    "empty": ("histogram", *_CELLS, "--cells", "4", "--epsilon", "0.5"),
    "central": ("histogram", *_CELLS, "--cells", "4", *_CURATED),
    "visits": ("histogram", "--zones", "{city}/zones.geojson", "--id_column", "tract", *_CURATED, *_THREE),
    "hotspots": ("hotspots", *_CELLS, "--depth", "6", "--levels", "3", *_LOOSE),
    "hotspots, central": ("hotspots", *_CELLS, "--depth", "4", "--levels", "2", *_CURATED, *_LOOSE),
    "quantiles": ("quantiles", *_LATITUDE, "--range", "37,38", "--bits", "4"),
    "quantiles, central": ("quantiles", *_LATITUDE, "--range", "37,38", *_CURATED, "--epsilon", "1"),
    "moments": ("moments", *_CELLS, *_LATITUDE, "--bits", "8", "--epsilon", "4", "--cells", "2"),
    "moments, central": ("moments", *_LATITUDE, "--range", "37,38", *_CURATED, "--epsilon", "2"),
    "zones": ("zones", "--zones", "{city}/zones.geojson", "--id_column", "tract"),
    "zones, levels": ("zones", "--zones", "{city}/tracts.geojson", "--levels", "tract,county"),
    "trips": ("flows", *_CELLS, "--origin", "longitude,latitude", "--destination", "to_longitude,to_latitude"),
    "ranges": ("ranges", "build", *_CELLS, "--method", "grid", "--epsilon", "8", "--sizes", "500,2000"),
}
# Releases that no job of this machine makes: a posterior heatmap of 7 levels with totals, and one without.
MADE_UP: Mapping[str, dict[str, Any]] = {
    "heatmap": {"method": "adaptive", "depth": 7, "users": 20_000},
    "flat": {"method": "flat", "depth": 4},
}


class Releases:
    """Folders of releases by kind; nobody may change what is in them."""

    def __init__(self, factory: pytest.TempPathFactory):
        self._factory = factory

    @property
    def city(self) -> Path:
        """A folder with the logs of 1,500 users, in `logs`, and what jobs need besides."""

        def make(folder: Path) -> None:
            make_city(folder, 1500)
            (folder / "zones.geojson").write_text(json.dumps(tracts()))

        return made_once(self._factory, "releases_city", make)

    def __getitem__(self, kind: str) -> Path:
        return made_once(self._factory, "release_" + re.sub(r"\W+", "_", kind), lambda folder: self._make(kind, folder))

    def _make(self, kind: str, folder: Path) -> None:
        folder.rmdir()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(FigureCanvasAgg, "draw", FigureCanvasAgg.get_renderer)  # nobody looks at the pictures
            if kind == "changes":
                assert main(["changes", str(self["monday"]), str(self["tuesday"]), "--output", str(folder)]) == 0
            elif kind in MADE_UP:
                publish(str(folder), city_release(**MADE_UP[kind]).files, "made-up", False)
            else:
                city = self.city
                job = [word.replace("{city}", str(city)) for word in COMMANDS[kind]]
                job += ["--input", str(city / "logs" / "*.parquet"), "--key_file", str(city / "key")]
                assert main([*job, "--release_id", kind.partition(",")[0], "--output", str(folder)]) == 0, kind


def tracts() -> dict[str, Any]:
    """Sixteen zones over the city, one of them with a hole."""
    features = []
    for number in range(16):
        west, south = -122.51 + 0.04 * (number % 4), 37.70 + 0.03 * (number // 4)
        shape = shapely.box(west, south, west + 0.04, south + 0.03)
        shape = shape - shapely.box(west + 0.01, south + 0.01, west + 0.02, south + 0.02) if number == 5 else shape
        geometry = shapely.geometry.mapping(shape)
        features.append({"type": "Feature", "properties": {"tract": f"t{number}"}, "geometry": geometry})
    return {"type": "FeatureCollection", "features": features}


def assert_page_follows(folder: Path) -> None:
    """Asserts that a release's page and pictures follow from its other files, byte for byte."""
    made = page_files(release_view(open_release(folder)))
    assert {name: (folder / name).read_bytes() for name in made} == made
