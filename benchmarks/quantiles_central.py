"""Quantiles with a trusted curator beside sampling and other libraries: the error of ranks, intervals, and time.

    SFUMATO_DATA=... python -m benchmarks.quantiles_central [--repetitions 30] [--users 1000000] [--sampled]

A million users with one value each. The error of a value is the distance of its rank from the quantile's, as a share of
the users (mean over the quantiles): 0 if the share lies between those below and up to the value. Values of integer
columns are rounded. Goal: at most 1e-5 at epsilon 1 and 1e-4 at 0.1. Sampling runs at delta 1e-8, the rest at 0.
PyDP and OpenDP run where they are installed. Without SFUMATO_DATA ages and citations are left out. `--sampled`: the
methods of paper 004 alone, with our parameters and with the paper's, beside its bound (Section 4.2).
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import platform
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

from benchmarks.baselines.quantile_mechanisms import greedy_ranks, opendp_quantiles, slice_quantiles, tree_of
from sfumato.schemas.charts import Quantile
from sfumato.schemas.locations import NUMBERS, ItemColumns
from sfumato.transforms.histogram.item_encoding import NumberBins, NumberItems
from sfumato.transforms.histogram.plan import PaperSamplePlan, SamplePlan
from sfumato.transforms.histogram.sampling_round import NumberPrefixes, grow_trie, spread_levels
from sfumato.transforms.histogram.user_sample import ItemCounts, add_counts, threshold
from sfumato.transforms.privacy.admission import NoisyUserCounts
from sfumato.transforms.privacy.keys import FixedSecret, RunKey
from sfumato.transforms.privacy.mechanism import discrete_laplace_stddev
from sfumato.transforms.quantiles.curve import build_hierarchy, quantile, search_quantiles
from sfumato.transforms.quantiles.exponential_draw import SpreadUsers
from sfumato.transforms.quantiles.plan import QuantilesPlan
from sfumato.transforms.quantiles.private_quantiles import Values, private_distribution, whole_numbers

EPSILONS = (1.0, 0.1)
GOALS = {1.0: 1e-5, 0.1: 1e-4}
DELTA = 1e-8
Run = Callable[[int], tuple[np.ndarray, Sequence[Quantile]]]  # number of the run -> values, their intervals if any


@dataclass(frozen=True)
class Data:
    """Values of users, ascending, and their range."""

    name: str
    values: np.ndarray
    low: float
    high: float
    whole: bool = False

    def counts(self, bits: int, low: float | None = None, high: float | None = None) -> ItemCounts:
        """Users by bin."""
        low, high = (self.low, self.high) if low is None or high is None else (low, high)
        place = (np.clip(self.values, low, high) - low) / (high - low)
        items, counts = np.unique(np.minimum(place * 2**bits, 2**bits - 1).astype(np.uint64), return_counts=True)
        return ItemCounts(items, counts.astype(np.int64))


def data_sets(users: int) -> Iterator[Data]:
    """The data sets, the same in every run."""
    generator = np.random.default_rng(1)
    yield Data("uniform", np.sort(generator.uniform(0, 1, users)), 0, 1)
    yield Data("normal", np.sort(generator.normal(0, 1, users)), -6, 6)
    yield Data("Pareto, shape 1.2", np.sort(generator.pareto(1.2, users)), 0, 1000)
    if folder := os.environ.get("SFUMATO_DATA"):
        ages = pq.read_table(Path(folder) / "census_adult_ages.parquet")["age"].to_numpy()
        yield Data("census ages", np.sort(generator.choice(ages, users)).astype(float), 0, 127, True)
        papers = np.load(Path(folder) / "hepth_citations_4096.npy")
        found = generator.choice(len(papers), users, p=papers / papers.sum())
        yield Data("hep-th citations", np.sort(found).astype(float), 0, 4095, True)


def central(data: Data, shares: Sequence[float], epsilon: float, method: str, bits: int) -> Run:
    """A release of `quantiles --trust central`."""
    number_items = NumberItems(ItemColumns("x", "user_id", NUMBERS), data.low, data.high, bits)
    items = whole_numbers(number_items) if data.whole and method == "exponential" else number_items
    levels = () if method == "exponential" else spread_levels(bits, -(-bits // 4))
    plan = QuantilesPlan(epsilon, tuple(shares), bits, method, levels)
    counts = data.counts(items.bits, items.low, items.high)
    users = SpreadUsers(counts.items.astype(np.int64), counts.counts, items.bits)
    stddev = discrete_laplace_stddev(plan.admission_rule.cost)

    def run(number: int) -> tuple[np.ndarray, Sequence[Quantile]]:
        key = RunKey.derive(FixedSecret(b"a key of the benchmark, 32 bytes"), {"run": number})
        noise = np.random.default_rng(number).laplace(0, stddev / 2**0.5)
        admission = NoisyUserCounts(len(data.values) + noise, 0.0, plan.admission_rule.cost, stddev)
        values = Values(items.low, items.high, number_items.high, items is not number_items)
        found = private_distribution(users, plan, key, values, (), admission).quantiles
        return np.array([one.value for one in found]), found

    return run


def sample_plan(
    data: Data, shares: Sequence[float], epsilon: float, method: str, bits: int, rounds: int, kind: type[SamplePlan]
) -> SamplePlan:
    """The sampling of so many rounds."""
    items = len(shares) + 1 if method == "interactive" else 1 << bits
    return kind(epsilon, DELTA, len(data.values), None if kind is PaperSamplePlan else items, rounds)


def sampled(
    data: Data,
    shares: Sequence[float],
    epsilon: float,
    method: str,
    bits: int,
    rounds: int = 3,
    kind: type[SamplePlan] = SamplePlan,
    greedy: bool = False,
) -> Run:
    """A release of `quantiles --trust secagg`.

    rounds: levels of the hierarchical method. kind: of the parameters. greedy: ranks as in the paper, a quantile being
    the border whose rank is nearest to the share of all users.
    """
    interactive = method == "interactive"
    levels = (bits,) * bits if interactive else spread_levels(bits, rounds)
    plan = sample_plan(data, shares, epsilon, method, bits, len(levels), kind)
    counts = data.counts(bits)

    def run(number: int) -> tuple[np.ndarray, Sequence[Quantile]]:
        generator, rounds = np.random.default_rng(number), []
        for level in levels:
            drawn = generator.binomial(counts.counts, plan.sampling.rate)
            rounds.append(add_counts([ItemCounts(counts.items >> np.uint64(bits - level), drawn)]))
        if interactive:
            found = search_quantiles(rounds, plan.sampling, shares, data.low, data.high).quantiles
        else:
            shown = [threshold(one, plan.sampling, level) for one, level in zip(rounds, levels, strict=True)]
            trie = grow_trie(shown, NumberPrefixes(2, bits))
            if greedy:
                ranks = greedy_ranks(trie.levels, bits) / len(data.values)
                nearest = [int(np.abs(ranks - share).argmin()) for share in shares]
                return NumberBins(data.low, data.high, bits).at(np.array(nearest)), ()
            curve = build_hierarchy(trie, NumberBins(data.low, data.high, bits)).curve()
            found = tuple(quantile(curve, share) for share in shares)
        return np.array([one.value for one in found]), found

    return run


def slices(data: Data, shares: Sequence[float], epsilon: float) -> Run:
    """SliceQuantiles."""
    values, spread = data.values, 0.5 if data.whole else 0.0  # equal values are told apart by a fraction
    values = np.sort(values + np.random.default_rng(0).uniform(-spread, spread, len(values)))
    low, high = data.low - spread, data.high + spread
    return lambda number: (slice_quantiles(values, shares, epsilon, low, high, np.random.default_rng(number)), ())


def pydp(data: Data, shares: Sequence[float], epsilon: float) -> Run:
    """The quantile tree of PyDP."""
    tree = tree_of(data.values, data.low, data.high)
    return lambda number: (np.array(tree.compute_quantiles(epsilon, 0, 1, 1, list(shares), "laplace")), ())


def opendp(data: Data, shares: Sequence[float], epsilon: float) -> Run:
    """OpenDP's quantiles, one by one, among 2^12 candidates or all whole numbers."""
    steps = int(data.high - data.low) if data.whole else 1 << 12
    candidates, values = np.linspace(data.low, data.high, steps + 1).tolist(), data.values.tolist()
    return lambda number: (opendp_quantiles(values, shares, epsilon, candidates), ())


