"""Every method through the Beam job: files, bundles and shards against the same stages in memory, and its release."""

from __future__ import annotations

import glob
from pathlib import Path

import numpy as np
import pytest

from benchmarks.baselines.heatmap_methods import BASELINES, CountMin
from benchmarks.evaluation.in_memory import Rows, run_in_memory
from sfumato.pipelines import cli
from sfumato.schemas.locations import LocationColumns
from sfumato.schemas.region import Grid
from sfumato.transforms.heatmap.methods import METHODS
from sfumato.transforms.heatmap.parameters import HeatmapParameters
from sfumato.transforms.heatmap.posterior.estimator import density
from sfumato.transforms.heatmap.private_heatmap import bind_key
from sfumato.transforms.heatmap.request import heatmap_parameters
from sfumato.transforms.release.published_release import open_release
from tests.conftest import REGION
from tests.jobs.test_heatmap import KEY, assert_same, command, run_state

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


def test_central_noise_says_whom_it_trusts(logs, tmp_path: Path) -> None:
    assert cli.main(command(logs(900), tmp_path / "out", "--trust", "central")) == 0
    privacy = open_release(tmp_path / "out").manifest["privacy"]
    assert privacy["mechanism"] == "discrete Laplace, added once to the sums by a trusted curator"
    assert "a trusted curator. It sees the raw logs and the exact results" in privacy["assumptions"][0]
    told = privacy["participation"]
    assert (told["protected"], told["epsilon"], told["delta"]) == (True, 0.0, 0.0)


@pytest.mark.slow
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
        (("--method", "flat", "--schedule", "lean"), "schedule: applies only with --method adaptive"),
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
