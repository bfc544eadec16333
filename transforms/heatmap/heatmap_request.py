"""The requests of `sfumato heatmap` and `sfumato plan`: options of the job, of every heatmap and of each method."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import date, datetime
from functools import cached_property
from typing import Annotated, Any, ClassVar, Self

from pydantic import PlainValidator, create_model, model_validator

from sfumato.schemas.errors import RequestError
from sfumato.schemas.ledger import Period, parse_day
from sfumato.schemas.locations import Auxiliary, LocationColumns
from sfumato.schemas.requests.log_columns import DEFAULT_MAX_DWELL, LogColumns, RateColumn, SlotColumns
from sfumato.schemas.requests.publish_request import LogOptions, MapGeography, RegionOfMap, ReleaseRequest
from sfumato.schemas.requests.request_base import (
    INPUT,
    MAP,
    METHOD,
    OUTPUT,
    PRIVACY,
    PROTOCOL,
    Request,
    Several,
    option,
)
from sfumato.schemas.requests.time_zones import UTC
from sfumato.schemas.rotation import MAX_COHORTS, Rotation
from sfumato.schemas.slots import Slots
from sfumato.transforms.heatmap.heatmap_options import Option, heatmap_options, heatmap_parameters
from sfumato.transforms.heatmap.methods import METHODS, Adaptive
from sfumato.transforms.heatmap.parameters import HeatmapParameters

_GROUPS = {
    **dict.fromkeys(("depth", "contribution", "gamma", "rounding"), MAP),
    **dict.fromkeys(("trust", "epsilon", "population", "population_share", "max_bad_fraction"), PRIVACY),
}


def request_fields(options: dict[str, Option], *, many: bool = False) -> dict[str, Any]:
    """Fields of a request for options, as `pydantic.create_model` takes them. many: each takes several values.

    Those that every release has are left out, unless they take several values.
    """
    return {
        name: one.field(_GROUPS.get(name, METHOD if one.methods else PROTOCOL), many)
        for name, one in options.items()
        if many or name not in ReleaseRequest.model_fields
    }


def location_columns(request: LogColumns) -> LocationColumns:
    """The columns that a request names. Raises RequestError if they contradict each other."""
    auxiliary = None
    if isinstance(request, RateColumn) and request.auxiliary is not None:
        known = request.categories
        auxiliary = Auxiliary(request.auxiliary, assumed=True) if known is None else Auxiliary(request.auxiliary, known)
    slots = None
    if isinstance(request, SlotColumns) and request.slots is not None and request.time_column is not None:
        slots = Slots.parse(request.time_column, request.slots, UTC if request.time_zone is None else request.time_zone)
    return LocationColumns(
        user_id=request.user_id_column,
        latitude=request.latitude_column,
        longitude=request.longitude_column,
        weight=request.weight_column,
        time=request.time_column if slots is None else None,
        max_dwell=DEFAULT_MAX_DWELL if request.max_dwell is None else request.max_dwell,
        auxiliary=auxiliary,
        slots=slots,
        records_per_user=(request.records_per_user or 1) if isinstance(request, SlotColumns) else 1,
    )


def lists_of(request: Request, names: Iterable[str]) -> dict[str, list[Any]]:
    """The values of the given options, by name."""
    return {name: [True] if value is True else list(value) for name, value in request.given(names).items()}


def _night(value: Any) -> date:
    if isinstance(value, datetime):  # pandas' Timestamp is one
        return value.date()
    return value if isinstance(value, date) else parse_day("night", str(value))


def _rotation(value: Any) -> Rotation:
    return value if isinstance(value, Rotation) else Rotation.parse(str(value))


class HeatmapOptions(RateColumn, SlotColumns, RegionOfMap, MapGeography, ReleaseRequest):
    """The options of the job, without those of HeatmapParameters and of the methods."""

    JOB: ClassVar[str] = "heatmap"
    COMMAND: ClassVar[str] = "heatmap"
    ABOUT: ClassVar[str] = "Publishes a differentially private heatmap of location logs."
    EXAMPLE: ClassVar[str] = "--input 'logs/*.parquet' --region 3.00,1.00,3.13,1.13 --epsilon 1 --output map"

    method: str = option(
        Adaptive.NAME, f"how the map is made: {', '.join(METHODS)}", METHOD, common=True, metavar="NAME"
    )
    blur: float = option(
        0.0,
        "standard deviation of a Gaussian filter over the published density, in sides of the region",
        OUTPUT,
        metavar="X",
        ge=0,
        le=1,
        allow_inf_nan=False,
    )
    warm_start: Several[str] | None = option(
        None,
        "folder of an earlier release of the same region and depth, from whose map the tree starts (adaptive); with "
        "--night, others after it whose answers its nights lack",
        INPUT,
        metavar="RELEASE",
    )
    night: Annotated[date, PlainValidator(_night)] | None = option(
        None,
        "the day of the logs: the map is estimated from this night's answers and from those of the nights that "
        "--warm_start rests on (adaptive)",
        INPUT,
        metavar="DATE",
    )
    rotation: Annotated[Rotation, PlainValidator(_rotation)] | None = option(
        None,
        "ask only cohort N of M, which a user's id and the key decide; the map is scaled to all users (with --ledger)",
        PRIVACY,
        metavar="N/M",
    )

    @cached_property
    def parameters(self) -> HeatmapParameters:
        """The parameters of the heatmap. Raises RequestError."""
        columns = self.columns
        slots = 1 if columns.slots is None else len(columns.slots)
        return heatmap_parameters(
            self.method,
            self.given(heatmap_options()),
            columns.categories,
            slots,
            columns.records_per_user,
            1 if self.rotation is None else self.rotation.cohorts,
        )

    @cached_property
    def columns(self) -> LocationColumns:
        """The columns to read. Raises RequestError."""
        return location_columns(self)

    def shaping(self) -> dict[str, Any]:
        """See PublishRequest.shaping. The options of other methods do not shape this one's map."""
        others = {name for name, one in heatmap_options().items() if one.methods and self.method not in one.methods}
        return {name: value for name, value in super().shaping().items() if name not in others}

    @model_validator(mode="after")
    def _checked(self) -> Self:
        parameters = self.parameters
        if self.rotation is not None and self.ledger is None:
            raise RequestError("rotation: needs a ledger, which knows who was asked on which night; give --ledger")
        if self.night is not None:
            self._check_night(self.night, parameters)
        elif self.warm_start is not None and len(self.warm_start) > 1:
            raise RequestError("warm_start: several releases are of nights; give one, or --night DATE as well")
        return self

    def _check_night(self, night: date, parameters: HeatmapParameters) -> None:
        """Raises RequestError for options whose answers do not add up over nights."""
        parameters.method.check_warm_start()
        if getattr(parameters.method, "estimator", "bayes") != "bayes":
            raise RequestError("estimator: a map of several nights is estimated by bayes; leave it out")
        for name, value in (("slots", self.slots), ("auxiliary", self.auxiliary), ("users", parameters.users)):
            if value is not None:
                raise RequestError(f"{name}: the nights are of plain maps of all users; leave out --{name} or --night")
        if self.period is not None and self.period != Period(night, night):
            raise RequestError(f"night: the period is {self.period}, and the night {night}; give the same day")


