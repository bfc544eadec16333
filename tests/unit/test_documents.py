"""What the page on the papers states follows from its tables, and the examples in docstrings run."""

from __future__ import annotations

import ast
import doctest
import importlib
import re
from decimal import Decimal
from functools import cache
from pathlib import Path

import pytest

from tests import ROOT

RESULTS = ROOT / "docs" / "results"
COLUMNS = ["Figure or table", "Measure", "Setting", "Command", "The paper", "Ours", "Verdict"]
VERDICTS = ("confirmed", "not confirmed", "better", "equal", "worse", "not comparable", "not measured")
LINK = re.compile(r"\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s]+)\)")
NUMBER = re.compile(r"(?<![\w.])\d[\d,]*(?:\.\d+)?(?:e[+-]?\d+)?")


def tables(page: Path) -> list[tuple[int, dict[str, str]]]:
    """Returns the rows of all tables of a page: the number of the line, and the cells by the name of their column."""
    rows: list[tuple[int, dict[str, str]]] = []
    header: list[str] = []
    for number, line in enumerate(page.read_text().splitlines(), start=1):
        if not line.startswith("|"):
            header = []
            continue
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        if not header:
            header = cells
        elif set(line) - set("|-: "):
            assert len(cells) == len(header), f"{page.name}:{number}: {len(cells)} cells under {len(header)} columns"
            rows.append((number, dict(zip(header, cells, strict=True))))
    return rows


def numbers(text: str) -> set[Decimal]:
    without_targets = LINK.sub(r"\1", text)
    return {Decimal(found.replace(",", "")) for found in NUMBER.findall(without_targets)}


@cache
def numbers_of_page(path: Path) -> set[Decimal]:
    return numbers(path.read_text())


def linked_pages(cell: str) -> list[Path]:
    targets = [target.partition("#")[0] for _, target in LINK.findall(cell)]
    return [(RESULTS / target).resolve() for target in targets if target.endswith(".md")]


PAPERS = tables(RESULTS / "papers.md")
CONFORMANCE = tables(RESULTS / "conformance.md")


def test_numbers_reads_figures_and_no_links() -> None:
    text = "1.10, 12,734, 1.3e+05 and 7e-15 of 90% in [Figure 8](page9.md#anchor10); 2^14, -3"
    assert numbers(text) == {Decimal(n) for n in ("1.1", "12734", "130000", "7e-15", "90", "8", "2", "14", "3")}


def test_papers_has_one_form() -> None:
    assert len(PAPERS) > 80
    for line, row in PAPERS:
        assert list(row) == COLUMNS, f"papers.md:{line}"
        assert row["Verdict"].lower().lstrip("*").startswith(VERDICTS), f"papers.md:{line}: {row['Verdict']}"


def test_papers_numbers_stand_on_linked_pages() -> None:
    faults = []
    for line, row in PAPERS:
        pages = linked_pages(row["Command"])
        if row["Ours"] == "-":
            assert row["Verdict"].lower().lstrip("*").startswith(("not measured", "not comparable")), (
                f"papers.md:{line}"
            )
        elif not pages:
            faults.append(f"papers.md:{line}, {row['Figure or table']}: no page is linked")
        known = {number for cell in ("The paper", "Measure", "Setting") for number in numbers(row[cell])}
        missing = (numbers(row["Ours"]) | numbers(row["Verdict"])) - known.union(*map(numbers_of_page, pages))
        if missing:
            faults.append(f"papers.md:{line}, {row['Figure or table']}: {sorted(map(str, missing))}")
    assert not faults, "\n".join(faults)


@cache
def names(path: Path) -> set[str]:
    """Returns the functions, classes, methods as `Class.method`, and assigned names of a module."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ClassDef):
            inner = [item for item in node.body if isinstance(item, ast.FunctionDef | ast.AnnAssign | ast.Assign)]
            found |= {f"{node.name}.{name}" for item in inner for name in names_of(item)}
        found |= names_of(node)
    return found


def names_of(node: ast.AST) -> set[str]:
    match node:
        case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
            return {name}
        case ast.AnnAssign(target=ast.Name(id=name)):
            return {name}
        case ast.Assign(targets=targets):
            return {target.id for target in targets if isinstance(target, ast.Name)}
    return set()


def test_conformance_names_exist() -> None:
    assert len(CONFORMANCE) > 60
    for line, row in CONFORMANCE:
        assert list(row) == ["The paper", "Code", "Test", "Difference or erratum"], f"conformance.md:{line}"
        assert row["Difference or erratum"], f"conformance.md:{line}"
        for column in ("Code", "Test"):
            stated = re.findall(r"`([\w/]+\.py):([\w.]+)`", row[column])
            assert stated, f"conformance.md:{line}: no {column.lower()}"
            for path, name in stated:
                assert name in names(ROOT / path), f"conformance.md:{line}: {path} has no {name}"
                assert column == "Code" or name.split(".")[-1].startswith("test_"), f"conformance.md:{line}: {name}"


# --- examples in docstrings ---

WITH_EXAMPLES = sorted(
    "sfumato." + ".".join(path.relative_to(ROOT).with_suffix("").parts)
    for folder in ("schemas", "transforms")
    for path in (ROOT / folder).rglob("*.py")
    if ">>> " in path.read_text()
)


@pytest.mark.parametrize("module", WITH_EXAMPLES)
def test_docstring_examples_run(module: str) -> None:
    failed, tried = doctest.testmod(importlib.import_module(module), optionflags=doctest.ELLIPSIS)
    assert tried > 0
    assert failed == 0


def test_docstrings_hold_examples() -> None:
    assert len(WITH_EXAMPLES) > 25
