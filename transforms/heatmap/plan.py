"""What a heatmap will cost and show, before any data is read: public figures alone. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import scipy

from sfumato.schemas.errors import RequestError
from sfumato.schemas.guarantee import Population, SubQuery
from sfumato.transforms.bisection import bisect
from sfumato.transforms.heatmap.methods import Adaptive
from sfumato.transforms.heatmap.parameters import HeatmapParameters
from sfumato.transforms.heatmap.schedule import advance, plan, window_for
from sfumato.transforms.heatmap.state import Estimate, HeatmapState
from sfumato.transforms.privacy.budget import Budget
from sfumato.transforms.privacy.mechanism import discrete_laplace_stddev
from sfumato.transforms.secagg.encodings import TreeEncoding
from sfumato.transforms.secagg.modulus import MAX_MODULUS
from sfumato.transforms.secagg.shards import ShardQuery, ShardTotals
from sfumato.transforms.text_tables import EXAMPLE_USERS, markdown_table, significant

SEEN_FROM = 2.0  # standard deviations of the noise
_DROPOUTS = (0.0, 0.02, 0.05, 0.1, 0.15, 0.2)


@dataclass(frozen=True, repr=False)
class Plan:
    """A run as it will be if users are spread evenly over the map.

    Only the adaptive methods' sub-queries depend on where users are; every other method's are exact.
    sub_queries: in order; overflow: upper bounds of the chance that any sum wraps around, one a sub-query.
    """

    parameters: HeatmapParameters
    state: HeatmapState
    sub_queries: tuple[SubQuery, ...]
    overflow: tuple[float, ...]

    def __repr__(self) -> str:
        return plan_details(self)

    @property
    def central(self) -> bool:
        """Whether a trusted server adds the noise, so that there are no shards to lose and no modulus."""
        return self.parameters.noise == "central"

    @property
    def is_paper(self) -> bool:
        """Whether shards can be lost because of who takes part: the paper's participation model."""
        return self.parameters.participation == "paper"

    @property
    def spent(self) -> float:
        """What the sub-queries cost a user."""
        return self.state.budget.spent - self.state.population.epsilon

    @property
    def entries(self) -> int:
        """Vector entries that a client sends in all; the most of them, where each answers one sub-query."""
        return self.state.of_user([one.vector_length for one in self.sub_queries])

    @property
    def bits(self) -> int:
        """Bits that a client sends in all, likewise."""
        return self.state.of_user([one.bits_per_client for one in self.sub_queries])

    @property
    def noise_stddev(self) -> float:
        """Standard deviation of the noise in an entry of the last sub-query, in users."""
        return self.sub_queries[-1].noise_stddev

    @property
    def least_seen(self) -> float | None:
        """Users whom a cell needs to stand two standard deviations out of the last sub-query's noise.

        Other answers can only help. None for methods none of whose answers is that of all cells.
        """
        return SEEN_FROM * self.noise_stddev if self.parameters.method.SEEN_BY_LAST else None

    @property
    def level_seen(self) -> int | None:
        """The finest level asked for at which evenly spread users would be seen so; None as above."""
        encoding, least = self.state.answers[-1].encoding, self.least_seen
        if least is None or not isinstance(encoding, TreeEncoding):
            return None
        cells = max(self.state.cohort.users / least, 1.0) if least > 0 else math.inf
        return encoding.tree.level if cells == math.inf else min(encoding.tree.level, int(math.log(cells, 4)))

    def shards_lost(self, dropout: float) -> float:
        """Expected share of the shards that are lost where so large a share of the devices vanishes.

        Of a real protocol, and of the paper's participation model: a shard's survivors are a Poisson number, since who
        is in it depends on hashes.
        """
        if self.central:
            return 0.0
        cohort = self.state.cohort
        expected = cohort.users / cohort.shards * (1 - dropout)
        return float(scipy.special.pdtr(cohort.required_survivors - 1, expected))


def make_plan(parameters: HeatmapParameters, prior: Estimate | None = None) -> Plan:
    """The plan for parameters.users (or the population). Raises RequestError as the run itself would.

    prior: the map of an earlier release to start from. Raises ValueError where no number of users is given.
    """
    users = parameters.population or parameters.users
    if users is None:
        raise ValueError("users: a plan needs to know how many")
    epsilon = parameters.admission().epsilon
    source = "noisy" if parameters.population is None else "public"
    population = Population(float(users), source, epsilon, discrete_laplace_stddev(epsilon), float(users))
    state = plan(population, Budget(parameters.epsilon).charge(epsilon), parameters, prior)
    overflow = []
    while state.query is not None:
        query, cohort = state.query, state.cohort
        overflow.append(overflow_probability(query, state))
        first, last = query.asked or (0, cohort.shards)
        asked = cohort.users * (last - first) / cohort.shards
        sums = np.round(query.encoding.shares * asked * state.unit).astype(np.int64)
        state = advance(state, ShardTotals(sums, last - first), parameters)
    return Plan(parameters, state, tuple(answer.spent for answer in state.answers), tuple(overflow))


def overflow_probability(query: ShardQuery, state: HeatmapState) -> float:
    """An upper bound of the chance that any sum of a sub-query wraps around its modulus: the least that is certified.

    1 where nothing can be said.
    """

    def fits(log_probability: float) -> bool:
        window = window_for(query.encoding, query.epsilon, state, math.exp(log_probability))
        return window.modulus <= query.window.modulus

    return math.exp(bisect(fits, 0.0, math.log(1e-300), 40)[0]) if fits(-1e-9) else 1.0


# --- in words ---


