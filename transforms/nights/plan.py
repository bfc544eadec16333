"""How many rotating cohorts a month of maps on one budget should have, from public figures only. Pure.

With c cohorts in n nights a user is active at most m = ceil(n / c) times, and each time spends what m releases may have
of the budget: epsilon / m, or with a delta the most that composes. Let N be the standard deviation of the noise in a
count of all users. It is c times that of the cohort's count:

    N = c sqrt(sums) stddev(cost of a night),   sums: the cohort's shards; 1 with a trusted curator, 2 with two
    servers.

A cell of T users has about T / c of one cohort, a binomial number, which adds (c - 1) T to the variance. For U users
in shards of S, up to the rounding of the shards:

    secagg, Laplace:   N^2 = 2 (U / S) n^2 / (c epsilon^2)   falls as cohorts are added
    central, Laplace:  N^2 = 2 n^2 / epsilon^2               the same for all c, so one cohort is best
    secagg, Gaussian:  N^2 = (U / S) n / (2 rho)             the same for all c, so one cohort is best
    central, Gaussian: N^2 = c n / (2 rho)                   rises, so one cohort is best

A cohort that is smaller than a shard is one shard. Then the noise is as with a curator, and more cohorts do not help.

The squared error N^2 + (c - 1) T depends on T, so a choice needs a typical cell. A cell of T users is visible where
T is two standard deviations of its error: T = 2 (c - 1) + 2 sqrt((c - 1)^2 + N^2). Over k nights that add up, N^2 and
c - 1 are divided by k. The best number of cohorts sees the smallest cell after all n nights, or after a month of more,
because a night's map builds on the answers of the nights before it. It also has the least squared error, T^2 / 4, in a
cell of that size: all other numbers' smallest cells are larger, and below its smallest cell a number has a squared
error above T^2 / 4.

(c - 1) T / k is an upper bound where the same users stay in a cell. After a complete round of the cohorts all of them
are counted equally often, and no sampling error remains.
"""

from __future__ import annotations

import math
import textwrap
from dataclasses import dataclass, replace

from sfumato.schemas.errors import RequestError
from sfumato.schemas.guarantee import NoiseKind, Trust
from sfumato.schemas.ledger import Limit, format_amount, parse_amount, rounded_down
from sfumato.schemas.rotation import MAX_COHORTS
from sfumato.transforms.counting.parameters import CountParameters
from sfumato.transforms.observability.text_tables import markdown_table, significant
from sfumato.transforms.privacy.additive_noise import NOISES
from sfumato.transforms.privacy.ledger.windows import daily_epsilon

_SEES = {
    Trust.CENTRAL: "a trusted curator",
    Trust.SPLIT: "two servers",
    Trust.SECAGG: "secure aggregation",
}
_VISIBLE_SNR = 2.0  # users of a visible cell, in standard deviations of its error
_EXAMPLE_CELLS = (10, 100, 1_000)  # users of a cell
_WIDTH = 100  # columns of a terminal
_MONTH = 30  # nights that add up at most, because places change
_MIN_EXCESS = 1.5  # of a squared error over the best one, from which on an operator is advised


@dataclass(frozen=True)
class RotationChoice:
    """One number of cohorts, and the errors of a night's counts scaled to all users."""

    cohorts: int  # how many
    times_asked: int  # the most nights of a window in which one user is active
    epsilon: float  # epsilon, delta: of a night's release
    delta: float
    noise: NoiseKind  # distribution of a night's noise
    shards: int | None  # that are queried on a night; None without shards
    noise_stddev: float  # of the noise in a count, in users

    def sampling_stddev(self, users: float, nights: int = 1) -> float:
        """Returns standard deviation, in users, from asking one cohort of a cell's users; after nights that add up."""
        return math.sqrt((self.cohorts - 1) * users / nights)

    def stddev(self, users: float, nights: int = 1) -> float:
        """Returns the standard deviation of the whole error of a cell of this many users, in users."""
        return math.hypot(self.noise_stddev / math.sqrt(nights), self.sampling_stddev(users, nights))

    def min_visible_users(self, nights: int = 1) -> float:
        """Returns users of a cell that equal two standard deviations of its error."""
        half = _VISIBLE_SNR * (self.cohorts - 1) / nights
        return (half + math.hypot(half, 2 * self.noise_stddev / math.sqrt(nights))) * _VISIBLE_SNR / 2


