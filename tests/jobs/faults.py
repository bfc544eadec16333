"""Runs of a refresh that are killed at any of their steps, and what must hold whatever was killed.

A run is a forked process in which every step that changes something, or draws noise, is counted; at a given step the
process ends at once, as by `kill -9` (`os._exit`: nothing is cleaned up). Noise that was drawn is noted in a file
before the step that draws it returns, since from then on it could have been seen.
"""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
import time
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass, field
from decimal import Decimal
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from apache_beam.io.filesystems import FileSystems

from sfumato.pipelines.command_line import cli
from sfumato.pipelines.frame import accounting
from sfumato.schemas.errors import LedgerError
from sfumato.transforms.histogram import transform as sample_and_threshold
from sfumato.transforms.privacy import discrete_laplace
from sfumato.transforms.privacy.ledger.history import replay
from sfumato.transforms.privacy.ledger.ledger import open_ledger
from sfumato.transforms.privacy.ledger.stores import SqliteStore
from sfumato.transforms.release import release_folder, release_index
from tests.keys import write_key

KILLED = 137
CONFIG = """
dataset: city
input: {logs}
output: {root}
ledger: {ledger}
key_file: key
budget:
  - {{epsilon: 8, delta: 1.0e-5, days: 1}}
  - {{epsilon: 20, delta: 1.0e-5, days: 30}}
job: {job}
options: {options}
"""
EPSILON = 4
OPTIONS = {
    "heatmap": "{region: '-1,50,1,51', depth: 5, epsilon: 4, shard_size: 300, dropout: 0.4, population: 600}",
    "histogram": "{region: '-1,50,1,51', cells: 2, epsilon: 4, delta: 1.0e-6}",
}
FILES = {
    "heatmap": {
        "answers.parquet",
        "cells.parquet",
        "density.npy",
        "heatmap.png",
        "index.html",
        "manifest.json",
        "totals.parquet",
    },
    "histogram": {"cells.parquet", "histogram.png", "index.html", "manifest.json"},
}


@dataclass
class Steps:
    """Counts a process's steps, and ends it in the midst of one. kill: number of the step, counted from 0.

    note: a file of the process's own with a line a step; Beam's copies of this object all count there.
    """

    note: Path
    kill: int | None

    def reach(self, name: str) -> None:
        with self.note.open("a+") as file:
            file.seek(0)
            number = len(file.readlines())
            file.write(f"{name}\n")
        if number == self.kill:
            os._exit(KILLED)

    def around(self, owner: Any, attribute: str, name: str) -> None:
        """Makes every call of a function two steps: before it does anything, and after it did all."""
        real = getattr(owner, attribute)

        def stepped(*arguments: Any, **named: Any) -> Any:
            self.reach(f"before {name}")
            done = real(*arguments, **named)
            self.reach(f"after {name}")
            return done

        setattr(owner, attribute, stepped)


class LocalPlace:
    """Releases in a folder and a ledger in an SQLite file. Looking at it goes past the code under test."""

    def __init__(self, folder: Path):
        self.root, self.ledger = str(folder / "published"), str(folder / "ledger.db")

    def objects(self) -> dict[str, bytes]:
        """Every file below the root, by its name there."""
        found = {}
        for path in Path(self.root).rglob("*"):
            with suppress(FileNotFoundError, IsADirectoryError, NotADirectoryError):  # renamed meanwhile
                found[str(path.relative_to(self.root))] = path.read_bytes()
        return found

    def release_folders(self) -> dict[str, set[str]]:
        """Names of the files in each folder that has a manifest, hidden ones too."""
        folders = {}
        for manifest in Path(self.root).glob("releases/*/manifest.json"):
            with suppress(FileNotFoundError):
                names = {path.name for path in manifest.parent.iterdir()}
                if manifest.name in names:  # a folder that is being removed loses it first
                    folders[manifest.parent.name] = names
        return folders

    def entries(self) -> list[bytes]:
        """The ledger's entries."""
        return SqliteStore(self.ledger).read()

    def watch(self, steps: Steps) -> None:
        """Makes steps of what changes the place."""
        steps.around(SqliteStore, "append", "ledger append")
        steps.around(release_folder.os, "fsync", "file of the release")
        steps.around(Path, "rename", "rename of the release")
        steps.around(Path, "replace", "rename of a file of the timeline")
        steps.around(release_index, "write_file", "file of the timeline")


