"""What several processes of a session of tests need is made by one of them."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable
from pathlib import Path

import pytest


def made_once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], object]) -> Path:
    """A folder of this session's temporary files, filled by `make` in the first process of pytest-xdist that asks.

    The others wait for it. Nothing is kept from one session to the next. Nobody may change what is in the folder.

    Args:
        factory: of the fixture.
        name: of the folder, used once in all tests.
        make: fills a folder, which is empty. If it fails, the next process that asks tries again in another folder.
    """
    base = factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        base = base.parent  # each worker has a folder of its own in that of the session
    with open(base / f"{name}.lock", "a+") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        made = base / f"{name}.made"
        if not made.exists():
            folder = factory.mktemp(name)
            make(folder)
            made.write_text(str(folder))
        return Path(made.read_text())
