"""What the pipeline around a transform of `sfumato.beam` can break, and what its ledger then refuses.

The surrounding pipeline decides which rows a transform sees. It may drop a user between two runs, lose user ids, retry
with another key, or send several windows. The difference of two results with the same noise would be exact, and two
results with different noise cost twice what the ledger holds. So a charge is bound to the rows and to the key.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.transforms import window
from apache_beam.transforms.external import ExternalTransform

from sfumato.beam import PrivateHistogram, PrivateZones
from sfumato.pipelines.frame import elements
from sfumato.schemas.errors import BudgetError, DataError, NotAdmittedError
from sfumato.transforms.privacy.ledger.charge_rules import ReusedError
from sfumato.transforms.privacy.ledger.ledger import open_ledger
from tests.keys import write_key
from tests.rejections import rejects

ROWS = [{"user_id": f"u{number}", "kind": "ab"[number % 2]} for number in range(600)]
Run = Callable[..., list[str]]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs a histogram of rows with a ledger, as a new process would, and returns its rows as text."""
    write_key(tmp_path / "key")

    def run(rows: list[Any], step: Any = None, transform: Any = None, **options: Any) -> list[str]:
        monkeypatch.setattr(elements, "_INPUTS", {})
        place = tmp_path / "rows"
        place.unlink(missing_ok=True)
        with beam.Pipeline(runner="FnApiRunner") as pipeline:
            given = pipeline | beam.Create(rows)
            counts = (given if step is None else given | "Around" >> step) | (
                transform or histogram(tmp_path, **options)
            )
            _ = counts | beam.Map(repr) | beam.io.WriteToText(str(place), shard_name_template="")
        return sorted(place.read_text().splitlines())

    return run


def histogram(folder: Path, **options: Any) -> PrivateHistogram:
    values: dict[str, Any] = {
        "column": "kind", "epsilon": 1.0, "trust": "central", "key_file": folder / "key", "release_id": "monday",
        "ledger": folder / "ledger.db", "dataset": "rides", "period": "2026-11-20", "budget": "1.5:1e-3/7d",
    }  # fmt: skip
    return PrivateHistogram(**{**values, **options})


def spent(folder: Path) -> list[tuple[str, Decimal]]:
    charges = open_ledger(str(folder / "ledger.db")).history().charges
    return [(one.release_id, one.epsilon) for one in charges]


def test_a_pipeline_is_charged_once_and_resumed(run: Run, tmp_path: Path) -> None:
    """A retry of the same rows in another order gives the same result for no further charge."""
    first = run(ROWS)
    assert first != []
    assert run(ROWS[::-1]) == first
    assert spent(tmp_path) == [("monday", Decimal(1))]
    with pytest.raises(BudgetError):
        run(ROWS, release_id="tuesday")
    assert not (tmp_path / "rows").exists()
    assert spent(tmp_path) == [("monday", Decimal(1))]


def test_a_pipeline_draws_nothing_before_its_charge(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[list[tuple[str, Decimal]]] = []

    def count_users(*arguments: Any) -> Any:
        seen.append(spent(tmp_path))
        raise NotAdmittedError("stopped at the first draw")

    monkeypatch.setattr("sfumato.transforms.privacy.admission.count_users", count_users)
    with pytest.raises(NotAdmittedError):
        run(ROWS)
    assert seen == [[("monday", Decimal(1))]]


def test_a_damaged_input_of_a_pipeline_costs_nothing(run: Run, tmp_path: Path) -> None:
    with pytest.raises(DataError):
        run([*ROWS, 7])
    (tmp_path / "log.parquet").write_bytes(b"PAR1, but no more")
    with pytest.raises(DataError):
        run([str(tmp_path / "log.parquet")])
    assert not (tmp_path / "ledger.db").exists() or spent(tmp_path) == []


def test_a_filter_around_a_charged_pipeline_is_refused(run: Run, tmp_path: Path) -> None:
    """Also in a new process: the ledger holds a digest of the rows, and the same noise would show the user."""
    run(ROWS)
    for step in (
        beam.Filter(lambda row: row["user_id"] != "u7"),
        beam.Map(lambda row: {**row, "user_id": None if row["user_id"] == "u7" else row["user_id"]}),
        beam.Map(lambda row: {**row, "kind": "b" if row["user_id"] == "u6" else row["kind"]}),
    ):
        with pytest.raises(ReusedError):
            run(ROWS, step)
        assert not (tmp_path / "rows").exists()
    assert spent(tmp_path) == [("monday", Decimal(1))]


def test_rows_without_user_ids_are_one_user(run: Run, tmp_path: Path) -> None:
    """A pipeline that loses the ids publishes nothing of their rows, which may all be one user's."""
    zones = PrivateZones(
        region=(-1.0, 50.0, 1.0, 51.0), quadkey=10, key_file=tmp_path / "key", release_id="a", epsilon=1.0
    )
    placed = [{**row, "latitude": 50.5, "longitude": 0.1} for row in ROWS]
    lost = beam.Map(lambda row: {**row, "user_id": None})
    found = run(placed, transform=zones)
    assert len(found) > 4
    assert run(placed, lost, transform=zones) == run(placed[:1], lost, transform=zones) != found


def test_a_retry_with_another_key_is_refused(run: Run, tmp_path: Path) -> None:
    """Two draws of noise for one charge would halve the variance that it pays for."""
    run(ROWS)
    write_key(tmp_path / "other", os.urandom(32))
    with pytest.raises(ReusedError):
        run(ROWS, key_file=tmp_path / "other")
    assert not (tmp_path / "rows").exists()
    with pytest.raises(ReusedError):
        run(ROWS, epsilon=0.5)


def test_a_charged_pipeline_refuses_windows(tmp_path: Path) -> None:
    write_key(tmp_path / "key")
    rows = beam.Pipeline() | beam.Create(ROWS) | beam.WindowInto(window.FixedWindows(60))
    with rejects("input"):
        _ = rows | histogram(tmp_path)
    assert not (tmp_path / "ledger.db").exists()


def test_a_ledger_is_where_all_workers_reach_it(tmp_path: Path) -> None:
    """On a worker's own disk each machine would begin a new ledger, and a new budget."""
    write_key(tmp_path / "key")
    with ExternalTransform.outer_namespace("external_1"), rejects("ledger"):
        _ = beam.Pipeline() | beam.Create(ROWS) | histogram(tmp_path)
