"""The whole job: against the oracle, on real runners, and with everything that can go wrong."""

from __future__ import annotations

import glob
import json
import logging
import os
import re
from dataclasses import replace
from pathlib import Path

import apache_beam as beam
import numpy as np
import pyarrow as pa
import pytest
from apache_beam.options.pipeline_options import PipelineOptions

from benchmarks.baselines.heatmap_methods import BASELINES, CountMin
from benchmarks.evaluation.in_memory import Rows, run_in_memory
from sfumato.pipelines.command_line import cli
from sfumato.pipelines.frame.inputs import match_files
from sfumato.pipelines.frame.run_key import key_and_metadata
from sfumato.pipelines.heatmap import HeatmapJob
from sfumato.pipelines.runners.runner_settings import LocalRunner
from sfumato.schemas.locations import LocationColumns
from sfumato.schemas.region import Grid
from sfumato.transforms.counting import transform
from sfumato.transforms.counting.methods import METHODS, Adaptive
from sfumato.transforms.counting.parameters import CountParameters
from sfumato.transforms.counting.state import Estimate
from sfumato.transforms.heatmap.request import HeatmapRequest, heatmap_parameters
from sfumato.transforms.heatmap.transform import CountHeatmap, bind_key
from sfumato.transforms.privacy.keys import FixedSecret, RunKey
from sfumato.transforms.release.published_release import open_release
from tests.conftest import REGION, make_logs, write_files
from tests.digests import numbers_in, page_text
from tests.jobs import oracle

KEY = RunKey.derive(FixedSecret(b"job tests" * 3), {"job": "heatmap"})


PAPER = {"schedule": "paper", "estimator": "last"}


PAPER_ONCE = Adaptive(schedule="paper", estimator="last", max_sub_queries=1)


SMALL = {"depth": 6, "shard_size": 300, "dropout": 0.4, "epsilon": 4.0}


def run_state(
    pattern: str,
    parameters: CountParameters,
    columns: LocationColumns | None = None,
    prior: Estimate | None = None,
    options: tuple[str, ...] = (),
):
    """The final state of the transform on a real runner."""
    paths = [file.path for file in match_files(pattern)]
    out = Path(pattern).parent / "state.pickle"
    with beam.Pipeline(runner=LocalRunner(), options=PipelineOptions(list(options))) as root:
        heatmap = CountHeatmap(REGION, parameters, KEY, columns or LocationColumns(), prior=prior)
        _ = root | beam.Create(paths) | heatmap | beam.Map(_keep, str(out))
    found = beam.coders.registry.get_coder(object).decode(out.read_bytes())
    out.unlink()
    return found


def _keep(state, path: str) -> None:
    Path(path).write_bytes(beam.coders.registry.get_coder(object).encode(state))


def assert_same(state, expected) -> None:
    assert state.population == expected.population
    assert state.shard_plan == expected.shard_plan
    assert state.budget == expected.budget
    assert len(state.results) == len(expected.results)
    for mine, theirs in zip(state.results, expected.results, strict=True):
        assert mine.encoding == theirs.encoding
        assert mine.entry() == theirs.entry()
        assert np.array_equal(mine.counts, theirs.counts)


@pytest.mark.parametrize(
    ("users", "records", "files", "kind", "changes"),
    [
        (3000, 1, 3, "int", {}),
        (1500, 4, 5, "string", {}),
        (1500, 2, 2, "bytes", {"population": 1500}),
        (20_000, 1, 3, "int", {"shard_size": 100, "dropout": 0.2, "depth": 10}),  # 200 shards in 4 shard groups
        (3000, 1, 3, "int", {"modulus": 150, "allow_overflow": True}),
        (3000, 2, 3, "dictionary", {"trust": "split"}),
        (3000, 2, 3, "int", {"trust": "central", "noise": "gaussian", "delta": 1e-6}),
        (3000, 2, 3, "int", {"noise": "gaussian", "delta": 1e-6, "simulated_dropout": 0.2}),
        (1500, 5, 3, "string", {"contribution": "all", "gamma": 7, "users": 900, "population": 1500}),
        (1500, 3, 2, "int", {"contribution": "all", "gamma": 10, "noise_source": "client"}),
        (1500, 5, 3, "int", {**PAPER, "contribution": "all", "gamma": 100, "simulated_dropout": 0.2}),
        (3000, 1, 3, "int", {"colluding": 0.3, "simulated_dropout": 0.2}),
        (1500, 1, 3, "int", {"colluding": 0.3, "noise_source": "client"}),
        (3000, 2, 4, "int", {"shards": "disjoint", "depth": 12, "simulated_dropout": 0.2}),  # three parts
    ],
)
def test_heatmap_equals_the_oracle(logs, caplog, users, records, files, kind, changes) -> None:
    pattern = logs(users, records, files, kind=kind)
    parameters = heatmap_parameters("adaptive", {**SMALL, **changes})
    with caplog.at_level(logging.WARNING):
        state = run_state(pattern, parameters)
    assert "coder" not in caplog.text.lower()
    assert len(state.results) >= 2
    assert_same(state, oracle.heatmap(pattern, REGION, parameters, KEY))


