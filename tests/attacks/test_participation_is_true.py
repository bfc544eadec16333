"""Attack 4 of the table: `participation.delta` stood beside the truth (stated 2e-8, true 3.5e-4)."""

from __future__ import annotations

import pytest

from sfumato.transforms.heatmap.parameters import HeatmapParameters
from tests.rejections import rejects
from tests.unit.release.city import city_release


@pytest.mark.parametrize("method", ["adaptive", "flat", "emd"])
def test_planned_shards_protect_who_takes_part(method: str) -> None:
    """Zero, because there is no channel: see test_noise_independent_of_data and test_existence_of_a_release."""
    privacy = city_release(method).manifest["privacy"]
    told = privacy["participation"]
    assert {name: told[name] for name in ("model", "protected", "epsilon", "delta")} == {
        "model": "planned", "protected": True, "epsilon": 0.0, "delta": 0.0,
    }  # fmt: skip
    assert "do not depend on who takes part" in told["description"]
    assert privacy["adjacency"].startswith(
        "add or remove one user: two datasets are neighbours if one is the other plus"
    )
    assert "still reports" not in privacy["adjacency"]
    assert all(one["shards_lost"] == 0 for one in privacy["sub_queries"])


def test_the_papers_model_claims_nothing_finite_and_warns() -> None:
    release = city_release("adaptive", participation="paper")
    privacy = release.manifest["privacy"]
    told = privacy["participation"]
    assert (told["model"], told["protected"], told["epsilon"], told["delta"]) == ("paper", False, None, 1.0)
    assert privacy["adjacency"].startswith("zero-out")
    (warning,) = (one for one in release.manifest["warnings"] if "participation paper" in one)
    assert "Not protected" in warning
    assert "Who takes part is not protected" in release.page  # with the manifest, which the page shows


def test_with_a_trusted_server_there_are_no_shards_to_lose() -> None:
    told = city_release("adaptive", trust="central").manifest["privacy"]["participation"]
    assert (told["protected"], told["epsilon"], told["delta"]) == (True, 0.0, 0.0)
    with rejects("participation"):
        HeatmapParameters(trust="central", participation="paper")
