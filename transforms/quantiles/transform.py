"""Quantiles on Beam: drawn once from counts of all users, or found by a search among samples of users."""

from __future__ import annotations

from dataclasses import replace
from typing import Unpack

import apache_beam as beam
import numpy as np

from sfumato.transforms.histogram.count_noise import ItemBound
from sfumato.transforms.histogram.item_encoding import NumberItems
from sfumato.transforms.histogram.sampling_round import WHOLE, Sampling
from sfumato.transforms.histogram.transform import CountedRounds, CountItems, CountOptions, CountSamples, Rounds
from sfumato.transforms.privacy.keys import RunKey
from sfumato.transforms.quantiles.curve import Search, search_quantiles
from sfumato.transforms.quantiles.exponential_draw import SpreadUsers
from sfumato.transforms.quantiles.plan import QuantilesPlan
from sfumato.transforms.quantiles.private_quantiles import (
    PrivateDistribution,
    Values,
    private_distribution,
    whole_numbers,
)


class CentralQuantiles(beam.PTransform):
    """Paths of Parquet files -> one PrivateDistribution. One record of each user counts, drawn by the key.

    ranges: to answer as well, by the hierarchical method. whole: whether the numbers are integers; the exponential
    method then has a bin for each, if its bins suffice. For the other arguments see CountRounds.
    """

    def __init__(
        self,
        items: NumberItems,
        plan: QuantilesPlan,
        key: RunKey,
        ranges: tuple[tuple[float, float], ...] = (),
        whole: bool = False,
        **options: Unpack[CountOptions],
    ):
        super().__init__()
        binned = whole_numbers(items) if whole and plan.method == "exponential" else items
        self._values = Values(binned.low, binned.high, items.high, binned is not items, binned.edges)
        self._plan, self._ranges, self._bits = plan, ranges, binned.bits
        self._counts = CountItems(Rounds(binned, key), ItemBound(), **options)

    def expand(self, paths: beam.PCollection) -> beam.PCollection:
        plan, values, ranges, bits, key = self._plan, self._values, self._ranges, self._bits, self._counts.key

        def draw(rounds: CountedRounds) -> PrivateDistribution:
            (counts,) = rounds.counts
            users = SpreadUsers(counts.items.astype(np.int64), counts.counts, bits)
            return private_distribution(users, plan, key, values, ranges, rounds.admission)

        return (
            paths
            | "Count" >> self._counts  # PCollection[CountedRounds]
            | "Draw" >> beam.Map(draw)  # PCollection[PrivateDistribution]
        )


class InteractiveQuantiles(CountSamples):
    """Paths of logs -> one Search: quantiles by binary search with one round a bit (paper 004, Section 4.2).

    items: the numbers and their range; its bits are the rounds. shares: of users below each quantile, in 0..1.
    """

    def __init__(
        self,
        items: NumberItems,
        sampling: Sampling,
        key: RunKey,
        shares: tuple[float, ...],
        **options: Unpack[CountOptions],
    ):
        def search(counted: CountedRounds) -> Search:
            quantiles = search_quantiles(counted.counts, sampling, shares, items.low, items.high)
            return replace(quantiles, admission=counted.admission)

        key = key.narrowed({"quantiles": shares})  # two searches would split one sample twice and reveal more
        super().__init__(Rounds(items, key, None, (WHOLE,) * items.bits), sampling, search, **options)
