"""What exact accounting buys: thresholds and sampling rates beside the paper's corollary, and rounds beside their sum.

    python -m benchmarks.accountant [--delta 1e-8]

Prints Markdown tables; nothing here depends on data. The third and fourth table show the guarantee that is left without
a trusted aggregator, the fifth that of a fixed number of contacts, the last one numeric examples of the paper's
Sections 3.3 and 5.
"""

from __future__ import annotations

import argparse
import math
import time

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from benchmarks.baselines.sampling_bounds import frequency_bound, min_threshold, omission_bound
from sfumato.transforms.histogram.accountant import delta as round_delta
from sfumato.transforms.histogram.accountant import max_rate
from sfumato.transforms.histogram.plan import choose_sampling, corollary_rate, corollary_threshold
from sfumato.transforms.histogram.sampling_round import Sampling, hidden_count


def one_round(delta: float) -> list[str]:
    """The paper's parameters, and what the exact guarantee allows in their place."""
    rows = [
        "| epsilon | paper: rate, threshold | threshold that suffices at that rate | rate allowed at that threshold "
        "| chosen for any catalogue | largest hidden count at 99%: paper, chosen |",
        "|---|---|---|---|---|---|",
    ]
    for epsilon in (0.1, 0.25, 0.5, 1.0):
        rate, threshold = corollary_rate(epsilon), corollary_threshold(delta)
        larger, chosen = max_rate(epsilon, delta, threshold), choose_sampling(epsilon, delta)
        paper = type(chosen).from_rate(rate, threshold)
        rows.append(
            f"| {epsilon:g} | {rate:.4f}, {threshold} | {min_threshold(epsilon, delta, rate)} "
            f"| {larger:.4f} ({larger / rate:.2f} times) | {chosen.rate:.4f}, {chosen.threshold} "
            f"| {hidden_count(paper)}, {hidden_count(chosen)} |"
        )
    return rows


def rounds(epsilon: float, delta: float) -> list[str]:
    """Rates of several rounds by composition and by adding up, at the threshold that is chosen."""
    rows = [
        "| rounds | threshold | rate of each round | rate if budgets were added up | seconds to choose |",
        "|---|---|---|---|---|",
    ]
    for number in (1, 2, 3, 6, 12, 24):
        began = time.perf_counter()
        chosen = choose_sampling(epsilon, delta, rounds=number)
        seconds = time.perf_counter() - began
        added = max_rate(epsilon / number, delta / number, chosen.threshold)
        rows.append(f"| {number} | {chosen.threshold} | {chosen.rate:.3f} | {added:.3f} | {seconds:.2f} |")
    return rows


def both_samplings(delta: float) -> tuple[Sampling, Sampling]:
    """The paper's sampling and ours at epsilon 1."""
    paper = Sampling.from_rate(corollary_rate(1.0), corollary_threshold(delta))
    return paper, choose_sampling(1.0, delta)


def heads(first: str, delta: float) -> list[str]:
    """The head of a table with a column for each of both samplings."""
    samplings = zip(("paper", "ours"), both_samplings(delta), strict=True)
    names = [f"{name}: rate {one.rate:.3f}, threshold {one.threshold}" for name, one in samplings]
    return [f"| {first} | {' | '.join(names)} |", "|---|---|---|"]


def distance(first: NDArray[np.float64], second: NDArray[np.float64], epsilon: float) -> float:
    """Returns the delta of two distributions at an epsilon, in the direction that has more."""
    return max(float(np.maximum(a - math.exp(epsilon) * b, 0).sum()) for a, b in ((first, second), (second, first)))


def without_threshold(delta: float) -> list[str]:
    """Delta at epsilon 1 towards a server that sees all sampled counts, by the number of users who share an item."""
    rows = heads("users of the item", delta)
    for users in (1, 3, 10, 30, 100, 300, 1000):
        shown = []
        for one in both_samplings(delta):
            sampled = np.arange(users + 1)
            with_user, without = (stats.binom.pmf(sampled, count, one.rate) for count in (users, users - 1))
            shown.append(distance(with_user, without, 1.0))
        rows.append(f"| {users} | {' | '.join(f'{value:.1e}' for value in shown)} |")
    return rows


def with_colluders(delta: float) -> list[str]:
    """Delta at epsilon 1 if some users report an item whatever they draw. They lower the threshold by their number."""
    rows = heads("colluding users", delta)
    for colluders in (0, 1, 5, 10, 15, 19, 23):
        left = [(one.rate, max(one.threshold - colluders, 1)) for one in both_samplings(delta)]
        rows.append(f"| {colluders} | {' | '.join(f'{round_delta(1.0, *one):.1e}' for one in left)} |")
    return rows


