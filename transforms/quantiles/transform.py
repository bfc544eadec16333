"""Quantiles with a trusted curator on Beam: all users are counted by bin, and one step draws what is published."""

from __future__ import annotations

from typing import Unpack

import apache_beam as beam
import numpy as np

from sfumato.transforms.histogram.count_noise import ItemBound
from sfumato.transforms.histogram.item_encoding import NumberItems
from sfumato.transforms.histogram.transform import CountedRounds, CountItems, CountOptions, Rounds
from sfumato.transforms.privacy.keys import RunKey
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

    Args:
        key: of the run; use each key for one input, once.
        ranges: to answer as well, by the hierarchical method.
        whole: whether the numbers are integers. The exponential method then has a bin for each, where it has as many.
        options: see CountOptions.

    Raises: see CountRounds.
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
