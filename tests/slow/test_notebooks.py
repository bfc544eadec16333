"""The notebooks of the documents run from an empty folder, and show what they are committed with."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path
from typing import Any

import pytest

from tests import ROOT
from tests.conftest import SMALL_DPI

pytest.importorskip("nbclient", reason="the extra `test` is not installed")
nbformat = pytest.importorskip("nbformat", reason="the extra `test` is not installed")

SPEC = importlib.util.spec_from_file_location("run_notebooks", ROOT / "docs" / "run_notebooks.py")
assert SPEC is not None
assert SPEC.loader is not None
RUN = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(RUN)
# Run in the kernel before the first cell: what `tests/conftest.py` does for all tests takes half of the time away.
QUICKER = f"""
from sfumato.transforms.report import canvas, chart_figure, map_figure
from tests.beam_caches import beam_caches
_caches = beam_caches()
_caches.__enter__()
canvas.DPI = chart_figure.DPI = map_figure.DPI = {SMALL_DPI}
"""


def kinds(notebook: Any) -> list[set[str]]:
    """For each cell of code the types of what it shows; several prints are one or more outputs, as it happens."""
    return [
        {kind for one in cell.outputs for kind in one.get("data", {"printed": ""})}
        for cell in notebook.cells
        if cell.cell_type == "code"
    ]


@pytest.mark.parametrize("path", RUN.NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_and_shows_what_it_is_committed_with(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("rasterio", reason="the extra `export` is not installed")
    committed = nbformat.read(path, as_version=4)
    startup = tmp_path / "ipython" / "profile_default" / "startup"
    startup.mkdir(parents=True)
    (startup / "quicker.py").write_text(QUICKER)
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]))
    (folder := tmp_path / "empty").mkdir()
    again = RUN.executed(path, str(folder))
    assert kinds(again) == kinds(committed)
    assert sum(map(len, kinds(again))) >= 10
    assert path.stat().st_size < 1.5e6
    text = path.read_text()
    assert str(ROOT) not in text
    assert "/tmp/" not in text
