"""The examples in the docstrings of the classes and functions that a new maintainer meets first."""

from __future__ import annotations

import doctest
import importlib

import pytest

from tests import ROOT

MODULES = sorted(
    "sfumato." + ".".join(path.relative_to(ROOT).with_suffix("").parts)
    for folder in ("schemas", "transforms")
    for path in (ROOT / folder).rglob("*.py")
    if ">>> " in path.read_text()
)


@pytest.mark.parametrize("module", MODULES)
def test_docstring_examples_run(module: str) -> None:
    failed, tried = doctest.testmod(importlib.import_module(module), optionflags=doctest.ELLIPSIS)
    assert tried > 0
    assert failed == 0


def test_docstrings_hold_examples() -> None:
    assert len(MODULES) > 25
