"""The request of `sfumato quantiles`: the distribution of a number over users."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal, Self

from pydantic import BeforeValidator, model_validator

from sfumato.schemas.errors import RequestError
from sfumato.schemas.locations import NUMBERS, ItemColumns
from sfumato.schemas.requests.request_base import COLUMNS, METHOD, Pair, Several, option, parts_of
from sfumato.schemas.trust import Trust
from sfumato.transforms.histogram.item_encoding import NumberBins, NumberItems
from sfumato.transforms.histogram.plan import SamplePlan
from sfumato.transforms.histogram.request import SampledRequest
from sfumato.transforms.histogram.sampling_round import spread_levels
from sfumato.transforms.quantiles.curve import check_shares
from sfumato.transforms.quantiles.plan import MAX_BITS, QuantilesPlan

_BITS, _FINE_BITS = 12, 20  # fine ones where no count of every bin is published

Shares = Annotated[tuple[float, ...], BeforeValidator(parts_of)]


@dataclass(frozen=True)
class RequestedQuantiles:
    """Quantiles whose options do not contradict each other. Raises RequestError where no item could pass.

    plan: its budget and rounds. counted: the numbers, in bins. levels: of the hierarchical method.
    """

    plan: SamplePlan | QuantilesPlan
    counted: NumberItems
    method: str
    levels: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if isinstance(self.plan, SamplePlan):
            _ = self.plan.sampling


class QuantilesRequest(SampledRequest):
    """Quantiles and range counts of a number over users."""

    JOB: ClassVar[str] = "quantiles"
    COMMAND: ClassVar[str] = "quantiles"
    ABOUT: ClassVar[str] = (
        "Publishes quantiles and range counts of a number over users, by sample and threshold, or with a trusted "
        "curator's noise."
    )
    EXAMPLE: ClassVar[str] = (
        "--input 'logs/*.parquet' --column km_from_home --range 0,50 --population 100000 --output quantiles"
    )

    column: str = option(..., "column of integers or floating-point numbers", COLUMNS, common=True, metavar="NAME")
    range: Pair = option(
        ..., "range of the numbers; values outside are moved to its ends", METHOD, common=True, metavar="LOW,HIGH"
    )
    quantiles: Shares = option(
        (0.1, 0.25, 0.5, 0.75, 0.9), "shares of the users, between 0 and 1", METHOD, common=True, metavar="Q,..."
    )
    ranges: Several[Pair] | None = option(
        None, "count the users in these ranges as well", METHOD, common=True, metavar="LOW:HIGH,..."
    )
    method: Literal["auto", "exponential", "hierarchical", "interactive"] = option(
        "auto",
        "hierarchical: histograms at several levels; interactive: with --trust secagg, a binary search, a round a bit; "
        "exponential: with --trust central, draws of the exponential mechanism; auto: hierarchical where there are "
        "ranges or a sample, else the one with the least expected error",
        METHOD,
        common=True,
    )
    bits: int | None = option(
        None, "the range is cut into 2^bits bins (12; with --trust central 20, if there are no ranges)", METHOD, ge=1
    )
    levels: int | None = option(
        None,
        "levels of the hierarchical method, spread evenly up to the bits (3; with --trust central one for 4 bits)",
        METHOD,
        ge=1,
    )

    @model_validator(mode="after")
    def _within(self) -> Self:
        low, high = self.range
        other = {Trust.SECAGG: "exponential", Trust.CENTRAL: "interactive"}[self.trust]
        if self.method == other:
            raise RequestError(f"method: {other} is not a method of --trust {self.trust}; use --method auto")
        if self.ranges and self.method in ("interactive", "exponential"):
            raise RequestError(f"ranges: the {self.method} method answers quantiles alone; use --method hierarchical")
        for first, last in self.ranges or ():
            if not low <= first < last <= high:
                raise RequestError(
                    f"ranges: {first:g}:{last:g} must be LOW:HIGH with LOW < HIGH within the range {low:g},{high:g}"
                )
        return self

    def resolve(self) -> RequestedQuantiles:
        """The plan and the numbers. Raises RequestError."""
        check_shares(self.quantiles)
        if self.trust == Trust.CENTRAL:
            plan = self._central_plan()
            return RequestedQuantiles(plan, self._numbers(plan.bits), plan.method, plan.levels)
        bits = self.bits or _BITS
        items = self._numbers(bits)
        if self.method == "interactive":  # a round counts the parts between the searches
            return RequestedQuantiles(self.sample_plan(bits, len(self.quantiles) + 1), items, "interactive")
        levels = spread_levels(bits, self.levels or 3)
        return RequestedQuantiles(self.sample_plan(len(levels), 1 << bits), items, "hierarchical", levels)

    def _numbers(self, bits: int) -> NumberItems:
        """The numbers, in bins with borders at the ends of the ranges."""
        scale = NumberBins.of_ranges(*self.range, bits, self.ranges or ())
        columns = ItemColumns(self.column, self.user_id_column, NUMBERS)
        return NumberItems(columns, scale.low, scale.high, scale.bits, scale.edges)

    def _central_plan(self) -> QuantilesPlan:
        """A plan with a trusted curator: the method of least expected error that the request allows."""
        methods: list[str] = ["hierarchical"] if self.ranges else [self.method]
        bits = self.bits or (_BITS if methods == ["hierarchical"] else _FINE_BITS)
        if methods == ["auto"]:
            methods = ["exponential", "hierarchical"] if bits <= MAX_BITS else ["exponential"]
        plans = [
            QuantilesPlan(
                epsilon=self.epsilon,
                shares=self.quantiles,
                bits=bits,
                method=method,
                levels=() if method == "exponential" else spread_levels(bits, self.levels or -(-bits // 4)),
                population=self.population,
                max_bad_fraction=self.max_bad_fraction,
            )
            for method in methods
        ]
        return min(plans, key=QuantilesPlan.rank_stddev)
