"""A city whose devices report to two servers: folders of the parties, and the commands that each runs."""

from __future__ import annotations

import atexit
import hashlib
import json
import shutil
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from sfumato.pipelines.command_line import cli
from sfumato.schemas.ledger import Limit
from sfumato.transforms.privacy.ledger.ledger import open_ledger
from sfumato.transforms.split.hpke import public_key
from sfumato.transforms.split.parties import Aggregator, party_key, private_key
from sfumato.transforms.split.reports import ROLES, Formats, make_reports
from sfumato.transforms.split.task import Task
from tests.keys import write_key

PARTIES = ("leader", "helper", "collector", "verify")
WRITTEN = ("exchange", "leader", "helper")
EXACT = 30.0  # an epsilon whose noise is 0 but for a probability below 1e-12 a count
HONEST = 14 * np.array([0, 3, 5, 0, 1, 0, 0, 2, 0, 0, 9, 0, 4, 0, 0, 7])  # devices of each cell


@dataclass(frozen=True)
class City:
    """Parties in a folder."""

    folder: Path

    @classmethod
    def new(cls, folder: Path, **task: Any) -> City:
        """Makes keys and a task of 4 x 4 cells. task: other entries of its file."""
        city = cls(folder)
        for name in PARTIES:
            write_key(folder / f"{name}.key", hashlib.sha256(name.encode()).digest())
        city.write_task(folder / "task.json", **task)
        return city

    @classmethod
    def finished(cls, folder: Path) -> City:
        """Returns a city whose honest devices have reported and whose operators have run: one run in each process."""
        shutil.copytree(_finished(), folder, dirs_exist_ok=True)
        return cls(folder)

    def write_task(self, path: Path, **entries: Any) -> Task:
        keys = {name: public_key(private_key(party_key(str(self.folder / f"{name}.key")))).hex() for name in PARTIES}
        content = {
            "format": "sfumato split task 1",
            "name": "a day",
            "region": [3.0, 1.0, 3.13, 1.13],
            "depth": 2,
            "epsilon": EXACT,
            "min_batch": 200,  # compared with noise of epsilon 0.15
            "start": "2026-11-20T00:00:00+00:00",
            "end": "2026-11-21T00:00:00+00:00",
            **keys,
            **entries,
        }
        path.write_text(json.dumps(content))
        return Task.read(str(path))

    @property
    def task(self) -> Task:
        return Task.read(str(self.folder / "task.json"))

    def report(self, cells: Sequence[int], name: str = "a", task: Task | None = None, **options: Any) -> bytes:
        """Writes reports of these cells, and returns their bytes."""
        task = task or self.task
        content = make_reports(task, cells, **{"made_at": task.start + 7200, **options})
        self.write(name, content)
        return content

    def write(self, name: str, content: bytes) -> None:
        (self.folder / "reports").mkdir(exist_ok=True)
        (self.folder / "reports" / f"{name}.bin").write_bytes(content)

    def aggregate(self, role: str, *more: str, exchange: str = "exchange", place: str = "") -> int:
        """Runs an aggregator's command, and returns its exit status. place: a copy of the folder in a bucket."""
        place = place or str(self.folder)
        arguments = ["split", "aggregate", "--role", role, "--task", f"{place}/task.json", "--dataset", "city"]
        arguments += ["--exchange", f"{place}/{exchange}", "--output", f"{place}/{role}", "--budget", "1000/365d"]
        arguments += ["--key_file", f"{place}/{role}.key", "--verify_key", f"{place}/verify.key"]
        arguments += ["--ledger", f"{place}/{role}.db"]
        arguments += ["--input", f"{place}/reports/*.bin"] if role == "leader" else []
        return cli.main([*arguments, *more])

    def operator(self, role: str) -> Aggregator:
        keys = f"{self.folder}/{role}.key", f"{self.folder}/verify.key"
        return Aggregator(
            ROLES.index(role), self.task, *keys, f"{self.folder}/{role}.db", "city", (Limit.parse("100/365d"),)
        )

    def exchanged(
        self, kind: str, number: int = 0, change: Callable[[np.ndarray], np.ndarray] | None = None
    ) -> np.ndarray:
        """Returns the records of a file of the exchange, after an operator has changed them."""
        formats, operator = Formats(self.task), self.operator("leader")
        content = operator.read_exchange(f"{self.folder}/exchange/{kind}/{number:08}.bin", kind, number)
        dtype = formats.verify_init if kind == "requests" else formats.verify_resp
        records = np.frombuffer(content, dtype=dtype).copy()
        if change is not None:
            records = change(records)
            operator.write_exchange(f"{self.folder}/exchange", kind, number, records.tobytes())
        return records

    def share(self, role: str) -> Path:
        return self.folder / role / f"{role}.share.json"

    def run(self, *more: str) -> dict[str, bytes]:
        """Runs leader, helper and leader, and returns the files that they wrote."""
        for role in ("leader", "helper", "leader"):
            assert self.aggregate(role, *more) == 0
        paths = [path for name in WRITTEN for path in (self.folder / name).rglob("*") if path.is_file()]
        return {str(path.relative_to(self.folder)): path.read_bytes() for path in paths}

    def forget(self) -> None:
        """Removes what `run` wrote, and the ledgers."""
        for name in WRITTEN:
            shutil.rmtree(self.folder / name)
        for path in self.folder.glob("*.db"):
            path.unlink()

    def map(self, users: int, **plan: Any) -> Task:
        """Plans an adaptive map instead of the task, and returns its first round."""
        content = json.loads((self.folder / "task.json").read_text())
        (self.folder / "plan.json").write_text(json.dumps(content | plan))
        first = self.folder / "round1.json"
        arguments = ["--plan", f"{self.folder}/plan.json", "--users", str(users), "--output", str(first)]
        assert cli.main(["split", "task", *arguments]) == 0
        return Task.read(str(first))

    def run_round(self, number: int, content: bytes) -> int:
        """Aggregates the reports of a round, and returns the status of the collection of all rounds so far."""
        place = self.folder
        shutil.copy(place / f"round{number}.json", place / "task.json")
        shutil.rmtree(place / "reports", ignore_errors=True)
        self.write("a", content)
        for role in ("leader", "helper", "leader"):
            assert self.aggregate(role, exchange=f"exchange{number}") == 0
        for role in ("leader", "helper"):
            shutil.copy(self.share(role), place / f"{role}{number}.json")
        arguments = ["split", "collect", "--key_file", f"{place}/collector.key", "--output", f"{place}/release"]
        for option, file in (("task", "round"), ("leader", "leader"), ("helper", "helper")):
            arguments += [f"--{option}", *(f"{place}/{file}{one}.json" for one in range(1, number + 1))]
        return cli.main([*arguments, "--next", f"{place}/round{number + 1}.json"])

    def collect(self, *more: str, output: str = "release", key: str = "collector") -> int:
        place = self.folder
        arguments = ["split", "collect", "--task", f"{place}/task.json", "--key_file", f"{place}/{key}.key"]
        arguments += ["--leader", str(self.share("leader")), "--helper", str(self.share("helper"))]
        return cli.main([*arguments, "--output", f"{place}/{output}", *more])

    def spent(self, role: str) -> list[float]:
        """Returns the charges in a party's ledger."""
        return [float(charge.epsilon) for charge in open_ledger(f"{self.folder}/{role}.db").history().charges]


def cells_of(counts: np.ndarray) -> list[int]:
    """Returns a cell for each user of some counts."""
    return np.repeat(np.arange(len(counts)), counts).tolist()


@cache
def _finished() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="city"))
    atexit.register(shutil.rmtree, folder)
    city = City.new(folder)
    city.report(cells_of(HONEST))
    city.run()
    return folder
