"""What a release holds, by method and by the place where noise is added."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from benchmarks.evaluation.in_memory import Rows, run_in_memory
from sfumato.schemas.locations import Auxiliary, LocationColumns
from sfumato.schemas.places import Places
from sfumato.schemas.region import Grid, Region
from sfumato.schemas.release import ANSWERS_SCHEMA
from sfumato.schemas.tree import node_names
from sfumato.transforms.heatmap.manifest import heatmap_manifest
from sfumato.transforms.heatmap.methods import METHODS
from sfumato.transforms.heatmap.posterior.estimator import estimate_density
from sfumato.transforms.heatmap.rates import estimate_rates
from sfumato.transforms.heatmap.release import add_up_to, release_files
from sfumato.transforms.heatmap.request import heatmap_parameters
from sfumato.transforms.privacy.keys import FixedSecret, RunKey
from sfumato.transforms.release.metadata import ReleaseMetadata
from sfumato.transforms.secagg.encodings import TreeEncoding
from tests.seeds import seeded_rng
from tests.unit.release.city import REGION, CityRelease, city_release


@pytest.mark.parametrize("method", METHODS)
def test_the_answers_of_all_sub_queries_of_trees_are_published(method: str) -> None:
    release = city_release(method)
    mapped = [result for result in release.state.results if isinstance(result.encoding, TreeEncoding)]
    assert len(mapped) == len(release.state.results)
    answers = pq.read_table(io.BytesIO(release.files["answers.parquet"]))
    assert answers.schema.equals(ANSWERS_SCHEMA)
    for result in mapped:
        mine = answers.filter(pc.equal(answers["sub_query"], result.spent.index))
        assert mine["cell_id"].to_pylist() == node_names(result.tree.entries)
        assert np.array_equal(mine["users"].to_numpy(), result.counts)
        assert (mine["stddev"].to_numpy() == result.spent.noise_stddev).all()


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


def test_central_noise_names_nothing_of_secure_aggregation() -> None:
    release = city_release("flat", depth=4, trust="central", allow_overflow=True)
    privacy, manifest = release.manifest["privacy"], release.manifest
    assert "still reports" not in privacy["adjacency"]
    assert not any("secure-aggregation server" in one for one in privacy["assumptions"])
    assert manifest["warnings"] == []  # there is no modulus that counts could have wrapped around
    assert manifest["communication"] == {"vector_entries": 256, "bits_per_client": None}
    assert privacy["cohort"]["shards"] is privacy["cohort"]["required_survivors"] is None
    for stated, result in zip(privacy["sub_queries"], release.state.results, strict=True):
        unknown: dict[str, Any] = dict.fromkeys(("shards", "shards_lost", "modulus", "bits_per_client"))
        spent = result.spent
        assert stated == unknown | {
            "index": spent.index,
            "epsilon": spent.epsilon,
            "vector_length": spent.vector_length,
            "noise_stddev": spent.noise_stddev,
        }


def test_secure_aggregation_is_told_in_full() -> None:
    release = city_release("emd", allow_overflow=True)
    privacy, manifest = release.manifest["privacy"], release.manifest
    assert privacy["adjacency"].startswith("add or remove one user")
    assert manifest["warnings"][-1].startswith("Overflow was allowed")
    assert all(one["modulus"] > 1 and one["bits_per_client"] > 0 for one in privacy["sub_queries"])
    assert manifest["communication"]["bits_per_client"] == sum(one["bits_per_client"] for one in privacy["sub_queries"])
    assert privacy["cohort"]["shards"] == 4


def metadata_of(parameters: Any, columns: LocationColumns) -> ReleaseMetadata:
    stated = {**parameters.metadata(), "columns": columns.metadata()}
    return ReleaseMetadata("heatmap", "made-up", "2026-11-21T00:50:00Z", "operating system", True, stated)


def rated_release(method: str, names: tuple[str, ...], users: int = 4000, **options: Any) -> CityRelease:
    """The release of users in 16 x 16 cells whose last category is the more common the farther east and south."""
    depth = 4
    places = Places(depth, len(names))
    values = {"depth": depth, "shard_size": users // 4, "dropout": 0.2, "population": users, **options}
    parameters = heatmap_parameters(method, values, len(names))
    rng = seeded_rng(5)
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


@pytest.mark.slow
@pytest.mark.parametrize("names", [("false", "true"), ("well", "ill", "unsure")])
@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("flat", {}),
        ("flat", {"trust": "central"}),
        ("flat", {"contribution": "all", "gamma": 100}),
        ("adaptive", {"cohorts": "shared"}),
        ("adaptive", {"cohorts": "disjoint"}),
        ("adaptive", {"schedule": "paper", "estimator": "last"}),
    ],
)
def test_rates_in_all_files(method: str, options: dict[str, Any], names: tuple[str, ...]) -> None:
    release = rated_release(method, names, **options)
    state, estimate, manifest = release.state, release.estimate, release.manifest
    stated = ["true"] if len(names) == 2 else list(names)
    spent = state.results[-1].spent
    live = spent.shards - spent.shards_lost
    sums = 1 if options.get("trust") == "central" else live
    rates = estimate_rates(estimate, names, sums, state.cohort.shards / live)
    assert rates is not None
    if options.get("cohorts") == "disjoint":
        assert live < state.cohort.shards
    cells = pq.read_table(io.BytesIO(release.files["cells.parquet"]))
    kinds = {"rate": "rate", "rate_low": "low", "rate_high": "high", "rate_shrunk": "shrunk"}
    for kind, attribute in (
        kinds | {"simultaneous_low": "simultaneous_low", "simultaneous_high": "simultaneous_high"}
    ).items():
        mine = [kind if len(stated) == 1 else f"{kind}_{name}" for name in stated]
        column = np.array([cells[name].to_pylist() for name in mine], dtype=float)
        np.testing.assert_array_equal(column, getattr(rates, attribute))
    counted = np.array([cells[f"count_{name}"].to_pylist() for name in names])
    np.testing.assert_array_equal(counted, estimate.by_category)
    unknown = np.isnan(rates.rate) | np.isnan(rates.shrunk)
    assert not unknown.all()
    shown = [measure for measure in release.layers[-1].measures if measure.kind == "rate"]
    assert len(shown) == len(stated)
    for measure, *mine in zip(shown, unknown, rates.shrunk, rates.low, rates.high, strict=True):
        nowhere, rate, low, high = mine
        assert [one is None for one in measure.value] == nowhere.tolist()
        for values, expected in ((measure.value, np.clip(rate, low, high)), (measure.low, low), (measure.high, high)):
            np.testing.assert_allclose(np.array(values, dtype=float)[~nowhere], expected[~nowhere], atol=0.0051)
    assert ("rates.png" in release.files) == (len(names) == 2)
    auxiliary = manifest["auxiliary"]
    assert (auxiliary["column"], auxiliary["categories"]) == ("infected", list(names))
    assert auxiliary["entries_per_node"] == len(names)
    assert (auxiliary["rates"]["categories"], auxiliary["rates"]["level"]) == (stated, 0.95)
    assert f"one of {len(names)} bins" in manifest["privacy"]["contribution_bound"]


def test_without_auxiliary_data_nothing_is_said_of_rates() -> None:
    release = city_release("adaptive", depth=4)
    assert "auxiliary" not in release.manifest
    assert "bins" not in release.manifest["privacy"]["contribution_bound"]
    assert "rate" not in pq.read_table(io.BytesIO(release.files["cells.parquet"])).schema.names
    assert all(measure.kind == "count" for layer in release.layers for measure in layer.measures)


def test_parts_of_the_users_are_told_as_what_they_are() -> None:
    """Disjoint cohorts: each user is in one sub-query, which has the whole budget."""
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
