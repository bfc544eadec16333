"""Requests of the jobs that count items, by a sample or with noise: histogram and hotspots."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Literal, Self

from pydantic import model_validator

from sfumato.schemas.errors import RequestError
from sfumato.schemas.guarantee import CentralOrSecagg, CentralSplitOrSecagg, Trust
from sfumato.schemas.locations import CATEGORIES, PREFIXES, ItemColumns, LocationColumns
from sfumato.schemas.region import Grid, Region, ground_metres
from sfumato.schemas.requests.counting_options import EPSILON_HELP
from sfumato.schemas.requests.log_columns import PlaceColumns, UserColumn
from sfumato.schemas.requests.publish_request import (
    REGION_HELP,
    REGION_METAVAR,
    MapGeography,
    RegionOption,
    ReleaseRequest,
)  # fmt: skip
from sfumato.schemas.requests.request_base import MAP, METHOD, PRIVACY, option
from sfumato.schemas.slots import UTC, DaySlots
from sfumato.transforms.geo.zone_file import MAX_SHOWN
from sfumato.transforms.geo.zone_options import ZoneOptions
from sfumato.transforms.geo.zone_raster import ZoneLocator
from sfumato.transforms.histogram.central_counts import CentralCountPlan, SplitCountPlan
from sfumato.transforms.histogram.count_noise import ItemBound
from sfumato.transforms.histogram.item_encoding import CellItems, ColumnItems, Items, ListedItems, ZoneItems
from sfumato.transforms.histogram.plan import PaperSamplePlan, SamplePlan
from sfumato.transforms.histogram.sampling_round import spread_levels
from sfumato.transforms.io.files import read_lines

# Digits of integers, characters of text and of dates, metres of a map's cells, where --depth is not given.
DIGITS, CHARACTERS, DATE_CHARACTERS, CELL_METRES = 9, 16, 10, 100
_DEFAULT = "; add --trust central (the default is secagg)"
_MAX_LEVEL = 12  # of cells, where --depth is not given


@dataclass(frozen=True)
class RequestedCount:
    """A checked count: its plan and items. Raises RequestError if no item could pass."""

    plan: SamplePlan | CentralCountPlan
    counted: Items

    def __post_init__(self) -> None:
        _ = self.plan.noises if isinstance(self.plan, CentralCountPlan) else self.plan.sampling


class ItemCountRequest(UserColumn, ReleaseRequest):
    """Options of counts of items, with noise or by a sample: budget, and public figures for the sampling rate."""

    trust: CentralSplitOrSecagg = option(
        Trust.SECAGG,
        "secagg: users sample themselves, without noise; central: all users count, and the operator adds noise once, "
        "which is far more accurate; split: all users count, and each of two servers adds noise",
        PRIVACY,
        common=True,
        metavar="HOW",
    )
    epsilon: float = option(1.0, EPSILON_HELP, PRIVACY, common=True)
    delta: float = option(
        1e-8,
        "probability that epsilon does not cover; keep it far below 1 / users (always 0 for quantiles with --trust "
        "central)",
        PRIVACY,
        common=True,
    )
    population: int | None = option(
        None,
        "public number of users in the logs; it sets the sampling rate, and the run is refused if a "
        "noisy count contradicts it",
        PRIVACY,
        common=True,
    )
    items: int | None = option(
        None, "public estimate of the number of different items; it sets the sampling rate", PRIVACY
    )
    contact: Literal["everybody", "limited", "fixed"] = option(
        "everybody",
        "everybody: each user samples independently; limited: if m of the --population users are expected to take "
        "part, m + 10 sqrt(m) are contacted on average, each with the same probability; fixed, a known number, is "
        "refused",
        METHOD,
        metavar="HOW",
    )
    parameters: Literal["paper"] | None = option(
        None,
        "paper: the sampling rate (1 - e^-epsilon) / 6 and the threshold of Bharadwaj and Cormode, to reproduce their "
        "results; default: the rate and threshold with the smallest expected error under the exact guarantee",
        METHOD,
        metavar="paper",
    )

    @model_validator(mode="after")
    def _without_a_sample(self) -> Self:
        if self.trust == Trust.SPLIT:
            self.refuse(("delta",), "cannot be combined with --trust split, whose noise needs none")
        if self.trust != Trust.SECAGG:
            self.refuse(("items", "contact", "parameters"), "applies only with --trust secagg")
        if self.parameters is not None:
            self.refuse(("items",), "cannot be combined with --parameters paper, which fixes the sampling rate")
        return self

    def sample_plan(self, rounds: int, items: int | None = None) -> SamplePlan:
        """Returns a plan with a sample. items: their number, unless --items gives it. Raises RequestError."""
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


class ItemRequest(PlaceColumns, MapGeography, ItemCountRequest):
    """Options that name items: the values of a column, or places.

    PLACES: the options of which one is given instead of a column, and how they are typed.
    """

    PLACES: ClassVar[Mapping[str, str]]

    noise: Literal["auto", "laplace", "truncated", "gaussian"] = option(
        "auto",
        "noise on counts, with --trust central. laplace: discrete Laplace; truncated: bounded, with the lowest "
        "threshold; gaussian: for many items a user; auto: the noise that hides the fewest items",
        METHOD,
    )
    max_items_per_user: int = option(
        1,
        "largest number of different items of a user that count, sampled in proportion to the user's records, with "
        "--trust central",
        PRIVACY,
        common=True,
        metavar="K",
        ge=1,
        le=1000,
    )
    max_records_per_item: int = option(
        1,
        "largest contribution of a user to the count of one item, with --trust central. 1 counts users; a larger "
        "number counts records",
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
        None, f"{REGION_HELP}, to count places instead of a column", MAP, common=True, metavar=REGION_METAVAR
    )

    @property
    def has_map(self) -> bool:
        """See MapGeography.has_map."""
        return self.column is None

    @model_validator(mode="after")
    def _column_or_places(self) -> Self:
        given = self.changed(("column", *self.PLACES))
        if not given:
            *others, last = "--column NAME", *self.PLACES.values()
            raise RequestError(f"column: required; give {', '.join(others)} or {last}")
        if len(given) > 1:
            raise RequestError(f"{' and '.join(given)}: cannot be combined; give one of them")
        if self.trust != Trust.CENTRAL:
            self.refuse(("noise",), f"applies only with --trust central{_DEFAULT}")
        if self.trust == Trust.SECAGG:
            self.refuse(
                ("max_items_per_user", "max_records_per_item"), f"applies only with --trust central or split{_DEFAULT}"
            )
        return self

    def _plan(self, domains: tuple[int | None, ...]) -> SamplePlan | CentralCountPlan:
        """Returns the plan. domains: the number of items of each round, None if they come from the data."""
        if self.trust == Trust.SECAGG:
            return self.sample_plan(len(domains), domains[-1])
        is_split = self.trust == Trust.SPLIT
        kind = SplitCountPlan if is_split else CentralCountPlan
        return kind(
            epsilon=self.epsilon,
            delta=0.0 if is_split else self.delta,
            bound=self._bound(),
            domains=domains,
            noise="laplace" if is_split else self.noise,
            population=self.population,
            max_bad_fraction=self.max_bad_fraction,
        ).without_unused_delta()

    def _bound(self) -> ItemBound:
        return ItemBound(self.max_items_per_user, self.max_records_per_item)

    def _cells(self, depth: int) -> CellItems:
        assert self.region is not None
        return CellItems(self._places(), Grid(self.region, depth))

    def _places(self) -> LocationColumns:
        return LocationColumns(self.user_id_column, self.latitude_column, self.longitude_column)


class HistogramRequest(ZoneOptions, ItemRequest):
    """Publishes how many users have each category or visit each map cell or zone, by sample and threshold, or with
    noise of a trusted curator.
    """

    JOB: ClassVar[str] = "histogram"
    EXAMPLE: ClassVar[str] = "--input 'logs/*.parquet' --column district --population 100000 --output histogram"
    PLACES: ClassVar[Mapping[str, str]] = {
        "cells": "--cells DEPTH --region W,S,E,N",
        "zones": "--zones FILE --id_column NAME",
        "h3": "--h3 RESOLUTION --region W,S,E,N",
        "quadkey": "--quadkey LEVEL --region W,S,E,N",
    }

    cells: int | None = option(
        None, "count the 2^DEPTH x 2^DEPTH cells of the region", MAP, common=True, metavar="DEPTH"
    )
    items_file: str | None = option(
        None,
        "public list of the column's items, one a line, with --trust central or split. Each item is published with "
        "noise, even if it does not occur; all other values count as `other`",
        MAP,
        metavar="FILE",
    )

    average_day: bool = option(
        False,
        "publish the mean number of users a day of a --period of several days: a user counts once a day in a zone, and "
        "in --max_items_per_user zones in all",
        MAP,
        common=True,
    )

    @model_validator(mode="after")
    def _items_of_options(self) -> Self:
        if self.cells is not None or self.index is not None:
            if self.region is None:
                raise RequestError("region: required with --cells, --h3 and --quadkey, as W,S,E,N")
        else:
            self.refuse(
                ("region",), "applies only with --cells, --h3 or --quadkey; zones of a file have their own region"
            )
        self.check_zone_file()
        if self.average_day:
            self._check_days()
        if self.items_file is not None and (self.column is None or self.trust == Trust.SECAGG):
            raise RequestError("items_file: requires --column NAME and --trust central or split")
        if self.column is not None and self.trust == Trust.SPLIT and self.items_file is None:
            raise RequestError("items_file: required with --column and --trust split, which counts public items only")
        return self

    def _check_days(self) -> None:
        """Raises RequestError if there is no average day to count."""
        if self.column is not None or self.cells is not None:
            raise RequestError("average_day: applies only with --zones, --h3 or --quadkey")
        if self.trust == Trust.SECAGG:
            raise RequestError("average_day: applies only with --trust central or split; give --trust central")
        self.refuse(("max_records_per_item",), "cannot be combined with --average_day, which counts once a day")
        if self.day_column is None or self.period is None or self.period.length == 1:
            raise RequestError(
                "average_day: requires --day_column NAME and a --period of several days, such as 2026-11-16:2026-11-20"
            )

    @property
    def days(self) -> int:
        """Returns over how many days the counts are means; 1 for counts."""
        return self.period.length if self.average_day and self.period is not None else 1

    def _places(self) -> LocationColumns:
        slots = None
        if self.days > 1:
            slots = DaySlots(str(self.day_column), time_zone=self.time_zone or UTC, days=self.days)
        return replace(super()._places(), slots=slots)

    def _bound(self) -> ItemBound:
        return replace(super()._bound(), max_records=self.days) if self.days > 1 else super()._bound()

    def resolve(self) -> RequestedCount:
        """Returns the plan and the items. Raises RequestError."""
        if self.cells is not None:
            return RequestedCount(self._plan((4**self.cells,)), self._cells(self.cells))
        if self.column is None:
            zones = self.public_zones(self.region)
            if len(zones) > MAX_SHOWN:
                raise RequestError(
                    f"{self.zone_sources[0]}: must be at most {MAX_SHOWN:,} zones for the page, got {len(zones):,}; "
                    "use larger zones"
                )
            plan = self._plan((len(zones),))
            if self.days > 1 and isinstance(plan, CentralCountPlan) and not plan.is_public(0):
                plan = replace(plan, delta=0.0)  # a threshold would leave out the low means
            return RequestedCount(plan, ZoneItems(self._places(), ZoneLocator(zones)))
        columns = ItemColumns(str(self.column), self.user_id_column, CATEGORIES)
        if self.items_file is not None:
            listed = ListedItems(columns, read_lines("items_file", self.items_file))
            return RequestedCount(self._plan((len(listed.names),)), listed)
        return RequestedCount(self._plan((None,)), ColumnItems(columns))


def _cell_depth(region: Region) -> int:
    """Returns the level of a region's quadtree with cells of about `CELL_METRES`: finer ones hold too few users."""
    return min(max(round(math.log2(max(ground_metres(region)) / CELL_METRES)), 1), _MAX_LEVEL)


