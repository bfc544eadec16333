"""How near private maps come to the truth, by schedule and estimator, and what constants were chosen by.

    SFUMATO_DATA=... python -m benchmarks.accuracy [--maps sf_cabs,...] [--keys 10]
    SFUMATO_DATA=... python -m benchmarks.accuracy --two_releases [--maps sf_cabs,...] [--keys 10]
    python -m benchmarks.accuracy --choices [--only penalty] [--keys 5]

The first compares as benchmarks/comparison.py does, with the options above its tables. The second is about two
releases of one population. The third needs no data: it is about synthetic maps, on which alone constants were chosen
that no formula gives.
"""

from __future__ import annotations

import argparse
import itertools
import os
import sys
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
from numpy.typing import NDArray

from benchmarks.comparison import MAPS, compare_on_map, counts_of, draw_cohort, maps_at_hand
from benchmarks.evaluation.comparison_table import Row, text_table
from benchmarks.evaluation.density_metrics import mean_squared_error
from benchmarks.evaluation.in_memory import Rows, run_in_memory
from benchmarks.evaluation.outcomes import Value
from benchmarks.synthetic_maps import KINDS, synthetic_map
from sfumato.schemas.region import by_row
from sfumato.transforms.counting.estimator import estimate_density
from sfumato.transforms.counting.methods import Adaptive, adaptive, few_queries
from sfumato.transforms.counting.methods.base import Method
from sfumato.transforms.counting.parameters import CountParameters
from sfumato.transforms.counting.state import CountState, Estimate
from sfumato.transforms.observability.text_tables import markdown_table
from sfumato.transforms.privacy.keys import RunKey
from sfumato.transforms.privacy.secrets import seed_secret
from sfumato.transforms.statistics.posterior import inference, next_tree

_SIZES = (10_000, 100_000)
_RUNS = (
    ("cold starts", "--methods adaptive --users 10000,100000 --schedule paper,lean,auto --estimator last,bayes"),
    ("shared or disjoint shards", "--methods adaptive --users 100000 --shards shared,disjoint"),
    ("flat", "--methods flat --users 10000,100000 --level 5,6,7,8 --estimator bayes"),
    ("warm starts", "--methods adaptive --users 10000,100000 --schedule auto,lean --earlier_releases 0,1"),
)
# What stands in the summary: a name, the run it is of, and the values of its options.
_ROWS: list[tuple[str, str, Mapping[str, Value]]] = [
    ("paper (schedule paper, estimator last)", "cold starts", {"schedule": "paper", "estimator": "last"}),
    ("paper's sub-queries, bayes", "cold starts", {"schedule": "paper", "estimator": "bayes"}),
    ("**default** (auto, bayes)", "cold starts", {"schedule": "auto", "estimator": "bayes"}),
    ("auto, last answer alone", "cold starts", {"schedule": "auto", "estimator": "last"}),
    ("lean, bayes", "cold starts", {"schedule": "lean", "estimator": "bayes"}),
    ("auto, shards shared", "shared or disjoint shards", {"shards": "shared"}),
    *((f"flat, level {level}, bayes", "flat", {"level": level}) for level in (5, 6, 7, 8)),
    ("warm start, auto", "warm starts", {"schedule": "auto", "earlier_releases": 1}),
    ("warm start, lean", "warm starts", {"schedule": "lean", "earlier_releases": 1}),
]


def real_maps(names: list[str], keys: int) -> None:
    """Runs every comparison on every map; prints the summary, and each run's own table under its command."""
    data, printed = Path(os.environ["SFUMATO_DATA"]), []
    found: dict[tuple[str, str], list[Row]] = {}
    for name in names:
        truth = counts_of(MAPS[name], data)
        for title, options in _RUNS:
            rows, metrics = compare_on_map(name, f"{options} --metrics mse", truth, keys)
            printed.append(
                f"### {title}, map `{name}`\n\n    {options} --metrics mse --keys {keys}\n\n{text_table(rows, metrics)}"
            )
            found[name, title] = rows
            print(f"{name}: {title}", file=sys.stderr)
    columns = [(name, users) for name in names for users in _SIZES]
    header = ["", *(f"{name}, {users // 1000}k" for name, users in columns)]
    cells = [[label, *(_cell(found[n, title], u, chosen) for n, u in columns)] for label, title, chosen in _ROWS]
    print("Mean squared error over that of the non-private best level, and vector entries a client\n")
    print(markdown_table([header, *cells]))
    print("\n".join(printed))


def _cell(rows: list[Row], users: int, chosen: Mapping[str, Value]) -> str:
    for row in rows:
        row_users = row.options.get("users", _SIZES[-1])  # without this option, all rows are of the larger size
        if row_users == users and row.ratio and all(row.options.get(name) == value for name, value in chosen.items()):
            return f"{row.ratio.value:.3f} ({row.entries:,.0f})"
    return "-"


