"""What a release holds, by method and by the place where noise is added."""

from __future__ import annotations

import io
from dataclasses import asdict
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from sfumato.schemas.locations import Auxiliary, LocationColumns
from sfumato.schemas.places import Places
from sfumato.schemas.region import Grid, Region
from sfumato.transforms.evaluation.in_memory import Rows, run_in_memory
from sfumato.transforms.heatmap.heatmap_options import heatmap_parameters
from sfumato.transforms.heatmap.manifest import heatmap_manifest
from sfumato.transforms.heatmap.methods import METHODS
from sfumato.transforms.heatmap.raster import coarsen, estimate_density
from sfumato.transforms.heatmap.rates import Rates, estimate_rates
from sfumato.transforms.heatmap.release_files import add_up_to, release_files
from sfumato.transforms.privacy.keys import FixedSecret, RunKey
from sfumato.transforms.release.metadata import ReleaseMetadata
from sfumato.transforms.secagg.encodings import TreeEncoding
from tests.transforms.release.city import REGION, CityRelease, city_release


@pytest.mark.parametrize("method", METHODS)
def test_a_layer_for_each_answer_that_is_a_map_and_the_release_last(method: str) -> None:
    release = city_release(method)
    state, estimate, layers = release.state, release.estimate, release.layers
    mapped = [result for result in state.results if isinstance(result.encoding, TreeEncoding)]
    assert len(mapped) == (0 if method in {"count_min", "adaptive_grid"} else len(state.results))
    combined = method != "flat"
    assert [layer["combined"] for layer in layers] == [False] * len(mapped) + [True] * combined
    for layer, result in zip(layers, mapped, strict=False):
        assert layer["index"] == result.spent.index
        assert layer["entries"] == result.spent.vector_length
        assert layer["deviations"] is None
        shown = result.counts if combined or layer is not layers[-1] else estimate.counts  # they add up
        np.testing.assert_allclose(layer["count"], shown, atol=0.0501)
    last = layers[-1]
    assert (np.abs(last["count"] - estimate.counts) <= np.minimum(0.0501, estimate.stddev / 19)).all()
    assert last["stddev"] == pytest.approx(float(np.median(estimate.stddev)), rel=1e-5)
    if last["deviations"] is None:
        np.testing.assert_allclose(estimate.stddev, last["stddev"], rtol=1e-5)
    else:
        np.testing.assert_allclose(last["deviations"], estimate.stddev, rtol=1e-3)
    spent = sum(result.spent.epsilon for result in state.results)
    assert last["remaining"] == pytest.approx(state.budget.total - state.population.epsilon - spent, abs=1e-8)
    if combined:
        assert last["epsilon"] == pytest.approx(spent, rel=1e-8)
    assert last["area"].sum() == 4**6


@pytest.mark.parametrize("method", METHODS)
def test_the_files_hold_one_and_the_same_estimate(method: str) -> None:
    release = city_release(method)
    estimate = release.estimate
    cells = pq.read_table(io.BytesIO(release.files["cells.parquet"]))
    assert np.array_equal(cells["count"].to_numpy(), estimate.counts)
    assert np.array_equal(cells["stddev"].to_numpy(), estimate.stddev)
    raster = np.load(io.BytesIO(release.files["density.npy"]))
    assert np.array_equal(raster, estimate_density(estimate))
    assert release.files["heatmap.png"].startswith(b"\x89PNG")


def test_all_layers_of_a_deep_pyramid_fit_a_page() -> None:
    release = city_release("hierarchical", depth=9)
    layers = release.layers
    sizes = [len(layer["level"]) for layer in layers]
    assert sum(result.spent.vector_length for result in release.state.results) > 300_000
    assert sum(sizes) <= 100_000
    assert sizes[-1] == len(release.estimate.counts)
    assert sizes[:7] == [4**level for level in range(1, 8)]  # only what is large is made coarser
    assert sizes[7:9] == [4**7, 4**7]
    for layer, result in zip(layers[7:9], release.state.results[7:], strict=True):
        assert layer["entries"] == len(result.counts)
        merged = len(result.counts) / 4**7
        np.testing.assert_allclose(layer["count"], result.counts.reshape(4**7, -1).sum(axis=1), atol=0.0501)
        assert layer["stddev"] == pytest.approx(result.spent.noise_stddev * merged**0.5, rel=1e-5)
    assert len(release.files["index.html"]) < 8_000_000