class BucketPlace:
    """Releases and ledger in a bucket of the emulator."""

    def __init__(self, emulator: Any, bucket: str, name: str):
        self._emulator, self._name = emulator, name
        self.root, self.ledger = f"{bucket}/{name}/published", f"{bucket}/{name}/ledger"

    def objects(self) -> dict[str, bytes]:
        """Every object below the root, by its name there."""
        found: dict[str, bytes] = self._emulator.objects(f"{self._name}/published")
        return found

    def release_folders(self) -> dict[str, set[str]]:
        """Names of the objects in each folder that has a manifest."""
        paths = [name.split("/") for name in self.objects() if name.startswith("releases/")]
        folders = {path[1] for path in paths if path[2:] == ["manifest.json"]}
        return {folder: {path[2] for path in paths if path[1] == folder and len(path) == 3} for folder in folders}

    def entries(self) -> list[bytes]:
        """The ledger's entries."""
        found = self._emulator.objects(f"{self._name}/ledger")
        return [found[name] for name in sorted(found)]

    def watch(self, steps: Steps) -> None:
        """Makes steps of what changes the place."""
        from sfumato.transforms.privacy.ledger.stores import BucketStore

        steps.around(BucketStore, "append", "ledger append")
        steps.around(FileSystems, "create", "object")
        steps.around(FileSystems, "rename", "rename of objects")
        steps.around(FileSystems, "delete", "deletion of objects")
        steps.around(release_index, "write_file", "file of the timeline")


