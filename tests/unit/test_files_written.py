"""Files are written in one step, and what processes of a session of tests share is made once."""

from __future__ import annotations

import errno
import multiprocessing
import os
import resource
import signal
import time
from pathlib import Path

import pytest

from sfumato.transforms.io import files
from sfumato.transforms.io.files import write_file
from tests.once import made_once


def _stop_before_the_rename(place: str, reached: str) -> None:
    """Writes a file, and stays in the midst of it."""

    def stay(*_: object) -> None:
        Path(reached).touch()
        time.sleep(60)

    files.Path.replace = stay  # type: ignore[method-assign, assignment]
    write_file(place, b"half")


def test_leftovers_of_killed_processes_go_of_living_ones_stay(tmp_path: Path) -> None:
    spawn = multiprocessing.get_context("spawn")  # a fork would copy the threads of what other tests imported
    folder = tmp_path / "maps"
    writers = [
        spawn.Process(target=_stop_before_the_rename, args=(str(folder / name), str(tmp_path / name)))
        for name in ("killed", "alive")
    ]
    try:
        for writer, name in zip(writers, ("killed", "alive"), strict=True):
            writer.start()
            while not (tmp_path / name).exists():
                time.sleep(0.01)
        mine = folder / ".notes.0123456789abcdef0123456789abcdef"
        mine.touch()
        os.kill(writers[0].pid or 0, signal.SIGKILL)
        writers[0].join()
        assert len(list(folder.iterdir())) == 3  # the attack: a hidden file is left
        write_file(str(folder / "other"), b"whole")
        left = {path.name for path in folder.iterdir()} - {"other", mine.name}
        assert len(left) == 1
        assert left.pop().startswith(".alive.")
    finally:
        for writer in writers:
            writer.kill()
            writer.join()
    write_file(str(folder / "alive"), b"whole")
    assert {path.name for path in folder.iterdir()} == {"other", "alive", mine.name}


def test_a_file_that_is_taken_for_a_leftover_is_written_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between its creation and its lock, by another process."""
    lock, taken = files.fcntl.flock, []

    def late(file: int, how: int) -> None:
        if not taken:
            (partial,) = tmp_path.glob(".latest.json.*")
            taken.append(partial)
            partial.unlink()
        lock(file, how)

    monkeypatch.setattr(files.fcntl, "flock", late)
    write_file(str(tmp_path / "latest.json"), b"{}")
    assert taken
    assert [path.name for path in tmp_path.iterdir()] == ["latest.json"]


def test_content_is_on_the_disk_before_the_file_has_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[str] = []
    fsync, replace = os.fsync, Path.replace
    monkeypatch.setattr(files.os, "fsync", lambda file: (steps.append(os.fstat(file).st_size), fsync(file))[1])
    monkeypatch.setattr(Path, "replace", lambda path, place: (steps.append(place.name), replace(path, place))[1])
    write_file(str(tmp_path / "latest.json"), b"four")
    assert steps == [4, "latest.json"]


def test_a_file_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    """The system names none where a disk is full."""
    place, limits = tmp_path / "page.html", resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
    try:
        with pytest.raises(OSError, match=f"'{place}'$") as raised:
            write_file(str(place), bytes(2000))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert raised.value.errno == errno.EFBIG
    assert list(tmp_path.iterdir()) == []


def _ask(factory: pytest.TempPathFactory) -> None:
    def make(folder: Path) -> None:
        (folder / "made").write_text("whole")

    assert (made_once(factory, "asked_at_once", make) / "made").read_text() == "whole"


@pytest.mark.filterwarnings("ignore:os.fork:RuntimeWarning")  # where an earlier test has started JAX
def test_processes_that_ask_at_once_share_one(tmp_path_factory: pytest.TempPathFactory) -> None:
    processes = [multiprocessing.get_context("fork").Process(target=_ask, args=(tmp_path_factory,)) for _ in range(4)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
    assert [process.exitcode for process in processes] == [0] * 4
    made = made_once(tmp_path_factory, "asked_at_once", lambda _: pytest.fail("made again"))
    assert [one.name for one in made.parent.glob("asked_at_once[0-9]*") if one.is_dir()] == [made.name]


def test_what_failed_is_made_again(tmp_path_factory: pytest.TempPathFactory) -> None:
    def fail(folder: Path) -> None:
        (folder / "half").touch()
        raise ValueError("halfway")

    with pytest.raises(ValueError, match="halfway"):
        made_once(tmp_path_factory, "failed", fail)
    made = made_once(tmp_path_factory, "failed", lambda folder: (folder / "whole").touch())
    assert [one.name for one in made.iterdir()] == ["whole"]
