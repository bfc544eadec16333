"""Prints how probable it is that a correct product fails a test by chance, summed over the suite.

    python -m tests.false_alarms [PATH ...]

A statistical test states its probability for one case, `@pytest.mark.false_alarm(1e-9)`, an upper bound. A test whose
source compares a p-value with FLAKE_RATE must state one. Exit status: 0 if all of these do and the sum is at most
`ALLOWED`, else 1.
"""

from __future__ import annotations

import inspect
import sys
from collections import Counter, defaultdict
from collections.abc import Sequence

import pytest

ALLOWED = 1e-4
_WORDS = ("FLAKE_RATE", "chi_square_p", ".pvalue")


class _Collected:
    """Collects the stated probabilities, by file."""

    def __init__(self) -> None:
        self.sums, self.cases = defaultdict[str, float](float), Counter[str]()
        self.silent = set[str]()

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        for item in session.items:
            path, _, name = item.nodeid.partition("::")
            marker = item.get_closest_marker("false_alarm")
            if marker is not None:
                self.sums[path] += marker.args[0]
                self.cases[path] += 1
            elif isinstance(item, pytest.Function) and any(word in inspect.getsource(item.obj) for word in _WORDS):
                self.silent.add(f"{path}::{name.partition('[')[0]}")


def main(paths: Sequence[str]) -> int:
    """Runs the script, and returns its exit status."""
    collected = _Collected()
    options = ["-o", "addopts=", "--collect-only", "-p", "no:terminal", "-m", "not exhaustive"]
    status = pytest.main([*options, *(paths or ["tests"])], plugins=[collected])
    if status:
        return int(status)
    total = sum(collected.sums.values())
    largest = sorted(collected.sums.items(), key=lambda stated: -stated[1])
    lines = [f"{probability:8.1e}  {collected.cases[path]:4}  {path}" for path, probability in largest]
    lines += [f"states no false_alarm: {test}" for test in sorted(collected.silent)]
    lines.append(f"{total:.1e} in {sum(collected.cases.values())} cases; at most {ALLOWED:.0e} is allowed")
    sys.stdout.write("\n".join(lines) + "\n")
    return int(total > ALLOWED or bool(collected.silent))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
