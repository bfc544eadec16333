"""Comparisons: maps as counts, other libraries, and users above the grouping."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from benchmarks import comparison, speed
from benchmarks.baselines.dp_libraries import QUANTILES
from benchmarks.baselines.heatmap_methods import CountMin, SpatialDecomposition
from benchmarks.central_peers import OURS, Logs, Setting, main, scores
from benchmarks.comparison import Map, compare_on_map, counts_of
from benchmarks.evaluation.cases import parse_cases
from benchmarks.speed import HEADS
from sfumato.transforms.counting.methods import Adaptive
from tests.seeds import seeded_rng

# Tests of benchmarks/comparison.py: maps as counts, cohorts drawn from them, and their tables.


@pytest.fixture
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Map:
    """A map of 16 x 16 cells with some thousand users."""
    counts = seeded_rng(1).poisson(np.linspace(0, 8, 256)).reshape(16, 16)
    np.save(tmp_path / "tiny.npy", counts.astype(np.uint8))
    one = Map("tiny.npy", "3.00,1.00,3.13,1.13", 4)
    monkeypatch.setitem(comparison.MAPS, "tiny", one)
    return one


def test_compare_on_map_lists_methods_and_yardstick(baselines: None, tiny: Map, tmp_path: Path) -> None:
    """More epsilon has less error, and the entries are those of all cells."""
    options = "--methods flat,hierarchical --users 400 --shard_size 200 --epsilon 0.5,20 --metrics mse"
    rows, metrics = compare_on_map("tiny", options, counts_of(tiny, tmp_path), 3)
    assert metrics == ("mse",)
    assert {row.setting.method for row in rows} == {
        "best_level",
        "flat",
        "hierarchical",
        "hierarchical (level by truth)",
    }
    flat = {row.options["epsilon"]: row for row in rows if row.setting.method == "flat"}
    assert flat[20].metrics["mse"].value < flat[0.5].metrics["mse"].value
    assert [row.entries for row in flat.values()] == [256, 256]
    assert all(row.keys == 3 and row.ratio is not None for row in rows)


def test_table_1_has_the_papers_parameters(baselines: None) -> None:
    """Section 6.2 of paper 000: more budget to upper levels, the minimum of a sketch, Algorithm 2 as published."""
    ((_, options),) = [table for table in comparison._TABLES if table[0] == "Table 1"]
    cases, _ = parse_cases(f"--depth 4 {options}")
    methods = {case.parameters.method for case in cases}
    assert {SpatialDecomposition(budget_doubling=-3), CountMin(sketch_estimate="min")} < methods
    assert Adaptive(schedule="paper", estimator="last") in methods


# The comparison with other libraries runs, and its scores are what they say.


def logs(folder: Path, items: list[str], value: list[float], group: list[str], users: list[int]) -> Logs:
    table = pd.DataFrame({"user_id": users, "item": items, "value": value, "group": group})
    table.to_parquet(folder / "0.parquet")
    return Logs("logs", folder, 2)


def test_quick_mode_prints_a_table_of_every_task(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["--quick", "--libraries", "", "--data", str(tmp_path)])
    printed = capsys.readouterr().out
    for title in ("## counts", "## quantiles", "## moments"):
        assert title in printed
    assert printed.count(f"| {OURS} ") == 4  # moments twice: of the mean alone, and with the variance


def test_counts_are_scored_by_what_is_missing_and_what_is_wrong(tmp_path: Path) -> None:
    users = [1, 2, 3, 3, 3]
    one = logs(tmp_path, ["a", "a", "a", "a", "b"], [1.0] * 5, ["g"] * 5, users)  # users: a 3, b 1
    found = scores(Setting("counts", one, 1.0), {"a": 5.0})
    assert list(found.values()) == pytest.approx([0.5, 1, (2 + 1) / 2, 100 * (2 + 1) / 4])


def test_quantiles_are_scored_by_ranks_ties_forgiven(tmp_path: Path) -> None:
    values = [*map(float, range(10)), 9.0]  # the last user has two records
    one = logs(tmp_path, ["a"] * 11, values, ["g"] * 11, [*range(10), 9])
    exact = np.quantile(np.arange(10), QUANTILES, method="inverted_cdf").tolist()
    assert scores(Setting("quantiles", one, 1.0), exact) == {"mean rank error": 0, "largest rank error": 0}
    moved = [exact[0] + 2, *exact[1:]]  # value 2: 0.2 to 0.3 of the users, in place of 0.1
    assert scores(Setting("quantiles", one, 1.0), moved)["largest rank error"] == pytest.approx(0.1)


def test_means_are_scored_by_group_even_if_missing(tmp_path: Path) -> None:
    one = logs(tmp_path, ["a"] * 4, [1.0, 3.0, 5.0, 7.0], ["g", "g", "h", "h"], [1, 2, 3, 4])
    setting = Setting("moments", one, 1.0, ("mean",))
    exact = pd.DataFrame({"mean": {"g": 2.0, "h": 6.0}})
    assert scores(setting, exact) == {"mean: relative RMSE, %": 0}
    assert scores(setting, exact[:1])["mean: relative RMSE, %"] == pytest.approx(100 * np.sqrt(0.5))


# The table of speed: whole processes are measured with their children, and a ratio is to the pass just before.


def test_a_job_is_measured_on_logs_that_are_made(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    speed.main(["--data", str(tmp_path), "--sizes", "0.005", "--jobs", "mean and variance", "--repeats", "1"])
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in capsys.readouterr().out.splitlines()[2:]]
    assert rows[0] == HEADS
    assert [row[1] for row in rows[2:]] == ["`import apache_beam`", "bare pass", "mean and variance, trusted curator"]
    assert all(float(cell.replace(",", "")) > 0 for cell in rows[-1][2:])
