"""`sfumato plan`: what a heatmap will cost and show, from public figures alone; no data are read.

Users are taken to be spread evenly over the map. Only the methods that look where users are depend on that: adaptive
stops earlier or later where users crowd. Every other method's figures are exact.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from sfumato.pipelines.heatmap_options import add_heatmap_arguments, lists_of, names_of
from sfumato.pipelines.options import JobParser
from sfumato.schemas.errors import RequestError
from sfumato.schemas.guarantee import SubQuery
from sfumato.transforms.heatmap.methods import METHODS, Adaptive
from sfumato.transforms.heatmap.options import Option, heatmap_options, heatmap_parameters, option_grid
from sfumato.transforms.heatmap.plan import VISIBLE_FROM, Plan, make_plan
from sfumato.transforms.text_tables import markdown_table, significant

_NOT_OFFERED = ("simulated_dropout", "max_bad_fraction")  # what only a run on data has
_ALWAYS = ("users", "epsilon")  # columns of every summary
_DROPOUTS = (0.0, 0.02, 0.05, 0.1, 0.15, 0.2)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's options: those of the heatmap, each of which takes several values."""
    names = ", ".join(METHODS)
    parser.add_argument("--method", "--methods", default=Adaptive.NAME, metavar="NAMES", help=f"of {names}")
    add_heatmap_arguments(parser, _offered(), many=True)


def _offered() -> dict[str, Option]:
    return {name: one for name, one in heatmap_options().items() if name not in _NOT_OFFERED}


def run(arguments: Sequence[str]) -> int:
    """Prints the plan for a command line. Raises RequestError."""
    parser = JobParser("plan", __doc__)
    parser.epilog = None  # nothing goes to Beam
    add_arguments(parser)
    values = vars(parser.parse_args(list(arguments)))
    lists = lists_of(values, _offered())
    if "users" not in lists:
        raise RequestError("users: give the number of users who will take part, such as --users 1000000")
    grid = option_grid(names_of(values["method"]), lists)
    plans = [make_plan(heatmap_parameters(method, chosen)) for method, chosen in grid]
    if len(plans) == 1:
        sys.stdout.write(details(plans[0]))
    else:
        varied = [name for name, given in lists.items() if name in _ALWAYS or len(given) > 1]
        sys.stdout.write(summary(plans, varied))
    return 0


def summary(plans: Sequence[Plan], varied: Sequence[str]) -> str:
    """A table of several plans, one a row, with the options that vary."""
    header = ["method", *varied, "sub-queries", "entries", "KB a client", "modulus bits"]
    header += ["noise, users", "seen from, users", "level seen", "shards lost"]
    rows = []
    for plan in plans:
        metadata, last, central = plan.parameters.metadata(), plan.sub_queries[-1], plan.central
        row = [plan.parameters.method.NAME, *(_value(metadata.get(name, "")) for name in varied)]
        row += [f"{len(plan.sub_queries)}", f"{plan.entries:,}"]
        row += ["-", "-"] if central else [significant(plan.bits / 8000), f"{(last.modulus - 1).bit_length()}"]
        seen = [None if plan.min_visible_users is None else significant(plan.min_visible_users), plan.visible_level]
        row += [significant(plan.noise_stddev), *("-" if one is None else f"{one}" for one in seen)]
        lost = "-" if central else _percent(plan.shards_lost(0)) if plan.is_paper else "none"
        rows.append([*row, lost])
    return markdown_table([header, *rows])


def details(plan: Plan) -> str:
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
        + (" in one of " if plan.state.has_disjoint_cohorts else " in ")
        + _number(len(plan.sub_queries), "sub-query", "sub-queries")
    )
    if (most := own.method.max_query_entries()) is not None:
        lines.append(
            "this is for users who are spread evenly; the more they crowd together the more entries pay, up to "
            f"{most:,}\na sub-query (--max_entries)"
        )
    lines.append(
        f"counting the users costs epsilon {count:.3g} of {own.epsilon:g}, and tells their number to "
        f"+-{significant(1.96 * plan.state.population.noise_stddev)} (95%)"
    )
    if plan.min_visible_users is not None:
        needed = significant(plan.min_visible_users)
        seen = f"a cell shows from {needed} users ({VISIBLE_FROM:g} standard deviations of the last sub-query's noise)"
        lines.append(seen + _spread(plan.visible_level))
    header = ["sub-query", "epsilon", "entries", "noise, users"]
    if not central:
        header += ["modulus", "bits a client", "chance of overflow"]
    rows = [_sub_query(*one, central) for one in zip(plan.sub_queries, plan.overflow, strict=True)]
    lines += ["", markdown_table([header, *rows])]
    if not central:
        lost = [_percent(plan.shards_lost(rate)) for rate in _DROPOUTS]
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


def _value(value: object) -> str:
    if value is None:
        return "auto"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else f"{value}"


def _number(number: int, noun: str, many: str | None = None) -> str:
    return f"{number:,} {noun if number == 1 else many or noun + 's'}"


def _percent(share: float) -> str:
    return f"{significant(100 * share)}%"


if __name__ == "__main__":
    from sfumato.pipelines.cli import command

    sys.exit(command(["plan", *sys.argv[1:]]))
