"""What a run's options alone decide is decided before the charge: afterwards it would lose the epsilon for nothing.

Found by attacks on regions and on networks. A region of tiny sides ended its run after the charge, because no number
holds its users per area. So did a workload between the squares of a network, and a folder with checkpoints of another
release, as every night but the first has it.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from sfumato.pipelines import cli
from sfumato.pipelines.run import request_of
from sfumato.schemas.errors import RequestError
from sfumato.schemas.ranges import Boxes
from sfumato.transforms.heatmap.posterior import estimator
from sfumato.transforms.ranges import methods
from sfumato.transforms.ranges.field_counts import NoisyGrid
from sfumato.transforms.ranges.networks.local import LocalTraining
from sfumato.transforms.ranges.networks.paper import paper_training
from sfumato.transforms.ranges.networks.training import fit
from tests.conftest import write_files
from tests.seeds import seeded_rng
from tests.unit.ranges.test_ranges_plan import plan


@pytest.mark.parametrize("side", [5e-324, 1e-310, 1e-200, 1e-155, 1e-16])
def test_a_region_whose_areas_no_number_holds_is_a_bad_request(side: float) -> None:
    for region in ((0, 0, side, side), (0, 0, 1, side), (-side, 0, 0, 1)):
        with pytest.raises(RequestError, match=r"^region"):
            request_of("heatmap", {"input": "in", "output": "out", "region": region})


@pytest.mark.slow
def test_the_smallest_region_has_a_map(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(estimator, "MAX_RASTER_DEPTH", 10)  # in place of 12, for speed
    rng = seeded_rng(1)
    table = {name: rng.uniform(0, 1e-9, 2_000) for name in ("longitude", "latitude")}
    pattern = write_files(pa.table({"user_id": range(2_000), **table}), tmp_path / "logs", 1)
    options = ["--input", pattern, "--output", str(tmp_path / "out"), "--seed", "1", "--depth", "14"]
    assert cli.main(["heatmap", *options, "--region=0,0,1e-9,1e-9"]) == 0
    assert json.loads((tmp_path / "out" / "manifest.json").read_text())["results"]["users"] > 1_000


def test_a_workload_between_all_squares_trains_on_all_of_them() -> None:
    """Squares of 1 km at the corners of cells of 14 km: none overlaps a workload in the middle of a cell."""
    asked = plan("snh")
    edges = np.linspace(0, asked.field.side, 9).astype(np.int64)
    grid, spec = NoisyGrid(edges, edges, np.full((8, 8), 5.0), 1.4), asked.collection_spec(1_000, 1.0)
    middle = float(edges[1]) / 2
    between = Boxes(*(np.array([middle + at]) for at in (0.0, 0.0, 0.1, 0.1)))
    [training], [without] = (paper_training(grid, spec, 1, one) for one in (between, None))
    np.testing.assert_array_equal(training.places, without.places)
    np.testing.assert_array_equal(training.weights, without.weights)


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> None:
    """Networks of one number, which learn the mean of the noisy counts."""
    pytest.importorskip("jax")

    def train(training: LocalTraining, checkpoint: str | None = None) -> dict[str, np.ndarray]:
        counts = training.grid.users.ravel().astype(np.float32)
        found: dict[str, np.ndarray] = fit(
            {"mean": np.float32(0)},
            lambda weights, count: ((weights["mean"] - count) ** 2).mean(),
            (counts,),
            epochs=200,
            batch=None,
            learning_rate=0.1,
            checkpoint=checkpoint,
        )
        return found

    monkeypatch.setattr(methods, "train_local", train)


@pytest.mark.parametrize("fault", ["another release", "damaged", "a file"])
def test_checkpoints_that_cannot_be_used_cost_time_and_not_the_charge(
    fault: str, trained: None, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder, edges = tmp_path / "checkpoints", np.arange(5) * 1024
    method = methods.SpatialNeural(1_000.0, models=1, checkpoints=str(folder))
    spec = plan("snh").collection_spec(1_000, 1.0)
    first, second = (NoisyGrid(edges, edges, np.full((4, 4), users), 1.4) for users in (3.0, 7.0))
    if fault == "a file":
        folder.write_text("no folder")
    else:
        [one] = method.trainings(first, spec)
        assert method.train(one)["mean"] == pytest.approx(3, abs=0.1)
        [path] = folder.iterdir()
        if fault == "damaged":
            path.write_bytes(b"no archive")
    kept = {one: one.read_bytes() for one in folder.iterdir()} if folder.is_dir() else {}
    caplog.set_level("INFO")
    [other] = method.trainings(second, spec)
    assert method.train(other)["mean"] == pytest.approx(7, abs=0.1)
    assert "trains without a checkpoint" in caplog.text
    assert kept == ({one: one.read_bytes() for one in folder.iterdir()} if folder.is_dir() else {})
