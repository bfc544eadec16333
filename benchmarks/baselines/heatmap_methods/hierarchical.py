"""Hierarchical one-hot encoding: every cell of every level, at equal epsilon a level (paper 000, Section 5.1)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from benchmarks.baselines.heatmap_methods.pyramid import BEST, LEVELS, Pyramid


@dataclass(frozen=True)
class Hierarchical(Pyramid):
    """Each level is estimated by its own counts alone."""

    NAME: ClassVar[str] = "hierarchical"
    SENTENCE: ClassVar[str] = f"{LEVELS} {BEST} The other levels are not used there."

    def weights(self, depth: int) -> NDArray[np.float64]:
        return np.ones(depth)
