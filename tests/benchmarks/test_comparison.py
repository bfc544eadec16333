"""Tests of benchmarks/comparison.py: maps as counts and as logs, and both ways to run a comparison."""

import csv
import math
from pathlib import Path

import numpy as np
import pytest

from benchmarks import comparison
from benchmarks.baselines.heatmap_methods import CountMin, SpatialDecomposition
from benchmarks.comparison import Map, compare_in_memory, compare_map, counts_of, draw_cohort, job_of, logs_of
from sfumato.schemas.region import by_row
from sfumato.transforms.heatmap.methods import Adaptive

OPTIONS = "--methods flat,hierarchical --users 400 --shard_size 200 --metrics mse"


@pytest.fixture
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Map:
    """A map of 16 x 16 cells with some thousand users."""
    counts = np.random.default_rng(1).poisson(np.linspace(0, 8, 256)).reshape(16, 16)
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


def test_logs_have_the_users_of_the_counts(tiny: Map, tmp_path: Path) -> None:
    truth = counts_of(tiny, tmp_path)
    logs_of(tiny, tmp_path, tmp_path / "logs")
    (part,) = (tmp_path / "logs").glob("tiny/*.parquet")
    assert np.array_equal(counts_of(Map(str(part), tiny.region, tiny.depth), tmp_path), truth)


def test_a_comparison_in_memory_is_that_of_the_command(baselines: None, tiny: Map, tmp_path: Path) -> None:
    """The same rows and communication; errors differ by the draw of ten keys."""
    command, text = compare_in_memory("tiny", OPTIONS, counts_of(tiny, tmp_path), 10)
    shown, folder = compare_map("tiny", "tiny", OPTIONS, logs_of(tiny, tmp_path, tmp_path), tmp_path, 10)
    assert shown == command
    written = (folder / "table.md").read_text()
    tables = [[line.split("|")[1:-1] for line in one.splitlines() if line.startswith("| ")] for one in (text, written)]
    names, entries = ([[row[column].strip() for row in table] for table in tables] for column in (0, -2))
    assert names[0] == names[1]
    assert {"best_level", "flat", "hierarchical", "hierarchical (level by truth)"} <= set(names[0])
    assert entries[0] == entries[1]
    with open(folder / "table.csv", newline="") as file:
        expected = {row["method"]: float(row["mse"]) for row in csv.DictReader(file)}["flat"]
    (found,) = (float(row[1].replace("*", "").split("(")[0]) for row in tables[0] if row[0].strip() == "flat")
    # The mean of 256 squared Laplace errors (kurtosis 6) and ten keys, of both: 6.2 standard deviations.
    assert found == pytest.approx(expected, rel=6.2 * math.sqrt(2 * 5 / 256 / 10))


def test_table_1_has_the_papers_parameters(baselines: None) -> None:
    """Section 6.2 of paper 000: more budget to upper levels, the minimum of a sketch, Algorithm 2 as published."""
    ((_, options),) = [table for table in comparison._TABLES if table[0] == "Table 1"]
    given = f"--input LOGS --output OUT --region=0,0,1,1 --depth 4 {options}"
    job, _ = job_of(given.split())
    methods = {case.parameters.method for case in job.cases}
    assert {SpatialDecomposition(budget_doubling=-3), CountMin(sketch_estimate="min")} < methods
    assert Adaptive(schedule="paper", estimator="last") in methods
