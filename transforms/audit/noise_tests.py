"""Whether noise has the stated size and is drawn separately, from counts of the same logs under several keys. Pure.

Two runs on the same logs differ by noise only. The distribution of such a difference is known: that of a sum of
discrete Laplace variables, by their characteristic function. By Chernoff's bound

    P[the sum of n distances |d| / sd is as extreme as x] <= 2 min_t exp(sum of ln E[e^(t |d| / sd)] - t x),

the smaller of both sides. How often two series of noise have the same sign is bounded by Hoeffding's inequality. All
tests of an audit share FALSE_ALARM by the union bound: right code is accused with at most this probability.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray
from scipy.special import logsumexp

from sfumato.transforms.audit.claims import StatedNoise
from sfumato.transforms.audit.comparison import Outcome
from sfumato.transforms.audit.measurements import Floats, Measurement

FALSE_ALARM = 1e-5
_TESTS = 200  # of one audit, at most; the first ones are made
_LEVEL = FALSE_ALARM / _TESTS
_COARSE = 0.02  # the smallest decay that is computed; noise of a smaller one is scaled
_TAIL = 45.0  # standard deviations of noise that are computed
_FAR = 1e-8  # the probability of noise that hides a count far above a threshold
# Laplace noise has finite expectations for t below 2.
_T = np.concatenate([-np.geomspace(0.01, 30, 60), np.geomspace(0.01, 0.95, 60)])
_ENOUGH = 30  # counts in each third of a table
_HALF = 0.5  # of the stated noise: where this would be found, noise is called judged
_ROUNDING = 1e-6


@dataclass(frozen=True)
class Distance:
    """The distribution of the distance of two noisy counts, in standard deviations of their difference."""

    values: Floats
    probabilities: Floats

    @property
    def exponents(self) -> Floats:
        """ln E[e^(t distance)] for each t."""
        some = self.probabilities > 0
        return np.asarray(logsumexp(_T[:, None] * self.values[some], 1, self.probabilities[some]))

    @property
    def expected(self) -> float:
        """The expectation."""
        return float(self.values @ self.probabilities)

    @property
    def far(self) -> float:
        """A distance that is exceeded with a probability of _FAR."""
        above = np.cumsum(self.probabilities[::-1])[::-1]
        return float(self.values[np.count_nonzero(above > _FAR) - 1])


@cache
def distance(noise: StatedNoise, draws: float) -> Distance:
    """Returns the distribution for two counts that add up some draws each."""
    if noise.kind == "gaussian":
        values: Floats = np.arange(2400, dtype=np.float64) / 200
        weights: Floats = np.exp(-0.5 * values**2)
    else:
        decay = max(noise.decay, _COARSE)
        size = 2 ** math.ceil(math.log2(2 * _TAIL * (math.sqrt(draws) / math.sinh(decay / 2) + 1)))
        angle, q = 2 * math.pi * np.arange(size) / size, math.exp(-decay)
        transform = ((1 - q) ** 2 / (1 - 2 * q * np.cos(angle) + q * q)) ** (2 * draws)
        weights = np.asarray(np.fft.ifft(transform).real[: size // 2], np.float64)
        weights[weights < 1e-15] = 0.0
        values = np.arange(len(weights), dtype=np.float64) * (math.sinh(decay / 2) / math.sqrt(draws))
    weights[1:] *= 2
    return Distance(values, weights / weights.sum())


@dataclass(frozen=True)
class Differences:
    """What counts of the same things differ by between two runs.

    Attributes:
        keys: what is counted.
        values: in standard deviations, float64[n].
        draws: of the noise of each count, float64[n].
    """

    keys: tuple[str, ...]
    values: Floats
    draws: Floats

    @classmethod
    def of(cls, one: Measurement, other: Measurement) -> Differences:
        """Returns the differences of counts that both runs have. Nodes that hold others are left out."""
        if one.noise is None or one.stddev is None or other.stddev is None or one.name != other.name:
            return cls((), np.empty(0), np.empty(0))
        inner, places = one.inner | other.inner, {key: at for at, key in enumerate(other.keys)}
        pairs = [(at, places[key]) for at, key in enumerate(one.keys) if key in places and key not in inner]
        first, second = np.array(pairs, dtype=int).reshape(-1, 2).T
        stddev = np.hypot(one.stddev[first], other.stddev[second])
        draws = np.round((stddev / (one.noise.unit * one.noise.stddev)) ** 2 / 2, 3)
        return cls(tuple(one.keys[at] for at in first), (one.values[first] - other.values[second]) / stddev, draws)

    def only(self, which: NDArray[np.bool_]) -> Differences:
        """Returns some of them."""
        return Differences(tuple(itertools.compress(self.keys, which)), self.values[which], self.draws[which])


def improbability(noise: StatedNoise, found: Differences, share: float | None = None) -> float:
    """Bounds the probability of distances whose sum is as extreme. share: of the expected sum, instead of theirs."""
    exponent, expected = np.zeros(len(_T)), 0.0
    for draws, number in zip(*np.unique(found.draws, return_counts=True), strict=True):
        one = distance(noise, float(draws))
        exponent += number * one.exponents
        expected += number * one.expected
    total = float(np.abs(found.values).sum()) if share is None else share * expected
    return min(2 * math.exp(min(float((exponent - _T * total).min()), 0.0)), 1.0)


def _have_equal_signs(one: Floats, other: Floats) -> bool:
    """Returns whether two series of independent symmetric values have the same or opposite signs too often."""
    signs = np.sign(one) * np.sign(other)
    number = np.count_nonzero(signs)
    return bool(number) and abs(float(signs.sum())) > math.sqrt(2 * number * math.log(2 / _LEVEL))


@dataclass(frozen=True)
class NoiseReport:
    """What tests of noise found.

    Attributes:
        faults: in words.
        judged: the measurements whose noise would be found if half of it were missing.
        weak: the other ones.
    """

    faults: list[str]
    judged: list[str]
    weak: list[str]


def noise_report(order: Outcome, pairs: Sequence[tuple[Outcome, Outcome]]) -> NoiseReport:
    """Judges the noise of runs on the same logs in which no record is left to choose.

    order: a run on them that is in no pair, whose counts tell where a table has many users. pairs: of runs under
        different keys.
    """
    drawn = [(each, list(_differences(place, each, pairs))) for place, each in enumerate(order.measured)]
    report = NoiseReport([], [], [])
    for place, (each, found) in enumerate(drawn):
        if each.noise is None:
            continue
        pooled = Differences(
            tuple(key for one in found for key in one.keys),
            np.concatenate([np.empty(0), *(one.values for one in found)]),
            np.concatenate([np.empty(0), *(one.draws for one in found)]),
        )
        is_judged = improbability(each.noise, pooled, _HALF) < _LEVEL
        (report.judged if is_judged else report.weak).append(each.name)
        for where, part in {"": pooled, **_thirds(each, pooled)}.items():
            if len(part.values) and improbability(each.noise, part) < _LEVEL:
                expected = sum(distance(each.noise, draws).expected for draws in part.draws.tolist())
                size = float(np.abs(part.values).sum()) / expected
                report.faults.append(f"the noise of {each.name}{where} is {size:.2f} times the stated one")
        if not _is_whole(each):
            report.faults.append(f"{each.name} has noise that is not drawn from whole numbers")
        if _repeats([one.values for one in found]):
            report.faults.append(f"counts of {each.name} have the same noise")
        if (step := _step(place, each, pairs)) > 1:
            report.faults.append(f"all noise of {each.name} is a multiple of {step}")
    for (one, found), (other, others) in itertools.combinations(drawn[:6], 2):
        lengths = [min(len(a.values), len(b.values)) for a, b in zip(found, others, strict=True)]
        series = [_joined(a.values[:n] for a, n in zip(each, lengths, strict=True)) for each in (found, others)]
        if _have_equal_signs(*series):
            report.faults.append(f"{one.name} and {other.name} have the same noise")
    return report


def scaled_noise(pair: tuple[Outcome, Outcome], others: tuple[Outcome, Outcome]) -> list[str]:
    """Returns, in words, what has the same noise with another epsilon, whatever its scale.

    pair, others: runs on the same logs under the same two keys, each pair with its own epsilon. The differences within
    a pair are noise only. Sizes of such differences are not compared: two scales in one sum are another distribution.
    """
    faults = []
    for place, each in enumerate(pair[0].measured):
        one, other = (next(_differences(place, each, [both])) for both in (pair, others))
        places = {key: at for at, key in enumerate(other.keys)}
        common = [(at, places[key]) for at, key in enumerate(one.keys) if key in places]
        first, second = np.array(common, dtype=int).reshape(-1, 2).T
        if _have_equal_signs(one.values[first], other.values[second]):
            faults.append(f"with another epsilon {each.name} has the same noise, scaled")
    return faults


def _repeats(series: Sequence[Floats]) -> bool:
    """Returns whether signs of independent symmetric values agree too often with those at any distance in a series."""
    size = max((len(one) for one in series), default=0)
    if size < 2:
        return False
    sums = numbers = np.zeros(size - 1)
    for one in series:
        signs = np.fft.rfft(np.sign(one), 2 * size), np.fft.rfft(np.abs(np.sign(one)), 2 * size)
        added = (np.fft.irfft(np.abs(each) ** 2)[1:size] for each in signs)
        sums, numbers = sums + next(added), numbers + next(added)
    return bool(np.any(np.abs(sums) > np.sqrt(2 * np.maximum(numbers, 0) * math.log(2 * size / _LEVEL)) + _ROUNDING))


def _step(place: int, order: Measurement, pairs: Sequence[tuple[Outcome, Outcome]]) -> int:
    """Returns the whole number of units of which all differences of runs are multiples; 1 where few differ.

    Of noise in whole numbers less than half of the differences that are not 0 are even.
    """
    found, unit = list[int](), 1.0 if order.noise is None else order.noise.unit
    for pair in pairs:
        if all(place < len(one.measured) and one.measured[place].name == order.name for one in pair):
            first, second = (one.measured[place].by_key for one in pair)
            found += [round((first[key] - second[key]) / unit) for key in first.keys() & second.keys()]
    return math.gcd(*found) if np.count_nonzero(found) >= _ENOUGH else 1


def _joined(parts: Iterator[Floats]) -> Floats:
    return np.concatenate([np.empty(0), *parts])


def _differences(place: int, order: Measurement, pairs: Sequence[tuple[Outcome, Outcome]]) -> Iterator[Differences]:
    """Yields the differences of each pair, of counts far above a threshold only."""
    for pair in pairs:
        if all(place < len(one.measured) and one.measured[place].name == order.name for one in pair):
            found = Differences.of(*(one.measured[place] for one in pair))
            if order.threshold is not None and order.noise is not None and len(found.values):
                draws = float(found.draws.max())
                stddev = order.noise.stddev * order.noise.unit * math.sqrt(2 * draws)
                least = order.threshold + stddev * distance(order.noise, draws).far
                found = found.only(np.array([order.by_key.get(key, -math.inf) > least for key in found.keys]))
            yield found
        else:
            yield Differences((), np.empty(0), np.empty(0))


def _thirds(order: Measurement, found: Differences) -> dict[str, Differences]:
    """Returns the counts of few, some and many users, by another run. Keys that it lacks are left out."""
    users = np.array([order.by_key.get(key, math.nan) for key in found.keys])
    if np.count_nonzero(~np.isnan(users)) < 3 * _ENOUGH:
        return {}
    low, high = np.nanquantile(users, [1 / 3, 2 / 3])
    which = {"few": users < low, "some": (users >= low) & (users <= high), "many": users > high}
    return {f" where {name} users are": found.only(part) for name, part in which.items()}


def _is_whole(one: Measurement) -> bool:
    """Returns whether all counts are whole numbers of units."""
    units = one.values / (1.0 if one.noise is None else one.noise.unit)
    return bool(np.all(np.abs(units - np.round(units)) <= _ROUNDING * np.maximum(np.abs(units), 1)))
