"""The files of a comparison, made from its outcomes. They are marked as an evaluation. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sfumato.schemas.comparison import EVALUATION, Outcome
from sfumato.schemas.release import (
    EVALUATION_FORMAT,
    MANIFEST_FILE,
    PAGE_FILE,
    RUNS_FILE,
    TABLE_FILE,
    TABLE_TEXT_FILE,
)
from sfumato.transforms.evaluation.comparison_table import Mean, Row, csv_bytes, runs_csv_bytes, summarise, text_table
from sfumato.transforms.release.metadata import manifest_bytes, package_versions
from sfumato.transforms.release.page_compare import render_comparison
from sfumato.transforms.release.page_shell import plain


def comparison_files(
    outcomes: Sequence[Outcome], truth: NDArray[np.float64], metrics: Sequence[str], metadata: Mapping[str, Any]
) -> dict[str, bytes]:
    """The files by name, the manifest last.

    Args:
        outcomes: of all runs.
        truth: the exact density float64[side, side], row 0 in the north.
        metrics: names, in the order of the tables.
        metadata: release_id, created, parameters, region and the like. Numbers that are not finite become null.
    """
    rows = summarise(outcomes, metrics)
    row_index = {row.setting: i for i, row in enumerate(rows)}
    runs = sorted(outcomes, key=lambda outcome: (row_index[outcome.setting], outcome.key))
    run_metadata = {**metadata, "versions": package_versions()}
    comparison = {
        "format": EVALUATION_FORMAT,
        "notice": EVALUATION,
        "job": "compare",
        **run_metadata,
        "metrics": list(metrics),
        "settings": [_entry(row) for row in rows],
    }
    return {
        RUNS_FILE: runs_csv_bytes(runs, metrics),
        TABLE_FILE: csv_bytes(rows, metrics),
        TABLE_TEXT_FILE: text_table(rows, metrics).encode(),
        PAGE_FILE: render_comparison(run_metadata, rows, runs, truth, metrics).encode(),
        MANIFEST_FILE: manifest_bytes(plain(comparison)),
    }


def _entry(row: Row) -> dict[str, Any]:
    return {
        "method": row.setting.method,
        "private": row.private,
        "options": row.options,
        "keys": row.keys,
        "metrics": {name: _mean(mean) for name, mean in row.metrics.items()},
        "mse_ratio": _mean(row.ratio) if row.ratio else None,
        "entries": row.entries,
        "bits": row.bits,
        "shards_lost": row.shards_lost,
    }


def _mean(mean: Mean) -> dict[str, float]:
    return {"mean": mean.value, "stderr": mean.error}
