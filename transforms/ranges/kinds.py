"""The kinds of models that a file may hold."""

from __future__ import annotations

from sfumato.transforms.ranges.counts_model import GridModel, PartitionModel
from sfumato.transforms.ranges.model import Model
from sfumato.transforms.ranges.networks.local import LocalNetwork
from sfumato.transforms.ranges.networks.paper import PaperNetworks
from sfumato.transforms.ranges.tree_model import TreeModel

KINDS: dict[str, type[Model]] = {
    one.KIND: one for one in (GridModel, PartitionModel, TreeModel, LocalNetwork, PaperNetworks)
}
