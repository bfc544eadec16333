"""The notebooks of the documents run from an empty folder, and show what they are committed with."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("nbclient", reason="the extra `test` is not installed")
nbformat = pytest.importorskip("nbformat", reason="the extra `test` is not installed")

ROOT = Path(__file__).parent.parent
SPEC = importlib.util.spec_from_file_location("run_notebooks", ROOT / "docs" / "run_notebooks.py")
assert SPEC is not None
assert SPEC.loader is not None
RUN = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(RUN)


def kinds(notebook: Any) -> list[set[str]]:
    """For each cell of code the types of what it shows; several prints are one or more outputs, as it happens."""
    return [
        {kind for one in cell.outputs for kind in one.get("data", {"printed": ""})}
        for cell in notebook.cells
        if cell.cell_type == "code"
    ]


@pytest.mark.parametrize("path", RUN.NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_and_shows_what_it_is_committed_with(path: Path, tmp_path: Path) -> None:
    pytest.importorskip("rasterio", reason="the extra `export` is not installed")
    committed = nbformat.read(path, as_version=4)
    again = RUN.executed(path, str(tmp_path))
    assert kinds(again) == kinds(committed)
    assert sum(map(len, kinds(again))) >= 10
    assert path.stat().st_size < 1.5e6
    text = path.read_text()
    assert str(ROOT) not in text
    assert "/tmp/" not in text