def test_a_retried_bundle_draws_the_same_noise(logs, monkeypatch: pytest.MonkeyPatch) -> None:
    """The shard-summing stage is done twice for every element, as after a lost worker; the second result is used."""
    pattern, parameters = logs(900), heatmap_parameters("adaptive", SMALL)
    expected = run_state(pattern, parameters)
    first_try, retries = transform.sum_shards, []

    def twice(group, *arguments):
        lost, kept = first_try(group, *arguments), first_try(group, *arguments)
        assert np.array_equal(lost.sums, kept.sums)
        retries.append(group.first)
        return kept

    monkeypatch.setattr(transform, "sum_shards", twice)
    assert_same(run_state(pattern, parameters), expected)
    assert len(retries) >= len(expected.results)


@pytest.mark.slow
@pytest.mark.false_alarm(1e-8)
def test_user_with_a_thousand_rows_counts_once(tmp_path: Path) -> None:
    """Her thousand rows lie in one cell, and the total of the answer grows by what a user with one row adds."""
    table = make_logs(1000, 1, seed=3)
    parameters = CountParameters(depth=4, shard_size=1000, dropout=0.5, population=1000, epsilon=30, method=PAPER_ONCE)

    def total(rows: int, name: str) -> float:
        values = {"user_id": [10**10] * rows, "latitude": [50.5] * rows, "longitude": [0.1] * rows}
        extra = pa.table(values, schema=table.schema)
        pattern = write_files(pa.concat_tables([table, extra]), tmp_path / name, 4)
        return float(run_state(pattern, parameters).results[0].counts.sum())

    # At epsilon 30 noise is 0 but for a probability of 1e-12 an entry.
    assert (total(0, "none"), total(1, "one"), total(1000, "thousand")) == (1000, 1001, 1001)


def command(pattern: str, output: Path, *more: str) -> list[str]:
    return [
        "heatmap", "--input", pattern, "--output", str(output), "--region", "-1,50,1,51", "--depth", "6",
        "--epsilon", "4", "--shard_size", "300", "--dropout", "0.4", "--seed", "1", *more,
    ]  # fmt: skip


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("published")
    pattern = write_files(make_logs(3000, 2, seed=0), folder / "logs", 3)
    assert cli.main(command(pattern, folder / "out")) == 0
    return folder / "out"


@pytest.mark.false_alarm(1e-9)
def test_release_holds_what_its_manifest_says(published: Path) -> None:
    """The count of the users has noise too, of deviation 1 / (sqrt(2) sinh(0.04 / 2)) = 35: ten are 1e-9 off."""
    release = open_release(published)
    tables = ["answers.parquet", "cells.parquet", "density.npy", "totals.parquet"]
    assert set(os.listdir(published)) == {*tables, "basemap.json", "heatmap.png", "index.html", "manifest.json"}
    manifest, privacy = release.manifest, release.manifest["privacy"]
    # Ten shards: each user answers one sub-query, with all that the noisy user count has left.
    assert privacy["composition"] == "parallel"
    assert sum(one["shards"] for one in privacy["sub_queries"]) == privacy["cohort"]["shards"]
    charges = {one["epsilon"] for one in privacy["sub_queries"]}
    assert len(charges) == 1
    assert charges.pop() + privacy["population"]["epsilon"] == 4.0
    assert privacy["epsilon_spent"] == privacy["epsilon"] == 4.0
    assert privacy["unit"] == "user"
    assert privacy["randomness"] == {"source": "seed", "safe": False}
    assert any("protects nobody" in warning for warning in manifest["warnings"])
    assert manifest["communication"]["vector_entries"] == max(q["vector_length"] for q in privacy["sub_queries"])
    assert manifest["communication"]["bits_per_client"] == max(
        q["vector_length"] * (q["modulus"] - 1).bit_length() for q in privacy["sub_queries"]
    )
    assert (release.cells["stddev"] > 0).all()
    assert (release.cells["count"] >= 0).all()
    assert release.density.shape == (64, 64)
    assert release.density.dtype == np.float64
    assert release.density.sum() == pytest.approx(1)
    noise = max(one["noise_stddev"] * one["vector_length"] ** 0.5 for one in privacy["sub_queries"])
    assert release.cells["count"].sum() == pytest.approx(3000, abs=10 * (noise + 35))
    page = (published / "index.html").read_text()
    assert manifest["release_id"] in page
    assert "http://" not in page.replace("http://www.w3.org", "")


