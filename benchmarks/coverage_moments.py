"""How often 95% intervals of means and moments hold the clients' own statistic, as tables.

    python -m benchmarks.coverage_moments [--repetitions 100] [--clients 1000,10000] [--epsilons 0.1,3]

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

import numpy as np
from numpy.typing import NDArray

from sfumato.schemas.moments import FixedPoint, Statistic
from sfumato.transforms.moments.fixed_point import decode, encode
from sfumato.transforms.moments.protocol import MomentsPlan, answer
from sfumato.transforms.privacy.keys import FixedSecret, RunKey
from sfumato.transforms.text_tables import markdown_table

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


def run(data: Data, loose: int, clients: int, epsilon: float, statistics: tuple[str, ...], runs: int) -> Case:
    """Runs a plan so many times."""
    form = FixedPoint(data.bits + loose)
    plan = MomentsPlan(form=form, statistics=tuple(map(Statistic, statistics)), epsilon=epsilon)
    found = np.empty((4, runs, len(statistics)))
    for number in range(runs):
        seed = [number, loose, clients, int(1000 * epsilon), len(statistics), *data.name.encode()]
        values = decode(encode(np.maximum(data.draw(clients, np.random.default_rng(seed)), 0), form)[0], form)
        key = RunKey.derive(FixedSecret(b"coverage of moments" * 2), {"seed": seed})
        rows = answer(values, plan, key).estimates
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
        yield run(data, loose, clients, epsilon, statistics, runs)


def main() -> None:
    """Prints the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repetitions", type=int, default=100)
    parser.add_argument("--clients", type=lambda text: [int(one) for one in text.split(",")])
    parser.add_argument("--epsilons", type=lambda text: [float(one) for one in text.split(",")])
    parser.set_defaults(clients=[1_000, 10_000, 100_000, 1_000_000], epsilons=[0.1, 0.5, 1.0, 3.0])
    options = parser.parse_args()
    means = list(grid(options, ("mean",), (0, 4)))
    print("The mean, asked for alone\n")
    for by in (("clients", "epsilon"), ("data", "epsilon"), ("loose", "epsilon")):
        print(table(means, "mean", by), "\n")
    every = list(grid(options, STATISTICS, (0,)))
    print("All statistics, each of a part of the users\n")
    for name in STATISTICS:
        print(name, "\n")
        print(table(every, name, ("clients", "epsilon")), "\n")


if __name__ == "__main__":
    main()
