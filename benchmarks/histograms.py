"""Histograms by sample and threshold beside other mechanisms: Figures 1 and 2 of paper 004.

    SFUMATO_DATA=... python -m benchmarks.histograms [--repetitions 10] [--full]

A population of a million clients with one item each, delta 1e-8. Figure 1: mean absolute error of a bucket, as a share
of the population. Figure 2: recall of the true top B/10 buckets among the B/10 largest estimates above 0. Twice: once
the baselines get the sampling rate of the paper, (1 - e^-epsilon) / 6, once the rate that the exact accountant chose.
As in the paper they are private on the sample and get no credit for its secrecy; "amplified" gives central Laplace that
credit. Three other frequency oracles of the local model follow, of which the paper says that Hadamard's is the best.
Two yardsticks: 0 everywhere errs by 1 / B, and who may ask everybody, once, errs by 1 / epsilon users with
central Laplace. Without `SFUMATO_DATA` the words of Shakespeare (944,615 clients) are left out.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import platform
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow.compute as pc
import pyarrow.parquet as pq
from scipy import stats

from benchmarks.baselines.histogram_mechanisms import (
    BernoulliShuffle,
    CentralLaplace,
    DirectEncoding,
    HadamardResponse,
    HistogramMechanism,
    ThresholdedSample,
    UnaryEncoding,
    amplified_epsilon,
    closed_form_messages,
    message_rate,
)
from sfumato.transforms.histogram.plan import choose_sampling, corollary_rate, corollary_threshold
from sfumato.transforms.histogram.sampling_round import Sampling

POPULATION = 1_000_000
DELTA = 1e-8
EPSILONS = tuple(round(0.1 * step, 1) for step in range(1, 11))
SHOWN = (0.1, 0.3, 0.5, 1.0)
ERROR_BUCKETS = (2**6, 2**10, 2**14)
RECALL_BUCKETS = (2**8, 2**12)
RATES = {"paper": "the paper's rate", "exact": "the exact accountant's rate"}
PAPER, OURS = "sample and threshold, paper", "sample and threshold, exact"
FIVE = ("central Laplace", "local Hadamard", "shuffle", PAPER, OURS)
ORACLES = ("local direct", "local unary, symmetric", "local unary, optimised")
BESIDE = ("shuffle, zeroed", "central Laplace, amplified", *ORACLES)

Counts = np.ndarray
Score = Callable[[np.ndarray, Counts], float]


@dataclass(frozen=True)
class Point:
    """One place on the horizontal axis of one panel: (mean, standard error) by rate and mechanism."""

    data: str
    buckets: int
    epsilon: float
    scores: dict[tuple[str, str], tuple[float, float]]

    @property
    def panel(self) -> str:
        return f"{self.data}, 2^{self.buckets.bit_length() - 1}"

    def means(self, rate: str) -> dict[str, float]:
        """By mechanism, the five only."""
        return {name: self.scores[rate, name][0] for name in FIVE}


def populations(buckets: int) -> dict[str, Counts]:
    """Counts int64[B] of each data set; the two drawn ones are the same in every run."""
    generator = np.random.default_rng(buckets)
    at = np.arange(buckets)
    binomial, geometric = stats.binom(buckets, 0.5), stats.geom(1 / np.sqrt(buckets), loc=-1)
    found = {}
    for name, law in (("binomial", binomial), ("geometric", geometric)):
        pmf = law.pmf(at)
        pmf[-1] = law.sf(buckets - 2)  # clipped to the last bucket
        found[name] = generator.multinomial(POPULATION, pmf)
    if "SFUMATO_DATA" in os.environ:
        words = pq.read_table(Path(os.environ["SFUMATO_DATA"]) / "shakespeare_words.parquet").column("word")
        tally = pc.value_counts(words.cast("string").combine_chunks())
        hashes = [hashlib.blake2b(word.encode(), digest_size=8).digest() for word in tally.field("values").to_pylist()]
        places = np.frombuffer(b"".join(hashes), dtype="<u8") % np.uint64(buckets)
        weights = np.bincount(places.astype(np.int64), weights=tally.field("counts").to_numpy(), minlength=buckets)
        found["Shakespeare"] = weights.astype(np.int64)
    return found


def mechanisms(epsilon: float, population: int, buckets: int) -> dict[tuple[str, str], HistogramMechanism]:
    """By rate and name. The two sample-and-threshold ones keep their own rate, whatever the baselines get."""
    chosen = choose_sampling(epsilon, DELTA, population=population, items=buckets)
    theirs = corollary_rate(epsilon)
    paper = ThresholdedSample(PAPER, Sampling.from_rate(theirs, corollary_threshold(DELTA)))
    ours = ThresholdedSample(OURS, chosen)
    found: dict[tuple[str, str], HistogramMechanism] = {}
    for key, rate in (("paper", theirs), ("exact", chosen.rate)):
        baselines: list[HistogramMechanism] = [
            CentralLaplace(rate, epsilon),
            HadamardResponse(rate, epsilon),
            BernoulliShuffle(rate, epsilon, DELTA),
            paper,
            ours,
            BernoulliShuffle(rate, epsilon, DELTA, zeroed=True),
            CentralLaplace(rate, epsilon, amplified=True),
            DirectEncoding(rate, epsilon),
            UnaryEncoding(rate, epsilon, optimised=False),
            UnaryEncoding(rate, epsilon),
        ]
        found |= {(key, baseline.name): baseline for baseline in baselines}
    return found


def absolute_error(estimates: np.ndarray, counts: Counts) -> float:
    """Mean over the buckets, in millionths of the population."""
    return float(np.abs(estimates - counts).mean() / counts.sum() * 1e6)


def top_recall(estimates: np.ndarray, counts: Counts) -> float:
    """Share of the true top B/10 among the B/10 largest estimates above 0.

    An empty bucket is in no top. Where several buckets tie for the last place, as many of them count as there are
    places. What a mechanism leaves at 0 it has not found: no luck of the order.
    """
    size = len(counts) // 10
    last = np.sort(counts)[-size]
    above, ties = counts > max(last, 0), (counts == last) & (last > 0)
    # what ties in the estimates has no order of its own: by a fixed shuffle, not by the bucket's number
    shuffled = np.random.default_rng(len(counts)).permutation(len(counts))
    largest = shuffled[np.argsort(-estimates[shuffled], kind="stable")[:size]]
    largest = largest[estimates[largest] > 0]
    places = size - above.sum() if last > 0 else 0
    return float((above[largest].sum() + min(places, ties[largest].sum())) / (above.sum() + places))


def measure(sizes: Sequence[int], score: Score, repetitions: int) -> list[Point]:
    """Every point of one figure. The two thresholded samples are drawn once and stand in both sets."""
    points = []
    for buckets in sizes:
        for data, counts in populations(buckets).items():
            for epsilon in EPSILONS:
                generator = np.random.default_rng([buckets, round(10 * epsilon), len(data)])
                runs: dict[HistogramMechanism, list[float]] = {}
                baselines = mechanisms(epsilon, int(counts.sum()), buckets)
                for baseline in baselines.values():
                    if baseline not in runs:
                        runs[baseline] = [
                            score(baseline.estimate(counts, generator), counts) for _ in range(repetitions)
                        ]
                scores = {
                    key: (float(np.mean(runs[baseline])), float(np.std(runs[baseline], ddof=1) / np.sqrt(repetitions)))
                    for key, baseline in baselines.items()
                }
                points.append(Point(data, buckets, epsilon, scores))
    return points


def table(points: list[Point], rate: str, best: Callable[..., float], shown: Sequence[float]) -> str:
    """Markdown. Bold: the best of the five; after them what no figure of the paper has."""
    columns = (*FIVE, *BESIDE)
    rows = [f"| data, B | epsilon | {' | '.join(columns)} |", "|---" * (2 + len(columns)) + "|"]
    for point in points:
        if point.epsilon not in shown:
            continue
        top = best(point.means(rate).values())
        cells = []
        for name in columns:
            mean, error = point.scores[rate, name]
            text = f"{mean:.3g} (se {error if error > 1e-9 * mean else 0:.1g})"  # equal runs leave a rounding error
            cells.append(f"**{text}**" if name in FIVE and mean == top else text)
        rows.append(f"| {point.panel} | {point.epsilon:g} | {' | '.join(cells)} |")
    return "\n".join(rows)


def summary(points: list[Point], rate: str, best: Callable[..., float], champion: str) -> str:
    """Where one of the five is the best of its rivals, and for each panel where it is not, by how much.

    The paper's own mechanism has the paper's other three as its rivals, the exact parameters all four.
    """
    rivals = [name for name in FIVE if champion == OURS or name != OURS]
    lost: dict[str, list[tuple[float, str, str]]] = {}
    close = 0
    for point in points:
        means = {name: point.scores[rate, name][0] for name in rivals}
        winner = min(means, key=lambda name: (means[name] != best(means.values()), name != champion))
        if winner == champion:
            continue
        (theirs, their_error), (ours, our_error) = point.scores[rate, winner], point.scores[rate, champion]
        close += abs(ours - theirs) < 2 * np.hypot(our_error, their_error)
        ratio = max(ours, theirs) / min(ours, theirs)
        worst = f"{ours:.3g} against {theirs:.3g} of {winner} at epsilon {point.epsilon:g}"
        lost.setdefault(point.panel, []).append((ratio, f"{point.epsilon:g}", worst))
    panels = {point.panel for point in points}
    behind = sum(map(len, lost.values()))
    lines = [
        f"{champion[0].upper()}{champion[1:]}: the best of {len(rivals)}, or level, at {len(points) - behind} of "
        f"{len(points)} points and all along {len(panels) - len(lost)} of {len(panels)} panels; of the {behind} other "
        f"points, {close} are within two standard errors."
    ]
    better = {
        name: sum(
            best(means := point.means(rate)[champion], other := point.means(rate)[name]) == means != other
            for point in points
        )
        for name in rivals
        if name != champion
    }
    lines[0] += f" Better than {', '.join(f'{name} at {count}' for name, count in better.items())}."
    for panel, notes in lost.items():
        lines.append(f"- {panel}: behind at epsilon {', '.join(at for _, at, _ in notes)}; at worst {max(notes)[2]}.")
    return "\n".join(lines)


def ratios(points: list[Point], shown: Sequence[float]) -> str:
    """The error of the exact parameters over the error of the paper's, where the threshold bites."""
    rows = ["| data, B | " + " | ".join(f"epsilon {epsilon:g}" for epsilon in shown) + " |"]
    rows.append("|---" * (1 + len(shown)) + "|")
    for panel in dict.fromkeys(point.panel for point in points):
        mine = {p.epsilon: p.scores["paper", OURS][0] / p.scores["paper", PAPER][0] for p in points if p.panel == panel}
        rows.append(f"| {panel} | " + " | ".join(f"{mine[epsilon]:.2f}" for epsilon in shown) + " |")
    return "\n".join(rows)


