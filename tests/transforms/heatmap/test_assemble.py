"""What a release holds, by method and by the place where noise is added."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from sfumato.transforms.heatmap.methods import METHODS
from sfumato.transforms.heatmap.raster import density
from sfumato.transforms.secagg.encodings import TreeEncoding
from tests.transforms.release.city import city_release


@pytest.mark.parametrize("method", METHODS)
def test_a_layer_for_each_answer_that_is_a_map_and_the_release_last(method: str) -> None:
    release = city_release(method)
    state, estimate, layers = release.state, release.estimate, release.layers
    mapped = [answer for answer in state.answers if isinstance(answer.encoding, TreeEncoding)]
    assert len(mapped) == (0 if method in {"count_min", "adaptive_grid"} else len(state.answers))
    combined = method not in {"adaptive", "flat"}
    assert [layer["combined"] for layer in layers] == [False] * len(mapped) + [True] * combined
    for layer, answer in zip(layers, mapped, strict=False):
        assert layer["index"] == answer.spent.index
        assert layer["entries"] == answer.spent.vector_length
        assert layer["deviations"] is None
        np.testing.assert_allclose(layer["count"], answer.counts, atol=0.0501)
    last = layers[-1]
    digits = estimate.stddev.min() / 20 + 0.0501 * (last["deviations"] is None)
    np.testing.assert_allclose(last["count"], estimate.counts, atol=digits)
    assert last["stddev"] == pytest.approx(float(np.median(estimate.stddev)), rel=1e-5)
    if last["deviations"] is None:
        np.testing.assert_allclose(estimate.stddev, last["stddev"], rtol=1e-5)
    else:
        np.testing.assert_allclose(last["deviations"], estimate.stddev, rtol=1e-3)
    spent = sum(answer.spent.epsilon for answer in state.answers)
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
    assert np.array_equal(raster, density(estimate.tree, estimate.counts))
    assert release.files["heatmap.png"].startswith(b"\x89PNG")


def test_all_layers_of_a_deep_pyramid_fit_a_page() -> None:
    release = city_release("hierarchical", depth=9)
    layers = release.layers
    sizes = [len(layer["level"]) for layer in layers]
    assert sum(answer.spent.vector_length for answer in release.state.answers) > 300_000
    assert sum(sizes) <= 100_000
    assert sizes[-1] == len(release.estimate.counts)
    assert sizes[:7] == [4**level for level in range(1, 8)]  # only what is large is made coarser
    assert sizes[7:9] == [4**7, 4**7]
    for layer, answer in zip(layers[7:9], release.state.answers[7:], strict=True):
        assert layer["entries"] == len(answer.counts)
        merged = len(answer.counts) / 4**7
        np.testing.assert_allclose(layer["count"], answer.counts.reshape(4**7, -1).sum(axis=1), atol=0.0501)
        assert layer["stddev"] == pytest.approx(answer.spent.noise_stddev * merged**0.5, rel=1e-5)
    assert len(release.files["index.html"]) < 8_000_000


def test_one_large_map_has_the_room_of_a_map() -> None:
    (layer,) = city_release("flat", depth=9).layers
    assert len(layer["level"]) == 4**8
    assert layer["entries"] == 4**9


def test_central_noise_names_nothing_of_secure_aggregation() -> None:
    release = city_release("hierarchical", depth=4, noise="central", allow_overflow=True)
    privacy, manifest = release.manifest["privacy"], release.manifest
    assert "still answers" not in privacy["adjacency"]
    assert not any("secure-aggregation server" in one for one in privacy["assumptions"])
    assert manifest["warnings"] == []  # there is no modulus that counts could have wrapped around
    assert manifest["communication"] == {"vector_entries": 4 + 16 + 64 + 256, "bits_per_client": None}
    assert privacy["cohort"]["shards"] is privacy["cohort"]["required_survivors"] is None
    for told, answer in zip(privacy["sub_queries"], release.state.answers, strict=True):
        unknown: dict[str, Any] = dict.fromkeys(("shards", "shards_lost", "modulus", "bits_per_client"))
        spent = answer.spent
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
    assert "still answers" in privacy["adjacency"]
    assert manifest["warnings"][-1].startswith("Overflow was allowed")
    assert all(one["modulus"] > 1 and one["bits_per_client"] > 0 for one in privacy["sub_queries"])
    assert manifest["communication"]["bits_per_client"] == sum(one["bits_per_client"] for one in privacy["sub_queries"])
    assert privacy["cohort"]["shards"] == 4
