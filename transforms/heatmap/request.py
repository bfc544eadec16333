"""The requests of `sfumato heatmap` and `sfumato plan`: options of the job, of every heatmap and of each method."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from datetime import date, datetime
from functools import cached_property
from typing import Annotated, Any, ClassVar, Self

from annotated_types import Interval
from pydantic import PlainValidator, model_validator

from sfumato.schemas.errors import RequestError, did_you_mean
from sfumato.schemas.guarantee import CentralSplitOrSecagg, Trust
from sfumato.schemas.ledger import Period, parse_day
from sfumato.schemas.locations import LocationColumns
from sfumato.schemas.region import Grid
from sfumato.schemas.release import CELLS_FILE
from sfumato.schemas.requests.checks import owners_of
from sfumato.schemas.requests.counting_options import (
    DELTA_HELP,
    DROPOUT_HELP,
    EPSILON_HELP,
    SHARD_SIZE_HELP,
    TRUST_HELP,
    Colluding,
    CountingOptions,
    Delta,
    Depth,
    Dropout,
    Epsilon,
    Fraction,
    ShardSize,
    Users,
)
from sfumato.schemas.requests.log_columns import RateColumn, SlotColumns
from sfumato.schemas.requests.publish_request import LogOptions, MapGeography, RegionOfMap
from sfumato.schemas.requests.request_base import INPUT, MAP, METHOD, PRIVACY, PROTOCOL, Several, option
from sfumato.schemas.rotation import MAX_COHORTS, Rotation
from sfumato.schemas.slots import UTC, Slots
from sfumato.transforms.counting.methods import METHODS, Adaptive, Method
from sfumato.transforms.counting.methods.adaptive import Refine, Schedule
from sfumato.transforms.counting.parameters import CountParameters, check_prior
from sfumato.transforms.counting.sub_queries import check_first_query
from sfumato.transforms.locations.shards import Participation
from sfumato.transforms.locations.users import Contribution
from sfumato.transforms.nights.warm_start import MAX_CELLS, WarmStart
from sfumato.transforms.release.published_release import Release, open_start
from sfumato.transforms.secagg.shard_sums import NoiseSource

MAX_COMBINATIONS = 10_000
_OF_REQUEST = ("categories", "slots", "records_per_user", "rotation", "method")  # not values by name


def parameter_owners() -> dict[str, tuple[str, ...]]:
    """Returns the methods that have a parameter, by its name; no methods for a parameter of every heatmap."""
    return {**{one.name: () for one in fields(CountParameters) if one.name not in _OF_REQUEST}, **owners_of(METHODS)}


def heatmap_parameters(
    method: str,
    values: Mapping[str, Any],
    categories: int = 1,
    slots: int = 1,
    records_per_user: int = 1,
    rotation: int = 1,
) -> CountParameters:
    """Returns parameters from values by name. None and False give the default, like a missing value.

    Raises RequestError if the method or a parameter is unknown, does not apply to the method, or is out of range.
    """
    owners, kind = parameter_owners(), find_method(method)
    for name in values:
        if name not in owners:
            raise RequestError(f"{name}: not an option of a heatmap{did_you_mean(name, owners)}")
    given = {name: value for name, value in values.items() if value is not None and value is not False}
    for name in given:
        if owners[name] and method not in owners[name]:
            raise RequestError(f"{name}: applies only with --method {' or '.join(owners[name])}, got {method}")
    own = {name: value for name, value in given.items() if owners[name]}
    common = {name: value for name, value in given.items() if not owners[name]}
    kind.check_given(own)
    bins: dict[str, Any] = {"categories": categories, "slots": slots, "records_per_user": records_per_user}
    return CountParameters(**common, **bins, rotation=rotation, method=kind(**own))


def option_grid(methods: Sequence[str], values: Mapping[str, Sequence[Any]]) -> list[tuple[str, dict[str, Any]]]:
    """Returns each method with each combination of its options' values, by name, without options of other methods.

    Raises RequestError if a method is unknown, no method has an option, or a method has more than MAX_COMBINATIONS.
    """
    known = parameter_owners()
    owners = {name: known[name] for name in values}
    if not [name for name in methods if name]:
        raise RequestError(f"methods: must name one or more of {', '.join(METHODS)}")
    for method in methods:
        find_method(method)
    for name, of in owners.items():
        if of and not set(of) & set(methods):
            raise RequestError(f"{name}: applies only with --method {' or '.join(of)}")
    grid = []
    for method in dict.fromkeys(methods):
        mine = {
            name: list(dict.fromkeys(given)) for name, given in values.items() if method in (owners[name] or methods)
        }
        if math.prod(map(len, mine.values())) > MAX_COMBINATIONS:
            raise RequestError(
                f"{method}: must have at most {MAX_COMBINATIONS:,} combinations of options; give fewer values"
            )
        grid += [(method, dict(zip(mine, chosen, strict=True))) for chosen in itertools.product(*mine.values())]
    return grid


def find_method(name: str) -> type[Method]:
    """Returns the method with this name. Raises RequestError for an unknown name."""
    if name not in METHODS:
        raise RequestError(f"method: must be one of {', '.join(METHODS)}, got {name!r}{did_you_mean(name, METHODS)}")
    return METHODS[name]


def start_of(release: Release, grid: Grid) -> WarmStart:
    """Returns the map of an earlier release. Raises RequestError unless it has this grid."""
    return WarmStart.from_release(release.manifest, release.arrow_table(CELLS_FILE, MAX_CELLS), grid)


def with_estimator(values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns parameters by name. The paper's schedule adds the paper's estimator: the last sub-query's answers.

    Do not use it for a map of several nights, which is estimated from all answers with any schedule.
    """
    return {**values, "estimator": "last"} if values.get("schedule") == "paper" else dict(values)


