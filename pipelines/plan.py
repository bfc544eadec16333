"""`sfumato plan`: what a heatmap will cost and show, from public figures alone; no data are read.

Users are taken to be spread evenly over the map. Only the adaptive methods' trees depend on that, and they stop
earlier or later where users crowd; every other method's figures are exact.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from sfumato.pipelines.options import JobParser
from sfumato.schemas.errors import RequestError
from sfumato.schemas.guarantee import SubQuery
from sfumato.transforms.heatmap.methods import METHODS, Adaptive
from sfumato.transforms.heatmap.options import Option, heatmap_options, heatmap_parameters, option_grid
from sfumato.transforms.heatmap.plan import SEEN_FROM, Plan, make_plan
from sfumato.transforms.text_tables import markdown_table, significant

# What only a run on data knows the meaning of.
_NOT_OFFERED = ("population", "population_share", "simulated_dropout", "max_bad_fraction")
_DROPOUTS = (0.0, 0.02, 0.05, 0.1, 0.15, 0.2)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's options: those of the heatmap, each of which takes several values."""
    parser.add_argument("--method", default=Adaptive.NAME, metavar="NAMES", help=f"of {', '.join(METHODS)}")
    for name, option in _offered().items():
        if option.kind is bool:
            parser.add_argument(f"--{name}", action="store_true", help=option.help)
        else:
            parser.add_argument(f"--{name}", metavar=f"{option.metavar},...", help=option.text())


def _offered() -> dict[str, Option]:
    return {name: one for name, one in heatmap_options().items() if name not in _NOT_OFFERED}


def run(arguments: Sequence[str]) -> int:
    """Prints the plan for a command line. Raises RequestError."""
    parser = JobParser("plan", __doc__)
    add_arguments(parser)
    values = vars(parser.parse_args(list(arguments)))
    if not values["users"]:
        raise RequestError("users: give the number of users who will take part, such as --users 1000000")
    lists = {
        name: [True] if values[name] is True else one.read_list(values[name])
        for name, one in _offered().items()
        if values[name]
    }
    grid = option_grid([name.strip() for name in values["method"].split(",")], lists)
    plans = [make_plan(heatmap_parameters(method, chosen)) for method, chosen in grid]
    sys.stdout.write(summary(plans) if len(plans) > 1 else details(plans[0]))
    return 0


def summary(plans: Sequence[Plan]) -> str:
    """A table of several plans, one a row."""
    header = ["method", "users", "shards of", "tolerated dropout", "epsilon", "depth", "sub-queries", "entries"]
    header += ["KB a client", "modulus bits", "noise, users", "seen from, users", "level seen", "shards lost"]
    rows = []
    for plan in plans:
        own, last = plan.parameters, plan.sub_queries[-1]
        row = [own.method.NAME, f"{own.users:,}", f"{own.shard_size:,}", f"{own.dropout:g}", f"{own.epsilon:g}"]
        row += [f"{own.depth}", f"{len(plan.sub_queries)}", f"{plan.entries:,}", significant(plan.bits / 8000)]
        row += [f"{(last.modulus - 1).bit_length()}", significant(plan.noise_stddev), significant(plan.least_seen)]
        row += [f"{plan.level_seen}", significant(plan.shards_lost(0))]
        rows.append(row)
    return markdown_table([header, *rows])


def details(plan: Plan) -> str:
    """One plan in full."""
    own, cohort = plan.parameters, plan.state.cohort
    side = 1 << plan.level_seen
    header = ["sub-query", "epsilon", "entries", "noise, users", "modulus", "bits a client", "chance of overflow"]
    lines = [
        f"{own.method.NAME}: {cohort.users:,.0f} users in {cohort.shards:,} shards of about "
        f"{cohort.users / cohort.shards:,.0f}; a shard needs {cohort.required_survivors:,} survivors",
        f"a client sends {plan.entries:,} vector entries, {significant(plan.bits / 8000)} KB, in "
        f"{len(plan.sub_queries)} sub-queries",
        f"a cell is seen from {significant(plan.least_seen)} users on ({SEEN_FROM:g} standard deviations of the last "
        f"sub-query's noise); spread evenly, users would be seen in {side} x {side} cells",
        "",
        markdown_table([header, *map(_sub_query, plan.sub_queries, plan.overflow)]),
        markdown_table(
            [
                ["clients that vanish", *(f"{rate:.0%}" for rate in _DROPOUTS)],
                ["shards lost", *(significant(100 * plan.shards_lost(rate)) + "%" for rate in _DROPOUTS)],
            ]
        ),
    ]
    return "\n".join(lines)


def _sub_query(one: SubQuery, overflow: float) -> list[str]:
    noise, chance = significant(one.noise_stddev), f"< {significant(overflow)}" if overflow < 1 else "not bounded"
    sizes = [f"{one.modulus:,}", f"{one.bits_per_client:,}"]
    return [f"{one.index}", f"{one.epsilon:.4g}", f"{one.vector_length:,}", noise, *sizes, chance]


if __name__ == "__main__":
    from sfumato.pipelines.cli import main

    sys.exit(main(["plan", *sys.argv[1:]]))
