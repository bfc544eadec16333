"""The plan of noisy counts (heatmaps, zones, ranges): cost and noise, from public figures before data is read. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import scipy

from sfumato.schemas.errors import RequestError
from sfumato.schemas.guarantee import Population, Trust
from sfumato.schemas.known_digits import NOISE_Z
from sfumato.transforms.counting.parameters import CountParameters
from sfumato.transforms.counting.state import CountState, Estimate, NoisyCounts
from sfumato.transforms.counting.sub_queries import advance, first_state
from sfumato.transforms.observability.text_tables import EXAMPLE_USERS, TYPICAL_USERS, markdown_table, significant
from sfumato.transforms.secagg.encodings import TreeEncoding
from sfumato.transforms.secagg.modulus import MAX_MODULUS
from sfumato.transforms.secagg.shard_sums import ShardTotals

_FEW_PLACES = 100  # visible on a map of few users, for which a plan warns
_VISIBLE_SNR = 2.0  # users of a visible cell, in standard deviations of the noise
_DROPOUTS = (0.0, 0.02, 0.05, 0.1, 0.15, 0.2)
_COLLUDING = (0.0, 0.01, 0.02, 0.05, 0.1, 0.2)


@dataclass(frozen=True, repr=False)
class Plan:
    """The run that follows if users are spread evenly over the map. Exact but for a method with `max_query_entries`."""

    parameters: CountParameters  # of the heatmap
    state: CountState  # after the last sub-query

    def __repr__(self) -> str:
        return plan_details(self)

    @property
    def sub_queries(self) -> tuple[NoisyCounts, ...]:
        """The sub-queries in order, each with its cost, noise and size."""
        return self.state.results

    @property
    def spent(self) -> float:
        """The cost of the sub-queries, for one user, in the unit of the noise."""
        return self.state.budget.spent - self.state.population.cost

    @property
    def entries(self) -> int:
        """Vector entries that a client sends in all."""
        return self.state.entries_per_client

    @property
    def bits(self) -> int:
        """Bits that a client sends in all."""
        return self.state.bits_per_client

    @property
    def noise_stddev(self) -> float:
        """Standard deviation of the noise in an entry of the last sub-query, in users."""
        return self.sub_queries[-1].noise_stddev

    @property
    def min_visible_users(self) -> float | None:
        """Users of a cell that equal two standard deviations of the last sub-query's noise.

        None for methods whose last sub-query does not cover the map.
        """
        return _VISIBLE_SNR * self.noise_stddev if self.parameters.method.LAST_QUERY_COVERS_MAP else None

    @property
    def most_visible(self) -> int | None:
        """The largest number of places that can each have `min_visible_users` of all users; None as there."""
        least = self.min_visible_users
        return None if not least else int(self.state.shard_plan.users / least)

    @property
    def visible_level(self) -> int | None:
        """The finest queried level on which evenly spread users give cells `min_visible_users`; None as there."""
        encoding, least = self.state.results[-1].encoding, self.min_visible_users
        if least is None or not isinstance(encoding, TreeEncoding):
            return None
        cells = max(self.state.shard_plan.users / least, 1.0) if least > 0 else math.inf
        return encoding.tree.level if cells == math.inf else min(encoding.tree.level, int(math.log(cells, 4)))

    def shards_lost(self, dropout: float) -> float:
        """Returns the expected share of lost shards in a real protocol or in the paper's participation model.

        A shard's survivors are a Poisson number, because hashes assign users to shards. dropout: share of the devices
        that fail, in 0..1.
        """
        if self.parameters.is_one_batch:
            return 0.0
        shard_plan = self.state.shard_plan
        expected = shard_plan.users / shard_plan.shards * (1 - dropout)
        return float(scipy.special.pdtr(shard_plan.required_survivors - 1, expected))


def make_plan(parameters: CountParameters, prior: Estimate | None = None) -> Plan:
    """Plans a run of `parameters.users` users, or of the public population. prior: an earlier map to start from.

    Raises:
        RequestError: a run would raise it too.
        ValueError: no number of users is given.
    """
    users = parameters.population or parameters.users
    if users is None:
        raise ValueError("users: a plan needs the number of users")
    cost = parameters.admission().cost
    source = "noisy" if parameters.population is None else "public"
    population = Population(float(users), source, cost, parameters.noise_kind.stddev(cost), float(users))
    state = first_state(population, parameters.budget.charge(cost), parameters, prior)
    while state.query is not None:
        query, shard_plan = state.query, state.shard_plan
        first, end = query.shard_range or (0, shard_plan.shards)
        queried_users = shard_plan.users * (end - first) / shard_plan.shards
        sums = np.round(query.encoding.shares * queried_users * state.gamma).astype(np.int64)
        state = advance(state, ShardTotals(sums, end - first), parameters)
    return Plan(parameters, state)


def plan_details(plan: Plan) -> str:
    """Returns the text of one plan, with a table of its sub-queries."""
    own, state, is_one_batch = plan.parameters, plan.state, plan.parameters.is_one_batch
    shard_plan, counting_cost = state.shard_plan, state.budget.total - plan.spent
    unit = state.noise.kind.UNIT
    if own.trust == Trust.CENTRAL:
        shards = ", whose exact sums a trusted curator sees"
    elif own.servers:
        shards = f" in one batch; each of {own.servers} servers adds noise to its share of the sums"
    else:
        noun = "shard" if shard_plan.shards == 1 else "shards"
        shards = f" in {shard_plan.shards:,} {noun} of about {shard_plan.users / shard_plan.shards:,.0f}"
        if not own.protects_participation:
            shards += (
                f"; a shard needs {shard_plan.required_survivors:,} survivors, and who takes part is not protected"
            )
        else:
            shards += "; all shards report, whatever their size"
    lines = [
        f"{own.method.NAME}: {shard_plan.users:,.0f} users{shards}",
        f"a client sends {plan.entries:,} vector entries"
        + ("" if own.trust == Trust.CENTRAL else f", {significant(plan.bits / 8000)} KB,")
        + (" in one of " if state.has_disjoint_shards else " in ")
        + ("1 sub-query" if len(plan.sub_queries) == 1 else f"{len(plan.sub_queries):,} sub-queries"),
    ]
    if (max_entries := own.method.max_query_entries(own.depth, own.categories)) is not None:
        lines.append(
            "this assumes evenly spread users; concentrated users lead to more entries, up to "
            f"{max_entries:,} a sub-query"
        )
    lines.append(
        f"the noisy user count costs {unit} {counting_cost:.3g} of {state.budget.total:.4g}; its error is "
        f"within ±{significant(NOISE_Z * state.population.noise_stddev)} users (95%)"
    )
    if plan.min_visible_users is not None:
        level = plan.visible_level
        lines.append(
            f"cells with at least {significant(plan.min_visible_users)} users are visible ({_VISIBLE_SNR:g} standard "
            "deviations of the last sub-query's noise)"
            + ("" if level is None else f";\nif users are spread evenly, {1 << level} x {1 << level} cells are visible")
        )
        if plan.most_visible is not None and plan.most_visible < _FEW_PLACES:
            lines.append(
                f"few users: at most {plan.most_visible} places can be visible; raise --epsilon, or take larger places "
                "or a longer time, to see more"
            )
    header = ["sub-query", unit, "entries", "noise, users"]
    if not is_one_batch:
        header += ["modulus", "bits a client"]
    rows = []
    for one in plan.sub_queries:
        row = [f"{one.query.index}", f"{one.cost:.4g}", f"{one.vector_length:,}", significant(one.noise_stddev)]
        if not is_one_batch:
            row += [f"{one.query.window.modulus:,}", f"{one.bits_per_client:,}"]
        rows.append(row)
    lines += ["", markdown_table([header, *rows])]
    if not is_one_batch:
        if own.protects_participation:
            lines.append(
                "This job loses no shard. In a real protocol a shard is lost when fewer than "
                f"{shard_plan.required_survivors:,} devices report:\n"
            )
        dropouts = ["devices that drop out", *(f"{dropout:.0%}" for dropout in _DROPOUTS)]
        lost = ["shards lost", *(percent(plan.shards_lost(dropout)) for dropout in _DROPOUTS)]
        lines.append(markdown_table([dropouts, lost]))
        if state.noise.kind.HAS_SHARES:
            lines.append(
                "Devices that collude with the server can subtract their shares of the noise. The epsilon that holds "
                f"against\nthem, in a shard of {state.noise.required:,} devices (--colluding adds noise for it):\n"
            )
            shares = ["devices that collude", *(f"{share:.0%}" for share in _COLLUDING)]
            against = ["epsilon", *(significant(state.epsilon_against(share)) for share in _COLLUDING)]
            lines.append(markdown_table([shares, against]))
    return "\n".join(lines)


def count_plan_text(parameters: CountParameters, prior: Estimate | None = None, places: float = math.inf) -> str:
    """Returns the text of a heatmap's plan. Without a public number of users it has bounds, and a table by that number.

    With a rotation the plan is for the users of one cohort. The users of a prior, the map of an earlier release of all
    users, replace an unknown number. Raises RequestError where a run would raise it too.

    places: number of places that are counted, if it is known before the run.
    """
    cohorts, parameters = parameters.rotation, replace(parameters, rotation=1)
    if parameters.population or parameters.users:
        return plan_details(make_plan(parameters, prior))
    if prior is not None:
        users = max(1, round(float(prior.counts.sum()) / cohorts))
        details = plan_details(make_plan(replace(parameters, users=users), prior))
        share = "" if cohorts == 1 else f"1/{cohorts} of "
        return f"for {share}as many users as the release that this one starts from had, {users:,}:\n\n{details}"
    lines = [
        "The number of users is counted privately, and the plan depends on that count; give --population N if the",
        "number is public. For any number of users:",
        "",
        *_bounds(parameters),
        "",
        "For users who are spread evenly over the map. A place of `visible` users or more can be distinguished",
        "from noise, so at most `places` places can be:",
        "",
    ]
    is_central = parameters.trust == Trust.CENTRAL
    header = ["users", "sub-queries", "entries", *([] if is_central else ["bits a client", "KB"])]
    rows = [[*header, "noise, users", "visible", "places"]]
    for users in (100, 1_000, *EXAMPLE_USERS):
        try:
            plan = make_plan(replace(parameters, users=users))
        except RequestError:  # such as a population too large for the modulus
            continue
        bits = [] if is_central else [f"{plan.bits:,}", significant(plan.bits / 8000)]
        row = [f"{users:,}", f"{len(plan.sub_queries)}", f"{plan.entries:,}", *bits, significant(plan.noise_stddev)]
        seen, most = plan.min_visible_users, plan.most_visible
        most_text = "-" if most is None else f"{min(most, places):,}"
        rows.append([*row, "-" if seen is None else significant(seen), most_text])
    return "\n".join(lines) + "\n" + markdown_table(rows, left=())


def _bounds(parameters: CountParameters) -> list[str]:
    """Returns lines that hold for any number of users in any places."""
    rounds, kind, delta, whole = parameters.most_sub_queries(), parameters.noise_kind, "", "it"
    if kind.NEEDS_DELTA:
        delta = f" and delta {parameters.delta:g}, with {kind.NAME.capitalize()} noise"
        whole = f"its {kind.UNIT} of {parameters.budget.total:.4g}"
    lines = [
        f"- epsilon {parameters.epsilon:g} in all{delta}; the count of users costs {parameters.population_share:g} of "
        f"{whole}"
    ]
    if parameters.slots > 1:
        lines.append(
            f"- the last sub-query counts by slot, {parameters.slots} in all: its noise is that of one slot's count"
        )
    entries = parameters.method.max_query_entries(parameters.depth, parameters.categories)
    if entries is None:
        return [*lines, f"- at most {rounds:,} sub-queries; their vectors depend only on the number of users"]
    lines.append(f"- at most {rounds:,} sub-queries of at most {entries:,} entries each")
    if not parameters.is_one_batch:
        bits = ((MAX_MODULUS if parameters.modulus is None else parameters.modulus) - 1).bit_length()
        total = f"{rounds * entries * bits:,}"
        lines.append(f"- so a client sends at most {rounds * entries:,} entries of {bits} bits at most: {total} bits")
    return lines


def accuracy(parameters: CountParameters, prior: Estimate | None = None, place: str = "a count") -> str:
    """Returns the error of a count of all users, in one phrase. prior: see `make_plan`. place: what is counted."""
    users, cohorts = parameters.population or TYPICAL_USERS, parameters.rotation
    plan = make_plan(replace(parameters, rotation=1, users=max(users // cohorts, 1)), prior)
    noise = significant(NOISE_Z * cohorts * plan.noise_stddev)
    return f"noise of ±{noise} users (95%) on {place}, if {users:,} take part"


def percent(share: float) -> str:
    """Returns a share in 0..1 as a percentage with three significant digits."""
    return f"{significant(100 * share)}%"
