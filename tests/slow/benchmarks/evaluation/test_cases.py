import math

import pytest

from benchmarks.baselines.heatmap_methods import SpatialDecomposition
from benchmarks.evaluation.cases import make_cases, parse_cases
from sfumato.schemas.errors import RequestError


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


def test_parse_cases_refuses_unknown_options_and_plans_that_cannot_run() -> None:
    with pytest.raises(ValueError, match="unknown options: speed"):
        parse_cases("--methods flat --speed 9 --metrics mse")
    with pytest.raises(RequestError, match="modulus"):
        parse_cases("--methods flat --modulus 64 --metrics mse")


def test_earlier_releases_are_a_setting_and_no_option_of_the_heatmap() -> None:
    cold, warm = make_cases(["adaptive"], {"users": [1000], "earlier_releases": [0, 1]})
    assert (cold.earlier, warm.earlier) == (0, 1)
    assert [case.setting.label for case in (cold, warm)] == [
        "adaptive, earlier_releases 0",
        "adaptive, earlier_releases 1",
    ]
    assert cold.parameters == warm.parameters
    assert make_cases(["flat"], {"earlier_releases": [0]})[0].earlier == 0  # nothing is asked of it


def test_shards_tolerate_the_dropout_and_five_deviations_of_their_size() -> None:
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
        (["adaptive", "flt"], {}, "there is no 'flt'.*did you mean flat"),
        (["flat"], {"calibration": [0.1]}, "calibration: is an option of adaptive"),
        (["adaptive"], {"epsilon": [1.0, 0.0]}, "epsilon"),
        (["adaptive"], {"dropout": [-0.1]}, "simulated_dropout"),
        (["adaptive"], {"dropout": [math.nan]}, "dropout"),
        (["adaptive"], {"dropout": [0.9]}, "dropout"),
        (["adaptive"], {"users": [20]}, "dropout"),
        ([""], {}, "methods: name at least one of adaptive"),
        (["emd"], {"emd_width": [20, 0]}, "emd_width"),
    ],
)
def test_bad_values_are_refused_by_name(methods: list[str], values: dict[str, list[float]], words: str) -> None:
    with pytest.raises(RequestError, match=words):
        make_cases(methods, values)
