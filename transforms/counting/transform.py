"""Noisy counts of locations as one transform: from paths of logs, through sub-queries, to the final state of a run."""

from __future__ import annotations

import contextlib
import functools
import operator
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import apache_beam as beam

from sfumato.schemas.errors import RefusedError, RequestError
from sfumato.schemas.locations import LocationColumns
from sfumato.schemas.region import Locator, Places
from sfumato.transforms.counting.parameters import CountParameters
from sfumato.transforms.counting.state import CountState, Estimate
from sfumato.transforms.counting.sub_queries import advance_run, start_run
from sfumato.transforms.locations.read import (
    BoundGroups,
    BuildShards,
    ChargeAndAdmitUsers,
    LocationBound,
    LocationEncoding,
    ReadLogs,
)
from sfumato.transforms.locations.shards import ShardGroup, ShardPlan
from sfumato.transforms.locations.spill import Spill
from sfumato.transforms.observability.logs import SUB_QUERY, SUB_QUERY_WITH_LOSS
from sfumato.transforms.observability.metrics import LOST_SHARDS, SUB_QUERIES, SUM_TIME, VECTOR_ENTRIES
from sfumato.transforms.privacy.admission import ChargeAndAdmit, NoisyUserCounts
from sfumato.transforms.privacy.keys import RunKey
from sfumato.transforms.privacy.user_hashes import ActiveCohort
from sfumato.transforms.secagg.shard_sums import NOTHING, ShardTotals, sum_shards


@dataclass(eq=False, repr=False)
class CountLocations(beam.PTransform):
    """Bundles of log files -> a singleton CountState, differentially private as a whole.

    The state holds the noisy counts of every sub-query that the parameters' method chooses.

    Args:
        locator: gives each location its code, at the parameters' depth.
        key: of the run, bound to everything that the counts depend on but the input.
        spill: where bulky intermediate data are kept, see `Spill`. Only for workers that share a disk or a process;
            None leaves the data to the runner.
        prior: the map of an earlier release to start from.
        admit: charges the run and counts its users; None counts them by the parameters' rule, without a ledger.
        active_cohort: the rotating cohort whose rows are read; None reads all rows.
    """

    locator: Locator
    parameters: CountParameters
    key: RunKey
    columns: LocationColumns
    spill: Spill | str | None = None
    prior: Estimate | None = None
    admit: ChargeAndAdmit | None = None
    active_cohort: ActiveCohort | None = None

    def __post_init__(self) -> None:
        super().__init__()

    def expand(self, paths: beam.PCollection) -> beam.PCollection:
        parameters = self.parameters
        places = Places(self.locator.depth, parameters.bins)
        spill = Spill.of(self.spill)
        bound = LocationBound(
            places,
            spill,
            parameters.contributes,
            parameters.distribution_total,
            self.columns.dwell_limit,
            parameters.records_per_user,
        )
        encoding = LocationEncoding(self.columns, self.locator, self.key, spill, self.active_cohort)
        # PCollection[tuple[UserGroup, Chunk]], PCollection[RowCounts]
        chunks, rows = paths | "ReadLocations" >> ReadLogs(encoding)
        bounded, users = chunks | "BoundUsers" >> BoundGroups(bound)  # PCollection[bytes], PCollection[UserCounts]
        # The ledger is charged here, once all input is read. All noise is drawn after it.
        charge = ChargeAndAdmitUsers(self.admit or ChargeAndAdmit(parameters.admission()), self.key)
        admitted = (users, rows) | "ChargeAndAdmitUsers" >> charge  # PCollection[NoisyUserCounts]
        start = beam.Map(start_sub_queries, parameters, self.prior).with_output_types(CountState)
        state = admitted | "Start" >> start  # PCollection[CountState]
        # PCollection[ShardPlan]
        shard_plan = state | "ShardPlan" >> beam.Map(lambda state: state.shard_plan).with_output_types(ShardPlan)
        is_weighted = parameters.distribution_gamma is not None
        # PCollection[ShardGroup]
        shards = bounded | "BuildShards" >> BuildShards(places, shard_plan, spill, is_weighted)
        return shards | "RunSubQueries" >> RunSubQueries(parameters, self.key, state)  # PCollection[CountState]


