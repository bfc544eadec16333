"""Sums of a trusted curator on Beam: the range, if it is to be found, then the sums over it, each with noise once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict

import apache_beam as beam

from sfumato.transforms.locations.spill import Spill
from sfumato.transforms.metrics import TALLY_TIME
from sfumato.transforms.moments.bernstein_sums import ExactSums
from sfumato.transforms.moments.central_moments import CentralMomentsPlan, CentralSums
from sfumato.transforms.moments.groups import Grouping
from sfumato.transforms.moments.user_values import UserValuesTransform
from sfumato.transforms.moments.value_encoding import Values, unpack
from sfumato.transforms.privacy.admission import Admit
from sfumato.transforms.privacy.keys import RunKey


class SumMoments(UserValuesTransform):
    """Paths of logs -> one CentralSums, which may be published.

    values: encodes batches, without a form. plan: the statistics and their privacy. For the rest see
    UserValuesTransform.
    """

    def __init__(
        self,
        values: Values,
        plan: CentralMomentsPlan,
        key: RunKey,
        grouping: Grouping | None = None,
        *,
        spill: Spill | str | None = None,
        admit: Admit | None = None,
    ):
        super().__init__(values, key, asdict(plan), grouping, spill, admit or Admit(plan.admission()))
        self._plan = plan

    def expand(self, paths: beam.PCollection) -> beam.PCollection:
        plan, key = self._plan, self._key
        blocks, admitted = self.read(paths)
        if plan.finds_range:
            magnitudes = (
                blocks
                | "Magnitudes" >> beam.Map(lambda stored: plan.count_magnitudes(unpack(stored).codes))  # int64[C, BINS]
                | "SumMagnitudes" >> beam.CombineGlobally(plan.sum_magnitudes)
            )
            ranged = admitted | "Range" >> beam.Map(
                lambda _, counts: plan.choose_range(counts, key), beam.pvalue.AsSingleton(magnitudes)
            )  # CentralSums
        else:
            ranged = admitted | "Range" >> beam.Map(lambda _: plan.choose_range(None, key))
        exact = (
            blocks
            | "Sum" >> beam.ParDo(_SumFn(plan, self._rows), beam.pvalue.AsSingleton(ranged))  # ExactSums
            | "SumBlocks" >> beam.CombineGlobally(ExactSums.zeros(self._rows, plan.degrees).total)
        )
        return ranged | "AddNoise" >> beam.Map(
            lambda state, sums: state.release(sums, key), beam.pvalue.AsSingleton(exact)
        )


class _SumFn(beam.DoFn):
    """A stored block and the range -> the block's ExactSums."""

    def __init__(self, plan: CentralMomentsPlan, rows: int):
        self._plan = plan
        self._rows = rows

    def process(self, stored: bytes, ranged: CentralSums) -> Iterator[ExactSums]:
        with TALLY_TIME.timed():
            yield self._plan.exact_sums(unpack(stored), ranged.spans, self._rows)
