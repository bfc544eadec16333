"""Means, standard errors, ratios to the yardstick, groups and Markdown."""

from __future__ import annotations

import math
import statistics
from typing import Any

import numpy as np
import pytest

from benchmarks.evaluation.comparison_table import (
    Mean,
    Row,
    amount_text,
    best_rows,
    in_groups,
    is_private,
    option_names,
    share_text,
    summarise,
    text_table,
    value_text,
)
from benchmarks.evaluation.outcomes import Outcome, Setting
from tests.seeds import seeded_rng
from tests.slow.benchmarks.evaluation.samples import CALIBRATIONS, EPSILONS, QUALITY, USERS, sample_outcomes

METRICS = ("mse", "l1", "similarity")
Options = dict[str, Any]


@pytest.fixture(scope="module")
def outcomes() -> list[Outcome]:
    return sample_outcomes(METRICS, side=16)


@pytest.fixture(scope="module")
def rows(outcomes: list[Outcome]) -> list[Row]:
    return summarise(outcomes, METRICS)


def run(method: str, key: int, mse: float, entries: int = 10, **options: Any) -> Outcome:
    return Outcome(Setting(method, tuple(options.items())), key, {"mse": mse}, entries, 17 * entries)


def cells(table: str) -> list[list[str]]:
    """The Markdown table's head and body without the rule, stripped."""
    lines = [line for line in table.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in (lines[0], *lines[2:])]


def test_means_and_standard_errors(outcomes: list[Outcome], rows: list[Row]) -> None:
    assert len(rows) == len(USERS) * (1 + len(EPSILONS) * (len(QUALITY) - 1 + len(CALIBRATIONS)))
    for row in rows:
        mine = [one for one in outcomes if one.setting == row.setting]
        assert row.keys == len(mine) == 4
        for name in METRICS:
            values = [one.metrics[name] for one in mine]
            if any(map(math.isnan, values)):
                assert math.isnan(row.metrics[name].value)
                assert row.metrics[name].text == "-"
                assert math.isnan(row.entries)
                continue
            assert row.metrics[name].value == pytest.approx(statistics.fmean(values), rel=1e-12)
            assert row.metrics[name].error == pytest.approx(statistics.stdev(values) / 2, rel=1e-9)
            assert row.entries == statistics.fmean(one.entries for one in mine)
            assert row.bits == statistics.fmean(one.bits for one in mine)


def test_order_is_stable_whatever_the_order_of_the_runs(outcomes: list[Outcome], rows: list[Row]) -> None:
    assert list(dict.fromkeys(row.setting.method for row in rows)) == ["best_level", *QUALITY]
    mine = [row.options for row in rows if row.setting.method == "adaptive"]
    expected = [
        {"users": users, "epsilon": epsilon, "calibration": c}
        for users in USERS
        for epsilon in EPSILONS
        for c in CALIBRATIONS
    ]
    assert mine == expected
    backwards = summarise(outcomes[::-1], METRICS)
    by_setting = {row.setting: row for row in backwards}
    assert all(by_setting[row.setting].ratio == row.ratio for row in rows if row.ratio)
    words = summarise([run("flat", 0, 1.0, split=split) for split in ("none", 10, 9, "all")], ["mse"])
    assert [row.options["split"] for row in words] == [9, 10, "all", "none"]


def test_ratio_is_paired_by_key_with_the_delta_methods_error() -> None:
    rng = seeded_rng(3)
    y = rng.uniform(1, 3, 12)
    x = 1.3 * y + rng.normal(0, 0.1, 12)
    runs = [run("best_level", key, value) for key, value in enumerate(y)]
    runs += [run("flat", key, x[key]) for key in rng.permutation(12)]
    ratio = summarise(runs, ["mse"])[1].ratio
    assert ratio is not None
    assert ratio.value == pytest.approx(x.mean() / y.mean(), rel=1e-12)
    # The textbook form: variances of both means and their covariance.
    spread = np.cov(x, y, ddof=1) / 12
    slope = np.array([1.0, -ratio.value]) / y.mean()
    assert ratio.error == pytest.approx(math.sqrt(slope @ spread @ slope), rel=1e-9)
    # Unpaired, the cohorts' own spread would drown it.
    assert ratio.error < 0.3 * math.hypot(*(np.sqrt(np.diag(spread)) / y.mean()))