def _night(value: Any) -> date:
    if isinstance(value, datetime):  # pandas' Timestamp is one
        return value.date()
    return value if isinstance(value, date) else parse_day("night", str(value))


def _rotation(value: Any) -> Rotation:
    return value if isinstance(value, Rotation) else Rotation.parse(str(value))


class HeatmapRequest(RateColumn, SlotColumns, RegionOfMap, MapGeography, CountingOptions):
    """Publishes a differentially private heatmap of location logs."""

    JOB: ClassVar[str] = "heatmap"
    EXAMPLE: ClassVar[str] = (
        "--input 'logs/*.parquet' --region 3.00,1.00,3.13,1.13 --trust central --epsilon 1 --output map"
    )

    method: str = option(
        Adaptive.NAME,
        f"how the map is estimated: {', '.join(METHODS)} (emd is for few users with several records each)",
        METHOD,
        common=True,
        metavar="NAME",
    )
    trust: CentralSplitOrSecagg = option(Trust.SECAGG, TRUST_HELP, PRIVACY, common=True)
    depth: Depth = option(10, "levels of the quadtree: the finest grid has 2^depth x 2^depth cells", MAP, common=True)
    contribution: Contribution | None = option(
        None,
        "contribution of a user: one, a random location of theirs; top, their most frequent location; all, a "
        "distribution over all their locations (default: all for emd, otherwise one)",
        MAP,
    )
    schedule: Schedule | None = option(
        None,
        "auto: two sub-queries, or more on a deep grid with few users; two_query; lean: smaller trees; paper: many "
        "sub-queries, Algorithm 2 of the heatmap paper (method adaptive; default: auto)",
        METHOD,
    )
    refine: Refine | None = option(
        None,
        "rule for splitting nodes, with --auxiliary: count, as without --auxiliary; interval, as long as rates stay "
        "precise (method adaptive; default: count)",
        METHOD,
    )
    participation: Participation = option(
        "planned",
        "planned: every planned shard reports with the planned noise, regardless of its number of users; paper: lost "
        "shards and the noise level depend on participation, which is not protected (only for experiments)",
        PROTOCOL,
    )
    noise_source: NoiseSource = option(
        "shard", "shard: draw a shard's noise in closed form; client: draw every client's share (slow)", PROTOCOL
    )
    colluding: Colluding | None = option(
        None,
        "share of a shard's required clients that may give their noise shares to the server; noise grows so that "
        "epsilon also holds against them (default: 0)",
        PROTOCOL,
    )
    simulated_dropout: Fraction = option(
        0.0, "probability that a client drops out after the noise is planned", PROTOCOL
    )
    warm_start: Several[str] | None = option(
        None,
        "earlier release of the same region and depth; the tree starts from its map (method adaptive). With --night, "
        "you can add more releases, whose answers the first one does not include",
        INPUT,
        metavar="RELEASE",
    )
    night: Annotated[date, PlainValidator(_night)] | None = option(
        None,
        "day of the logs: the map is estimated from the answers of this night and of the nights of --warm_start "
        "(method adaptive)",
        INPUT,
        metavar="DATE",
    )
    rotation: Annotated[Rotation, PlainValidator(_rotation)] | None = option(
        None,
        "query only cohort N of M, with --ledger. A user's id and the key decide the cohort; the map is scaled to all "
        "users",
        PRIVACY,
        metavar="N/M",
    )

    def reads_local_times(self) -> bool:
        return self.slots is not None or super().reads_local_times()

    @cached_property
    def parameters(self) -> CountParameters:
        """Returns the parameters of the heatmap. Raises RequestError."""
        columns = self.columns
        slots = 1 if columns.slots is None else len(columns.slots)
        values = {**self.parameter_values(), **self.given(parameter_owners())}
        return heatmap_parameters(
            self.method,
            values if self.night is not None else with_estimator(values),
            columns.categories,
            slots,
            columns.records_per_user,
            1 if self.rotation is None else self.rotation.cohorts,
        )

    @cached_property
    def columns(self) -> LocationColumns:
        """Returns the columns to read. Raises RequestError."""
        slots = None
        if self.slots is not None and self.time_column is not None:
            slots = Slots.parse(self.time_column, self.slots, UTC if self.time_zone is None else self.time_zone)
        return self.location_columns(self.rates, slots, self.records_per_user or 1)

    def shaping(self) -> dict[str, Any]:
        """See ReleaseRequest.shaping. The options of other methods do not shape this one's map."""
        others = {name for name, owners in parameter_owners().items() if owners and self.method not in owners}
        return {name: value for name, value in super().shaping().items() if name not in others}

    def resolve(self) -> WarmStart | None:
        """Returns the earlier release to start from, if any. Raises RequestError if it cannot be used."""
        grid = Grid(self.region, self.parameters.depth)
        starts = [open_start(folder, lambda one: start_of(one, grid)) for folder in self.warm_start or ()]
        start = starts[0] if starts else None
        if start is not None and self.night is not None:
            # Imported here: only the map of a night needs the posterior over nights.
            from sfumato.transforms.nights.night import nights_before

            state = nights_before(self.warm_start or (), self.night).state
            if state is not None:
                expected = state.predict(self.night, float(start.estimate.counts.sum()))
                start = replace(start, estimate=expected, added=tuple(one.release_id for one in starts[1:]))
        prior = None if start is None else start.estimate
        check_prior(prior, self.parameters)
        if not all(one.safe for one in starts) and self.seed is None:
            raise RequestError(
                "warm_start: must be a release made without --seed: anyone can remove the noise of a seed, and the new "
                "release would then reveal exact counts"
            )
        check_first_query(self.parameters, prior)
        return start

    @model_validator(mode="after")
    def _checked(self) -> Self:
        self.parameters  # noqa: B018  (raises if they contradict each other)
        if self.ledger is None:
            self.refuse(("rotation",), "requires --ledger LOCATION, which records the cohort of each night")
        if self.night is not None:
            self._check_night(self.night)
        elif self.warm_start is not None and len(self.warm_start) > 1:
            raise RequestError("warm_start: accepts several releases only with --night DATE")
        return self

    def _check_night(self, night: date) -> None:
        """Raises RequestError for options with which answers do not add up over nights."""
        self.parameters.method.check_warm_start()
        self.refuse(("slots", "auxiliary"), "cannot be combined with --night")
        if self.period is not None and self.period != Period(night, night):
            raise RequestError(f"night: must be the day of --period, {self.period}, got {night}")


