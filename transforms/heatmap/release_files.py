"""Everything that a heatmap's release holds, made of the final state alone: all of it is post-processing. Pure."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

import numpy as np

from sfumato.schemas.guarantee import (
    ADD_OR_REMOVE,
    ASSUMPTIONS,
    COMPOSITIONS,
    EXACT_NOISE,
    FLOATING_NOISE,
    PARTICIPATION,
    PRIVACY_UNIT,
    TRUSTED_SERVER,
    WARM_START,
    ZERO_OUT,
    SubQuery,
)
from sfumato.schemas.region import Grid
from sfumato.schemas.release import (
    CELLS_FILE,
    DENSITY_FILE,
    MANIFEST_FILE,
    PAGE_FILE,
    PICTURE_FILE,
    RATES_PICTURE,
    TOTALS_FILE,
)
from sfumato.schemas.tree import node_names, node_positions
from sfumato.transforms.heatmap.cells import cells_table, totals_table
from sfumato.transforms.heatmap.parameters import HeatmapParameters
from sfumato.transforms.heatmap.posterior.estimator import unbiased_counts
from sfumato.transforms.heatmap.posterior.unbiased import UnbiasedCounts
from sfumato.transforms.heatmap.raster import coarsen, estimate_density, gaussian_heatmap, painted
from sfumato.transforms.heatmap.rates import LEVEL, Rates, rates_of, shown_rates
from sfumato.transforms.heatmap.state import Estimate, HeatmapState, NoisyCounts
from sfumato.transforms.release.metadata import ReleaseMetadata, manifest_bytes, parquet_bytes, release_manifest
from sfumato.transforms.release.page import Layer, render_page
from sfumato.transforms.release.page import Rates as PageRates
from sfumato.transforms.release.page_layer import map_top
from sfumato.transforms.release.picture import render_picture
from sfumato.transforms.release.picture_rates import render_rates_picture
from sfumato.transforms.secagg.encodings import TreeEncoding

# A page with more cells is too much for a browser, so finer ones are added up for it: in the map, in all its layers.
_MAX_MAP_CELLS, _MAX_PAGE_CELLS = 1 << 16, 100_000
# What only secure aggregation has. With central noise it is null in the manifest, and vector_length is what is counted.
_OF_SECURE_AGGREGATION = ("shards", "shards_lost", "required_survivors", "modulus", "bits_per_client")
_MECHANISM = "distributed discrete Laplace (Polya shares) over secure-aggregation shards"
_CENTRAL = "discrete Laplace, added once to the sums by a trusted server"
_ONE = "one location a user, chosen {} by the key"
_UNIFORMLY, _WEIGHTED = "uniformly", "in proportion to her records' weights"
_TOP = "one location a user, the place where she is most"
_ALL = "one distribution a user over the cells of all her locations, in whole numbers that add up to {}"
_ROUNDED = (
    "one distribution a user over the cells of all her locations, times {}, every entry of her vector rounded on its "
    "own: less than that and the vector's length in all"
)
_BINS = "; each location with its category, which is one of {} bins of its cell"
_POSTERIOR_STDDEV = (
    "standard deviation of the posterior, on average over cells; a lower bound for cells chosen because people "
    "are in them, and for sums of cells"
)
_INTERVALS = (
    "users_low to users_high: 95% for each cell by itself, from the last sub-query's noise alone, without shrinkage"
)
_SUMS = "{} has what adds up errors: Release.total(cells) gives unbiased users and their standard deviation"
_NOISE_STDDEV = (
    "standard deviation of the noise; a lower bound where shards were lost or only a part of the users was asked"
)
_LOWER_BOUND = "lower bound: the noise alone, not what the method spreads, drops, collides or shrinks"
_RATES = (
    "shares of a cell's users by category, with intervals for the chance of a category, of which users are a sample; "
    "they include this sampling (an upper bound of it where users have distributions) and the noise, and hold for each "
    "cell by itself; a listed cell's second interval holds for all cells at once, and lies above the average"
)


def heatmap_manifest(
    state: HeatmapState, parameters: HeatmapParameters, metadata: ReleaseMetadata, grid: Grid
) -> dict[str, Any]:
    """The manifest: identity, guarantee, spending by sub-query, communication, parameters, versions, warnings.

    With central noise there are no shards and no modulus, and nothing was measured of what a client sends to the
    trusted server: the fields on them are null.
    """
    population, cohort = state.population, state.cohort
    central = parameters.noise == "central"
    model = parameters.participation
    users, users_stddev = state.users_estimate()
    spent = [result.spent for result in state.results]
    together = _together(state)
    composition = "parallel" if state.has_disjoint_cohorts else "sequential"

    def known(fields: dict[str, Any]) -> dict[str, Any]:
        return {k: None if central and k in _OF_SECURE_AGGREGATION else value for k, value in fields.items()}

    content = {
        "region": asdict(grid.region),
        "grid": {"depth": grid.depth, "side": grid.side},
        "privacy": {
            "unit": PRIVACY_UNIT,
            "contribution_bound": _contribution(parameters, metadata),
            "adjacency": ZERO_OUT if model == "paper" else ADD_OR_REMOVE,
            "epsilon": state.budget.total,
            "epsilon_spent": state.budget.spent,
            "delta": 0.0,
            "mechanism": _CENTRAL if central else _MECHANISM,
            "randomness": metadata.source,
            "population": {
                "source": population.source,
                "users": population.users,
                "epsilon": population.epsilon,
                "noise_stddev": population.noise_stddev,
                "counted": population.counted,
            },
            "cohort": known(
                {
                    "users": cohort.users,
                    "sampling_rate": cohort.sampling_rate,
                    "shards": cohort.shards,
                    "required_survivors": cohort.required_survivors,
                }
            ),
            "composition": composition,
            "composition_rule": COMPOSITIONS[composition],
            "sub_queries": [known(asdict(one)) for one in spent],
            "participation": {
                "model": model,
                "protected": model == "planned",
                "epsilon": 0.0 if model == "planned" else None,
                "delta": 0.0 if model == "planned" else 1.0,
                "description": PARTICIPATION[model],
            },
            "assumptions": _assumptions(parameters, metadata),
        },
        "results": {"users": users, "users_stddev": users_stddev},
        "communication": known(
            {
                "vector_entries": together.vector_length,
                "bits_per_client": together.bits_per_client,
            }
        ),
        "errors": _errors(parameters),
        **_auxiliary(parameters, metadata),
    }
    return release_manifest(metadata, content, _warnings(state, parameters))


def _categories(parameters: HeatmapParameters, metadata: ReleaseMetadata) -> tuple[str, ...]:
    """The names of the categories; none without auxiliary data."""
    return tuple(metadata.parameters["columns"]["auxiliary"]["categories"]) if parameters.categories > 1 else ()


def _auxiliary(parameters: HeatmapParameters, metadata: ReleaseMetadata) -> dict[str, Any]:
    """The manifest's entry on auxiliary data; nothing without."""
    categories = _categories(parameters, metadata)
    if not categories:
        return {}
    told = [categories[place] for place in shown_rates(categories)]
    rates = {"categories": told, "level": LEVEL, "includes": ["sampling", "noise"], "description": _RATES}
    column = metadata.parameters["columns"]["auxiliary"]["column"]
    bins = {"column": column, "categories": list(categories), "entries_per_node": len(categories)}
    return {"auxiliary": {**bins, "rates": rates}}


