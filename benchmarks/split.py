"""Two servers: the cost of a report and of its check, a batch through the commands, and the error of a map of devices.

    python -m benchmarks.split [--reports 400] [--lengths 256,1024,4096]
    python -m benchmarks.split --batch 20000 [--length 340] [--workers 2]
    python -m benchmarks.split --map 100000 [--runs 5]

The first prints processor seconds of devices, leader and helper, without Beam. The second makes the reports of a batch
and runs the operators' commands. The third compares the error of an adaptive map of devices with those of
`sfumato heatmap` on the same synthetic city; sums of shares are exact, so the operators' noise is added to counts.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

import sfumato
from benchmarks.trust import REGION, counts_of, heatmap_error, misplaced
from sfumato.schemas.guarantee import Trust
from sfumato.schemas.region import deinterleave
from sfumato.transforms.heatmap.device_rounds import first_task, map_files, map_state, next_task
from sfumato.transforms.observability.text_tables import markdown_table, significant
from sfumato.transforms.privacy.additive_noise import LAPLACE
from sfumato.transforms.privacy.keys import RunKey
from sfumato.transforms.privacy.secrets import seed_secret
from sfumato.transforms.split.collect import Collected
from sfumato.transforms.split.hpke import public_key
from sfumato.transforms.split.parties import party_key, private_key
from sfumato.transforms.split.prio3 import HELPER, LEADER, add_shares, reduced, unshard
from sfumato.transforms.split.reports import ROLES, Formats, make_reports, open_records
from sfumato.transforms.split.task import Task

_SCALE = 10_000  # reports of the table
_MILLION = 1_000_000
START = 2.5  # processor seconds of a command's imports
_PARTIES = ("leader", "helper", "collector", "verify")


def task_of(length: int, keys: dict[str, bytes], **entries: object) -> Task:
    """Returns a task with this number of entries, 1 and a multiple of 3. keys: private ones, by party."""
    names = ["r"]
    for name in names:  # grows
        if len(names) < (4 * length - 1) // 3:
            names += [f"{name}{digit}" for digit in range(4)]
    content = {
        "format": "sfumato split task 1",
        "name": "benchmark",
        "region": REGION,
        "depth": 10,
        "epsilon": 1.0,
        "min_batch": 1,
        "start": "2026-11-20T00:00:00+00:00",
        "end": "2026-11-21T00:00:00+00:00",
        "tree": names[1:],
        **{party: public_key(key).hex() for party, key in keys.items()},
        **entries,
    }
    return Task.parse(json.dumps({name: value for name, value in content.items() if value is not None}))


def costs(length: int, reports: int) -> list[float]:
    """Returns milliseconds a device, and seconds of leader and helper for 10,000 reports. Checks the counts."""
    keys = {party: os.urandom(32) for party in _PARTIES}
    task, verify_key, clock = task_of(length, keys), bytes(32), [time.process_time()]
    cells = np.random.default_rng(0).integers(0, length, reports)
    made = [make_reports(task, [cell], task.start) for cell in cells.tolist()]  # as devices do, one by one
    clock.append(time.process_time())
    records = np.frombuffer(b"".join(made), dtype=Formats(task).report)
    ids, public, prio3 = records["id"], records["public"], task.prio3
    share = open_records(task, LEADER, records, keys["leader"]).shares
    mine = prio3.verify_init(LEADER, verify_key, ids, public, share)
    clock.append(time.process_time())
    theirs = prio3.verify_init(
        HELPER, verify_key, ids, public, open_records(task, HELPER, records, keys["helper"]).shares
    )
    messages, is_valid = prio3.combine([mine.verifier_shares, theirs.verifier_shares])
    sums = [add_shares(theirs.out_shares[is_valid & theirs.accepts(messages)])]
    clock.append(time.process_time())
    share = open_records(task, LEADER, records, keys["leader"]).shares
    out_shares, agrees = prio3.finish(LEADER, ids, public, share, messages)
    sums.append(add_shares(out_shares[agrees]))
    clock.append(time.process_time())
    if unshard(map(reduced, sums)) != np.bincount(cells, minlength=length).tolist():
        raise RuntimeError("the counts of honest reports are not exact")
    client, first, helper, last = np.diff(clock) / reports
    return [1000 * client, _SCALE * (first + last), _SCALE * helper]


def cost_table(lengths: list[int], reports: int) -> str:
    rows = [["entries", "a device sends", "work of a device", "leader, 10,000 reports", "helper, 10,000 reports"]]
    for length in lengths:
        size = Formats(task_of(length, {party: os.urandom(32) for party in _PARTIES})).report.itemsize
        client, leader, helper = costs(length, reports)
        rows.append([f"{length:,}", f"{size / 1000:.1f} kB", f"{client:.0f} ms", f"{leader:.0f} s", f"{helper:.0f} s"])
    return f"Processor seconds, measured with {reports:,} reports\n\n{markdown_table(rows)}"


def batch_table(reports: int, length: int, workers: int) -> str:
    """Runs leader, helper and leader on a batch; returns seconds and peak memory of each command."""
    rows = [["command", "processor", "clock", "a million reports, processor", "peak memory"]]
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        for party in _PARTIES:
            subprocess.run(
                [Path(sys.executable).with_name("sfumato"), "key", "new", folder / f"{party}.key"], check=True
            )
        task = task_of(length, {one: private_key(party_key(f"{place}/{one}.key")) for one in _PARTIES})
        (folder / "task.json").write_text(task.text)
        cells = np.random.default_rng(0).integers(0, length, reports).tolist()
        (folder / "reports.bin").write_bytes(make_reports(task, cells, task.start))
        for role in ("leader", "helper", "leader"):
            command = ["split", "aggregate", "--role", role, "--task", "task.json", "--exchange", "exchange"]
            command += ["--output", role, "--key_file", f"{role}.key", "--verify_key", "verify.key"]
            command += ["--ledger", f"{role}.db", "--dataset", "city", "--budget", "9/1d"]
            command += ["--input", "reports.bin"] * (role == "leader")
            started = time.monotonic()
            command += [f"--direct_num_workers={workers}"]
            process = subprocess.Popen([Path(sys.executable).with_name("sfumato"), *command], cwd=folder)
            _, status, used = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
            if process.returncode:
                raise RuntimeError(f"the {role} failed")
            seconds, clock = used.ru_utime + used.ru_stime, time.monotonic() - started
            million = (seconds - START) / reports * _MILLION / 60
            peak = f"{used.ru_maxrss / 1024:.0f} MB"
            rows.append([role, f"{seconds:.0f} s", f"{clock:.0f} s", f"{million:.0f} min", peak])
    return f"{reports:,} reports of {length:,} entries, {workers} threads; the million is extrapolated\n\n" + (
        markdown_table(rows)
    )


def device_density(users: object, seed: int) -> np.ndarray:
    """Returns the density of an adaptive map of devices, by the operators' noise and the collector's rounds."""
    keys = {party: os.urandom(32) for party in _PARTIES}
    plan = task_of(1, keys, depth=8, tree=None).text
    tasks, rounds = [first_task(plan, len(users))], list[Collected]()
    operators = [RunKey.derive(seed_secret(seed), {"operator": role}) for role in ROLES]
    while True:
        task = tasks[-1]
        codes = task.grid.codes(users["longitude"].to_numpy(), users["latitude"].to_numpy())
        exact = np.bincount(task.counted.index.owners(codes), minlength=task.circuit.length)
        stream, reports = np.zeros(1, dtype=np.uint64), []
        for operator in operators:
            key = operator.narrowed({"split": task.id.hex()})
            exact = exact + LAPLACE.draw(key, "split noise", stream, task.circuit.length, task.sums_epsilon)[0]
            reports.append(
                len(users) + int(LAPLACE.draw(key, "number of reports", stream, 1, task.count_epsilon)[0, 0])
            )
        rounds.append(Collected(exact.tolist(), reports))
        state = map_state(tasks, rounds)
        if state.query is None:
            return np.load(io.BytesIO(map_files(tasks, state, "2026-11-20T00:00:00+00:00")["density.npy"]))
        tasks.append(next_task(task, state))


def map_rows(number: int, runs: int) -> Iterator[list[str]]:
    """Yields the median error of each model, and its ratio to that of `central`."""
    with tempfile.TemporaryDirectory() as place:
        logs = sfumato.synth(f"{place}/logs", users=number)
        users = pq.read_table(f"{place}/logs").to_pandas()
        x, y = deinterleave(np.arange(4**8, dtype=np.uint64))

        def device_error(seed: int) -> float:
            density = device_density(users, seed)
            return misplaced(density[y, x] / density.sum(), counts_of(users, 8))

        models = {str(trust): partial(_error_of, logs, users, trust) for trust in (Trust.CENTRAL, Trust.SPLIT)}
        models |= {"split, rounds of devices": device_error, "secagg": partial(_error_of, logs, users, Trust.SECAGG)}
        errors = {name: float(np.median([error(seed) for seed in range(runs)])) for name, error in models.items()}
    for name, error in errors.items():
        yield [name, significant(error, 3), f"{error / errors[str(Trust.CENTRAL)]:.2f}"]


def _error_of(logs: str, users: object, trust: Trust, seed: int) -> float:
    with contextlib.redirect_stderr(io.StringIO()):
        return heatmap_error(logs, users, trust=trust, seed=seed)


def main() -> None:
    """Prints one of the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--reports", type=int, default=400)
    parser.add_argument("--lengths", default="256,1024,4096")
    parser.add_argument("--batch", type=int)
    parser.add_argument("--length", type=int, default=340)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--map", type=int)
    parser.add_argument("--runs", type=int, default=5)
    options = parser.parse_args()
    if options.batch:
        print(batch_table(options.batch, options.length, options.workers))
    elif options.map:
        print(
            f"Share of users in a wrong cell of 256 x 256; {options.map:,} users, epsilon 1, median of {options.runs}\n"
        )
        print(markdown_table([["model", "error", "times central"], *map_rows(options.map, options.runs)]))
    else:
        print(cost_table([int(length) for length in options.lengths.split(",")], options.reports))


if __name__ == "__main__":
    main()
