import pytest

from sfumato.schemas.errors import RequestError
from sfumato.schemas.requests.request_base import range_text
from sfumato.transforms.heatmap.heatmap_options import heatmap_options, heatmap_parameters, option_grid
from sfumato.transforms.heatmap.heatmap_request import HeatmapRequest, PlanRequest
from sfumato.transforms.heatmap.methods import METHODS, Adaptive, Flat
from sfumato.transforms.heatmap.parameters import HeatmapParameters


def test_every_method_has_its_options_with_help_and_default() -> None:
    options = heatmap_options()
    assert options["calibration"].methods == ("adaptive",)
    assert options["calibration"].default == 0.1
    assert options["depth"].methods == ()
    assert options["modulus"].kind is int
    assert PlanRequest.of({"users": "1", "modulus": "auto,4096"}).given(["modulus"]) == {"modulus": (None, 4096)}
    assert all(one.help and one.name == name for name, one in options.items())


def test_a_request_has_the_bounds_that_an_option_declares() -> None:
    """One declaration: what the dataclasses check is what the help, the reference and the request's errors say."""
    declared = {name: one for name, one in heatmap_options().items() if one.bounds}
    assert {"depth", "epsilon", "shard_size", "max_sub_queries", "emd_width"} <= set(declared)
    for name, one in declared.items():
        wrong = one.bounds.get("ge", one.bounds.get("gt")) - 1
        wrong = int(wrong) if one.kind is int else wrong
        with pytest.raises(RequestError) as refused:
            HeatmapRequest.of({"input": "i", "output": "o", "region": "0,0,1,1", name: wrong})
        assert str(refused.value).startswith(f"{name}: must be a"), refused.value
        assert range_text(HeatmapRequest.model_fields[name]) in str(refused.value)
        if name in PlanRequest.model_fields:
            with pytest.raises(RequestError) as also:
                PlanRequest.of({"users": 10, name: [wrong]})
            assert str(also.value).startswith(str(refused.value).partition(", got")[0])


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
        ("flat", {"calibration": 0.1}, "calibration: is an option of adaptive, not of method flat"),
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
        ("flat", {"schedule": "lean"}, "schedule: is an option of adaptive, not of method flat"),
        ("emd", {"estimator": "bayes"}, "estimator: is an option of adaptive, flat, not of method emd"),
        ("flat", {"cohorts": "shared"}, "cohorts: is an option of adaptive"),
        ("flat", {"max_entries": 100}, "max_entries: is an option of adaptive"),
        ("flat", {"refine": "interval"}, "refine: is an option of adaptive"),
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
    with pytest.raises(RequestError, match="calibration: is an option of adaptive, which is not among the methods"):
        option_grid(["flat"], {"calibration": [0.1]})
    with pytest.raises(RequestError, match="more than 10,000 combinations"):
        option_grid(["flat"], {"users": list(range(1, 102)), "shard_size": list(range(2, 102))})
    with pytest.raises(RequestError, match="there is no 'x'"):
        option_grid(["x"], {})
    with pytest.raises(ValueError, match=r"epsilon: must be a number in \[0.0001, 30\], got ''"):
        PlanRequest.of({"users": "1", "epsilon": "1,,2"})
