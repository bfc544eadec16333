"""`sfumato histogram`: how many users hold each category or visit each map cell, by a sample or with noise."""

from __future__ import annotations

from dataclasses import dataclass

import apache_beam as beam

from sfumato.pipelines.job import Inputs
from sfumato.pipelines.sampled import SampledJob, limits
from sfumato.transforms.histogram.central_counts import CentralCountPlan
from sfumato.transforms.histogram.counts_request import HistogramRequest
from sfumato.transforms.histogram.sample_and_threshold import NoisyItems, Rounds, TrieHeavyHitters
from sfumato.transforms.privacy.keys import RunKey


@dataclass(frozen=True)
class HistogramJob(SampledJob):
    """A requested histogram."""

    request: HistogramRequest

    def count(self, inputs: Inputs, key: RunKey) -> beam.PTransform:
        if isinstance(self.plan, CentralCountPlan):
            return NoisyItems(Rounds(self.counted, key), self.plan, **limits(inputs))
        return TrieHeavyHitters(Rounds(self.counted, key), self.sampling, **limits(inputs))
