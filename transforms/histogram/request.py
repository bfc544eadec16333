"""Requests of the jobs that count items, by a sample or with noise: histogram and hotspots."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, Self

from pydantic import model_validator

from sfumato.schemas.errors import RequestError
from sfumato.schemas.locations import CATEGORIES, PREFIXES, ItemColumns, LocationColumns
from sfumato.schemas.region import Grid
from sfumato.schemas.requests.log_columns import PlaceColumns, UserColumn
from sfumato.schemas.requests.publish_request import (
    REGION_HELP,
    REGION_METAVAR,
    MapGeography,
    RegionOption,
    ReleaseRequest,
)  # fmt: skip
from sfumato.schemas.requests.request_base import MAP, METHOD, PRIVACY, option
from sfumato.schemas.trust import CentralOrSecagg, Trust
from sfumato.transforms.histogram.central_counts import CentralCountPlan
from sfumato.transforms.histogram.count_noise import ItemBound
from sfumato.transforms.histogram.item_encoding import CellItems, ColumnItems, Items, ListedItems
from sfumato.transforms.histogram.plan import PaperSamplePlan, SamplePlan
from sfumato.transforms.histogram.sampling_round import spread_levels
from sfumato.transforms.io.files import read_lines

# Levels of the quadtree, digits of integers, characters of text and of dates, where --depth is not given.
CELL_DEPTH, DIGITS, CHARACTERS, DATE_CHARACTERS = 12, 9, 16, 10


@dataclass(frozen=True)
class RequestedCount:
    """A count whose options do not contradict each other: its plan and items. Refused where no item could pass."""

    plan: SamplePlan | CentralCountPlan
    counted: Items

    def __post_init__(self) -> None:
        _ = self.plan.noises if isinstance(self.plan, CentralCountPlan) else self.plan.sampling


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
            self._refuse(("items", "contact", "parameters"), "everybody is counted, without a sample")
        if self.parameters is not None and self.items is not None:
            raise RequestError("items: steers the choice of the sampling rate, which --parameters paper fixes")
        return self

    def sample_plan(self, rounds: int, items: int | None = None) -> SamplePlan:
        """A plan with a sample. items: how many there are, unless --items says it. Raises RequestError."""
        kind = SamplePlan if self.parameters is None else PaperSamplePlan
        return kind(
            epsilon=self.epsilon,
            delta=self.delta,
            population=self.population,
            items=items if self.items is None else self.items,
            rounds=rounds,
            contact=self.contact,
            max_bad_fraction=self.max_bad_fraction,
        )

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
        if self.trust != Trust.CENTRAL:
            self._refuse(("noise", "max_items_per_user", "max_records_per_item"), "it needs --trust central")
        return self

    def _plan(self, domains: tuple[int | None, ...]) -> SamplePlan | CentralCountPlan:
        """The plan. domains: the number of items of each round, None where the data name them."""
        if self.trust == Trust.SECAGG:
            return self.sample_plan(len(domains), domains[-1])
        return CentralCountPlan(
            epsilon=self.epsilon,
            delta=self.delta,
            bound=ItemBound(self.max_items_per_user, self.max_records_per_item),
            domains=domains,
            noise=self.noise,
            population=self.population,
            max_bad_fraction=self.max_bad_fraction,
        ).without_unused_delta()

    def _cells(self, depth: int) -> CellItems:
        assert self.region is not None
        columns = LocationColumns(self.user_id_column, self.latitude_column, self.longitude_column)
        return CellItems(columns, Grid(self.region, depth))


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

    def resolve(self) -> RequestedCount:
        """The plan and the items. Raises RequestError."""
        if self.cells is not None:
            return RequestedCount(self._plan((4**self.cells,)), self._cells(self.cells))
        columns = ItemColumns(str(self.column), self.user_id_column, CATEGORIES)
        if self.items_file is not None:
            listed = ListedItems(columns, read_lines("items_file", self.items_file))
            return RequestedCount(self._plan((len(listed.names),)), listed)
        return RequestedCount(self._plan((None,)), ColumnItems(columns))


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

    def resolve(self) -> RequestedCount:
        """The plan and the items. Raises RequestError."""
        if self.region is not None:
            cells = self._cells(self.depth or CELL_DEPTH)
            levels = spread_levels(cells.grid.depth, self._rounds())
            return RequestedCount(self._plan(tuple(4**level for level in levels)), cells)
        levels = spread_levels(self.depth or CHARACTERS, self._rounds())  # too many are refused before any search
        columns = ItemColumns(str(self.column), self.user_id_column, PREFIXES)
        return RequestedCount(self._plan((None,) * len(levels)), ColumnItems(columns, digits=self.depth or DIGITS))

    def _rounds(self) -> int:
        """The number of levels: 3 unless given; with a trusted curator 2, where the depth has as many."""
        few = 3 if self.trust == Trust.SECAGG else min(2, self.depth or 2)
        return few if self.levels is None else self.levels
