"""Logs of map cells in place of coordinates: the warning where a map is finer than they are."""

from __future__ import annotations

import json
from pathlib import Path

import h3
import pyarrow as pa
import pytest

from sfumato.pipelines import cli
from tests.log_forms import records, write_csv

pytestmark = pytest.mark.usefixtures("blank_pictures")


@pytest.mark.parametrize(("depth", "warns"), [(4, False), (9, True)])
def test_a_map_that_is_finer_than_the_cells_of_the_logs(
    depth: int, warns: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The region is 111 km high: cells of depth 4 have 6.9 km, of depth 9 0.2 km; H3 cells of resolution 7 have 2.8."""
    table = records(800)
    places = zip(table["latitude"].to_pylist(), table["longitude"].to_pylist(), strict=True)
    cells = pa.array([h3.latlng_to_cell(*place, 7) for place in places])
    path = write_csv(table.select(["user_id"]).append_column("cell", cells), tmp_path / "log.csv")
    options = ["--cell_column=cell", "--cell_index=h3:7", f"--depth={depth}", "--region=-1,50,1,51", "--seed=1"]
    assert cli.main(["heatmap", f"--input={path}", f"--output={tmp_path / 'out'}", *options]) == 0
    assert ("are finer than the logs' h3 cells" in capsys.readouterr().err) == warns
    parameters = json.loads((tmp_path / "out" / "manifest.json").read_text())["parameters"]
    assert (parameters["cell_column"], parameters["cell_index"]) == ("cell", "h3:7")