def test_nothing_raw_is_in_the_release(published: Path) -> None:
    """6,000 rows of 3,000 users: neither figure, nor sizes of files, nor the key's secret, in manifest or page."""
    manifest = json.loads((published / "manifest.json").read_text())
    numbers = set(numbers_in(manifest))
    counted = manifest["privacy"]["population"]["users"]  # with noise, which now and then is 0
    assert counted in numbers
    assert not (numbers - {counted}) & {
        3000,
        6000,
        *(file.stat().st_size for file in (published.parent / "logs").iterdir()),
    }
    for name in ("manifest.json", "index.html"):
        text = page_text((published / name).read_text())
        assert "unsafe seed" not in text
        for file in (published.parent / "logs").iterdir():
            # As a number of its own: five digits may be anywhere among those of a fraction or a digest.
            assert not re.search(rf"(?<![\w.]){file.stat().st_size}(?!\w|\.\d)", text)


@pytest.mark.slow
def test_any_change_of_request_or_data_changes_the_key(logs, tmp_path: Path) -> None:
    files = match_files(logs(600))

    def subkey(files=files, release_id="r", **options) -> bytes:
        own = {"input": "in", "output": "out", "region": REGION, "seed": 1, "release_id": release_id}
        job = HeatmapJob.of(HeatmapRequest.of({**own, **options}))
        return key_and_metadata(job, files, local=True)[0].subkey("x")

    first = files[0]
    keys = [
        subkey(),
        subkey(release_id="s"),
        subkey(epsilon=1.1),
        subkey(schedule="paper"),
        subkey(user_id_column="u"),
        subkey(files=files[1:]),
        subkey(files=[replace(first, size=first.size + 1), *files[1:]]),
        subkey(files=[replace(first, changed=first.changed + 1), *files[1:]]),
    ]
    assert len(set(keys)) == len(keys)
    assert subkey() == keys[0]


def test_wrong_population_publishes_no_map(logs, tmp_path: Path, capsys) -> None:
    arguments = command(logs(100), tmp_path / "out", "--shard_size", "10000", "--population", "10000")
    assert cli.main(arguments) == 1
    assert "--population" in capsys.readouterr().err
    assert not (tmp_path / "out" / "cells.parquet").exists()
    assert json.loads((tmp_path / "out" / "manifest.json").read_text())["status"] == "refused"


@pytest.mark.false_alarm(1e-9)
def test_few_users_have_a_release(logs, tmp_path: Path) -> None:
    """One shard, planned for a noisy number of users that may be far off: Laplace noise, 15 deviations."""
    assert cli.main(command(logs(1), tmp_path / "out", "--shard_size", "10000")) == 0
    manifest = open_release(tmp_path / "out").manifest
    assert all(one["shards_lost"] == 0 for one in manifest["privacy"]["sub_queries"])
    results = manifest["results"]
    assert abs(results["users"] - 1) < 15 * results["users_stddev"]


