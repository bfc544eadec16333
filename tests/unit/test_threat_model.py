"""Promises of the threat model have tests that exist, and the planted faults can be planted."""

from __future__ import annotations

import ast
import re

import pytest

from tests import ROOT
from tests.mistakes import FAULTS, SHOWN
from tests.planted_faults import main

PAGE = (ROOT / "docs" / "explanation" / "threat_model.md").read_text()
ROWS = re.findall(r"^\| ([^|]+) \| `(tests/[\w/]+\.py)::(\w+)` \|$", PAGE, flags=re.MULTILINE)


def test_the_tables_are_read_whole() -> None:
    _, *tables = PAGE.split("| promise | test |\n|---|---|\n")
    groups = [table.split("\n\n")[0].strip().splitlines() for table in tables]
    assert len(ROWS) == sum(map(len, groups)) > 200
    promises = [promise for promise, _, _ in ROWS]
    assert len(set(promises)) == len(promises)
    for group in groups:
        promises = [row.split(" | ")[0] for row in group]
        assert promises == sorted(promises, key=str.casefold)


@pytest.mark.parametrize(("promise", "file", "name"), ROWS, ids=[f"{file}::{name}" for _, file, name in ROWS])
def test_each_promise_has_a_test(promise: str, file: str, name: str) -> None:
    found = [one for one in ast.parse((ROOT / file).read_text()).body if isinstance(one, ast.FunctionDef)]
    assert name in {one.name for one in found}, promise


def test_each_attack_is_the_test_of_a_promise() -> None:
    attacks = {f"tests/attacks/{path.name}" for path in (ROOT / "tests" / "attacks").glob("test_*.py")}
    assert attacks <= {file for _, file, _ in ROWS}


def test_every_fault_can_be_planted() -> None:
    assert main(["--list"]) == 0
    assert len({fault.name for fault in FAULTS}) == len(FAULTS) >= 150
    assert sum(fault.subject in SHOWN for fault in FAULTS) >= 30
    for fault in FAULTS:
        assert len(fault.name) <= 60
        assert fault.old.count("\n") <= 2
        assert fault.old != fault.new