def test_one_large_map_has_the_room_of_a_map() -> None:
    (layer,) = city_release("flat", depth=9).layers
    assert len(layer["level"]) == 4**8
    assert layer["entries"] == 4**9


def test_central_noise_names_nothing_of_secure_aggregation() -> None:
    release = city_release("hierarchical", depth=4, noise="central", allow_overflow=True)
    privacy, manifest = release.manifest["privacy"], release.manifest
    assert "still reports" not in privacy["adjacency"]
    assert not any("secure-aggregation server" in one for one in privacy["assumptions"])
    assert manifest["warnings"] == []  # there is no modulus that counts could have wrapped around
    assert manifest["communication"] == {"vector_entries": 4 + 16 + 64 + 256, "bits_per_client": None}
    assert privacy["cohort"]["shards"] is privacy["cohort"]["required_survivors"] is None
    for told, result in zip(privacy["sub_queries"], release.state.results, strict=True):
        unknown: dict[str, Any] = dict.fromkeys(("shards", "shards_lost", "modulus", "bits_per_client"))
        spent = result.spent
        assert told == unknown | {
            "index": spent.index,
            "epsilon": spent.epsilon,
            "vector_length": spent.vector_length,
            "noise_stddev": spent.noise_stddev,
        }
    assert all((layer["shards"], layer["shards_lost"]) == (1, 0) for layer in release.layers)


def test_secure_aggregation_is_told_in_full() -> None:
    release = city_release("emd", allow_overflow=True)
    privacy, manifest = release.manifest["privacy"], release.manifest
    assert privacy["adjacency"].startswith("add or remove one user")
    assert manifest["warnings"][-1].startswith("Overflow was allowed")
    assert all(one["modulus"] > 1 and one["bits_per_client"] > 0 for one in privacy["sub_queries"])
    assert manifest["communication"]["bits_per_client"] == sum(one["bits_per_client"] for one in privacy["sub_queries"])
    assert privacy["cohort"]["shards"] == 4


def metadata_of(parameters: Any, columns: LocationColumns) -> ReleaseMetadata:
    told = {**parameters.metadata(), "columns": asdict(columns)}
    return ReleaseMetadata("heatmap", "made-up", "2026-11-21T00:50:00Z", "operating system", True, told)


