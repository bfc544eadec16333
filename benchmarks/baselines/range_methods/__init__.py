"""Published methods that `sfumato ranges build` is compared with: the uniform and the adaptive grid, PrivTree and DAWA.

Each is a `RangeMethod` that the package does not know: an entry of `METHODS` makes a plan take it.
"""

from __future__ import annotations

from benchmarks.baselines.range_methods.ag import AdaptiveGrid
from benchmarks.baselines.range_methods.dawa import Dawa
from benchmarks.baselines.range_methods.privtree import PrivTree
from benchmarks.baselines.range_methods.ug import UniformGrid
from sfumato.transforms.ranges.methods import RangeMethod

BASELINES: dict[str, type[RangeMethod]] = {
    method.NAME: method for method in (UniformGrid, AdaptiveGrid, PrivTree, Dawa)
}
