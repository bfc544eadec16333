"""What exact accounting buys: thresholds and sampling rates beside the paper's corollary, and rounds beside their sum.

    python -m benchmarks.accountant [--delta 1e-8]

Prints Markdown tables; nothing here depends on data.
"""

from __future__ import annotations

import argparse
import time

from benchmarks.baselines.sampling_bounds import corollary_rate, corollary_threshold, min_threshold
from sfumato.transforms.histogram.accountant import max_rate
from sfumato.transforms.histogram.optimal_sampling import choose_sampling
from sfumato.transforms.histogram.sampling_round import hidden_count


def one_round(delta: float) -> list[str]:
    """The paper's parameters, and what the exact guarantee allows in their place."""
    rows = [
        "| epsilon | paper: rate, threshold | threshold that suffices at that rate | rate allowed at that threshold "
        "| chosen for any catalogue | largest hidden count at 99%: paper, chosen |",
        "|---|---|---|---|---|---|",
    ]
    for epsilon in (0.1, 0.25, 0.5, 1.0):
        rate, threshold = corollary_rate(epsilon), corollary_threshold(epsilon, delta)
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--delta", type=float, default=1e-8)
    options = parser.parse_args()
    print(f"delta {options.delta:g}, one round\n")
    print("\n".join(one_round(options.delta)))
    print(f"\nepsilon 1, delta {options.delta:g}\n")
    print("\n".join(rounds(1.0, options.delta)))


if __name__ == "__main__":
    main()