def parameters(shown: Sequence[float]) -> str:
    """What each mechanism works with at a million clients and 2^14 buckets."""
    rows = [
        "| epsilon | paper: rate, threshold | exact: rate, threshold | "
        "shuffle at the paper's rate: noise messages a bucket, stddev | "
        "Balcer and Cheu's closed form | Laplace epsilon if amplified |",
        "|---" * 6 + "|",
    ]
    for epsilon in shown:
        found = mechanisms(epsilon, POPULATION, max(ERROR_BUCKETS))
        paper, ours = found["paper", PAPER], found["paper", OURS]
        assert isinstance(paper, ThresholdedSample)
        assert isinstance(ours, ThresholdedSample)
        users = round(POPULATION * paper.rate)
        probability, loose = message_rate(users, epsilon, DELTA), closed_form_messages(epsilon, DELTA)
        # the closed form holds where its q is at most 1/2
        deviation = f"{np.sqrt(loose * (1 - loose / users)):.0f}" if loose <= users / 2 else "too few clients"
        rows.append(
            f"| {epsilon:g} | {paper.rate:.4f}, {paper.sampling.threshold} | "
            f"{ours.rate:.4f}, {ours.sampling.threshold} | "
            f"{users * probability:.0f}, {np.sqrt(users * probability * (1 - probability)):.1f} | "
            f"{loose:.0f}, {deviation} | "
            f"{amplified_epsilon(epsilon, ours.rate):.2f} |"
        )
    return "\n".join(rows)


