"""Cost of each input format, as ratios to Parquet over the same records in the same run.

    python -m benchmarks.inputs [--rows 5] [--repeats 3]

`reading` is `read_batches` over every slice of the files: opened, decoded, converted, in one process. `whole run` is
`sfumato heatmap` with its start and its release. Processor times are of all threads. Each figure is the median of the
repetitions, and formats take turns, so that a slow minute meets all of them. The goal: CSV costs at most 3 times
Parquet. Prints a Markdown table.
"""

from __future__ import annotations

import argparse
import gzip
import json
import math
import os
import platform
import re
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
import shapely

from sfumato.pipelines.command_line.run import request_of
from sfumato.pipelines.frame.inputs import inspect, layout_of, match_files
from sfumato.schemas.locations import LocationColumns
from sfumato.transforms.inputs.log_reader import read_batches, slice_file

GOAL = 3.0  # times Parquet
_REGION = "-1,50,1,51"
_FILES = 2
_GEOMETRY, _E7, _CELLS = ["--geometry_column=geometry"], ["--coordinates=e7"], "--cell_column=cell"
_QUADKEY = 20  # length of the quadkeys
_WHOLE = ("Parquet", "Parquet, integer ids", "CSV", "NDJSON")  # forms whose whole run is measured too
# Options that each form needs, and the input below its folder.
FORMS: dict[str, list[str]] = {
    "Parquet": [],
    "Parquet, integer ids": [],
    "CSV": [],
    "CSV, gzip": [],
    "NDJSON": [],
    "NDJSON, gzip": [],
    "Parquet, E7": _E7,
    "Parquet, WKB points": _GEOMETRY,
    "CSV, WKB points": _GEOMETRY,
    "CSV, quadkeys": [_CELLS, f"--cell_index=quadkey:{_QUADKEY}"],
    "Delta": [],
}


