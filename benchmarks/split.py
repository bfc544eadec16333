"""Processor seconds of two servers: devices, leader and helper, for reports of several lengths.

    python -m benchmarks.split [--reports 2000] [--lengths 256,1024,3034,4096]

The check of proofs is measured on one core, on batches as an aggregator forms them, and scaled to 10,000 reports. The
decryption of reports of 64 x 64 cells is measured too; all of it is without Beam.
"""

from __future__ import annotations

import argparse
import resource
import time
from dataclasses import dataclass

import numpy as np

from sfumato.transforms.observability.text_tables import markdown_table
from sfumato.transforms.split.blocks import _BLOCK_BYTES, _MAX_BLOCK
from sfumato.transforms.split.circuits import Histogram
from sfumato.transforms.split.hpke import new_key, public_key
from sfumato.transforms.split.prio3 import HELPER, LEADER, Prio3, add_shares, reduced, report_size, unshard
from sfumato.transforms.split.reports import Formats, make_reports, open_records
from sfumato.transforms.split.task import Task

_SCALE = 10_000  # reports of the table
GOAL = 25.0  # seconds an aggregator for 10,000 reports of 3,034 entries


@dataclass
class Seconds:
    """Processor seconds for some reports."""

    client: float = 0.0
    leader: float = 0.0
    helper: float = 0.0
    finish: float = 0.0  # of the leader, once the helper has answered


def measure(length: int, reports: int, seed: int = 0) -> Seconds:
    """Returns the seconds for this number of reports. Raises RuntimeError if the counts are not exact."""
    prio3, rng, key = Prio3(Histogram(length), b"benchmark"), np.random.default_rng(seed), bytes(32)
    block = max(1, min(_MAX_BLOCK, _BLOCK_BYTES // report_size(length)))
    cells, seconds, sums = rng.integers(0, length, reports), Seconds(), [np.zeros((length, 4), np.uint64)] * 2
    for first in range(0, reports, block):
        part = cells[first : first + block]
        ids, rest = (rng.integers(0, 256, (len(part), n), dtype=np.uint8) for n in (16, prio3.randomness_size))
        started = time.process_time()
        devices = [slice(first, first + 4) for first in range(0, len(part), 4)]
        made_by = [prio3.shard(part[some].tolist(), ids[some], rest[some]) for some in devices]
        public = np.concatenate([one for one, _ in made_by])
        shares = [np.concatenate([both[role] for _, both in made_by]) for role in (LEADER, HELPER)]
        made = time.process_time()
        mine = prio3.verify_init(LEADER, key, ids, public, shares[LEADER])
        led = time.process_time()
        theirs = prio3.verify_init(HELPER, key, ids, public, shares[HELPER])
        messages, is_valid = prio3.combine([mine.verifier_shares, theirs.verifier_shares])
        is_valid &= theirs.accepts(messages)
        sums[HELPER] = sums[HELPER] + add_shares(theirs.out_shares[is_valid])
        helped = time.process_time()
        out_shares, agrees = prio3.finish(LEADER, ids, public, shares[LEADER], messages)
        sums[LEADER] = sums[LEADER] + add_shares(out_shares[agrees])
        ended = time.process_time()
        seconds.client += made - started
        seconds.leader += led - made
        seconds.helper += helped - led
        seconds.finish += ended - helped
    if unshard([reduced(one) for one in sums]) != np.bincount(cells, minlength=length).tolist():
        raise RuntimeError("the counts of honest reports are not exact")
    return seconds


def measure_opening(reports: int) -> tuple[float, float]:
    """Returns the seconds in which leader and helper open encrypted reports of 4,096 cells."""
    keys = [new_key() for _ in range(4)]
    named = [public_key(key).hex() for key in keys]
    task = Task("benchmark", (3.0, 1.0, 3.13, 1.13), 6, 1.0, 1, 0, 3600, *named, text="benchmark")
    formats = Formats(task)
    content = b"".join(make_reports(task, [1], 0) for _ in range(reports))
    records = np.frombuffer(content, dtype=formats.report)
    seconds = []
    for role in (LEADER, HELPER):
        started = time.process_time()
        opened = open_records(task, role, records, keys[role])
        seconds.append(time.process_time() - started)
        if opened.errors.any():
            raise RuntimeError("a report was not opened")
    return seconds[LEADER], seconds[HELPER]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--reports", type=int, default=2000)
    parser.add_argument("--lengths", default="256,1024,3034,4096")
    options = parser.parse_args()
    rows = [["entries", "KB a report", "ms a client", "leader, s", "leader at last, s", "helper, s"]]
    for length in map(int, options.lengths.split(",")):
        found, scale = measure(length, options.reports), _SCALE / options.reports
        client = 1000 * found.client / options.reports
        seconds = (found.leader, found.finish, found.helper)
        rows.append([
            f"{length:,}",
            f"{report_size(length) / 1000:.1f}",
            f"{client:.2f}",
            *(f"{scale * one:.1f}" for one in seconds),
        ])  # fmt: skip
    print(f"Processor seconds for {_SCALE:,} reports, measured with {options.reports:,}; the goal is {GOAL:g}\n")
    print(markdown_table(rows))
    leader, helper = (_SCALE / 200 * one for one in measure_opening(200))
    print(f"decryption of {_SCALE:,} reports of 4,096 cells: leader {leader:.1f} s each time, helper {helper:.1f} s")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"peak memory of this process, with both aggregators and the imports of Beam: {peak:.0f} MB")


if __name__ == "__main__":
    main()
