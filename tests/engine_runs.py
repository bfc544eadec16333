"""Every publishing job on every engine: the same bytes as the DirectRunner's?

    SFUMATO_FLINK_JAR=build/flink/job-server.jar SFUMATO_SPARK_JAR=build/spark/job-server.jar \
      SFUMATO_PRISM=build/prism/prism python -m tests.engines

prints the table of docs/how_to/runners.md. `make flink-jar spark-jar prism` makes the files. Each engine is started
once, and all jobs run on it. The comparison leaves out when a release was made.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import platform
import shutil
import socket
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import shapely

from sfumato.pipelines.command_line import cli
from sfumato.pipelines.runners.job_servers import RUNNERS, OneJobRunner
from sfumato.pipelines.runners.runner_settings import runner_settings
from sfumato.transforms.observability.text_tables import markdown_table
from tests.conftest import make_logs, write_files
from tests.digests import undated
from tests.keys import write_key
from tests.seeds import seeded_rng
from tests.unit.zones.polygons import write_geojson

ENGINES: Mapping[str, type[OneJobRunner]] = {name.removesuffix("runner"): kind for name, kind in RUNNERS.items()}
REGION = ("--region", "-1,50,1,51")
SMALL = (*REGION, "--depth", "6", "--epsilon", "4", "--shard_size", "300")
NORTH = ("--column", "latitude", "--bits", "12", "--fraction_bits", "4")
CENTRAL = ("--trust", "central")
TRIP = ("--origin", "longitude,latitude", "--destination", "to_longitude,to_latitude")
NIGHT = (
    "--dataset",
    "city",
    "--period",
    "2026-11-20",
    "--night",
    "2026-11-20",
    "--budget",
    "4/30d",
    "--rotation",
    "2/3",
)
# Each job of the registry that publishes, with the options that lead through another part of its graph.
RELEASES: Mapping[str, tuple[str, ...]] = {
    "heatmap": ("heatmap", *SMALL, "--dropout", "0.4"),
    "heatmap, all locations": ("heatmap", *SMALL, "--contribution", "all"),
    "heatmap, rates": ("heatmap", *SMALL, "--auxiliary", "infected", "--refine", "interval"),
    "heatmap, slots": ("heatmap", *SMALL, "--time_column", "time", "--slots", "0,8,16,24"),
    "heatmap, a night of a rotation": ("heatmap", *SMALL, *NIGHT),
    "heatmap, central": ("heatmap", *SMALL, *CENTRAL),
    "heatmap, flat": ("heatmap", *REGION, "--depth", "5", "--method", "flat"),
    "zones": ("zones", "--zones", "tracts.geojson", "--id_column", "tract", "--epsilon", "1"),
    "zones, secagg": ("zones", "--zones", "tracts.geojson", "--levels", "tract,county", "--trust", "secagg"),
    "flows": ("flows", *REGION, *TRIP, "--epsilon", "2"),
    "histogram": ("histogram", "--column", "kind"),
    "histogram of cells": ("histogram", *REGION, "--cells", "5"),
    "histogram, central": ("histogram", "--column", "kind", *CENTRAL, "--epsilon", "1", "--delta", "1e-6"),
    "hotspots": ("hotspots", *REGION, "--depth", "4", "--levels", "2"),
    "hotspots, central": ("hotspots", *REGION, "--depth", "4", *CENTRAL, "--epsilon", "1", "--delta", "1e-6"),
    "quantiles": ("quantiles", "--column", "latitude", "--range", "50,51", "--method", "interactive", "--bits", "4"),
    "quantiles, central": ("quantiles", "--column", "latitude", "--range", "50,51", *CENTRAL, "--epsilon", "1"),
    "moments": ("moments", *NORTH, "--statistics", "mean,variance", "--epsilon", "2"),
    "moments of cells, secagg": ("moments", *NORTH, "--trust", "secagg", "--no_dp", "--cells", "2", *REGION),
    "moments, central": ("moments", "--column", "latitude", "--range", "50,51", *CENTRAL, "--epsilon", "2"),
    "ranges build": ("ranges build", *REGION, "--epsilon", "1", "--method", "grid", "--sizes", "1000,5000"),
}  # fmt: skip


def write_city(folder: Path) -> None:
    """Logs of 3,000 users in four files of small row groups, zones, and a key."""
    table = make_logs(3000, 2, seed=0)
    rng, rows = seeded_rng(1), table.num_rows
    kinds = rng.geometric(0.2, rows)
    added: dict[str, Any] = {
        "kind": pa.array([f"kind-{'abc'[k % 3]}-{k}" for k in kinds.tolist()]),
        "infected": rng.random(rows) < 0.1,
        "time": pa.array(np.datetime64("2026-11-20") + rng.integers(0, 86_400, rows).astype("timedelta64[s]")),
        "to_latitude": np.roll(table["latitude"].to_numpy(), 7),
        "to_longitude": np.roll(table["longitude"].to_numpy(), 7),
    }
    for name, column in added.items():
        table = table.append_column(name, pa.array(column))
    write_files(table, folder / "logs", 4)
    squares = [
        (shapely.box(-1 + i / 2, 50 + j / 2, -0.5 + i / 2, 50.5 + j / 2), {"tract": 2 * i + j, "county": i})
        for i in range(4)
        for j in range(2)
    ]
    write_geojson(folder / "tracts.geojson", squares)
    write_key(folder / "key")


def command(release: str, folder: Path, output: Path, *more: str, logs: str = "logs") -> list[str]:
    """The command line of a release over what write_city wrote. A ledger starts anew."""
    job, *options = RELEASES[release]
    options = [str(folder / one) if one.endswith(".geojson") else one for one in options]
    if "--rotation" in options:
        (folder / "ledger.db").unlink(missing_ok=True)
        options += ["--ledger", str(folder / "ledger.db")]
    return [
        *job.split(), "--input", str(folder / logs / "*.parquet"), "--output", str(output),
        "--key_file", str(folder / "key"), "--release_id", "monday", *options, *more,
    ]  # fmt: skip


def differences(one: Path, two: Path) -> list[str]:
    """Names of the files that one release alone has or that differ by a byte.

    The time of creation does not count, nor does the hash of the charge in the ledger, which also states a time.
    """
    first, second = map(_untimed, (one, two))
    return sorted(name for name in first.keys() | second.keys() if first.get(name) != second.get(name))


def _untimed(release: Path) -> dict[str, bytes]:
    charge = json.loads((release / "manifest.json").read_text()).get("ledger")
    known = charge["hash"].encode() if charge else b"no charge"
    return {name: content.replace(known, b"") for name, content in undated(release).items()}


def missing(engine: str) -> str | None:
    """What this machine lacks for an engine; None if nothing."""
    one = ENGINES[engine].engine
    if one.needs_java and shutil.which("java") is None:
        return f"{one.name} needs Java: there is no `java` here"
    if not os.path.isfile(os.environ.get(one.variable, "")):
        return f"{one.name} needs its job server: {one.variable} names no file (`make {one.target}` makes one)"
    return None


@contextmanager
def started(engine: str) -> Iterator[list[str]]:
    """A running job server of the engine; the options of jobs that run on it. For made-up data: all can reach it."""
    with socket.create_server(("127.0.0.1", 0)) as found:
        port = found.getsockname()[1]
    settings = runner_settings(engine, ["--open_job_server", f"--job_port={port}"])
    runner = settings.runner
    assert isinstance(runner, OneJobRunner)
    try:
        runner.default_job_server(settings.options).start()
        yield ["--runner_config", engine, "--job_endpoint", f"localhost:{port}"]
    finally:
        runner.stop()


def measured(engines: Mapping[str, list[str]], folder: Path) -> list[list[str]]:
    """A row for each release: its name, and for each engine `same` or what differs, with the seconds of the job."""
    rows = []
    for number, release in enumerate(RELEASES):
        row, direct = [release], folder / "direct" / str(number)
        for name, options in {"direct": ["--runner_config", "direct"], **engines}.items():
            start = time.perf_counter()
            with contextlib.redirect_stdout(io.StringIO()):
                status = cli.main(command(release, folder, folder / name / str(number), *options))
            seconds = f"{time.perf_counter() - start:.1f}"
            if status:
                row.append(f"exit status {status}")
            else:
                other = differences(direct, folder / name / str(number))
                row.append(seconds if name == "direct" else f"{', '.join(other) or 'same'}, {seconds}")
        rows.append(row)
    return rows


def main() -> int:
    """Prints the table. Exit status 1 if a release differs or fails."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.parse_args()
    lacking = list(filter(None, map(missing, ENGINES)))
    if lacking:
        raise SystemExit("\n".join(lacking))
    with tempfile.TemporaryDirectory() as place, ExitStack() as stack:
        write_city(Path(place))
        rows = measured({name: stack.enter_context(started(name)) for name in ENGINES}, Path(place))
    sys.stdout.write(
        f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}; 6,000 rows in 4 files; the "
        "seconds of a job whose engine runs already\n\n"
    )
    sys.stdout.write(markdown_table([["release", "direct", *ENGINES], *rows], left=range(5)))
    good = all(cell.startswith("same, ") for row in rows for cell in row[2:])
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
