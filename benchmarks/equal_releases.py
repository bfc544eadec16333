"""Do two versions of the code publish the same numbers under one key? For a change that must not change results.

    python -m benchmarks.equal_releases --output before.json
    python -m benchmarks.equal_releases --against before.json

Runs every publishing job on 20,000 synthetic users with a fixed key. Each table and array that is published becomes a
digest of its values, column by column in their order. Names of columns, fields and options do not count: the key is
fixed here, where a real run's key follows from the request and the code. Exit status 1 and a list if anything differs.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from benchmarks.baselines.heatmap_methods import BASELINES
from sfumato.pipelines.command_line import cli
from sfumato.transforms.counting.methods import METHODS
from sfumato.transforms.privacy import keys

REGION = ("--region", "-122.51,37.70,-122.35,37.82")
LOCAL = ("--bits", "16", "--fraction_bits", "8", "--epsilon", "4")
SAMPLED = ("--epsilon", "1", "--delta", "1e-6")
JOBS: dict[str, tuple[str, ...]] = {
    "heatmap": ("heatmap", *REGION, "--depth", "8", "--epsilon", "1"),
    "rates": ("heatmap", *REGION, "--depth", "7", "--epsilon", "2", "--auxiliary", "infected", "--refine", "interval"),
    "top": ("heatmap", *REGION, "--depth", "6", "--contribution", "all", "--shard_size", "2000"),
    "flat": ("heatmap", *REGION, "--depth", "5", "--method", "flat"),
    "hierarchical": ("heatmap", *REGION, "--depth", "5", "--method", "hierarchical"),
    "count_min": ("heatmap", *REGION, "--depth", "6", "--method", "count_min"),
    "adaptive_grid": ("heatmap", *REGION, "--depth", "6", "--method", "adaptive_grid"),
    "spatial_decomposition": ("heatmap", *REGION, "--depth", "6", "--method", "spatial_decomposition"),
    "emd": ("heatmap", *REGION, "--depth", "5", "--method", "emd", "--trust", "central"),
    "histogram": ("histogram", *REGION, "--cells", "6", *SAMPLED),
    "hotspots": ("hotspots", *REGION, "--depth", "7", "--top", "20", *SAMPLED),
    "quantiles": ("quantiles", "--column", "km_from_home", "--range", "0,30", "--quantiles", "0.1,0.5,0.9", *SAMPLED),
    "moments": ("moments", "--column", "km_from_home", *LOCAL, "--statistics", "mean,variance"),
    "moments_map": ("moments", "--column", "km_from_home", *LOCAL, "--cells", "2", *REGION),
    "ranges_grid": ("ranges", "build", *REGION, "--epsilon", "1", "--method", "grid"),
    "ranges_adaptive": ("ranges", "build", *REGION, "--epsilon", "1", "--method", "adaptive"),
}


def main() -> int:
    """Runs the jobs, then writes or compares their digests."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", metavar="FILE", help="write the digests here")
    parser.add_argument("--against", metavar="FILE", help="compare with these digests")
    parser.add_argument("--jobs", metavar="NAMES", help="of these alone, separated by commas")
    options = parser.parse_args()
    METHODS.update(BASELINES)
    names = options.jobs.split(",") if options.jobs else list(JOBS)
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        fix_key(patch)
        found = digests(Path(folder), names)
    if options.output:
        Path(options.output).write_text(json.dumps(found, indent=1) + "\n")
    if not options.against:
        return 0
    before = json.loads(Path(options.against).read_text())
    differing = [name for name in names if sorted(found[name].values()) != sorted(before[name].values())]
    print(f"{len(names) - len(differing)} of {len(names)} releases hold the same numbers", *differing, sep="\n  ")
    return 1 if differing else 0


def fix_key(patch: pytest.MonkeyPatch) -> None:
    """Makes a run's key follow from the values that it is bound to beneath the request, and from no name."""
    patch.setattr(
        keys, "_digest", lambda context, metadata: hashlib.sha256(context + repr(_values(metadata)).encode()).digest()
    )
    derive = keys.RunKey.derive.__func__  # type: ignore[attr-defined]
    patch.setattr(keys.RunKey, "derive", classmethod(lambda cls, secret, _: derive(cls, secret, {"fixed": 1})))


def _values(metadata: Any) -> Any:
    if isinstance(metadata, Mapping):
        return [_values(value) for value in metadata.values()]
    return [_values(value) for value in metadata] if isinstance(metadata, list | tuple) else metadata


def digests(folder: Path, names: list[str]) -> dict[str, dict[str, str]]:
    """The digest of each table and array of each job's release."""
    logs = ["--input", str(folder / "logs" / "*.parquet")]
    write_logs(folder / "logs")
    found = {}
    for name in names:
        command, output = JOBS[name], folder / name
        split = 2 if command[0] == "ranges" else 1
        status = cli.main([*command[:split], *logs, "--output", str(output), "--seed", "3", *command[split:]])
        if status:
            raise SystemExit(f"{name}: exit status {status}")
        found[name] = {path.name: digest_of(path) for path in sorted(output.iterdir()) if digest_of(path)}
    return found


def write_logs(folder: Path) -> None:
    """Two files of 20,000 users with three records each around eight centres."""
    folder.mkdir()
    rng = np.random.default_rng(7)
    users, centre = np.repeat(np.arange(20_000), 3), rng.integers(0, 8, 60_000)
    table = pa.table(
        {
            "user_id": users,
            "latitude": np.linspace(37.72, 37.80, 8)[centre] + rng.normal(0, 0.006, len(users)),
            "longitude": np.linspace(-122.50, -122.36, 8)[centre] + rng.normal(0, 0.006, len(users)),
            "infected": rng.random(len(users)) < 0.05 + 0.02 * centre,
            "km_from_home": rng.exponential(4, len(users)),
        }
    )
    pq.write_table(table.slice(0, 25_000), folder / "0.parquet")
    pq.write_table(table.slice(25_000), folder / "1.parquet")


def digest_of(path: Path) -> str:
    """SHA-256 of the values in a Parquet, npy or npz file; empty for any other file."""
    if path.suffix == ".parquet":
        arrays = [repr(column.to_pylist()).encode() for column in pq.read_table(path).columns]
    elif path.suffix == ".npy":
        arrays = [np.load(path).tobytes()]
    elif path.suffix == ".npz":
        with np.load(path) as archive:
            arrays = sorted(archive[name].tobytes() for name in archive.files)
    else:
        return ""
    return hashlib.sha256(b"".join(hashlib.sha256(array).digest() for array in arrays)).hexdigest()


if __name__ == "__main__":
    sys.exit(main())
