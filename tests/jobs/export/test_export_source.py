"""What every file states, for releases of any guarantee."""

from __future__ import annotations

from typing import Any

import pytest

from sfumato.schemas.release import NEGATIVE
from sfumato.transforms.export.export_source import ExportSource, release_statement
from sfumato.transforms.export.map_raster import column_text
from sfumato.transforms.release.published_release import Release
from tests.jobs.export.conftest import KINDS

COUNTS = {"users", "count", "trips", "noisy", "users_unbiased", "before", "after"}


def stated(**manifest: Any) -> dict[str, str]:
    return release_statement(Release("folder", {"job": "heatmap", "release_id": "monday", **manifest}, "digest"))


@pytest.mark.parametrize("kind", KINDS)
def test_it_is_plain_text_without_gaps(kind: str, sources: dict[str, ExportSource]) -> None:
    statement = sources[kind].statement
    assert all(isinstance(value, str) and value for value in statement.values())
    assert statement["manifest_sha256"] == sources[kind].release.digest
    if kind != "changes":
        manifest = sources[kind].release.manifest
        assert statement["guarantee"] == sources[kind].release.guarantee
        assert statement["trust"] == manifest["privacy"]["trust"]
        assert float(statement["delta"]) == pytest.approx(manifest["privacy"]["delta"])


@pytest.mark.parametrize("kind", KINDS)
def test_a_file_says_what_a_count_below_zero_means(kind: str, sources: dict[str, ExportSource]) -> None:
    source = sources[kind]
    assert NEGATIVE in source.statement["below_zero"]
    for name in source.release.tables if kind != "flows" else ():  # the flows here are a table made by hand
        table = source.release.arrow_table(f"{name}.parquet")
        for field in table.schema:
            if field.name in COUNTS or field.name.startswith("count_"):
                below_zero = min((value for value in table[field.name].to_pylist() if value is not None), default=0) < 0
                assert not below_zero or "negative" in column_text(field), (name, field.name)


def test_no_privacy_and_unsafe_keys_are_said() -> None:
    without = stated(privacy={"epsilon": None})
    assert without["epsilon"] == "none"
    assert "no differential privacy" in without["title"]
    assert without["guarantee"].startswith("No differential privacy")
    unsafe = stated(privacy={"epsilon": 1.0, "randomness": {"safe": False}}, warnings=["a seed", "and more"])
    assert unsafe["guarantee"].startswith("Protects nobody")
    assert unsafe["warnings"] == "a seed and more"


def test_the_period_is_that_of_the_ledger() -> None:
    ledger = {"first_day": "2026-11-20", "last_day": "2026-11-21"}
    assert stated(ledger=ledger)["period"] == "2026-11-20/2026-11-21"
    assert stated()["period"] == "not stated"


def test_changes_cost_what_both_releases_cost() -> None:
    sides = {"before": {"release_id": "a", "epsilon": 1.0, "delta": 0.0}, "after": {"release_id": "b", "epsilon": 2.0}}
    found = stated(job="changes", privacy={"note": "Both."}, **sides)
    assert found["epsilon"] == "3"
    assert found["delta"] == "none"  # one side does not state it
    assert "a (ε = 1)" in found["guarantee"]
    assert "b (ε = 2)" in found["guarantee"]
    unknown = stated(job="changes", before={"epsilon": None}, after={"epsilon": 1.0})
    assert unknown["epsilon"] == "none"
