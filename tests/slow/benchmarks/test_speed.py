"""The table of speed: whole processes are measured with their children, and a ratio is to the pass just before."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from benchmarks.speed import HEADS, STAGES, Measured, Run, main, run

_SPIN = "import time\nwhile time.process_time() < 0.4: pass\n"


def test_processor_time_and_memory_are_those_of_the_children_too() -> None:
    hold = f"held = bytearray(200_000_000)\n{_SPIN}"
    child = f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {hold!r}], check=True)\n{_SPIN}"
    found = run([sys.executable, "-c", child])
    assert found.processor >= 0.8
    assert found.peak >= 200_000_000


def test_a_command_that_fails_ends_the_benchmark_with_its_words() -> None:
    with pytest.raises(SystemExit, match="no such thing"):
        run([sys.executable, "-c", "raise SystemExit('no such thing')"])


def test_stages_end_at_the_jobs_own_lines() -> None:
    lines = [(1.0, "sfumato zones: 2 files to read"), (3.0, "  read and grouped the logs: 5 users"), (4.0, "other")]
    assert Run(10.0, 5.0, 0, lines).stages() == [1.0, 2.0, 7.0]
    assert Run(10.0, 5.0, 0).stages() == []


def test_ratios_are_to_the_pass_just_before() -> None:
    runs = [
        (Run(seconds, 2 * seconds, 5_000_000), Run(floor, floor, 0), None)
        for seconds, floor in ((4, 1), (9, 3), (8, 8))
    ]
    assert Measured(runs).cells() == ["8.0", "16.0", "3.0", "6.0", "-", "5", *["-"] * len(STAGES)]


def test_a_job_is_measured_on_logs_that_are_made(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["--data", str(tmp_path), "--sizes", "0.005", "--jobs", "mean and variance", "--repeats", "1"])
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in capsys.readouterr().out.splitlines()[2:]]
    assert rows[0] == HEADS
    assert [row[1] for row in rows[2:]] == ["`import apache_beam`", "bare pass", "mean and variance, trusted curator"]
    assert all(float(cell.replace(",", "")) > 0 for cell in rows[-1][2:])
