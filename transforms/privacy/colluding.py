"""What secure sums cost if clients give their shares of the noise away. Pure.

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

import scipy


def colluding_epsilon(epsilon: float, sensitivity: float, shape: float) -> float:
    """The epsilon of a secure sum from which colluding clients have subtracted their shares of the noise.

    Args:
        epsilon: of the sum with the noise of all required clients.
        sensitivity: largest L1 norm of a user's vector of integers.
        shape: of the remaining noise, above 0: 1 for the discrete Laplace noise of epsilon.

    Returns:
        The smallest epsilon that holds for every user of this sensitivity who may add to as many entries; epsilon
        itself from shape 1 on.

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
