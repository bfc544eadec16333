"""How often 95% intervals of means and moments hold the clients' own statistic, as tables.

    python -m benchmarks.coverage_moments [--repetitions 100] [--clients 1000,10000] [--epsilons 0.1,3]
        [--method threshold] [--mean_only]

Every run draws clients anew and runs the whole protocol in memory, with randomised response and with the noise on every
count. A run misses where the interval does not hold the clients' own statistic. A row of a table pools the data sets,
or the depths, that it does not name. "width": the median half width over the root mean squared error, 1.96 for a normal
error whose deviation is known.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import get_args

import numpy as np
from numpy.typing import NDArray

from benchmarks.evaluation.moments_in_memory import run_in_memory
from sfumato.schemas.moments import FixedPoint, Method, Statistic
from sfumato.schemas.region import Grid, Region
from sfumato.transforms.moments.client_values import Block, decode, encode
from sfumato.transforms.moments.groups import CellGroups, Grouping
from sfumato.transforms.moments.local.plan import MomentsPlan
from sfumato.transforms.moments.local.protocol import MomentsState
from sfumato.transforms.moments.local.tally import count_reports
from sfumato.transforms.moments.release import simultaneous
from sfumato.transforms.observability.text_tables import markdown_table
from sfumato.transforms.privacy.keys import FixedSecret, RunKey
from sfumato.transforms.statistics.shrinkage import simultaneous_z

Values = NDArray[np.float64]
STATISTICS = ("mean", "variance", "moment:3", "geometric_mean", "log_product")
FEWER = 4  # a million clients have so many times fewer repetitions


@dataclass(frozen=True)
class Data:
    """Where clients' values come from. bits: the least depth that holds nearly all of them."""

    name: str
    bits: int
    draw: Callable[[int, np.random.Generator], Values]


DATA = (
    Data("normal, mean 600", 10, lambda n, rng: rng.normal(600, 100, n)),
    Data("uniform to 1000", 10, lambda n, rng: rng.uniform(0, 1000, n)),
    Data("exponential, mean 100", 10, lambda n, rng: rng.exponential(100, n)),
    Data("log-normal, sigma 1.5", 13, lambda n, rng: rng.lognormal(4, 1.5, n)),
    Data("one in twenty", 1, lambda n, rng: rng.binomial(1, 0.05, n).astype(np.float64)),
    Data("0 to 7", 3, lambda n, rng: rng.binomial(7, 0.3, n).astype(np.float64)),
)


def truth(name: str, values: Values) -> float:
    """The clients' own statistic. values: float64[n], as the codes have them."""
    if name == "mean":
        return float(values.mean())
    if name == "variance":
        return float(values.var())
    if name == "moment:3":
        return float((values**3).mean())
    logarithm = float(np.log(np.maximum(values, 1)).mean())  # a zero counts as the smallest step
    return float(np.exp(logarithm)) if name == "geometric_mean" else logarithm * len(values)


@dataclass(frozen=True)
class Case:
    """Some runs of one plan. low, value, high, truth: float64[runs, statistics]."""

    data: str
    loose: int
    clients: int
    epsilon: float
    statistics: tuple[str, ...]
    low: Values
    value: Values
    high: Values
    truth: Values


def run(
    data: Data, loose: int, clients: int, epsilon: float, statistics: tuple[str, ...], runs: int, method: Method
) -> Case:
    """Runs a plan so many times."""
    form = FixedPoint(data.bits + loose)
    plan = MomentsPlan(form=form, statistics=tuple(map(Statistic, statistics)), epsilon=epsilon, method=method)
    found = np.empty((4, runs, len(statistics)))
    for number in range(runs):
        seed = [number, loose, clients, int(1000 * epsilon), len(statistics), *data.name.encode()]
        values = decode(encode(np.maximum(data.draw(clients, np.random.default_rng(seed)), 0), form)[0], form)
        key = RunKey.derive(FixedSecret(b"coverage of moments" * 2), {"seed": seed})
        rows = run_in_memory(values, plan, key).estimates
        found[:3, number] = np.transpose([(one.low, one.value, one.high) for one in rows])
        found[3, number] = [truth(name, values) for name in statistics]
    return Case(data.name, loose, clients, epsilon, statistics, *found)


def pooled(cases: list[Case], name: str) -> tuple[float, float, int]:
    """Coverage of a statistic, the median over cases of half widths over errors, and the number of runs."""
    held, widths = [], []
    for case in cases:
        i = case.statistics.index(name)
        low, value, high, true = (part[:, i] for part in (case.low, case.value, case.high, case.truth))
        slack = 1e-9 * np.abs(true)
        held.append((low - slack <= true) & (true <= high + slack))
        widths.append(np.median(high - low) / 2 / max(np.sqrt(np.mean((value - true) ** 2)), 1e-300))
    every = np.concatenate(held)
    return float(every.mean()), float(np.median(widths)), len(every)


def table(cases: list[Case], name: str, by: tuple[str, ...]) -> str:
    """Coverage of a statistic by some properties of the cases."""

    def key(case: Case) -> tuple[object, ...]:
        return tuple(getattr(case, one) for one in by)

    rows = [[*by, "coverage", "goal", "width", "runs"]]
    for at in dict.fromkeys(map(key, cases)):
        share, width, runs = pooled([case for case in cases if key(case) == at], name)
        words = [f"{one:,}" if isinstance(one, int) else str(one) for one in at]
        rows.append([*words, f"{100 * share:.1f}%", "93% or more", f"{width:.1f}", f"{runs:,}"])
    return markdown_table(rows, left=(0,))


