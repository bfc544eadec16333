"""The request of `sfumato quantiles`: the distribution of a number over users."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal, Self

from pydantic import BeforeValidator, model_validator

from sfumato.schemas.errors import RequestError
from sfumato.schemas.guarantee import Trust
from sfumato.schemas.locations import NUMBERS, ItemColumns
from sfumato.schemas.requests.request_base import COLUMNS, METHOD, Pair, Several, option, parts_of
from sfumato.transforms.histogram.item_encoding import NumberBins, NumberItems
from sfumato.transforms.histogram.plan import SamplePlan
from sfumato.transforms.histogram.request import ItemCountRequest
from sfumato.transforms.histogram.sampling_round import spread_levels
from sfumato.transforms.quantiles.curve import check_shares
from sfumato.transforms.quantiles.plan import MAX_BITS, QuantilesPlan, SplitQuantilesPlan

_BITS, _FINE_BITS = 12, 20  # the fine ones if no count of every bin is published

_NOT_WITH = {  # methods that a trust model does not have
    Trust.SECAGG: ("exponential",),
    Trust.CENTRAL: ("interactive",),
    Trust.SPLIT: ("exponential", "interactive"),
}

Shares = Annotated[tuple[float, ...], BeforeValidator(parts_of)]


@dataclass(frozen=True)
class RequestedQuantiles:
    """Checked quantiles. Raises RequestError if no item could pass."""

    plan: SamplePlan | QuantilesPlan  # the budget and rounds
    counted: NumberItems  # the numbers, in bins
    method: str
    levels: tuple[int, ...] = ()  # levels of the hierarchical method

    def __post_init__(self) -> None:
        if isinstance(self.plan, SamplePlan):
            _ = self.plan.sampling


class QuantilesRequest(ItemCountRequest):
    """Publishes quantiles and range counts of a number over users, by sample and threshold, or with noise of a trusted
    curator.
    """

    JOB: ClassVar[str] = "quantiles"
    EXAMPLE: ClassVar[str] = (
        "--input 'logs/*.parquet' --column km_from_home --range 0,50 --population 100000 --output quantiles"
    )

    column: str = option(..., "column of integers or floating-point numbers", COLUMNS, metavar="NAME")
    range: Pair = option(..., "range of the numbers; values outside are clamped to it", METHOD, metavar="LOW,HIGH")
    quantiles: Shares = option(
        (0.1, 0.25, 0.5, 0.75, 0.9), "quantiles to publish, between 0 and 1", METHOD, common=True, metavar="Q,..."
    )
    ranges: Several[Pair] | None = option(
        None, "also count the users in these ranges", METHOD, common=True, metavar="LOW:HIGH,..."
    )
    method: Literal["auto", "exponential", "hierarchical", "interactive"] = option(
        "auto",
        "hierarchical: histograms at several levels; interactive: a binary search with one round a bit (--trust "
        "secagg); exponential: the exponential mechanism (--trust central); auto: hierarchical with --ranges or a "
        "sample, otherwise the method with the smallest expected error",
        METHOD,
        common=True,
    )
    bits: int | None = option(
        None,
        "divide the range into 2^bits bins (default: 12; with --trust central and without --ranges, 20)",
        METHOD,
        ge=1,
    )
    levels: int | None = option(
        None,
        "levels of the hierarchical method, spread evenly up to the bits (default: 3; with --trust central "
        "or split, one for every 4 bits)",
        METHOD,
        ge=1,
    )

    @model_validator(mode="after")
    def _within(self) -> Self:
        low, high = self.range
        if self.method in _NOT_WITH[self.trust]:
            raise RequestError(f"method: {self.method} cannot be combined with --trust {self.trust}; use --method auto")
        if self.ranges and self.method in ("interactive", "exponential"):
            raise RequestError(f"ranges: cannot be combined with --method {self.method}; use --method hierarchical")
        for first, last in self.ranges or ():
            if not low <= first < last <= high:
                raise RequestError(
                    f"ranges: must be LOW:HIGH with LOW < HIGH, within {low:g},{high:g}, got {first:g}:{last:g}"
                )
        return self

    def resolve(self) -> RequestedQuantiles:
        """Returns the plan and the numbers. Raises RequestError."""
        check_shares(self.quantiles)
        if self.trust != Trust.SECAGG:
            plan = self._central_plan()
            return RequestedQuantiles(plan, self._numbers(plan.bits), plan.method, plan.levels)
        bits = self.bits or _BITS
        items = self._numbers(bits)
        if self.method == "interactive":  # a round counts the parts between the searches
            return RequestedQuantiles(self.sample_plan(bits, len(self.quantiles) + 1), items, "interactive")
        levels = spread_levels(bits, self.levels or 3)
        return RequestedQuantiles(self.sample_plan(len(levels), 1 << bits), items, "hierarchical", levels)

    def _numbers(self, bits: int) -> NumberItems:
        """Returns the numbers, in bins whose borders include the ends of the ranges."""
        scale = NumberBins.of_ranges(*self.range, bits, self.ranges or ())
        columns = ItemColumns(self.column, self.user_id_column, NUMBERS)
        return NumberItems(columns, scale.low, scale.high, scale.bits, scale.edges)

    def _central_plan(self) -> QuantilesPlan:
        """Returns a plan of counts of all users: the allowed method with the smallest expected error."""
        is_split = self.trust == Trust.SPLIT
        methods: list[str] = ["hierarchical"] if self.ranges or is_split else [self.method]
        kind = SplitQuantilesPlan if is_split else QuantilesPlan
        bits = self.bits or (_BITS if methods == ["hierarchical"] else _FINE_BITS)
        if methods == ["auto"]:
            methods = ["exponential", "hierarchical"] if bits <= MAX_BITS else ["exponential"]
        plans = [
            kind(
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
