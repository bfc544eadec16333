"""Hierarchical one-hot encoding: every cell of every level, at equal epsilon a level (paper 000, Section 5.1)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from sfumato.transforms.heatmap.methods.pyramid import Pyramid


@dataclass(frozen=True)
class Hierarchical(Pyramid):
    """Each level is estimated by its own counts alone."""

    NAME: ClassVar[str] = "hierarchical"
    TEXT: ClassVar[str] = "every level of the quadtree at an equal share of epsilon; each place shows its best level"

    def weights(self, depth: int) -> NDArray[np.float64]:
        return np.ones(depth)
