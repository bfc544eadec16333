"""Central counts: noise on exact counts by item, a threshold for items that only the data name, their exact guarantee.

A user adds at most R = max_records to each of at most K = max_items counts (ItemBound). An item with a count of 0 is
never published, because only the data name the items; an item with a count is published if its noisy count reaches the
threshold T (Korolova et al. 2009; Bun, Nissim and Stemmer 2016). The guarantee compares data with one user and without.
Each of the user's K items is one of two kinds:

- others hold it too: two copies of the noise, one of them shifted by at most R;
- nobody else holds it: with probability p = P[R + Z >= T] at most it appears, which shows that the user is there.

So with j items of the second kind and H_m(eps) the hockey-stick divergence of m shifted pairs (both directions agree,
as the noise is symmetric), the delta at epsilon is the largest over j in 0..K of

    with against without   1 - (1 - p)^j + (1 - p)^j H_{K-j}(eps - j ln(1 - p))
    without against with   H_{K-j}(eps + j ln(1 - p)).

This is exact: log-concave noise is distinguished best at the largest shift, and items of large counts have no threshold
in effect. The noise is one of:

- laplace: discrete Laplace, P[Z = k] proportional to e^(-a |k|), a = epsilon / (K R). H_m is 0, and so is the second
  line (where p <= 1 - e^(-a R)). Delta is 1 - (1 - p)^K.
- truncated: the same within -A..A. An outcome that reveals the shift has probability t = P[Z > A - R]. With T = A + 1,
  p = t and delta is 1 - (1 - t)^K. For K = R = 1 every item is published with the largest probability that any
  mechanism of this epsilon and delta t allows (Desfontaines, Voss, Gipson and Mandayam 2022; A is an integer, so t may
  be below delta).
- gaussian: discrete Gaussian. H_m is bounded by Gaussian differential privacy (`mechanism.gaussian_rho`), which takes
  sigma for smaller than it is by a factor of up to 1 + 1 / (24 sigma^2). So delta is an upper bound. Delta is a maximum
  over j and hardly a sum, so the least sigma for K shifted items leaves nearly all of delta to the threshold; a larger
  one hides more (a test compares).

Where the items are public, every item gets noise, there is no threshold, and delta is 0 with Laplace noise. Two servers
(trust split) count public items only: each adds this Laplace noise, and the noise of either gives the guarantee.

Correlated noise (Lebeda and Retschmeier, The correlated Gaussian sparse histogram mechanism, FORC 2025) pays where a
user may hold a large part of all counted items. Its shared term helps by a share of about K / (number of items):
nothing for thousands of items of which a user adds a few. It is left out. Pure.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from sfumato.schemas.errors import RequestError
from sfumato.schemas.guarantee import SERVERS
from sfumato.transforms.histogram.accountant import check_delta
from sfumato.transforms.histogram.sampling_round import HIDDEN_CONFIDENCE, check_count
from sfumato.transforms.privacy.budget import check_epsilon
from sfumato.transforms.privacy.discrete_gaussian import (
    discrete_gaussian,
    discrete_gaussian_survival,
    discrete_variance,
)
from sfumato.transforms.privacy.discrete_laplace import MAX_NOISE_EPSILON, MIN_NOISE_EPSILON, discrete_laplace
from sfumato.transforms.privacy.keys import RunKey
from sfumato.transforms.privacy.mechanism import (
    MIN_GAUSSIAN_DELTA,
    MIN_SIGMA,
    discrete_laplace_stddev,
    gaussian_delta,
    gaussian_rho,
    rho_for_delta,
    sigma_for_rho,
)
from sfumato.transforms.statistics.bisection import bisect_each_integer, bisect_integers

ItemNoiseKind = Literal["laplace", "truncated", "gaussian"]
ITEM_NOISES = ("auto", *get_args(ItemNoiseKind))
_SAFETY = 1 - 1e-9  # of probabilities that must not be above a bound; floats are exact within 1e-12
_SIGMAS = 10.1  # no Gaussian draw is above this many sigma
_LOW_ERROR, _HIGH_ERROR = 0.025, 0.024  # of an interval's ends; see CountNoise.intervals

Counts = NDArray[np.int64]

_NOISE = {
    "laplace": "discrete Laplace noise",
    "truncated": "discrete Laplace noise within limits",
    "gaussian": "discrete Gaussian noise",
}


@dataclass(frozen=True)
class ItemBound:
    """The bound on what a user adds to the counts of one round. Raises RequestError for a value out of range.

    Attributes:
        max_items: the most distinct items of a user that count, >= 1.
        max_records: the most that a user adds to the count of one item, >= 1. With 1, users are counted; with more,
            the records of each user and item, up to this many.
    """

    max_items: int = 1
    max_records: int = 1

    def __post_init__(self) -> None:
        check_count("max_items_per_user", self.max_items)
        check_count("max_records_per_item", self.max_records)

    def text(self, record: str = "record", item: str = "item") -> str:
        """Returns what a user adds to the counts of a round at most.

        record: see `Items.record`. item: what readers call an item.
        """
        items = f"one {item}" if self.max_items == 1 else f"at most {self.max_items} different {item}s"
        once = "the user counts once"
        records = once if self.max_records == 1 else f"at most {self.max_records} of their {record}s count"
        return f"{items} a user, chosen at random in proportion to the user's {record}s; in each, {records}"


@dataclass(frozen=True)
class CountNoise:
    """The noise of one round's counts, and its threshold.

    Its delta is what the round spends: exact for laplace and truncated noise, an upper bound for gaussian.
    """

    kind: ItemNoiseKind
    epsilon: float
    delta: float  # 0 for pure differential privacy
    bound: ItemBound
    sigma: float | None = None  # of gaussian noise; None for the others
    limit: int | None = None  # of truncated noise, the largest absolute value A; None for the others
    threshold: int | None = None  # the smallest noisy count that is published; None where all items are

    @property
    def stddev(self) -> float:
        if self.sigma is not None:
            return math.sqrt(discrete_variance(self.sigma))
        a = self.decay
        if self.limit is None:
            return discrete_laplace_stddev(a)
        # Sums of beta^k, k beta^k and k^2 beta^k over k >= 1; those beyond A are the same, shifted.
        beta, rest, limit = math.exp(-a), -math.expm1(-a), self.limit
        ones, firsts, squares = beta / rest, beta / rest**2, beta * (1 + beta) / rest**3
        beyond = math.exp(-a * limit)
        inside = squares - beyond * (limit**2 * ones + 2 * limit * firsts + squares)
        return math.sqrt(max(2 * inside / (1 + 2 * ones * (1 - beyond)), 0.0))

    @property
    def decay(self) -> float:
        """Returns a of Laplace noise: the privacy loss of one unit of one count."""
        return self.epsilon / (self.bound.max_items * self.bound.max_records)

    @property
    def text(self) -> str:
        """Returns the noise, and which counts it is on."""
        drawn = f"{_NOISE[self.kind]} (standard deviation {self.stddev:.3g})"
        if self.threshold is None:
            return f"{drawn} on every count, also on those of 0; all are published"
        return f"{drawn} on every count above 0; noisy counts from {self.threshold:,} on are published"

    def survival(self, k: NDArray[np.int64]) -> NDArray[np.float64]:
        """Returns P[Z >= k], for integers of any shape."""
        if self.sigma is not None:
            return discrete_gaussian_survival(self.sigma, k)
        whole = _laplace_survival(self.decay, k)
        if self.limit is None:
            return whole
        beyond = float(_laplace_survival(self.decay, np.array(self.limit + 1)))
        return np.asarray(np.clip((whole - beyond) / (1 - 2 * beyond), 0, 1))

    def quantile(self, probability: float) -> int:
        """Returns the smallest k with P[Z >= k] <= probability, for a probability in (1e-300, 1)."""
        end = 1
        while self.survival(np.array(end)) > probability or self.survival(np.array(-end)) <= probability:
            end *= 2
        return 1 + bisect_integers(lambda k: bool(self.survival(np.array(k)) > probability), -end, end)

    def hidden_count(self, threshold: int | None = None) -> int:
        """Returns the largest count that an unpublished item may have at 99% confidence; 0 where the items are public.

        That is the largest c with P[c + Z >= T] <= 99%. threshold: instead of the round's own, where the option --top
        removed more items.
        """
        threshold = self.threshold if threshold is None else threshold
        return 0 if threshold is None else max(0, threshold - self.quantile(HIDDEN_CONFIDENCE))

    def intervals(self, values: Counts, cut: int | None = None) -> tuple[Counts, Counts]:
        """Returns 95% intervals of the counts behind published noisy counts: lower and upper ends, int64[n] each.

        They hold for each published item, given that it was published. The threshold T, or the counts of other items
        where `top` removed some, select noisy counts that came out high. The lower end is the smallest count c with
        P[c + Z >= y | c + Z >= T] >= 2.5%, at least 1 where an item without a count is never published. The upper end
        is y + q with P[Z < -q] <= 2.4%; given that c + Z >= T, a noisy count below c - q > T is at most 2.5% likely.

        Where `top` removed items, the largest of them with a noisy count of `cut`, the first probability is 2.25%. And
        the lower end is no lower than y - d, where Z > d has a probability of 0.25% among all 2^64 items together: else
        the last item that was kept could be any.
        """
        high = values + self._spread(_HIGH_ERROR)
        if self.threshold is None and cut is None:
            return values - self._spread(_LOW_ERROR), high
        distinct, places = np.unique(values, return_inverse=True)
        # Items above the cut were kept; of those equal to it, some.
        threshold = np.int64(self.threshold or 0) if cut is None else np.minimum(distinct, cut + 1)
        error = _LOW_ERROR if cut is None else 0.9 * _LOW_ERROR
        outside = np.full_like(distinct, -1 if self.threshold is None else 0)
        inside = np.maximum(distinct, outside + 1)  # at c = y the probability is above 2.5%

        def is_likely(count: NDArray[np.int64]) -> NDArray[np.bool_]:
            published = self.survival(threshold - count)
            held = self.survival(distinct - count) >= error * np.maximum(published, 1e-300)
            return np.asarray(held & (published > 0))

        inside = bisect_each_integer(is_likely, inside, outside)
        if cut is not None:
            inside = np.maximum(inside, distinct - self._spread(0.1 * _LOW_ERROR * 2.0**-64))
        return inside[places], high

    def simultaneous(self, items: int) -> int:
        """Returns a d such that |Z| <= d for this many items at once, with probability 95% at least (union bound)."""
        return self._spread(0.025 / items)

    def _spread(self, error: float) -> int:
        """Returns the least q with P[Z > q] <= error."""
        return self.quantile(error) - 1

    def draw(self, key: RunKey, label: str, items: NDArray[np.uint64]) -> Counts:
        """Returns the noise of each item, int64[n]: a function of the key, the label and the item only."""
        if self.sigma is not None:
            return discrete_gaussian(key, label, items, 1, self.sigma)[:, 0]
        sensitivity = self.bound.max_items * self.bound.max_records
        noise = discrete_laplace(key, label, items, 1, self.epsilon, sensitivity)[:, 0]
        if self.limit is None:
            return noise
        attempt = 0
        while len(rows := np.flatnonzero(np.abs(noise) > self.limit)):
            attempt += 1
            noise[rows] = discrete_laplace(key, f"{label} again {attempt}", items[rows], 1, self.epsilon, sensitivity)[
                :, 0
            ]
        return noise


class TwoServerNoise(CountNoise):
    """Discrete Laplace noise on public items that each of two servers draws once. Epsilon is that of one of them.

    With c = (1 + beta^2) / (1 - beta^2), P[Z = k] = ((1 - beta) / (1 + beta))^2 beta^|k| (|k| + c).

    >>> one = CountNoise("laplace", 1.0, 0.0, ItemBound())
    >>> both = TwoServerNoise("laplace", 1.0, 0.0, ItemBound())
    >>> round(both.stddev / one.stddev, 3)
    1.414
    """

    @property
    def stddev(self) -> float:
        return math.sqrt(SERVERS) * super().stddev

    @property
    def text(self) -> str:
        return f"{_NOISE[self.kind]} of each of two servers (standard deviation {self.stddev:.3g}) on every count"

    def survival(self, k: NDArray[np.int64]) -> NDArray[np.float64]:
        beta, rest = math.exp(-self.decay), -math.expm1(-self.decay)
        least = np.where(k >= 1, k, 1 - k).astype(np.float64)  # P[Z >= k] = 1 - P[Z >= 1 - k]
        summed = (least + (1 + beta**2) / (rest * (1 + beta))) / rest + beta / rest**2
        tail = (rest / (1 + beta)) ** 2 * np.exp(-self.decay * least) * summed
        return np.asarray(np.where(k >= 1, tail, 1 - tail))

    def draw(self, key: RunKey, label: str, items: NDArray[np.uint64]) -> Counts:
        draws = [CountNoise.draw(self, key, f"{label} of server {number}", items) for number in range(SERVERS)]
        return np.asarray(np.sum(draws, axis=0))


def _laplace_survival(a: float, k: NDArray[np.int64]) -> NDArray[np.float64]:
    """Returns P[Z >= k] of discrete Laplace noise: beta^k / (1 + beta) for k >= 1, others by symmetry; beta = e^-a."""
    tail = np.exp(-a * np.where(k >= 1, k, 1 - k)) / (1 + math.exp(-a))
    return np.asarray(np.where(k >= 1, tail, 1 - tail))


def choose_noise(
    epsilon: float, delta: float, bound: ItemBound, kind: str = "auto", public: bool = False
) -> CountNoise:
    """Returns the noise and threshold with the least hidden count at 99%, and of these with the least standard
    deviation.

    Raises RequestError for an argument out of range, or noise out of range. epsilon, delta: of the round; delta above
    0 unless the items are public. kind: one of ITEM_NOISES. public: whether all items are published.
    """
    check_epsilon(epsilon)
    if kind not in ITEM_NOISES:
        raise RequestError(f"noise: must be one of {', '.join(ITEM_NOISES)}, got {kind!r}")
    if delta or not public:
        check_delta(delta)
    per_unit = epsilon / (bound.max_items * bound.max_records)
    if per_unit < MIN_NOISE_EPSILON:
        raise RequestError(
            f"epsilon: {epsilon:g} is too small for {bound.max_items} x {bound.max_records} contributions"
        )
    found = [one for one in _candidates(epsilon, delta, bound, public) if kind in ("auto", one.kind)]
    if not found:
        why = f"gaussian noise is not offered at an epsilon of {epsilon:g}"
        if kind == "truncated":
            why = "truncated noise is for items with a threshold"
        elif delta < MIN_GAUSSIAN_DELTA:
            why = f"gaussian noise needs a delta of at least {MIN_GAUSSIAN_DELTA:g}"
        raise RequestError(f"noise: {why}; use --noise auto")
    return min(found, key=lambda one: (one.hidden_count(), one.stddev))


def _candidates(epsilon: float, delta: float, bound: ItemBound, public: bool) -> Iterator[CountNoise]:
    """Yields the best choice of every kind of noise that the arguments allow."""
    items, shift = bound.max_items, bound.max_records
    # Beyond this epsilon the noise is 0 but for a probability of 2e-13 for each item.
    laplace = CountNoise("laplace", min(epsilon, MAX_NOISE_EPSILON * items * shift), 0.0, bound)
    if public:
        yield laplace
    else:
        yield from _with_threshold(laplace, delta)
    if delta >= MIN_GAUSSIAN_DELTA:
        rho, distance = rho_for_delta(epsilon, delta * _SAFETY), shift * math.sqrt(items)
        if distance >= MIN_SIGMA * math.sqrt(2 * rho):
            gaussian = CountNoise("gaussian", epsilon, delta, bound, sigma_for_rho(rho, distance))
            yield gaussian if public else gaussian_with_threshold(gaussian)


def _with_threshold(laplace: CountNoise, delta: float) -> Iterator[CountNoise]:
    """Returns discrete Laplace noise with a threshold, complete and truncated."""
    epsilon, bound, a = laplace.epsilon, laplace.bound, laplace.decay
    items, shift = bound.max_items, bound.max_records
    allowed = min(-math.expm1(math.log1p(-delta) / items), -math.expm1(-a * shift)) * _SAFETY  # p, of one item

    def spent(probability: float) -> float:
        return min(delta, -math.expm1(items * math.log1p(-probability)) / _SAFETY)

    at = max(1, laplace.quantile(allowed))
    shown = float(laplace.survival(np.array(at)))
    yield CountNoise("laplace", epsilon, spent(shown), bound, threshold=shift + at)

    def certain(limit: int) -> float:
        """Returns t = P[Z > A - R] of noise within -A..A."""
        noise = CountNoise("truncated", epsilon, delta, bound, limit=limit)
        return float(noise.survival(np.array(limit - shift + 1)))

    limit = bisect_integers(lambda one: certain(one) <= allowed, 2 * (shift + at), shift - 1)
    yield CountNoise("truncated", epsilon, spent(certain(limit)), bound, limit=limit, threshold=limit + 1)


def gaussian_with_threshold(noise: CountNoise) -> CountNoise:
    """Returns discrete Gaussian noise with the least threshold within its delta."""
    assert noise.sigma is not None
    unit = gaussian_rho(noise.sigma, noise.bound.max_records)  # of one item that a user shifts by R

    def delta(above: int) -> float:
        """Returns the largest delta over j (see the module), if a user's own item is published from R + `above` on."""
        worst = 0.0
        hidden = math.log1p(-min(float(noise.survival(np.array(above))), 0.5))
        for alone in range(noise.bound.max_items + 1):
            rho, stay = unit * (noise.bound.max_items - alone), math.exp(alone * hidden)
            more = -math.expm1(alone * hidden) + stay * gaussian_delta(rho, noise.epsilon - alone * hidden)
            worst = max(worst, more, gaussian_delta(rho, max(noise.epsilon + alone * hidden, 0.0)))
        return worst

    above = 1 + bisect_integers(lambda one: delta(one) > noise.delta, 0, math.ceil(_SIGMAS * noise.sigma))
    return replace(noise, delta=delta(above), threshold=noise.bound.max_records + above)
