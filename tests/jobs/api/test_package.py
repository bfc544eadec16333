"""What the package brings with it, and its examples, which run and print what they say."""

from __future__ import annotations

import doctest
import glob
import re
import subprocess
import sys
from pathlib import Path

import apache_beam
import pytest

import sfumato
from tests import ROOT
from tests.two_servers import City

# --- what `import sfumato` brings with it, and what it does not ---

HEAVY = ("apache_beam", "numpy", "pandas", "scipy", "matplotlib", "pyarrow")


def loaded(code: str) -> set[str]:
    """Which heavy packages a fresh Python has loaded after some code."""
    end = f"\nimport sys; print(*[name for name in {HEAVY!r} if name in sys.modules])"
    run = subprocess.run([sys.executable, "-c", code + end], check=True, capture_output=True, text=True)
    return set(run.stdout.split())


def test_importing_the_package_loads_nothing_heavy_and_is_fast():
    assert loaded("import sfumato") == set()
    timed = "import time; began = time.process_time(); import sfumato; print(time.process_time() - began)"
    runs = [subprocess.run([sys.executable, "-c", timed], capture_output=True, text=True) for _ in range(3)]
    assert min(float(run.stdout) for run in runs) < 0.05


@pytest.mark.slow
def test_importing_the_transforms_leaves_logging_to_the_caller():
    code = "import logging, sys, sfumato.beam; sys.exit(len(logging.getLogger().handlers))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    "code",
    [
        "sfumato.open_release({release!r}).cells",
        "sfumato.open_model({model!r}).answer(-122.43, 37.76, 1000)",
        "sfumato.plan(users=100_000, depth=6)",
        "sfumato.Region(0, 0, 1, 1)",
        "sfumato.RequestError",
    ],
)
def test_reading_and_planning_need_no_beam(code: str, releases: dict[str, sfumato.Release]):
    call = code.format(release=releases["heatmap"].path, model=releases["ranges"].path)
    assert "apache_beam" not in loaded(f"import sfumato; {call}")


def test_nothing_below_uses_the_public_api():
    root = ROOT
    names = r"(?:beam|jobs|releases)"
    upwards = re.compile(rf"^\s*(?:import sfumato$|from sfumato import |(?:from|import) sfumato\.{names}\b)", re.M)
    rooms = [path for room in ("schemas", "transforms", "pipelines") for path in (root / room).rglob("*.py")]
    assert len(rooms) > 100
    assert not [str(path) for path in rooms if upwards.search(path.read_text())]


# --- the examples in the public API's docstrings run, and print what they say ---

pytestmark = pytest.mark.usefixtures("blank_pictures")  # nothing here looks at them

EXAMPLES = [
    one
    for name in sfumato.__all__
    for one in doctest.DocTestFinder(recurse=False).find(getattr(sfumato, name), f"sfumato.{name}")
    if one.examples and name.islower()
]
TRANSFORMS = [one for name, one in vars(sfumato.beam).items() if name.startswith("Private")]
PIPELINES = [one for value in TRANSFORMS for one in doctest.DocTestFinder(recurse=False).find(value, value.__name__)]
MAX_LINES = 12
FUNCTIONS = {name for name in sfumato.__all__ if name.islower() and name not in ("beam", "open_model")}


def test_every_function_has_an_example():
    assert {one.name.removeprefix("sfumato.") for one in EXAMPLES} == FUNCTIONS


def test_every_transform_has_a_short_pipeline():
    """Of at most twelve lines, without the check of what it wrote."""
    assert len(PIPELINES) == len(TRANSFORMS) >= 5
    for one in PIPELINES:
        assert sum(len(step.source.splitlines()) for step in one.examples[:-1]) <= MAX_LINES, one.name


@pytest.mark.slow
@pytest.mark.parametrize("example", [*EXAMPLES, *PIPELINES], ids=lambda one: one.name)
def test_example_runs(example: doctest.DocTest, city: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "logs").symlink_to(city / "logs")
    monkeypatch.chdir(tmp_path)
    City.new(tmp_path, start="2000-01-01T00:00:00+00:00", end="2100-01-01T00:00:00+00:00")
    example.globs = {"sfumato": sfumato, "beam": apache_beam, "glob": glob, "Path": Path}
    example.globs |= {one.__name__: one for one in TRANSFORMS}
    failures: list[str] = []
    doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(example, out=failures.append)
    assert not failures, "".join(failures)
