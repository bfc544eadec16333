"""Bit pushing on Beam (paper 002): each stage of queries reads all blocks of clients; earlier tallies set the queries.

See protocol.py for queries, rounds and stages.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict

import apache_beam as beam
import numpy as np

from sfumato.transforms.locations.spill import Spill
from sfumato.transforms.logs import ROUND
from sfumato.transforms.metrics import REPORTED_BITS, TALLY_TIME
from sfumato.transforms.moments.groups import Grouping
from sfumato.transforms.moments.privacy_meter import PrivacyMeter
from sfumato.transforms.moments.protocol import MomentsPlan, MomentsState
from sfumato.transforms.moments.tally import Query, Tally, count_reports, queried_clients
from sfumato.transforms.moments.user_values import UserValuesTransform
from sfumato.transforms.moments.value_encoding import Values, unpack
from sfumato.transforms.privacy.admission import Admit
from sfumato.transforms.privacy.keys import RunKey


class SumTallies(beam.CombineFn):
    """Lists of Tallies, one for each query of a stage -> the list of their sums; an empty list without any input."""

    def create_accumulator(self) -> list[Tally]:
        return []

    def add_input(self, accumulator: list[Tally], element: list[Tally]) -> list[Tally]:
        if not accumulator:
            return [tally.copy() for tally in element]
        for total, tally in zip(accumulator, element, strict=True):
            total.add(tally)
        return accumulator

    def merge_accumulators(self, accumulators: Iterable[list[Tally]]) -> list[Tally]:
        total = self.create_accumulator()
        for tallies in accumulators:
            total = self.add_input(total, tallies) if tallies else total
        return total

    def extract_output(self, accumulator: list[Tally]) -> list[Tally]:
        return accumulator


class PushBits(UserValuesTransform):
    """Paths of logs -> one MomentsState after all stages, which may be published.

    plan: the queries and their privacy. For the rest see UserValuesTransform.
    """

    def __init__(
        self,
        values: Values,
        plan: MomentsPlan,
        key: RunKey,
        grouping: Grouping | None = None,
        *,
        spill: Spill | str | None = None,
        admit: Admit | None = None,
    ):
        prior = {
            kind: [bits.weight.tolist(), bits.mean.tolist(), bits.stddev.tolist()] for kind, bits in plan.prior.items()
        }
        fields = {name: value for name, value in vars(plan).items() if name in plan.__dataclass_fields__}
        metadata = {**fields, "prior": prior, "form": asdict(plan.form), "tuning": asdict(plan.tuning)}
        metadata["statistics"] = [statistic.name for statistic in plan.statistics]
        metadata["second"] = None if plan.second is None else asdict(plan.second)
        super().__init__(values, key, metadata, grouping, spill, admit or Admit(plan.admission()))
        self._plan = plan
        self._meter = PrivacyMeter(plan.response)

    def expand(self, paths: beam.PCollection) -> beam.PCollection:
        blocks, admitted = self.read(paths)
        state = admitted | "Start" >> beam.Map(lambda admission: MomentsState(users=admission.users))
        for number in range(len(self._plan.stages)):
            # One worker plans for all: floating-point results may differ between machines.
            queries = state | f"Plan{number}" >> beam.Map(self._plan.next_queries)  # PCollection[list[Query]]
            tallies = (
                blocks
                | f"TallyBlocks{number}" >> beam.ParDo(_TallyFn(self._meter, self._rows, self._key), _side(queries))
                | f"SumTallies{number}" >> beam.CombineGlobally(SumTallies())
            )  # PCollection[list[Tally]]
            # PCollection[MomentsState]
            state = state | f"AddNoise{number}" >> beam.Map(self._add_noise, _side(queries), _side(tallies))
        return state

    def _add_noise(self, state: MomentsState, queries: list[Query], exact: list[Tally]) -> MomentsState:
        """Adds a stage with noise on its tallies: from here on they are public."""
        self._meter.check_queries([*(query for query, _ in state.tallies), *queries])
        if not exact:
            # There are no blocks, because no user has a usable value. Only noisy counts may show that: noise on zeros.
            exact = [Tally(*np.zeros((2, self._rows, len(query.quantity.slots)), np.int64)) for query in queries]
        tallies = self._plan.protect(queries, exact, self._key)
        for query, tally in zip(queries, tallies, strict=True):
            reported = int(tally.reports.sum())
            clients = reported / self._plan.bits_per_client
            ROUND.emit(quantity=query.quantity.kind, round=query.round, clients=clients, reports=reported)
        return state.advance(queries, tallies)


def _side(singleton: beam.PCollection) -> beam.pvalue.AsSingleton:
    return beam.pvalue.AsSingleton(singleton)


class _TallyFn(beam.DoFn):
    """A stored block and the queries of a stage -> its clients' reports, one Tally a query."""

    def __init__(self, meter: PrivacyMeter, rows: int, key: RunKey):
        self._meter = meter
        self._rows = rows
        self._key = key

    def process(self, stored: bytes, queries: list[Query]) -> Iterator[list[Tally]]:
        block = unpack(stored)
        with TALLY_TIME.timed():
            tallies = [count_reports(block, query, self._rows, self._meter.response, self._key) for query in queries]
        for query, tally in zip(queries, tallies, strict=True):
            self._meter.check(len(block.codes[queried_clients(block, query)]), int(tally.reports.sum()))
        REPORTED_BITS.add(sum(int(tally.reports.sum()) for tally in tallies))
        yield tallies