# One constant at a time is given another value: (name, module, attribute, values); the first value is the one chosen.
_CONSTANTS: list[tuple[str, Any, str, tuple[float, ...]]] = [
    ("first query's share of epsilon", few_queries, "_FIRST_SHARE", (0.2, 0.1, 0.15, 0.3)),
    ("deviations in a first cell", adaptive, "_MIN_CELL_SNR", (2.0, 1.0, 4.0)),
    ("penalty of a split", adaptive, "_SPLIT_PENALTY", (2.0, 0.0, 1.0, 5.0)),
    ("weight of blur", adaptive, "_BLUR_WEIGHT", (1.0, 0.5, 2.0)),
    ("growth of the error for fewer entries", adaptive, "_ERROR_GROWTH", (0.005, 0.0, 0.01, 0.02, 0.05)),
    ("concentration below measured nodes", next_tree, "_CONCENTRATION", (2.0, 0.0, 1.0, 3.0)),
    ("surprise", next_tree, "_SURPRISE", (0.1, 0.02, 0.3)),
    ("reuse of leaves", inference, "_REUSE", (0.04, 0.0001, 0.01, 0.1, 0.3)),
    ("pull of the level above", inference, "_PULL", (4.0, 1.0, 20.0)),
    ("carry from level to level", inference, "_CARRY", (0.97, 0.8, 0.5)),
    ("border of strong and weak signal", inference, "SIGNAL", (4.0, 2.0, 8.0)),
]


def choices(keys: int, only: str) -> None:
    """The geometric mean over synthetic maps and sizes of the error's ratio, for other values of constants."""
    truths = {kind: synthetic_map(kind) for kind in KINDS}
    cohorts = {
        (kind, users, key): draw_cohort(truth, users, key)
        for kind, truth in truths.items()
        for users in _SIZES
        for key in range(keys)
    }
    columns = [f"{kind}, {users // 1000}k" for kind in KINDS for users in _SIZES]
    rows = [["constant", "value", *columns, "geometric mean"]]
    for number, (name, module, attribute, values) in enumerate(one for one in _CONSTANTS if only in one[0]):
        for value in values[min(number, 1) :]:  # the chosen values are one row
            with ExitStack() as stack:
                for place in {module, inference, next_tree} if attribute == "SIGNAL" else {module}:
                    stack.enter_context(patch.object(place, attribute, value))
                method = Adaptive(blur_weight=value) if attribute == "_BLUR_WEIGHT" else Adaptive()
                errors = [
                    np.mean([evaluate(truths[kind], *cohorts[kind, users, key], key, method)[0] for key in range(keys)])
                    for kind in KINDS
                    for users in _SIZES
                ]
            rows.append([name, f"{value:g}", *(f"{error:.3f}" for error in errors)])
            rows[-1].append(f"{np.exp(np.mean(np.log(errors))):.4f}")
            print(rows[-1], file=sys.stderr)
    print(markdown_table(rows))


def evaluate(truth: NDArray[np.int64], rows: Rows, yardstick: float, key: int, method: Method) -> tuple[float, float]:
    """Runs a method on a cohort in memory.

    Returns:
        The mean squared error of its density over the best level's, and the entries that a client sends on average.
    """
    state, estimate = release(truth, rows, key, method)
    shards = state.shard_plan.shards
    entries = sum(len(one.counts) * one.shards / shards for one in state.results)
    return mean_squared_error(estimate_density(estimate), truth / truth.sum()) / yardstick, entries


def release(
    truth: NDArray[np.int64], rows: Rows, key: int, method: Method, prior: Estimate | None = None
) -> tuple[CountState, Estimate]:
    """The final state and the map of a run on a cohort in memory, which may start from an earlier map."""
    depth = rows.places.depth
    parameters = CountParameters(depth=depth, users=len(rows.users), method=method)
    run_key = RunKey.derive(seed_secret(key), {"benchmark": "accuracy"})
    state = run_in_memory(rows, int(truth.sum()), parameters, run_key, prior)
    return state, method.decode(state, depth)


def two_releases(names: list[str], keys: int) -> None:
    """The error of a release, of one that starts from a release of other users, and of the mean of both of these."""
    data, method = Path(os.environ["SFUMATO_DATA"]), Adaptive()
    header = [f"{truth}: {one}" for truth in ("population", "own users") for one in ("alone", "warm start", "mean")]
    rows = [["map", "users", *header]]
    for name, users in itertools.product(names, _SIZES):
        truth, errors = counts_of(MAPS[name], data), []
        for key in range(keys):
            (first, _), (second, yardstick) = (draw_cohort(truth, users, one) for one in (keys + key, key))
            before = release(truth, first, keys + key, method)[1]
            maps = [estimate_density(release(truth, second, key, method, one)[1]) for one in (None, before)]
            maps.append((maps[1] + estimate_density(before)) / 2)
            for exact in (truth, by_row(second.histogram())):
                errors += [mean_squared_error(one, exact / exact.sum()) / yardstick for one in maps]
        rows.append([name, f"{users:,}", *(f"{one:.3f}" for one in np.reshape(errors, (keys, -1)).mean(axis=0))])
        print(rows[-1], file=sys.stderr)
    print(markdown_table(rows))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--maps", default=",".join(maps_at_hand()))
    parser.add_argument("--keys", type=int, default=10)
    parser.add_argument("--two_releases", action="store_true", help="a warm start, and the mean of two releases")
    parser.add_argument("--choices", action="store_true", help="other values of the constants, on synthetic maps")
    parser.add_argument("--only", default="", help="with --choices: constants with this in their name")
    options = parser.parse_args()
    if options.choices:
        choices(options.keys, options.only)
    elif options.two_releases:
        two_releases(options.maps.split(","), options.keys)
    else:
        real_maps(options.maps.split(","), options.keys)


if __name__ == "__main__":
    main()
