"""Published methods that `sfumato heatmap` is compared with: one-hot levels, sketches, grids and geometric budgets.

Each is a `Method` that the package does not know. `METHODS.update(BASELINES)` makes every job take it by its name.
"""

from __future__ import annotations

from benchmarks.baselines.heatmap_methods.adaptive_grid import AdaptiveGrid
from benchmarks.baselines.heatmap_methods.count_min import CountMin
from benchmarks.baselines.heatmap_methods.hierarchical import Hierarchical
from benchmarks.baselines.heatmap_methods.spatial_decomposition import SpatialDecomposition
from sfumato.transforms.counting.methods import Method

BASELINES: dict[str, type[Method]] = {
    method.NAME: method for method in (Hierarchical, CountMin, AdaptiveGrid, SpatialDecomposition)
}

__all__ = ["BASELINES", "AdaptiveGrid", "CountMin", "Hierarchical", "SpatialDecomposition"]