@dataclass
class Scene:
    """A folder with a key and a configuration, a place of releases, and all that is known of the runs in it."""

    folder: Path
    job: str
    logs: str
    place: LocalPlace | BucketPlace
    problems: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        write_key(self.folder / "key")
        config = CONFIG.format(
            job=self.job, options=OPTIONS[self.job], logs=self.logs, root=self.place.root, ledger=self.place.ledger
        )
        (self.folder / "refresh.yaml").write_text(config)

    # --- running ---

    def start(
        self,
        day: str,
        kill: int | None,
        plant: Callable[[], None] | None = None,
        arguments: tuple[str, ...] = (),
    ) -> BaseProcess:
        """A refresh of a day in a process of its own, which ends at a step. plant: changes the code first."""
        fork = multiprocessing.get_context("fork")
        process = fork.Process(target=self._run, args=(day, kill, plant, arguments))
        process.start()
        return process

    def _run(self, day: str, kill: int | None, plant: Callable[[], None] | None, arguments: tuple[str, ...]) -> None:
        steps = Steps(self.folder / f"steps-{os.getpid()}", kill)
        if plant is not None:
            plant()
        self.place.watch(steps)
        self._watch_noise(steps)
        self._watch_drawing("-".join([f"city-{day}", *arguments[1:]]))
        with (self.folder / "output").open("a") as told, redirect_stdout(told), redirect_stderr(told):
            os.dup2(told.fileno(), 1)
            os.dup2(told.fileno(), 2)
            status = cli.main(["refresh", "--config", str(self.folder / "refresh.yaml"), "--date", day, *arguments])
            told.flush()
        os._exit(status)

    def _watch_noise(self, steps: Steps) -> None:
        """Notes each drawn result, by release, before anybody else can have it."""
        module, name = {
            "heatmap": ("sfumato.pipelines.heatmap", "release_files"),
            "histogram": ("sfumato.pipelines.counts", "trie_files"),
        }[self.job]
        owner = __import__(module, fromlist=["_"])
        real = getattr(owner, name)

        def watched(result: Any, *more: Any) -> Any:
            steps.reach("before assembly")
            files = real(result, *more)
            manifest = json.loads(files["manifest.json"])
            content = hashlib.sha256(b"".join(files[one] for one in sorted(files))).hexdigest()
            line = {
                "release_id": manifest["release_id"],
                "content": content,
                "hash": (manifest.get("ledger") or {}).get("hash"),
                "epsilon": manifest["privacy"]["epsilon"],
            }
            with (self.folder / "drawn").open("a") as file:
                file.write(json.dumps(line) + "\n")
            steps.reach("after assembly")
            return files

        setattr(owner, name, watched)

    def _watch_drawing(self, release_id: str) -> None:
        """Notes each time that noise is drawn, or a threshold is passed, before the charge is made."""
        folder, ledger = self.folder, self.place.ledger
        for owner, name in ((discrete_laplace, "_draw"), (sample_and_threshold, "threshold_rounds")):
            real = getattr(owner, name)

            def watched(*arguments: Any, real: Any = real, **named: Any) -> Any:
                if release_id not in open_ledger(ledger).history().reservations:
                    with (folder / "violations").open("a") as file:
                        file.write(f"noise was drawn before {release_id} was charged\n")
                return real(*arguments, **named)

            setattr(owner, name, watched)

    def wait(self, processes: list[BaseProcess]) -> list[int]:
        """The exit statuses; while they run, what can be seen is looked at again and again."""
        deadline = time.monotonic() + 120
        while any(process.is_alive() for process in processes) and time.monotonic() < deadline:
            self.look(ledger_too=False)
            time.sleep(0.005)
        for process in processes:
            process.join(1)
        return [-1 if process.exitcode is None else process.exitcode for process in processes]

    # --- looking ---

    def look(self, *, ledger_too: bool = True) -> None:
        """Notes every violation that somebody from outside could see at this moment."""
        for folder, names in self.place.release_folders().items():
            if missing := FILES[self.job] - names:
                self.problems.append(f"a half release is visible: {folder} lacks {missing}")
        if not ledger_too:
            return
        try:
            history = replay(self.place.entries(), with_limits=True)
        except LedgerError as error:
            self.problems.append(str(error))
            return
        if (noted := self.folder / "violations").exists():
            self.problems += noted.read_text().splitlines()
        contents: dict[str, str] = {}
        for line in self._drawn():
            reservation = history.reservations.get(line["release_id"])
            if reservation is None or reservation.hash != line["hash"]:
                self.problems.append(f"noise was drawn that nobody was charged for: {line['release_id']}")
            if contents.setdefault(line["release_id"], line["content"]) != line["content"]:
                self.problems.append(f"two different results under one charge: {line['release_id']}")
        manifests = self.releases()
        for manifest in manifests:
            reservation = history.reservations.get(manifest["release_id"])
            if reservation is None or Decimal(str(manifest["privacy"]["epsilon"])) != reservation.charge.epsilon:
                self.problems.append(f"{manifest['release_id']} is visible, and not charged as it says")
        # Of what could be seen the ledger's total is what it says it costs, each release once.
        stated = {line["release_id"]: Decimal(str(line["epsilon"])) for line in self._drawn()}
        charged = [one.charge.epsilon for name, one in history.reservations.items() if name in stated]
        if sum(charged) != sum(stated.values()):
            self.problems.append(f"the ledger's total is {sum(charged)} for releases of {sum(stated.values())}")

    def told(self) -> str:
        """The end of what the runs wrote."""
        return (self.folder / "output").read_text()[-2000:]

    def _drawn(self) -> list[dict[str, Any]]:
        place = self.folder / "drawn"
        return [json.loads(line) for line in place.read_text().splitlines()] if place.exists() else []

    def releases(self) -> list[dict[str, Any]]:
        """The manifests that can be seen."""
        objects = self.place.objects()
        return [json.loads(content) for name, content in objects.items() if name.endswith("/manifest.json")]

    def check_finished(self, days: list[str]) -> None:
        """What must hold once a run of each day has come to its end: all published, each charged once, nothing left."""
        self.look()
        history, objects = replay(self.place.entries()), self.place.objects()
        ids = {f"city-{day}" for day in days}
        if {one["release_id"] for one in self.releases()} != ids or set(history.reservations) != ids:
            self.problems.append(f"published or charged is not what was asked for: {sorted(history.reservations)}")
        if sum(one.charge.epsilon for one in history.reservations.values()) != EPSILON * len(days):
            self.problems.append("the ledger's total is not what was released")
        if any(one.manifest is None for one in history.reservations.values()):
            self.problems.append("a published release is not noted in the ledger")
        if json.loads(objects["latest.json"])["date"] != max(days):
            self.problems.append("latest.json does not name the latest day")
        if not all(f"releases/{day}".encode() in objects["index.html"] for day in days):
            self.problems.append("the page lacks a day")
        if left := [name for name in objects if "/." in f"/{name}"]:
            self.problems.append(f"left behind: {left}")


def steps_of(scene: Scene) -> list[str]:
    """The names of all steps that any process of the scene reached, in order."""
    return [line for path in sorted(scene.folder.glob("steps-*")) for line in path.read_text().splitlines()]


def forget_the_charge() -> None:
    """A planted violation: the gate lets a run pass and charges nothing."""
    accounting.LedgerGate.charge = lambda _: None  # type: ignore[method-assign]