@pytest.mark.slow
@pytest.mark.false_alarm(1e-9)
def test_lost_shards_are_reported(logs, tmp_path: Path) -> None:
    """300 users a shard with 4% tolerance: about a quarter of 90 shards is lost to their varying sizes.

    In the paper's participation model; no planned shard is lost. None at all would be lost with a probability of 6e-12.
    """
    pattern, manifests = logs(27_000), {}
    for model in ("planned", "paper"):
        options = ("--dropout", "0.04", "--participation", model)
        assert cli.main(command(pattern, tmp_path / model, *options)) == 0
        manifests[model] = open_release(tmp_path / model).manifest
    lost = {name: [one["shards_lost"] for one in it["privacy"]["sub_queries"]] for name, it in manifests.items()}
    assert set(lost["planned"]) == {0}
    assert 0 < lost["paper"][-1] < 60
    shards = manifests["paper"]["privacy"]["cohort"]["shards"]  # about 90, by the noisy number of users
    # The plan may query each shard in one sub-query, or all shards in both.
    is_disjoint = sum(one["shards"] for one in manifests["paper"]["privacy"]["sub_queries"]) == shards
    stated = sum(lost["paper"]) if is_disjoint else lost["paper"][-1]
    assert any(f"{stated} of {shards} shards" in warning for warning in manifests["paper"]["warnings"])


@pytest.mark.false_alarm(1e-8)
@pytest.mark.parametrize(("bad", "status"), [(150, 0), (1234, 1)])
def test_users_without_usable_record_are_tolerated_to_a_degree(tmp_path: Path, capsys, bad: int, status: int) -> None:
    """150 of 2,000 where half may be, 1,234 where a tenth may: the noise of deviation 35 is far less.

    The error states no exact count.
    """
    table = make_logs(2000, 1, 0)
    latitude = table["latitude"].to_numpy().copy()
    latitude[:bad] = np.nan
    pattern = write_files(table.set_column(1, "latitude", pa.array(latitude)), tmp_path / "logs", 2)
    assert cli.main(command(pattern, tmp_path / "out", *(() if status else ("--max_bad_fraction", "0.5")))) == status
    if status:
        errors = [capsys.readouterr().err]
        for seed in ("2", "3", "4", "5"):  # a noisy count may be the exact one, but not each time
            assert cli.main(command(pattern, tmp_path / "more", "--overwrite", "--seed", seed)) == status
            errors.append(capsys.readouterr().err)
        assert all("--max_bad_fraction" in error for error in errors)
        assert not all("1234" in error or "1,234" in error for error in errors)
        assert {path.name for path in (tmp_path / "out").iterdir()} == {"index.html", "manifest.json"}


def test_damaged_file_is_named_and_nothing_is_published(logs, tmp_path: Path, capsys) -> None:
    pattern = logs(2000, 1, 3)
    victim = Path(pattern).parent / "log-1.parquet"
    whole = victim.read_bytes()
    # Damage inside, with the footer intact, shows only when the data are read.
    inside = whole[:100] + bytes(len(whole) // 3) + whole[100 + len(whole) // 3 :]
    for damaged in (whole[: len(whole) // 2], inside):
        victim.write_bytes(damaged)
        assert cli.main(command(pattern, tmp_path / "out")) == 1
        assert "log-1.parquet" in capsys.readouterr().err
    assert sorted(p.name for p in tmp_path.iterdir()) == ["logs-int-0"]


METHODS_SMALL = {"depth": 5, "shard_size": 300, "dropout": 0.4, "epsilon": 4.0, "population": 1500}


def rows_of(pattern: str, parameters: CountParameters) -> Rows:
    key = bind_key(KEY, REGION, parameters, LocationColumns())
    grid, paths = Grid(REGION, parameters.depth), sorted(glob.glob(pattern))
    return Rows.read(paths, grid, key.subkey("users"), total=parameters.distribution_gamma)


@pytest.mark.parametrize(
    ("method", "trust"),
    [
        *((name, "secagg") for name in (*METHODS, *BASELINES)),
        *((name, trust) for name in METHODS for trust in ("central", "split")),
    ],
)
def test_every_method_equals_its_stages_in_memory(baselines: None, logs, method: str, trust: str) -> None:
    pattern = logs(1500, 4, 3)
    own = CountMin(sketch_width=50, sketch_rows=3) if method == "count_min" else METHODS[method]()
    parameters = CountParameters(**METHODS_SMALL, trust=trust, method=own)
    state = run_state(pattern, parameters)
    key = bind_key(KEY, REGION, parameters, LocationColumns())
    assert_same(state, run_in_memory(rows_of(pattern, parameters), 1500, parameters, key))
    assert len(state.results) <= parameters.method.most_sub_queries(parameters.depth)
    assert state.budget.spent <= 4.0
    estimate = parameters.method.decode(state, parameters.depth)
    assert np.isfinite(estimate.counts).all()
    assert (estimate.stddev >= 0).all()


@pytest.mark.parametrize("method", ["emd", "count_min"])
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
