"""Moments by a trusted curator on Beam: the range, if it is to be found, then noisy sums over it."""

from __future__ import annotations

import apache_beam as beam

from sfumato.transforms.moments.central.bernstein_sums import ExactSums
from sfumato.transforms.moments.central.central_moments import CentralSums, choose_range
from sfumato.transforms.moments.central.plan import CentralMomentsPlan
from sfumato.transforms.moments.client_values import unpack
from sfumato.transforms.moments.transform import UserMoments, side
from sfumato.transforms.observability.metrics import TALLY_TIME


class SumMoments(UserMoments[CentralMomentsPlan]):
    """Paths of logs -> one CentralSums, which may be published: the range, if it is to be found, then the sums over it.

    values: without a form. Each result gets its noise once.
    """

    def expand(self, paths: beam.PCollection) -> beam.PCollection:
        plan, key = self._plan, self._key
        blocks, admitted = self.read(paths)  # PCollection[stored Block], PCollection[NoisyUserCounts]
        if plan.finds_range:
            magnitudes = (
                blocks
                | "Magnitudes" >> beam.Map(lambda stored: plan.count_magnitudes(unpack(stored).codes))
                | "SumMagnitudes" >> beam.CombineGlobally(plan.sum_magnitudes)
            )  # PCollection[int64[columns, BINS]]
            ranged = admitted | "Range" >> beam.Map(
                lambda _, counts: choose_range(plan, counts, key), side(magnitudes)
            )  # PCollection[CentralSums]
        else:
            # PCollection[CentralSums]
            ranged = admitted | "Range" >> beam.Map(lambda _: choose_range(plan, None, key))
        exact = (
            blocks
            | "Sum" >> beam.Map(_sum_block, side(ranged), self._rows)  # PCollection[ExactSums]
            | "SumBlocks" >> beam.CombineGlobally(ExactSums.zeros(self._rows, plan.degrees).total)
        )  # PCollection[ExactSums]
        # PCollection[CentralSums], with noise: published from here on
        return ranged | "AddNoise" >> beam.Map(lambda state, sums: state.release(sums, key), side(exact))


def _sum_block(stored: bytes, ranged: CentralSums, rows: int) -> ExactSums:
    with TALLY_TIME.timed():
        return ranged.plan.exact_sums(unpack(stored), ranged.spans, rows)
