"""Two operators as two processes that share nothing but exchanged files, and 1,000 devices that report at once."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from sfumato.transforms.split.answered import record_answer
from sfumato.transforms.split.reports import make_reports
from tests.seeds import seeded_rng
from tests.two_servers import City

pytestmark = pytest.mark.slow
DEVICES = 1_000


def run(folder: Path, *arguments: str) -> None:
    """Runs a command of a party in its own folder, with names relative to it."""
    done = subprocess.run(
        [Path(sys.executable).with_name("sfumato"), *arguments], cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def aggregate(folder: Path, role: str, *more: str) -> None:
    options = ["--role", role, "--task", "task.json", "--exchange", "exchange", "--output", "out", "--dataset", "city"]
    options += ["--key_file", f"{role}.key", "--verify_key", "verify.key", "--ledger", "ledger.db"]
    run(folder, "split", "aggregate", *options, "--budget", "100/365d", *more)


@pytest.mark.pinned  # the operators are other processes, whose keys follow from files only
@pytest.mark.false_alarm(1e-10)  # noise of counts that is not 0 at epsilon 30, or above 190 at 0.15
def test_a_thousand_devices_and_two_operators(tmp_path: Path) -> None:
    made = tmp_path / "made"
    made.mkdir()
    city = City.new(made, start="2000-01-01T00:00:00+00:00", end="2100-01-01T00:00:00+00:00")
    parties = {name: tmp_path / name for name in ("leader", "helper", "collector", "devices")}
    for name, folder in parties.items():
        folder.mkdir()
        for key in {"leader": ("leader", "verify"), "helper": ("helper", "verify")}.get(name, (name,)):
            if (made / f"{key}.key").exists():
                shutil.move(made / f"{key}.key", folder) if key == name else shutil.copy(made / f"{key}.key", folder)
        shutil.copy(made / "task.json", folder)
    rng, task = seeded_rng(1), city.task
    places = np.stack([rng.uniform(3, 3.13, DEVICES), rng.uniform(1, 1.13, DEVICES)], axis=1).tolist()

    def report(device: int) -> int:
        cell = task.cell_of(*places[device])
        own = parties["devices"] / str(device)
        own.mkdir()
        record_answer(task, str(own / "answered.json"))
        (own / "report.bin").write_bytes(make_reports(task, [cell]))
        return cell

    with ThreadPoolExecutor(8) as threads:
        cells = list(threads.map(report, range(DEVICES)))
    leader, helper, collector = parties["leader"], parties["helper"], parties["collector"]
    (leader / "reports").mkdir()
    for device in range(DEVICES):  # the upload
        os.replace(parties["devices"] / str(device) / "report.bin", leader / "reports" / f"{device}.bin")
    aggregate(leader, "leader", "--input", "reports/*.bin")
    shutil.copytree(leader / "exchange" / "requests", helper / "exchange" / "requests")
    aggregate(helper, "helper")
    shutil.copytree(helper / "exchange" / "responses", leader / "exchange" / "responses")
    aggregate(leader, "leader", "--input", "reports/*.bin")
    for role, folder in (("leader", leader), ("helper", helper)):
        shutil.copy(folder / "out" / f"{role}.share.json", collector)
    shares = ["--leader", "leader.share.json", "--helper", "helper.share.json", "--key_file", "collector.key"]
    account = ["--ledger", "ledger.db", "--dataset", "city", "--budget", "100/365d"]
    run(collector, "split", "collect", "--task", "task.json", *shares, *account, "--output", "release")
    counts = pq.read_table(collector / "release" / "cells.parquet")["count"].to_pylist()
    assert sorted(counts) == sorted(np.bincount(cells, minlength=16).tolist())
