"""What users add, one user at a time, in plain Python: dwell times, amounts, the record that counts, distributions."""

from __future__ import annotations

import math
from collections import Counter
from fractions import Fraction


def dwell_times(times: list[float], max_dwell: float) -> list[float]:
    """How long each of one user's records lasts: to the next moment with a record; records of a moment share it."""
    weights = []
    for time in times:
        later = [other for other in times if other > time]
        wait = min(min(later) - time, max_dwell) if later else max_dwell
        weights.append(wait / times.count(time))
    return weights


def exact_shares(places: list[int], weights: list[float] | None) -> dict[int, Fraction]:
    """The share of each of a user's places: of the user's records, or of their weights. All-zero weights are equal."""
    held: dict[int, Fraction] = {}
    if weights is None or not any(weights):
        weights = [1.0] * len(places)
    for place, weight in zip(places, weights, strict=True):
        held[place] = held.get(place, Fraction(0)) + Fraction(weight)
    total = sum(held.values())
    return {place: one / total for place, one in sorted(held.items())}


def amounts(places: list[int], weights: list[float] | None) -> dict[int, int]:
    """The same as whole numbers, by their definition: counts, or floors of 2^31 times a share of fixed-point sums."""
    if weights is None:
        return dict(sorted(Counter(places).items()))
    if not any(weights):
        weights = [1.0] * len(places)
    bits = 62 - len(places).bit_length()
    held: dict[int, int] = {}
    for place, weight in zip(places, weights, strict=True):
        held[place] = held.get(place, 0) + int(math.ldexp(weight / max(weights), bits))
    return {place: int(one / float(sum(held.values())) * 2**31) for place, one in sorted(held.items())}


def drawn(user: int, held: dict[int, int]) -> int:
    """The place at the position that the lower bits of the user's hash say."""
    position = (user % 2**32) * sum(held.values()) // 2**32
    for place, amount in held.items():
        position -= amount
        if position < 0:
            return place
    raise AssertionError


def top(user: int, held: dict[int, int]) -> int:
    """The place that holds the most; of several alike the one that the lower bits of the hash say."""
    alike = [place for place, amount in held.items() if amount == max(held.values())]
    return alike[(user % 2**32) * len(alike) // 2**32]


def rounded(user: int, held: dict[int, int], gamma: int) -> dict[int, int]:
    """Systematic rounding of gamma times the shares, in exact fractions with the real offset of the formula."""
    offset, before, upto, total = Fraction(user % 2**32, 2**32), 0, 0, sum(held.values())
    found = {}
    for place, amount in held.items():
        upto += amount
        edge = math.floor(Fraction(gamma * upto, total) + offset)
        if edge > before:
            found[place] = edge - before
        before = edge
    return found
