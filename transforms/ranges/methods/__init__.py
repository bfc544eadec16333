"""The methods by name. A new method is a class in a module of its own, and an entry of METHODS."""

from sfumato.transforms.ranges.methods.automatic import Automatic
from sfumato.transforms.ranges.methods.grid import PlainGrid, UniformGrid
from sfumato.transforms.ranges.methods.neural import SpatialNeural
from sfumato.transforms.ranges.methods.range_method import RangeMethod

METHODS: dict[str, type[RangeMethod]] = {
    method.NAME: method for method in (Automatic, SpatialNeural, PlainGrid, UniformGrid)
}