def mechanisms(data: Data, shares: Sequence[float], epsilon: float) -> dict[str, tuple[Run, float]]:
    """By name: a run, and the share of the repetitions that it is run for."""
    found = {
        "exponential": (central(data, shares, epsilon, "exponential", 20), 1.0),
        "hierarchical, 12 bits": (central(data, shares, epsilon, "hierarchical", 12), 1.0),
        "hierarchical, 16 bits": (central(data, shares, epsilon, "hierarchical", 16), 1.0),
        "secagg interactive, 12 bits": (sampled(data, shares, epsilon, "interactive", 12), 1.0),
        "secagg hierarchical, 12 bits": (sampled(data, shares, epsilon, "hierarchical", 12), 1.0),
        "SliceQuantiles": (slices(data, shares, epsilon), 1.0),
    }
    if importlib.util.find_spec("pydp"):
        found["PyDP quantile tree"] = (pydp(data, shares, epsilon), 1.0)
    if importlib.util.find_spec("opendp"):
        found["OpenDP, one by one"] = (opendp(data, shares, epsilon), 0.0)
    return found


def sampled_table(users: int, shares: np.ndarray, repetitions: int) -> Iterator[str]:
    """Rows of rank errors by sample and threshold: the mean and the largest of the quantiles, means over runs."""
    yield "| data | epsilon | method | parameters | rate, threshold | mean error of a rank | largest of the quantiles |"
    yield "|---" * 7 + "|"
    methods = {
        "interactive, 12 bits": ("interactive", 12, 12),
        "hierarchical, 12 bits, 3 levels": ("hierarchical", 12, 3),
        "hierarchical, 10 bits, 10 levels": ("hierarchical", 10, 10),
    }
    for data in data_sets(users):
        for epsilon in EPSILONS:
            for name, (method, bits, levels) in methods.items():
                ways = [(SamplePlan, "ours", False), (PaperSamplePlan, "paper", False)]
                if method == "hierarchical":
                    ways += [(PaperSamplePlan, "paper, greedy probes", True)]
                for kind, parameters, greedy in ways:
                    run = sampled(data, shares.tolist(), epsilon, method, bits, levels, kind, greedy)
                    found = np.array([rank_errors(data, run(number)[0], shares) for number in range(repetitions)])
                    error = found.mean(axis=1).std() / max(repetitions - 1, 1) ** 0.5
                    sampling = sample_plan(data, shares.tolist(), epsilon, method, bits, levels, kind).sampling
                    yield (
                        f"| {data.name} | {epsilon:g} | {name} | {parameters} | "
                        f"{sampling.rate:.3f}, {sampling.threshold} | {found.mean():.1e} (se {error:.0e}) | "
                        f"{found.max(axis=1).mean():.1e} |"
                    )


