"""What a request of moments asks for. No Beam: contradictions are found before it is imported."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from sfumato.schemas.errors import RequestError
from sfumato.schemas.moments import FixedPoint, Signed, Statistic, ValueColumns, ValueRange
from sfumato.schemas.region import Grid
from sfumato.schemas.release import BITS_FILE
from sfumato.schemas.requests.moments_request import DEFAULT_MIN_GROUP, MomentsRequest, sign_of
from sfumato.schemas.trust import Trust
from sfumato.transforms.files import read_lines
from sfumato.transforms.moments.allocation import Tuning
from sfumato.transforms.moments.central_moments import CentralMomentsPlan
from sfumato.transforms.moments.groups import CellGroups, ColumnGroups, Grouping, ZoneGroups
from sfumato.transforms.moments.prior import PriorRelease
from sfumato.transforms.moments.protocol import MomentsPlan
from sfumato.transforms.moments.value_encoding import Values
from sfumato.transforms.release.published_release import open_start
from sfumato.transforms.zones.zone_file import read_zones


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


def requested_moments(request: MomentsRequest) -> RequestedMoments:
    """What a request of moments asks for. Raises RequestError."""
    return _sums(request) if request.trust == Trust.CENTRAL else _reports(request)


def _sums(request: MomentsRequest) -> RequestedMoments:
    """Sums of a trusted curator."""
    assert request.epsilon is not None
    grouping = grouping_of(request)
    values = Values(_columns(request), None, None if grouping is None else grouping.groups)
    span = None if request.range is None else ValueRange(*request.range)
    if request.model_fields_set & {"bits", "fraction_bits", "signed"}:
        form = form_of(request)
        span = ValueRange(form.low, form.high)
    plan = CentralMomentsPlan(
        statistics=tuple(map(Statistic, request.statistics)),
        epsilon=request.epsilon,
        span=span,
        second_span=_second_span(request),
        has_second=request.second_column is not None,
    )
    return RequestedMoments(values, plan, grouping)


def _second_span(request: MomentsRequest) -> ValueRange | None:
    """The range of the second column of a trusted curator; None to find it, or without one."""
    if request.second_column is None:
        return None
    if request.second_range is not None:
        with _of_second():
            return ValueRange(*request.second_range)
    if not request.model_fields_set & {"second_bits", "second_fraction_bits", "second_signed"}:
        return None
    form = second_form_of(request)
    assert form is not None
    return ValueRange(form.low, form.high)


def _reports(request: MomentsRequest) -> RequestedMoments:
    """Users' own reports."""
    form, second, grouping = form_of(request), second_form_of(request), grouping_of(request)
    values = Values(_columns(request), form, None if grouping is None else grouping.groups, second)
    # Thresholds err less about products, but say too little of large ones: their intervals are mostly useless.
    needs_bits = grouping is not None or request.warm_start is not None or second is not None
    prior = None
    if request.warm_start is not None:
        prior = open_start(
            request.warm_start,
            lambda one: PriorRelease.from_release(one.manifest, one.arrow_table(BITS_FILE), request.column, form),
        )
    release_epsilon = request.group_epsilon
    plan = MomentsPlan(
        form=form,
        statistics=tuple(map(Statistic, request.statistics)),
        method="adaptive" if request.method == "auto" and needs_bits else request.method,
        epsilon=request.epsilon,
        release_epsilon=1.0 if release_epsilon is None and request.no_dp and grouping else release_epsilon,
        bits_per_client=request.bits_per_client,
        variance=request.variance,
        tuning=Tuning.from_paper(request.epsilon is not None) if request.tuning == "paper" else Tuning(),
        prior={} if prior is None else prior.bits,
        second=second,
    )
    if prior is not None:
        _check_prior(request, plan, prior)
    return RequestedMoments(values, plan, grouping, prior)


def _check_prior(request: MomentsRequest, plan: MomentsPlan, prior: PriorRelease) -> None:
    """Raises RequestError where a request cannot start from an earlier release."""
    if not set(plan.quantities) & set(prior.bits):
        raise RequestError(
            f"warm_start: the release has bits of {', '.join(prior.bits)}; this request needs "
            f"{', '.join(plan.quantities)}"
        )
    if not prior.has_secret_key and request.seed is None:
        raise RequestError(
            "warm_start: anybody can guess the key of that release and undo its randomised response, and the new "
            "release would reveal some of the bits; start from a release that was made without --seed"
        )
    if not prior.local and plan.epsilon is not None:
        raise RequestError(
            "warm_start: that release has no differential privacy (--no_dp), and the new release would reveal "
            "some of its bits; start from a release that was made with --epsilon"
        )


def form_of(request: MomentsRequest) -> FixedPoint:
    """The form of a request's values. Raises RequestError."""
    return _form("signed", request.signed, request.bits, request.fraction_bits)


def second_form_of(request: MomentsRequest) -> FixedPoint | None:
    """The form of the second column's values; None without one. Raises RequestError."""
    if request.second_column is None:
        return None
    bits = request.bits if request.second_bits is None else request.second_bits
    fraction_bits = request.fraction_bits if request.second_fraction_bits is None else request.second_fraction_bits
    with _of_second():
        return _form("signed", request.second_signed, bits, fraction_bits)


@contextmanager
def _of_second() -> Iterator[None]:
    """Names the second column's option in messages."""
    try:
        yield
    except RequestError as error:
        raise RequestError(f"second_{error}") from None


def _form(option: str, sign: str | None, bits: int, fraction_bits: int) -> FixedPoint:
    kind, shift = sign_of(option, sign)
    signed: Signed = kind  # type: ignore[assignment]
    form = FixedPoint(bits, fraction_bits, signed, shift)
    if abs(shift) > 2**53 * form.step:
        raise RequestError(
            f"{option}: shift:{shift:g} is so large that values of its size have no steps of {form.step:g}"
        )
    return form


def grouping_of(request: MomentsRequest) -> Grouping | None:
    """The groups of a request. Raises RequestError."""
    least = DEFAULT_MIN_GROUP if request.min_group is None else request.min_group
    if request.cells is not None:
        assert request.region is not None
        grid = Grid(request.region, request.cells)
        return Grouping(CellGroups(grid, request.latitude_column, request.longitude_column), least)
    if request.zones is not None:
        assert request.id_column is not None
        zones = read_zones(request.zones, request.id_column)
        return Grouping(ZoneGroups(zones, request.latitude_column, request.longitude_column), least)
    if request.group_by is None:
        return None
    return Grouping(ColumnGroups(request.group_by, _listed(request)), least)


def _listed(request: MomentsRequest) -> tuple[str, ...]:
    if request.groups is not None:
        return request.groups
    return read_lines("groups_file", str(request.groups_file))


def _columns(request: MomentsRequest) -> ValueColumns:
    on_map = request.cells is not None or request.zones is not None
    return ValueColumns(
        request.column,
        None if request.rows_are_users else request.user_id_column,
        request.group_by,
        request.latitude_column if on_map else None,
        request.longitude_column if on_map else None,
        request.second_column,
    )
