"""Tests of benchmarks/comparison.py: maps as counts, cohorts drawn from them, and their tables."""

from pathlib import Path

import numpy as np
import pytest

from benchmarks import comparison
from benchmarks.baselines.heatmap_methods import CountMin, SpatialDecomposition
from benchmarks.comparison import Map, compare_on_map, counts_of, draw_cohort
from benchmarks.evaluation.cases import parse_cases
from sfumato.schemas.region import by_row
from sfumato.transforms.heatmap.methods import Adaptive
from tests.seeds import seeded_rng


@pytest.fixture
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Map:
    """A map of 16 x 16 cells with some thousand users."""
    counts = seeded_rng(1).poisson(np.linspace(0, 8, 256)).reshape(16, 16)
    np.save(tmp_path / "tiny.npy", counts.astype(np.uint8))
    one = Map("tiny.npy", "3.00,1.00,3.13,1.13", 4)
    monkeypatch.setitem(comparison.MAPS, "tiny", one)
    return one


def test_a_cohort_is_a_draw_of_the_maps_users(tiny: Map, tmp_path: Path) -> None:
    truth = counts_of(tiny, tmp_path)
    rows, best = draw_cohort(truth, int(truth.sum()), 3)
    assert np.array_equal(by_row(rows.histogram()), truth)
    assert best == 0  # everybody: the finest level is the truth
    some = by_row(draw_cohort(truth, 400, 3)[0].histogram())
    assert some.sum() == 400
    assert (some <= truth).all()


def test_compare_on_map_has_a_row_for_each_method_and_the_yardstick(baselines: None, tiny: Map, tmp_path: Path) -> None:
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
