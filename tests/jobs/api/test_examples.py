"""The examples in the public API's docstrings run, and print what they say."""

from __future__ import annotations

import doctest
import glob
from pathlib import Path

import apache_beam
import pytest

import sfumato

pytestmark = pytest.mark.usefixtures("blank_pictures")  # nothing here looks at them

EXAMPLES = [
    one
    for name in sfumato.__all__
    for one in doctest.DocTestFinder(recurse=False).find(getattr(sfumato, name), f"sfumato.{name}")
    if one.examples
]
TRANSFORMS = [one for one in vars(sfumato.beam).values() if isinstance(one, type) and one.__module__ == "sfumato.beam"]
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


@pytest.mark.parametrize("example", [*EXAMPLES, *PIPELINES], ids=lambda one: one.name)
def test_example_runs(example: doctest.DocTest, city: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "logs").symlink_to(city / "logs")
    monkeypatch.chdir(tmp_path)
    example.globs = {"sfumato": sfumato, "beam": apache_beam, "glob": glob, "Path": Path}
    example.globs |= {one.__name__: one for one in TRANSFORMS}
    failures: list[str] = []
    doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(example, out=failures.append)
    assert not failures, "".join(failures)
