"""The files of a comparison's folder."""

from __future__ import annotations

import io
import json

import numpy as np
import pandas as pd

from sfumato.schemas.comparison import EVALUATION
from sfumato.transforms.evaluation.comparison_files import comparison_files
from tests.transforms.evaluation.samples import FACTS, sample_outcomes, sample_truth

METRICS = ("mse", "similarity")


def test_folder_has_its_files_and_ends_with_the_marked_facts() -> None:
    outcomes = sample_outcomes(METRICS, side=16)
    files = comparison_files(outcomes, sample_truth(), METRICS, FACTS)
    assert list(files) == [
        "index.html", "runs.csv", "table.csv", "table.md", "densities.parquet", "manifest.json",
    ]  # fmt: skip
    told = json.loads(files["manifest.json"], parse_constant=lambda name: (_ for _ in ()).throw(ValueError(name)))
    assert told["format"] == "sfumato-evaluation/2"  # which no reader of releases opens
    assert told["notice"] == EVALUATION
    assert EVALUATION in files["index.html"].decode()
    assert {name: told[name] for name in FACTS} == FACTS
    assert {"python", "sfumato", "numpy"} <= set(told["versions"])
    table = pd.read_csv(io.BytesIO(files["table.csv"]))
    assert len(told["settings"]) == len(table)
    failed = next(one for one in told["settings"] if one["shards_lost"] == 1)
    assert failed["metrics"]["mse"] == {"mean": None, "stderr": None}
    assert failed["entries"] is None
    first = told["settings"][0]
    assert (first["method"], first["private"], first["mse_ratio"]) == (
        "best_level",
        False,
        {"mean": 1.0, "stderr": 0.0},
    )
    assert first["metrics"]["mse"]["mean"] == table.mse[0]


def test_numbers_of_the_facts_may_be_anything() -> None:
    outcomes = sample_outcomes(METRICS, keys=1, side=16)
    metadata = {"release_id": "x", "parameters": {"a": float("nan"), "b": np.float64("inf"), "c": np.int64(3)}}
    files = comparison_files(outcomes, sample_truth(), METRICS, metadata)
    assert json.loads(files["manifest.json"])["parameters"] == {"a": None, "b": None, "c": 3}


def test_order_of_the_runs_does_not_show_but_in_the_order_of_methods() -> None:
    outcomes = sample_outcomes(METRICS, keys=2, side=16)
    firsts = {one.setting.method: one for one in reversed(outcomes)}
    head = list(dict.fromkeys(firsts[one.setting.method] for one in outcomes))
    rest = [one for one in outcomes if one not in head]
    np.random.default_rng(1).shuffle(rest)  # type: ignore[arg-type]
    assert comparison_files([*head, *rest], sample_truth(), METRICS, FACTS) == comparison_files(
        outcomes, sample_truth(), METRICS, FACTS
    )
