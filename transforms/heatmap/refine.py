"""The sub-queries as pipeline stages: shards and a state go in, the refined state comes out."""

from __future__ import annotations

import contextlib
import functools
import operator
from collections.abc import Iterable, Iterator

import apache_beam as beam
from apache_beam import typehints

from sfumato.schemas.errors import RefusedError, RequestError
from sfumato.transforms.heatmap.parameters import HeatmapParameters
from sfumato.transforms.heatmap.schedule import receive, start
from sfumato.transforms.heatmap.state import Estimate, HeatmapState
from sfumato.transforms.locations.read import RowCounts, sum_row_counts
from sfumato.transforms.locations.shards import Cohort, ShardGroup
from sfumato.transforms.logs import COUNTED_USERS, SUB_QUERY, SUB_QUERY_WITH_LOSS
from sfumato.transforms.metrics import LOST_SHARDS, SUB_QUERIES, SUM_TIME, VECTOR_ENTRIES
from sfumato.transforms.privacy.admission import Admit, UserCounts, sum_user_counts
from sfumato.transforms.privacy.keys import RunKey
from sfumato.transforms.secagg.shard_sums import NOTHING, ShardTotals, sum_shards


class StartSubQueries(beam.PTransform):
    """Row counts and a PCollection of UserCounts -> a singleton HeatmapState with the first sub-query.

    All input has been read and decoded by then. Raises NotAdmittedError (see Admit).
    """

    def __init__(
        self,
        parameters: HeatmapParameters,
        key: RunKey,
        row_counts: beam.PCollection,
        admit: Admit,
        prior: Estimate | None = None,
    ):
        super().__init__()
        self._parameters = parameters
        self._key = key
        self._prior = prior
        self._row_counts = row_counts
        self._admit = admit

    def expand(self, users: beam.PCollection) -> beam.PCollection:
        parameters, key, prior, admit = self._parameters, self._key, self._prior, self._admit

        def begin(_: None, users: UserCounts, rows: RowCounts) -> HeatmapState:
            rows.check_ids()
            rows.emit()
            admission = admit(users + UserCounts(unusable=rows.without_id), key)
            with _refusing():
                state = start(admission, parameters, prior)
            COUNTED_USERS.emit(users=admission.users, epsilon=admission.epsilon, noise_stddev=admission.noise_stddev)
            return state

        total = users | "CountUsers" >> beam.CombineGlobally(sum_user_counts)
        rows = self._row_counts | "SumRowCounts" >> beam.CombineGlobally(sum_row_counts)
        return (
            users.pipeline
            | "Begin" >> beam.Create([None])
            | "Plan"
            >> beam.Map(begin, beam.pvalue.AsSingleton(total), beam.pvalue.AsSingleton(rows)).with_output_types(
                HeatmapState
            )
        )


class PlanCohort(beam.PTransform):
    """A singleton HeatmapState -> its Cohort."""

    def expand(self, state: beam.PCollection) -> beam.PCollection:
        return state | "Cohort" >> beam.Map(lambda state: state.cohort).with_output_types(Cohort)


@typehints.with_input_types(ShardGroup, HeatmapState)
@typehints.with_output_types(ShardTotals)
class _SumShardsFn(beam.DoFn):
    def __init__(self, parameters: HeatmapParameters, key: RunKey):
        self._parameters = parameters
        self._key = key

    def process(self, group: ShardGroup, state: HeatmapState) -> Iterator[ShardTotals]:
        if state.query is None:
            yield NOTHING
        else:
            own = self._parameters
            with SUM_TIME.timed():
                totals = sum_shards(group, state.query, self._key, own.noise, own.simulated_dropout)
            yield totals


class SumShards(beam.PTransform):
    """ShardGroups (at least one) and a singleton HeatmapState -> one ShardTotals: the decoded sum over live shards.

    Combining shuffles, so the noisy sum is materialised before anything uses it twice.
    """

    def __init__(self, parameters: HeatmapParameters, key: RunKey, state: beam.PCollection):
        super().__init__()
        self._sum = _SumShardsFn(parameters, key)
        self._state = beam.pvalue.AsSingleton(state)

    def expand(self, shards: beam.PCollection) -> beam.PCollection:
        return (
            shards
            | "EncodeNoiseSum" >> beam.ParDo(self._sum, self._state)
            | "CombineShards" >> beam.CombineGlobally(_add_totals).without_defaults()
        )


def _add_totals(parts: Iterable[ShardTotals]) -> ShardTotals:
    return functools.reduce(operator.add, parts, NOTHING)


class RunSubQueries(beam.PTransform):
    """ShardGroups and a singleton HeatmapState -> the final HeatmapState, a stage for each of the method's rounds.

    The stages are unrolled, so that one run is one job on any runner; once all is asked the rest do nothing.
    """

    def __init__(self, parameters: HeatmapParameters, key: RunKey, state: beam.PCollection):
        super().__init__()
        self._parameters = parameters
        self._key = key
        self._state = state

    def expand(self, shards: beam.PCollection) -> beam.PCollection:
        parameters, state = self._parameters, self._state
        for index in range(1, parameters.method.max_rounds(parameters.depth) + 1):
            totals = shards | f"SumShards{index}" >> SumShards(parameters, self._key, state)  # ShardTotals
            # The totals are the main input, so that this runs in one stage with the last step of combining them.
            state = totals | f"Advance{index}" >> beam.Map(
                _advance, beam.pvalue.AsSingleton(state), parameters, self._key
            ).with_output_types(HeatmapState)
        return state


@contextlib.contextmanager
def _refusing() -> Iterator[None]:
    """What cannot be asked once noisy values are known is a refusal: it is decided on them and on public figures."""
    try:
        yield
    except RequestError as error:
        raise RefusedError(str(error)) from error


def _advance(totals: ShardTotals, state: HeatmapState, parameters: HeatmapParameters, key: RunKey) -> HeatmapState:
    if state.query is None:
        return state
    with _refusing():
        state = receive(state, totals, parameters, key)
    spent = state.results[-1].spent
    (SUB_QUERY_WITH_LOSS if spent.shards_lost else SUB_QUERY).emit(
        sub_query=spent.index,
        entries=spent.vector_length,
        epsilon=spent.epsilon,
        remaining=state.next_query_budget.remaining,
        noise_stddev=spent.noise_stddev,
        shards=spent.shards,
        shards_lost=spent.shards_lost,
        bits_per_client=spent.bits_per_client,
    )
    SUB_QUERIES.add()
    VECTOR_ENTRIES.add(spent.vector_length)
    LOST_SHARDS.add(spent.shards_lost)
    return state
