import pytest

from sfumato.schemas.errors import RequestError
from sfumato.transforms.heatmap.methods import METHODS, Adaptive, Flat
from sfumato.transforms.heatmap.options import heatmap_options, heatmap_parameters, option_grid
from sfumato.transforms.heatmap.parameters import HeatmapParameters


def test_every_method_has_its_options_with_help_and_default() -> None:
    options = heatmap_options()
    assert options["calibration"].methods == ("adaptive",)
    assert options["calibration"].default == 0.1
    assert options["depth"].methods == ()
    assert options["modulus"].kind is int
    assert options["modulus"].read("auto") is None
    assert options["modulus"].read("4096") == 4096
    assert options["calibration"].text().endswith("has on average (default: 0.1)")
    assert all(one.help and one.name == name for name, one in options.items())


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
        ("flat", {"level": 11}, "level"),
        ("flat", {"keep_top": 0.0}, "keep_top"),
        ("flat", {"keep_top": float("nan")}, "keep_top"),
        ("flat", {"depth": 13}, "depth"),
        ("adaptive", {"start_level": 11}, "start_level"),
        ("adaptive", {"gamma": 0}, "gamma"),
        ("adaptive", {"contribution": "some"}, "contribution"),
        ("adaptive", {"modulus": 1 << 63}, "modulus"),
    ],
)
def test_bad_options_are_refused_by_name(method: str, values: dict[str, object], words: str) -> None:
    with pytest.raises(RequestError, match=words):
        heatmap_parameters(method, values)


def test_facts_tell_methods_with_equal_options_apart() -> None:
    facts = {name: str(heatmap_parameters(name, {}).facts()) for name in METHODS}
    assert len(set(facts.values())) == len(METHODS)
    assert HeatmapParameters(method=Adaptive(calibration=0.2)).facts()["calibration"] == 0.2


def test_a_grid_has_every_combination_and_spares_methods_foreign_options() -> None:
    values = {"epsilon": [0.5, 1.0], "calibration": [0.1, 0.2, 0.1], "level": [3], "margin": [0.1]}
    grid = option_grid(["adaptive", "flat", "adaptive"], values, others=("margin",))
    assert len(grid) == 2 * 2 + 2
    assert ("adaptive", {"epsilon": 0.5, "calibration": 0.2, "margin": 0.1}) in grid
    assert ("flat", {"epsilon": 1.0, "level": 3, "margin": 0.1}) in grid


def test_a_grid_refuses_what_no_method_has_and_what_is_too_much() -> None:
    with pytest.raises(RequestError, match="calibration: is an option of adaptive, which is not among the methods"):
        option_grid(["flat"], {"calibration": [0.1]})
    with pytest.raises(RequestError, match="more than 10,000 combinations"):
        option_grid(["flat"], {"users": list(range(1, 102)), "shard_size": list(range(2, 102))})
    with pytest.raises(RequestError, match="there is no 'x'"):
        option_grid(["x"], {})
    with pytest.raises(ValueError, match="'' is no number"):
        heatmap_options()["epsilon"].read_list("1,,2")
