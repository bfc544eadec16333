"""A lower bound of epsilon from runs with fresh keys, valid whenever one stops looking. Pure.

Epsilon-delta privacy bounds the probability of every event E: P[E] <= e^epsilon P'[E] + delta for neighbouring logs. Of
a pair of independent runs, let x tell whether E happened on the one, and y on the other. Then

    product over pairs of (1 + b (x - e^epsilon y - delta)),  0 <= b <= 1 / (e^epsilon + delta),

has an expectation of at most 1 at any stopping time. The mean over several b has it too: it is an e-value. By Ville's
inequality it exceeds 1 / alpha with a probability of at most alpha, so all epsilons with a larger one are refuted.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np

from sfumato.transforms.statistics.bisection import bisect

_BETS = np.geomspace(0.01, 1.0, 30)  # shares of the largest b
LEVEL = 0.05


class EpsilonTest:
    """The pairs seen so far: of each event how many had only x, only y, both, or neither.

    Args:
        events: how many events share the level.
        delta: of the guarantee.
    """

    def __init__(self, events: int, delta: float = 0.0):
        self._counts = np.zeros((events, 2, 2), dtype=np.int64)
        self._delta = delta

    @property
    def pairs(self) -> int:
        """The number of pairs seen."""
        return int(self._counts[0].sum())

    def add(self, happened: Iterable[Sequence[bool]]) -> None:
        """Adds a pair of runs: whether each event happened on the one and on the other."""
        for event, (x, y) in enumerate(happened):
            self._counts[event, int(x), int(y)] += 1

    def log_evidence(self, epsilon: float) -> float:
        """Returns the logarithm of the e-value against an epsilon: the largest of the events', for their number."""
        most = 1 / (math.exp(epsilon) + self._delta)
        x, y = np.meshgrid([0, 1], [0, 1], indexing="ij")
        gains = np.log1p(
            np.maximum(most * _BETS[:, None, None] * (x - math.exp(epsilon) * y - self._delta), -1 + 1e-12)
        )
        logs = np.tensordot(self._counts, gains, ((1, 2), (1, 2)))  # [events, bets]
        best = logs.max(axis=1)
        each = best + np.log(np.exp(logs - best[:, None]).mean(axis=1))
        return float(each.max() - math.log(len(each)))

    def refutes(self, epsilon: float, level: float = LEVEL) -> bool:
        """Whether the pairs refute an epsilon at the level."""
        return self.log_evidence(epsilon) >= -math.log(level)

    def lower_bound(self, level: float = LEVEL) -> float:
        """Returns the largest epsilon that is refuted at the level, 0 if none is.

        >>> test = EpsilonTest(1)
        >>> for _ in range(200):
        ...     test.add([(True, False)])
        >>> round(test.lower_bound(), 2) > 3
        True
        """
        if not self.refutes(0.0, level):
            return 0.0
        return bisect(lambda epsilon: self.refutes(epsilon, level), 0.0, 40.0, 60)[0]
