"""Coverage of the 95% intervals of quantiles, ranges, curves and moments on values with heaps.

    python -m benchmarks.heaps [--users 100000] [--keys 40] [--moments]

People round: fares in whole dollars, ages to multiples of 5, a tenth of all values at one number. A bin then holds a
heap, and how users lie in a bin is not uniform. Each row counts the intervals that hold the exact value over all keys:
of requested ranges whose ends are values of the data, of quantiles, and of the curve at every whole number, where the
curve's band must hold the share of users below it. A sampled distribution hides items below its threshold and states
what they may be, so its intervals may hold more than 95%. With --moments, each row counts the intervals of one
statistic in each trust model. Prints a Markdown table.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np

from benchmarks.evaluation.moments_in_memory import run_centrally, run_in_memory
from sfumato.schemas.charts import Curve, Quantile, RangeAnswer
from sfumato.schemas.moments import FixedPoint, Method, Statistic, ValueRange
from sfumato.transforms.histogram.item_encoding import NumberBins
from sfumato.transforms.histogram.plan import SamplePlan
from sfumato.transforms.histogram.sampling_round import NumberPrefixes, grow_trie, spread_levels
from sfumato.transforms.histogram.user_sample import ItemCounts, add_counts, threshold
from sfumato.transforms.moments.central.plan import CentralMomentsPlan
from sfumato.transforms.moments.central.release import central_tables
from sfumato.transforms.moments.local.plan import MomentsPlan
from sfumato.transforms.privacy.keys import FixedSecret, RunKey
from sfumato.transforms.quantiles.curve import build_hierarchy, quantile, search_quantiles
from sfumato.transforms.quantiles.exponential_draw import SpreadUsers
from sfumato.transforms.quantiles.plan import QuantilesPlan
from sfumato.transforms.quantiles.private_quantiles import Values, private_distribution

SHARES = (0.1, 0.25, 0.5, 0.75, 0.9)
LOW, HIGH = 0.0, 100.0
RANGES = ((0.0, 10.0), (10.0, 20.0), (20.0, 65.0), (65.0, 100.0))
DELTA = 1e-8
FORM = FixedPoint(14, 7)  # 0 to 128 in steps of 1/128
EXACT: dict[str, Callable[[np.ndarray], float]] = {
    "count": len,
    "sum": np.sum,
    "mean": np.mean,
    "variance": np.var,
    "moment:3": lambda values: np.mean(values**3),
    "geometric_mean": lambda values: np.exp(np.mean(np.log(np.maximum(values, FORM.step)))),  # 0 counts as a step
}
CENTRAL = ("count", "sum", "mean", "variance", "moment:3")
LOCAL = ("mean", "variance", "moment:3", "geometric_mean")
MOMENTS = (
    ("central, range given", CENTRAL),
    ("central, range found", CENTRAL),
    ("local, threshold", LOCAL),
    ("local, adaptive", LOCAL),
    ("local, weighted", LOCAL),
    ("secagg, adaptive", LOCAL),
)
METHODS = ("central, hierarchical", "central, exponential", "sampled, hierarchical", "sampled, interactive")


@dataclass(frozen=True)
class Found:
    """What one release states."""

    quantiles: Sequence[Quantile]
    curve: Curve
    ranges: Sequence[RangeAnswer] = ()


def data_sets(users: int) -> dict[str, np.ndarray]:
    """The values of all users, sorted, by the name of the data set."""
    rng = np.random.default_rng(1)
    fares = np.clip(rng.lognormal(2.7, 0.7, users), 0, 99.99)
    dollars = np.where(rng.random(users) < 0.1, 10, np.floor(fares))
    ages = np.clip(np.round(rng.normal(42, 18, users)), 0, 95)
    rounded = np.where(rng.random(users) < 0.3, np.round(ages / 5) * 5, ages)
    found = {"fares to the cent": np.round(fares, 2), "whole dollars, 10% at 10": dollars, "ages, 30% rounded": rounded}
    return {name: np.sort(values) for name, values in {**found, "multiples of 5": np.round(ages / 5) * 5}.items()}


def release(method: str, values: np.ndarray, epsilon: float, number: int) -> Found:
    """One release of a method."""
    key = RunKey.derive(FixedSecret(b"a key of the benchmark, 32 bytes"), {"run": number})
    trust, how = method.split(", ")
    bits = 20 if how == "exponential" else 12
    scale = NumberBins.of_ranges(LOW, HIGH, bits, RANGES if how == "hierarchical" else ())
    bins, counts = np.unique(scale.of(values), return_counts=True)
    if trust == "central":
        levels = () if how == "exponential" else spread_levels(bits, -(-bits // 4))
        plan = QuantilesPlan(epsilon, SHARES, bits, how, levels, population=len(values))
        users = SpreadUsers(bins.astype(np.int64), counts, bits)
        ranges = RANGES if how == "hierarchical" else ()
        found = private_distribution(users, plan, key, Values(LOW, HIGH, HIGH, edges=scale.edges), ranges)
        return Found(found.quantiles, found.curve, found.ranges)
    levels = (bits,) * bits if how == "interactive" else spread_levels(bits, 3)
    items = len(SHARES) + 1 if how == "interactive" else 1 << bits
    sampling = SamplePlan(epsilon, DELTA, len(values), items, len(levels)).sampling
    generator, rounds = np.random.default_rng(number), []
    for level in levels:
        drawn = generator.binomial(counts, sampling.rate)
        rounds.append(add_counts([ItemCounts(bins.astype(np.uint64) >> np.uint64(bits - level), drawn)]))
    if how == "interactive":
        search = search_quantiles(rounds, sampling, SHARES, LOW, HIGH)
        return Found(search.quantiles, search.curve)
    trie = grow_trie(
        [threshold(one, sampling, level) for one, level in zip(rounds, levels, strict=True)], NumberPrefixes(2, bits)
    )
    hierarchy = build_hierarchy(trie, scale)
    curve = hierarchy.curve()
    return Found([quantile(curve, share) for share in SHARES], curve, [hierarchy.answer(*pair) for pair in RANGES])


def held(found: Found, values: np.ndarray) -> tuple[list[bool], list[bool], list[bool]]:
    """Whether each range, each quantile, and the band at each whole number hold the exact value."""
    ranges = [
        answer.users_low
        <= np.searchsorted(values, answer.high) - np.searchsorted(values, answer.low)
        <= answer.users_high
        for answer in found.ranges
    ]
    exact = [np.quantile(values, one.share, method="inverted_cdf") for one in found.quantiles]
    quantiles = [one.low <= true <= one.high for one, true in zip(found.quantiles, exact, strict=True)]
    curve, band = found.curve, list[bool]()
    for value in range(1, 100):
        below = np.searchsorted(values, value) / len(values)
        low = curve.low[np.searchsorted(curve.value, value, side="right") - 1]
        high = curve.high[min(np.searchsorted(curve.value, value, side="left"), len(curve.high) - 1)]
        band.append(bool(low <= below <= high))
    return list(map(bool, ranges)), list(map(bool, quantiles)), band


def moments_held(
    trust: str, names: tuple[str, ...], values: np.ndarray, epsilon: float, run: Mapping[str, object]
) -> list[bool]:
    """Whether the interval of each statistic of one release holds the exact value."""
    key = RunKey.derive(FixedSecret(b"a key of the benchmark, 32 bytes"), run)
    statistics = tuple(map(Statistic, names))
    trust, how = trust.split(", ")
    if trust == "central":
        span = ValueRange(LOW, HIGH) if how == "range given" else None
        plan = CentralMomentsPlan(statistics=statistics, epsilon=epsilon, span=span)
        rows = central_tables(run_centrally(values, plan, key), None).estimates
    else:
        local = epsilon if trust == "local" else None
        reports = MomentsPlan(form=FORM, statistics=statistics, epsilon=local, method=cast(Method, how))
        rows = run_in_memory(values, reports, key).estimates
    return [bool(one.low <= EXACT[one.statistic](values) <= one.high) for one in rows]


def print_moments(users: int, keys: int, epsilon: float) -> None:
    """Prints the table of moments."""
    print(f"| values | trust | {' | '.join(EXACT)} |\n|---|---|{'---|' * len(EXACT)}")
    for name, values in data_sets(users).items():
        for trust, names in MOMENTS:
            runs = [
                moments_held(trust, names, values, epsilon, {"run": number, "values": name}) for number in range(keys)
            ]
            shares = dict(zip(names, np.mean(runs, axis=0), strict=True))
            cells = " | ".join(f"{shares[one]:.1%}" if one in shares else "" for one in EXACT)
            print(f"| {name} | {trust} | {cells} |", flush=True)


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--users", type=int, default=100_000)
    parser.add_argument("--keys", type=int, default=40)
    parser.add_argument("--epsilon", type=float, default=1.0)
    parser.add_argument("--moments", action="store_true")
    given = parser.parse_args()
    if given.moments:
        print_moments(given.users, given.keys, given.epsilon)
        return
    print("| values | method | ranges | quantiles | curve |\n|---|---|---|---|---|")
    for name, values in data_sets(given.users).items():
        for method in METHODS:
            kinds = [held(release(method, values, given.epsilon, number), values) for number in range(given.keys)]
            cells = [[one for kind in column for one in kind] for column in zip(*kinds, strict=True)]
            shown = " | ".join(f"{np.mean(cell):.1%} of {len(cell):,}" if cell else "" for cell in cells)
            print(f"| {name} | {method} | {shown} |", flush=True)


if __name__ == "__main__":
    main()
