"""Answers that the page's script must give: models as pages hold them, squares, and what the package answers.

Run as a module, it writes web/test/ranges.json, which the script's own tests read.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from sfumato.transforms.ranges import view as ranges_view
from tests import ROOT
from tests.unit.ranges.models import REGION, grid_model, some_squares
from tests.unit.ranges.samples import network_model, slope_model

FILE = ROOT / "web" / "test" / "ranges.json"
STRIPS = 32  # of the raster, which is 512 on pages


def page_answers() -> dict[str, Any]:
    """By kind of model: the model of a page, and rows [x, y, size, users, stddev, inside]."""
    found: dict[str, Any] = {"region": [REGION.west, REGION.south, REGION.east, REGION.north]}
    for model in (grid_model(200), network_model(8), slope_model()):
        x, y, size = (np.round(one, 6) for one in some_squares(40))
        answers, inside = model.answer(x, y, size)
        columns = (x, y, size, answers.users, answers.stddev, inside)
        rows = [[float(f"{value:.10g}") for value in row] for row in zip(*columns, strict=True)]
        embedded = ranges_view.embedded_model(model)
        found[embedded["kind"]] = {"model": embedded, "answers": rows}
    return found


def page_answers_text() -> str:
    """The file's text."""
    strips, ranges_view.MAX_STRIPS = ranges_view.MAX_STRIPS, STRIPS
    try:
        return json.dumps(page_answers(), allow_nan=False, separators=(",", ":")) + "\n"
    finally:
        ranges_view.MAX_STRIPS = strips


if __name__ == "__main__":
    FILE.write_text(page_answers_text())
