"""Where a local run keeps users' cells: memory, or a private folder that goes even where its process was killed."""

from __future__ import annotations

import contextlib
import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from sfumato.pipelines import folders, scratch
from sfumato.pipelines.runner_settings import RunnerSettings, runner_settings
from sfumato.transforms.locations.spill import MEMORY, Spill, load

LARGE = 10**12
HOLD = (
    "import time\n"
    "from sfumato.pipelines.folders import private_folder\n"
    "with private_folder() as place:\n"
    "    open(place + '/cells', 'w').write('of a user')\n"
    "    print(place, flush=True)\n"
    "    time.sleep(60)\n"
)


@pytest.fixture(autouse=True)
def _own_temporary_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))


def settings() -> RunnerSettings:
    return runner_settings(None, None, []).sized(1000)


def test_one_process_holds_its_data_in_memory_and_lets_go() -> None:
    with scratch.scratch(settings(), 1000) as place:
        assert place is not None
        assert place.startswith(MEMORY)
        stored = Spill(place).store(b"cells")
        assert bytes(load(stored)[0]) == b"cells"
    with pytest.raises(KeyError):
        load(stored)


def test_else_a_private_folder_is_made_and_removed(tmp_path: Path) -> None:
    with scratch.scratch(settings(), LARGE) as place:
        assert place is not None
        assert Path(place).parent == tmp_path
        assert stat.S_IMODE(os.stat(place).st_mode) == 0o700
        stored = Spill(place).store(b"cells")
        assert bytes(load(stored)[0]) == b"cells"
        assert {stat.S_IMODE(path.stat().st_mode) for path in Path(place).iterdir()} == {0o600}
    assert list(tmp_path.iterdir()) == []
    with contextlib.suppress(ZeroDivisionError), scratch.scratch(settings(), LARGE):
        raise ZeroDivisionError
    assert list(tmp_path.iterdir()) == []


def test_a_run_sweeps_what_a_killed_run_left_and_nothing_else(tmp_path: Path) -> None:
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    jobs = [
        subprocess.Popen([sys.executable, "-c", HOLD], stdout=subprocess.PIPE, text=True, env=environment)
        for _ in range(2)
    ]
    killed, alive = (Path(job.stdout.readline().strip()) for job in jobs)  # type: ignore[union-attr]
    try:
        jobs[0].kill()
        jobs[0].wait()
        assert (killed / "cells").is_file()  # the attack: raw cells are left on the disk
        theirs = [
            tmp_path / name for name in ("sfumato-scratch-of-mine", "sfumato-releases", "sfumato-scratch-abcd1234")
        ]
        for folder in theirs:
            folder.mkdir(mode=0o755)  # of the names, none is a scratch folder's and private
        (tmp_path / "sfumato-scratch-abcdefgh").symlink_to(theirs[1])
        with scratch.scratch(settings(), 1000):
            assert not killed.exists()
            assert (alive / "cells").is_file()
        assert all(folder.is_dir() for folder in theirs)
        jobs[1].send_signal(signal.SIGKILL)
        jobs[1].wait()
        folders.sweep()
        assert not alive.exists()
    finally:
        for job in jobs:
            job.kill()
            job.communicate()
