"""The request of `sfumato moments`: means, variances and moments of a number."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import ClassVar, Literal, Self

from pydantic import model_validator

from sfumato.schemas.errors import RequestError
from sfumato.schemas.guarantee import Trust
from sfumato.schemas.moments import FixedPoint, Signed, Statistic, ValueColumns, ValueRange
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
from sfumato.transforms.geo.zone_file import no_id_column, read_zones
from sfumato.transforms.io.files import read_lines
from sfumato.transforms.moments.central.plan import CentralMomentsPlan
from sfumato.transforms.moments.client_values import Values
from sfumato.transforms.moments.groups import CellGroups, ColumnGroups, Grouping, ZoneGroups
from sfumato.transforms.moments.local.allocation import PriorRelease, Tuning
from sfumato.transforms.moments.local.plan import MomentsPlan
from sfumato.transforms.release.published_release import open_start

DEFAULT_MIN_GROUP = 100
MAX_CELL_DEPTH = 7  # 4^7 groups
OF_REPORTS = ("variance", "method", "tuning", "bits_per_client", "group_epsilon", "warm_start")  # users' own reports
OF_SECOND = ("second_bits", "second_fraction_bits", "second_signed", "second_range")  # options of a second column


def sign_of(option_name: str, signed: str | None) -> tuple[str, float]:
    """Returns how values are signed (no, shift or split), and the offset of a shift. Raises RequestError."""
    kind, _, offset = ("no" if signed is None else signed).partition(":")
    if kind not in ("no", "shift", "split") or (kind == "shift") != bool(offset):
        raise RequestError(f"{option_name}: must be shift:OFFSET or split, got {signed!r}")
    try:
        shift = float(offset or 0)
    except ValueError:
        raise RequestError(f"{option_name}: OFFSET must be a number, got {signed!r}") from None
    if not math.isfinite(shift):
        raise RequestError(f"{option_name}: OFFSET must be a finite number, got {shift}")
    return kind, shift


@contextmanager
def _of_second() -> Iterator[None]:
    """Begins messages with the second column's option."""
    try:
        yield
    except RequestError as error:
        raise RequestError(f"second_{error}") from None


def _fixed_point(sign: str | None, bits: int, fraction_bits: int) -> FixedPoint:
    kind, shift = sign_of("signed", sign)
    signed: Signed = kind  # type: ignore[assignment]
    form = FixedPoint(bits, fraction_bits, signed, shift)
    if abs(shift) > 2**53 * form.step:
        raise RequestError(f"signed: OFFSET must be at most 2^53 steps of {form.step:g}, got {shift:g}")
    return form


@dataclass(frozen=True)
class RequestedMoments:
    """Checked moments."""

    values: Values  # the columns, the groups, and the form of users' reports
    plan: MomentsPlan | CentralMomentsPlan  # the statistics and their budget
    grouping: Grouping | None = None  # the groups; None without groups
    prior: PriorRelease | None = None  # the earlier release from which users' reports start; None without one


