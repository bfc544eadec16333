"""The Python calls and the transforms keep what the command line keeps: no silent loss of privacy, charge or ledger."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import apache_beam as beam
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.runners.portability.prism_runner import PrismRunner
from apache_beam.testing import test_stream
from apache_beam.transforms import trigger, window
from apache_beam.transforms.external import ExternalTransform

from sfumato import jobs, runs
from sfumato.beam import (
    PrivateFlows,
    PrivateHeatmap,
    PrivateHistogram,
    PrivateHotspots,
    PrivateMoments,
    PrivateQuantiles,
    PrivateRanges,
    PrivateZones,
)
from sfumato.pipelines.command_line.run import request_of
from sfumato.pipelines.frame.elements import stays_here
from sfumato.releases import Release
from sfumato.schemas.errors import DataError, FormatError, NotAdmittedError, RequestError
from sfumato.schemas.ledger import Limit, Period
from sfumato.transforms.privacy.ledger.history import read_entries
from tests.conftest import make_logs
from tests.keys import write_key
from tests.rejections import rejects

REGION = (-1.0, 50.0, 1.0, 51.0)
REQUEST: dict[str, Any] = {"input": "x", "output": "y", "region": REGION}


class Runner(beam.runners.runner.PipelineRunner):
    """A runner that is never run."""


class DaskRunner(beam.runners.portability.fn_api_runner.FnApiRunner):
    """In place of Beam's, which is a kind of direct runner too and sends the graph to other machines."""


class InteractiveRunner(beam.runners.runner.PipelineRunner):
    """In place of Beam's, which runs another runner."""

    def __init__(self, underlying_runner: beam.runners.runner.PipelineRunner):
        self._underlying_runner = underlying_runner


def paths_on(runner: Any, *flags: str) -> beam.PCollection:
    return beam.Pipeline(runner=runner, options=PipelineOptions(list(flags))) | beam.Create(["x"])


def test_a_fresh_key_stays_in_this_process() -> None:
    heatmap, local = PrivateHeatmap(region=REGION, depth=2), beam.runners.portability.fn_api_runner.FnApiRunner()
    _ = paths_on(local) | heatmap
    _ = paths_on(InteractiveRunner(local)) | heatmap
    for runner in (Runner(), InteractiveRunner(Runner())):
        with rejects("key_file"):
            _ = paths_on(runner) | heatmap
    with rejects("runner"):
        _ = paths_on(DaskRunner()) | heatmap
    with rejects("direct_running_mode"):
        _ = paths_on(local, "--direct_running_mode=multi_processing") | heatmap


