"""`--gamma auto`: what a user's distribution adds up to, from public figures alone. Pure.

Users are bounded before anybody knows how many there are, so neither the data nor a noisy figure may enter.

What gamma must be. Rounding moves an entry of one user's vector, a run of cells in the quadtree's order, to one of the
whole numbers around gamma times its share: a variance of at most 1/4 (more where a node that lacks children is several
runs, and less where a user has much or nothing there). Users round independently, so the sum of a shard
of S users has at most S / 4 of it. The noise of a sub-query at epsilon e has at least that of the discrete Laplace
distribution, 1 / (2 sinh^2(e / (2 gamma))) (Eq. 5), which falls with e. With e the whole budget, rounding has at most a
hundredth (COST) of any sub-query's noise variance if

    S / 4 <= COST / (2 sinh^2(epsilon / (2 gamma)))   or   gamma >= epsilon / (2 asinh(sqrt(2 COST / S))),

about epsilon sqrt(12.5 S): 363 for shards of 10,000, which may be 5% larger, and epsilon 1. A larger gamma costs bits.
With central noise S is the number of users; where nobody says it, or there are more, the largest shard that can be
asked for stands for them.

Independent rounding widens the noise by 1 + d / gamma, d the vector's length: gamma >= d / (sqrt(1 + COST) - 1), about
200 d, keeps that below a hundredth of the variance too. d is not known before, but at most U / t cells have more than t
users. With t two standard deviations of the noise, t = 2 sqrt(U / S) sqrt(2) / epsilon, and four children each, trees
of what stands out have about 4 U / t entries on a level; and there are no more than cells. A method that asks for more
pays more.

Three bounds, from above: gamma's type; noise can be drawn down to an epsilon of MIN_NOISE_EPSILON gamma, and that share
of the budget is at most COST over all sub-queries; and a given modulus, which must hold every sub-query that costs at
least a hundredth (ASKED) of the budget, and with independent rounding at least that share of it which its entries are
of d (epsilon is in proportion to them by Eq. 7). A sub-query that asks for less may still be refused when it is asked,
like one of an explicit gamma.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from sfumato.schemas.errors import RequestError
from sfumato.transforms.bisection import bisect_integers
from sfumato.transforms.locations.distributions import MAX_GAMMA
from sfumato.transforms.locations.shards import Cohort
from sfumato.transforms.privacy.admission import FALSE_REFUSAL_PROBABILITY, POPULATION_TOLERANCE, noise_quantile
from sfumato.transforms.privacy.budget import Budget
from sfumato.transforms.privacy.noise import MIN_NOISE_EPSILON
from sfumato.transforms.secagg.modulus import MAX_MODULUS, min_window
from sfumato.transforms.secagg.rounding import l1_sensitivity

if TYPE_CHECKING:
    from sfumato.transforms.heatmap.parameters import HeatmapParameters

COST = 0.01  # of the noise's variance, and of the budget
ASKED = 0.01  # of the budget, for one sub-query
MANY = 1 << 30  # users, where nobody says how many
LARGEST_SHARD = 1 << 24
LARGER = 1.05  # what shards may have above their size (`Cohort.plan`)
COUNT_SHARE = 0.1  # of the chance that a sum wraps: that there are more users than the private count allows for


def automatic_gamma(parameters: HeatmapParameters) -> int:
    """The gamma of `auto`. Raises RequestError where the modulus holds none, or noise cannot be drawn for one."""
    central = parameters.noise == "central"
    users = min(parameters.users or MANY, parameters.population or MANY)
    cohort = Cohort.plan(users, None, parameters.shard_size, parameters.dropout)
    together = min(users, LARGEST_SHARD if central else LARGER * parameters.shard_size)
    length = vector_length(parameters, users, 1 if central else cohort.shards)
    wanted = parameters.epsilon / (2 * math.asinh(math.sqrt(2 * COST / together)))
    if parameters.rounding == "independent":
        wanted = max(wanted, length / (math.sqrt(1 + COST) - 1))
    rounds = parameters.method.max_rounds(parameters.depth)
    gamma = min(math.ceil(wanted), MAX_GAMMA, int(COST * parameters.epsilon / (MIN_NOISE_EPSILON * rounds)))
    gamma = min(gamma, math.ceil(MAX_MODULUS / users) - 1)
    if gamma < 1:
        raise RequestError(
            f"epsilon: {parameters.epsilon} is too small for distributions in {rounds} sub-queries; give a larger one"
        )
    return gamma if central or parameters.modulus is None else _held(parameters, gamma, cohort, length)


def max_counted(population: float, epsilon: float, probability: float) -> float:
    """The most that a private count of this epsilon may come to without contradicting a public population."""
    margin = noise_quantile(epsilon, min(COUNT_SHARE * probability, FALSE_REFUSAL_PROBABILITY))
    return (1 + POPULATION_TOLERANCE) * population + margin


def vector_length(parameters: HeatmapParameters, users: float, noisy_sums: int) -> int:
    """How many entries a tree has of what stands out of the noise: see above."""
    cells = parameters.categories << (2 * parameters.depth)
    threshold = 2 * math.sqrt(2 * noisy_sums) / parameters.epsilon
    return min(cells, math.ceil(4 * users / threshold))


def _held(parameters: HeatmapParameters, most: int, cohort: Cohort, length: int) -> int:
    """The largest gamma in 1..most of which the given modulus holds the sums, by bisection."""
    modulus, epsilon = parameters.modulus or MAX_MODULUS, parameters.epsilon
    probability = parameters.overflow_probability / parameters.method.max_rounds(parameters.depth)
    counting = Budget(epsilon).affordable(epsilon * parameters.population_share)
    counted = max_counted(min(cohort.users, LARGER * parameters.shard_size), counting, probability)

    def needed(gamma: int) -> int:
        return min_window(
            expected_size=counted + noise_quantile(counting, COUNT_SHARE * probability),
            required_survivors=cohort.required_survivors if parameters.participation == "paper" else None,
            epsilon=ASKED * epsilon,
            sensitivity=l1_sensitivity(gamma, parameters.rounding, math.ceil(ASKED * length)),
            contribution=gamma,
            entries=length,
            shards=cohort.shards,
            probability=(1 - COUNT_SHARE) * probability,
        ).modulus

    if needed(1) > modulus:
        raise RequestError(
            f"modulus: {modulus} holds the sums of no gamma, the least that would do for gamma 1 is {needed(1)}; give "
            "a larger modulus, auto, or a gamma of your own"
        )
    return bisect_integers(lambda gamma: needed(gamma) <= modulus, 1, most + 1)