HeatmapRequest: type[HeatmapOptions] = create_model(
    "HeatmapRequest", __base__=HeatmapOptions, **request_fields(heatmap_options())
)

_NOT_PLANNED = ("simulated_dropout", "max_bad_fraction")  # without effect on a plan
PLANNED = {name: one for name, one in heatmap_options().items() if name not in _NOT_PLANNED}


class PlanOptions(LogOptions):
    """The cost and the noise of a heatmap. Every option may have several values."""

    JOB: ClassVar[str] = "plan"
    COMMAND: ClassVar[str] = "plan"
    ABOUT: ClassVar[str] = (
        "Shows the cost and the noise of a heatmap, from public figures alone; no data are read. It assumes that users "
        "are spread evenly over the map. The method adaptive stops earlier or later where they are not; the figures of "
        "the other methods are exact. Each option takes several values, separated by commas."
    )
    EXAMPLE: ClassVar[str] = "--users 1000000 --epsilon 0.5,1,2 --depth 10"

    method: Several[str] = option((Adaptive.NAME,), f"of {', '.join(METHODS)}", METHOD, common=True, metavar="NAMES")
    nights: int | None = option(
        None,
        "compare the numbers of rotating cohorts for a map every night; epsilon and delta are then of any so many "
        "nights in a row",
        PRIVACY,
        common=True,
        ge=1,
        le=MAX_COHORTS,
    )

    @model_validator(mode="after")
    def _sized(self) -> Self:
        if not self.given(["users"]):
            raise RequestError("users: give the number of users who will take part, such as --users 1000000")
        if self.nights is not None:
            for name, values in {"method": self.method, **lists_of(self, PLANNED)}.items():
                if len(values) > 1:
                    raise RequestError(f"{name}: with nights give one value, got {len(values)}")
        return self


PlanRequest: type[PlanOptions] = create_model("PlanRequest", __base__=PlanOptions, **request_fields(PLANNED, many=True))
