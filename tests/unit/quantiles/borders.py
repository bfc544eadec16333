"""The exponential mechanism by brute force: every border of the range, every user by its step, 50 digits."""

from __future__ import annotations

from collections.abc import Sequence

import mpmath
import numpy as np

from sfumato.transforms.quantiles.exponential_draw import STEP_BITS, SpreadUsers

STEPS = 1 << STEP_BITS
FLOOR = mpmath.mpf(2) ** -120


def spread(counts: Sequence[int], bits: int) -> SpreadUsers:
    """Users by bin: counts of all 2^bits bins."""
    bins = np.flatnonzero(counts)
    return SpreadUsers(bins, np.asarray(counts, np.int64)[bins], bits)


def steps_of(counts: Sequence[int]) -> list[int]:
    """Each user's step: the digits of k mod 1,024 of a bin's k-th user, from the last to the first."""
    return [
        number * STEPS + int(format(k % STEPS, f"0{STEP_BITS}b")[::-1], 2)
        for number, count in enumerate(counts)
        for k in range(count)
    ]


def below(counts: Sequence[int]) -> np.ndarray:
    """Users below each border, int64[borders]."""
    users = np.bincount(np.array(steps_of(counts), dtype=np.int64), minlength=len(counts) * STEPS)
    return np.append(0, np.cumsum(users))


def probabilities(
    counts: Sequence[int], first: int, last: int, share: float, epsilon: float, rate: mpmath.mpf | None = None
) -> list[mpmath.mpf]:
    """Of each border first..last. rate: of the weights, another one than the mechanism's."""
    ranks = below(counts)[first : last + 1]
    inside = int(ranks[-1] - ranks[0])
    with mpmath.workdps(50):
        q = mpmath.mpf(share)
        rate = epsilon / (2 * max(q, 1 - q)) if rate is None else rate
        distances = [abs((1 - q) * int(rank - ranks[0]) - q * (inside - int(rank - ranks[0]))) for rank in ranks]
        nearest = min(distances)
        of_rank = {d: mpmath.exp(-rate * (d - nearest)) + FLOOR for d in set(distances)}
        total = mpmath.fsum(of_rank[d] for d in distances)
        return [of_rank[d] / total for d in distances]