def rated_release(method: str, names: tuple[str, ...], users: int = 4000, **options: Any) -> CityRelease:
    """The release of users in 16 x 16 cells whose last category is the more common the farther east and south."""
    depth = 4
    places = Places(depth, len(names))
    values = {"depth": depth, "shard_size": users // 4, "dropout": 0.2, "population": users, **options}
    parameters = heatmap_parameters(method, values, len(names))
    rng = np.random.default_rng(5)
    cells = rng.integers(0, 4**depth, users)
    last = rng.random(users) < cells / 4**depth
    category = np.where(last, len(names) - 1, rng.integers(0, len(names) - 1, users))
    hashes = np.sort(rng.integers(0, 1 << (64 - places.bits), users, dtype=np.uint64)) << np.uint64(places.bits)
    gamma = parameters.distribution_gamma
    weights = None if gamma is None else np.full(users, gamma)
    rows = Rows(places, hashes, (category << 2 * depth | cells).astype(np.uint64), weights)
    state = run_in_memory(rows, users, parameters, RunKey.derive(FixedSecret(b"city" * 8), {}))
    metadata = metadata_of(parameters, LocationColumns(auxiliary=Auxiliary("infected", names)))
    files = release_files(state, parameters, metadata, Grid(Region(**REGION), depth))
    estimate = add_up_to(parameters.method.decode(state, depth), state.users_estimate()[0])
    return CityRelease(state, parameters, estimate, files)


def shown_on_page(rates: Rates) -> np.ndarray:
    """Shrunk rates inside each cell's own interval, NaN where nothing is known or users are not clearly above zero."""
    return np.where(np.isnan(rates.rate), np.nan, np.clip(rates.shrunk, rates.low, rates.high))


def as_page(values: list[list[float | None]]) -> np.ndarray:
    return np.array(values, dtype=float)


@pytest.mark.parametrize("names", [("false", "true"), ("well", "ill", "unsure")])
@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("flat", {}),
        ("flat", {"noise": "central"}),
        ("flat", {"contribution": "all", "gamma": 100}),
        ("adaptive", {"cohorts": "shared"}),
        ("adaptive", {"cohorts": "disjoint"}),
        ("adaptive", {"schedule": "paper", "estimator": "last"}),
    ],
)
def test_rates_in_all_files(method: str, options: dict[str, Any], names: tuple[str, ...]) -> None:
    release = rated_release(method, names, **options)
    state, estimate, manifest = release.state, release.estimate, release.manifest
    told = ["true"] if len(names) == 2 else list(names)
    spent = state.results[-1].spent
    live = spent.shards - spent.shards_lost
    sums = 1 if options.get("noise") == "central" else live
    rates = estimate_rates(estimate, names, sums, state.cohort.shards / live)
    assert rates is not None
    if options.get("cohorts") == "disjoint":
        assert live < state.cohort.shards
    cells = pq.read_table(io.BytesIO(release.files["cells.parquet"]))
    kinds = {"rate": "rate", "rate_low": "low", "rate_high": "high", "rate_shrunk": "shrunk"}
    for kind, attribute in (
        kinds | {"simultaneous_low": "simultaneous_low", "simultaneous_high": "simultaneous_high"}
    ).items():
        mine = [kind if len(told) == 1 else f"{kind}_{name}" for name in told]
        column = np.array([cells[name].to_pylist() for name in mine], dtype=float)
        np.testing.assert_array_equal(column, getattr(rates, attribute))
    counted = np.array([cells[f"count_{name}"].to_pylist() for name in names])
    np.testing.assert_array_equal(counted, estimate.by_category)
    page = release.layers[-1]["rates"]
    assert page["names"] == told
    unknown = np.isnan(rates.rate) | np.isnan(rates.shrunk)
    assert not unknown.all()
    assert np.array_equal(np.isnan(as_page(page["low"])), unknown)
    assert (as_page(page["low"])[~unknown] <= rates.low[~unknown] + 1e-12).all()
    assert (np.abs(as_page(page["high"]) - rates.high)[~unknown] <= 0.011).all()
    assert ("rates.png" in release.files) == (len(names) == 2)
    auxiliary = manifest["auxiliary"]
    assert (auxiliary["column"], auxiliary["categories"]) == ("infected", list(names))
    assert auxiliary["entries_per_node"] == len(names)
    assert (auxiliary["rates"]["categories"], auxiliary["rates"]["level"]) == (told, 0.95)
    assert f"one of {len(names)} bins" in manifest["privacy"]["contribution_bound"]


def test_layers_show_totals_and_each_its_own_rates() -> None:
    names = ("well", "ill", "unsure")
    release = rated_release("adaptive", names, schedule="paper", estimator="last")
    assert len(release.layers) == len(release.state.results) > 1
    assert not release.layers[-1]["combined"]
    for layer, result in zip(release.layers, release.state.results, strict=True):
        by_category = result.counts.reshape(3, -1)
        last = result is release.state.results[-1]
        shown = release.estimate.counts if last else by_category.sum(axis=0)
        np.testing.assert_allclose(layer["count"], shown, atol=0.0501)
        assert layer["stddev"] == pytest.approx(np.sqrt(3) * result.spent.noise_stddev, rel=1e-5)
        assert (layer["vector_length"], layer["entries"]) == (result.spent.vector_length, by_category.shape[1])
        assert result.spent.vector_length == 3 * by_category.shape[1]
        live = result.spent.shards - result.spent.shards_lost
        mine = estimate_rates(result.to_estimate(), names, live, release.state.cohort.shards / live)
        assert mine is not None
        np.testing.assert_allclose(as_page(layer["rates"]["rate"]), shown_on_page(mine), atol=0.0051)


