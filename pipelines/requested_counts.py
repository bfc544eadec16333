"""What a request to count items or values asks for. No Beam: contradictions are found before it is imported."""

from __future__ import annotations

from dataclasses import dataclass

from sfumato.schemas.locations import CATEGORIES, NUMBERS, PREFIXES, ItemColumns, LocationColumns
from sfumato.schemas.region import Grid
from sfumato.schemas.requests.sampled_counts import (
    CELL_DEPTH,
    CHARACTERS,
    DIGITS,
    HistogramRequest,
    HotspotsRequest,
    ItemRequest,
    QuantilesRequest,
    SampledRequest,
)
from sfumato.schemas.trust import Trust
from sfumato.transforms.files import read_lines
from sfumato.transforms.histogram.bounded_items import ItemBound
from sfumato.transforms.histogram.central_plan import CentralCountPlan
from sfumato.transforms.histogram.curve import check_shares
from sfumato.transforms.histogram.item_encoding import CellItems, ColumnItems, Items, ListedItems, NumberItems
from sfumato.transforms.histogram.number_bins import NumberBins
from sfumato.transforms.histogram.sampling_plan import PaperSamplePlan, SamplePlan
from sfumato.transforms.histogram.trie import spread_levels
from sfumato.transforms.quantiles.noisy_hierarchy import MAX_BITS
from sfumato.transforms.quantiles.private_quantiles import QuantilesPlan

_BITS, _FINE_BITS = 12, 20  # of quantiles; fine ones where no count of every bin is published


@dataclass(frozen=True)
class RequestedCount:
    """A count whose options do not contradict each other. Raises RequestError where no item could pass.

    plan: its budget and rounds. counted: its items. method, levels: of quantiles; levels of the hierarchical method.
    """

    plan: SamplePlan | CentralCountPlan | QuantilesPlan
    counted: Items
    levels: tuple[int, ...] = ()
    method: str = ""

    def __post_init__(self) -> None:
        if isinstance(self.plan, CentralCountPlan):
            _ = self.plan.noises
        elif isinstance(self.plan, SamplePlan):
            _ = self.plan.sampling


def requested_histogram(request: HistogramRequest) -> RequestedCount:
    """What a request of a histogram asks for. Raises RequestError."""
    if request.cells is not None:
        counted = _cells(request, request.cells)
        return RequestedCount(_item_plan(request, (4**request.cells,)), counted)
    columns = ItemColumns(str(request.column), request.user_id_column, CATEGORIES)
    if request.items_file is not None:
        listed = ListedItems(columns, read_lines("items_file", request.items_file))
        return RequestedCount(_item_plan(request, (len(listed.names),)), listed)
    return RequestedCount(_item_plan(request, (None,)), ColumnItems(columns))


def requested_hotspots(request: HotspotsRequest) -> RequestedCount:
    """What a request of hot spots asks for. Raises RequestError."""
    depth = request.depth
    if request.region is not None:
        cells = _cells(request, depth or CELL_DEPTH)
        levels = spread_levels(cells.grid.depth, hotspot_rounds(request))
        return RequestedCount(_item_plan(request, tuple(4**level for level in levels)), cells)
    levels = spread_levels(depth or CHARACTERS, hotspot_rounds(request))  # too many are refused before any search
    columns = ItemColumns(str(request.column), request.user_id_column, PREFIXES)
    return RequestedCount(_item_plan(request, (None,) * len(levels)), ColumnItems(columns, digits=depth or DIGITS))


def hotspot_rounds(request: HotspotsRequest) -> int:
    """The number of levels: 3 unless given; with a trusted curator 2, where the depth has as many."""
    if request.levels is not None:
        return request.levels
    return 3 if request.trust == Trust.SECAGG else min(2, request.depth or 2)


def requested_quantiles(request: QuantilesRequest) -> RequestedCount:
    """What a request of quantiles asks for. Raises RequestError."""
    check_shares(request.quantiles)
    columns = ItemColumns(request.column, request.user_id_column, NUMBERS)
    if request.trust == Trust.CENTRAL:
        plan = _central_quantiles(request)
        items = _numbers(columns, request, plan.bits)
        return RequestedCount(plan, items, plan.levels, plan.method)
    bits = request.bits or _BITS
    items = _numbers(columns, request, bits)
    if request.method == "interactive":  # a round counts the parts between the searches
        return RequestedCount(_plan(request, bits, len(request.quantiles) + 1), items, method="interactive")
    levels = spread_levels(bits, request.levels or 3)
    return RequestedCount(_plan(request, len(levels), 1 << bits), items, levels, "hierarchical")


def _numbers(columns: ItemColumns, request: QuantilesRequest, bits: int) -> NumberItems:
    """The numbers of a request, in bins with borders at the ends of its ranges."""
    scale = NumberBins.of_ranges(*request.range, bits, request.ranges or ())
    return NumberItems(columns, scale.low, scale.high, scale.bits, scale.edges)


def _central_quantiles(request: QuantilesRequest) -> QuantilesPlan:
    """A plan with a trusted curator: the method of least expected error that the request allows."""
    methods: list[str] = ["hierarchical"] if request.ranges else [request.method]
    bits = request.bits or (_BITS if methods == ["hierarchical"] else _FINE_BITS)
    if methods == ["auto"]:
        methods = ["exponential", "hierarchical"] if bits <= MAX_BITS else ["exponential"]
    plans = []
    for method in methods:
        plan = QuantilesPlan(
            epsilon=request.epsilon,
            shares=request.quantiles,
            bits=bits,
            method=method,
            levels=() if method == "exponential" else spread_levels(bits, request.levels or -(-bits // 4)),
            population=request.population,
            max_bad_fraction=request.max_bad_fraction,
        )
        plans.append(plan)
    return min(plans, key=QuantilesPlan.rank_stddev)


def _item_plan(request: ItemRequest, domains: tuple[int | None, ...]) -> SamplePlan | CentralCountPlan:
    """A request's plan. domains: the number of items of each round, None where the data name them."""
    if request.trust == Trust.SECAGG:
        return _plan(request, len(domains), domains[-1])
    return CentralCountPlan(
        epsilon=request.epsilon,
        delta=request.delta,
        bound=ItemBound(request.max_items_per_user, request.max_records_per_item),
        domains=domains,
        noise=request.noise,
        population=request.population,
        max_bad_fraction=request.max_bad_fraction,
    ).without_unused_delta()


def _plan(request: SampledRequest, rounds: int, items: int | None = None) -> SamplePlan:
    """A request's plan. items: how many there are, unless --items says it. Raises RequestError."""
    kind = SamplePlan if request.parameters is None else PaperSamplePlan
    return kind(
        epsilon=request.epsilon,
        delta=request.delta,
        population=request.population,
        items=items if request.items is None else request.items,
        rounds=rounds,
        contact=request.contact,
        max_bad_fraction=request.max_bad_fraction,
    )


def _cells(request: ItemRequest, depth: int) -> CellItems:
    """The cells of a request's region. Raises RequestError."""
    assert request.region is not None
    columns = LocationColumns(request.user_id_column, request.latitude_column, request.longitude_column)
    return CellItems(columns, Grid(request.region, depth))
