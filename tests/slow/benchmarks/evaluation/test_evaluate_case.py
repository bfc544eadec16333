"""Cases of the evaluation, how they are run, and the table of a comparison."""

from __future__ import annotations

import math
import statistics
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from benchmarks.baselines.heatmap_methods import SpatialDecomposition
from benchmarks.evaluation.cases import make_cases, parse_cases
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
from benchmarks.evaluation.density_metrics import mean_squared_error
from benchmarks.evaluation.evaluate_case import Evaluation, evaluate_case, evaluate_yardstick, truth_of
from benchmarks.evaluation.gaussian_blur import gaussian_heatmap
from benchmarks.evaluation.in_memory import Rows, run_in_memory
from benchmarks.evaluation.outcomes import BY_TRUTH, YARDSTICK, Outcome, Setting
from benchmarks.evaluation.uniform_levels import uniform_densities
from sfumato.schemas.errors import RequestError
from sfumato.schemas.places import Places
from sfumato.schemas.region import by_row
from sfumato.transforms.counting.estimator import estimate_density
from sfumato.transforms.privacy.keys import FixedSecret, RunKey
from tests.seeds import seeded_rng
from tests.slow.benchmarks.evaluation.samples import CALIBRATIONS, EPSILONS, QUALITY, USERS, sample_outcomes

# Outcomes by hand: the yardstick's survivors, truth of everybody or of the cohort, levels by truth.

KEY = RunKey.derive(FixedSecret(b"outcomes" * 4), {})
DEPTH, CROWD = 4, 3000


def crowd(seed: int = 0) -> Rows:
    rng = seeded_rng(seed)
    shares = rng.dirichlet(np.full(4**DEPTH, 0.3))
    codes = rng.choice(4**DEPTH, CROWD, p=shares).astype(np.uint64)
    return Rows(Places(DEPTH), np.sort(rng.integers(0, 1 << 63, CROWD).astype(np.uint64) << np.uint64(1)), codes)


def cases(*methods: str, **values: list[float]):
    return make_cases(methods, {"depth": [DEPTH], "shard_size": [1000], **values})


def test_yardstick_is_the_best_level_of_exact_survivors() -> None:
    rows, (case,) = crowd(), cases("flat", dropout=[0.3])
    truth = crowd(seed=1).histogram()
    evaluation = Evaluation(("mse",))
    found = evaluate_yardstick(case, rows, 2, evaluation, truth, KEY)
    stays = ~rows.rehashed(KEY.subkey("vanished", 2)).below(0.3)
    assert abs(stays.mean() - 0.7) < 6.2 * math.sqrt(0.21 / CROWD)
    sample = by_row(rows.only(stays).histogram())
    expected = min(mean_squared_error(level, truth_of(truth)) for level in uniform_densities(sample))
    assert found.metrics["mse"] == pytest.approx(expected, rel=1e-12)
    assert found.setting.method == YARDSTICK
    assert (found.entries, found.bits, found.picture) == (2, 2 * DEPTH, None)


def test_the_truth_may_be_the_cohorts_and_blurred() -> None:
    rows, (case,) = crowd(), cases("flat", epsilon=[30.0], trust=["central"])
    everybody = crowd(seed=1).histogram()
    exact = Evaluation(("mse", "l1"), of_cohort=True)
    (own,) = evaluate_case(case, rows, CROWD, 0, exact, everybody, KEY)
    assert own.metrics == {"mse": 0.0, "l1": 0.0}  # at epsilon 30 noise is 0 but for a probability of 1e-12 an entry
    (other,) = evaluate_case(case, rows, CROWD, 0, Evaluation(("mse",)), everybody, KEY)
    sample = truth_of(rows.histogram())
    assert other.metrics["mse"] == pytest.approx(mean_squared_error(sample, truth_of(everybody)))
    (blurred,) = evaluate_case(case, rows, CROWD, 0, Evaluation(("mse",), blur=0.1), everybody, KEY)
    shown = gaussian_heatmap(sample, 0.1), gaussian_heatmap(truth_of(everybody), 0.1)
    assert blurred.metrics["mse"] == pytest.approx(mean_squared_error(*shown))
    assert own.picture is not None
    assert np.allclose(own.picture, sample)