def _contribution(parameters: HeatmapParameters, metadata: ReleaseMetadata) -> str:
    """What one user adds at most, in words."""
    gamma, columns = parameters.distribution_gamma, metadata.parameters.get("columns", {})
    if gamma is not None:
        bound = (_ALL if parameters.rounding == "systematic" else _ROUNDED).format(gamma)
    elif parameters.contributes == "top":
        bound = _TOP
    else:
        weighted = columns.get("weight") is not None or columns.get("time") is not None
        bound = _ONE.format(_WEIGHTED if weighted else _UNIFORMLY)
    return bound + (_BINS.format(parameters.categories) if parameters.categories > 1 else "")


def _assumptions(parameters: HeatmapParameters, metadata: ReleaseMetadata) -> list[str]:
    earlier = [WARM_START] if metadata.parameters.get("warm_start") else []
    if parameters.noise == "central":
        return [TRUSTED_SERVER, *ASSUMPTIONS[2:], EXACT_NOISE, *earlier]  # in place of what secure aggregation assumes
    return [*ASSUMPTIONS, FLOATING_NOISE if parameters.noise == "client" else EXACT_NOISE, *earlier]


def _warnings(state: HeatmapState, parameters: HeatmapParameters) -> list[str]:
    warnings = []
    if parameters.users is not None and parameters.users > state.population.users:
        warnings.append(
            f"{parameters.users:,} users were asked for, and there are about {state.population.users:,.0f} in all."
        )
    if parameters.noise == "client":
        warnings.append(f"{FLOATING_NOISE} Publish what --noise shard makes.")
    if parameters.participation == "paper":
        warnings.append(f"Who takes part is not protected (participation paper). {PARTICIPATION['paper']}")
    asked, where = (
        (_together(state), "") if state.has_disjoint_cohorts else (state.results[-1].spent, " in the last sub-query")
    )
    if asked.shards_lost:
        warnings.append(f"{asked.shards_lost} of {asked.shards} shards were lost{where}; the others speak for them.")
    if parameters.allow_overflow and parameters.noise != "central":
        warnings.append("Overflow was allowed: counts may have wrapped around the modulus.")
    return warnings


