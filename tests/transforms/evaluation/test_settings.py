import math

import pytest

from sfumato.schemas.errors import RequestError
from sfumato.transforms.evaluation.settings import make_cases


def test_settings_are_named_by_what_varies() -> None:
    cases = make_cases(["adaptive", "flat"], {"users": [1000, 2000], "epsilon": [1.0], "calibration": [0.1, 0.2]})
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
        (["adaptive"], {"dropout_margin": [math.nan]}, "dropout_margin"),
        (["adaptive"], {"dropout_margin": [-0.1]}, "dropout_margin"),
        (["adaptive"], {"dropout": [0.9]}, "dropout: shards of 10,000 would have to tolerate that 95%"),
        (["adaptive"], {"users": [20]}, "dropout: shards of 20 would"),
        ([""], {}, "methods: name at least one of adaptive"),
        (["emd"], {"emd_width": [20, 0]}, "emd_width"),
    ],
)
def test_bad_values_are_refused_by_name(methods: list[str], values: dict[str, list[float]], words: str) -> None:
    with pytest.raises(RequestError, match=words):
        make_cases(methods, values)
