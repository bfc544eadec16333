"""Requests of the jobs that count by sample and threshold: histogram, hotspots, quantiles."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BeforeValidator, model_validator

from sfumato.schemas.errors import RequestError
from sfumato.schemas.requests.log_columns import PlaceColumns, UserColumn
from sfumato.schemas.requests.publish_request import (
    REGION_HELP,
    REGION_METAVAR,
    MapGeography,
    RegionOption,
    ReleaseRequest,
)  # fmt: skip
from sfumato.schemas.requests.request_base import COLUMNS, MAP, METHOD, PRIVACY, Several, option, parts_of
from sfumato.schemas.trust import CentralOrSecagg, Trust

_SAMPLE_OPTIONS = ("items", "contact", "parameters")
_NOISE_OPTIONS = ("noise", "max_items_per_user", "max_records_per_item")
# Levels of the quadtree, digits of integers, characters of text and of dates, where --depth is not given.
CELL_DEPTH, DIGITS, CHARACTERS, DATE_CHARACTERS = 12, 9, 16, 10


class SampledRequest(UserColumn, ReleaseRequest):
    """A budget, and what is known from elsewhere that steers the sampling rate."""

    trust: CentralOrSecagg = option(
        Trust.SECAGG,
        "secagg: users draw themselves into a sample, without noise; central: all users count, and the operator adds "
        "noise once, which is far more accurate",
        PRIVACY,
        common=True,
        metavar="HOW",
    )
    epsilon: float = option(1.0, "privacy budget of the complete release", PRIVACY, common=True)
    delta: float = option(
        1e-8,
        "probability that epsilon may fail to cover; keep it far below 1 / users (quantiles with --trust central: it "
        "is 0, whatever is given)",
        PRIVACY,
        common=True,
    )
    population: int | None = option(
        None,
        "number of users in the logs, where it is known from elsewhere; it steers the sampling rate, and the run is "
        "refused where the logs hold another number",
        PRIVACY,
        common=True,
    )
    items: int | None = option(
        None, "about how many different items exist, where it is known; it steers the sampling rate", PRIVACY
    )
    contact: Literal["everybody", "limited", "fixed"] = option(
        "everybody",
        "everybody: each user draws on their own; limited: each user is contacted with a probability, so that on "
        "average m + 10 sqrt(m) of --population users are, where m are expected to take part; fixed, a known number, "
        "is refused",
        METHOD,
        metavar="HOW",
    )
    parameters: Literal["paper"] | None = option(
        None,
        "paper: the sampling rate (1 - e^-epsilon) / 6 and the threshold of Bharadwaj and Cormode, to reproduce their "
        "results; without it, the rate and threshold of least expected error that the exact guarantee allows",
        METHOD,
        metavar="paper",
    )

    @model_validator(mode="after")
    def _without_a_sample(self) -> Self:
        if self.trust == Trust.CENTRAL:
            self._refuse(_SAMPLE_OPTIONS, "everybody is counted, without a sample")
        if self.parameters is not None and self.items is not None:
            raise RequestError("items: steers the choice of the sampling rate, which --parameters paper fixes")
        return self

    def _refuse(self, names: Sequence[str], why: str) -> None:
        """Raises RequestError if one of these options has another value than its default."""
        for name in self.changed(names):
            raise RequestError(f"{name}: has no meaning with --trust {self.trust}: {why}")


class ItemRequest(PlaceColumns, MapGeography, SampledRequest):
    """Items: the values of a column, or the cells of a region."""

    CELL_OPTIONS: ClassVar[str]

    noise: Literal["auto", "laplace", "truncated", "gaussian"] = option(
        "auto",
        "with --trust central: noise on counts. laplace: discrete Laplace; truncated: within limits, which allows the "
        "lowest threshold; gaussian: for many items a user; auto: the one that hides least",
        METHOD,
    )
    max_items_per_user: int = option(
        1,
        "with --trust central: so many different items of a user count, drawn in proportion to the user's records",
        PRIVACY,
        common=True,
        metavar="K",
        ge=1,
        le=1000,
    )
    max_records_per_item: int = option(
        1,
        "with --trust central: what a user adds to the count of one of their items at most. 1 counts users; more "
        "counts their records of the item, up to so many",
        PRIVACY,
        common=True,
        metavar="R",
        ge=1,
        le=1000,
    )

    column: str | None = option(
        None, "column whose values are counted: text, integers, booleans or dates", MAP, common=True, metavar="NAME"
    )
    region: RegionOption | None = option(
        None, f"count map cells instead: {REGION_HELP}", MAP, common=True, metavar=REGION_METAVAR
    )

    @model_validator(mode="after")
    def _column_or_cells(self) -> Self:
        if (self.column is None) == (self.region is None):
            raise RequestError(f"column, region: give --column NAME or {self.CELL_OPTIONS}, one of them")
        return self

    @model_validator(mode="after")
    def _of_its_trust(self) -> Self:
        if self.trust != Trust.CENTRAL:
            self._refuse(_NOISE_OPTIONS, "it needs --trust central")
        return self


class HistogramRequest(ItemRequest):
    """How many users hold each category, or visit each map cell."""

    JOB: ClassVar[str] = "histogram"
    COMMAND: ClassVar[str] = "histogram"
    ABOUT: ClassVar[str] = (
        "Publishes how many users hold each category or visit each map cell, by sample and threshold, or with "
        "a trusted curator's noise."
    )
    EXAMPLE: ClassVar[str] = "--input 'logs/*.parquet' --column district --population 100000 --output histogram"
    CELL_OPTIONS: ClassVar[str] = "--cells DEPTH --region W,S,E,N"

    cells: int | None = option(
        None, "count the 2^DEPTH x 2^DEPTH cells of the region", MAP, common=True, metavar="DEPTH"
    )
    items_file: str | None = option(
        None,
        "with --trust central: a public list of the column's items, one a line. Each gets noise and is published, "
        "present or not; all other values count as `other`",
        MAP,
        metavar="FILE",
    )

    @model_validator(mode="after")
    def _grid(self) -> Self:
        if self.region is not None and self.cells is None:
            raise RequestError("cells: a region needs --cells DEPTH, the depth of its grid")
        if self.items_file is not None and (self.column is None or self.trust != Trust.CENTRAL):
            raise RequestError("items_file: lists items of a column, so it needs --column NAME and --trust central")
        if self.region is None and self.cells is not None:
            raise RequestError("cells: a grid of cells needs --region W,S,E,N")
        return self


class HotspotsRequest(ItemRequest):
    """Popular places, words or codes, level by level."""

    JOB: ClassVar[str] = "hotspots"
    COMMAND: ClassVar[str] = "hotspots"
    ABOUT: ClassVar[str] = (
        "Publishes popular places, words or codes, found level by level by TrieHH++ (sample and threshold), or with a "
        "trusted curator's noise."
    )
    EXAMPLE: ClassVar[str] = (
        "--input 'logs/*.parquet' --region 3.00,1.00,3.13,1.13 --top 20 --population 100000 --output hotspots"
    )
    CELL_OPTIONS: ClassVar[str] = "--region W,S,E,N [--depth DEPTH]"

    depth: int | None = option(
        None,
        f"longest prefix: level of the region's quadtree (default {CELL_DEPTH}), characters of text ({CHARACTERS}), "
        f"digits of integers ({DIGITS})",
        MAP,
        common=True,
        ge=1,
    )
    levels: int | None = option(
        None,
        "levels of the trie, spread evenly up to the depth; each costs a round (3). With --trust central the last has "
        "96% of the budget, and the others show where hidden items are (2)",
        METHOD,
    )
    top: int | None = option(None, "publish so many items of the last level, the most frequent", MAP, common=True, ge=1)


def _pair(value: Any) -> Any:
    """Two numbers from `LOW:HIGH` or `LOW,HIGH`."""
    return tuple(value.replace(",", ":").split(":")) if isinstance(value, str) else value


Pair = Annotated[tuple[float, float], BeforeValidator(_pair)]
Shares = Annotated[tuple[float, ...], BeforeValidator(parts_of)]


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