def add_up_to(estimate: Estimate, users: float) -> Estimate:
    """The estimate with cells that add up to this many users, the number that the release states.

    Where no cell is negative all are scaled. Else the difference is spread over the cells by their variances, as least
    squares would do it: for n cells of equal noise a cell moves by about 1 / sqrt(n) of its standard deviation.
    Counts by category stay as they are.

    Args:
        estimate: of a method.
        users: at least 0.

    Returns:
        The same tree with other counts; the estimate itself where nothing can be scaled.
    """
    counts, variance = estimate.counts, estimate.stddev**2
    total, spread = float(counts.sum()), float(variance.sum())
    if counts.min() >= 0:
        return replace(estimate, counts=counts * (users / total)) if total > 0 else estimate
    return replace(estimate, counts=counts + variance * ((users - total) / spread)) if spread > 0 else estimate


def published_estimate(
    state: HeatmapState, parameters: HeatmapParameters, grid: Grid, categories: Sequence[str] = ()
) -> tuple[Estimate, UnbiasedCounts | None, Rates | None]:
    """What the table of cells is made of.

    Args:
        state: after the last sub-query.
        categories: names of the auxiliary data's categories; none without such data.

    Returns:
        The map, which adds up to the estimated number of users; the unbiased counts, None where their errors are
        independent or unknown; the rates of the categories, None without categories.
    """
    users, _ = state.users_estimate()
    estimate = add_up_to(parameters.method.decode(state, grid.depth), users)
    unbiased = unbiased_counts(estimate, state) if _is_posterior(parameters) else None
    return estimate, unbiased, _rates(estimate, categories, state, state.results[-1])


