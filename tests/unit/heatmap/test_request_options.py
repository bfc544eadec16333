from typing import Any

import pytest

from sfumato.schemas.errors import RequestError
from sfumato.schemas.requests.request_base import range_text
from sfumato.transforms.heatmap.methods import METHODS, Adaptive, Flat
from sfumato.transforms.heatmap.parameters import HeatmapParameters
from sfumato.transforms.heatmap.request import (
    HeatmapRequest,
    PlanRequest,
    heatmap_parameters,
    option_grid,
    parameter_owners,
)
from tests.rejections import rejects


def test_parameter_owners_names_the_methods() -> None:
    owners = parameter_owners()
    assert owners["calibration"] == ("adaptive",)
    assert owners["depth"] == ()
    assert "method" not in owners


@pytest.mark.parametrize(
    ("option", "wrong"),
    [
        ("depth", 0), ("epsilon", 0), ("delta", 1), ("population", 0), ("shard_size", 1), ("dropout", 0.95),
        ("colluding", -1), ("simulated_dropout", 2), ("max_bad_fraction", -1), ("trust", "local"), ("schedule", "best"),
        ("refine", "width"), ("contribution", "some"), ("participation", "none"), ("noise_source", "sun"),
    ],
)  # fmt: skip
def test_request_rejects_what_parameters_reject(option: str, wrong: Any) -> None:
    """A range is declared once, so a request and the parameters refuse a value in the same words."""
    with pytest.raises(RequestError) as refused:
        HeatmapRequest.of({"input": "i", "output": "o", "region": "0,0,1,1", option: wrong})
    assert str(refused.value).startswith(f"{option}: must be ")
    assert range_text(HeatmapRequest.model_fields[option]) in str(refused.value)
    with pytest.raises(RequestError) as direct:
        heatmap_parameters("adaptive", {option: wrong})
    assert str(direct.value).partition(", got")[0] == str(refused.value).partition(", got")[0]
    if option in PlanRequest.model_fields:
        with pytest.raises(RequestError) as planned:
            PlanRequest.of({"users": 10, option: [wrong]})
        assert str(planned.value).partition(", got")[0] == str(refused.value).partition(", got")[0]


@pytest.mark.parametrize("name", ["depth", "epsilon", "delta", "max_bad_fraction", "participation", "noise_source"])
def test_request_has_the_defaults_of_the_parameters(name: str) -> None:
    assert HeatmapRequest.model_fields[name].default == getattr(HeatmapParameters(), name)
    assert HeatmapRequest.of({"input": "i", "output": "o", "region": "0,0,1,1"}).parameters == HeatmapParameters()


def test_defaults_are_the_dataclasses_own() -> None:
    assert heatmap_parameters("adaptive", {}) == HeatmapParameters()
    assert heatmap_parameters("flat", {"level": 4, "depth": None, "allow_overflow": False}) == HeatmapParameters(
        method=Flat(level=4)
    )


