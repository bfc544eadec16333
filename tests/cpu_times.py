"""A pytest plugin, run by `make test-times`: processor seconds of each test file, children that ended included.

Wall-clock time says little where other work shares the processors. A file's first test pays for what it imports.
"""

from __future__ import annotations

import resource
from collections import Counter
from collections.abc import Generator
from typing import Any

import pytest

_seconds: Counter[str] = Counter()


def _processor_seconds() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, bool | None, bool | None]:
    before = _processor_seconds()
    try:
        return (yield)
    finally:
        _seconds[item.location[0]] += _processor_seconds() - before


def pytest_sessionfinish(session: pytest.Session) -> None:
    if hasattr(session.config, "workeroutput"):  # a process of pytest-xdist
        session.config.workeroutput["processor seconds"] = dict(_seconds)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    _seconds.update(node.workeroutput["processor seconds"])


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    terminalreporter.section(f"{sum(_seconds.values()):.0f} processor seconds")
    for file, seconds in _seconds.most_common(40):
        terminalreporter.write_line(f"{seconds:8.1f}  {file}")