@dataclass(frozen=True, repr=False)
class RotationPlan:
    """The numbers of cohorts among which to choose, and the best one."""

    parameters: CountParameters  # of a map of all users at the whole budget
    limit: Limit  # the budget, for any `limit.days` nights in a row
    # With fewest cohorts first; of those that ask a user equally often, the one with fewest cohorts.
    choices: tuple[RotationChoice, ...]

    def __repr__(self) -> str:
        return rotation_table(self)

    @property
    def added_nights(self) -> int:
        """Returns the number of nights that are taken to add up: those of the limit, or a month of them."""
        return min(self.limit.days, _MONTH)

    @property
    def best(self) -> RotationChoice:
        """Returns the choice that sees the smallest cell after the nights that add up; see the module."""
        return min(self.choices, key=lambda one: one.min_visible_users(self.added_nights))

    @property
    def best_of_one_night(self) -> RotationChoice:
        """Returns the choice that sees the smallest cell on one night."""
        return min(self.choices, key=lambda one: one.min_visible_users())

    @property
    def typical_users(self) -> float:
        """Returns the users of the smallest cell that the best choice sees after the nights that add up."""
        return self.best.min_visible_users(self.added_nights)

    def choice(self, cohorts: int) -> RotationChoice:
        """Returns the design with a number of cohorts, 1..366. Raises RequestError where no such map can be made."""
        return _choice(self.parameters, self.limit, cohorts)

    def excess(self, cohorts: int) -> float:
        """Returns the squared error of a typical cell with this many cohorts, over that of the best choice."""
        nights, users = self.added_nights, self.typical_users
        return (self.choice(cohorts).stddev(users, nights) / self.best.stddev(users, nights)) ** 2

    def advice(self, cohorts: int) -> str | None:
        """Returns a sentence for an operator whose number of cohorts is far from the best; None where it is not."""
        excess, best = self.excess(cohorts), self.best
        if excess < _MIN_EXCESS:
            return None
        return (
            f"rotation: {cohorts} has {significant(excess)} times the squared error of rotation: {best.cohorts}, in a "
            f"cell of {significant(self.typical_users)} users; `sfumato plan --nights {self.limit.days}` compares them"
        )


def make_rotation_plan(parameters: CountParameters, nights: int) -> RotationPlan:
    """Compares the numbers of cohorts for nightly maps on one budget.

    Args:
        parameters: of a map of all users of a night. Its epsilon and delta are the budget for any such number of
            nights in a row; its users, or its population, are those of a night.
        nights: 1..366.

    Raises:
        RequestError: no such map can be made.
        ValueError: no number of users is given.
    """
    if not 1 <= nights <= MAX_COHORTS:
        raise RequestError(f"nights: from 1 to {MAX_COHORTS}, got {nights}")
    if parameters.slots * parameters.categories > 1:
        raise RequestError("rotation: supports only plain maps, without slots or auxiliary data")
    if parameters.participation == "paper":
        raise RequestError("participation: with nights it must be planned; paper has noise that depends on the users")
    limit = Limit.from_numbers(parameters.epsilon, parameters.delta, nights)
    numbers = sorted({math.ceil(nights / math.ceil(nights / cohorts)) for cohorts in range(1, nights + 1)})
    found = [_choice(parameters, limit, numbers[-1])]  # which fails where even the largest epsilon a night is refused
    for cohorts in reversed(numbers[:-1]):
        try:
            found.append(_choice(parameters, limit, cohorts))
        except RequestError:  # a night's epsilon is too small for any noise, and so it is with fewer cohorts
            break
    return RotationPlan(parameters, limit, tuple(found[::-1]))