def extra_clients(shown: Sequence[float]) -> str:
    """Rate and threshold of the exact parameters by number of buckets, and how many times the paper's rate that is."""
    rows = ["| B | " + " | ".join(f"epsilon {epsilon:g}" for epsilon in shown) + " |"]
    rows.append("|---" * (1 + len(shown)) + "|")
    for buckets in sorted({*ERROR_BUCKETS, *RECALL_BUCKETS}):
        chosen = [choose_sampling(epsilon, DELTA, population=POPULATION, items=buckets) for epsilon in shown]
        cells = [
            f"{one.rate:.3f}, {one.threshold}: {one.rate / corollary_rate(epsilon):.1f} times"
            for epsilon, one in zip(shown, chosen, strict=True)
        ]
        rows.append(f"| 2^{buckets.bit_length() - 1} | {' | '.join(cells)} |")
    return "\n".join(rows)


def passing(shown: Sequence[float]) -> str:
    """The largest bucket of each data set, and the expected share of buckets that pass the paper's threshold."""
    rows = [f"| data, B | largest bucket | {' | '.join(f'pass at epsilon {epsilon:g}' for epsilon in shown)} |"]
    rows.append("|---" * (2 + len(shown)) + "|")
    threshold = corollary_threshold(DELTA)
    for buckets in sorted({*ERROR_BUCKETS, *RECALL_BUCKETS}):
        for data, counts in populations(buckets).items():
            shares = [stats.binom.sf(threshold - 1, counts, corollary_rate(epsilon)).mean() for epsilon in shown]
            cells = [f"{counts.max() / counts.sum():.2%}", *(f"{share:.1%}" for share in shares)]
            rows.append(f"| {data}, 2^{buckets.bit_length() - 1} | {' | '.join(cells)} |")
    return "\n".join(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repetitions", type=int, default=10)
    parser.add_argument("--full", action="store_true", help="print every epsilon, not four of the ten")
    options = parser.parse_args()
    shown = EPSILONS if options.full else SHOWN
    began = time.perf_counter()
    print(
        f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}; {POPULATION:,} clients, "
        f"delta {DELTA:g}, {options.repetitions} repetitions, mean (se: standard error)"
    )
    if "SFUMATO_DATA" not in os.environ:
        print("SFUMATO_DATA is not set: without Shakespeare")
    print(f"\n{parameters(shown)}")
    print(f"\nThe exact parameters' rate, threshold, and clients over the paper's\n\n{extra_clients(shown)}")
    print(f"\nThe data, and what passes the paper's threshold\n\n{passing(shown)}")
    errors = measure(ERROR_BUCKETS, absolute_error, options.repetitions)
    recalls = measure(RECALL_BUCKETS, top_recall, options.repetitions)
    figures = (
        ("Mean absolute error of a bucket, in millionths of the population", errors, min),
        ("Recall of the top B/10", recalls, max),
    )
    for title, points, best in figures:
        for rate, words in RATES.items():
            print(f"\n{title}; baselines at {words}\n\n{table(points, rate, best, shown)}")
            # at the paper's rate the paper's own has as many clients as its rivals, at the exact rate ours has
            for champion in (PAPER, OURS) if rate == "paper" else (OURS,):
                print(f"\n{summary(points, rate, best, champion)}")
    zeros = ", ".join(f"{1e6 / buckets:,.0f} in 2^{buckets.bit_length() - 1}" for buckets in ERROR_BUCKETS)
    print(f"\nAn estimate of 0 in every bucket errs by {zeros} buckets (millionths of the population).")
    print("\nError of the exact parameters over the error of the paper's\n")
    print(ratios(errors, shown))
    print(f"\n{time.perf_counter() - began:.0f} s")


if __name__ == "__main__":
    main()
