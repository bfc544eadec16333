"""Small logs of a city, and every job that runs a pipeline on this machine, as command lines."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import shapely
import yaml

from tests.conftest import write_files
from tests.seeds import seeded_rng
from tests.unit.zones.polygons import write_geojson

REGION = ["--region", "-122.51,37.70,-122.35,37.82"]
SECRET = hashlib.sha256(b"the key of a city").digest()


def make_city(folder: Path, users: int) -> str:
    """Logs in four files, queries and a key; returns the logs' pattern."""
    rng = seeded_rng(0)
    ids = np.repeat(rng.choice(10**9, users, replace=False), 2)
    place = np.clip(rng.normal([-122.43, 37.76], 0.02, (len(ids), 2)), [-122.51, 37.70], [-122.351, 37.819])
    table = {"user_id": ids, "latitude": place[:, 1], "longitude": place[:, 0], "kind": [f"k{i % 5}" for i in ids]}
    table |= {"to_latitude": np.roll(place[:, 1], 7), "to_longitude": np.roll(place[:, 0], 7)}
    pattern = write_files(pa.table(table), folder / "logs", 4)
    write_files(pa.table(table), folder / "days" / "dt=2026-11-20", 4)
    pq.write_table(pa.table({"x": [-122.42], "y": [37.77], "size": [100]}), folder / "squares.parquet")
    squares = [
        (
            shapely.box(-122.51 + 0.04 * i, 37.70 + 0.04 * j, -122.47 + 0.04 * i, 37.74 + 0.04 * j),
            {"tract": 3 * i + j, "county": i},
        )
        for i in range(4)
        for j in range(3)
    ]
    write_geojson(folder / "tracts.geojson", squares)
    (folder / "key").write_bytes(SECRET)
    (folder / "key").chmod(0o600)
    options = {"region": [-122.51, 37.70, -122.35, 37.82], "depth": 6, "epsilon": 4, "shard_size": 300}
    refresh = {
        "dataset": "city", "input": "days", "output": "published", "ledger": "ledger.db", "key_file": "key",
        "budget": [{"epsilon": 4, "days": 1}], "options": options,
    }  # fmt: skip
    (folder / "refresh.yaml").write_text(yaml.safe_dump(refresh))
    return pattern


def local_jobs(folder: Path, output: Path) -> dict[str, list[str]]:
    """A quick run of every job that runs a pipeline, over what make_city made."""
    logs = ["--input", str(folder / "logs" / "*.parquet"), "--key_file", str(folder / "key"), "--release_id", "monday"]
    heatmap = ["--depth", "6", "--epsilon", "4", "--shard_size", "300"]
    runs = {
        "synth": ["synth", "--users", "500"],
        "heatmap": ["heatmap", *logs, *REGION, *heatmap],
        "histogram": ["histogram", *logs, "--column", "kind"],
        "hotspots": ["hotspots", *logs, *REGION, "--depth", "4", "--levels", "2"],
        "quantiles": ["quantiles", *logs, "--column", "latitude", "--range", "37,38", "--bits", "4"],
        "moments": ["moments", *logs, "--column", "latitude", "--bits", "8", "--epsilon", "2"],
        "flows": [
            *("flows", *logs, *REGION, "--origin", "longitude,latitude"),
            *("--destination", "to_longitude,to_latitude"),
        ],
        "zones": ["zones", *logs, "--zones", str(folder / "tracts.geojson"), "--levels", "tract,county"],
        "model": ["ranges", "build", *logs, *REGION, "--method", "grid", "--epsilon", "1"],
        "answers.parquet": [
            "ranges",
            "answer",
            "--model",
            str(output / "model"),
            "--queries",
            str(folder / "squares.parquet"),
        ],
    }
    commands = {name: [*arguments, "--output", str(output / name)] for name, arguments in runs.items()}
    return {**commands, "refresh": ["refresh", "--config", str(folder / "refresh.yaml"), "--date", "2026-11-20"]}
