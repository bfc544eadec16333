"""Copies of a ledger that is charged meanwhile, and its move between a file and a bucket."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sfumato.pipelines.command_line import cli
from sfumato.schemas.ledger import Limit
from sfumato.transforms.privacy.ledger.history import replay
from sfumato.transforms.privacy.ledger.ledger import open_ledger
from tests.storage import BUCKET, Emulator, storage_emulator
from tests.unit.privacy.ledger.helpers import charge, forks

LIMITS = Limit.parse_all("1000/1d")
CHARGES = 30  # of each process


@pytest.fixture(scope="module")
def emulator() -> Iterator[Emulator]:
    with storage_emulator() as running:
        yield running


def _charge(location: str, name: str, start: Any) -> None:
    start.wait()
    for number in range(CHARGES):
        open_ledger(location).reserve(charge(f"{name}-{number}", epsilon="0.01"), LIMITS)


def test_a_copy_of_a_ledger_is_what_it_held_at_one_moment(tmp_path: Path) -> None:
    location, copies = str(tmp_path / "ledger.db"), []
    open_ledger(location).set_limits("taxis", LIMITS)
    fork = forks()
    start = fork.Barrier(3)
    processes = [fork.Process(target=_charge, args=(location, name, start)) for name in ("one", "two")]
    for process in processes:
        process.start()
    start.wait()
    while any(process.is_alive() for process in processes):
        assert cli.main(["ledger", "backup", str(tmp_path / "copy"), "--ledger", location]) == 0
        copies.append((tmp_path / "copy").read_bytes().splitlines())
    for process in processes:
        process.join()
        assert process.exitcode == 0
    entries = open_ledger(location).backup().splitlines()
    assert len(entries) == 1 + 2 * CHARGES
    assert len({len(copy) for copy in copies}) > 2  # so copies were made while it was charged
    for copy in copies:
        assert copy == entries[: len(copy)]
    replay(copies[len(copies) // 2], with_limits=True)


def test_a_ledger_moves_to_a_bucket_and_back(
    tmp_path: Path, emulator: Emulator, capsys: pytest.CaptureFixture[str]
) -> None:
    file, bucket, again = str(tmp_path / "ledger.db"), f"{BUCKET}/moved/ledger", str(tmp_path / "again.db")
    copy = f"{BUCKET}/copies/ledger"

    def run(action: str, location: str, copy: str) -> int:
        return cli.main(["ledger", action, copy, "--ledger", location])

    for number in range(5):
        open_ledger(file).reserve(charge(f"r{number}", epsilon="0.5"), LIMITS)
    assert run("backup", file, str(tmp_path / "copy")) == 0
    assert run("restore", bucket, str(tmp_path / "copy")) == 0
    assert open_ledger(bucket).history(with_limits=True) == open_ledger(file).history()
    open_ledger(bucket).reserve(charge("in the bucket".replace(" ", "-"), epsilon="0.5"))
    assert run("restore", bucket, str(tmp_path / "copy")) == 2  # the bucket is newer
    assert "nothing was overwritten" in capsys.readouterr().err
    assert run("backup", bucket, copy) == 0
    assert run("restore", again, copy) == 0
    assert open_ledger(again).history() == open_ledger(bucket).history()
    assert run("restore", file, copy) == 0  # the first one is brought up to date
    assert open_ledger(file).history().entries == 7