@pytest.mark.parametrize(
    ("method", "values"),
    [("hierarchical", {}), ("adaptive", {"schedule": ["paper"], "estimator": ["last"], "sub_query_share": [0.25]})],
)
def test_methods_with_levels_are_also_judged_by_the_best_of_them(
    baselines: None, method: str, values: dict[str, list[object]]
) -> None:
    rows, (case,) = crowd(), cases(method, **values)
    chosen, by_truth = evaluate_case(case, rows, CROWD, 1, Evaluation(("mse",)), rows.histogram(), KEY)
    assert by_truth.setting.method == method + BY_TRUTH
    state = run_in_memory(rows, CROWD, case.parameters, KEY.narrowed({**case.parameters.metadata(), "number": 1}))
    exact = truth_of(rows.histogram())
    errors = [mean_squared_error(estimate_density(one.to_estimate(), DEPTH), exact) for one in state.results]
    assert len(errors) > 1
    assert by_truth.metrics["mse"] == min(errors)
    assert by_truth.entries == chosen.entries == sum(one.vector_length for one in state.results)


def test_methods_without_levels_have_one_outcome() -> None:
    rows, (case,) = crowd(), cases("adaptive", schedule=["paper"], estimator=["last"])
    (found,) = evaluate_case(case, rows, CROWD, 1, Evaluation(("mse",)), rows.histogram(), KEY)
    assert found.setting.method == "adaptive"


def test_noise_follows_from_the_run_number() -> None:
    rows, (case,) = crowd(), cases("flat", epsilon=[0.5])
    one, two, again = (
        next(evaluate_case(case, rows, CROWD, number, Evaluation(("mse",)), rows.histogram(), KEY))
        for number in (1, 2, 1)
    )
    assert one.metrics == again.metrics
    assert one.metrics != two.metrics


def test_earlier_release_has_its_own_cohort_and_key() -> None:
    rows, earlier = crowd(), crowd(seed=7)
    (case,) = cases("adaptive", users=[CROWD], earlier_releases=[1], epsilon=[0.5])
    evaluation, truth, method = Evaluation(("mse",)), rows.histogram(), case.parameters.method
    (found,) = evaluate_case(case, rows, CROWD, 2, evaluation, truth, KEY, earlier)
    metadata = {**case.parameters.metadata(), "number": 2}
    before = run_in_memory(earlier, CROWD, case.parameters, KEY.narrowed({**metadata, "earlier": 1}))
    prior = method.decode(before, DEPTH)
    state = run_in_memory(rows, CROWD, case.parameters, KEY.narrowed(metadata), prior)
    exact, made = truth_of(truth), estimate_density(method.decode(state, DEPTH), DEPTH)
    assert found.metrics["mse"] == mean_squared_error(made, exact)
    assert len(state.results) == 1
    assert found.entries == state.results[0].vector_length  # what the earlier release cost is not counted
    (cold,) = evaluate_case(replace(case, earlier=0), rows, CROWD, 2, evaluation, truth, KEY)
    (other,) = evaluate_case(case, rows, CROWD, 2, evaluation, truth, KEY, crowd(seed=8))
    assert len({one.metrics["mse"] for one in (found, cold, other)}) == 3


def test_a_run_whose_shards_are_all_lost_has_no_figures() -> None:
    rows, (case,) = (
        crowd(),
        cases("flat", dropout=[0.5], dropout_margin=[0.0], shard_size=[10_000], participation=["paper"]),
    )
    half = rows.only(np.arange(CROWD) % 4 == 0)
    (outcome,) = evaluate_case(case, half, CROWD, 0, Evaluation(("mse",)), rows.histogram(), KEY)
    assert math.isnan(outcome.metrics["mse"])
    assert (outcome.entries, outcome.shards_lost) == (0, 1.0)


def test_one_location_and_distributions_share_users() -> None:
    """A row has the upper bits of its user's hash where users have one location, and the whole hash elsewhere."""
    rng = seeded_rng(5)
    users = np.sort(rng.integers(0, 1 << 64, CROWD, dtype=np.uint64))
    shift = np.uint64(2 * DEPTH)
    codes = np.zeros(CROWD, dtype=np.uint64)
    one, many = (
        Rows(Places(DEPTH), users >> shift << shift, codes),
        Rows(Places(DEPTH), users, codes, np.ones(CROWD, dtype=np.int64)),
    )
    subkey = KEY.subkey("cohort", 1)
    drawn = [rows.rehashed(subkey).below(0.1) for rows in (one, many)]
    assert np.array_equal(*drawn)
    assert abs(drawn[0].mean() - 0.1) < 6.2 * math.sqrt(0.09 / CROWD)
    other = many.rehashed(KEY.subkey("cohort", 2)).below(0.1)
    assert abs((drawn[1] & other).mean() - 0.01) < 6.2 * math.sqrt(0.0099 / CROWD)
    assert len(np.unique(many.rehashed(subkey).users)) == CROWD


