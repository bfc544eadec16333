"""The automatic gamma: the sum of a user's weights, chosen from public figures alone. Pure.

Users are bounded before their number is known, so gamma depends neither on the data nor on a noisy figure.

Rounding. It moves an entry of one user's vector, a run of cells in the quadtree's order, to one of the integers around
gamma times its share. That has a variance of at most 1/4 (more where a node that lacks children is several runs, and
less where a user has much or nothing there). Users round independently, so the sum of a shard of S users has at most
S / 4 of it. The noise of a sub-query at epsilon e has at least the variance of the discrete Laplace distribution,
1 / (2 sinh^2(e / (2 gamma))) (Eq. 5), which falls with e. With e the whole budget, rounding has at most a hundredth
(COST) of any sub-query's noise variance if

    S / 4 <= COST / (2 sinh^2(epsilon / (2 gamma)))   or   gamma >= epsilon / (2 asinh(sqrt(2 COST / S))),

about epsilon sqrt(12.5 S): 363 for shards of 10,000, which may be 5% larger, and epsilon 1. A larger gamma costs bits.
With central noise S is the number of users. Where that is not given, or is larger, S is the largest shard size.

Independent rounding widens the noise by 1 + d / gamma, where d is the vector's length. A gamma of at least
d / (sqrt(1 + COST) - 1), about 200 d, keeps that below a hundredth of the variance too. d is not known before the run,
but at most U / t cells have more than t users. Let t be two standard deviations of the noise,
t = 2 sqrt(U / S) sqrt(2) / epsilon. With four children each, trees of the cells above t have about 4 U / t entries on a
level, and there are no more than cells. A method with more entries has more noise.

Three upper bounds: the type of gamma; noise, which can be drawn down to an epsilon of MIN_NOISE_EPSILON gamma, and that
share of the budget is at most COST over all sub-queries; and a given modulus. The modulus must hold every sub-query
that costs at least a hundredth (MIN_QUERY_SHARE) of the budget. With independent rounding its entries are at most that
share of d, because epsilon is in proportion to entries by Eq. 7. A smaller sub-query may still be refused when it is
planned, as with an explicit gamma.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from sfumato.schemas.errors import RequestError
from sfumato.transforms.locations.distributions import MAX_GAMMA
from sfumato.transforms.locations.shards import Cohort
from sfumato.transforms.privacy.admission import FALSE_REFUSAL_PROBABILITY, POPULATION_TOLERANCE
from sfumato.transforms.privacy.mechanism import noise_quantile
from sfumato.transforms.privacy.noise import MIN_NOISE_EPSILON
from sfumato.transforms.secagg.encodings import l1_sensitivity
from sfumato.transforms.secagg.modulus import MAX_MODULUS, min_window
from sfumato.transforms.statistics.bisection import bisect_integers

if TYPE_CHECKING:
    from sfumato.transforms.heatmap.parameters import HeatmapParameters

COST = 0.01  # of the noise's variance, and of the budget
MIN_QUERY_SHARE = 0.01  # of the budget, for one sub-query
UNKNOWN_USERS = 1 << 30  # used if the number of users is not given
LARGEST_SHARD = 1 << 24
SHARD_TOLERANCE = 1.05  # largest expected users of a shard, in shard sizes (`Cohort.plan`)
COUNT_SHARE = 0.1  # of the overflow probability, for more users than the noisy user count suggests


def automatic_gamma(parameters: HeatmapParameters) -> int:
    """The gamma of `auto`. Raises RequestError if no gamma fits the modulus, or epsilon is too small for noise."""
    # With Gaussian noise, the epsilon of as much Laplace noise.
    epsilon, max_rounds = parameters.laplace_epsilon(parameters.budget.total), parameters.max_rounds()
    users = min(parameters.users or UNKNOWN_USERS, parameters.population or UNKNOWN_USERS)
    shard_size, is_central = parameters.shard_size, parameters.is_central
    cohort = Cohort.plan(users, None, shard_size, parameters.dropout, colluding=parameters.colluding or 0.0)
    in_sum = min(users, LARGEST_SHARD if is_central else SHARD_TOLERANCE * shard_size)
    max_cells = parameters.categories << (2 * parameters.depth)
    length = vector_length(epsilon, max_cells, users, 1 if is_central else cohort.shards)
    needed = epsilon / (2 * math.asinh(math.sqrt(2 * COST / in_sum)))
    if parameters.rounding == "independent":
        needed = max(needed, length / (math.sqrt(1 + COST) - 1))
    gamma = min(
        math.ceil(needed),
        MAX_GAMMA,
        int(COST * epsilon / (MIN_NOISE_EPSILON * max_rounds)),
        math.ceil(MAX_MODULUS / users) - 1,
    )
    if gamma < 1:
        raise RequestError(
            f"epsilon: {epsilon} is too small for distributions in {max_rounds} sub-queries; give a larger one"
        )
    if is_central or parameters.modulus is None:
        return gamma
    return _largest_within(parameters.modulus, gamma, parameters, cohort, length)


def _largest_within(modulus: int, max_gamma: int, parameters: HeatmapParameters, cohort: Cohort, length: int) -> int:
    """The largest gamma in 1..max_gamma whose sums fit the modulus."""
    counting_epsilon = parameters.laplace_epsilon(parameters.admission().epsilon)
    probability = parameters.overflow_probability / parameters.max_rounds()
    counted = max_counted(min(cohort.users, SHARD_TOLERANCE * parameters.shard_size), counting_epsilon, probability)

    def min_modulus(gamma: int) -> int:
        return min_window(
            expected_size=counted + noise_quantile(counting_epsilon, COUNT_SHARE * probability),
            honest_survivors=cohort.honest_survivors if parameters.participation == "paper" else None,
            noise_shape=cohort.noise_shape,
            epsilon=MIN_QUERY_SHARE * parameters.laplace_epsilon(parameters.budget.total),
            sensitivity=l1_sensitivity(gamma, parameters.rounding, math.ceil(MIN_QUERY_SHARE * length)),
            gamma=gamma,
            entries=length,
            shards=cohort.shards,
            probability=(1 - COUNT_SHARE) * probability,
        ).modulus

    if (smallest := min_modulus(1)) > modulus:
        raise RequestError(
            f"modulus: {modulus} holds the sums of no gamma, the least that would do for gamma 1 is {smallest}; "
            "give a larger modulus, auto, or a gamma of your own"
        )
    return bisect_integers(lambda gamma: min_modulus(gamma) <= modulus, 1, max_gamma + 1)


def max_counted(population: float, epsilon: float, probability: float) -> float:
    """The largest noisy user count of this epsilon that does not contradict a public population."""
    margin = noise_quantile(epsilon, min(COUNT_SHARE * probability, FALSE_REFUSAL_PROBABILITY))
    return (1 + POPULATION_TOLERANCE) * population + margin


def vector_length(epsilon: float, max_cells: int, users: float, noisy_sums: int) -> int:
    """The expected entries of a tree of the cells above the noise; see the module."""
    threshold = 2 * math.sqrt(2 * noisy_sums) / epsilon
    return min(max_cells, math.ceil(4 * users / threshold))
