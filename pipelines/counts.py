"""`sfumato histogram`, `hotspots` and `quantiles`: the jobs that count items, by a sample or with noise."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, ClassVar

import apache_beam as beam

from sfumato.pipelines.frame.job import Inputs, ReleaseJob, ResultsAndFiles
from sfumato.schemas.ledger import Cost
from sfumato.schemas.locations import Columns
from sfumato.transforms.geo.zone_file import Zones
from sfumato.transforms.histogram.central_counts import CentralCountPlan
from sfumato.transforms.histogram.item_encoding import CellItems, Items, ZoneItems
from sfumato.transforms.histogram.plan import SamplePlan
from sfumato.transforms.histogram.release import CountMetadata, central_files, trie_files
from sfumato.transforms.histogram.request import (
    CHARACTERS,
    DATE_CHARACTERS,
    DIGITS,
    HistogramRequest,
    HotspotsRequest,
    ItemCountRequest,
    RequestedCount,
)
from sfumato.transforms.histogram.sampling_round import NumberPrefixes, Prefixes, TextPrefixes, spread_levels
from sfumato.transforms.histogram.transform import CountOptions, NoisyItems, Rounds, TrieHeavyHitters
from sfumato.transforms.privacy.admission import AdmissionRule
from sfumato.transforms.privacy.keys import RunKey
from sfumato.transforms.quantiles.plan import QuantilesPlan
from sfumato.transforms.quantiles.release import hierarchy_files, quantiles_files, search_files
from sfumato.transforms.quantiles.request import QuantilesRequest, RequestedQuantiles
from sfumato.transforms.quantiles.transform import CentralQuantiles, InteractiveQuantiles
from sfumato.transforms.release.metadata import ReleaseMetadata

# (published result, its CountMetadata) -> {file name: content}
Assemble = Callable[[Any, Any], dict[str, bytes]]


@dataclass(frozen=True)
class ItemJob(ReleaseJob):
    """A requested count. Jobs add their own fields."""

    STATED_AS: ClassVar[Mapping[str, str]] = {
        **dict.fromkeys(("region", "cells", "user_id_column", "latitude_column", "longitude_column"), "counted"),
        **dict.fromkeys(("range", "bits", "items_file", "zones", "id_column", "h3", "quadkey"), "counted"),
        "levels": "rounds",
    }

    request: ItemCountRequest
    requested: RequestedCount | RequestedQuantiles

    @property
    def plan(self) -> SamplePlan | CentralCountPlan | QuantilesPlan:
        """Its budget and rounds."""
        return self.requested.plan

    @property
    def counted(self) -> Items:
        """Its items."""
        return self.requested.counted

    @abstractmethod
    def count(self, inputs: Inputs, key: RunKey) -> beam.PTransform:
        """The transform from files to the published result."""

    def count_rounds(self, inputs: Inputs, rounds: Rounds, top: int | None = None) -> beam.PTransform:
        """Returns the transform that counts items with noise, or by a sample."""
        if isinstance(self.plan, CentralCountPlan):
            return NoisyItems(rounds, self.plan, top, admit=inputs.charge_and_admit, spill=inputs.spill)
        assert isinstance(self.plan, SamplePlan)
        return TrieHeavyHitters(rounds, self.plan.sampling, top, admit=inputs.charge_and_admit, spill=inputs.spill)

    def assembler(self) -> Assemble:
        """Returns the function from the published result to the release's files."""
        return central_files if isinstance(self.plan, CentralCountPlan) else trie_files

    @property
    def zones_counted(self) -> Zones | None:
        return self.counted.zones if isinstance(self.counted, ZoneItems) else None

    def columns(self) -> Columns:
        return self.counted.columns

    def cost(self) -> Cost:
        return Cost(self.plan.epsilon, self.plan.delta, trust=self.request.trust)

    def admission(self) -> AdmissionRule:
        return replace(self.plan.admission_rule, min_users=self.request.min_users)

    def accuracy(self) -> str:
        plan = self.plan
        return plan.accuracy(self.counted.days) if isinstance(plan, CentralCountPlan) else plan.accuracy()

    def stated(self) -> dict[str, Any]:
        return {**asdict(self.plan), "rounds": self.plan.rounds, "counted": self.counted.stated()}

    def plan_text(self) -> str:
        return self.plan.text(self.counted)

    def build(self, logs: beam.PCollection, inputs: Inputs, key: RunKey) -> ResultsAndFiles:
        described = self.plan, self.counted
        assemble = self.assembler()

        def files_of(result: Any, metadata: ReleaseMetadata) -> dict[str, bytes]:
            return assemble(result, CountMetadata(metadata, *described))

        return logs | "Publish" >> self.count(inputs, key), files_of  # PCollection[noisy counts]


@dataclass(frozen=True)
class HistogramJob(ItemJob):
    """A requested histogram."""

    request: HistogramRequest

    def count(self, inputs: Inputs, key: RunKey) -> beam.PTransform:
        return self.count_rounds(inputs, Rounds(self.counted, key))


@dataclass(frozen=True)
class HotspotsJob(ItemJob):
    """Requested hot spots."""

    request: HotspotsRequest

    def prefixes(self, kind: str | None) -> Prefixes:
        """Returns the prefix code of map cells (None), or of a column that holds values of this kind."""
        depth = self.request.depth
        if isinstance(self.counted, CellItems):
            return NumberPrefixes(4, self.counted.grid.depth)
        if kind == "integers":
            return NumberPrefixes(10, depth or DIGITS)
        return TextPrefixes(depth or (DATE_CHARACTERS if kind == "dates" else CHARACTERS))

    def stated(self) -> dict[str, Any]:
        return {**super().stated(), "depth": self.request.depth, "top": self.request.top}

    def count(self, inputs: Inputs, key: RunKey) -> beam.PTransform:
        column = self.request.column
        prefixes = self.prefixes(None if column is None else inputs.column_types.get(column, "text"))
        levels = spread_levels(prefixes.depth, self.plan.rounds)
        return self.count_rounds(inputs, Rounds(self.counted, key, prefixes, levels), self.request.top)


@dataclass(frozen=True)
class QuantilesJob(ItemJob):
    """A requested distribution."""

    request: QuantilesRequest
    requested: RequestedQuantiles

    def stated(self) -> dict[str, Any]:
        chosen = {"method": self.requested.method, "delta": self.plan.delta, "ranges": self.request.ranges or ()}
        return {**super().stated(), **chosen}

    def count(self, inputs: Inputs, key: RunKey) -> beam.PTransform:
        items, plan = self.requested.counted, self.requested.plan
        options: CountOptions = {"admit": inputs.charge_and_admit, "spill": inputs.spill}
        if isinstance(plan, QuantilesPlan):
            ranges, whole = self.request.ranges or (), inputs.column_types.get(self.request.column) == "integers"
            return CentralQuantiles(items, plan, key, ranges, whole, **options)
        if self.requested.method == "interactive":
            return InteractiveQuantiles(items, plan.sampling, key, self.request.quantiles, **options)
        return self.count_rounds(inputs, Rounds(items, key, NumberPrefixes(2, items.bits), self.requested.levels))

    def assembler(self) -> Assemble:
        if isinstance(self.plan, QuantilesPlan):
            return quantiles_files
        if self.requested.method == "interactive":
            return search_files
        shares, ranges = self.request.quantiles, self.request.ranges or ()
        return lambda trie, metadata: hierarchy_files(trie, metadata, shares, ranges)
