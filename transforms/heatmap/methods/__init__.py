"""The methods of making heatmaps. A new one is a module here with an `encode` and a `decode`, and a line in METHODS."""

from sfumato.transforms.heatmap.methods.adaptive import Adaptive
from sfumato.transforms.heatmap.methods.adaptive_grid import AdaptiveGrid
from sfumato.transforms.heatmap.methods.base import Method
from sfumato.transforms.heatmap.methods.count_min import CountMin
from sfumato.transforms.heatmap.methods.emd import Emd
from sfumato.transforms.heatmap.methods.flat import Flat
from sfumato.transforms.heatmap.methods.hierarchical import Hierarchical
from sfumato.transforms.heatmap.methods.spatial_decomposition import SpatialDecomposition

METHODS: dict[str, type[Method]] = {
    method.NAME: method for method in (Adaptive, Flat, Hierarchical, CountMin, AdaptiveGrid, SpatialDecomposition, Emd)
}

__all__ = ["METHODS", "Adaptive", "Emd", "Flat", "Method"]
