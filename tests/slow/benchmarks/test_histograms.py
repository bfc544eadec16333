"""The counts of points that the histograms' figures print."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.histograms import FIVE, OURS, PAPER, Point, absolute_error, extra_clients, passing, summary, top_recall


def point(epsilon: float, *means: float) -> Point:
    """means: of the five, in their order."""
    scores = {("paper", name): (mean, 0.1) for name, mean in zip(FIVE, means, strict=True)}
    return Point("data", 64, epsilon, scores)


POINTS = [point(0.1, 3, 9, 4, 2, 1), point(0.2, 2, 9, 4, 2, 1), point(0.3, 1, 9, 4, 2, 0.5), point(0.4, 1, 9, 1, 2, 3)]


def test_the_papers_own_stands_against_the_papers_rivals() -> None:
    """The exact parameters sample more clients: they are no rival of it."""
    found = summary(POINTS, "paper", min, PAPER)
    assert "the best of 4, or level, at 2 of 4 points" in found
    assert "central Laplace at 1, local Hadamard at 4, shuffle at 3" in found
    assert "behind at epsilon 0.3, 0.4; at worst 2 against 1 of central Laplace" in found


def test_the_exact_parameters_stand_against_all() -> None:
    found = summary(POINTS, "paper", min, OURS)
    assert "the best of 5, or level, at 3 of 4 points" in found
    assert "3 against 1 of central Laplace at epsilon 0.4" in found


def test_more_clients_are_stated_by_number_of_buckets() -> None:
    table = extra_clients((1.0,))
    assert "| 2^6 | 0.689, 108: 6.5 times |" in table
    assert "| 2^14 | 0.301, 24: 2.9 times |" in table


def test_the_error_is_the_mean_over_buckets_as_a_share_of_the_population() -> None:
    counts = np.array([500, 300, 200, 0])
    assert absolute_error(np.array([510.0, 300, 170, 4]), counts) == pytest.approx((10 + 0 + 30 + 4) / 4 / 1000 * 1e6)
    assert absolute_error(np.zeros(4), counts) == pytest.approx(1e6 / 4)


def test_recall_is_of_the_tenth_with_the_most() -> None:
    counts = np.arange(100, 140)
    found = np.where(counts >= 136, counts * 2.0, 0)  # the top 4, as they are
    assert top_recall(found, counts) == 1
    found[-1] = 0  # one of them is not found, and 0 is no place in the list
    assert top_recall(found, counts) == 3 / 4
    found[0] = 1e6  # another one takes a place
    assert top_recall(found, counts) == 3 / 4
    found[1] = 1e6
    assert top_recall(found, counts) == 2 / 4


def test_what_passes_is_the_binomial_tail() -> None:
    """Of 64 buckets with binomial data at epsilon 1, 43.8% have enough users."""
    assert "| binomial, 2^6 | 9.95% | 43.8% |" in passing((1.0,))
