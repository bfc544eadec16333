"""Private flows as one transform: trips are bounded and counted by pair, and one step adds the noise."""

from __future__ import annotations

from functools import partial
from typing import Unpack

from sfumato.transforms.flows.flow_estimate import MeasuredLevel
from sfumato.transforms.flows.flow_tree import ZonedCells, measure_flows, measure_zone_flows
from sfumato.transforms.flows.plan import FlowPlan
from sfumato.transforms.flows.user_trips import PAIR_BITS, RecordItems, TripItems, TripRule, count_trips
from sfumato.transforms.geo.zone_file import Zones
from sfumato.transforms.histogram.transform import CountedRounds, CountOptions, CountRounds
from sfumato.transforms.histogram.user_sample import Everybody
from sfumato.transforms.privacy.admission import ChargeAndAdmit, NoisyUserCounts
from sfumato.transforms.privacy.keys import RunKey

Measured = tuple[list[MeasuredLevel], NoisyUserCounts]  # noisy counts of trips, and of users, that admitted the run


class CountFlows(CountRounds):
    """Bundles of log files -> a singleton Measured, differentially private as a whole.

    `release.flow_files` makes the files of a release of it.

    Args:
        items: encodes rows: trips, or records that `rule` turns into trips.
        rule: what makes a trip of two records; None where rows are trips.
        plan: the budget.
        key: of the run, bound to all that shapes the counts; use each key for one input, once.
        zones: the ends of flows; None for cells.
        options: see CountOptions. Without `admit`, users are counted by the plan's rule, without a ledger.

    Raises: see CountRounds.
    """

    def __init__(
        self,
        items: TripItems | RecordItems,
        rule: TripRule | None,
        plan: FlowPlan,
        key: RunKey,
        zones: Zones | None = None,
        **options: Unpack[CountOptions],
    ):
        options.setdefault("admit", ChargeAndAdmit(plan.admission_rule))
        count = partial(count_trips, max_trips=plan.max_trips, rule=rule, key=key)
        measure = partial(_measure, plan=plan, key=key, zones=zones)
        super().__init__(items, Everybody(key), count, 1, measure, **options)  # expands to PCollection[Measured]


def _measure(counted: CountedRounds, plan: FlowPlan, key: RunKey, zones: Zones | None) -> Measured:
    """Returns the noisy counts of trips. It is called once the run is charged: only then may noise be drawn."""
    assert counted.admission is not None
    codes, counts = counted.counts[0].items, counted.counts[0].counts
    if zones is not None:
        return [measure_zone_flows(codes, counts, ZonedCells(zones), plan, key)], counted.admission
    return measure_flows(codes, counts, PAIR_BITS, plan, counted.admission.users, key), counted.admission
