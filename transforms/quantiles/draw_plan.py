"""The plan of quantiles by the exponential mechanism: which borders are drawn between which, at which epsilon. Pure.

Recursive splitting after Kaplan, Schnapp and Stemmer (ICML 2022, "Differentially Private Approximate Quantiles"): the
middle quantile splits the users, and each part draws its own middle quantile. The draws of one level have disjoint
users, so a user pays once a level. Two more draws for each quantile, below and above it, are the ends of its interval.
Adding or removing a user, instead of replacing one, makes disjoint parts cost no more than one of them.

Two things are ours. The levels' shares of epsilon are chosen for the least expected error, not equal; and the parts are
counted anew at every level, so no exact number of users is needed; a rough one sets the width of intervals. Everything
here follows from public figures alone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sfumato.transforms.quantiles.exponential_draw import STEP_BITS

# Where values are dense, the rank error of a draw has a Laplace distribution, which exceeds ln(20) / sqrt(2) standard
# deviations on one side with probability 2.5%. Beside a gap without values the width of the gap counts too. It has up
# to 2^(bits + STEP_BITS) borders, against one at the quantile, so a rank errs by
# ln(2) (bits + STEP_BITS) / rate more, where rate is epsilon / (2 max(q, 1 - q)) for a border at the share q.
_DENSE = math.log(20) / math.sqrt(2)
_PER_BIT = math.log(2) / math.sqrt(2)
_END_WEIGHT = 0.03  # of an interval end's squared error, beside 1 for a quantile's
_ROUNDS = 4  # the margins of intervals and the order of draws depend on each other


@dataclass(frozen=True)
class Draw:
    """One border to draw.

    Attributes:
        share: of all users below it.
        relative: share of the users of its part below it, in 0..1.
        level: of the recursion, from 0.
        low: number of the earlier draw where its part begins; None for the range's low end.
        high: number of the earlier draw where its part ends; None for the range's high end.
    """

    share: float
    relative: float
    level: int
    low: int | None
    high: int | None


@dataclass(frozen=True)
class DrawPlan:
    """The draws for some quantiles and their intervals.

    Attributes:
        shares: of users below the quantiles, ascending.
        draws: parents before their children.
        epsilons: of each level.
        stddevs: expected standard deviation of each draw's rank, in users, where values are dense.
        bits: the range has 2^bits bins.
        quantiles: the numbers of the quantiles' draws.
        ends: the numbers of the draws of each quantile's interval, low and high; None for the range's end.
    """

    shares: tuple[float, ...]
    draws: tuple[Draw, ...]
    epsilons: tuple[float, ...]
    stddevs: tuple[float, ...]
    bits: int
    quantiles: tuple[int, ...]
    ends: tuple[tuple[int | None, int | None], ...]

    def margin(self, number: int) -> float:
        """By how many users a draw's rank may err at 97.5% confidence in each direction, whatever the values."""
        return margin(self.stddevs[number], self.bits)


def margin(stddev: float, bits: int) -> float:
    """See DrawPlan.margin."""
    return 1 + (_DENSE + _PER_BIT * (bits + STEP_BITS)) * stddev


def plan_draws(shares: Sequence[float], epsilon: float, users: float, bits: int) -> DrawPlan:
    """The plan of least expected squared error of the quantiles' ranks.

    Args:
        shares: of users below the quantiles, strictly between 0 and 1, distinct, ascending.
        epsilon: of all draws together.
        users: about how many users there are, a public or noisy number; the intervals' width depends on it.
        bits: the range has 2^bits bins; the intervals' width depends on them too.
    """
    margins = np.zeros((len(shares), 2))  # of intervals, in users
    for _ in range(_ROUNDS):
        sides = np.array([-1, 1]) * margins / max(users, 1.0)
        wanted = [(share, 0, number) for number, share in enumerate(shares)]
        for number, (share, ends) in enumerate(zip(shares, sides.tolist(), strict=True)):
            wanted += [(share + end, side, number) for end, side in zip(ends, (-1, 1), strict=True)]
        wanted = sorted(one for one in wanted if 0 < one[0] < 1)
        order, draws = _split([share for share, _, _ in wanted], [side == 0 for _, side, _ in wanted])
        number_of = {wanted[place][1:]: number for number, place in enumerate(order)}
        is_quantile = np.array([wanted[place][1] == 0 for place in order])
        epsilons, stddevs = _budget(draws, np.where(is_quantile, 1.0, _END_WEIGHT), epsilon)
        for (side, number), draw in number_of.items():
            if side:
                margins[number, (side + 1) // 2] = margin(stddevs[draw], bits)
    return DrawPlan(
        tuple(shares),
        tuple(draws),
        tuple(epsilons.tolist()),
        tuple(stddevs.tolist()),
        bits,
        tuple(number_of[0, number] for number in range(len(shares))),
        tuple((number_of.get((-1, number)), number_of.get((1, number))) for number in range(len(shares))),
    )


def _split(shares: Sequence[float], first: Sequence[bool]) -> tuple[list[int], list[Draw]]:
    """Draws for ascending shares by recursive splitting.

    Args:
        shares: of all users below each border.
        first: whether a border is drawn before those of its part that are not.

    Returns:
        The place of each draw's share among `shares`, and the draws.
    """
    order: list[int] = []
    draws: list[Draw] = []
    parts: list[tuple[int, int, int | None, int | None]] = [(0, len(shares), None, None)]
    level = 0
    while parts:
        below: list[tuple[int, int, int | None, int | None]] = []
        for begin, end, low, high in parts:
            if begin == end:
                continue
            early = [place for place in range(begin, end) if first[place]] or range(begin, end)
            place = early[len(early) // 2]
            bottom = 0.0 if low is None else draws[low].share
            top = 1.0 if high is None else draws[high].share
            relative = (shares[place] - bottom) / (top - bottom) if top > bottom else 0.5
            below += [(begin, place, low, len(draws)), (place + 1, end, len(draws), high)]
            order.append(place)
            draws.append(Draw(shares[place], relative, level, low, high))
        parts, level = below, level + 1
    return order, draws


def _budget(
    draws: Sequence[Draw], weights: NDArray[np.float64], epsilon: float
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Each level's epsilon, and each draw's standard deviation in users.

    A draw's rank errs by its own error, a Laplace variable of scale 2 max(q, 1 - q) / epsilon, and by a mean of the
    errors of its part's ends with weights 1 - q and q. So its variance is a sum over levels of a number / epsilon^2,
    and the weighted sum over draws is least with epsilons in proportion to the cube roots of these numbers.
    """
    count = len(draws)
    influence = np.zeros((count, count))  # of each draw's own error (column) on each draw (row)
    for number, draw in enumerate(draws):
        influence[number, number] = 1.0
        if draw.low is not None:
            influence[number] += (1 - draw.relative) * influence[draw.low]
        if draw.high is not None:
            influence[number] += draw.relative * influence[draw.high]
    relative, level = np.array([draw.relative for draw in draws]), np.array([draw.level for draw in draws])
    squares = influence**2 * 2 * (2 * np.maximum(relative, 1 - relative)) ** 2
    by_level = np.stack([squares[:, level == one].sum(axis=1) for one in range(int(level.max()) + 1)], axis=1)
    roots = np.cbrt(weights @ by_level)
    epsilons = epsilon * roots / roots.sum()
    return epsilons, np.sqrt((by_level / epsilons**2).sum(axis=1))