@pytest.mark.parametrize(
    ("method", "values", "words"),
    [
        ("adaptiv", {}, "method: there is no 'adaptiv', there are adaptive, flat.*did you mean adaptive"),
        ("nothing", {}, "method: there is no 'nothing'"),
        ("flat", {"calibration": 0.1}, "calibration: applies only with --method adaptive"),
        ("flat", {"levle": 3}, "levle: a heatmap has no such option; did you mean level?"),
        ("flat", {"level": None, "xyzzy": None}, "xyzzy: a heatmap has no such option"),
        ("flat", {"depth": 5.0}, "depth: must be a whole number in 1..20, got 5.0"),
        ("flat", {"depth": "5"}, "depth: must be a whole number in 1..20, got 5"),
        ("flat", {"epsilon": True}, r"epsilon: must be a number in \[0.0001, 30\], got True"),
        ("flat", {"allow_overflow": "yes"}, "allow_overflow: must be true or false, got 'yes'"),
        ("flat", {"trust": 1}, "trust: must be one of central, secagg, got 1"),
        ("flat", {"max_bad_fraction": -0.5}, r"max_bad_fraction: must be a number in \[0, 1\], got -0.5"),
        ("flat", {"level": 11}, "level"),
        ("flat", {"keep_top": 0.0}, "keep_top"),
        ("flat", {"keep_top": float("nan")}, "keep_top"),
        ("flat", {"depth": 13}, "depth"),
        ("adaptive", {"start_level": 11}, "start_level"),
        ("adaptive", {"gamma": 0}, "gamma"),
        ("adaptive", {"contribution": "some"}, "contribution"),
        ("adaptive", {"modulus": 1 << 63}, "modulus"),
        ("adaptive", {"schedule": "best"}, "schedule: must be one of auto, two_query, lean, paper, got 'best'"),
        ("adaptive", {"schedule": ""}, "schedule"),
        ("adaptive", {"estimator": "first"}, "estimator: must be one of bayes, last, got 'first'"),
        ("adaptive", {"cohorts": "none"}, "cohorts: must be one of auto, shared, disjoint, got 'none'"),
        ("adaptive", {"cohorts": "disjoint", "schedule": "paper"}, "cohorts: is no option of the paper's schedule"),
        ("adaptive", {"max_entries": 100, "schedule": "paper"}, "max_entries: is no option of the paper's schedule"),
        ("adaptive", {"calibration": 0.2}, "calibration: is an option of the paper's schedule; give --schedule paper"),
        (
            "adaptive",
            {"max_sub_queries": 2, "schedule": "lean"},
            "max_sub_queries: is an option of the paper",
        ),
        (
            "adaptive",
            {"interval_width": 0.2},
            "interval_width: is .* interval; give --refine interval",
        ),
        ("adaptive", {"cohorts": "disjoint", "trust": "central"}, "cohorts: .* central noise"),
        ("adaptive", {"refine": "width"}, "refine: must be one of count, interval, got 'width'"),
        ("adaptive", {"refine": "interval"}, "refine: .* auxiliary"),
        ("adaptive", {"refine": "interval", "schedule": "paper"}, "refine: .* auxiliary"),
        ("adaptive", {"refine": "interval", "interval_width": 0.0}, "interval_width: must be a number > 0 and < 1"),
        ("adaptive", {"refine": "interval", "interval_width": 1.0}, "interval_width"),
        ("adaptive", {"refine": "interval", "interval_width": -0.1}, "interval_width"),
        ("adaptive", {"refine": "interval", "interval_width": float("nan")}, "interval_width"),
        ("adaptive", {"max_entries": 15}, "max_entries: must be a whole number in 16..16777216, got 15"),
        ("adaptive", {"max_entries": 1 << 25}, "max_entries"),
        ("adaptive", {"max_entries": 100.0}, "max_entries"),
        ("adaptive", {"blur_weight": 0.0}, "blur_weight"),
        ("adaptive", {"blur_weight": -1.0}, "blur_weight"),
        ("adaptive", {"blur_weight": float("nan")}, "blur_weight: must be a number > 0 .*, got nan"),
        ("adaptive", {"blur_weight": float("inf")}, "blur_weight"),
        ("adaptive", {"target": "literal"}, "target"),
        (
            "adaptive",
            {"rounding": "up", "contribution": "all"},
            "rounding: must be one of systematic, independent, got",
        ),
        ("adaptive", {"rounding": "independent"}, "rounding: .* use it with contribution all"),
        ("adaptive", {"rounding": "independent", "contribution": "top"}, "rounding"),
        ("flat", {"estimator": "best"}, "estimator: must be one of bayes, last, got 'best'"),
        ("flat", {"estimator": "bayes", "keep_top": 50.0}, "keep_top"),
        ("flat", {"schedule": "lean"}, "schedule: applies only with --method adaptive"),
        ("emd", {"estimator": "bayes"}, "estimator: applies only with --method adaptive or flat"),
        ("flat", {"cohorts": "shared"}, "cohorts: applies only with --method adaptive"),
        ("flat", {"max_entries": 100}, "max_entries: applies only with --method adaptive"),
        ("flat", {"refine": "interval"}, "refine: applies only with --method adaptive"),
    ],
)
def test_bad_options_are_refused_by_name(method: str, values: dict[str, object], words: str) -> None:
    with pytest.raises(RequestError, match=words):
        heatmap_parameters(method, values)


@pytest.mark.parametrize("method", sorted(METHODS))
def test_only_methods_that_count_by_category_take_auxiliary_data(method: str) -> None:
    if method in ("adaptive", "flat"):
        assert heatmap_parameters(method, {}, 2).categories == 2
        return
    with pytest.raises(RequestError, match=f"auxiliary: method {method} makes no rates; use adaptive or flat"):
        heatmap_parameters(method, {}, 2)


@pytest.mark.parametrize("categories", [0, -1, 1 << 20])
def test_categories_out_of_range_are_refused(categories: int) -> None:
    with pytest.raises(RequestError, match="categories"):
        heatmap_parameters("adaptive", {}, categories)


def test_rates_may_be_what_is_refined_by() -> None:
    assert heatmap_parameters("adaptive", {"refine": "interval", "interval_width": 0.05}, 2).categories == 2


def test_facts_tell_methods_with_equal_options_apart() -> None:
    metadata = {name: str(heatmap_parameters(name, {}).metadata()) for name in METHODS}
    assert len(set(metadata.values())) == len(METHODS)
    assert HeatmapParameters(method=Adaptive(calibration=0.2)).metadata()["calibration"] == 0.2


def test_a_grid_has_every_combination_and_spares_methods_foreign_options() -> None:
    values = {"epsilon": [0.5, 1.0], "calibration": [0.1, 0.2, 0.1], "level": [3]}
    grid = option_grid(["adaptive", "flat", "adaptive"], values)
    assert len(grid) == 2 * 2 + 2
    assert ("adaptive", {"epsilon": 0.5, "calibration": 0.2}) in grid
    assert ("flat", {"epsilon": 1.0, "level": 3}) in grid


def test_a_grid_refuses_what_no_method_has_and_what_is_too_much() -> None:
    with rejects("calibration"):
        option_grid(["flat"], {"calibration": [0.1]})
    with pytest.raises(RequestError, match="more than 10,000 combinations"):
        option_grid(["flat"], {"users": list(range(1, 102)), "shard_size": list(range(2, 102))})
    with pytest.raises(RequestError, match="there is no 'x'"):
        option_grid(["x"], {})
    with pytest.raises(ValueError, match=r"epsilon: must be a number in \[0.0001, 30\], got ''"):
        PlanRequest.of({"users": "1", "epsilon": "1,,2"})


def test_paper_schedule_has_the_papers_estimator_except_over_nights() -> None:
    given = {"input": "i", "output": "o", "region": "0,0,1,1", "schedule": "paper"}
    alone, (planned,) = (
        HeatmapRequest.of(given).parameters,
        PlanRequest.of({"users": 1000, "schedule": "paper"}).settings(),
    )
    assert alone.method == planned.method == Adaptive(schedule="paper", estimator="last")
    assert HeatmapRequest.of({**given, "night": "2026-11-20"}).parameters.method == Adaptive(schedule="paper")