class MomentsRequest(PlaceColumns, UserColumn, MapGeography, ReleaseRequest):
    """Publishes means, variances and moments of a number.

    Each user sends one bit of their value; with --trust central, the operator sums the values and adds noise once.
    """

    JOB: ClassVar[str] = "moments"
    EXAMPLE: ClassVar[str] = "--input 'logs/*.parquet' --column km_from_home --epsilon 2 --output moments"

    column: str = option(..., "column of integers or floating-point numbers", COLUMNS, metavar="NAME")
    bits: int = option(16, "bits of a value's magnitude, 1 to 52", METHOD, common=True)
    fraction_bits: int = option(0, "number of these bits after the binary point", METHOD)
    signed: str | None = option(
        None,
        "allow negative values. shift:OFFSET adds OFFSET first; split collects bits of both signs separately, for an "
        "unknown range",
        METHOD,
        common=True,
        metavar="HOW",
    )
    second_column: str | None = option(
        None, "second column of numbers, for covariances", COLUMNS, common=True, metavar="NAME"
    )
    second_bits: int | None = option(None, "--bits of the second column (default: --bits)", METHOD)
    second_fraction_bits: int | None = option(
        None, "--fraction_bits of the second column (default: --fraction_bits)", METHOD
    )
    second_signed: str | None = option(
        None, "--signed of the second column (default: no negative values)", METHOD, metavar="HOW"
    )
    statistics: Several[str] = option(
        ("mean",),
        "mean, variance, moment:K (mean of the Kth power, K up to 8), geometric_mean, log_product; with a second "
        "column, covariance, correlation. --trust central also has count and sum, but no geometric_mean, log_product",
        METHOD,
        common=True,
        metavar="NAMES",
    )
    variance: Literal["centred", "raw"] = option(
        "centred",
        "centred: about the mean of a first part of the users; raw: E[x^2] - E[x]^2, far less accurate unless the mean "
        "is near 0",
        METHOD,
    )
    method: Literal["auto", "threshold", "adaptive", "weighted"] = option(
        "auto",
        "threshold: a user reports whether their value reaches a threshold, in two rounds; adaptive: a user sends one "
        "bit, and the second round collects the bits that matter; weighted: bits in one round; auto: adaptive with "
        "groups, an earlier release or a second column, otherwise by epsilon, --bits and a noisy count of users",
        METHOD,
    )
    tuning: Literal["ours", "paper"] = option(
        "ours",
        "paper: as published, with a third of the users in round one, weights 2^(j/2), and the bits above the highest "
        "clear bit set to 0; a bit is clear above 2.5 standard deviations (0.5 without differential privacy)",
        METHOD,
    )
    range: Pair | None = option(
        None,
        "range of the numbers, with --trust central; values outside are clamped to it (default: that of --bits, or "
        "found from the data for a fifth of epsilon)",
        METHOD,
        common=True,
        metavar="LOW,HIGH",
    )
    second_range: Pair | None = option(
        None, "--range of the second column, with --trust central", METHOD, metavar="LOW,HIGH"
    )
    trust: Literal[Trust.LOCAL, Trust.SECAGG, Trust.CENTRAL] = option(
        Trust.LOCAL,
        "local: each bit is protected before it is sent; secagg: bits in secure sums, without noise (with --no_dp); "
        "central: the operator adds noise to sums of values, by far the most accurate",
        PRIVACY,
        common=True,
        metavar="HOW",
    )
    epsilon: float | None = option(
        None, "privacy budget of everything a user sends (required, or --no_dp)", PRIVACY, common=True
    )
    no_dp: bool = option(
        False, "only limit the bits of each user, without differential privacy, with --trust secagg", PRIVACY
    )
    bits_per_client: int = option(1, "number of bits of their value that a user sends", PRIVACY)
    group_by: str | None = option(
        None,
        "column of groups, in addition to all users: text, integers, booleans or dates",
        GROUPS,
        common=True,
        metavar="NAME",
    )
    groups: Several[str] | None = option(
        None, "public list of the groups; other values count as `other`", GROUPS, common=True, metavar="A,B,C"
    )
    groups_file: str | None = option(None, "file of --groups, one a line", GROUPS, metavar="FILE")
    cells: int | None = option(
        None, "groups are the 2^DEPTH x 2^DEPTH cells of --region", GROUPS, metavar="DEPTH", ge=1, le=MAX_CELL_DEPTH
    )
    region: RegionOption | None = option(None, f"{REGION_HELP}, with --cells", GROUPS, metavar=REGION_METAVAR)
    zones: str | None = option(
        None,
        "groups are public polygons in longitude and latitude: a GeoJSON or GeoParquet file, local or gs://",
        GROUPS,
        metavar="FILE",
    )
    id_column: str | None = option(None, "property or column of the zones' ids, with --zones", GROUPS, metavar="NAME")
    group_epsilon: float | None = option(
        None, "privacy budget of the counts by group, for adding or removing a user (default: --epsilon)", GROUPS
    )
    min_group: int | None = option(
        None, f"merge groups of fewer users into `other` (default: {DEFAULT_MIN_GROUP})", GROUPS
    )
    warm_start: str | None = option(
        None, "an earlier release of the same column, instead of the first round", INPUT, metavar="RELEASE"
    )
    rows_are_users: bool = option(
        False, "every row belongs to a different user: no ids are read, which is faster", COLUMNS
    )

    @model_validator(mode="after")
    def _second(self) -> Self:
        if self.second_column is None and (given := set(OF_SECOND) & self.model_fields_set):
            raise RequestError(f"{min(given)}: requires --second_column NAME")
        if self.second_column is not None:
            self.refuse(("warm_start",), "cannot be combined with --second_column")
        sign_of("second_signed", self.second_signed)
        if self.trust == Trust.CENTRAL:
            if self.second_range is not None and (form := {*OF_SECOND[:3]} & self.model_fields_set):
                raise RequestError(f"{min(form)}: cannot be combined with --second_range")
        else:
            self.refuse(("second_range",), "requires --trust central, or give --second_bits")
        return self

    @model_validator(mode="after")
    def _budget(self) -> Self:
        if self.no_dp != (self.trust == Trust.SECAGG):
            raise RequestError(
                "no_dp: --trust secagg and --no_dp require each other: bits in secure sums have no differential privacy"
            )
        if self.epsilon is None and not self.no_dp:
            raise RequestError(
                "epsilon: required; give --epsilon E, or --trust secagg --no_dp to go without differential privacy"
            )
        if self.epsilon is not None and self.no_dp:
            raise RequestError("no_dp: cannot be combined with --epsilon; give one of them")
        if self.budget is not None and self.epsilon is None:
            raise RequestError(
                "budget: cannot be combined with --no_dp; the ledger then records the bits of each user, not epsilon"
            )
        if self.tuning == "paper" and self.method != "adaptive":
            raise RequestError("tuning: applies only with --method adaptive")
        if self.warm_start is not None and self.method not in ("adaptive", "auto"):
            raise RequestError("warm_start: applies only with --method adaptive or auto")
        if self.trust == Trust.CENTRAL:
            self.refuse(OF_REPORTS, "cannot be combined with --trust central, which has no reports of users")
            if self.range is not None and (form := {"bits", "fraction_bits", "signed"} & self.model_fields_set):
                raise RequestError(f"{min(form)}: cannot be combined with --range")
        else:
            self.refuse(("range",), "requires --trust central, or give --bits, --fraction_bits and --signed")
        sign_of("signed", self.signed)
        return self

    @model_validator(mode="after")
    def _grouped(self) -> Self:
        kinds = self.changed(("cells", "group_by", "zones"))
        if self.method == "threshold" and kinds:
            raise RequestError(f"method: threshold cannot be combined with --{kinds[0]}; use --method adaptive")
        lists = self.changed(("groups", "groups_file"))
        if self.zones is None:
            self.refuse(("id_column",), "requires --zones FILE")
        if self.zones is not None:
            if len(kinds) > 1 or lists:
                raise RequestError("zones: cannot be combined with --cells or --group_by; give one of them")
            self.refuse(("region",), "applies only with --cells; zones of a file have their own region")
            if not self.id_column:
                raise no_id_column(self.zones)
            return self
        if self.cells is not None:
            if self.group_by is not None or lists:
                raise RequestError("cells: cannot be combined with --group_by; give one of them")
            if self.region is None:
                raise RequestError("cells: requires --region W,S,E,N")
            return self
        self.refuse(("region",), "requires --cells DEPTH")
        if self.group_by is None:
            self.refuse(lists, "requires --group_by NAME")
            self.refuse(("group_epsilon", "min_group"), "requires --group_by NAME, --cells DEPTH or --zones FILE")
        elif len(lists) != 1:
            raise RequestError(
                "groups: required with --group_by; give either --groups a,b,c or --groups_file FILE. The groups are "
                "published, so do not take them from the logs"
            )
        return self

    @property
    def has_map(self) -> bool:
        """See MapGeography.has_map."""
        return self.region is not None or self.zones is not None

    def resolve(self) -> RequestedMoments:
        """Returns the columns, the plan, the groups, and the prior of users' reports. Raises RequestError."""
        grouping = self._grouping()
        return self._sums(grouping) if self.trust == Trust.CENTRAL else self._reports(grouping)

    def _sums(self, grouping: Grouping | None) -> RequestedMoments:
        """Returns the moments from sums of a trusted curator."""
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
        """Returns the moments from users' own reports."""
        form, second = self._form(), self._second_form()
        values = Values(self._columns(), form, None if grouping is None else grouping.groups, second)
        # Thresholds have smaller errors for products, but reveal too little of large ones: most intervals are useless.
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
                    f"warm_start: must be a release with bits of {', '.join(plan.quantities)}, got "
                    f"{', '.join(prior.bits)}"
                )
            if not prior.has_secret_key and self.seed is None:
                raise RequestError(
                    "warm_start: must be a release made without --seed: anyone can undo the randomised response of a "
                    "seed, and the new release would then reveal bits"
                )
            if not prior.local and plan.epsilon is not None:
                raise RequestError(
                    "warm_start: must be a release made with --epsilon: the new release would reveal bits of a release "
                    "made with --no_dp"
                )
        return RequestedMoments(values, plan, grouping, prior)

    def _form(self) -> FixedPoint:
        return _fixed_point(self.signed, self.bits, self.fraction_bits)

    def _second_form(self) -> FixedPoint | None:
        if self.second_column is None:
            return None
        bits = self.bits if self.second_bits is None else self.second_bits
        fraction_bits = self.fraction_bits if self.second_fraction_bits is None else self.second_fraction_bits
        with _of_second():
            return _fixed_point(self.second_signed, bits, fraction_bits)

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
