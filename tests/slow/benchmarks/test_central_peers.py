"""The comparison with other libraries runs, and its scores are what they say."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from benchmarks.baselines.dp_libraries import QUANTILES
from benchmarks.central_peers import OURS, Logs, Setting, accuracy_table, comparisons, main, scores, watch


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


def test_quantiles_are_scored_by_ranks_of_users_with_ties_forgiven(tmp_path: Path) -> None:
    values = [*map(float, range(10)), 9.0]  # the last user has two records
    one = logs(tmp_path, ["a"] * 11, values, ["g"] * 11, [*range(10), 9])
    exact = np.quantile(np.arange(10), QUANTILES, method="inverted_cdf").tolist()
    assert scores(Setting("quantiles", one, 1.0), exact) == {"mean rank error": 0, "largest rank error": 0}
    moved = [exact[0] + 2, *exact[1:]]  # value 2: 0.2 to 0.3 of the users, in place of 0.1
    assert scores(Setting("quantiles", one, 1.0), moved)["largest rank error"] == pytest.approx(0.1)


def test_means_are_scored_by_group_and_a_group_that_is_missing_counts(tmp_path: Path) -> None:
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
