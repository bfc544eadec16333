"""`sfumato quantiles`: quantiles and range counts of a number over users, by a sample or with noise."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import apache_beam as beam

from sfumato.pipelines.job import Inputs
from sfumato.pipelines.sampled import Assemble, SampledJob, limits
from sfumato.transforms.histogram.counts_release import hierarchy_files, search_files
from sfumato.transforms.histogram.item_encoding import NumberItems
from sfumato.transforms.histogram.sample_and_threshold import InteractiveQuantiles, Rounds, TrieHeavyHitters
from sfumato.transforms.histogram.sampling_round import NumberPrefixes
from sfumato.transforms.privacy.keys import RunKey
from sfumato.transforms.quantiles.private_quantiles import QuantilesPlan
from sfumato.transforms.quantiles.release import quantiles_files
from sfumato.transforms.quantiles.request import QuantilesRequest, RequestedQuantiles
from sfumato.transforms.quantiles.transform import CentralQuantiles


@dataclass(frozen=True)
class QuantilesJob(SampledJob):
    """A requested distribution."""

    request: QuantilesRequest
    requested: RequestedQuantiles

    def resolved(self) -> dict[str, Any]:
        chosen = {"method": self.requested.method, "delta": self.plan.delta, "ranges": self.request.ranges or ()}
        return {**super().resolved(), **chosen}

    def count(self, inputs: Inputs, key: RunKey) -> beam.PTransform:
        options, items = limits(inputs), self.counted
        assert isinstance(items, NumberItems)
        if isinstance(self.plan, QuantilesPlan):
            ranges, whole = self.request.ranges or (), inputs.column_types.get(self.request.column) == "integers"
            return CentralQuantiles(items, self.plan, key, ranges, whole, **options)
        sampling = self.sampling
        if self.requested.method == "interactive":
            return InteractiveQuantiles(items, sampling, key, self.request.quantiles, **options)
        prefixes = NumberPrefixes(2, items.bits)
        return TrieHeavyHitters(Rounds(self.counted, key, prefixes, self.requested.levels), sampling, **options)

    def assembler(self) -> Assemble:
        if isinstance(self.plan, QuantilesPlan):
            return quantiles_files
        if self.requested.method == "interactive":
            return search_files
        shares, ranges = self.request.quantiles, self.request.ranges or ()
        return lambda trie, metadata: hierarchy_files(trie, metadata, shares, ranges)