def test_ratio_of_a_constant_factor_has_no_error() -> None:
    runs = [
        run(name, key, factor * (1 + key)) for name, factor in (("best_level", 2.0), ("flat", 5.0)) for key in (0, 1, 2)
    ]
    yardstick, flat = summarise(runs, ["mse"])
    assert flat.ratio is not None
    assert (flat.ratio.value, flat.ratio.error) == (pytest.approx(2.5), pytest.approx(0, abs=1e-15))
    assert flat.ratio.text == "2.5 (se 0)"
    assert yardstick.ratio == Mean(1.0, 0.0)


def test_ratio_is_to_the_yardstick_of_the_same_cohort() -> None:
    runs = [run("best_level", 0, 1.0 * users, users=users, dropout=d) for users in (1, 2) for d in (0.0, 0.1)]
    runs += [
        run("flat", 0, 3.0 * users, users=users, epsilon=epsilon, dropout=d)
        for users in (1, 2)
        for epsilon in (0.5, 1.0)
        for d in (0.0, 0.1)
    ]
    ratios = [row.ratio.value for row in summarise(runs, ["mse"]) if row.ratio and row.setting.method == "flat"]
    assert ratios == [3.0] * 8


def test_ratio_wants_one_yardstick_with_values_for_common_keys() -> None:
    flat = [run("flat", 0, 3.0), run("flat", 1, 9.0)]
    assert summarise(flat, ["mse"])[0].ratio is None
    several = [run("best_level", 0, 1.0, users=users) for users in (1, 2)]
    assert summarise([*flat, *several], ["mse"])[0].ratio is None
    elsewhere = [run("best_level", 5, 1.0)]
    assert summarise([*flat, *elsewhere], ["mse"])[0].ratio is None
    lost = [run("best_level", 0, 1.0), run("best_level", 1, math.nan)]
    assert summarise([*flat, *lost], ["mse"])[0].ratio is None
    zero = [run("best_level", 0, 0.0)]
    assert summarise([*flat, *zero], ["mse"])[0].ratio is None
    one = summarise([*flat, run("best_level", 1, 2.0)], ["mse"])[0].ratio
    assert one is not None
    assert one.value == 4.5
    assert math.isnan(one.error)


def test_one_key_has_no_error_and_a_key_counts_once() -> None:
    (row,) = summarise([run("flat", 0, 0.123456)], ["mse"])
    assert row.metrics["mse"].text == "0.123"
    assert math.isnan(row.metrics["mse"].error)
    with pytest.raises(ValueError, match="flat, users 5 has two of key 0"):
        summarise([run("flat", 0, 1.0, users=5), run("flat", 0, 2.0, users=5)], ["mse"])


def test_a_key_without_a_value_spoils_the_mean() -> None:
    for bad in (math.nan, math.inf):
        (row,) = summarise([run("flat", 0, 1.0), run("flat", 1, bad, entries=0)], ["mse", "absent"])
        assert row.metrics["mse"].text == row.metrics["absent"].text == "-"
        assert row.entries == 10  # of the run that came to an end


@pytest.mark.parametrize(
    ("value", "error", "text"),
    [
        (3.868e-11, 2.4e-13, "3.87e-11 (se 2e-13)"),
        (0.98765, 2e-4, "0.9877 (se 0.0002)"),
        (0.98, 2e-4, "0.9800 (se 0.0002)"),
        (1.05123, 0.03, "1.05 (se 0.03)"),
        (126.4, 3.0, "126 (se 3)"),
        (2.0, 0.0, "2 (se 0)"),
        (0.1 + 0.2, 5e-17, "0.3 (se 0)"),
        (0.0, 0.01, "0.00 (se 0.01)"),
        (0.001, 0.5, "0.00100 (se 0.5)"),
        (-0.25, 0.01, "-0.250 (se 0.01)"),
        (1.23456789, 1e-8, "1.23457 (se 1e-08)"),
        (5.4321, math.nan, "5.43"),
        (math.nan, math.nan, "-"),
        (math.inf, 1.0, "-"),
        (1.0, math.inf, "1"),
    ],
)
def test_text_of_a_mean(value: float, error: float, text: str) -> None:
    assert Mean(value, error).text == text


