"""Errors say what they are about, so that callers and tests need not read their words."""

from __future__ import annotations

import ast

import pytest

from sfumato.schemas.errors import LedgerError, RequestError
from tests import ROOT

# Errors that are about an option or a file; the others are about a run, or about users.
KINDS = {"RequestError", "FormatError", "LedgerError", "BudgetError"}
# Wrapped by whoever knows the option, or about the command line as a whole.
WITHOUT = {
    "no file matches ", "the folder ", "no job named ", "unknown option ", "no credentials for Google Cloud",
    "BigQuery needs its library", "Delta tables need their library", "Iceberg tables need their library",
    "column ", "there are none", "the release's manifest ", "a release of `sfumato heatmap`", "second_",
    "delta:", "iceberg:", "FILE: ", "format ",
}  # fmt: skip


@pytest.mark.parametrize(
    ("message", "option", "file"),
    [
        ("epsilon: must be above 0, got 0", "epsilon", None),
        ("log.parquet: cannot be opened", None, "log.parquet"),
        ("region, column: give one of them", "region, column", None),
        ("h3 and quadkey: give one of them", "h3 and quadkey", None),
        ("zones: city.geojson: damaged", "zones", None),
        ("gs://bucket/release: no release here", None, "gs://bucket/release"),
        ("/tmp/a/release: cells.parquet: is damaged", None, "/tmp/a/release"),
        ("too few users: none of 3 shards had the required 40 survivors", None, None),
        ("nothing is said of it", None, None),
    ],
)
def test_an_error_names_its_option_or_its_file(message: str, option: str | None, file: str | None) -> None:
    error = LedgerError(message)
    assert (error.option, error.file, str(error)) == (option, file, message)


def test_a_message_is_one_line() -> None:
    assert str(RequestError("input: \n first\n  second ")) == "input: first second"


def _heads() -> list[tuple[str, str]]:
    """How the messages in the product begin: where they stand, and their first words, {} for a value."""
    found = []
    for folder in ("api", "pipelines", "transforms", "schemas"):
        for path in (ROOT / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in KINDS):
                    continue
                first = node.args[0]
                parts = first.values if isinstance(first, ast.JoinedStr) else [first]
                texts = [str(one.value) if isinstance(one, ast.Constant) else "{}" for one in parts]
                found.append((f"{path.relative_to(ROOT)}:{node.lineno}", "".join(texts)))
    return found


def test_every_message_begins_with_what_it_is_about() -> None:
    heads = _heads()
    assert len(heads) > 500
    bad = [
        (place, head)
        for place, head in heads
        if RequestError(head).option is None and not head.startswith("{}") and not head.startswith(tuple(WITHOUT))
    ]
    assert bad == []
