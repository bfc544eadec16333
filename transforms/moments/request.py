"""The request of `sfumato moments`: means, variances and moments of a number."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import ClassVar, Literal, Self

from pydantic import model_validator

from sfumato.schemas.errors import RequestError
from sfumato.schemas.moments import FixedPoint, Signed, Statistic, ValueColumns, ValueRange
from sfumato.schemas.rectangle import MAX_DEPTH
from sfumato.schemas.region import Grid
from sfumato.schemas.release import BITS_FILE
from sfumato.schemas.requests.log_columns import PlaceColumns, UserColumn
from sfumato.schemas.requests.publish_request import (
    REGION_HELP,
    REGION_METAVAR,
    MapGeography,
    RegionOption,
    ReleaseRequest,
)  # fmt: skip
from sfumato.schemas.requests.request_base import COLUMNS, GROUPS, INPUT, METHOD, PRIVACY, Pair, Several, option
from sfumato.schemas.trust import Trust
from sfumato.transforms.io.files import read_lines
from sfumato.transforms.moments.central.plan import CentralMomentsPlan
from sfumato.transforms.moments.client_values import Values
from sfumato.transforms.moments.groups import CellGroups, ColumnGroups, Grouping, ZoneGroups
from sfumato.transforms.moments.local.allocation import PriorRelease, Tuning
from sfumato.transforms.moments.local.plan import MomentsPlan
from sfumato.transforms.release.published_release import open_start
from sfumato.transforms.zones.zone_file import read_zones

DEFAULT_MIN_GROUP = 100
OF_REPORTS = ("variance", "method", "tuning", "bits_per_client", "group_epsilon", "warm_start")  # of what users report
OF_SECOND = ("second_bits", "second_fraction_bits", "second_signed", "second_range")  # options of a second column


def sign_of(option_name: str, signed: str | None) -> tuple[str, float]:
    """How values are signed (no, shift or split), and the offset of a shift. Raises RequestError."""
    kind, _, offset = ("no" if signed is None else signed).partition(":")
    if kind not in ("no", "shift", "split") or (kind == "shift") != bool(offset):
        raise RequestError(f"{option_name}: give shift:OFFSET or split, got {signed!r}")
    try:
        shift = float(offset or 0)
    except ValueError:
        raise RequestError(f"{option_name}: shift:OFFSET needs a number, got {signed!r}") from None
    if not math.isfinite(shift):
        raise RequestError(f"{option_name}: shift:OFFSET needs a finite number, got {shift}")
    return kind, shift


@contextmanager
def _of_second() -> Iterator[None]:
    """Names the second column's option in messages."""
    try:
        yield
    except RequestError as error:
        raise RequestError(f"second_{error}") from None


def _fixed_point(option_name: str, sign: str | None, bits: int, fraction_bits: int) -> FixedPoint:
    kind, shift = sign_of(option_name, sign)
    signed: Signed = kind  # type: ignore[assignment]
    form = FixedPoint(bits, fraction_bits, signed, shift)
    if abs(shift) > 2**53 * form.step:
        raise RequestError(
            f"{option_name}: shift:{shift:g} is so large that values of its size have no steps of {form.step:g}"
        )
    return form


@dataclass(frozen=True)
class RequestedMoments:
    """Moments whose options do not contradict each other.

    Attributes:
        values: the columns, the groups, and the form of users' reports.
        plan: the statistics and their budget.
        grouping: the groups; None without groups.
        prior: of users' reports: the earlier release that they start from.
    """

    values: Values
    plan: MomentsPlan | CentralMomentsPlan
    grouping: Grouping | None = None
    prior: PriorRelease | None = None


