"""A year of nights: what each costs in time and memory, of the update alone and of whole runs of `sfumato refresh`.

    python -m benchmarks.month_year [--users 2000] [--nights 365] [--rotation 30]

prints the seconds of the nights of one real `sfumato refresh --backfill`, and of one more night in a new process.
"""

from __future__ import annotations

import argparse
import io
import math
import subprocess
import tempfile
import time
import tracemalloc
from datetime import date, timedelta
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import yaml

from benchmarks.month_counts import draw_nights
from benchmarks.month_ways import WAYS, WINDOW, Publisher, run_key, scaled_measurements
from benchmarks.speed import command
from sfumato.schemas.guarantee import Trust
from sfumato.schemas.rectangle import PENUMBRA
from sfumato.transforms.nights.nights_update import update
from sfumato.transforms.observability.text_tables import markdown_table

FIRST = date(2026, 1, 5)
WAY = next(way for way in WAYS if way.cohorts == WINDOW and way.memory == "posterior")


def year_table(users: int, nights: int = 365) -> str:
    """Seconds, memory and bytes of the update of some nights of a year of the city, with drawn counts."""
    days = [FIRST + timedelta(days=number) for number in range(nights)]
    shown = sorted({1, 2, 7, WINDOW, nights // 2, nights})
    rows = [["night", "run, s", "update, s", "peak of the update, MB", "nodes", "nights.parquet, bytes"]]
    rows.append(["*goal*", "", "at most 2", "constant", "", "constant"])
    publisher = Publisher(WAY, Trust.SECAGG)
    parameters = WAY.parameters(Trust.SECAGG)
    seconds = []
    for number, night in enumerate(draw_nights(days, users), start=1):
        before = publisher.nights
        run, updated = publisher.publish(night).seconds
        seconds.append(updated)
        if number not in shown:
            continue
        prior = None if before is None else before.predict(night.day, night.users)
        state = night.run(WAY.cohorts, parameters, run_key(0, WAY, night.day, Trust.SECAGG), prior)
        measured, total, stddev = scaled_measurements(state, WAY.cohorts)
        tracemalloc.start()  # which makes it slower
        update(before, night.day, measured, total, stddev)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert publisher.nights is not None
        table, stored = publisher.nights.to_table(), io.BytesIO()
        pq.write_table(table, stored, compression="zstd")
        size = f"{stored.getbuffer().nbytes:,}"
        rows.append([f"{number}", f"{run:.2f}", f"{updated:.2f}", f"{peak / 1e6:.0f}", f"{table.num_rows:,}", size])
    text = f"Update, all nights: median {np.median(seconds):.2f} s, most {max(seconds):.2f} s."
    return f"### {nights} nights, {users:,} users a night\n\n{markdown_table(rows)}\n{text}\n"


def refresh_table(users: int, nights: int, cohorts: int | None, place: Path) -> str:
    """Seconds of whole nights of `sfumato refresh --backfill`, and of one more night in a process of its own.

    Args:
        users: people of the city.
        nights: to publish in one process.
        cohorts: of the rotation; None for all users at a thirtieth of epsilon, from the map of the night before.
        place: an empty folder.
    """
    days = [FIRST + timedelta(days=number) for number in range(nights + 1)]
    logs = command("synth", "--users", str(users), "--days", f"{days[0]}:{days[-1]}", "--output", str(place / "logs"))
    subprocess.run(logs, check=True, stdout=subprocess.DEVNULL)
    region = [PENUMBRA.west, PENUMBRA.south, PENUMBRA.east, PENUMBRA.north]
    config = {
        "dataset": "city",
        "input": str((place / "logs").absolute()),
        "output": "maps",
        "ledger": "ledger.db",
        "key_file": "key",
        "budget": [{"epsilon": 1, "days": WINDOW}],
        "options": {"region": region, "depth": 10, "epsilon": 1 / math.ceil(WINDOW / (cohorts or 1))},
        "warm_start": True,
    }
    if cohorts is not None:
        config["rotation"] = cohorts
    subprocess.run(command("key", "new", str(place / "key")), check=True, stdout=subprocess.DEVNULL)
    (place / "refresh.yaml").write_text(yaml.safe_dump(config))
    whole, seconds = [], []
    for first, last in ((0, 0), (1, nights - 1), (nights, nights)):
        began = at = time.perf_counter()
        job = command("refresh", "--config", str(place / "refresh.yaml"), "--backfill", f"{days[first]}:{days[last]}")
        with subprocess.Popen(job, stdout=subprocess.PIPE, text=True) as running:
            assert running.stdout is not None
            for line in running.stdout:
                if line.rstrip().endswith("index.html"):
                    seconds.append(time.perf_counter() - at)
                    at = time.perf_counter()
        if running.returncode:
            raise SystemExit(f"sfumato refresh: exit status {running.returncode}")
        whole.append(time.perf_counter() - began)
    rows = [["", "seconds"], ["night 1, a process of its own", f"{whole[0]:.1f}"]]
    for number in sorted({2, WINDOW, nights // 2, nights} & set(range(2, nights + 1))):
        near = seconds[max(number - 3, 1) : number + 2]
        rows.append([f"night {number}, in one process, median of those about it", f"{np.median(near):.1f}"])
    rows.append([f"night {nights + 1}, a process of its own", f"{whole[2]:.1f}"])
    return markdown_table(rows)


def main() -> None:
    """Prints the seconds of real nights."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--users", type=int, default=2_000)
    parser.add_argument("--nights", type=int, default=365)
    parser.add_argument("--rotation", type=int, default=WINDOW, help="cohorts; 0: all users, each night from the last")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        print(refresh_table(options.users, options.nights, options.rotation or None, Path(place)))


if __name__ == "__main__":
    main()
