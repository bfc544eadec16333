"""Every method through the Beam job: files, bundles and shards against the same stages in memory, and its release."""

from __future__ import annotations

import glob
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import shapely

from benchmarks.baselines.heatmap_methods import BASELINES, CountMin
from benchmarks.evaluation.in_memory import Rows, run_in_memory
from sfumato.pipelines import cli
from sfumato.schemas.locations import LocationColumns
from sfumato.schemas.region import Grid
from sfumato.transforms.heatmap.heatmap_options import heatmap_parameters
from sfumato.transforms.heatmap.methods import METHODS
from sfumato.transforms.heatmap.parameters import HeatmapParameters
from sfumato.transforms.heatmap.private_heatmap import bind_key
from sfumato.transforms.heatmap.raster import density, gaussian_heatmap
from sfumato.transforms.release.published_release import open_release
from tests.conftest import REGION
from tests.pipelines.test_heatmap import KEY, assert_same, command, run_state

SMALL = {"depth": 5, "shard_size": 300, "dropout": 0.4, "epsilon": 4.0, "population": 1500}


def rows_of(pattern: str, parameters: HeatmapParameters) -> Rows:
    key = bind_key(KEY, REGION, parameters, LocationColumns())
    grid, paths = Grid(REGION, parameters.depth), sorted(glob.glob(pattern))
    return Rows.read(paths, grid, key.subkey("users"), total=parameters.distribution_gamma)


@pytest.mark.parametrize("method", [*METHODS, *BASELINES])
@pytest.mark.parametrize("trust", ["secagg", "central"])
def test_the_job_equals_its_stages_in_memory(baselines: None, logs, method: str, trust: str) -> None:
    pattern = logs(1500, 4, 3)
    own = CountMin(sketch_width=50, sketch_rows=3) if method == "count_min" else METHODS[method]()
    parameters = HeatmapParameters(**SMALL, trust=trust, method=own)
    state = run_state(pattern, parameters)
    key = bind_key(KEY, REGION, parameters, LocationColumns())
    assert_same(state, run_in_memory(rows_of(pattern, parameters), 1500, parameters, key))
    assert len(state.results) <= parameters.method.max_rounds(parameters.depth)
    assert state.budget.spent <= 4.0
    estimate = parameters.method.decode(state, parameters.depth)
    assert np.isfinite(estimate.counts).all()
    assert (estimate.stddev >= 0).all()


@pytest.mark.parametrize("method", [*METHODS, *BASELINES])
def test_every_method_publishes_a_whole_release(baselines: None, logs, tmp_path: Path, method: str) -> None:
    options = ["--method", method, "--depth", "5"]
    assert cli.main(command(logs(1500, 3), tmp_path / "out", *options)) == 0
    release = open_release(tmp_path / "out")
    manifest = release.manifest
    assert manifest["parameters"]["method"] == method
    assert manifest["privacy"]["epsilon_spent"] <= manifest["privacy"]["epsilon"]
    assert ("distribution" in manifest["privacy"]["contribution_bound"]) == (method == "emd")
    assert release.density.shape == (32, 32)
    assert np.isclose(release.density.sum(), 1)
    assert len(release.cells) >= 1
    assert (release.cells["stddev"] >= 0).all()
    assert (tmp_path / "out" / "index.html").stat().st_size > 10_000


def test_a_blurred_release_is_the_gaussian_heatmap_of_its_cells(logs, tmp_path: Path) -> None:
    """Ghazi et al., Section 2.3: the density is blurred, mass is kept, and the cells are what was measured."""
    options = ["--method", "emd", "--depth", "5", "--blur", "0.05"]
    assert cli.main(command(logs(900, 2), tmp_path / "out", *options)) == 0
    release = open_release(tmp_path / "out")
    assert release.manifest["parameters"]["blur"] == 0.05
    sharp = np.zeros((32, 32))
    for cell in pq.read_table(
        tmp_path / "out" / "cells.parquet"
    ).to_pylist():  # as the page does: coarse cells first, each over what is below
        side = 32 >> cell["depth"]
        x = round((cell["west"] - REGION.west) / (REGION.east - REGION.west) * 32)
        y = round((REGION.north - cell["north"]) / (REGION.north - REGION.south) * 32)
        left = shapely.from_wkb(cell["geometry"]).area / (
            (REGION.east - REGION.west) * (REGION.north - REGION.south) / 32**2
        )
        sharp[y : y + side, x : x + side] = cell["count"] / max(left, 1e-9)
    assert np.allclose(release.density, gaussian_heatmap(sharp / sharp.sum(), 0.05), atol=1e-9)
    assert np.isclose(release.density.sum(), 1)
    assert cli.main(command(logs(900, 2), tmp_path / "bad", "--blur", "nan")) == 2


def test_central_noise_says_whom_it_trusts(logs, tmp_path: Path) -> None:
    assert cli.main(command(logs(900), tmp_path / "out", "--trust", "central")) == 0
    privacy = open_release(tmp_path / "out").manifest["privacy"]
    assert privacy["mechanism"] == "discrete Laplace, added once to the sums by a trusted curator"
    assert "a trusted curator. It sees the raw logs and the exact results" in privacy["assumptions"][0]
    told = privacy["participation"]
    assert (told["protected"], told["epsilon"], told["delta"]) == (True, 0.0, 0.0)


def test_a_large_flat_map_has_a_page_that_a_browser_can_hold(logs, tmp_path: Path) -> None:
    assert cli.main(command(logs(900), tmp_path / "out", "--method", "flat", "--depth", "9")) == 0
    release = open_release(tmp_path / "out")
    assert len(release.cells) == 4**9
    assert (tmp_path / "out" / "index.html").stat().st_size < 8_000_000
    table = release.cells
    assert np.isclose(np.maximum(table["count"], 0).sum() * release.density.max(), table["count"].max())


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--method", "adaptiv"), "did you mean adaptive"),
        (("--method", "flat", "--calibration", "0.1"), "calibration: is an option of adaptive, not of method flat"),
        (("--method", "flat", "--level", "7"), "level"),
        (("--method", "flat", "--keep_top", "nan"), "keep_top"),
        (("--method", "emd", "--emd_width", "0"), "emd_width"),
        (("--method", "emd", "--emd_decay", "0.4"), "emd_decay"),
        (("--method", "emd", "--gamma", "0"), "gamma"),
        (("--calibration", "nan"), "calibration"),
        (("--contribution", "some"), "contribution"),
        (("--trust", "none"), "trust"),
        (("--trust", "central", "--noise_source", "client"), "noise_source: with trust central"),
    ],
)
def test_bad_options_are_refused_by_name(logs, tmp_path: Path, capsys, options: tuple[str, ...], words: str) -> None:
    assert cli.main(command(logs(600), tmp_path / "out", "--depth", "6", *options)) == 2
    assert words in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_map_of_the_estimate_is_the_published_density(logs) -> None:
    parameters = heatmap_parameters("emd", SMALL)
    state = run_state(logs(1500), parameters)
    estimate = parameters.method.decode(state, 5)
    assert density(estimate.tree, estimate.counts).shape == (32, 32)
