"""Places where nights are refreshed: logs by day, a key and a configuration; and two series that are published once."""

from __future__ import annotations

import re
import shlex
import shutil
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml
from matplotlib.backends.backend_agg import FigureCanvasAgg

from sfumato.pipelines.command_line import cli
from sfumato.transforms.privacy.ledger.history import History
from sfumato.transforms.privacy.ledger.ledger import open_ledger
from sfumato.transforms.release.published_release import open_release
from tests.conftest import make_logs, write_files
from tests.keys import write_key
from tests.once import made_once

DAYS = ["2026-11-18", "2026-11-19", "2026-11-20"]
CONFIG: dict[str, Any] = {
    "dataset": "city",
    "input": "logs",
    "output": "published",
    "ledger": "ledger.db",
    "key_file": "key",
    "budget": [{"epsilon": 4, "days": 1}, {"epsilon": 12, "days": 30}],
    "options": {"region": [-1, 50, 1, 51], "depth": 6, "epsilon": 4, "shard_size": 300, "dropout": 0.4},
}
NIGHTS = [date(2026, 11, 17) + timedelta(days=number) for number in range(5)]
ROTATING: dict[str, Any] = {"rotation": 3, "budget": [{"epsilon": 4, "days": 3}]}


class Place:
    """A folder with logs, key and configuration."""

    def __init__(self, folder: Path, days: Path | None, **changes: Any):
        """days: folder of logs that is copied; None for a place that exists."""
        self.folder, self.config = folder, folder / "refresh.yaml"
        if days is not None:
            shutil.copytree(days, folder / "logs")
            write_key(folder / "key")
            self.write(**changes)

    def copy(self, folder: Path) -> Place:
        """Another place like this one."""
        shutil.copytree(self.folder, folder)
        return Place(folder, None)

    def write(self, **changes: Any) -> None:
        self.config.write_text(yaml.safe_dump({**CONFIG, **changes}))

    def refresh(self, *arguments: str) -> int:
        """Runs the command; returns its exit status."""
        return cli.main(["refresh", "--config", str(self.config), *arguments])

    def run(self, *arguments: str) -> int:
        """Runs the command, and raises its errors."""
        return cli.run_command("refresh", ["--config", str(self.config), *arguments])

    def crash(self, day: str) -> None:
        """A refresh that is charged, and dies before it publishes."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("sfumato.transforms.release.publishing.publish", lambda *_: 1 / 0)
            with pytest.raises((RuntimeError, ZeroDivisionError), match="division by zero"):
                self.refresh("--date", day)

    def ledger(self, *arguments: str) -> int:
        return cli.main(["ledger", *arguments, "--ledger", str(self.folder / "ledger.db")])

    def verify(self) -> int:
        """What `sfumato ledger verify` says of the ledger and all releases."""
        return self.ledger("verify", "--releases", str(self.published))

    def releases(self, action: str, *arguments: str) -> int:
        """Runs `sfumato releases prune` or `sfumato releases remove`."""
        places = ["--timeline", str(self.published), "--ledger", str(self.folder / "ledger.db")]
        return cli.main(["releases", action, *arguments, *places])

    def remove(self, day: object, *arguments: str, reason: str = "a wrong file") -> int:
        """Takes the release of a day down."""
        return self.releases("remove", f"city-{day}", "--reason", reason, *arguments)

    @property
    def published(self) -> Path:
        return self.folder / "published"

    def night(self, day: object) -> Path:
        """The folder of a day's release."""
        return self.published / "releases" / str(day)

    def release(self, day: object) -> Any:
        return open_release(self.night(day))

    def manifest(self, day: object) -> dict[str, Any]:
        found: dict[str, Any] = self.release(day).manifest
        return found

    def files(self, day: object) -> list[str]:
        """Names of the files of a day's release."""
        return sorted(path.name for path in self.night(day).iterdir())

    def contents(self) -> dict[str, bytes]:
        """All files below this place."""
        return {
            str(path.relative_to(self.folder)): path.read_bytes() for path in self.folder.rglob("*") if path.is_file()
        }

    @property
    def has_ledger(self) -> bool:
        return (self.folder / "ledger.db").exists()

    @property
    def history(self) -> History:
        return open_ledger(str(self.folder / "ledger.db")).history(with_limits=True)

    @property
    def entries(self) -> int:
        return self.history.entries


def repair(said: str) -> list[str]:
    """The arguments of the command that a message names as its remedy."""
    found = re.search(r"publish it again: sfumato (refresh --config \S+ --date \d{4}-\d{2}-\d{2})", said)
    assert found, said
    return shlex.split(found[1])


def write_days(folder: Path, days: list[Any]) -> None:
    """Logs of 900 users for each day."""
    for number, day in enumerate(days):
        write_files(make_logs(900, 2, seed=number), folder / f"dt={day}", 2)


@pytest.fixture(scope="session")
def days(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Logs of three days."""
    return made_once(tmp_path_factory, "days", lambda folder: write_days(folder, DAYS))


@pytest.fixture(scope="session")
def nights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Logs of five nights."""
    return made_once(tmp_path_factory, "nights", lambda folder: write_days(folder, NIGHTS))


@pytest.fixture
def place(tmp_path: Path, days: Path) -> Place:
    """Three days that can be refreshed."""
    return Place(tmp_path / "place", days)


def _published(factory: pytest.TempPathFactory, name: str, logs: Path, backfill: str, **changes: Any) -> Place:
    def publish(folder: Path) -> None:
        with pytest.MonkeyPatch.context() as patch:  # pictures are blank, as in the tests that make releases again
            patch.setattr(FigureCanvasAgg, "draw", FigureCanvasAgg.get_renderer)
            assert Place(folder, logs, **changes).refresh("--backfill", backfill) == 0

    return Place(made_once(factory, name, publish), None)


@pytest.fixture(scope="session")
def backfilled(tmp_path_factory: pytest.TempPathFactory, days: Path) -> Place:
    """Three days that were published; not to be changed."""
    budget = [{"epsilon": 40, "days": 30}]
    return _published(tmp_path_factory, "backfilled", days, f"{DAYS[0]}:{DAYS[-1]}", budget=budget)


@pytest.fixture(scope="session")
def month(tmp_path_factory: pytest.TempPathFactory, nights: Path) -> Place:
    """Four nights of which each asks a third of the users, and the logs of a fifth; not to be changed."""
    return _published(tmp_path_factory, "month", nights, f"{NIGHTS[0]}:{NIGHTS[3]}", **ROTATING)
