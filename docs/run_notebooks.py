"""Runs the notebooks of these documents and keeps their outputs: `python docs/run_notebooks.py`.

Each runs in an empty folder of its own. Outputs are committed, so that readers see them without running anything.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import nbformat
from nbclient import NotebookClient

NOTEBOOKS = sorted((Path(__file__).parent / "notebooks").glob("*.ipynb"))


def executed(path: Path, folder: str) -> nbformat.NotebookNode:
    """Returns the notebook with fresh outputs, without times, warnings and progress. Raises CellExecutionError."""
    notebook = nbformat.read(path, as_version=4)
    NotebookClient(notebook, timeout=300, kernel_name="python3", resources={"metadata": {"path": folder}}).execute()
    for cell in notebook.cells:
        cell.metadata = nbformat.NotebookNode()
        if cell.cell_type == "code":
            cell.outputs = [output for output in cell.outputs if output.get("name") != "stderr"]
    notebook.metadata.pop("language_info", None)
    return notebook


def main() -> int:
    """Runs all notebooks; the exit status is 0, or 1 with the message of the cell that failed."""
    for path in NOTEBOOKS:
        with tempfile.TemporaryDirectory() as folder:
            nbformat.write(executed(path, folder), path)
        sys.stdout.write(f"{path.name}: {path.stat().st_size / 1e6:.1f} MB\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