def test_text_of_amounts_and_values() -> None:
    assert [amount_text(x) for x in (2.0, 340.0, 681.5, 11585.6, math.nan)] == ["2", "340", "681.5", "11,586", "-"]
    assert [share_text(x) for x in (0.0, 0.025, 1.0)] == ["0%", "2.5%", "100%"]
    assert [value_text(x) for x in (None, 10_000, 0.05, 1.0, "all")] == ["", "10,000", "0.05", "1", "all"]


def test_what_is_not_private() -> None:
    assert [is_private(name) for name in ("adaptive", "emd", "best_level", "emd (level by truth)")] == [
        True,
        True,
        False,
        False,
    ]


def test_options_that_vary_and_groups(rows: list[Row]) -> None:
    assert option_names(rows) == (["users", "epsilon"], ["calibration"])
    groups = in_groups(rows)
    tasks = [(group[0].options["users"], group[0].options.get("epsilon")) for group in groups]
    assert tasks == [(users, epsilon) for users in USERS for epsilon in (None, *EPSILONS)]
    same = summarise([run(name, 0, 1.0, users=7, epsilon=e) for name in ("flat", "emd") for e in (1.0, 2.0)], ["mse"])
    assert option_names(same) == (["epsilon"], [])


def test_best_of_a_group_is_private_and_respects_what_is_better(rows: list[Row]) -> None:
    best = best_rows(rows, METRICS)
    expected = {
        (Setting("adaptive", (("users", users), ("epsilon", epsilon), ("calibration", 0.1))), name)
        for users in USERS
        for epsilon in EPSILONS
        for name in METRICS
    }
    assert best == expected
    level = [run("flat", 0, 1.0), run("emd", 0, 1.0), run("count_min", 0, 2.0), run("best_level", 0, 0.5)]
    tied = {setting.method for setting, _ in best_rows(summarise(level, ["mse"]), ["mse"])}
    assert tied == {"flat", "emd"}
    assert best_rows(summarise([run("flat", 0, 1.0), run("best_level", 0, 2.0)], ["mse"]), ["mse"]) == set()
    failed = [run("flat", 0, math.nan), run("emd", 0, math.nan)]
    assert best_rows(summarise(failed, ["mse"]), ["mse"]) == set()


def test_text_table_is_aligned_markdown(rows: list[Row]) -> None:
    text = text_table(rows, METRICS)
    words = "Evaluation on exact data, no release. Mean (se: standard error)"
    assert text.startswith(f"{words} over 4 keys; bold: the best private method of its group.\n\n|")
    lines = [line for line in text.splitlines() if line.startswith("|")]
    assert len({len(line) for line in lines}) == 1
    assert set(lines[1]) == set("|-: ")
    head, *body = cells(text)
    assert head == [
        "users", "epsilon", "method", "calibration", *METRICS, "mse / best_level", "entries", "bits", "shards lost",
    ]  # fmt: skip
    assert len(body) == len(rows)
    for line in body:
        bold = line[4].startswith("**")
        assert bold == (line[2] == "adaptive" and line[3] == "0.1")
    lost = next(line for line in body if line[2] == "flat" and line[:2] == ["10,000", "0.5"])
    assert lost[4:] == ["-", "-", "-", "-", "-", "-", "100%"]


def test_text_table_leaves_out_what_says_nothing() -> None:
    rows = summarise([run("flat", 0, 0.5, users=7), run("emd", 0, 0.25, users=7)], ["mse"])
    text = text_table(rows, ["mse"])
    assert text.startswith("Evaluation on exact data, no release. One key; bold")
    assert cells(text) == [
        ["method", "mse", "entries", "bits"],
        ["flat", "0.5", "10", "170"],
        ["emd", "**0.25**", "10", "170"],
    ]
    assert r"a\|b" in text_table(summarise([run("a|b", 0, 1.0)], ["mse"]), ["mse"])