def _choice(parameters: CountParameters, limit: Limit, cohorts: int) -> RotationChoice:
    """Returns a number of cohorts, with the better of the noises that the parameters allow."""
    times_asked = math.ceil(limit.days / cohorts)
    users = min(parameters.users or math.inf, parameters.population or math.inf)
    if users == math.inf:
        raise ValueError("users: a plan needs the number of users")
    active_users = users / cohorts
    # Each of these sums has a noise of its own.
    shard_plan = parameters.plan_shards(active_users)
    sums = parameters.noisy_sums(shard_plan)
    found = []
    for kind in parameters.possible_noises:
        noise, delta = parameters.noise_of(shard_plan, kind), parameters.delta if kind.NEEDS_DELTA else 0.0
        if noise.allows_colluders and not kind.HAS_SHARES:
            continue
        epsilon = min(daily_epsilon(limit, delta, cohorts), parameters.epsilon)
        night = replace(
            parameters,
            epsilon=epsilon,
            delta=delta,
            noise=kind.NAME,
            users=max(1, round(active_users)),
            population=None,
        )
        of_one_sum = kind.stddev(night.budget.total - night.admission().cost)
        stddev = cohorts * math.sqrt(sums * noise.shape) * of_one_sum
        shards = None if parameters.is_one_batch else sums
        found.append(RotationChoice(cohorts, times_asked, epsilon, delta, kind.NAME, shards, stddev))
    return min(found, key=lambda choice: choice.noise_stddev)


def rotation_table(plan: RotationPlan) -> str:
    """Returns the text of a plan: its table, the best choice marked, and what to write into the configuration of a
    refresh.
    """
    nights, best, one_night = plan.added_nights, plan.best, plan.best_of_one_night
    users = min(plan.parameters.users or math.inf, plan.parameters.population or math.inf)
    sees = _SEES[plan.parameters.trust]
    header = ["cohorts", "nights queried", "epsilon a night", *(["noise of"] if plan.limit.delta else [])]
    header += [] if plan.parameters.is_one_batch else ["shards queried"]
    header += [
        "noise, users",
        *(f"{cell:,} users" for cell in _EXAMPLE_CELLS),
        "visible, 1 night",
        f"{nights} nights",
        "",
    ]
    rows = []
    for choice in plan.choices:
        row = [f"{choice.cohorts}", f"{choice.times_asked}", rounded_down(choice.epsilon)]
        row += [choice.noise] if plan.limit.delta else []
        row += [] if choice.shards is None else [f"{choice.shards:,}"]
        row.append(significant(choice.noise_stddev))
        row += [f"{significant(choice.stddev(n))} ({significant(choice.sampling_stddev(n))})" for n in _EXAMPLE_CELLS]
        row += [significant(choice.min_visible_users(1)), significant(choice.min_visible_users(nights))]
        rows.append([*row, "best" if choice == best else ""])
    heading = f"{users:,.0f} users a night, {plan.limit.describe()}, {sees}"
    cells = f"{', '.join(f'{cell:,}' for cell in _EXAMPLE_CELLS[:-1])} and {_EXAMPLE_CELLS[-1]:,} users"
    notes = [
        "Errors are standard deviations of one night's counts, scaled to all users: of the noise, and of cells of "
        f"{cells} with noise and sampling together, only sampling in brackets. Cells with at least this number of "
        f"users are visible (two standard deviations), on one night and over {nights} nights that add up.",
        f"Best: {_configured(best)}. A night's map is based on the nights before it, and over {nights} nights this "
        f"number of cohorts sees the smallest cells, of {significant(plan.typical_users)} users.",
    ]
    if one_night.cohorts != best.cohorts:
        seen = f"{significant(one_night.min_visible_users())} users instead of {significant(best.min_visible_users())}"
        notes[-1] += f" On a single night `rotation: {one_night.cohorts}` sees cells of {seen}."
    table = markdown_table([header, *rows], left=(len(header) - 1,))
    return "\n".join([heading, "", table, *(f"{textwrap.fill(note, _WIDTH)}\n" for note in notes)])


def _configured(choice: RotationChoice) -> str:
    """Returns what to write into the configuration of a refresh."""
    options = f"epsilon: {rounded_down(choice.epsilon)}"
    if NOISES[choice.noise].NEEDS_DELTA:
        options += f", delta: {format_amount(parse_amount('delta', choice.delta))}"
    return f"write `rotation: {choice.cohorts}` and `options: {{{options}}}` into refresh.yaml"
