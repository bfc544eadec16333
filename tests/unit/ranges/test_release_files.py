"""What a release of a model says of itself, and that its files are of the same model."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from typing import Any
from unittest.mock import ANY

import numpy as np
import pytest

from benchmarks.evaluation.in_memory import Rows, run_in_memory
from sfumato.schemas.guarantee import Population
from sfumato.schemas.locations import LocationColumns
from sfumato.schemas.places import Places
from sfumato.schemas.ranges import Boxes
from sfumato.schemas.release import MANIFEST_FILE, MODEL_FILE, PAGE_FILE, RANGES_PICTURE, RELEASE_FILES
from sfumato.schemas.tree import Tree
from sfumato.transforms.heatmap.state import Estimate
from sfumato.transforms.privacy.keys import FixedSecret, RunKey
from sfumato.transforms.privacy.mechanism import discrete_laplace_stddev
from sfumato.transforms.ranges.field_counts import ExactCounts
from sfumato.transforms.ranges.model import RangeModel, TreeModel
from sfumato.transforms.ranges.model_file import read_model
from sfumato.transforms.ranges.ranges_plan import Collected, RangesPlan, build, collect, collected_from_heatmap
from sfumato.transforms.ranges.release_files import HeatmapRelease, files_of_release, ranges_files
from sfumato.transforms.release.metadata import ReleaseMetadata
from tests.conftest import REGION
from tests.seeds import seeded_rng
from tests.unit.ranges.oracle import admission_of
from tests.unit.ranges.test_ranges_plan import SIZES, plan

KEY = RunKey.derive(FixedSecret(b"assemble ranges" * 3), {"job": "ranges"})
FACTS = ReleaseMetadata(
    job="ranges",
    release_id="monday",
    created="2026-11-20T02:00:00+00:00",
    randomness="key file",
    safe=True,
    parameters={"columns": asdict(LocationColumns())},
)
USERS = 2000


def people(depth: int = 12) -> ExactCounts:
    """In the north-western quarter."""
    return ExactCounts.from_codes(depth, seeded_rng(0).integers(0, 4 ** (depth - 1), USERS).astype(np.uint64))


def counted(asked: RangesPlan) -> Collected:
    if asked.heatmap is None:
        return collect(people(), admission_of(people(), asked, KEY), asked, KEY)
    crowd, depth = people(), asked.heatmap.depth
    codes = np.repeat(crowd.codes, crowd.users) >> np.uint64(2 * (12 - depth))
    hashes = np.sort(seeded_rng(1).integers(0, 2**64, USERS, np.uint64))
    places = Places(depth)
    state = run_in_memory(Rows(places, hashes & ~places.mask, codes), USERS, asked.heatmap, KEY)
    return collected_from_heatmap(state, asked)


def released(
    asked: RangesPlan, metadata: ReleaseMetadata = FACTS
) -> tuple[dict[str, bytes], dict[str, Any], RangeModel]:
    files = ranges_files(build(counted(asked), asked, ()), asked, metadata)
    return files, json.loads(files[MANIFEST_FILE]), read_model(files[MODEL_FILE], "it")


@pytest.mark.slow
def test_a_trusted_servers_release() -> None:
    asked = plan("grid", cell_width=10_000.0, epsilon=0.5, population_share=0.1)
    files, manifest, model = released(asked)
    assert list(files) == [PAGE_FILE, RANGES_PICTURE, MODEL_FILE, MANIFEST_FILE]  # the manifest last
    assert set(files) <= RELEASE_FILES
    assert files[RANGES_PICTURE].startswith(b"\x89PNG")
    assert "monday" in files[PAGE_FILE].decode()
    assert (model.method, model.epsilon, model.field.grid.region) == ("grid", 0.5, REGION)
    assert (manifest["job"], manifest["region"], manifest["grid"]) == (
        "ranges", asdict(REGION), {"depth": 12, "side": 4096},
    )  # fmt: skip
    assert (manifest["method"], manifest["sizes_metres"]) == ("grid", [500.0, 2000.0])
    width, height = manifest["cell_metres"]
    assert (width, height) == (pytest.approx(141_458 / 14, rel=1e-4), pytest.approx(111_195 / 11, rel=1e-4))
    privacy, population = manifest["privacy"], manifest["privacy"]["population"]
    assert (privacy["unit"], privacy["epsilon"], privacy["delta"], privacy["trust"]) == ("user", 0.5, 0.0, "central")
    assert privacy["adjacency"].startswith("add or remove one user")
    assert "zero-out" not in privacy["adjacency"]
    assert privacy["contribution_bound"] == "one location a user, chosen uniformly by the key"
    assert privacy["randomness"] == {"source": "key file", "safe": True}
    assert any("trusted curator" in one for one in privacy["assumptions"])
    assert population["source"] == "noisy"
    assert population["epsilon"] == pytest.approx(0.05)
    assert privacy["noise_stddev"] == pytest.approx(discrete_laplace_stddev(0.45), rel=1e-9)
    results = manifest["results"]
    assert (results["kind"], results["parts"]) == ("grid", 14 * 11)
    assert abs(results["users"] - USERS) < 6.2 * np.sqrt(14 * 11) * privacy["noise_stddev"]
    assert manifest["warnings"] == []


@pytest.mark.slow
def test_a_public_number_of_users_is_told() -> None:
    _, manifest, _ = released(plan("ug", epsilon=1.0, population=USERS))
    paid = pytest.approx(0.01)
    assert manifest["privacy"]["population"] == asdict(
        Population(float(USERS), "public", paid, pytest.approx(discrete_laplace_stddev(0.01)), ANY)
    )
    assert abs(manifest["privacy"]["population"]["counted"] - USERS) < 20 * discrete_laplace_stddev(0.01)


@pytest.mark.slow
def test_weighted_records_and_known_keys_are_told() -> None:
    metadata = replace(
        FACTS, parameters={"columns": asdict(LocationColumns(weight="w"))}, safe=False, randomness="seed"
    )
    _, manifest, _ = released(plan("ug", population=USERS), metadata)
    assert "in proportion to their records' weights" in manifest["privacy"]["contribution_bound"]
    assert [one for one in manifest["warnings"] if "a seed that anybody can guess" in one] == manifest["warnings"] != []


@pytest.mark.slow
@pytest.mark.parametrize("safe", [True, False])
def test_what_shards_counted_is_told_as_a_heatmap_tells_it(safe: bool) -> None:
    shards = {"shard_size": 400, "dropout": 0.2, "population": USERS, "epsilon": 2.0}
    asked, metadata = plan("grid", trust="secagg", cell_width=9000.0, **shards), replace(FACTS, safe=safe)
    collected = counted(asked)
    manifest = json.loads(ranges_files(build(collected, asked, ()), asked, metadata)[MANIFEST_FILE])
    privacy = manifest["privacy"]
    assert (privacy["trust"], privacy["epsilon"], privacy["cohort"]["shards"]) == ("secagg", 2.0, 5)
    assert "secure-aggregation shards" in privacy["mechanism"]
    assert privacy["adjacency"].startswith("add or remove one user")
    assert len(privacy["sub_queries"]) == 1
    assert privacy["noise_stddev"] == pytest.approx(privacy["sub_queries"][0]["noise_stddev"])
    assert privacy["noise_stddev"] > 2 * discrete_laplace_stddev(2.0)  # of five shards
    assert privacy["randomness"]["safe"] is safe
    assert manifest["privacy"]["population"]["users"] == USERS
    assert manifest["cell_metres"][0] == pytest.approx(141_458 / 16, rel=1e-4)
    assert ["seed" in one for one in manifest["warnings"]] == ([] if safe else [True])


@pytest.mark.parametrize("trust", ["central", "secagg"])
def test_the_adaptive_tree(trust: str) -> None:
    asked = plan("adaptive", trust=trust, depth=7, population=USERS, epsilon=1.0, dropout=0.2)
    _, manifest, model = released(asked)
    assert (manifest["results"]["kind"], manifest["privacy"]["trust"]) == ("tree", trust)
    assert manifest["results"]["parts"] > 16
    assert manifest["results"]["users"] == pytest.approx(
        USERS, abs=10 * manifest["privacy"]["population"]["noise_stddev"]
    )
    assert manifest["privacy"]["adjacency"].startswith("add or remove one user")
    box = Boxes(*map(np.array, ([0.0], [0.0], [2048.0], [2048.0])))
    answer = model.model.answer(box)
    assert abs(answer.users[0] - USERS) < 6.2 * answer.stddev[0]


@pytest.mark.slow
def test_a_model_of_a_published_heatmap_repeats_its_guarantee() -> None:
    estimate = Estimate(Tree.uniform(6, 2), np.arange(16.0), np.ones(16))
    asked = plan("adaptive", epsilon=0.8)
    privacy = {
        "epsilon": 0.8,
        "delta": 0.0,
        "unit": "user",
        "randomness": {"source": "key file", "safe": True},
        "population": asdict(Population(120.0, "public")),
        "assumptions": ["one"],
    }
    for trust in ("central", "secagg"):
        manifest = {"release_id": "heat", "privacy": {**privacy, "trust": trust}}
        release = HeatmapRelease(asked.field, estimate, manifest, "digest")
        model = RangeModel(asked.field, TreeModel(estimate), "adaptive", 0.8)
        files = files_of_release(release, model, SIZES, FACTS)
        told = json.loads(files[MANIFEST_FILE])
        assert told["privacy"]["trust"] == trust
        assert told["privacy"]["epsilon"] == 0.8
        assert told["privacy"]["assumptions"][0] == "one"
        assert "post-processing" in told["privacy"]["assumptions"][1]
        assert told["privacy"]["population"] == privacy["population"]
        assert told["results"] == {"kind": "tree", "parts": 16, "users": 120.0, "stated_error": "lower bound"}
        assert read_model(files[MODEL_FILE], "it").epsilon == 0.8
    assert privacy["assumptions"] == ["one"]  # the manifest that was given stays as it is
