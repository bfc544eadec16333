"""The memory of `sfumato heatmap` at its limits: many users, many rows, one heavy user, one large row group.

    python -m benchmarks.memory [--data bench_data] [--cases users,rows,user,group]

Prints a Markdown table: what `--memory` allows, and the peaks of the whole process by /proc (Linux). Resident memory is
what counts against the limit of a container, but for the files that the system may drop. Logs are made with
`sfumato synth`; the ten times as many rows are the same files, under ten names.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

REGION = (3.00, 1.00, 3.13, 1.13)  # of `sfumato synth`
HEAVY_ROWS, GROUP_ROWS = 5_000_000, 20_000_000


@dataclass(frozen=True)
class Case:
    """Logs and the memory that a run of them may use."""

    text: str
    folder: Path
    memory: str | None


def data_set(root: Path, users: int) -> Path:
    """The folder with logs of so many users, made if it is missing."""
    folder = root / f"city{users // 10**6}"
    if not folder.exists():
        synth = [
            sys.executable,
            "-m",
            "sfumato.pipelines.command_line.cli",
            "synth",
            "--users",
            str(users),
            "--output",
            str(folder),
        ]
        subprocess.run(synth, check=True)
    return folder


def named_again(folder: Path, times: int, place: Path) -> Path:
    """Links to the files of a folder, each under several names: a user then has as many times the records."""
    place.mkdir()
    for file in folder.glob("*.parquet"):
        for number in range(times):
            (place / f"{number}-{file.name}").symlink_to(file.resolve())
    return place


def log_of(users: np.ndarray, place: Path, row_group: int) -> Path:
    """A folder with one file of records of these users anywhere in the region."""
    rng, (west, south, east, north) = np.random.default_rng(0), REGION
    place.mkdir()
    rows = {"latitude": rng.uniform(south, north, len(users)), "longitude": rng.uniform(west, east, len(users))}
    pq.write_table(pa.table({"user_id": users, **rows}), place / "log.parquet", row_group_size=row_group)
    return place


def cases(data: Path, chosen: list[str], scratch: Path) -> list[Case]:
    """The cases of these names, with their logs."""
    found = []
    if "users" in chosen or "rows" in chosen:
        city = data_set(data, 54_600_000)
    if "users" in chosen:
        found += [Case("54.6 million users", city, memory) for memory in ("4G", "1.5G", "1G")]
    if "rows" in chosen:
        found.append(Case("546 million rows, 10 of each user", named_again(city, 10, scratch / "rows"), "1G"))
    if "user" in chosen:
        users = np.concatenate([np.zeros(HEAVY_ROWS, np.int64), np.arange(HEAVY_ROWS)])
        folder = log_of(np.random.default_rng(1).permutation(users), scratch / "user", 500_000)
        found.append(Case("10 million rows, 5 million of one user", folder, "1G"))
    if "group" in chosen:
        folder = log_of(np.arange(GROUP_ROWS), scratch / "group", GROUP_ROWS)
        found.append(Case("20 million users in one row group", folder, "1G"))
    return found


def measure(case: Case) -> str:
    """A row of the table."""
    with tempfile.TemporaryDirectory() as out:
        words = ["heatmap", "--input", f"{case.folder}/*.parquet", "--region", ",".join(map(str, REGION))]
        words += ["--depth", "10", "--epsilon", "1", "--output", f"{out}/release"]
        words += [] if case.memory is None else ["--memory", case.memory]
        began, spilled = time.perf_counter(), False
        job = subprocess.Popen(
            [sys.executable, "-m", "sfumato.pipelines.command_line.cli", *words],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "TMPDIR": out},
        )
        resident = own = 0
        while job.poll() is None:
            try:
                lines = Path(f"/proc/{job.pid}/status").read_text().splitlines()
            except OSError:
                continue
            fields = dict(line.split(":", 1) for line in lines if ":" in line)
            resident = max(resident, int(fields.get("VmHWM", "0").split()[0]))
            own = max(own, int(fields.get("RssAnon", "0").split()[0]))
            spilled |= any(Path(out).glob("sfumato-scratch-*"))
            time.sleep(0.02)
        seconds = time.perf_counter() - began
    if job.returncode:
        raise SystemExit(f"{case.text}: exit status {job.returncode}")
    place = "folder" if spilled else "memory"
    cells = [case.text, case.memory or "", place, f"{own * 1024 / 1e6:.0f}", f"{resident * 1024 / 1e6:.0f}"]
    return "| " + " | ".join([*cells, f"{seconds:.0f}"]) + " |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path("bench_data"))
    parser.add_argument("--cases", default="users,rows,user,group")
    options = parser.parse_args()
    scratch = Path(tempfile.mkdtemp(dir=options.data))
    try:
        print("| logs | `--memory` | records lie in | peak MB without files | peak resident MB | seconds |")
        print("|---|---|---|---|---|---|")
        for case in cases(options.data.resolve(), options.cases.split(","), scratch):
            print(measure(case), flush=True)
    finally:
        shutil.rmtree(scratch)


if __name__ == "__main__":
    main()
