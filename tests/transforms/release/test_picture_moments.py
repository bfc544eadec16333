"""The picture of moments: bars as high as their shares, what is grey, what the caption promises, odd input."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from sfumato.schemas.moments import BitMeans
from sfumato.transforms.release.picture_moments import (
    SQUASHED,
    axis_ends,
    contributions,
    first_statistic,
    render_moments_picture,
    unclear,
)
from tests.transforms.release.moment_samples import estimate, estimates, groups, split_bits, unsigned_bits
from tests.transforms.release.test_picture import pixels

GREY = np.array([int(SQUASHED[at : at + 2], 16) for at in (1, 3, 5)]) / 255
GIVEN: dict[str, Any] = {
    "title": "Private mean", "column": "km", "epsilon": 2.0, "bits_per_client": 1, "safe": True,
}  # fmt: skip


def flat_bits(mean: list[float], squashed: list[bool], stddev: float = 0.0) -> BitMeans:
    n = len(mean)
    weight = 2.0 ** np.arange(n)
    return BitMeans(
        "value",
        weight,
        np.array(mean),
        np.full(n, stddev),
        np.full(n, 100.0),
        np.array(squashed, bool),
        np.full(n, 0.1),
    )


def warm(image: NDArray[np.float64]) -> NDArray[np.bool_]:
    return (image[..., 0] > 0.55) & (image[..., 0] - image[..., 2] > 0.2)


def columns(mask: NDArray[np.bool_]) -> list[int]:
    """Heights, in pixels, of the blocks that a mask has side by side."""
    tall = mask.sum(axis=0)
    parts = np.split(tall, np.flatnonzero(np.diff((tall > 8).astype(int))) + 1)
    return [int(np.median(part)) for part in parts if part[0] > 8 and len(part) > 30]


def test_picture_is_large_and_repeatable() -> None:
    bits = unsigned_bits()
    given = estimates(bits) + groups(40)
    data = render_moments_picture(given, bits, **GIVEN)
    assert min(pixels(data).shape[:2]) >= 1000
    assert data == render_moments_picture(given, bits, **GIVEN)
    assert "Each client gave one bit, randomised with ε = 2: local differential privacy.".encode() in data
    assert b"Noise may lead a share below 0% or above 100%. Squashed bits are probably empty, and hardly count." in data
    split = render_moments_picture(estimates(split_bits()), split_bits(), **GIVEN | {"bits_per_client": 2})
    assert "Each client gave 2 bits, randomised with ε = 2 in all".encode() in split


def test_the_caption_promises_nothing_that_is_not_so() -> None:
    bits = unsigned_bits(None)
    plain = render_moments_picture(estimates(bits), bits, **GIVEN | {"epsilon": None})
    assert b"Each client gave one bit, as it is: no differential privacy." in plain
    assert b"squashed" not in plain.lower()
    assert b"Noise may" not in plain
    for epsilon in (None, 2.0):
        unsafe = render_moments_picture(estimates(bits), bits, **GIVEN | {"epsilon": epsilon, "safe": False})
        assert b"NOT private" in unsafe
        assert b"randomised" not in unsafe


def test_bars_are_as_high_as_their_shares_and_squashed_ones_grey() -> None:
    image = pixels(render_moments_picture([], [flat_bits([0.2, 0.8, 0.4, 0.6], [False, False, False, True])], **GIVEN))
    chart = image[300:]  # below the key
    bright = columns(warm(chart))
    assert [round(height / bright[0], 2) for height in bright] == pytest.approx([1, 4, 2], rel=0.03)
    grey = columns((np.abs(chart - GREY) < 0.02).all(axis=-1))
    assert len(grey) == 1
    assert grey[0] / bright[0] == pytest.approx(3, rel=0.03)


def test_bits_of_negative_values_are_mirrored() -> None:
    weight = np.array([1.0, 2.0, -1.0, -2.0])
    mean = np.array([0.2, 0.4, 0.6, 0.8])
    bits = BitMeans("value", weight, mean, np.zeros(4), np.full(4, 9.0), np.zeros(4, bool), np.full(4, 0.25))
    bright = columns(warm(pixels(render_moments_picture([], [bits], **GIVEN))[300:]))
    assert [height / bright[2] for height in bright] == pytest.approx([4, 3, 1, 2], rel=0.03)


def test_noise_far_outside_is_drawn_at_the_edge_with_its_number() -> None:
    near = pixels(render_moments_picture([], [flat_bits([0.5, 1.2], [False, False])], **GIVEN))
    far = pixels(render_moments_picture([], [flat_bits([0.5, 44.0], [False, False])], **GIVEN))
    assert near.shape == far.shape
    assert columns(warm(far[300:]))[0] > 0.7 * columns(warm(near[300:]))[0]  # one wild share does not flatten the rest


def test_odd_numbers_names_and_nothing_at_all_are_drawn() -> None:
    odd = flat_bits([math.nan, math.inf, 0.5, -9.0], [False, False, True, False], stddev=math.nan)
    bare = flat_bits([], [])
    numbers = [
        estimate("everybody", "mean", math.nan, math.nan),
        estimate("\u202e$\\frac{1}{$" * 20, "mean", 1, math.inf),
    ]
    for given, bits in (([], []), (numbers, [odd, bare]), (numbers[1:], []), ([], [bare]), (groups(1), [odd] * 5)):
        for name in ("東京 $x$", "", "a" * 999):
            picture = render_moments_picture(given, bits, **GIVEN | {"title": name, "column": name})
            assert pixels(picture).shape[0] > 300
    same = [estimate(f"g{i}", "mean", 5.0, 0.0) for i in range(3)]
    assert pixels(render_moments_picture(same, [], **GIVEN)).shape[0] > 300


def test_fifty_two_bits_with_signs_still_fit() -> None:
    weight = np.concatenate([2.0 ** np.arange(52), -(2.0 ** np.arange(52))]) / 8
    many = np.full(104, 0.5)
    bits = BitMeans("value", weight, many, many / 9, many, np.zeros(104, bool), many / 60)
    assert pixels(render_moments_picture([], [bits], **GIVEN)).shape[1] == 1504


def test_the_thirty_groups_with_most_clients_are_drawn() -> None:
    few, many = (pixels(render_moments_picture(groups(n), [], **GIVEN)).shape[0] for n in (29, 60))
    assert few == many  # 29 and the others: 30 rows, which is the most


@pytest.mark.parametrize("epsilon", [0.0, -1.0, math.nan, math.inf])
def test_epsilon_must_make_sense(epsilon: float) -> None:
    with pytest.raises(ValueError, match=r"^epsilon: must be a finite number > 0"):
        render_moments_picture([], [], **GIVEN | {"epsilon": epsilon})
    with pytest.raises(ValueError, match=r"^bits_per_client: must be at least 1"):
        render_moments_picture([], [], **GIVEN | {"bits_per_client": 0})


def test_bits_asked_too_rarely_are_hollow_and_have_no_whiskers() -> None:
    one = flat_bits([0.5, 0.5], [False, False])
    vague = replace(one, stddev=np.array([0.01, 0.5]))
    assert unclear(vague).tolist() == [False, True]
    assert unclear(replace(vague, squashed=np.array([True, True]))).tolist() == [False, False]
    assert unclear(replace(one, mean=np.array([0.5, math.nan]))).tolist() == [False, True]
    image = pixels(render_moments_picture([], [vague], **GIVEN))
    assert len(columns(warm(image[300:]))) == 1


def test_squashed_and_unread_bits_add_nothing() -> None:
    added = contributions(flat_bits([0.5, 0.5, math.nan, -0.25], [False, True, False, False]))
    assert added.tolist() == [0.5, 0.0, 0.0, -2.0]


def test_the_first_statistic_is_everybodys_first() -> None:
    given = [*groups(2, ("variance", "mean")), estimate("everybody", "mean", 3.0, 1.0)]
    everybody, name, found = first_statistic(given)
    assert (everybody.value if everybody else None, name) == (3.0, "mean")
    assert {one.statistic for one in found} == {"mean"}
    assert first_statistic([]) == (None, "", [])


def test_an_interval_known_poorly_does_not_hide_the_others() -> None:
    value = np.array([1.0, 2.0, 3.0])
    low, high = axis_ends(value, value - 0.1, np.array([1.1, 2.1, 1e9]))
    assert 0.5 < low < 1
    assert 3 < high < 7
    low, high = axis_ends(value, value - 0.2, value + 0.3)
    assert low < 0.8
    assert high > 3.3
    assert axis_ends(np.zeros(0), np.zeros(0), np.zeros(0)) == (0.0, 1.0)
    low, high = axis_ends(np.array([5.0]), np.array([-math.inf]), np.array([math.nan]))
    assert -math.inf < low < 5 < high < math.inf