def release_files(
    state: HeatmapState, parameters: HeatmapParameters, metadata: ReleaseMetadata, grid: Grid, blur: float = 0.0
) -> dict[str, bytes]:
    """The release's files by name, the manifest last. With two categories a picture of their rate is among them.

    blur: standard deviation, in sides of the region, of a Gaussian filter over the density (paper 001, Section 2.3);
    the cells stay as they are.
    """
    manifest = heatmap_manifest(state, parameters, metadata, grid)
    users, users_stddev = state.users_estimate()
    categories = _categories(parameters, metadata)
    estimate, unbiased, rates = published_estimate(state, parameters, grid, categories)
    raster = gaussian_heatmap(estimate_density(estimate), blur)
    array = io.BytesIO()
    np.save(array, raster)
    layers = _layers(state, estimate, categories)
    pictures = {}
    if rates is not None and len(rates.names) == 1:
        pictures[RATES_PICTURE] = _rates_picture(estimate, rates, state, metadata, grid)
    return {
        CELLS_FILE: parquet_bytes(cells_table(estimate, grid, categories, rates, unbiased)),
        **({} if unbiased is None else {TOTALS_FILE: parquet_bytes(totals_table(estimate, unbiased))}),
        DENSITY_FILE: array.getvalue(),
        PICTURE_FILE: render_picture(
            raster,
            grid.region,
            users=users,
            users_stddev=users_stddev,
            epsilon=state.budget.total,
            safe=metadata.safe,
            # The page's: it knows of noise, which a raster does not. A blurred map is another one.
            top=map_top(layers[-1], asdict(grid.region), grid.depth, users=users) if not blur else None,
        ),
        **pictures,
        PAGE_FILE: render_page(manifest, layers, raster).encode(),
        MANIFEST_FILE: manifest_bytes(manifest),
    }


def _is_posterior(parameters: HeatmapParameters) -> bool:
    """Whether counts are the posterior's, of all sub-queries."""
    return getattr(parameters.method, "estimator", None) == "bayes"


def _errors(parameters: HeatmapParameters) -> dict[str, str]:
    """The manifest's entry on what the stated deviations are."""
    if _is_posterior(parameters):
        return {"stddev": _POSTERIOR_STDDEV, "intervals": _INTERVALS, "sums": _SUMS.format(TOTALS_FILE)}
    if parameters.method.NAME in ("adaptive", "flat"):
        return {"stddev": _NOISE_STDDEV, "sums": "errors of cells are independent: variances add up"}
    return {"stddev": _LOWER_BOUND, "sums": _LOWER_BOUND}


def _rates_picture(
    estimate: Estimate, rates: Rates, state: HeatmapState, metadata: ReleaseMetadata, grid: Grid
) -> bytes:
    """The picture of the one rate that two categories have."""
    shown, auxiliary = _for_page(rates), metadata.parameters["columns"]["auxiliary"]
    name, column = rates.names[0], auxiliary["column"]
    users, users_stddev = state.users_estimate()
    return render_rates_picture(
        painted(estimate.tree, shown.rate[0]),
        painted(estimate.tree, shown.high[0] - shown.low[0]),
        grid.region,
        category=column if name == "true" else f"{column} = {name}",
        users=users,
        users_stddev=users_stddev,
        epsilon=state.budget.total,
        safe=metadata.safe,
    )


def _layers(state: HeatmapState, estimate: Estimate, categories: Sequence[str]) -> list[Layer]:
    """A layer for each sub-query that asked for a tree's entries, and the map where that is not the last answer."""
    layers = []
    for place, result in enumerate(state.results):
        if isinstance(result.encoding, TreeEncoding):
            layers.append((result.to_estimate(), result, result.spent, _remaining(state, place)))
    last = layers[-1][0] if layers else None
    combined = last is None or last.tree != estimate.tree or not np.array_equal(last.stddev, estimate.stddev)
    if last is not None and not combined:  # or the method has left some of its cells out
        combined = bool(np.any((estimate.counts == 0) & (last.counts != 0)))
    if not combined:  # the last answer, with cells that add up to the number of users
        layers[-1] = (estimate, *layers[-1][1:])
    else:
        layers.append((estimate, state.results[-1], _together(state), _remaining(state, len(state.results) - 1)))
    rooms = _rooms([len(shown.counts) for shown, *_ in layers])
    made = []
    for (whole, result, spent, remaining), room in zip(layers, rooms, strict=True):
        shown = coarsen(whole, room)
        rates = _rates(shown, categories, state, result)
        layer = _layer(shown, spent, remaining, None if rates is None else _for_page(rates), len(whole.counts))
        if state.is_central:  # one sum, with one noise
            layer = replace(layer, shards=1, shards_lost=0)
        made.append(layer)
    return [*made[:-1], replace(made[-1], combined=combined)]


