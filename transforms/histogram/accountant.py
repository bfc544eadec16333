"""The exact guarantee of sample and threshold: of one round (paper 004, Section 3.1), and of several.

Neighbouring data sets differ by one user. That user's item has k holders in one and k - 1 in the other; all other
counts have the same distribution. So the guarantee is that of one count: X ~ Bin(k, p) against Bin(k - 1, p), where
all values below the threshold tau are one outcome, "absent". delta(epsilon) is the larger of two hockey-stick
divergences, each maximised over k >= 1:

    remove  sup_S  P_k(S) - e^eps P_{k-1}(S)   the best S is {v, v + 1, ...},          v >= tau
    add     sup_S  P_{k-1}(S) - e^eps P_k(S)   the best S is {absent, ..., w} or none, w >= tau - 1

since P_k(v) / P_{k-1}(v) = (1 - p) k / (k - v) grows with v. For these sets Pascal's rule leaves

    remove(k, v) = p b(v - 1; k - 1) - (e^eps - 1) Pr[Bin(k - 1, p) >= v]
    add(k, w)    = p b(w; k - 1)     - (e^eps - 1) Pr[Bin(k, p) <= w]

with b the binomial probability. Their differences from k to k + 1 change sign once, at k = (v - 1) / q and k = w / s,
with q = 1 - e^-eps (1 - p) and s = 1 - e^eps (1 - p). (If s <= 0, the add direction costs nothing.) So the best k is
known for each v and each w, and the supremum over all counts is a search over v >= tau (w >= tau - 1). A decreasing
bound ends the search.

The guarantee gets worse with p and better with tau: thinning the counts of (p, tau) to p' < p and dropping those below
tau' >= tau is post-processing.

Several rounds are composed by privacy loss distributions (the dp-accounting library). Every round needs its own sample.
In one common sample the children of a published prefix would add up to the parent, so parent minus published children
would reveal how many sampled users the threshold dropped. That is the leak of a fixed sample size (paper 004, Section
3.2) again.

With independent samples, a later round may even depend on the published results of earlier ones. The supremum over
item counts of a round's privacy profile is itself a profile, so it has a dominating pair of distributions, and
dominating pairs compose adaptively (Zhu, Dong and Wang, Optimal accounting of differential privacy via characteristic
function, AISTATS 2022).
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import scipy
from numpy.typing import ArrayLike, NDArray

from sfumato.schemas.errors import RequestError
from sfumato.transforms.histogram.sampling_round import RATE_GRID, check_count, check_rate
from sfumato.transforms.privacy.budget import check_epsilon

Floats = NDArray[np.float64]

# scipy's binomial tails and probabilities have a relative error of at most 1e-12 (a test compares with mpmath).
_SAFETY = 1e-9
# Probabilities of 1e-300 and less are reported as 1e-300.
_FLOOR = 1e-300
_MAX_EPSILON = 600.0  # e^epsilon must be finite; divergences fall with epsilon, so rounding it down is safe
_MAX_LOSS_IN_EPSILONS = 2  # privacy losses above this multiple of the total epsilon count as infinite


def check_delta(delta: float) -> float:
    """Returns delta. Raises RequestError unless 0 < delta < 1 (NaN is not)."""
    if isinstance(delta, bool) or not 0 < delta < 1:
        raise RequestError(f"delta: must be a number between 0 and 1, got {delta}; give one far below 1 / users")
    return float(delta)


def delta(epsilon: float, rate: float, threshold: int) -> float:
    """Returns the exact delta of one round over all item counts and both directions, rounded up by about 1e-9 of
    itself.

    epsilon: > 0, finite. rate: p, 0 < p < 1. threshold: tau >= 1, in sampled users. Raises RequestError for others.

    >>> float(f"{delta(epsilon=1.0, rate=0.1, threshold=20):.1e}")
    2.8e-15
    """
    check_epsilon(epsilon)
    remove, add = profile([epsilon], rate, threshold)
    return float(max(remove[0], add[0]))


_delta = delta  # for functions with a parameter of that name


def profile(epsilons: ArrayLike, rate: float, threshold: int) -> tuple[Floats, Floats]:
    """Returns hockey-stick divergences (remove, add) of one round, rounded up: float64[n] each.

    Each is a supremum of privacy profiles, so convex in e^epsilon and itself a privacy profile. Raises RequestError
    for a rate or a threshold out of range. epsilons: float64[n], may be negative. rate, threshold: see `delta`.
    """
    check_rate(rate)
    check_count("threshold", threshold)
    signed = np.asarray(epsilons, np.float64)
    sizes, where = np.unique(np.minimum(np.abs(signed), _MAX_EPSILON), return_inverse=True)
    # Neither can exceed p: with probability 1 - p the extra user is not sampled, and the outcomes agree.
    remove = np.minimum(_remove(sizes, rate, threshold), rate)[where]
    add = np.minimum(_add(sizes, rate, threshold), rate)[where]
    # H_-e(P || Q) = 1 - e^-e + e^-e H_e(Q || P), which holds for suprema over k, too.
    scale, rest = np.exp(-sizes[where]), -np.expm1(-sizes[where])
    below = signed < 0
    return (
        np.minimum(np.where(below, rest + scale * add, remove), 1.0),
        np.minimum(np.where(below, rest + scale * remove, add), 1.0),
    )


def _remove(epsilons: Floats, rate: float, threshold: int) -> Floats:
    """Returns sup over k and v of remove(k, v), at epsilons float64[n] >= 0."""
    q = rate - np.expm1(-epsilons) * (1 - rate)
    growth = np.expm1(epsilons)
    kl = np.maximum(q * np.log(q / rate) - epsilons * (1 - q), 0.0)  # of Bernoulli(q) from Bernoulli(p)
    ratio = rate * np.exp(-epsilons) / q  # of neighbouring probabilities b(u + 1; k) / b(u; k) from u = k q on, at most

    def values(at: NDArray[np.intp], v: Floats) -> Floats:
        k = np.maximum(v, np.ceil((v - 1) / q[at, None]))
        tail = np.where(k > v, scipy.special.betainc(v, np.maximum(k - v, 0.5), rate), 0.0)
        peak = rate * scipy.stats.binom.pmf(v - 1, k - 1, rate)
        return np.asarray(peak * (1 + _SAFETY) - growth[at, None] * tail * (1 - _SAFETY))

    def bound(at: NDArray[np.intp], v: float) -> Floats:
        # p b(v - 1; n) (1 - (e^eps - 1) / p odds), with n = k - 1 >= (v - 1) / q - 1 and so (v - 1) / n > q, and odds
        # Pr[Bin(n, p) >= v] / b(v - 1; n), which grow with n, and with v if n is (v - 1) / q - 1 (substitute
        # t = p (1 - y / (v - 1)) in the incomplete beta function).
        n = np.maximum(v - 1, (v - 1) / q[at] - 1)
        first = rate * np.exp(-n * kl[at]) * _stirling(v - 1, (v - 1) / np.maximum(n, 0.5))
        tail = scipy.special.betainc(v, np.maximum(n - v + 1, _FLOOR), rate)
        peak = scipy.special.betainc(v - 1, n - v + 2, rate) - tail
        first *= _share(growth[at] / rate, np.where(n > v - 1, tail, 0.0), peak)
        # And the sum over u >= v of b(u; k) (u / k - q) / (1 - q), with k q = v - theta for some theta in [0, 1].
        n = np.maximum(v, (v - 1) / q[at])
        decay = kl[at] / q[at]
        falling = _falling(ratio[at], -decay) / (np.exp(-epsilons[at]) * (1 - rate) * n)
        return np.asarray(np.minimum(first, falling * np.exp(-v * decay) * _stirling(v, v / n)))

    return _supremum(len(epsilons), threshold, values, bound)


def _add(epsilons: Floats, rate: float, threshold: int) -> Floats:
    """Returns sup over k and w of add(k, w), or 0 of the empty set, at epsilons float64[n] >= 0."""
    s = rate - np.expm1(epsilons) * (1 - rate)
    result = np.zeros(len(epsilons))
    able = s > 0
    epsilons, s = epsilons[able], s[able]
    growth = np.expm1(epsilons)
    ratio = s * np.exp(-epsilons) / rate  # b(u - 1; k) / b(u; k) from u = k s down, at most

    def kl(share: Floats) -> Floats:
        return np.maximum(share * np.log(share / rate) + (1 - share) * np.log((1 - share) / (1 - rate)), 0.0)

    def values(at: NDArray[np.intp], w: Floats) -> Floats:
        k = np.clip(np.ceil(w / s[at, None]), 1, 2.0**52)
        tail = scipy.special.betaincc(w + 1, k - w, rate)
        peak = rate * scipy.stats.binom.pmf(w, k - 1, rate)
        return np.asarray(peak * (1 + _SAFETY) - growth[at, None] * tail * (1 - _SAFETY))

    def bound(at: NDArray[np.intp], w: float) -> Floats:
        # p b(w; n) (1 - (e^eps - 1) / p odds), with n = k - 1 >= w / s - 1 and so s < w / n <= share, and odds
        # Pr[Bin(n + 1, p) <= w] / b(w; n), which fall with n < w / s, and grow with w if n is w / s (term by term).
        n = np.maximum(w / s[at] - 1, w)
        share = w / n
        first = rate * np.exp(-n * kl(np.minimum(share, rate))) * _stirling(w, share)
        n = w / s[at]
        peak = scipy.special.betaincc(w + 1, n - w, rate) - scipy.special.betaincc(w, n - w + 1, rate)
        first *= _share(growth[at] / rate, scipy.special.betaincc(w + 1, n - w + 1, rate), peak)
        # And the sum over u <= w of b(u; k) (s - u / k) / (1 - p), with k s = w + theta for some theta in [0, 1].
        decay = kl(s[at]) / s[at]
        falling = _falling(ratio[at], decay) / ((1 - rate) * np.maximum(w / s[at], 1))
        return np.asarray(np.minimum(first, falling * np.exp(-w * decay) * _stirling(w, s[at])))

    result[able] = _supremum(len(s), threshold - 1, values, bound)
    return result


def _share(weight: Floats, tail: Floats, peak: Floats) -> Floats:
    """Returns 1 - weight tail / peak, rounded up; 1 where the peak underflows."""
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        share = np.clip(1 - weight * (tail / peak), 0.0, 1.0) + _SAFETY
    return np.asarray(np.where(peak > _FLOOR, share, 1.0))


def _falling(ratio: Floats, decay: Floats) -> Floats:
    """Returns the largest sum over j >= 0 of (theta + j) ratio^(theta + j) e^(-theta decay), over theta in [0, 1]."""
    with np.errstate(divide="ignore", invalid="ignore"):
        slope = decay - np.log(ratio)
        theta = np.clip(1 / slope - ratio / (1 - ratio), 0, 1)
        sums = np.exp(-slope * theta) * (theta * (1 - ratio) + ratio) / (1 - ratio) ** 2
    return np.asarray(np.where(ratio < 1, sums, np.inf))


def _stirling(x: float, share: Floats) -> Floats:
    """Bounds b(x; n) / exp(-n KL(x / n || p)) by 1 / sqrt(2 pi x (1 - x / n)), where x / n <= share, and by 1."""
    room = 2 * math.pi * x * np.maximum(1 - share, 0.0)
    return np.asarray(1 / np.sqrt(np.maximum(room, 1.0)))


def _supremum(
    n: int,
    start: int,
    values: Callable[[NDArray[np.intp], Floats], Floats],
    bound: Callable[[NDArray[np.intp], float], Floats],
) -> Floats:
    """Returns the largest of values(at, x) over all integers x >= start, for each of n problems: float64[n].

    values: (problems `at`, integers x) -> float64[len(at), len(x)].
    bound: (problems `at`, x) -> float64[len(at)], at least values(at, y) for all y >= x.
    """
    best = np.full(n, _FLOOR)
    active = np.arange(n)
    width = 4
    end = 8 * start + 2**10  # reached only where delta is above 1/2; there the bound is the result
    while len(active):
        x = np.arange(start, start + width, dtype=np.float64)
        best[active] = np.maximum(best[active], values(active, x).max(axis=1))
        start += width
        rest = bound(active, float(start)) * (1 + _SAFETY)
        if start > end:
            best[active] = np.maximum(best[active], rest)
            break
        active = active[rest > best[active]]
        width = max(4, min(2 * width, 2**18 // max(1, len(active))))
    return best


def max_rate(epsilon: float, delta: float, threshold: int) -> float:
    """Returns the largest rate, a multiple of 2**-32, at which one round with this threshold is (epsilon,
    delta)-private.

    Raises RequestError for bad parameters, or if even a rate of 2**-32 is not private.

    >>> round(max_rate(epsilon=1.0, delta=1e-8, threshold=20), 3)
    0.251
    """
    check_epsilon(epsilon)
    check_count("threshold", threshold)
    return largest_rate(lambda rate: _delta(epsilon, rate, threshold), check_delta(delta))


def largest_rate(
    cost: Callable[[float], float], delta: float, tolerance: float = 0.0, guess: float | None = None
) -> float:
    """Returns the largest rate on the grid of 2**-32 with cost(rate) <= delta, to within a factor 1 + tolerance.

    Raises RequestError if cost(2**-32) > delta. cost: the delta of a rate; non-decreasing. guess: where the search
    starts; without it, at delta: a round costs no more than its rate.
    """
    low, high = 0, RATE_GRID
    below, above = -math.inf, math.inf  # ln(cost / delta) at low and at high, once known
    stayed = 0  # +1: the last step kept low; -1: it kept high
    steps = max(1, min(RATE_GRID - 1, math.floor((guess or delta) * RATE_GRID)))
    while high - low > 1 and high > low * (1 + tolerance):
        excess = math.log(max(cost(steps / RATE_GRID), _FLOOR) / delta)
        if excess <= 0:
            low, below, above, stayed = steps, excess, above / 2 if stayed < 0 else above, -1  # Illinois' rule
        else:
            high, above, below, stayed = steps, excess, below / 2 if stayed > 0 else below, 1
        steps = _next_step(low, below, high, above)
    if not low:
        raise RequestError(f"delta: {delta} is out of reach at any rate; raise delta, epsilon or the threshold")
    return low / RATE_GRID


def _next_step(low: int, below: float, high: int, above: float) -> int:
    """Returns the next point strictly between low and high: regula falsi in logarithms, or wide steps while an end is
    open.
    """
    if not low:
        guess = high / 8
    elif math.isinf(above):
        guess = min(2.0 * low, (low + high) / 2)
    else:
        guess = low * (high / low) ** (below / (below - above) if above > below else 0.5)
    return min(max(math.floor(guess), low + 1), high - 1)


def rounds_delta(epsilon: float, rate: float, threshold: int, rounds: int, steps: int = 200) -> float:
    """Returns the delta of all rounds together at this total epsilon, rounded up; exact (to about 1e-9) for one round.

    It is at most rounds * delta(epsilon / rounds). Raises RequestError for an argument out of range. steps: grid points
    of privacy loss from 0 to epsilon. Any number is safe; 200 is within 0.5% of the limit.
    """
    check_epsilon(epsilon)
    check_count("rounds", rounds)
    check_count("steps", steps)
    added_up = min(1.0, rounds * delta(epsilon / rounds, rate, threshold))
    return added_up if rounds == 1 else min(added_up, _composed_delta(epsilon, rate, threshold, rounds, steps))


def _composed_delta(epsilon: float, rate: float, threshold: int, rounds: int, steps: int) -> float:
    # Imported here because they load SciPy's statistics, and only several rounds need them.
    from dp_accounting.pld.pld_pmf import create_pmf_pessimistic_connect_dots
    from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution

    step = epsilon / steps
    end = _MAX_LOSS_IN_EPSILONS * steps
    # Losses have two directions: remove compares data with a user to data without the user, add the reverse. One user
    # multiplies the probability of any outcome by at least 1 - rate. So no loss of the remove direction lies below
    # ln(1 - rate), and none of the add direction above its negative.
    edge = min(end, math.ceil(-math.log1p(-rate) / step))
    grid = np.arange(-end, end + 1)
    remove, add = profile(grid * step, rate, threshold)
    # Privacy losses on the grid with profiles that are nowhere below these deltas and their chords in e^epsilon. True
    # profiles decrease, so a value may be lowered to its predecessor and remains an upper bound.
    losses = [
        create_pmf_pessimistic_connect_dots(step, grid[rows], np.minimum.accumulate(deltas[rows]))
        for deltas, rows in ((remove, slice(end - edge, None)), (add, slice(end + edge + 1)))
    ]
    composed = PrivacyLossDistribution(*losses).self_compose(rounds, tail_mass_truncation=0)
    return float(composed.get_delta_for_epsilon(epsilon)) + _rounding(rounds * (end + edge + 1), rounds)


def _rounding(size: int, rounds: int) -> float:
    """Bounds the rounding error of a delta from a Fourier transform, a power, and the inverse.

    `size` is the number of losses of the composition. The library pads the transform to at most n = 2 size points. A
    transform of a vector of norm <= 1 is off by a vector of norm <= 8 u log2(n) (Higham, Accuracy and Stability of
    Numerical Algorithms, Theorem 24.2, u = 2^-53). The power multiplies that by `rounds`, and the inverse adds it once
    more. A sum of n entries with weights <= 1 is off by at most sqrt(n) times the norm. The error of each probability,
    u, adds less.
    """
    unit = np.finfo(np.float64).eps / 2
    return float(8 * unit * math.log2(2 * size) * (rounds + 1) * math.sqrt(2 * size))
