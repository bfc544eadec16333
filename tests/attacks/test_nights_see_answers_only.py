"""A map over nights is post-processing: it follows from released noisy counts, and from nothing else."""

from __future__ import annotations

import ast
import builtins
import io
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.unit.heatmap.nights import nights
from tests.unit.heatmap.nights.nights import counts_of, run_nights

ROOM = Path(__file__).parents[2] / "transforms" / "heatmap" / "nights"
ALLOWED = (
    "sfumato.schemas.",
    "sfumato.transforms.heatmap.nights.",
    "sfumato.transforms.heatmap.posterior.",
    "sfumato.transforms.statistics.",
)
_RUN = """import hashlib
from tests.unit.heatmap.nights.nights import run_nights
state, maps = run_nights(range(9), None, range(100, 104), 900)
table = state.to_table()
parts = [maps[-1].estimate.counts, *maps[-1].variance]
parts += [column.chunk(0).flatten().to_numpy() if "list" in str(column.type) else column.to_numpy() for column in table]
print(hashlib.sha256(b"".join(part.tobytes() for part in parts)).hexdigest())"""


def test_the_mathematics_imports_nothing_that_reads_logs_keys_or_files() -> None:
    modules = sorted(ROOM.glob("*.py"))
    assert len(modules) == 5
    for module in modules:
        for node in ast.walk(ast.parse(module.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module] if isinstance(node, ast.ImportFrom) and node.module else []
            for name in names:
                if name.startswith("sfumato."):
                    assert name.startswith(ALLOWED) or name == "sfumato.transforms.heatmap.state", (module.name, name)
                else:
                    assert name not in ("os", "io", "random", "secrets", "pathlib", "pyarrow.parquet"), module.name


def test_a_night_opens_no_file_and_no_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("a file or a connection was opened")

    for where, name in ((builtins, "open"), (io, "open"), (os, "open"), (socket, "socket"), (subprocess, "Popen")):
        monkeypatch.setattr(where, name, refuse)
    state, maps = run_nights(range(3))
    assert maps[-1].estimate.counts.sum() == pytest.approx(counts_of(2).sum())
    state.to_table()


@pytest.mark.slow
def test_the_same_answers_give_the_same_bytes_in_any_process() -> None:
    """Neither the number of threads nor the order of hashes nor the time of the run enters."""
    found = set()
    for threads, seed in (("1", "1"), ("2", "2")):
        environment = {
            **os.environ,
            "OMP_NUM_THREADS": threads,
            "OPENBLAS_NUM_THREADS": threads,
            "PYTHONHASHSEED": seed,
        }
        command = [sys.executable, "-c", _RUN]
        found.add(subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout)
    assert len(found) == 1
    assert len(found.pop().strip()) == 64


def test_the_answers_are_not_changed_by_a_night() -> None:
    """A caller publishes the answers beside the map. They stay what was released."""
    measured = nights.measure_night(1, counts_of(1))
    before = measured.counts.copy(), measured.variance.copy()
    state, _ = run_nights([0])
    table = state.to_table()
    nights.update(state, nights.night_of(1), [measured], 200_000.0, 10.0)
    np.testing.assert_array_equal(measured.counts, before[0])
    np.testing.assert_array_equal(measured.variance, before[1])
    assert state.to_table().equals(table, check_metadata=True)
