"""Figure 1 of paper 000: one epsilon under local, distributed and central differential privacy.

    SFUMATO_DATA=... python -m benchmarks.local_heatmaps [--maps manhattan_like,...] [--keys 5] [--picture FILE.png]

Each cell is the mean squared error of the density over that of the non-private best level of the same users, the mean
of the keys with its standard error, and in brackets the vector entries that a client sends.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

import numpy as np
from matplotlib.image import imsave
from numpy.typing import NDArray

from benchmarks.baselines.local_heatmap import run_local
from benchmarks.comparison import MAPS, counts_of, draw_cohort
from benchmarks.evaluation.comparison_table import Mean
from benchmarks.evaluation.in_memory import Rows, run_in_memory
from sfumato.transforms.counting.estimator import estimate_density
from sfumato.transforms.counting.methods import Adaptive, Flat, Method
from sfumato.transforms.counting.parameters import CountParameters
from sfumato.transforms.counting.state import CountState
from sfumato.transforms.observability.text_tables import markdown_table
from sfumato.transforms.privacy.keys import RunKey
from sfumato.transforms.privacy.secrets import seed_secret
from sfumato.transforms.report.canvas import palette

EPSILON, PICTURED_USERS, PICTURE_SIDE = 1.0, 100_000, 256
_PAPER = Adaptive(schedule="paper", estimator="last")
_EQUAL = Adaptive(schedule="paper", estimator="last", sub_query_share=0.1)
ROWS: list[tuple[str, str, Method]] = [
    ("local", "Algorithm 2: the paper's rounds, epsilon by Eqs. 5 to 9", _PAPER),
    ("local", "Algorithm 2 at a tenth of epsilon a round", _EQUAL),
    *(("local", f"one round of level {level}, bayes", Flat(level=level, estimator="bayes")) for level in (2, 3, 4, 5)),
    ("local", "default: two rounds, disjoint shards, bayes", Adaptive()),
    ("secagg", "Algorithm 2", _PAPER),
    ("secagg", "default", Adaptive()),
    ("central", "Algorithm 2", _PAPER),
    ("central", "default", Adaptive()),
]
_PICTURED = (0, 1, 6, 7, 9)


def run(trust: str, method: Method, rows: Rows, population: int, key: int) -> CountState:
    """The final state of a run under a trust model."""
    depth = rows.places.depth
    if trust == "local":
        rng = np.random.default_rng([key, len(rows.codes)])
        return run_local(rng.permutation(rows.codes), population, method, depth, EPSILON, rng)
    parameters = CountParameters(depth=depth, users=len(rows.codes), epsilon=EPSILON, method=method, trust=trust)  # type: ignore[arg-type]
    run_key = RunKey.derive(seed_secret(key), {"benchmark": "local heatmaps"})
    return run_in_memory(rows, population, parameters, run_key)


def density_of(state: CountState, method: Method, depth: int) -> NDArray[np.float64]:
    """The density of a run's map."""
    return estimate_density(method.decode(state, depth))


def table(name: str, truth: NDArray[np.int64], sizes: list[int], keys: int) -> str:
    """The table of one map: a row for each trust model and algorithm, a column for each number of users."""
    exact, population = truth / truth.sum(), int(truth.sum())
    lines = [["trust", "algorithm", *(f"{name}, {users:,}" for users in sizes)]]
    lines += [[trust, text] for trust, text, _ in ROWS]
    lines.append(["none", "the uniform density, without any data"])
    uniform = float(np.mean((1 / truth.size - exact) ** 2))
    for users in sizes:
        cohorts = [draw_cohort(truth, users, key) for key in range(keys)]
        lines[-1].append(f"{Mean.of([uniform / best for _, best in cohorts]).text} (0)")
        for line, (trust, _, method) in zip(lines[1:-1], ROWS, strict=True):
            ratios, entries = [], []
            for key, (rows, best) in enumerate(cohorts):
                state = run(trust, method, rows, population, key)
                error = np.mean((density_of(state, method, rows.places.depth) - exact) ** 2)
                ratios.append(float(error) / best)
                entries.append(state.entries_per_client)
            line.append(f"{Mean.of(ratios).text} ({np.mean(entries):,.0f})")
            print(*line[:2], line[-1], file=sys.stderr)
    return markdown_table(lines, left=(0, 1))


def picture(truth: NDArray[np.int64]) -> NDArray[np.float64]:
    """The exact map and those of some rows, side by side on one scale of colours."""
    rows, _ = draw_cohort(truth, PICTURED_USERS, 0)
    shown = [truth / truth.sum()]
    for trust, _, method in (ROWS[index] for index in _PICTURED):
        shown.append(density_of(run(trust, method, rows, int(truth.sum()), 0), method, rows.places.depth))
    high = np.quantile(shown[0], 0.995)
    colours = palette("count")
    step = len(truth) // PICTURE_SIDE or 1
    panels = []
    for one in shown:
        side = len(one) // step * step
        coarse = one[:side, :side].reshape(side // step, step, -1, step).mean(axis=(1, 3))
        panel = colours[np.rint(255 * np.sqrt(np.clip(coarse / high, 0, 1))).astype(int)]
        panels += [panel, np.ones((len(panel), 6, 3))]
    return np.concatenate(panels[:-1], axis=1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--maps", default="manhattan_like,gowalla_world,beijing_taxi")
    parser.add_argument("--users", default="10000,100000,1000000")
    parser.add_argument("--keys", type=int, default=5)
    parser.add_argument("--picture", type=Path, help="of the first map; without tables")
    options = parser.parse_args()
    data = Path(os.environ["SFUMATO_DATA"])
    for name in options.maps.split(","):
        truth = counts_of(MAPS[name], data)
        if options.picture:
            imsave(options.picture, picture(truth), format="png")
            return
        print(f"### Figure 1: {name}\n\n{table(name, truth, [int(n) for n in options.users.split(',')], options.keys)}")


if __name__ == "__main__":
    main()
