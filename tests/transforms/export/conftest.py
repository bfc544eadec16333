"""Small releases of every job that has a map, and one of words, as folders."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg

from sfumato.pipelines.cli import main
from sfumato.schemas.region import Grid, Region
from sfumato.transforms.export.export_source import ExportSource
from sfumato.transforms.release.published_release import Release, open_release
from sfumato.transforms.release.release_folder import publish
from tests.attacks.city import make_city
from tests.transforms.release.city import REGION, city_release

CITY_REGION = ["--region", "-122.51,37.70,-122.35,37.82"]
KINDS = ["heatmap", "flat", "rates", "hotspots", "histogram", "central", "words", "moments", "ranges", "changes",
         "empty"]  # fmt: skip
MAPS = [kind for kind in KINDS if kind not in ("words", "empty")]
LICENCE = "CC-BY-4.0"


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Releases by kind: a posterior heatmap with totals, one without, and one of each other job."""
    folder = tmp_path_factory.mktemp("exported")
    publish(str(folder / "heatmap"), city_release("adaptive", depth=7, users=20_000).files, "made-up", False)
    publish(str(folder / "flat"), city_release("flat", depth=4).files, "made-up", False)
    make_city(folder, 1500)
    logs = ["--input", str(folder / "logs" / "*.parquet"), "--key_file", str(folder / "key")]
    small = ["--depth", "5", "--epsilon", "4", "--shard_size", "300"]
    runs = {
        "rates": ["heatmap", *logs, *CITY_REGION, *small, "--auxiliary", "kind", "--categories", "k0,k1,k2,k3,k4"],
        "monday": ["heatmap", *logs, *CITY_REGION, *small],
        "tuesday": ["heatmap", *logs, *CITY_REGION, *small],
        "hotspots": ["hotspots", *logs, *CITY_REGION, "--depth", "6", "--levels", "3", "--epsilon", "4", "--delta",
                     "1e-3"],
        "histogram": ["histogram", *logs, *CITY_REGION, "--cells", "4", "--epsilon", "4", "--delta", "1e-3"],
        "empty": ["histogram", *logs, *CITY_REGION, "--cells", "4", "--epsilon", "0.5"],
        "central": ["histogram", *logs, *CITY_REGION, "--cells", "4", "--trust", "central"],
        "words": ["histogram", *logs, "--column", "kind"],
        "moments": ["moments", *logs, *CITY_REGION, "--column", "latitude", "--bits", "8", "--epsilon", "4", "--cells",
                    "2"],
        "ranges": ["ranges", "build", *logs, *CITY_REGION, "--method", "ag", "--epsilon", "8", "--sizes", "500,2000"],
    }  # fmt: skip
    for name, arguments in runs.items():
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(FigureCanvasAgg, "draw", FigureCanvasAgg.get_renderer)  # nobody looks at the pictures
            assert main([*arguments, "--release_id", name, "--output", str(folder / name)]) == 0, name
    assert main(["changes", str(folder / "monday"), str(folder / "tuesday"), "--output", str(folder / "changes")]) == 0
    for kind in MAPS:
        table = next(name for name in ("cells", "changes", "model") if list((folder / kind).glob(f"{name}.*")))
        assert table == "model" or pq.read_metadata(folder / kind / f"{table}.parquet").num_rows > 1, kind
    return {kind: folder / kind for kind in KINDS}


@pytest.fixture(scope="session")
def sources(folders: dict[str, Path]) -> dict[str, ExportSource]:
    """What to export, by kind."""
    return {
        kind: ExportSource(open_release(path, changes=True), LICENCE, file_name=f"{kind}.file")
        for kind, path in folders.items()
    }


@pytest.fixture(scope="session")
def heatmap(sources: dict[str, ExportSource]) -> Release:
    """A posterior heatmap of 7 levels with totals."""
    return sources["heatmap"].release


HEATMAP_GRID = Grid(Region(**REGION), 7)