def rank_errors(data: Data, found: np.ndarray, shares: np.ndarray) -> np.ndarray:
    """Distances of values from the quantiles, as shares of the users."""
    found = np.rint(found) if data.whole else found
    below, up_to = (np.searchsorted(data.values, found, side) / len(data.values) for side in ("left", "right"))
    return np.maximum(np.maximum(below - shares, shares - up_to), 0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repetitions", type=int, default=30)
    parser.add_argument("--users", type=int, default=1_000_000)
    parser.add_argument("--quantiles", type=int, default=9)
    parser.add_argument("--sampled", action="store_true", help="sample and threshold alone, and the paper's parameters")
    options = parser.parse_args()
    shares = np.arange(1, options.quantiles + 1) / (options.quantiles + 1)
    print(
        f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}; {options.users:,} users, "
        f"{options.quantiles} quantiles, {options.repetitions} repetitions (OpenDP: 1), mean (se: standard error)\n"
    )
    if options.sampled:
        for row in sampled_table(options.users, shares, options.repetitions):
            print(row, flush=True)
        return
    print("| data | epsilon | goal | mechanism | error of a rank | in the interval | interval, half width | seconds |")
    print("|---|---|---|---|---|---|---|---|")
    for data in data_sets(options.users):
        truth = np.quantile(data.values, shares, method="inverted_cdf")
        for epsilon in EPSILONS:
            for name, (run, part) in mechanisms(data, shares.tolist(), epsilon).items():
                errors, held, widths, began = [], [], [], time.perf_counter()
                repetitions = max(round(part * options.repetitions), 1)
                for number in range(repetitions):
                    values, intervals = run(number)
                    errors.append(rank_errors(data, values, shares).mean())
                    for one, true in zip(intervals, truth.tolist(), strict=False):
                        held.append(one.low <= true <= one.high)
                        ends = np.searchsorted(data.values, [one.low, one.high]) / options.users
                        widths.append(np.diff(ends)[0] / 2)
                seconds = (time.perf_counter() - began) / repetitions
                error = np.std(errors) / max(repetitions - 1, 1) ** 0.5
                kept = f"{100 * np.mean(held):.1f}% | {np.mean(widths):.1e}" if held else "none | -"
                print(
                    f"| {data.name} | {epsilon:g} | {GOALS[epsilon]:.0e} | {name} | {np.mean(errors):.1e} "
                    f"(se {error:.0e}) | {kept} | {seconds:.2g} |",
                    flush=True,
                )


if __name__ == "__main__":
    main()