def plan_details(plan: Plan) -> str:
    """One plan in full."""
    own, cohort, central = plan.parameters, plan.state.cohort, plan.central
    count = plan.state.budget.total - plan.spent
    people = f"{own.method.NAME}: {cohort.users:,.0f} users"
    shards = f" in {_number(cohort.shards, 'shard')} of about {cohort.users / cohort.shards:,.0f}"
    if plan.is_paper:
        shards += f"; a shard needs {cohort.required_survivors:,} survivors, and who takes part is not protected"
    else:
        shards += "; every planned shard answers, whoever is there"
    sent = f"a client sends {plan.entries:,} vector entries"
    lines = [people + (", whose exact sums a trusted server sees" if central else shards)]
    lines.append(
        (sent if central else f"{sent}, {significant(plan.bits / 8000)} KB,")
        + (" in one of " if plan.state.in_parts else " in ")
        + _number(len(plan.sub_queries), "sub-query", "sub-queries")
    )
    if (most := own.method.most_entries()) is not None:
        lines.append(
            "this is for users who are spread evenly; the more they crowd together the more entries pay, up to "
            f"{most:,}\na sub-query (--max_entries)"
        )
    lines.append(
        f"counting the users costs epsilon {count:.3g} of {own.epsilon:g}, and tells their number to "
        f"+-{significant(1.96 * plan.state.population.noise_stddev)} (95%)"
    )
    if plan.least_seen is not None:
        seen = f"a cell is seen from {significant(plan.least_seen)} users on ({SEEN_FROM:g} standard deviations of the "
        lines.append(f"{seen}last sub-query's noise)" + _spread(plan.level_seen))
    header = ["sub-query", "epsilon", "entries", "noise, users"]
    if not central:
        header += ["modulus", "bits a client", "chance of overflow"]
    rows = [_sub_query(*one, central) for one in zip(plan.sub_queries, plan.overflow, strict=True)]
    lines += ["", markdown_table([header, *rows])]
    if not central:
        lost = [percent(plan.shards_lost(rate)) for rate in _DROPOUTS]
        vanish = ["devices that vanish", *(f"{rate:.0%}" for rate in _DROPOUTS)]
        if not plan.is_paper:
            lines.append(
                "No shard is lost in this job. In a real protocol, where devices vanish, one needs "
                f"{cohort.required_survivors:,} of them:\n"
            )
        lines.append(markdown_table([vanish, ["shards lost", *lost]]))
    return "\n".join(lines)


def _spread(level: int | None) -> str:
    return "\n" if level is None else f";\nspread evenly, users would be seen in {1 << level} x {1 << level} cells"


def _sub_query(one: SubQuery, overflow: float, central: bool) -> list[str]:
    row = [f"{one.index}", f"{one.epsilon:.4g}", f"{one.vector_length:,}", significant(one.noise_stddev)]
    probability = f"< {significant(overflow)}" if overflow < 1 else "not bounded"
    return row if central else [*row, f"{one.modulus:,}", f"{one.bits_per_client:,}", probability]


def heatmap_plan_text(parameters: HeatmapParameters, prior: Estimate | None = None) -> str:
    """What a heatmap costs a client and shows. prior: the map that it starts from.

    Without a public number of users: what holds whatever it is, and what it would be for some. Raises RequestError.
    """
    if parameters.population or parameters.users:
        return plan_details(make_plan(parameters, prior))
    if prior is not None:
        users = max(1, round(float(prior.counts.sum())))
        shown = plan_details(make_plan(replace(parameters, users=users), prior))
        return f"for as many users as the release that this one starts from had, {users:,}:\n\n{shown}"
    lines = [
        "How many users there are is counted privately, and the rest follows from that count; give --population N",
        "where it is known from elsewhere. What can be told whatever it is:",
        "",
        *_bounds(parameters),
        "",
        "What it would be, with users spread evenly over the map:",
        "",
    ]
    central = parameters.noise == "central"
    header = ["users", "sub-queries", "entries", *([] if central else ["bits a client", "KB"])]
    rows = [[*header, "noise, users", "seen from, users"]]
    for users in EXAMPLE_USERS:
        try:
            plan = make_plan(replace(parameters, users=users))
        except RequestError:  # not with so many users
            continue
        sent = [] if central else [f"{plan.bits:,}", significant(plan.bits / 8000)]
        row = [f"{users:,}", f"{len(plan.sub_queries)}", f"{plan.entries:,}", *sent, significant(plan.noise_stddev)]
        rows.append([*row, "-" if plan.least_seen is None else significant(plan.least_seen)])
    return "\n".join(lines) + "\n" + markdown_table(rows, left=())


def _bounds(parameters: HeatmapParameters) -> list[str]:
    """What holds for any number of users, and wherever they are."""
    method, depth = parameters.method, parameters.depth
    rounds = method.rounds(depth)
    share = parameters.epsilon * parameters.population_share
    lines = [f"- epsilon {parameters.epsilon:g} in all, of which the count of users costs {share:.3g}"]
    entries = method.most_entries()
    if entries is None and isinstance(method, Adaptive):
        entries = parameters.categories * 4**depth  # the finest tree
    if entries is None:
        return [*lines, f"- at most {rounds:,} sub-queries; their vectors depend on the number of users alone"]
    lines.append(f"- at most {rounds:,} sub-queries of at most {entries:,} entries each")
    if parameters.noise != "central":
        bits = ((MAX_MODULUS if parameters.modulus is None else parameters.modulus) - 1).bit_length()
        sent = f"{rounds * entries * bits:,}"
        lines.append(f"- so a client sends at most {rounds * entries:,} entries of {bits} bits at most: {sent} bits")
    return lines


def _number(number: int, noun: str, many: str | None = None) -> str:
    return f"{number:,} {noun if number == 1 else many or noun + 's'}"


def percent(share: float) -> str:
    """A share as a percentage of three digits."""
    return f"{significant(100 * share)}%"
