"""Table 3 of paper 000, first row: an adaptive tree without noise, which splits every node of more than 10 users.

    SFUMATO_DATA=... python -m benchmarks.noiseless_tree [--map manhattan_like] [--users 10000] [--keys 10]

No command line offers a heatmap without noise, so this runs the sub-queries of `sfumato heatmap` on exact sums.
"""

from __future__ import annotations

import argparse
import functools
import operator
import os
from pathlib import Path

import numpy as np

from benchmarks.comparison import MAPS, counts_of, draw_cohort
from benchmarks.evaluation.comparison_table import Mean
from benchmarks.evaluation.density_metrics import evaluate
from benchmarks.evaluation.in_memory import Rows, planned_state
from sfumato.transforms.counting.estimator import estimate_density
from sfumato.transforms.counting.methods import Adaptive
from sfumato.transforms.counting.parameters import CountParameters
from sfumato.transforms.counting.state import CountState
from sfumato.transforms.counting.sub_queries import advance
from sfumato.transforms.observability.text_tables import markdown_table
from sfumato.transforms.privacy.keys import RunKey
from sfumato.transforms.privacy.secrets import seed_secret
from sfumato.transforms.secagg.shard_sums import NOTHING, sum_shards

NAMES = ("mse", "l1", "l1_matrix_norm", "mape", "smape", "maape")
METHOD = Adaptive(schedule="paper", estimator="last", split_count=10, sub_query_share=0.1)


def run_without_noise(rows: Rows, population: int, key: int) -> CountState:
    """The final state of the ten sub-queries of METHOD on exact sums."""
    parameters = CountParameters(depth=rows.places.depth, users=len(rows.codes), method=METHOD)
    run_key = RunKey.derive(seed_secret(key), {"benchmark": "noiseless tree"})
    state = planned_state(population, parameters, run_key)
    groups = rows.shard_groups(state.shard_plan)
    while state.query is not None:
        totals = [sum_shards(group, state.query, run_key, None) for group in groups]
        state = advance(state, functools.reduce(operator.add, totals, NOTHING), parameters)
    return state


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--map", default="manhattan_like", choices=MAPS)
    parser.add_argument("--users", type=int, default=10_000)
    parser.add_argument("--keys", type=int, default=10)
    options = parser.parse_args()
    truth = counts_of(MAPS[options.map], Path(os.environ["SFUMATO_DATA"]))
    exact, population = truth / truth.sum(), int(truth.sum())
    found: dict[str, list[list[float]]] = {"the last sub-query": [], "the best sub-query by the truth": []}
    for key in range(options.keys):
        rows, best = draw_cohort(truth, options.users, key)
        state = run_without_noise(rows, population, key)
        maps = [evaluate(estimate_density(one.to_estimate()), exact, NAMES) for one in state.results]
        entries = state.entries_per_client
        for text, chosen in zip(found, (maps[-1], min(maps, key=lambda one: one["mse"])), strict=True):
            found[text].append([*(chosen[name] for name in NAMES), chosen["mse"] / best, entries])
    lines = [["map of", *NAMES, "mse / best_level", "entries"]]
    for text, runs in found.items():
        values = np.array(runs).T
        texts = [Mean.of(one.tolist()).text for one in values[:-1]]
        lines.append([text, *texts, f"{values[-1].mean():,.0f}"])
    print(markdown_table(lines))


if __name__ == "__main__":
    main()