def test_depths_share_their_users() -> None:
    rows = crowd()
    coarse = rows.coarser(2)
    assert coarse.histogram().tolist() == rows.histogram().reshape(16, 16).sum(axis=1).tolist()
    (case,) = make_cases(["flat"], {"depth": [2], "epsilon": [30.0], "trust": ["central"]})
    (outcome,) = evaluate_case(case, rows, CROWD, 0, Evaluation(("mse",)), rows.histogram(), KEY)
    assert outcome.metrics["mse"] == 0


def test_settings_are_named_by_what_varies() -> None:
    values = {"users": [1000, 2000], "epsilon": [1.0], "schedule": ["paper"], "calibration": [0.1, 0.2]}
    cases = make_cases(["adaptive", "flat"], values)
    assert [case.setting.label for case in cases] == [
        "adaptive, users 1000, calibration 0.1",
        "adaptive, users 1000, calibration 0.2",
        "adaptive, users 2000, calibration 0.1",
        "adaptive, users 2000, calibration 0.2",
        "flat, users 1000",
        "flat, users 2000",
    ]
    assert cases[3].parameters.users == 2000
    assert cases[3].parameters.method.calibration == 0.2  # type: ignore[attr-defined]


def test_parse_cases_reads_what_the_tables_state(baselines: None) -> None:
    text = "--methods adaptive,flat --users 1000,2000 --schedule paper --split_count auto,10 --metrics mse,l1"
    cases, metrics = parse_cases(text)
    assert metrics == ("mse", "l1")
    values = {"users": [1000, 2000], "schedule": ["paper"], "split_count": [None, 10]}
    assert cases == make_cases(["adaptive", "flat"], values)
    (flagged,), _ = parse_cases("--methods flat --modulus 65536 --allow_overflow --metrics mse")
    assert flagged.parameters.allow_overflow
    (negative,), _ = parse_cases("--methods spatial_decomposition --budget_doubling -3 --metrics mse")
    assert negative.parameters.method == SpatialDecomposition(budget_doubling=-3)


def test_parse_cases_rejects_unknown_options_and_bad_plans() -> None:
    with pytest.raises(ValueError, match="unknown options: speed"):
        parse_cases("--methods flat --speed 9 --metrics mse")
    with pytest.raises(RequestError, match="modulus"):
        parse_cases("--methods flat --modulus 64 --metrics mse")


def test_earlier_release_is_a_setting_and_no_option() -> None:
    cold, warm = make_cases(["adaptive"], {"users": [1000], "earlier_releases": [0, 1]})
    assert (cold.earlier, warm.earlier) == (0, 1)
    assert [case.setting.label for case in (cold, warm)] == [
        "adaptive, earlier_releases 0",
        "adaptive, earlier_releases 1",
    ]
    assert cold.parameters == warm.parameters
    assert make_cases(["flat"], {"earlier_releases": [0]})[0].earlier == 0  # nothing is asked of it


def test_shards_tolerate_dropout_and_five_deviations() -> None:
    large, small = (make_cases(["flat"], {"users": [users], "dropout": [0.1]})[0].parameters for users in (50_000, 400))
    assert large.simulated_dropout == small.simulated_dropout == 0.1
    assert math.isclose(large.dropout, 0.1 + 5 / math.sqrt(10_000))
    assert math.isclose(small.dropout, 0.1 + 5 / math.sqrt(400))
    tight = make_cases(["flat"], {"users": [50_000], "dropout": [0.1], "dropout_margin": [0.0]})[0].parameters
    assert tight.dropout == 0.1
    assert make_cases(["flat"], {"dropout": [0.0]})[0].parameters.simulated_dropout == 0


@pytest.mark.parametrize(
    ("methods", "values", "words"),
    [
        (["adaptive", "flt"], {}, "got 'flt'.*did you mean flat"),
        (["flat"], {"calibration": [0.1]}, "calibration: applies only with --method adaptive"),
        (["adaptive"], {"epsilon": [1.0, 0.0]}, "epsilon"),
        (["adaptive"], {"dropout": [-0.1]}, "simulated_dropout"),
        (["adaptive"], {"dropout": [math.nan]}, "dropout"),
        (["adaptive"], {"dropout": [0.9]}, "dropout"),
        (["adaptive"], {"users": [20]}, "dropout"),
        ([""], {}, "methods: must name one or more of adaptive"),
        (["emd"], {"emd_width": [20, 0]}, "emd_width"),
    ],
)
def test_bad_values_are_refused_by_name(methods: list[str], values: dict[str, list[float]], words: str) -> None:
    with pytest.raises(RequestError, match=words):
        make_cases(methods, values)


# Means, standard errors, ratios to the yardstick, groups and Markdown.

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
