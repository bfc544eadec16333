"""The noise of a secure sum, which clients add in shares, and what it costs if some give theirs away. Pure.

A client's share of the noise is X - Y, X and Y Polya(1 / k, beta). Clients who collude with the server know their own
shares, and it can subtract them. The shares of the others add up to a difference of two Polya(s, beta) variates. For
s >= 1 that is the discrete Laplace variate of the guarantee and independent noise. For s < 1 its probabilities p are

    p(d) = (sin(pi s) / pi) (1 - beta)^(2 s) \\int_0^beta t^(d + s - 1) (1 - beta t)^-s (beta - t)^-s dt,   d >= 0,

by shrinking the contour of Cauchy's integral of the generating function ((1 - beta z) (1 - beta / z))^-s onto its cut.
These are moments of a positive measure on [0, beta]. So p falls in |d|, and ln p is convex on d >= 0. Both give

    p(d) / p(d + a) <= p(0) / p(a) <= (p(0) / p(1))^a   for all d and all integers a >= 0.

A user of sensitivity S, at most S over all entries, so has a privacy loss of at most S ln(p(0) / p(1)). A user who
adds 1 to each of S entries attains it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import scipy

from sfumato.transforms.privacy.additive_noise import LAPLACE, AdditiveNoise

_STATEMENT = (
    "Clients who collude with the server of a real protocol can subtract their shares of the noise. Against that "
    "server epsilon holds if {} of a shard's {:,} required clients do so; sfumato plan shows what others would cost."
)


@dataclass(frozen=True)
class Noise:
    """The noise of one sum.

    Attributes:
        kind: the distribution of the noise that protects a user at a cost.
        required: the number of clients whose shares add up to the noise; 1 where a trusted curator adds it.
        colluding: the largest fraction of them, below 1, who may give their shares of the noise to the server. The
            shares of the others must then suffice for the cost, so all together have more noise than it needs.

    >>> noise = Noise(required=100, colluding=0.05)
    >>> noise.colluders, round(noise.stddev(cost=0.1), 2)
    (5, 14.5)
    >>> [round(noise.epsilon_against(share, cost=0.1), 3) for share in (0, 0.05, 0.1)]
    [0.1, 0.1, 0.122]
    """

    kind: AdditiveNoise = LAPLACE
    required: int = 1
    colluding: float = 0.0

    @property
    def allows_colluders(self) -> bool:
        """Whether clients may collude, even where their fraction is less than one client."""
        return self.colluding > 0

    @property
    def colluders(self) -> int:
        """The most of the required clients who may collude."""
        return _whole_clients(self.colluding, self.required)

    @property
    def honest(self) -> int:
        """The required clients who do not collude. A client's share of Laplace noise is Polya(1 / honest)."""
        return self.required - self.colluders

    @property
    def shape(self) -> float:
        """The variance of all required clients' noise over that of the cost's noise: 1 if none may collude."""
        return self.required / self.honest

    def stddev(self, cost: float, sensitivity: float = 1, sums: int = 1, unit: float = 1) -> float:
        """Returns the standard deviation of the noise of `sums` such sums, added up and divided by `unit`."""
        return math.sqrt(sums * self.shape) * (self.kind.stddev(cost, sensitivity) / unit)

    def epsilon_against(self, share: float, cost: float, sensitivity: float = 1) -> float:
        """Returns the epsilon of a sum of Laplace noise against a server to which clients gave their shares.

        Args:
            share: fraction of the required clients who did so, below 1; rounded down to whole clients.
            cost: epsilon of the sum.
            sensitivity: largest L1 norm of a user's vector of integers.
        """
        others = self.required - _whole_clients(share, self.required)
        return colluding_epsilon(cost, sensitivity, others / self.honest)

    def entry(self) -> dict[str, Any]:
        """Returns the fields that a manifest states."""
        colluders = {"colluders": self.colluders} if self.allows_colluders else {}
        return {"required_survivors": self.required, **colluders}

    def assumptions(self) -> list[str]:
        """Returns the sentences on clients' shares that a manifest states; none for a kind without shares."""
        if not self.kind.HAS_SHARES:
            return []
        most = f"at most {self.colluders:,}" if self.colluders else "none"
        return [_STATEMENT.format(most, self.required)]


def _whole_clients(share: float, clients: int) -> int:
    """Returns a share of some clients in whole clients, rounded down."""
    return math.floor(share * clients * (1 + 1e-12))  # 0.29 * 100 is 28.999999999999996


def colluding_epsilon(epsilon: float, sensitivity: float, shape: float) -> float:
    """Returns the epsilon of a secure sum from which colluding clients have subtracted their shares of the noise.

    Args:
        epsilon: of the sum with the noise of all required clients.
        sensitivity: largest L1 norm of a user's vector of integers.
        shape: of the remaining noise, above 0: 1 for the discrete Laplace noise of epsilon.

    Returns:
        The smallest epsilon that holds for all users of this sensitivity, who may add 1 to `sensitivity` entries;
        epsilon itself from shape 1 on.

    >>> round(colluding_epsilon(1.0, 1, shape=1.0), 6)
    1.0
    """
    if shape >= 1:
        return epsilon
    rate = epsilon / sensitivity
    square = math.exp(-2 * rate)
    # p(0) / p(1), by Euler's transformation of the hypergeometric series, which converges where beta is near 1 too.
    numerator = scipy.special.hyp2f1(1 - shape, 1 - shape, 1, square)
    denominator = scipy.special.hyp2f1(2 - shape, 1 - shape, 2, square)
    return sensitivity * (rate + math.log(numerator / (shape * denominator)))
