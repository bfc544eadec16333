"""Zones of a release are post-processing: they read its published files alone, and leave every other file as it is."""

from __future__ import annotations

import builtins
import io
import os
from pathlib import Path
from typing import Any

import pytest
import shapely

import sfumato
from sfumato.pipelines.cli import main
from tests.keys import write_key

REGION = (3.00, 1.00, 3.13, 1.13)


@pytest.mark.slow
def test_nothing_but_published_files_is_read_and_no_ledger_or_key_is_touched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The logs and the key are gone, the ledger is as before, and no file of the release is written."""
    logs = sfumato.synth(tmp_path / "logs", users=3000, seed=1)
    ledger = tmp_path / "ledger.db"
    write_key(tmp_path / "key")
    charge = {
        "ledger": ledger,
        "key_file": tmp_path / "key",
        "period": "2026-11-01",
        "dataset": "city",
        "budget": "10/365d",
    }
    options: dict[str, Any] = {"region": REGION, "depth": 5, **charge}
    release = sfumato.heatmap(logs, output=tmp_path / "map", **options)
    charged = ledger.read_bytes()
    for file in (tmp_path / "logs").glob("*.parquet"):
        file.unlink()
    published = {path: path.read_bytes() for path in Path(release.path).iterdir()}
    read: list[str] = []
    opened = builtins.open

    def watched(file: Any, *arguments: Any, **named: Any) -> Any:
        if isinstance(file, str | os.PathLike):
            read.append(os.path.abspath(file))
        return opened(file, *arguments, **named)

    monkeypatch.setattr(builtins, "open", watched)
    monkeypatch.setattr(io, "open", watched)
    given = ["zones", "--release", str(tmp_path / "map"), "--h3", "7", "--output", str(tmp_path / "out.csv")]
    assert main(given) == 0
    release.zones([shapely.box(3.03, 1.03, 3.08, 1.09)])
    mine = {path for path in read if path.startswith(str(tmp_path)) and ".out.csv." not in path}
    assert str(tmp_path / "map" / "cells.parquet") in mine
    assert mine <= {str(tmp_path / "map" / name) for name in ("manifest.json", "cells.parquet", "totals.parquet")}
    assert ledger.read_bytes() == charged
    assert {path: path.read_bytes() for path in Path(release.path).iterdir()} == published


def test_the_same_release_and_zones_give_the_same_table(tmp_path: Path) -> None:
    """Nothing random: asking again, or for more zones, tells no more than the release does."""
    logs = sfumato.synth(tmp_path / "logs", users=3000, seed=1)
    release = sfumato.heatmap(logs, region=REGION, depth=5)
    zone, other = shapely.box(3.03, 1.03, 3.08, 1.09), shapely.box(3.09, 1.03, 3.1, 1.09)
    alone, both = release.zones([zone]), release.zones([zone, other])
    assert alone.drop(columns="geometry").equals(release.zones([zone]).drop(columns="geometry"))
    assert alone.drop(columns="geometry").equals(both.iloc[:1].drop(columns="geometry"))