def _rates(estimate: Estimate, categories: Sequence[str], state: HeatmapState, result: NoisyCounts) -> Rates | None:
    """The rates of an estimate whose users by category are of this answer; None without auxiliary data."""
    answered = result.spent.shards - result.spent.shards_lost
    noisy_sums = 1 if state.is_central else answered
    return rates_of(estimate, categories, noisy_sums, state.cohort.shards / answered)


def _for_page(rates: Rates) -> PageRates:
    """The rates as the page has them: shrunk, in each cell's own interval, and unknown where users are not clear."""
    unknown = np.isnan(rates.rate) | np.isnan(rates.shrunk)
    low, high = (np.where(unknown, np.nan, end) for end in (rates.low, rates.high))
    listed = np.stack([rates.shrunk, rates.listed_low, rates.listed_high], axis=1)
    return PageRates(list(rates.names), np.clip(rates.shrunk, low, high), low, high, listed)


def _remaining(state: HeatmapState, place: int) -> float:
    """What a user who answered a sub-query has left after it."""
    results = state.results[place : place + 1] if state.has_disjoint_cohorts else state.results[: place + 1]
    charged = math.fsum([state.population.epsilon, *(result.spent.epsilon for result in results)])
    return max(state.budget.total - charged, 0.0)


def _rooms(entries: list[int]) -> list[int]:
    """How many cells of each layer, of so many entries, the page has room for: first the last one's, the map's."""
    rooms = [min(size, _MAX_MAP_CELLS) for size in entries]
    others = sorted(range(len(entries) - 1), key=entries.__getitem__)
    left = _MAX_PAGE_CELLS - rooms[-1]
    for done, place in enumerate(others):  # the small ones first: what they leave the large ones share
        rooms[place] = min(rooms[place], left // (len(others) - done))
        left -= rooms[place]
    return rooms


def _together(state: HeatmapState) -> SubQuery:
    """All sub-queries as if they were one: what a user answers, who answers one of them where they are of parts."""
    spent = [result.spent for result in state.results]
    apart = state.has_disjoint_cohorts
    return replace(
        spent[-1],
        epsilon=(max if apart else math.fsum)(one.epsilon for one in spent),
        vector_length=state.per_user_total([one.vector_length for one in spent]),
        bits_per_client=state.per_user_total([one.bits_per_client for one in spent]),
        shards=sum(one.shards for one in spent) if apart else spent[-1].shards,
        shards_lost=(sum if apart else max)(one.shards_lost for one in spent),
    )


def _layer(shown: Estimate, spent: SubQuery, remaining: float, rates: PageRates | None, entries: int) -> Layer:
    """A layer of what the page shows. entries: of the estimate, before it was made coarser."""
    level, x, y = node_positions(shown.tree.entries)
    stddev = float(np.median(shown.stddev))
    return Layer(
        index=spent.index,
        epsilon=spent.epsilon,
        remaining=remaining,
        stddev=stddev,
        vector_length=spent.vector_length,
        shards=spent.shards,
        shards_lost=spent.shards_lost,
        level=level,
        x=x,
        y=y,
        count=shown.counts,
        area=shown.tree.areas,
        cell_id=node_names(shown.tree.entries),
        deviations=None if np.allclose(shown.stddev, stddev, rtol=1e-6, atol=0) else shown.stddev,
        entries=entries,
        rates=rates,
    )
