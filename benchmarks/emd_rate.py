"""The rate of Theorem 1.1 of paper 001: the error of sparse aggregation by number of users n and of places k.

    python -m benchmarks.emd_rate [--runs 10]

The users are spread over k places of a 256 x 256 grid, so the best k-sparse map is exact and only the second term of
the theorem is left: an earth mover's distance of O(sqrt(k) / (n epsilon)). The places lie at random, one in each of
sqrt(k) x sqrt(k) squares, as in the paper's lower bound, with random shares of the users. The theorem's w is
proportional to k; w = 20 is the experiments'. Slopes are of least squares in logarithms. No data are needed.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from benchmarks.baselines.emd_trusted_server import analysed_aggregate, emd_aggregate
from benchmarks.evaluation.earth_mover import earth_mover
from sfumato.transforms.counting.methods.emd import Emd
from sfumato.transforms.observability.text_tables import markdown_table

SIDE, EPSILON = 256, 1.0
USERS, PLACES = (1_000, 4_000, 16_000, 64_000, 256_000), (4, 16, 64, 256)
FIXED_USERS, FIXED_PLACES = 64_000, 16
WIDTH_OF_A_PLACE = 4  # w of the theorem as a multiple of k
FORMS = {"as analysed, w = 4 k": True, "as in the experiments, w = 4 k": False, "w = 20": None}


def sparse_sums(users: int, places: int, generator: np.random.Generator) -> NDArray[np.float64]:
    """Users of cells, float64[256, 256], of whom all are in as many cells as there are places."""
    side = round(places**0.5)
    square = SIDE // side
    row, column = np.divmod(np.arange(places), side)
    at = generator.integers(0, square, (2, places)) + np.stack([row, column]) * square
    sums = np.zeros((SIDE, SIDE))
    sums[tuple(at)] = generator.multinomial(users - places, generator.dirichlet(np.ones(places))) + 1
    return sums


def distance(form: str, users: int, places: int, seed: int) -> float:
    """The earth mover's distance of one private map from the exact one."""
    generator = np.random.default_rng([seed, users, places])
    sums = sparse_sums(users, places, generator)
    analysed = FORMS[form]
    width = 20 if analysed is None else WIDTH_OF_A_PLACE * places
    method = Emd(emd_width=width, emd_decay=0.8 if analysed else 0.5**0.5, emd_fit="refined")
    aggregate = analysed_aggregate if analysed else emd_aggregate
    found = aggregate(sums, EPSILON, method, lambda scale, n: generator.laplace(0, scale, n))
    return earth_mover(found, sums)


def slope(by: Sequence[int], distances: Sequence[float]) -> float:
    """Of the logarithm of a distance by that of a number, by least squares."""
    return float(np.polyfit(np.log(by), np.log(distances), 1)[0])


def table(name: str, cases: Sequence[tuple[int, int]], runs: int) -> str:
    """Mean distances of the forms by `name`, the first or second of (users, places), and their slopes."""
    by = [case[name == "k"] for case in cases]
    found = {form: [np.mean([distance(form, *case, seed) for seed in range(runs)]) for case in cases] for form in FORMS}
    rows = [[name, *FORMS]]
    for at, number in enumerate(by):
        rows.append([f"{number:,}", *(f"{distances[at]:.5f}" for distances in found.values())])
    rows.append(["slope", *(f"{slope(by, distances):.2f}" for distances in found.values())])
    return markdown_table(rows)


def main() -> None:
    """Prints two tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=10)
    runs = parser.parse_args().runs
    print(f"By n, k = {FIXED_PLACES}, epsilon {EPSILON:g}, {runs} runs; the theorem's slope is -1\n")
    print(table("n", [(users, FIXED_PLACES) for users in USERS], runs))
    print(f"By k, n = {FIXED_USERS:,}, epsilon {EPSILON:g}, {runs} runs; the theorem's slope is at most 0.5\n")
    print(table("k", [(FIXED_USERS, places) for places in PLACES], runs))


if __name__ == "__main__":
    main()
