"""Comparisons: maps as counts, other libraries, and users above the grouping."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from benchmarks import comparison, speed
from benchmarks.baselines.dp_libraries import QUANTILES
from benchmarks.baselines.heatmap_methods import CountMin, SpatialDecomposition
from benchmarks.billion import Simulation, Times, run, simulate
from benchmarks.central_peers import OURS, Logs, Setting, accuracy_table, comparisons, main, scores, watch
from benchmarks.comparison import Map, compare_on_map, counts_of, draw_cohort
from benchmarks.evaluation.cases import parse_cases
from benchmarks.evaluation.in_memory import planned_state
from benchmarks.speed import HEADS, STAGES, Measured, Run
from sfumato.schemas.region import by_row
from sfumato.transforms.counting.methods import Adaptive
from sfumato.transforms.counting.parameters import HeatmapParameters
from sfumato.transforms.locations.shards import ShardPlan
from sfumato.transforms.privacy.keys import FixedSecret, RunKey
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


def test_a_cohort_is_a_draw_of_the_maps_users(tiny: Map, tmp_path: Path) -> None:
    truth = counts_of(tiny, tmp_path)
    rows, best = draw_cohort(truth, int(truth.sum()), 3)
    assert np.array_equal(by_row(rows.histogram()), truth)
    assert best == 0  # everybody: the finest level is the truth
    some = by_row(draw_cohort(truth, 400, 3)[0].histogram())
    assert some.sum() == 400
    assert (some <= truth).all()


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


@pytest.mark.parametrize(("ours", "verdict"), [(1.0, "level"), (3.0, "worse"), (0.0, "better")])
def test_verdicts_are_beside_the_best_library_of_a_score(tmp_path: Path, ours: float, verdict: str) -> None:
    setting = Setting("quantiles", Logs("logs", tmp_path, 1), 1.0)
    spread = np.array([-0.1, 0.0, 0.1])
    runs = {OURS: ours + spread, "near": 1.0 + spread, "far": 9.0 + spread}
    found = {name: pd.DataFrame({"mean rank error": errors}) for name, errors in runs.items()}
    (line,) = comparisons(setting, found)
    assert line.startswith(verdict)
    assert line.endswith("of near")
    assert f"**{min(ours, 1.0):.3g} (se 0.06)**" in accuracy_table({setting: found})


def test_a_command_is_timed_and_its_failure_is_shown() -> None:
    cost = watch([sys.executable, "-c", "sum(range(1_000_000))"])
    assert cost.processor > 0
    assert cost.seconds > 0
    with pytest.raises(SystemExit, match="no such thing"):
        watch([sys.executable, "-c", "raise SystemExit('no such thing')"])


# The simulation of users above the grouping: the users drawn, and what is published of them.

USERS, DEPTH = 300_000, 6


def test_a_group_has_the_same_users_whenever_it_is_drawn() -> None:
    simulation, shard_plan = Simulation.of_city(DEPTH, 3), ShardPlan.for_users(USERS, None, 1000, 0.2)
    first = simulation.keys(1, shard_plan)
    assert np.array_equal(first, simulation.keys(1, shard_plan))
    assert not np.array_equal(first[:1000], simulation.keys(2, shard_plan)[:1000])
    # 64 shards of 1,000 expected users: a Poisson number of 64,000, in all and in six of its deviations in each.
    assert abs(len(first) - 64_000) < 6 * 64_000**0.5
    sizes = np.bincount(first >> np.uint32(2 * DEPTH), minlength=64)
    assert np.abs(sizes - 1000).max() < 7 * 1000**0.5


def test_the_published_map_is_that_of_the_users_drawn() -> None:
    parameters = HeatmapParameters(depth=DEPTH, epsilon=8.0)
    key = RunKey.derive(FixedSecret(b"a test"), {})
    simulation = Simulation.of_city(DEPTH, 3)
    ended = run(simulation, planned_state(USERS, parameters, key), parameters, key, Times())
    assert abs(ended.exact.sum() - USERS) < 6 * USERS**0.5
    assert ended.state.query is None
    assert ended.draws >= ended.entries[0]
    # Every entry of the last sub-query that all shards answered, against the users drawn: 7 stated deviations.
    result = ended.state.results[-1]
    before = np.concatenate([[0], np.cumsum(ended.exact)])
    exact = result.tree.index.sum_intervals(np.diff(before[result.tree.index.boundaries.astype(int)])[None, :])[0]
    first, end = result.shard_range or (0, ended.state.shard_plan.shards)
    share = (end - first) / ended.state.shard_plan.shards
    deviation = np.sqrt(result.noise_stddev**2 + exact / share)
    assert (np.abs(result.counts - exact) < 7 * deviation + 7).all()


def test_the_table_has_errors_times_and_memory() -> None:
    table = simulate(USERS, DEPTH)
    rows = dict(re.findall(r"^\| (.+?) \| (.+?) \|$", table, flags=re.MULTILINE))
    assert float(rows["moved"].rstrip("%")) < 20
    assert int(rows["shards"].replace(",", "")) == 30
    for name in ("processor without the draw, s", "peak memory, GB", "typical error of a cell of 64 x 64, users"):
        assert float(rows[name].replace(",", "")) > 0


# The table of speed: whole processes are measured with their children, and a ratio is to the pass just before.

_SPIN = "import time\nwhile time.process_time() < 0.4: pass\n"


def test_processor_time_and_memory_are_those_of_the_children_too() -> None:
    hold = f"held = bytearray(200_000_000)\n{_SPIN}"
    child = f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {hold!r}], check=True)\n{_SPIN}"
    found = speed.run([sys.executable, "-c", child])
    assert found.processor >= 0.8
    assert found.peak >= 200_000_000


def test_a_command_that_fails_ends_the_benchmark_with_its_words() -> None:
    with pytest.raises(SystemExit, match="no such thing"):
        speed.run([sys.executable, "-c", "raise SystemExit('no such thing')"])


def test_stages_end_at_the_jobs_own_lines() -> None:
    lines = [(1.0, "sfumato zones: 2 files to read"), (3.0, "  read and grouped the logs: 5 users"), (4.0, "other")]
    assert Run(10.0, 5.0, 0, lines).stages() == [1.0, 2.0, 7.0]
    assert Run(10.0, 5.0, 0).stages() == []


def test_ratios_are_to_the_pass_just_before() -> None:
    runs = [
        (Run(seconds, 2 * seconds, 5_000_000), Run(floor, floor, 0), None)
        for seconds, floor in ((4, 1), (9, 3), (8, 8))
    ]
    assert Measured(runs).cells() == ["8.0", "16.0", "3.0", "6.0", "-", "5", *["-"] * len(STAGES)]


def test_a_job_is_measured_on_logs_that_are_made(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    speed.main(["--data", str(tmp_path), "--sizes", "0.005", "--jobs", "mean and variance", "--repeats", "1"])
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in capsys.readouterr().out.splitlines()[2:]]
    assert rows[0] == HEADS
    assert [row[1] for row in rows[2:]] == ["`import apache_beam`", "bare pass", "mean and variance, trusted curator"]
    assert all(float(cell.replace(",", "")) > 0 for cell in rows[-1][2:])
