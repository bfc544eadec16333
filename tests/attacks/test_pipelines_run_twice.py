"""An attack by a second run: a pipeline object that runs again draws the noise of its first run.

Over other data the difference of both results has no noise. So a key is bound to the files of its
first run, and a transform takes one batch of paths: a second window would be a second run.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import apache_beam as beam
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from apache_beam.testing import test_stream
from apache_beam.transforms import trigger, window

from sfumato.beam import (
    PrivateHeatmap,
    PrivateHistogram,
    PrivateHotspots,
    PrivateMoments,
    PrivateQuantiles,
    PrivateRanges,
)
from sfumato.schemas.errors import DataError, RequestError
from sfumato.transforms.privacy.keys import RunKey
from sfumato.transforms.privacy.secrets import entropy_secret
from tests.conftest import make_logs

REGION = (-1.0, 50.0, 1.0, 51.0)
LEAST = {"epsilon": 1.0, "delta": 1e-6}
TRANSFORMS: dict[str, Callable[..., beam.PTransform]] = {
    "heatmap": lambda **key: PrivateHeatmap(region=REGION, depth=2, method="flat", **key),
    "histogram": lambda **key: PrivateHistogram(column="kind", **LEAST, **key),
    "cells": lambda **key: PrivateHistogram(region=REGION, cells=2, **LEAST, **key),
    "hotspots": lambda **key: PrivateHotspots(region=REGION, depth=2, levels=2, **LEAST, **key),
    "quantiles": lambda **key: PrivateQuantiles(column="latitude", range=(50, 51), **LEAST, **key),
    "moments": lambda **key: PrivateMoments(column="latitude", epsilon=1.0, bits=6, **key),
    "ranges": lambda **key: PrivateRanges(region=REGION, method="grid", sizes=(500, 900), **key),
}


def write_log(path: Path, users: int) -> None:
    kinds = pa.array([f"k{number % 3}" for number in range(users)])
    pq.write_table(make_logs(users, 1, seed=1).append_column("kind", kinds), path)


def lines_of(rows: beam.PCollection, place: Path) -> None:
    """Writes rows as text; a model is not compared."""
    text = rows | "Text" >> beam.Map(lambda row: repr(row) if isinstance(row, dict) else "model")
    _ = text | "Write" >> beam.io.WriteToText(str(place), shard_name_template="")


@pytest.mark.slow
@pytest.mark.parametrize("name", TRANSFORMS)
def test_a_second_run_over_a_changed_file_yields_nothing(name: str, tmp_path: Path) -> None:
    log, place = tmp_path / "log.parquet", tmp_path / "rows"
    write_log(log, 400)
    pipeline = beam.Pipeline(runner="DirectRunner")
    lines_of(pipeline | beam.Create([str(log)]) | TRANSFORMS[name](), place)
    pipeline.run().wait_until_finish()
    first = sorted(place.read_text().splitlines())
    pipeline.run().wait_until_finish()  # a retry: the same noise over the same data
    assert sorted(place.read_text().splitlines()) == first
    place.unlink()
    write_log(log, 399)
    with pytest.raises(DataError, match="build the pipeline again"):
        pipeline.run().wait_until_finish()
    assert not place.exists()


@pytest.mark.slow
def test_a_kept_key_has_one_input_in_a_process(tmp_path: Path) -> None:
    """Also if two pipelines were built with it. Another key reads the other files."""
    key = RunKey.derive(entropy_secret(), {})
    for number in (1, 2):
        write_log(tmp_path / f"{number}.parquet", 400)

    def run(names: list[str], key: RunKey) -> None:
        with beam.Pipeline(runner="DirectRunner") as pipeline:
            paths = pipeline | beam.Create([str(tmp_path / f"{name}.parquet") for name in names])
            lines_of(paths | TRANSFORMS["histogram"](key=key), tmp_path / "rows")

    run(["1", "2"], key)
    run(["2", "1"], key)
    for others in (["1"], ["1", "1", "2"], []):
        with pytest.raises(DataError, match="other files"):
            run(others, key)
    run(["1"], RunKey.derive(entropy_secret(), {}))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    pipeline = beam.Pipeline(runner="DirectRunner")
    _ = pipeline | beam.Create([str(tmp_path / "none.parquet")]) | TRANSFORMS["histogram"]()
    with pytest.raises(DataError, match=r"none\.parquet: cannot be opened"):
        pipeline.run().wait_until_finish()


WINDOWS: dict[str, Any] = {
    "windows": beam.WindowInto(window.FixedWindows(60)),
    "trigger": beam.WindowInto(
        window.GlobalWindows(),
        trigger=trigger.Repeatedly(trigger.AfterCount(1)),
        accumulation_mode=trigger.AccumulationMode.ACCUMULATING,
    ),
}


@pytest.mark.parametrize("name", TRANSFORMS)
def test_several_windows_firings_or_endless_paths_are_refused(name: str) -> None:
    for kind, several in WINDOWS.items():
        paths = beam.Pipeline() | beam.Create(["log.parquet"]) | several
        with pytest.raises(RequestError, match="global window"):
            _ = paths | kind >> TRANSFORMS[name]()
    endless = beam.Pipeline() | test_stream.TestStream().add_elements(["log.parquet"])
    assert not endless.is_bounded
    with pytest.raises(RequestError, match="bounded"):
        _ = endless | TRANSFORMS[name]()
    again = beam.Pipeline() | beam.Create(["log.parquet"]) | WINDOWS["windows"]
    _ = again | "Again" >> beam.WindowInto(window.GlobalWindows()) | TRANSFORMS[name]()