def start_sub_queries(
    counted: NoisyUserCounts, parameters: CountParameters, prior: Estimate | None = None
) -> CountState:
    """Returns the state with the first sub-query. prior: the map of an earlier release to start from."""
    with _request_errors_as_refusals():
        return start_run(counted, parameters, prior)


class RunSubQueries(beam.PTransform):
    """ShardGroups (at least one) and a singleton CountState -> the final CountState.

    A later sub-query depends on the noisy results of earlier ones, and Beam has no loops. So the largest number of the
    method's sub-queries is unrolled into stages, and a run is one job on any runner. Stages after the last sub-query do
    nothing: neither the graph nor its names depend on the data.
    """

    def __init__(self, parameters: CountParameters, key: RunKey, state: beam.PCollection):
        super().__init__()
        self._parameters = parameters
        self._key = key
        self._state = state

    def expand(self, shards: beam.PCollection) -> beam.PCollection:
        parameters, state = self._parameters, self._state
        for index in range(1, parameters.most_sub_queries() + 1):
            known = beam.pvalue.AsSingleton(state), parameters, self._key
            state = (
                shards  # PCollection[ShardGroup] -> PCollection[ShardTotals] -> PCollection[CountState]
                | f"SumShards{index}" >> beam.Map(_sum_group, *known).with_output_types(ShardTotals)
                # This shuffles. So the noisy sum is materialised before anything uses it twice.
                | f"AddTotals{index}" >> beam.CombineGlobally(_add_totals).without_defaults()
                # The totals are the main input, so that this is fused with the last step of combining them.
                | f"Advance{index}" >> beam.Map(_advance, *known).with_output_types(CountState)
            )
        return state


def _sum_group(group: ShardGroup, state: CountState, parameters: CountParameters, key: RunKey) -> ShardTotals:
    """Returns the decoded noisy sum over the live shards of a group, exact with trust central."""
    if state.query is None:
        return NOTHING
    with SUM_TIME.timed():
        return sum_shards(group, state.query, key, parameters.shard_noise_source, parameters.simulated_dropout)


def _add_totals(totals: Iterable[ShardTotals]) -> ShardTotals:
    return functools.reduce(operator.add, totals, NOTHING)


@contextlib.contextmanager
def _request_errors_as_refusals() -> Iterator[None]:
    """Raises RequestErrors as RefusedErrors: after the charge they follow from noisy counts and public figures."""
    try:
        yield
    except RequestError as error:
        raise RefusedError(str(error)) from error


def _advance(totals: ShardTotals, state: CountState, parameters: CountParameters, key: RunKey) -> CountState:
    """Returns the state after a sub-query, which is logged and counted."""
    if state.query is None:
        return state
    with _request_errors_as_refusals():
        state = advance_run(state, totals, parameters, key)
    answer = state.results[-1]
    own = " of users who answer no other" if state.has_disjoint_shards else ""
    (SUB_QUERY_WITH_LOSS if answer.shards_lost else SUB_QUERY).emit(
        sub_query=answer.query.index,
        entries=answer.vector_length,
        cost=f"{state.noise.kind.UNIT} {answer.cost:.4g}{own}",
        **{state.noise.kind.UNIT: answer.cost},
        remaining=state.next_query_budget.remaining,
        noise_stddev=answer.noise_stddev,
        shards=answer.shards,
        shards_lost=answer.shards_lost,
        bits_per_client=answer.bits_per_client,
    )
    SUB_QUERIES.add()
    VECTOR_ENTRIES.add(answer.vector_length)
    LOST_SHARDS.add(answer.shards_lost)
    return state
