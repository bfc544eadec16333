"""Moments of users' reports on Beam: stages of queries, whose tallies get noise."""

from __future__ import annotations

import functools
import operator
from collections.abc import Iterable

import apache_beam as beam
import numpy as np

from sfumato.transforms.moments.client_values import unpack
from sfumato.transforms.moments.local.plan import MomentsPlan
from sfumato.transforms.moments.local.protocol import MomentsState
from sfumato.transforms.moments.local.tally import (
    Query,
    RandomisedResponse,
    Tally,
    check_queries,
    check_reports,
    count_reports,
    queried_clients,
)
from sfumato.transforms.moments.transform import UserMoments, side
from sfumato.transforms.observability.logs import ROUND
from sfumato.transforms.observability.metrics import REPORTED_BITS, TALLY_TIME
from sfumato.transforms.privacy.keys import RunKey


class PushBits(UserMoments[MomentsPlan]):
    """Paths of logs -> one MomentsState after all stages, which may be published.

    Each stage of queries reads all blocks of clients, and earlier tallies set the queries (paper 002); see protocol.py.
    """

    def expand(self, paths: beam.PCollection) -> beam.PCollection:
        reporting = self._plan.response, self._rows, self._key
        blocks, admitted = self.read(paths)  # PCollection[stored Block], PCollection[NoisyUserCounts]
        plan = self._plan
        # PCollection[MomentsState]
        state = admitted | "Start" >> beam.Map(lambda admission: MomentsState(plan, users=admission.users))
        for number in range(len(self._plan.stages)):
            # One worker plans for all: floating-point results may differ between machines.
            queries = state | f"Plan{number}" >> beam.Map(MomentsState.next_queries)  # PCollection[list[Query]]
            tallies = (
                blocks
                # PCollection[list[Tally]], of the clients of a block, a tally for each query
                | f"TallyBlocks{number}" >> beam.Map(_tally_block, side(queries), *reporting)
                | f"SumTallies{number}" >> beam.CombineGlobally(add_tallies)
            )  # PCollection[list[Tally]]
            # PCollection[MomentsState]
            state = state | f"AddNoise{number}" >> beam.Map(self._add_noise, side(queries), side(tallies))
        return state

    def _add_noise(self, state: MomentsState, queries: list[Query], exact: list[Tally]) -> MomentsState:
        """Adds a stage with noise on its tallies: from here on they are public."""
        check_queries([*(query for query, _ in state.tallies), *queries])
        if not exact:
            # There are no blocks, because no user has a usable value. Only noisy counts may show that: noise on zeros.
            exact = [Tally(*np.zeros((2, self._rows, len(query.quantity.slots)), np.int64)) for query in queries]
        tallies = self._plan.protect(queries, exact, self._key)
        for query, tally in zip(queries, tallies, strict=True):
            reported = int(tally.reports.sum())
            clients = reported / self._plan.bits_per_client
            ROUND.emit(quantity=query.quantity.kind, round=query.round, clients=clients, reports=reported)
        return state.advance(queries, tallies)


def _tally_block(
    stored: bytes, queries: list[Query], response: RandomisedResponse, rows: int, key: RunKey
) -> list[Tally]:
    """Returns the reports of a stored block's clients, one Tally a query."""
    block = unpack(stored)
    with TALLY_TIME.timed():
        tallies = [count_reports(block, query, rows, response, key) for query in queries]
    for query, tally in zip(queries, tallies, strict=True):
        check_reports(response, len(block.codes[queried_clients(block, query)]), int(tally.reports.sum()))
    REPORTED_BITS.add(sum(int(tally.reports.sum()) for tally in tallies))
    return tallies


def add_tallies(stages: Iterable[list[Tally]]) -> list[Tally]:
    """Returns the sums of lists of Tallies, one for each query of a stage; an empty list without any."""
    return [functools.reduce(operator.add, tallies) for tallies in zip(*filter(None, stages), strict=True)]
