"""What the meter says of a plan, and what it stops."""

from __future__ import annotations

import math

import numpy as np
import pytest

from sfumato.schemas.errors import DataError
from sfumato.schemas.moments import BitMeans
from sfumato.transforms.moments.local.tally import RandomisedResponse, check_reports, meter_entry


def bits(*probabilities: float) -> BitMeans:
    some = np.ones(len(probabilities))
    return BitMeans("value", some, some, some, some, some > 2, np.array(probabilities))


def test_the_manifests_numbers() -> None:
    response = RandomisedResponse(2 * math.log(3), 2)  # each bit is true with probability 3/4
    entry = meter_entry(response, [bits(0.1, 0.6), bits(0.2)])
    assert entry == {
        "bits_per_client": 2,
        "bits_per_value": 2,
        "cap": 2,
        "expected_private_bits": pytest.approx(1.0),  # 2 (2 3/4 - 1)
        "epsilon_per_bit": pytest.approx(math.log(3)),
        "epsilon_per_client": 2 * math.log(3),
        "truth_probability": pytest.approx(0.75),
        "highest_read_probability": 0.6,
    }
    assert entry["truth_probability"] <= 0.75  # rounded down


def test_without_epsilon_bits_are_all_private_and_no_loss_is_promised() -> None:
    entry = meter_entry(RandomisedResponse(None, 3), [bits(0.5)])
    assert entry["expected_private_bits"] == 3
    assert entry["epsilon_per_bit"] is entry["epsilon_per_client"] is entry["truth_probability"] is None


def test_more_reports_than_allowed_are_not_published() -> None:
    response = RandomisedResponse(1.0, 2)
    check_reports(response, 100, 200)
    check_reports(response, 0, 0)
    with pytest.raises(
        DataError, match=r"meter: clients reported more or fewer bits than the query has; nothing is published"
    ):
        check_reports(response, 100, 201)
    with pytest.raises(DataError, match="meter"):
        check_reports(response, 100, 199)