class HotspotsRequest(ItemRequest):
    """Publishes popular places, words or codes, found level by level by TrieHH++ (sample and threshold), or with noise
    of a trusted curator.
    """

    JOB: ClassVar[str] = "hotspots"
    EXAMPLE: ClassVar[str] = (
        "--input 'logs/*.parquet' --region 3.00,1.00,3.13,1.13 --top 20 --population 100000 --output hotspots"
    )
    PLACES: ClassVar[Mapping[str, str]] = {"region": "--region W,S,E,N [--depth DEPTH]"}

    depth: int | None = option(
        None,
        f"longest prefix: level of the region's quadtree (default: that of cells of some {CELL_METRES} m), characters "
        f"of text ({CHARACTERS}), or digits of integers ({DIGITS})",
        MAP,
        common=True,
        ge=1,
    )
    trust: CentralOrSecagg = option(
        Trust.SECAGG,
        "secagg: users sample themselves, without noise; central: all users count, and the operator adds noise once, "
        "which is far more accurate",
        PRIVACY,
        common=True,
        metavar="HOW",
    )
    levels: int | None = option(
        None,
        "levels of the trie, spread evenly up to the depth; each costs a round (default: 3; with --trust central 2, of "
        "which the last gets 96% of the budget)",
        METHOD,
    )
    top: int | None = option(None, "publish only the N most frequent items of the last level", MAP, common=True, ge=1)

    def resolve(self) -> RequestedCount:
        """Returns the plan and the items. Raises RequestError."""
        if self.region is not None:
            depth = self.depth or _cell_depth(self.region)
            cells, levels = self._cells(depth), spread_levels(depth, self._rounds(depth))
            return RequestedCount(self._plan(tuple(4**level for level in levels)), cells)
        depth = self.depth or CHARACTERS
        levels = spread_levels(depth, self._rounds(depth))  # refuses too many before any search
        columns = ItemColumns(str(self.column), self.user_id_column, PREFIXES)
        return RequestedCount(self._plan((None,) * len(levels)), ColumnItems(columns, digits=self.depth or DIGITS))

    def _rounds(self, depth: int) -> int:
        """Returns the number of levels: 3 by default, 2 with a trusted curator, or fewer if the depth is smaller."""
        return min(3 if self.trust == Trust.SECAGG else 2, depth) if self.levels is None else self.levels
