"""Kendall's tau from one bit of each client: the AND of two thresholds, one for each column.

    python -m benchmarks.kendall [--repetitions 20]

Paper 002 (Section 5) names Kendall's tau as a quantity that follows from mean estimation, without a protocol. This one
has two rounds. In the first, a quarter of the clients report whether one of their numbers reaches a random threshold of
a public grid. The reports give the cut points of K classes of about equal size in each column. In the second, the
server draws cut points (i, j) for each client, who reports whether both numbers reach them. The shares of ones give the
probabilities of the K x K classes, and these give Kendall's tau-b (Kendall 1945), which allows for ties within a class.
Every client sends one bit, through randomised response.

"error" is the root of the mean squared error of tau, in hundredths, against the clients' own tau-b of all their values.
"of classes" is the same error of the tau of the classes without noise. "by normal" is (2 / pi) arcsin of the
correlation of `sfumato moments`, which holds for normal columns only.
"""

from __future__ import annotations

import argparse
import math
import platform
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy import optimize, stats

from benchmarks.bit_pairs import DATA, PairData, Pairs, pushed
from sfumato.transforms.moments.local.tally import RandomisedResponse
from sfumato.transforms.observability.text_tables import markdown_table

CLASSES = (4, 8, 12)
GRID = 128  # thresholds of the first round in each column; those that round to the same integer are one
FIRST_SHARE = 0.25


def unbiased_shares(
    bits: NDArray[np.bool_], queries: NDArray[np.int64], count: int, epsilon: float | None, rng: np.random.Generator
) -> NDArray[np.float64]:
    """The share of ones of each query, unbiased: float64[count].

    Args:
        bits: bool[n], of each client.
        queries: int64[n], which of the queries each client was asked.
        count: number of queries.
        epsilon: of a client's bit; None without randomised response.
        rng: of the flips.
    """
    response = RandomisedResponse(epsilon)
    flipped = rng.random(len(bits)) >= response.truth_probability
    share = np.bincount(queries, bits ^ flipped, count) / np.maximum(np.bincount(queries, minlength=count), 1)
    return response.unbiased_share(share)


def cut_points(
    values: NDArray[np.float64], top: float, classes: int, epsilon: float | None, rng: np.random.Generator
) -> NDArray[np.float64]:
    """Cut points between classes of about equal size: float64[classes - 1], ascending."""
    # Thresholds at equal ratios, which fit columns of any scale within the range.
    grid = np.unique(np.rint(np.geomspace(1, top, GRID)))
    queries = rng.integers(0, len(grid), len(values))
    share = unbiased_shares(values >= grid[queries], queries, len(grid), epsilon, rng)
    counts = np.bincount(queries, minlength=len(grid)) + 1.0
    falling = np.clip(optimize.isotonic_regression(share, weights=counts, increasing=False).x, 0, 1)
    wanted = 1 - np.arange(1, classes) / classes
    return np.interp(-wanted, -falling, grid)


def tau_b(cells: NDArray[np.float64]) -> float:
    """Kendall's tau-b of probabilities of classes: float64[K, K], which noise may make negative."""
    below = np.zeros_like(cells)
    below[1:, 1:] = np.cumsum(np.cumsum(cells, axis=0), axis=1)[:-1, :-1]
    against = np.zeros_like(cells)
    against[1:, :-1] = np.cumsum(np.cumsum(cells[:, ::-1], axis=0), axis=1)[:-1, ::-1][:, 1:]
    difference = 2 * float((cells * (below - against)).sum())
    ties = [1 - float((cells.sum(axis=axis) ** 2).sum()) for axis in (0, 1)]
    return float(np.clip(difference / math.sqrt(max(ties[0] * ties[1], 1e-12)), -1, 1))


def cells_of(shares: NDArray[np.float64]) -> NDArray[np.float64]:
    """The probabilities of classes from the shares that reach both cut points: float64[K, K] from [K + 1, K + 1]."""
    return np.diff(np.diff(shares, axis=0), axis=1)


def estimated(values: Pairs, data: PairData, classes: int, epsilon: float | None, run: int) -> tuple[float, float]:
    """Tau from one bit of each client, and tau of the same classes without noise, of all clients."""
    rng = np.random.default_rng([3, run, classes])
    eighth = int(len(values) * FIRST_SHARE / 2)
    parts = values[:eighth].real, values[eighth : 2 * eighth].imag
    tops = [2.0**bits - 1 for bits in data.bits]
    cuts = [cut_points(part, top, classes, epsilon, rng) for part, top in zip(parts, tops, strict=True)]
    last = values[2 * eighth :]
    # All clients reach the first of the K + 1 ends of classes and none the last, so nobody is asked about the last.
    i, j = rng.integers(0, classes, (2, len(last)))
    queries = i * classes + j
    ends = [np.concatenate([[-math.inf], one]) for one in cuts]
    bits = (last.real >= ends[0][i]) & (last.imag >= ends[1][j])
    shares = np.zeros((classes + 1, classes + 1))
    shares[:classes, :classes] = unbiased_shares(bits, queries, classes**2, epsilon, rng).reshape(classes, classes)
    shares[0, 0] = 1.0
    exact = np.histogram2d(
        np.searchsorted(cuts[0], values.real, side="right"),
        np.searchsorted(cuts[1], values.imag, side="right"),
        bins=[np.arange(classes + 1) - 0.5] * 2,
    )[0]
    return tau_b(cells_of(shares)), tau_b(exact / len(values))


def root(errors: Sequence[float]) -> str:
    """The root of the mean squared error, in hundredths, with its standard error."""
    squares = np.square(errors) * 1e4
    error = math.sqrt(squares.mean())
    return f"{error:.2g} (se {squares.std(ddof=1) / math.sqrt(len(squares)) / (2 * error):.1g})"


def table(data: PairData, clients: int, epsilon: float | None, repetitions: int) -> str:
    """A row for each number of classes."""
    draws = [data.clients(clients, np.random.default_rng([run, clients])) for run in range(repetitions)]
    truths = [float(stats.kendalltau(one.real, one.imag).statistic) for one in draws]
    rows = []
    for classes in CLASSES:
        found = [estimated(values, data, classes, epsilon, run) for run, values in enumerate(draws)]
        noisy, exact = ([one[part] - truth for one, truth in zip(found, truths, strict=True)] for part in (0, 1))
        rows.append([f"{classes} x {classes} classes", root(noisy), root(exact)])
    correlations = [pushed("adaptive", values, data, epsilon, run)[1][0] for run, values in enumerate(draws)]
    normal = [2 / math.pi * math.asin(one) - truth for one, truth in zip(correlations, truths, strict=True)]
    rows.append(["by normal", root(normal), ""])
    return f"tau {np.mean(truths):.3f}\n\n" + markdown_table(
        [["", "error, 1/100", "of classes, 1/100"], *rows], left=(0,)
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repetitions", type=int, default=20)
    repetitions = parser.parse_args().repetitions
    print(f"{platform.machine()}, Python {platform.python_version()}; {repetitions} repetitions")
    for data in DATA:
        for clients, epsilon in ((10_000, None), (100_000, 4.0), (100_000, 2.0), (100_000, 1.0)):
            title = "no randomised response" if epsilon is None else f"epsilon {epsilon:g}"
            print(f"\n{data.name}, {clients:,} clients, {title}; ", end="")
            print(table(data, clients, epsilon, repetitions), flush=True)


if __name__ == "__main__":
    main()