class PlanRequest(LogOptions):
    """Shows the cost and the noise of a heatmap, from public figures only; it reads no data.

    It assumes that users are spread evenly over the map. If they are not, the method adaptive stops earlier or later;
    the figures of the other methods are exact. Options accept several values, separated by commas.
    """

    JOB: ClassVar[str] = "plan"
    EXAMPLE: ClassVar[str] = "--users 1000000 --epsilon 0.5,1,2 --depth 10"

    users: Several[Users] = option(..., "number of users that take part", PRIVACY, metavar="N,...")
    method: Several[str] = option(
        (Adaptive.NAME,), f"methods: {', '.join(METHODS)}", METHOD, common=True, metavar="NAMES"
    )
    epsilon: Several[Epsilon] = option((1.0,), EPSILON_HELP, PRIVACY, common=True, metavar="X,...")
    delta: Several[Delta] = option((0.0,), DELTA_HELP, PRIVACY, metavar="X,...")
    trust: Several[CentralSplitOrSecagg] = option((Trust.SECAGG,), TRUST_HELP, PRIVACY, common=True, metavar="NAMES")
    depth: Several[Depth] = option((10,), "levels of the quadtree", MAP, common=True, metavar="N,...")
    contribution: Several[Contribution] | None = option(
        None, "contribution of a user: one, top or all (default: all for emd, otherwise one)", MAP, metavar="NAMES"
    )
    schedule: Several[Schedule] | None = option(
        None, "auto, two_query, lean or paper (method adaptive; default: auto)", METHOD, metavar="NAMES"
    )
    shard_size: Several[ShardSize] | None = option(None, SHARD_SIZE_HELP, PROTOCOL, metavar="N,...")
    dropout: Several[Dropout] | None = option(None, DROPOUT_HELP, PROTOCOL, metavar="X,...")
    colluding: Several[Colluding] | None = option(
        None, "share of a shard's required clients against which epsilon also holds", PROTOCOL, metavar="X,..."
    )
    nights: Annotated[int, Interval(ge=1, le=MAX_COHORTS)] | None = option(
        None,
        "compare numbers of rotating cohorts for a map every night; epsilon and delta then cover any N consecutive "
        "nights",
        PRIVACY,
        common=True,
    )

    def values(self) -> dict[str, tuple[Any, ...]]:
        """Returns the values of the parameters that were given, by name."""
        given = self.given(parameter_owners())
        return {name: given[name] for name in type(self).model_fields if name in given}

    def settings(self) -> list[CountParameters]:
        """Returns the parameters of each method with each combination of the values. Raises RequestError."""
        grid = option_grid(self.method, self.values())
        settings = [heatmap_parameters(method, with_estimator(chosen)) for method, chosen in grid]
        return [one if self.nights is not None or not one.delta else replace(one, noise="gaussian") for one in settings]

    @model_validator(mode="after")
    def _for_nights(self) -> Self:
        if self.nights is not None:
            for name, values in {"method": self.method, **self.values()}.items():
                if len(values) > 1:
                    raise RequestError(f"{name}: must have one value with --nights, got {len(values)}")
        return self