def records(rows: int) -> pa.Table:
    """Records of rows / 2 users in 20,000 places, with text as ids."""
    rng = np.random.default_rng(0)
    ids = rng.integers(10**8, 10**9, rows // 2)
    places = rng.uniform([-1, 50], [1, 51], (20_000, 2)).round(7)[rng.integers(0, 20_000, rows)]
    texts = pa.array(ids[rng.integers(0, rows // 2, rows)]).cast(pa.string())
    return pa.table({"user_id": texts, "latitude": places[:, 1], "longitude": places[:, 0]})


def write(form: str, table: pa.Table, folder: Path, number: int) -> None:
    """Writes one file of a form."""
    place = [table[name].to_numpy() for name in ("longitude", "latitude")]
    if "integer ids" in form:
        table = table.set_column(0, "user_id", table["user_id"].cast(pa.int64()))
    elif "E7" in form:
        for at, axis in ((1, 1), (2, 0)):
            table = table.set_column(at, table.column_names[at], pa.array(np.round(place[axis] * 1e7).astype(np.int64)))
    elif "WKB" in form:
        points = shapely.to_wkb(shapely.points(*place), hex=form.startswith("CSV"))
        table = table.select(["user_id"]).append_column("geometry", pa.array(points))
    elif "quadkeys" in form:
        table = table.select(["user_id"]).append_column("cell", pa.array(quadkeys(*place)))
    path = folder / f"part-{number}"
    if form == "Delta":
        import deltalake

        deltalake.write_deltalake(str(folder), table, mode="append")
    elif form.startswith("Parquet"):
        pq.write_table(table, f"{path}.parquet", row_group_size=1_000_000)
    else:
        suffix = "csv" if form.startswith("CSV") else "ndjson"
        name = f"{path}.{suffix}.gz" if form.endswith("gzip") else f"{path}.{suffix}"
        with gzip.open(name, "wb", 6) if form.endswith("gzip") else open(name, "wb") as file:
            if suffix == "csv":
                pa_csv.write_csv(table, file, pa_csv.WriteOptions(quoting_style="none"))
            else:
                file.write("".join(json.dumps(row) + "\n" for row in table.to_pylist()).encode())


def quadkeys(longitudes: np.ndarray, latitudes: np.ndarray) -> list[str]:
    """The quadkeys of places."""
    side = 1 << _QUADKEY
    x = ((longitudes + 180) / 360 * side).astype(np.int64)
    y = ((1 - np.arcsinh(np.tan(np.radians(latitudes))) / np.pi) / 2 * side).astype(np.int64)
    found, index = np.unique(np.stack([x, y], 1), axis=0, return_inverse=True)
    texts = [
        "".join(str(a >> b & 1 | (c >> b & 1) << 1) for b in range(_QUADKEY - 1, -1, -1)) for a, c in found.tolist()
    ]
    return np.array(texts)[index.ravel()].tolist()


def place_of(folder: Path, form: str) -> Path:
    """The folder of a form."""
    return folder / str(list(FORMS).index(form))


def arguments_of(form: str, folder: Path) -> list[str]:
    """The options that name an input."""
    return ["--input", f"delta:{folder}" if form == "Delta" else str(folder), *FORMS[form]]


def read(form: str, folder: Path) -> None:
    """Reads all batches of a form, and prints wall and processor seconds, rows and the peak of memory in bytes."""
    given = dict(part.removeprefix("--").split("=") for part in FORMS[form])
    where = arguments_of(form, folder)[1]
    request = request_of("heatmap", {"input": where, "output": "out", "region": _REGION, **given})
    columns, rows = LocationColumns(), 0
    wall, processor = time.perf_counter(), time.process_time()
    files = match_files(request.input, layout_of(request))
    inspect(files, columns)
    for file in files:
        for part in slice_file(file.log):
            rows += sum(batch.num_rows for batch in read_batches(part, columns))
    wall, processor = time.perf_counter() - wall, time.process_time() - processor
    (peak,) = re.findall(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    print(wall, processor, rows, int(peak) * 1024)


def child(*command: str) -> tuple[float, float, str]:
    """Runs a program: wall seconds, processor seconds, and what it printed."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    wall, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    return wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, done.stdout


def measure(form: str, folder: Path, rows: int) -> list[float]:
    """Of one run: wall and processor seconds of reading, peak MB, wall and processor seconds of the whole run."""
    _, _, said = child(sys.executable, "-m", "benchmarks.inputs", "--read", form, "--data", str(place_of(folder, form)))
    wall, processor, found, peak = map(float, said.split())
    if found != rows:
        raise SystemExit(f"{form}: read {found} of {rows} rows")
    if form not in _WHOLE:
        return [wall, processor, peak / 1e6, math.nan, math.nan]
    job = [
        sys.executable,
        "-m",
        "sfumato.pipelines.command_line.cli",
        "heatmap",
        *arguments_of(form, place_of(folder, form)),
    ]
    with tempfile.TemporaryDirectory() as output:
        options = ["--region", _REGION, "--depth", "8", "--seed", "1", "--output", f"{output}/release"]
        whole, all_processor, _ = child(*job, *options)
    return [wall, processor, peak / 1e6, whole, all_processor]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=float, default=5, help="million rows")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--data", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--read", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.read is not None:
        read(options.read, options.data)
        return
    rows, folder = int(options.rows * 1e6), Path(tempfile.mkdtemp(prefix="inputs-"))
    try:
        table, sizes = records(rows), {}
        for form in FORMS:
            place_of(folder, form).mkdir()
            for number, part in enumerate(np.array_split(np.arange(rows), _FILES)):
                write(form, table.slice(part[0], len(part)), place_of(folder, form), number)
            sizes[form] = sum(path.stat().st_size for path in place_of(folder, form).rglob("*") if path.is_file())
        runs: dict[str, list[list[float]]] = {form: [] for form in FORMS}
        for _ in range(options.repeats):
            for form in FORMS:
                runs[form].append(measure(form, folder, rows))
        medians = {
            form: [statistics.median(column) for column in zip(*found, strict=True)] for form, found in runs.items()
        }
    finally:
        shutil.rmtree(folder)
    base = medians["Parquet"]
    heads = ["input", "size, MB", "reading, s", "processor, s", "times Parquet (processor)", "peak MB"]
    heads += ["whole run, s", "processor, s", "times Parquet (processor)", "goal"]
    print(
        f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}, {options.rows:g} M rows\n"
    )
    print("| " + " | ".join(heads) + " |", "|---" * len(heads) + "|", sep="\n")
    for form, (wall, processor, peak, whole, all_processor) in medians.items():
        ratios = processor / base[1], all_processor / base[4]
        goal = f"≤ {GOAL:g}: {'met' if max(ratios) <= GOAL else 'missed'}" if form == "CSV" else ""
        runs_of = [f"{whole:.1f}", f"{all_processor:.1f}", f"{ratios[1]:.2f}"] if form in _WHOLE else ["", "", ""]
        row = [form, f"{sizes[form] / 1e6:.0f}", f"{wall:.2f}", f"{processor:.2f}", f"{ratios[0]:.1f}", f"{peak:.0f}"]
        print("| " + " | ".join([*row, *runs_of, goal]) + " |")


if __name__ == "__main__":
    main()
