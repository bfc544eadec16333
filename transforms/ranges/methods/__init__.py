"""The methods, one module each."""

from sfumato.transforms.ranges.methods.adaptive_grid import AdaptiveGrid
from sfumato.transforms.ranges.methods.automatic import Automatic
from sfumato.transforms.ranges.methods.base import RangeMethod
from sfumato.transforms.ranges.methods.dawa import Dawa
from sfumato.transforms.ranges.methods.grid import PlainGrid
from sfumato.transforms.ranges.methods.neural import SpatialNeural
from sfumato.transforms.ranges.methods.privtree import PrivTree
from sfumato.transforms.ranges.methods.uniform_grid import UniformGrid

METHODS: dict[str, type[RangeMethod]] = {
    one.NAME: one for one in (Automatic, SpatialNeural, PlainGrid, UniformGrid, AdaptiveGrid, PrivTree, Dawa)
}