def published(users: int, holders: int, contacts: int, probability: float, threshold: int) -> NDArray[np.float64]:
    """Distribution of an item's published count if exactly so many users are contacted, and each may take part."""
    among = np.arange(max(0, contacts - users + holders), min(holders, contacts) + 1)
    chosen = stats.hypergeom.pmf(among, users, holders, contacts)
    shares: NDArray[np.float64] = chosen @ stats.binom.pmf(np.arange(contacts + 1), among[:, None], probability)
    shares[0] = shares[:threshold].sum()
    shares[1:threshold] = 0
    return shares


def fixed_contacts() -> list[str]:
    """Contacts by c, and delta of m + c sqrt(m) contacts (Section 3.2) over that of the Poisson sample.

    Delta is of one item, with and without one of its holders: the largest over all numbers of holders near the worst
    one of the Poisson sample, and over every twentieth of the users.
    """
    slacks = (0.5, 1, 2, 5, 10)
    names = " | ".join(f"c = {slack:g}" for slack in slacks)
    rows = [f"| users | epsilon | rate, threshold | {names} |", f"|---|---|---|{'---|' * len(slacks)}"]
    cases = [(300, 0.2, 0.15, 30), (1000, 0.2, corollary_rate(0.2), 20), (1000, 1.0, corollary_rate(1.0), 20)]
    for users, epsilon, rate, threshold in cases:
        worst = threshold / (1 - math.exp(-epsilon) * (1 - rate))  # of the Poisson sample
        near = range(max(threshold, int(0.9 * worst)), min(users, int(1.15 * worst) + 2) + 1)
        holders = sorted({*near, *range(threshold, users + 1, users // 20), users})
        ratios = []
        for slack in slacks:
            mean = users * rate
            contacts = math.ceil(mean + slack * math.sqrt(mean))
            leak = 0.0
            for count in holders:
                pair = [published(users, one, contacts, mean / contacts, threshold) for one in (count, count - 1)]
                leak = max(leak, distance(*pair, epsilon))
            ratios.append(f"{contacts}: {leak / round_delta(epsilon, rate, threshold):.3g} times")
        rows.append(f"| {users} | {epsilon:g} | {rate:.3f}, {threshold} | {' | '.join(ratios)} |")
    return rows


def accuracy_bounds() -> list[str]:
    """Section 3.3's two examples and one of Section 5: bounds and exact probabilities, with both samplings.

    An item of 0.1% of a million users is omitted, at epsilon 1 and 0.2; one of 1% of 300,000 is more than 1 / sqrt(10)
    off at epsilon 1.
    """
    rows = ["| example | epsilon | rate, threshold | the paper's bound | exact |", "|---|---|---|---|---|"]
    for epsilon, theirs in ((1.0, (0.1, 20)), (0.2, (corollary_rate(0.2), 20))):
        chosen = choose_sampling(epsilon, 1e-8)
        for rate, threshold in (theirs, (chosen.rate, chosen.threshold)):
            rows.append(
                f"| an item of 1,000 users is omitted | {epsilon:g} | {rate:.3f}, {threshold} "
                f"| {omission_bound(1000, rate, threshold):.1e} | {stats.binom.cdf(threshold - 1, 1000, rate):.1e} |"
            )
    error, chosen = math.sqrt(0.1), choose_sampling(1.0, 1e-8)
    for rate, threshold in ((0.1, 10), (chosen.rate, chosen.threshold)):
        expected = 3000 * rate
        least = max(math.ceil(expected * (1 - error)), threshold)  # below, it is off or absent
        far = stats.binom.cdf(least - 1, 3000, rate) + stats.binom.sf(math.floor(expected * (1 + error)), 3000, rate)
        rows.append(
            f"| an item of 3,000 users is more than 32% off | 1 | {rate:.3f}, {threshold} "
            f"| {frequency_bound(3000, rate, error):.1e} | {far:.1e} |"
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--delta", type=float, default=1e-8)
    options = parser.parse_args()
    print(f"delta {options.delta:g}, one round\n")
    print("\n".join(one_round(options.delta)))
    print(f"\nepsilon 1, delta {options.delta:g}\n")
    print("\n".join(rounds(1.0, options.delta)))
    print("\ndelta at epsilon 1 towards a server that sees the sampled counts below the threshold\n")
    print("\n".join(without_threshold(options.delta)))
    print("\ndelta at epsilon 1 where users collude to report the item of one more user\n")
    print("\n".join(with_colluders(options.delta)))
    print("\ncontacts, and delta over that of the Poisson sample, if exactly m + c sqrt(m) users are contacted\n")
    print("\n".join(fixed_contacts()))
    print("\nbounds of the paper, and exact probabilities\n")
    print("\n".join(accuracy_bounds()))


if __name__ == "__main__":
    main()
