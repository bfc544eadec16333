"""The PTransforms of the public API: options, keys, rows."""

from __future__ import annotations

from pathlib import Path

import apache_beam as beam
import pytest
from apache_beam.runners.runner import PipelineRunner
from apache_beam.testing.util import assert_that

import sfumato
from sfumato.beam import (
    PrivateHeatmap,
    PrivateHistogram,
    PrivateHotspots,
    PrivateMoments,
    PrivateQuantiles,
    PrivateRanges,
    run_key,
)
from sfumato.pipelines.command_line import cli
from sfumato.transforms.privacy.keys import RunKey
from sfumato.transforms.privacy.secrets import seed_secret
from tests.jobs.api.conftest import REGION


class RemoteRunner(PipelineRunner):
    """A runner whose workers are other machines, as far as a transform can know."""


def counts_of(transforms: list[PrivateHeatmap], city: Path, folder: Path) -> list[str]:
    """The cells' counts by each transform, in one pipeline."""
    with beam.Pipeline(runner="FnApiRunner") as pipeline:
        files = pipeline | beam.Create([str(path) for path in (city / "logs").glob("*.parquet")])
        for number, transform in enumerate(transforms):
            rows = files | f"Heatmap{number}" >> transform
            lines = rows | f"Line{number}" >> beam.Map(lambda row: f"{row['cell_id']} {row['count']!r}")
            _ = lines | f"Write{number}" >> beam.io.WriteToText(str(folder / str(number)), shard_name_template="")
    return [(folder / str(number)).read_text() for number in range(len(transforms))]


def heatmap(**options) -> PrivateHeatmap:
    return PrivateHeatmap(region=REGION, depth=2, method="flat", **options)


@pytest.mark.slow
def test_each_use_draws_its_own_noise(city: Path, tmp_path: Path):
    transform = heatmap()
    first, second = counts_of([transform, transform], city, tmp_path)
    assert len(first.splitlines()) == 16
    assert first != second


@pytest.mark.slow
def test_one_key_draws_one_noise(city: Path, tmp_path: Path):
    key = RunKey.derive(seed_secret(1), {})
    first, second = counts_of([heatmap(key=key), heatmap(key=key)], city, tmp_path)
    assert first == second


def test_a_remote_runner_needs_a_kept_key(tmp_path: Path):
    remote = beam.Pipeline(runner=RemoteRunner())
    files = remote | beam.Create(["logs.parquet"])
    with pytest.raises(sfumato.RequestError, match="run_key"):
        _ = files | "Fresh" >> heatmap()
    assert cli.main(["key", "new", str(tmp_path / "key")]) == 0
    _ = files | "Kept" >> heatmap(key=run_key(str(tmp_path / "key"), "city, 2026-11-17"))


def test_keys_of_other_names_are_others(tmp_path: Path):
    assert cli.main(["key", "new", str(tmp_path / "key")]) == 0
    place = str(tmp_path / "key")
    assert run_key(place, "a").subkey("x") == run_key(place, "a").subkey("x") != run_key(place, "b").subkey("x")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: PrivateHeatmap(region=REGION, epsilon=-1), "epsilon"),
        (lambda: PrivateHeatmap(region=(1, 2, 3)), "region"),
        (lambda: PrivateHotspots(region=REGION, epsilon=1, delta=2), "delta"),
        (lambda: PrivateHotspots(region=REGION, epsilon=1, delta=1e-6, depth=3, levels=4), "levels: must be between"),
        (lambda: PrivateHotspots(region=REGION, epsilon=1, delta=1e-6, top=0), "top: must be a whole number >= 1"),
        (lambda: PrivateHotspots(region=REGION, epsilon=1, delta=1e-6, depth=99), "depth"),
        (lambda: PrivateHeatmap(region=REGION, options={"shard_sise": 9}), "shard_sise: .*did you mean shard_size?"),
        (lambda: PrivateHeatmap(region=REGION, options={"depth": 9}), "options: depth is an argument of its own"),
        (
            lambda: PrivateHeatmap(region=REGION, options={"shard_size": 9.5}),
            "shard_size: must be a whole number",
        ),
        (lambda: PrivateHistogram(epsilon=1, delta=1e-6), "column, region: "),
        (lambda: PrivateHistogram(epsilon=1, delta=1e-6, region=REGION), "cells: required with --region"),
        (lambda: PrivateHistogram(epsilon=1, delta=2, column="x"), "delta"),
        (lambda: PrivateHistogram(epsilon=1, delta=None, column="x"), "delta: required"),
        (lambda: PrivateHotspots(region=REGION, epsilon=None, delta=1e-6), "epsilon: required"),
        (lambda: PrivateQuantiles(column="x", range=(0, 1), epsilon=1, delta=1e-6, quantiles=(2,)), "quantiles"),
        (lambda: PrivateMoments(column="x", epsilon=1, bits=99), "bits"),
        (lambda: PrivateRanges(region=REGION, method="none"), "method"),
    ],
)
def test_wrong_options_are_refused_at_once(make, message: str):
    with pytest.raises(sfumato.RequestError, match=message):
        make()


def test_hotspots_are_those_of_the_job(city: Path):
    """Every level is there, and a cell of the second lies in one of the first."""
    with beam.Pipeline(runner="FnApiRunner") as pipeline:
        files = pipeline | beam.Create([str(path) for path in (city / "logs").glob("*.parquet")])
        rows = files | PrivateHotspots(region=REGION, depth=4, levels=2, top=5, epsilon=1.0, delta=1e-6)

        def check(found: list[dict[str, float]]) -> None:
            cells = {depth: [row for row in found if row["depth"] == depth] for depth in (2, 4)}
            assert 0 < len(cells[2]) <= 16
            assert 0 < len(cells[4]) <= 5
            assert len(found) == len(cells[2]) + len(cells[4])
            for row in cells[4]:
                assert any(
                    one["west"] <= row["west"] < one["east"] and one["south"] <= row["south"] < one["north"]
                    for one in cells[2]
                )

        assert_that(rows, check)


def test_histograms_count_cells(city: Path):
    with beam.Pipeline(runner="FnApiRunner") as pipeline:
        files = pipeline | beam.Create([str(path) for path in (city / "logs").glob("*.parquet")])
        rows = files | PrivateHistogram(region=REGION, cells=2, epsilon=1.0, delta=1e-6)

        def check(found: list[dict[str, float]]) -> None:
            assert 0 < len(found) <= 16
            assert {"cell_id", "count", "stddev", "geometry"} <= set(found[0])

        assert_that(rows, check)