def test_the_direct_runner_starts_no_prism(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beam's DirectRunner hands a graph to Prism, a server, where it can. A fresh key would leave this process."""
    handed: list[beam.Pipeline] = []

    def run_pipeline(_: Any, pipeline: beam.Pipeline, options: PipelineOptions) -> None:
        handed.append(pipeline)
        raise RuntimeError("DirectRunner then runs it itself")

    monkeypatch.setattr(PrismRunner, "run_pipeline", run_pipeline)
    for transforms in ([], [PrivateHeatmap(region=REGION, depth=2)]):
        with beam.Pipeline(runner="DirectRunner") as pipeline:
            rows = pipeline | beam.Create([{"user_id": 1, "latitude": 50.5, "longitude": 0.0}])
            for transform in transforms:
                _ = rows | transform
        assert len(handed) == 1  # of the pipeline without a transform


def test_an_expansion_service_has_no_fresh_key(tmp_path: Path) -> None:
    """It returns the graph to another process, which may send it anywhere."""
    with ExternalTransform.outer_namespace("external_1"):
        assert not stays_here(paths_on("DirectRunner").pipeline)
        with rejects("key_file"):
            _ = paths_on("DirectRunner") | PrivateHeatmap(region=REGION, depth=2)
        write_key(tmp_path / "key")
        _ = paths_on("DirectRunner") | PrivateHeatmap(region=REGION, depth=2, key_file=tmp_path / "key")
    assert stays_here(paths_on("DirectRunner").pipeline)


@pytest.mark.parametrize(
    ("options", "option"),
    [
        ({"shard_size": True}, "shard_size"),
        ({"shardsize": 5000}, "shardsize"),
        ({"options": {"epsilon": 8.0}}, "options"),
        # Rows carry no warning that anyone can guess a seed. A ledger knows files again, and no rows.
        ({"seed": 1}, "seed"),
        ({"allow_reuse": True}, "allow_reuse"),
        ({"ledger": "ledger.db"}, "dataset"),
        ({"ledger": "ledger.db", "dataset": "city", "period": "2026-11-20"}, "key_file"),
        ({"where": "dt=2026-11-20"}, "where"),
        ({"timeline": "all"}, "timeline"),
        ({"dry_run": True}, "dry_run"),
    ],
)
def test_a_transform_refuses_options_of_a_run(options: dict[str, Any], option: str) -> None:
    with rejects(option):
        PrivateHeatmap(region=REGION, epsilon=1.0, depth=6, **options)
    PrivateHeatmap(region=REGION, depth=6, shard_size=5000, dropout=0)


@pytest.mark.parametrize("name", ["ledger", "timeline", "key_file", "weight_column", "auxiliary", "warm_start"])
def test_auto_is_a_value_where_nothing_is_chosen(name: str) -> None:
    """Otherwise `--ledger auto` would publish without a charge."""
    if name == "ledger":
        with rejects("dataset"):
            request_of("heatmap", {**REQUEST, name: "auto"})
    else:
        assert getattr(request_of("heatmap", {**REQUEST, name: "auto"}), name) in ("auto", ("auto",))
    with rejects("population"):
        request_of("heatmap", {**REQUEST, "population": "auto"})


def test_what_a_ledger_could_not_read_again_is_not_written() -> None:
    charged = {**REQUEST, "ledger": "l.db", "dataset": "city", "key_file": "k"}
    for day in (pd.Timestamp("2026-11-20 05:00"), datetime(2026, 11, 20, 5), date(2026, 11, 20), "2026-11-20"):
        period = request_of("heatmap", {**charged, "period": day}).period  # type: ignore[attr-defined]
        assert type(period.first) is type(period.last) is date
        assert period == Period.parse("2026-11-20")
    with rejects("period"):
        Period(pd.Timestamp("2026-11-20"), pd.Timestamp("2026-11-20"))
    limit = Limit.parse_all("1/1d")[0]
    for budget, found in ((["1/1d"], (limit,)), ([limit], (limit,)), ("1/1d", (limit,))):
        values = {**charged, "period": "2026-11-20", "budget": budget}
        assert request_of("heatmap", values).budget == found  # type: ignore[attr-defined]
    for budget in (["rubbish"], [5], [limit, limit]):
        with rejects("budget"):
            request_of("heatmap", {**charged, "period": "2026-11-20", "budget": budget})
    with pytest.raises(RequestError):
        Limit(Decimal("Infinity"), Decimal(0), 1)


def test_a_ledger_of_an_earlier_format_is_not_damaged() -> None:
    """Whoever believed that would begin a new ledger, and a new budget."""
    old = {"format": "sfumato-ledger/1", "index": 0, "mark": "x", "content": {}, "hash": "y"}
    with pytest.raises(FormatError, match=r"older version of sfumato .* do not start a new ledger"):
        read_entries([json.dumps(old).encode()])


def test_a_table_is_private_and_gone_in_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A data frame becomes a file, which must not outlive the run, whether it is published, refused or broken off."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    (tmp_path / "tmp").mkdir()
    seen: list[int] = []

    def run(job: str, values: dict[str, Any]) -> None:
        folder = Path(values["input"]).parent
        assert Path(values["input"]).is_file()
        seen.append(stat.S_IMODE(folder.stat().st_mode))
        raise failure

    monkeypatch.setattr(runs, "run", run)
    failures: list[BaseException] = [RequestError("x"), NotAdmittedError("x"), ValueError("x"), KeyboardInterrupt()]
    for failure in failures:
        with pytest.raises(type(failure)):
            jobs.histogram(pd.DataFrame({"user_id": [1]}), column="kind")
        assert not list((tmp_path / "tmp").iterdir())
    assert seen == [0o700] * len(failures)


def test_a_table_is_charged_as_its_file_would_be(tmp_path: Path) -> None:
    """The ledger knows a table again by its content, under another day or dataset too."""
    frame = pd.DataFrame({"user_id": range(3000), "kind": ["a", "b"] * 1500})
    write_key(tmp_path / "key")
    options = {
        "column": "kind", "epsilon": 1.0, "delta": 1e-6, "key_file": tmp_path / "key",
        "ledger": tmp_path / "ledger.db", "dataset": "taxis", "budget": "9:1e-3/9d",
    }  # fmt: skip
    first = jobs.histogram(frame, output=tmp_path / "a", release_id="a", period="2026-11-20", **options)
    again = jobs.histogram(frame, output=tmp_path / "a", release_id="a", period="2026-11-20", **options)
    assert again.digest == first.digest
    with pytest.raises(RequestError, match="charged"):
        jobs.histogram(frame, output=tmp_path / "b", release_id="b", period="2026-11-21", **options)


def test_a_release_without_digests_is_not_copied(tmp_path: Path) -> None:
    """A copy of the manifest alone would look like the release."""
    release = Release(str(tmp_path), {"release_id": "x", "job": "heatmap"}, "")
    with pytest.raises(RequestError, match="the manifest lists no files, so a copy cannot be checked"):
        release.save(tmp_path / "copy")
    with pytest.raises(RequestError, match="its manifest lists no files"):
        release.plot()
    assert not (tmp_path / "copy").exists()


@pytest.mark.slow
def test_the_next_run_removes_the_table_of_a_killed_process(tmp_path: Path) -> None:
    code = (
        "import os, signal, pandas, sfumato.runs as runs\n"
        "with runs._files_of('histogram', pandas.DataFrame({'user_id': [1]}), {'column': 'kind'}) as file:\n"
        "    assert os.path.exists(file)\n"
        "    print(os.path.dirname(file), flush=True)\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    place = {**os.environ, "TMPDIR": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", code], env=place, capture_output=True, text=True, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr
    left = Path(done.stdout.strip())
    assert left.parent == tmp_path
    assert left.stat().st_mode & 0o777 == 0o700
    sweeper = "import sfumato.pipelines.runners.folders as folders; folders.sweep()"
    subprocess.run([sys.executable, "-c", sweeper], env=place, check=True)
    assert not left.exists()


# An attack by a second run: a pipeline object that runs again draws the noise of its first run.
#
# Over other data the difference of both results has no noise. So a key is bound to the files of its first run, and a
# transform takes one batch of paths: a second window would be a second run.


LEAST = {"epsilon": 1.0, "delta": 1e-6}
TRANSFORMS: dict[str, Callable[..., beam.PTransform]] = {
    "heatmap": lambda **options: PrivateHeatmap(region=REGION, depth=2, method="flat", **options),
    "histogram": lambda **options: PrivateHistogram(column="kind", **LEAST, **options),
    "cells": lambda **options: PrivateHistogram(region=REGION, cells=2, **LEAST, **options),
    "hotspots": lambda **options: PrivateHotspots(region=REGION, depth=2, levels=2, **LEAST, **options),
    "quantiles": lambda **options: PrivateQuantiles(column="latitude", range=(50, 51), **LEAST, **options),
    "moments": lambda **options: PrivateMoments(column="latitude", epsilon=1.0, bits=6, **options),
    "ranges": lambda **options: PrivateRanges(region=REGION, method="grid", sizes=(500, 900), **options),
    "zones": lambda **options: PrivateZones(region=REGION, quadkey=8, **options),
    "flows": lambda **options: PrivateFlows(region=REGION, depth=2, time_column="time", **options),
}


def write_log(path: Path, users: int) -> None:
    kinds = pa.array([f"k{number % 3}" for number in range(users)])
    times = pa.array(range(users), pa.timestamp("s", "UTC"))
    pq.write_table(make_logs(users, 1, seed=1).append_column("kind", kinds).append_column("time", times), path)


def lines_of(rows: beam.PCollection, place: Path) -> None:
    """Writes rows as text; a model is not compared."""
    text = rows | "Text" >> beam.Map(lambda row: repr(row) if isinstance(row, beam.Row) else "model")
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
    """Also if two pipelines were built with it. Under another release id it reads the other files."""
    write_key(tmp_path / "key", os.urandom(32))  # new in this process
    for number in (1, 2):
        write_log(tmp_path / f"{number}.parquet", 400)

    def run(names: list[str], release_id: str) -> None:
        histogram = TRANSFORMS["histogram"](key_file=tmp_path / "key", release_id=release_id)
        with beam.Pipeline(runner="DirectRunner") as pipeline:
            paths = pipeline | beam.Create([str(tmp_path / f"{name}.parquet") for name in names])
            lines_of(paths | histogram, tmp_path / "rows")

    run(["1", "2"], "a")
    run(["2", "1"], "a")
    for others in (["1"], ["1", "1", "2"], []):
        with pytest.raises(DataError, match="other rows or files"):
            run(others, "a")
    run(["1"], "b")


def test_a_key_that_has_met_rows_draws_nothing_for_others(tmp_path: Path) -> None:
    """One user more, fewer, or elsewhere. The order and the bundles of rows are no difference."""
    write_key(tmp_path / "key", os.urandom(32))  # new in this process, so that it has met no input
    users = [{"user_id": f"u{number}", "kind": "ab"[number % 2]} for number in range(500)]

    def run(rows: list[Any]) -> list[str]:
        with beam.Pipeline(runner="DirectRunner") as pipeline:
            histogram = TRANSFORMS["histogram"](key_file=tmp_path / "key", release_id="a")
            lines_of(pipeline | beam.Create(rows) | histogram, tmp_path / "rows")
        return sorted((tmp_path / "rows").read_text().splitlines())

    first = run(users)
    assert run(users[::-1]) == run([pd.DataFrame(users[:100]), pd.DataFrame(users[100:])]) == first != []
    for others in (
        [*users, {"user_id": "one more", "kind": "a"}],
        users[1:],
        [*users[1:], {**users[0], "kind": "b"}],
    ):
        with pytest.raises(DataError, match="other rows or files"):
            run(others)


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