class MomentsRequest(PlaceColumns, UserColumn, MapGeography, ReleaseRequest):
    """Means and other moments of a number: each user sends one bit of their value, or a trusted curator adds up."""

    JOB: ClassVar[str] = "moments"
    COMMAND: ClassVar[str] = "moments"
    ABOUT: ClassVar[str] = (
        "Publishes means, variances and moments of a number. Each user sends one bit of their value; with --trust "
        "central, the operator adds the values up, and adds noise once."
    )
    EXAMPLE: ClassVar[str] = "--input 'logs/*.parquet' --column km_from_home --epsilon 2 --output moments"

    column: str = option(..., "column of integers or floating-point numbers", COLUMNS, common=True, metavar="NAME")
    bits: int = option(16, "bits of a value's magnitude, 1 to 52", METHOD, common=True)
    fraction_bits: int = option(0, "how many of the bits are below the point", METHOD)
    signed: str | None = option(
        None,
        "values may be negative. shift:OFFSET adds OFFSET first; split collects bits of both signs apart, for ranges "
        "that are not known well",
        METHOD,
        common=True,
        metavar="HOW",
    )
    second_column: str | None = option(
        None, "second column of numbers, for covariances", COLUMNS, common=True, metavar="NAME"
    )
    second_bits: int | None = option(None, "--bits of the second column (default: those of the first)", METHOD)
    second_fraction_bits: int | None = option(
        None, "--fraction_bits of the second column (default: those of the first)", METHOD
    )
    second_signed: str | None = option(
        None, "--signed of the second column (default: values are not negative)", METHOD, metavar="HOW"
    )
    statistics: Several[str] = option(
        ("mean",),
        "of mean, variance, moment:K (mean of the Kth power, K up to 8), geometric_mean, log_product; covariance, "
        "correlation (with a second column). --trust central has count and sum, and no geometric_mean, log_product",
        METHOD,
        common=True,
        metavar="NAMES",
    )
    variance: Literal["centred", "raw"] = option(
        "centred",
        "centred: about the mean of a first part of the users; raw: E[x^2] - E[x]^2, far worse unless the mean is "
        "near 0",
        METHOD,
    )
    method: Literal["auto", "threshold", "adaptive", "weighted"] = option(
        "auto",
        "threshold: a user says if their value reaches a threshold, in two rounds; adaptive: a user sends a bit, the "
        "second round collects those that matter; weighted: bits in one round; auto: by epsilon, --bits and a noisy "
        "count of users, and adaptive with groups, an earlier release or a second column",
        METHOD,
    )
    tuning: Literal["ours", "paper"] = option(
        "ours", "paper: a third of the users first, by 2^(j/2), and squashing at 2.5, without DP 0.5", METHOD
    )
    range: Pair | None = option(
        None,
        "with --trust central: range of the numbers; values outside are moved to its ends (default: that of --bits "
        "and the like; without them, it is found from the data for a fifth of epsilon)",
        METHOD,
        common=True,
        metavar="LOW,HIGH",
    )
    second_range: Pair | None = option(
        None, "with --trust central: --range of the second column", METHOD, metavar="LOW,HIGH"
    )
    trust: Literal[Trust.LOCAL, Trust.SECAGG, Trust.CENTRAL] = option(
        Trust.LOCAL,
        "local: each bit is protected before it is sent; secagg: bits are sent as they are, in secure sums (with "
        "--no_dp); central: the operator adds noise to sums of values, by far the most accurate",
        PRIVACY,
        common=True,
        metavar="HOW",
    )
    epsilon: float | None = option(
        None, "privacy budget of all that a user sends (required, or --no_dp)", PRIVACY, common=True
    )
    no_dp: bool = option(False, "with --trust secagg: metering alone, and no differential privacy", PRIVACY)
    bits_per_client: int = option(1, "bits of their value that a user sends", PRIVACY)
    group_by: str | None = option(
        None,
        "column of groups, besides everybody: text, integers, booleans or dates",
        GROUPS,
        common=True,
        metavar="NAME",
    )
    groups: Several[str] | None = option(
        None,
        "the groups, known from elsewhere: which values occur is private; others count as `other`",
        GROUPS,
        common=True,
        metavar="A,B,C",
    )
    groups_file: str | None = option(None, "the same, one a line", GROUPS, metavar="FILE")
    cells: int | None = option(None, "groups are the 2^DEPTH x 2^DEPTH cells of --region", GROUPS, metavar="DEPTH")
    region: RegionOption | None = option(None, f"{REGION_HELP}, with --cells", GROUPS, metavar=REGION_METAVAR)
    zones: str | None = option(
        None,
        "groups are public polygons in longitude and latitude: a GeoJSON or GeoParquet file, local or gs://",
        GROUPS,
        metavar="FILE",
    )
    id_column: str | None = option(None, "property or column of the zones' ids, with --zones", GROUPS, metavar="NAME")
    group_epsilon: float | None = option(
        None, "privacy budget of the noise on counts by group, for adding or removing a user (default: epsilon)", GROUPS
    )
    min_group: int | None = option(
        None, f"groups of fewer users are merged into `other` (default: {DEFAULT_MIN_GROUP})", GROUPS
    )
    warm_start: str | None = option(
        None, "an earlier release of the same column, in place of the first round", INPUT, metavar="RELEASE"
    )
    rows_are_users: bool = option(False, "every row is another user's: no ids are read, which is faster", COLUMNS)

    @model_validator(mode="after")
    def _second(self) -> Self:
        if self.second_column is None and (given := set(OF_SECOND) & self.model_fields_set):
            raise RequestError(f"{min(given)}: is of a second column; name it with --second_column NAME")
        if self.second_column is not None and self.warm_start is not None:
            raise RequestError("warm_start: is of one column; leave it out, or --second_column")
        sign_of("second_signed", self.second_signed)
        if self.trust == Trust.CENTRAL:
            if self.second_range is not None and (form := {*OF_SECOND[:3]} & self.model_fields_set):
                raise RequestError(f"{min(form)}: sets the second range, as --second_range does; give one of them")
        elif self.second_range is not None:
            raise RequestError("second_range: needs --trust central; reports have --second_bits and the like")
        return self

    @model_validator(mode="after")
    def _budget(self) -> Self:
        if self.no_dp != (self.trust == Trust.SECAGG):
            raise RequestError(
                "no_dp: bits that are sent as they are, in secure sums, have no differential privacy; give both "
                "--trust secagg and --no_dp, or neither"
            )
        if self.epsilon is None and not self.no_dp:
            raise RequestError(
                "epsilon: give --epsilon E, or --trust secagg --no_dp for metering without differential privacy"
            )
        if self.epsilon is not None and self.no_dp:
            raise RequestError("no_dp: not allowed with --epsilon; give one of them")
        if self.budget is not None and self.epsilon is None:
            raise RequestError(
                "budget: no limit of epsilon bounds bits that are sent as they are; leave it out with --no_dp, and the "
                "ledger records the bits"
            )
        if self.tuning == "paper" and self.method != "adaptive":
            raise RequestError("tuning: applies only with --method adaptive")
        if self.warm_start is not None and self.method not in ("adaptive", "auto"):
            raise RequestError("warm_start: stands for the first of two rounds; use --method adaptive")
        if self.trust == Trust.CENTRAL:
            for name in self.changed(OF_REPORTS):
                raise RequestError(f"{name}: is of users' reports, and with --trust central there are none")
            if self.range is not None and (form := {"bits", "fraction_bits", "signed"} & self.model_fields_set):
                raise RequestError(f"{min(form)}: sets the range of the numbers, as --range does; give one of them")
        elif self.range is not None:
            raise RequestError("range: needs --trust central; reports have --bits, --fraction_bits and --signed")
        sign_of("signed", self.signed)
        return self

    @model_validator(mode="after")
    def _grouped(self) -> Self:
        kinds = [name for name in ("cells", "group_by", "zones") if getattr(self, name) is not None]
        if self.method == "threshold" and kinds:
            raise RequestError(
                "method: thresholds are asked of everybody together, as every group's counts have noise of their own; "
                "use --method adaptive with groups"
            )
        lists = [name for name in ("groups", "groups_file") if getattr(self, name) is not None]
        if self.id_column is not None and self.zones is None:
            raise RequestError("id_column: is of a file of zones, which needs --zones FILE")
        if self.zones is not None:
            if len(kinds) > 1 or lists:
                raise RequestError(
                    "zones: groups are zones, cells or values of a column; give --zones, --cells or --group_by"
                )
            if self.region is not None:
                raise RequestError("region: is of --cells; zones of a file have their own")
            if not self.id_column:
                raise RequestError("id_column: name the property or column of the zones' ids with --id_column NAME")
            return self
        if self.cells is not None:
            if self.group_by is not None or lists:
                raise RequestError("cells: groups are cells or values of a column; give --cells or --group_by")
            if self.region is None:
                raise RequestError("cells: a grid of cells needs --region W,S,E,N")
            if not 1 <= self.cells <= MAX_DEPTH:
                raise RequestError(f"cells: must be a depth of 1 to 7, got {self.cells}")
            return self
        if self.region is not None:
            raise RequestError("region: cells of a region need --cells DEPTH")
        if self.group_by is None:
            if lists:
                raise RequestError(f"{lists[0]}: are of a column, which needs --group_by NAME")
            for name in self.changed(("group_epsilon", "min_group")):
                raise RequestError(f"{name}: is of groups, which need --group_by NAME, --cells DEPTH or --zones FILE")
        elif len(lists) != 1:
            raise RequestError(
                "groups: give the groups as --groups a,b,c or --groups_file FILE (they are published, so they must be "
                "known from elsewhere: which values occur in the logs is private)"
            )
        return self

    def resolve(self) -> RequestedMoments:
        """The columns, the plan, the groups, and for users' reports the prior. Raises RequestError."""
        grouping = self._grouping()
        return self._sums(grouping) if self.trust == Trust.CENTRAL else self._reports(grouping)

    def _sums(self, grouping: Grouping | None) -> RequestedMoments:
        """Sums of a trusted curator."""
        assert self.epsilon is not None
        span = None if self.range is None else ValueRange(*self.range)
        if self.model_fields_set & {"bits", "fraction_bits", "signed"}:
            form = self._form()
            span = ValueRange(form.low, form.high)
        second_span = None
        if self.second_range is not None:
            with _of_second():
                second_span = ValueRange(*self.second_range)
        elif self.model_fields_set & {*OF_SECOND[:3]} and (second := self._second_form()) is not None:
            second_span = ValueRange(second.low, second.high)
        plan = CentralMomentsPlan(
            statistics=tuple(map(Statistic, self.statistics)),
            epsilon=self.epsilon,
            span=span,
            second_span=second_span,
            has_second=self.second_column is not None,
        )
        values = Values(self._columns(), None, None if grouping is None else grouping.groups)
        return RequestedMoments(values, plan, grouping)

    def _reports(self, grouping: Grouping | None) -> RequestedMoments:
        """Users' own reports."""
        form, second = self._form(), self._second_form()
        values = Values(self._columns(), form, None if grouping is None else grouping.groups, second)
        # Thresholds err less about products, but say too little of large ones: their intervals are mostly useless.
        needs_bits = grouping is not None or self.warm_start is not None or second is not None
        prior = None
        if self.warm_start is not None:
            prior = open_start(
                self.warm_start,
                lambda one: PriorRelease.from_release(one.manifest, one.arrow_table(BITS_FILE), self.column, form),
            )
        plan = MomentsPlan(
            form=form,
            statistics=tuple(map(Statistic, self.statistics)),
            method="adaptive" if self.method == "auto" and needs_bits else self.method,
            epsilon=self.epsilon,
            release_epsilon=1.0 if self.group_epsilon is None and self.no_dp and grouping else self.group_epsilon,
            bits_per_client=self.bits_per_client,
            variance=self.variance,
            tuning=Tuning.from_paper(self.epsilon is not None) if self.tuning == "paper" else Tuning(),
            prior={} if prior is None else prior.bits,
            second=second,
        )
        if prior is not None:
            if not set(plan.quantities) & set(prior.bits):
                raise RequestError(
                    f"warm_start: the release has bits of {', '.join(prior.bits)}; this request needs "
                    f"{', '.join(plan.quantities)}"
                )
            if not prior.has_secret_key and self.seed is None:
                raise RequestError(
                    "warm_start: anybody can guess the key of that release and undo its randomised response, and the "
                    "new release would reveal some of the bits; start from a release that was made without --seed"
                )
            if not prior.local and plan.epsilon is not None:
                raise RequestError(
                    "warm_start: that release has no differential privacy (--no_dp), and the new release would reveal "
                    "some of its bits; start from a release that was made with --epsilon"
                )
        return RequestedMoments(values, plan, grouping, prior)

    def _form(self) -> FixedPoint:
        return _fixed_point("signed", self.signed, self.bits, self.fraction_bits)

    def _second_form(self) -> FixedPoint | None:
        if self.second_column is None:
            return None
        bits = self.bits if self.second_bits is None else self.second_bits
        fraction_bits = self.fraction_bits if self.second_fraction_bits is None else self.second_fraction_bits
        with _of_second():
            return _fixed_point("signed", self.second_signed, bits, fraction_bits)

    def _grouping(self) -> Grouping | None:
        least = DEFAULT_MIN_GROUP if self.min_group is None else self.min_group
        if self.cells is not None:
            assert self.region is not None
            grid = Grid(self.region, self.cells)
            return Grouping(CellGroups(grid, self.latitude_column, self.longitude_column), least)
        if self.zones is not None:
            assert self.id_column is not None
            zones = read_zones(self.zones, self.id_column)
            return Grouping(ZoneGroups(zones, self.latitude_column, self.longitude_column), least)
        if self.group_by is None:
            return None
        listed = read_lines("groups_file", str(self.groups_file)) if self.groups is None else self.groups
        return Grouping(ColumnGroups(self.group_by, listed), least)

    def _columns(self) -> ValueColumns:
        on_map = self.cells is not None or self.zones is not None
        return ValueColumns(
            self.column,
            None if self.rows_are_users else self.user_id_column,
            self.group_by,
            self.latitude_column if on_map else None,
            self.longitude_column if on_map else None,
            self.second_column,
        )
