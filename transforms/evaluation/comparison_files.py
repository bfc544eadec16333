"""The files of a comparison, made from its outcomes. They are marked as an evaluation. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from sfumato.schemas.comparison import EVALUATION, Outcome, Setting
from sfumato.schemas.release import (
    DENSITIES_FILE,
    DENSITIES_SCHEMA,
    EVALUATION_FORMAT,
    MANIFEST_FILE,
    RUNS_FILE,
    TABLE_FILE,
    TABLE_TEXT_FILE,
)
from sfumato.transforms.evaluation.comparison_table import Mean, Row, csv_bytes, runs_csv_bytes, summarise, text_table
from sfumato.transforms.evaluation.comparison_view import comparison_view
from sfumato.transforms.evaluation.density_metrics import coarsen
from sfumato.transforms.release.metadata import manifest_bytes, package_versions, parquet_bytes
from sfumato.transforms.report.pages import page_files

_SIDE = 256  # of the densities that are published


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
    files = {
        RUNS_FILE: runs_csv_bytes(runs, metrics),
        TABLE_FILE: csv_bytes(rows, metrics),
        TABLE_TEXT_FILE: text_table(rows, metrics).encode(),
        DENSITIES_FILE: parquet_bytes(_densities(rows, runs, truth)),
        MANIFEST_FILE: manifest_bytes(_plain(comparison)),
    }
    return {**page_files(comparison_view(files)), **files}


def _densities(rows: Sequence[Row], runs: Sequence[Outcome], truth: NDArray[np.float64]) -> pa.Table:
    """The truth and, of each setting, the density of the first key that has one; equal densities once.

    Raises ValueError if the truth is not a finite square.
    """
    if truth.ndim != 2 or truth.shape[0] != truth.shape[1] or not truth.size or not np.isfinite(truth).all():
        raise ValueError(f"truth: must be a square of finite numbers, got shape {truth.shape}")
    found: dict[Setting, NDArray[np.float32]] = {}
    for one in runs:
        if one.picture is not None and np.isfinite(one.picture).all():
            found.setdefault(one.setting, one.picture)
    settings: dict[bytes, list[int]] = {}
    for number, row in enumerate(rows):
        if row.setting in found:
            settings.setdefault(found[row.setting].tobytes(), []).append(number)
    shown = coarsen(truth, min(_SIDE, len(truth))).astype(np.float32)
    densities = [shown.ravel(), *(np.frombuffer(one, np.float32) for one in settings)]
    return pa.table({"settings": [[], *settings.values()], "density": densities}, schema=DENSITIES_SCHEMA)


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


def _plain(value: Any) -> Any:
    """The value in JSON's own types. NaN and infinity become null, what JSON does not know becomes text."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, np.ndarray | np.generic):
        return _plain(value.tolist())
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(item) for item in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if value is None or isinstance(value, bool | int | str) else str(value)
