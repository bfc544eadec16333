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
from sfumato.transforms.moments.user_values import read_user_values
from sfumato.transforms.moments.value_encoding import Values, unpack
from sfumato.transforms.privacy.admission import Admit
from sfumato.transforms.privacy.keys import RunKey


class SumMoments(beam.PTransform):
    """Paths of Parquet files -> one CentralSums, which may be published.

    One record of each user counts; without a column of user ids, each row is a user.

    Args:
        values: encodes batches, without a form.
        plan: the statistics and their privacy.
        key: of the run; use each key for one input, once.
        grouping: the groups; None for everybody together.
        spill: a folder for blocks between stages (see Spill).
        admit: decides from noisy counts of users whether the run goes on.

    Raises:
        DataError: a file is damaged.
        NotAdmittedError: see Admit.
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
        super().__init__()
        metadata = {**asdict(plan), "columns": asdict(values.columns)}
        metadata["groups"] = None if grouping is None else [grouping.stated(), list(grouping.groups.names())]
        self._key = key.narrowed(metadata)
        self._values = values
        self._plan = plan
        self._rows = 1 if grouping is None else grouping.tally_rows
        self._spill = Spill.of(spill)
        self._admit = admit or Admit(plan.admission())

    def expand(self, paths: beam.PCollection) -> beam.PCollection:
        plan, key = self._plan, self._key
        blocks, admitted = read_user_values(paths, self._values, key, self._spill, self._admit)
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
