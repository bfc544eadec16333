"""What processes of a session of tests share is made by one of them, and made again only where that failed."""

from __future__ import annotations

import multiprocessing
from pathlib import Path

import pytest

from tests.once import made_once


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
