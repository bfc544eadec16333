"""Made-up releases of models of range queries for tests of the page and the picture."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from sfumato.schemas.ranges import Boxes
from sfumato.transforms.ranges.model import Answers, Model, RangeModel
from sfumato.transforms.ranges.networks.examples import INPUTS, QueryDistribution
from sfumato.transforms.ranges.networks.local import WIDTH, LocalNetwork
from tests.seeds import seeded_rng
from tests.unit.ranges.models import FIELD, grid_model


class Slope(Model):
    """A model of a kind of its own: ever more users towards the south-east, and an error that grows with the side."""

    KIND: ClassVar[str] = "slope"

    def answer(self, boxes: Boxes) -> Answers:
        """Users of density (x + 2 y) / side^3 a base cell, times 30,000; the error is a hundredth of the side."""
        x, y = (boxes.x0 + boxes.x1) / 2, (boxes.y0 + boxes.y1) / 2
        users = 30_000 * boxes.areas * (x + 2 * y) / FIELD.side**3
        return Answers(users, 0.01 * np.sqrt(boxes.areas))

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Nothing."""
        return {}

    @classmethod
    def load(cls, arrays: Mapping[str, NDArray[Any]], metadata: Mapping[str, Any]) -> Slope:
        """The only one there is."""
        return cls()


def slope_model() -> RangeModel:
    """A model that has no parts, so that the page holds a raster of it."""
    return RangeModel(FIELD, Slope(), "snh", 0.2)


def network_model(width: int = WIDTH) -> RangeModel:
    """Networks of weights at random on a grid: what they answer is of no use, but the page must answer the same."""
    grid = grid_model(60).model.grid  # type: ignore[attr-defined]
    rng = seeded_rng(3)
    shapes = {"w1": (INPUTS, width), "w2": (width, width), "w3": (width, 2), "w4": (width, 1)}
    shapes |= {name: (shapes[f"w{name[1]}"][1],) for name in ("b1", "b2", "b3", "b4")}
    networks = [
        {name: (0.15 * rng.normal(size=shape)).astype(np.float32) for name, shape in shapes.items()} for _ in range(2)
    ]
    squares = QueryDistribution((60.0, 70.0), (400.0, 460.0))
    return RangeModel(FIELD, LocalNetwork(grid, 50.0, squares, networks), "snh", 0.2)


def ranges_manifest(model: RangeModel, *, safe: bool = True, **others: Any) -> dict[str, Any]:
    """A manifest by the contract of `sfumato ranges build`."""
    cells = model.model.KIND == "grid"
    return {
        "format": "sfumato-release/2",
        "release_id": "2026-11-21-made-up",
        "job": "ranges",
        "created": "2026-11-21T03:00:00+00:00",
        "region": {"west": -122.52, "south": 37.70, "east": -122.35, "north": 37.83},
        "grid": {"depth": 12, "side": 4096},
        "method": model.method,
        "sizes_metres": [50.0, 1000.0],
        "cell_metres": [364.5, 688.3] if cells else None,
        "privacy": {
            "unit": "user",
            "adjacency": "two datasets are neighbours when one holds all the records of one more user",
            "epsilon": model.epsilon,
            "delta": 0.0,
            "contribution_bound": "one location a user, chosen uniformly at random",
            "mechanism": "discrete Laplace noise on counts of disjoint parts of the region",
            "trust": "central",
            "noise_stddev": 2.8 if cells else None,
            "population": {"source": "noisy", "users": 12_345.0, "epsilon": 0.01, "noise_stddev": 141.0},
            "randomness": {"source": "operating system" if safe else "seed", "safe": safe},
            "assumptions": ["Whoever runs the job sees the logs and the exact counts."],
        },
        "results": {"kind": model.model.KIND, "parts": 820 if cells else None, "users": 12_345.0},
        "parameters": {"epsilon": model.epsilon, "cell_width": "auto"},
        "versions": {"sfumato": "0.1.0", "numpy": np.__version__},
        "warnings": [],
    } | others
