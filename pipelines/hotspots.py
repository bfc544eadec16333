"""`sfumato hotspots`: popular places, words or codes, level by level, by a sample (TrieHH++) or with noise."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import apache_beam as beam

from sfumato.pipelines.job import Inputs
from sfumato.pipelines.sampled import SampledJob, limits
from sfumato.transforms.histogram.central_counts import CentralCountPlan
from sfumato.transforms.histogram.counts_request import (
    CELL_DEPTH,
    CHARACTERS,
    DATE_CHARACTERS,
    DIGITS,
    HotspotsRequest,
)
from sfumato.transforms.histogram.sample_and_threshold import NoisyItems, Rounds, TrieHeavyHitters
from sfumato.transforms.histogram.sampling_round import NumberPrefixes, Prefixes, TextPrefixes, spread_levels
from sfumato.transforms.privacy.keys import RunKey


@dataclass(frozen=True)
class HotspotsJob(SampledJob):
    """Requested hot spots."""

    request: HotspotsRequest

    def prefixes(self, kind: str | None) -> Prefixes:
        """The prefix code of map cells (None), or of a column that holds values of this kind."""
        depth = self.request.depth
        if kind is None:
            return NumberPrefixes(4, depth or CELL_DEPTH)
        if kind == "integers":
            return NumberPrefixes(10, depth or DIGITS)
        return TextPrefixes(depth or (DATE_CHARACTERS if kind == "dates" else CHARACTERS))

    def resolved(self) -> dict[str, Any]:
        return {**super().resolved(), "depth": self.request.depth, "top": self.request.top}

    def count(self, inputs: Inputs, key: RunKey) -> beam.PTransform:
        column = self.request.column
        prefixes = self.prefixes(None if column is None else inputs.column_types.get(column, "text"))
        rounds = Rounds(self.counted, key, prefixes, spread_levels(prefixes.depth, self.plan.rounds))
        top = self.request.top
        if isinstance(self.plan, CentralCountPlan):
            return NoisyItems(rounds, self.plan, top, **limits(inputs))
        return TrieHeavyHitters(rounds, self.sampling, top, **limits(inputs))