def grid(options: argparse.Namespace, statistics: tuple[str, ...], looses: tuple[int, ...]) -> Iterator[Case]:
    """All cases."""
    for data, loose, clients, epsilon in itertools.product(DATA, looses, options.clients, options.epsilons):
        runs = options.repetitions if clients < 10**6 else max(options.repetitions // FEWER, 1)
        yield run(data, loose, clients, epsilon, statistics, runs, options.method)


def listed(
    seed: int, spread: float, clients: int, epsilon: float, depth: int = 3
) -> tuple[NDArray[np.int8], NDArray[np.float64]]:
    """A map of cells whose means differ: which are listed, and by how much each truly is above everybody's.

    Args:
        seed: of the run; clients and the key are drawn anew.
        spread: standard deviation of the cells' means about 500; values deviate by 100 from their cell's.
        clients: in all; the fullest cell has some ten times as many as the emptiest.
        epsilon: local, and of the release.
        depth: of the cells.

    Returns:
        1, -1 or 0, and the difference, int8[n] and float64[n], of the cells shown.
    """
    rng, form = np.random.default_rng([seed, clients]), FixedPoint(10)
    cells = 4**depth
    groups = rng.choice(cells, clients, p=rng.dirichlet(np.full(cells, 3.0))).astype(np.uint16)
    values = np.clip(500 + spread * rng.standard_normal(cells)[groups] + rng.normal(0, 100, clients), 0, 1023)
    codes, _ = encode(values, form)
    key = RunKey.derive(FixedSecret(b"listed cells" * 3), {"seed": seed})
    plan = MomentsPlan(form=form, epsilon=epsilon)
    block = Block.from_clients(codes, rng.integers(0, 2**64, clients, dtype=np.uint64), groups)
    state = MomentsState(plan)
    for _ in plan.stages:
        queries = state.next_queries()
        counted = [count_reports(block, query, cells + 1, plan.response, key) for query in queries]
        state = state.advance(queries, plan.protect(queries, counted, key))
    grouping = Grouping(CellGroups(Grid(Region(-1, 50, 1, 51), depth)))
    stddev = float(np.sqrt(state.clients_variance().item() / (cells + 1)))
    names, places = grouping.published_groups(state.clients(), simultaneous_z(cells) * stddev)
    shown = np.flatnonzero(places[:-1] < len(names) - 1)
    exact = decode(codes, form)
    means = np.bincount(groups, exact, cells) / np.maximum(np.bincount(groups, minlength=cells), 1)
    return simultaneous(state.estimates, names, places, "mean")[0], means[shown] - exact.mean()


def lists(runs: int) -> str:
    """Of so many maps, how many list a cell that is not truly above or below the average."""
    rows = [["cells' means deviate by", "users", "epsilon", "lists with a wrong cell", "goal", "cells listed a map"]]
    for spread, clients, epsilon in (
        (2.0, 60_000, 1.0),
        (20.0, 60_000, 1.0),
        (60.0, 200_000, 1.0),
        (60.0, 200_000, 4.0),
    ):
        found = [listed(number, spread, clients, epsilon) for number in range(runs)]
        wrong = sum(bool((np.sign(truth)[differs != 0] != differs[differs != 0]).any()) for differs, truth in found)
        number = sum(np.count_nonzero(differs) for differs, _ in found)
        rows.append(
            [f"{spread:g}", f"{clients:,}", f"{epsilon:g}", f"{wrong} of {runs}", "5% at most", f"{number / runs:.1f}"]
        )
    return markdown_table(rows, left=())


def main() -> None:
    """Prints the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repetitions", type=int, default=100)
    parser.add_argument("--clients", type=lambda text: [int(one) for one in text.split(",")])
    parser.add_argument("--epsilons", type=lambda text: [float(one) for one in text.split(",")])
    parser.add_argument("--no_lists", action="store_true", help="intervals alone")
    parser.add_argument("--mean_only", action="store_true", help="intervals of the mean alone")
    parser.add_argument("--method", choices=get_args(Method), default="adaptive", help="of the intervals")
    parser.set_defaults(clients=[1_000, 10_000, 100_000, 1_000_000], epsilons=[0.1, 0.5, 1.0, 3.0])
    options = parser.parse_args()
    if not (options.no_lists or options.mean_only):
        print("Maps of 64 cells: what is listed as above or below the average\n")
        print(lists(200), "\n")
    means = list(grid(options, ("mean",), (0, 4)))
    print("The mean, asked for alone\n")
    for by in (("clients", "epsilon"), ("data", "epsilon"), ("loose", "epsilon")):
        print(table(means, "mean", by), "\n")
    if options.mean_only:
        return
    every = list(grid(options, STATISTICS, (0,)))
    print("All statistics, each of a part of the users\n")
    for name in STATISTICS:
        print(name, "\n")
        print(table(every, name, ("clients", "epsilon")), "\n")


if __name__ == "__main__":
    main()