def test_a_coarser_page_has_the_rates_of_its_cells(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sfumato.transforms.heatmap.release_files._MAX_MAP_CELLS", 16)
    names = ("false", "true")
    release = rated_release("flat", names)
    (layer,) = release.layers
    rates = estimate_rates(coarsen(release.estimate, 16), names, 4)
    assert rates is not None
    assert (len(layer["level"]), layer["entries"]) == (16, 256)
    np.testing.assert_allclose(as_page(layer["rates"]["rate"]), shown_on_page(rates), atol=0.0051)


@pytest.mark.parametrize("room", [1 << 16, 16])
def test_the_page_shows_the_intervals_of_the_published_cells(room: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sfumato.transforms.heatmap.release_files._MAX_MAP_CELLS", room)
    release = city_release("adaptive")
    layer = release.layers[-1]
    cells = pq.read_table(io.BytesIO(release.files["cells.parquet"])).to_pandas().set_index("cell_id")
    known = [i for i, low in enumerate(layer["users_low"]) if low is not None]
    assert (len(known) == len(cells)) == (room > 16)
    ends = cells.loc[[layer["cell_id"][i] for i in known]]
    low, high = (np.array([layer[name][i] for i in known]) for name in ("users_low", "users_high"))
    assert ((low <= ends["users_low"] + 1e-9) & (low > ends["users_low"] - 0.1001)).all()
    assert ((high >= ends["users_high"] - 1e-9) & (high < ends["users_high"] + 0.1001)).all()
    assert all(one["users_low"] is None for one in release.layers[:-1])


def test_without_auxiliary_data_nothing_is_said_of_rates() -> None:
    release = city_release("adaptive", depth=4)
    assert "auxiliary" not in release.manifest
    assert "bins" not in release.manifest["privacy"]["contribution_bound"]
    assert "rate" not in pq.read_table(io.BytesIO(release.files["cells.parquet"])).schema.names
    assert all(layer["rates"] is None for layer in release.layers)


def test_parts_of_the_users_are_told_as_what_they_are() -> None:
    """Disjoint cohorts: a user answers one sub-query, with the whole budget."""
    release = city_release("adaptive", cohorts="disjoint", simulated_dropout=0.05)
    state, privacy = release.state, release.manifest["privacy"]
    spent = [result.spent for result in state.results]
    assert len(spent) > 1
    assert sum(one.epsilon for one in spent) > state.budget.total
    assert privacy["composition"] == "parallel"
    assert privacy["epsilon_spent"] <= privacy["epsilon"] == state.budget.total
    assert release.manifest["communication"] == {
        "vector_entries": max(one.vector_length for one in spent),
        "bits_per_client": max(one.bits_per_client for one in spent),
    }
    for layer, one in zip(release.layers, spent, strict=False):
        left = state.budget.total - state.population.epsilon - one.epsilon
        assert layer["remaining"] == pytest.approx(left, abs=1e-9)
    last = release.layers[-1]
    assert last["combined"]
    assert last["epsilon"] == pytest.approx(max(one.epsilon for one in spent), abs=1e-9)
    assert last["shards"] == state.cohort.shards
    together = city_release("adaptive", cohorts="shared", simulated_dropout=0.05)
    assert together.manifest["privacy"]["composition"] == "sequential"


@pytest.mark.parametrize(
    ("options", "columns", "words"),
    [
        ({}, {}, "one location a user, chosen uniformly by the key"),
        (
            {},
            {"weight": "minutes"},
            "one location a user, chosen in proportion to the weights of the user's records by the key",
        ),
        (
            {},
            {"time": "at"},
            "one location a user, chosen in proportion to the weights of the user's records by the key",
        ),
        ({"contribution": "top"}, {}, "one location a user, the cell with most of their records or weight"),
        (
            {"contribution": "all", "gamma": 50},
            {"weight": "minutes"},
            "one distribution a user over the cells of all their locations, in integers with sum 50",
        ),
        (
            {"contribution": "all", "gamma": 50, "rounding": "independent"},
            {},
            "one distribution a user over the cells of all their locations, times 50, "
            "with independent rounding of every entry: a sum below that plus the vector's length",
        ),
    ],
)
def test_what_a_user_adds_in_words(options: dict[str, Any], columns: dict[str, Any], words: str) -> None:
    values = {"depth": 4, "shard_size": 1000, "dropout": 0.2, "population": 4000, **options}
    parameters = heatmap_parameters("flat", values)
    state = city_release("flat", depth=4).state
    metadata = metadata_of(parameters, LocationColumns(**columns))
    manifest = heatmap_manifest(state, parameters, metadata, Grid(Region(**REGION), 4))
    assert manifest["privacy"]["contribution_bound"] == words
