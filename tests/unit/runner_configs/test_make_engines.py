"""`make` for engines says what it does and how long it takes, and that it falls back to an older job server.

Maven and Go are programs that make the file at once: the real ones need a network and minutes.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

from tests import ROOT

MAVEN = """#!/bin/sh
case "$*" in
  *:copy*) {published} ;;
  *) touch "$MADE" ;;
esac
"""
pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="needs make")


@pytest.fixture
def place(tmp_path: Path) -> Path:
    shutil.copy(ROOT / "Makefile", tmp_path)
    shutil.copytree(ROOT / "runner_configs", tmp_path / "runner_configs")
    for name in ("pyproject.toml", "setup.py"):
        (tmp_path / name).touch()
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    (tmp_path / ".venv" / "bin" / "python").write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    (tmp_path / ".venv" / "bin" / "python").chmod(0o755)
    (tmp_path / ".venv" / ".installed").touch()
    (tmp_path / "bin").mkdir()
    return tmp_path


def make(place: Path, target: str, made: str, **programs: str) -> str:
    for name, script in programs.items():
        (place / "bin" / name).write_text(script)
        (place / "bin" / name).chmod(0o755)
    outer = {
        "MAKEFLAGS",
        "MAKELEVEL",
        "MFLAGS",
    }  # of the make that runs the tests; with them, make names its directory first
    environment = {name: value for name, value in os.environ.items() if name not in outer}
    environment |= {"PATH": f"{place / 'bin'}:{os.environ['PATH']}", "MADE": str(place / made)}
    done = subprocess.run(["make", target], cwd=place, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert (place / made).exists()
    return done.stdout


@pytest.mark.parametrize("engine", ["flink", "spark"])
@pytest.mark.parametrize("published", [True, False])
def test_an_older_job_server_is_announced(place: Path, engine: str, published: bool) -> None:
    jar = f"build/{engine}/job-server.jar"
    fetched = f'touch "{place}/build/{engine}/$(expr "$*" : ".*beam:\\([^:]*\\):")".jar'
    said = make(place, f"{engine}-jar", jar, mvn=MAVEN.format(published=fetched if published else "exit 1"))
    (older,) = re.findall("<beam>(.*)</beam>", (ROOT / "runner_configs" / engine / "pom.xml").read_text())
    assert metadata.version("apache-beam") in said
    assert "minute" in said
    assert (older in said) is not published
    assert (f"build/{engine}/published.log" in said) is not published


def test_prism_says_what_it_does_before_it_is_silent(place: Path) -> None:
    said = make(place, "prism", "build/prism/prism", go='#!/bin/sh\nmkdir -p "$GOBIN"\ntouch "$GOBIN/prism"\n')
    assert metadata.version("apache-beam") in said
    assert "minutes" in said.splitlines()[0]
