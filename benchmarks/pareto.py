"""Error against the vector entries a client sends, for every method, and where a flat query sends fewer.

    SFUMATO_DATA=... python -m benchmarks.pareto [--keys 5] [--users 1000,...] [--schedule lean]
                                                 [--picture docs/images/pareto.png]

The table compares the default with flat queries that have its estimator, on the four maps and on the seven synthetic
kinds. *Fewest* is the flat query of fewest entries whose error is at most 1% above the default's. The default misses
where it sends more entries. With --picture, all methods on the four maps are drawn instead. All runs are in memory, at
epsilon 1, with shards of 10,000.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, StrMethodFormatter
from numpy.typing import NDArray

from benchmarks.accuracy import evaluate
from benchmarks.baselines.heatmap_methods import AdaptiveGrid, CountMin, Hierarchical, SpatialDecomposition
from benchmarks.comparison import MAPS, counts_of, draw_cohort
from benchmarks.synthetic_maps import KINDS, synthetic_map
from sfumato.transforms.counting.methods import Adaptive
from sfumato.transforms.counting.methods.base import Flat, Method
from sfumato.transforms.observability.text_tables import markdown_table

# As the table calls the maps of the comparisons.
_MAPS = {"manhattan": "manhattan_like", "cabs": "sf_cabs", "gowalla": "gowalla_world", "beijing": "beijing_taxi"}
_MAX_LEVEL = 9  # of flat queries: 262,144 entries
_SAME = 1.01  # errors within 1% count as equal
# A name, the methods on one line of the picture, and its color and marker.
_LINES: list[tuple[str, Sequence[Method], str, str]] = [
    ("default", [Adaptive()], "tab:red", "*"),
    ("lean", [Adaptive(schedule="lean")], "tab:orange", "D"),
    ("paper 000, last result", [Adaptive(schedule="paper", estimator="last")], "black", "s"),
    ("paper's sub-queries, bayes", [Adaptive(schedule="paper")], "tab:gray", "s"),
    ("flat, levels 3 to 9, bayes", [Flat(level=level, estimator="bayes") for level in range(3, 10)], "tab:blue", "o"),
    ("flat, levels 3 to 9, last", [Flat(level=level) for level in range(3, 10)], "tab:cyan", "o"),
    ("hierarchical", [Hierarchical()], "tab:green", "^"),
    ("count-min", [CountMin()], "tab:olive", "v"),
    ("adaptive grid", [AdaptiveGrid()], "tab:purple", "P"),
    ("spatial decomposition", [SpatialDecomposition()], "tab:brown", "X"),
]


def truth_of(name: str) -> NDArray[np.int64]:
    """Users of a map by cell, int64[side, side], row 0 in the north."""
    if name in KINDS:
        return synthetic_map(name)
    return counts_of(MAPS[_MAPS[name]], Path(os.environ["SFUMATO_DATA"]))


def mean_of(truth: NDArray[np.int64], users: int, method: Method, keys: int) -> tuple[float, float]:
    """The mean error over the best level's, and the mean number of entries."""
    found = [evaluate(truth, *draw_cohort(truth, users, key), key, method) for key in range(keys)]
    error, entries = np.mean(found, axis=0)
    return float(error), float(entries)


def table(schedule: str, sizes: list[int], keys: int) -> None:
    """Prints the adaptive method beside the flat queries for every map and number of users."""
    tree = Adaptive(schedule=schedule)
    rows = [
        [
            "map",
            "users",
            f"{'default' if schedule == 'auto' else schedule} (entries)",
            "best flat (entries)",
            "fewest at equal error (entries)",
            "",
        ]
    ]
    misses = 0
    for name in (*_MAPS, *KINDS):
        truth = truth_of(name)
        for users in (one for one in sizes if one <= truth.sum()):
            error, entries = mean_of(truth, users, tree, keys)
            flat = {
                4**level: mean_of(truth, users, Flat(level=level, estimator="bayes"), keys)[0]
                for level in range(2, min(len(truth).bit_length() - 1, _MAX_LEVEL) + 1)
            }
            best = min(flat, key=lambda sent: flat[sent])
            equal = [sent for sent, one in flat.items() if one <= _SAME * error]
            missed = bool(equal) and entries > min(equal)
            misses += missed
            fewest = f"{flat[min(equal)]:.3f} ({min(equal):,})" if equal else "none"
            cells = [f"{error:.3f} ({entries:,.0f})", f"{flat[best]:.3f} ({best:,})", fewest, "miss" * missed]
            rows.append([name, f"{users:,}", *cells])
            print(rows[-1], file=sys.stderr)
    print(markdown_table(rows))
    print(f"\n{misses} misses in {len(rows) - 1} cases.")


def picture(path: Path, sizes: list[int], keys: int) -> None:
    """Draws error against entries on the four maps, all methods, and a row of pictures for each number of users."""
    figure = Figure(figsize=(15, 1.2 + 3.6 * len(sizes)), layout="constrained")
    FigureCanvasAgg(figure)
    for column, name in enumerate(_MAPS):
        truth = truth_of(name)
        for row, users in enumerate(sizes):
            axes = figure.add_subplot(len(sizes), 4, 4 * row + column + 1)
            for label, methods, color, marker in _LINES:
                deep = [one for one in methods if not isinstance(one, Flat) or 4 ** (one.level or 0) <= truth.size]
                points = np.array([mean_of(truth, users, method, keys) for method in deep])
                size = 14 if marker == "*" else 6
                axes.plot(points[:, 1], points[:, 0], marker + "-", color=color, label=label, markersize=size)
                print(name, users, label, np.round(points, 3).tolist(), file=sys.stderr)
            axes.set(xscale="log", yscale="log", title=f"{name}, {users:,} users")
            axes.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
            low, high = axes.get_ylim()
            if high > 10 * low:  # otherwise labels overlap
                axes.yaxis.set_minor_locator(LogLocator(subs=(2, 5)))
            axes.yaxis.set_minor_formatter(StrMethodFormatter("{x:g}"))
            axes.grid(alpha=0.3)
            if row + 1 == len(sizes):
                axes.set_xlabel("entries that a client sends")
            if not column:
                axes.set_ylabel("MSE / that of the best level")
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=5)
    figure.savefig(path, dpi=90)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keys", type=int, default=5)
    parser.add_argument("--users", default="1000,10000,100000,1000000")
    parser.add_argument("--schedule", default="auto", choices=("auto", "lean"), help="of the table")
    parser.add_argument("--picture", type=Path, help="draw all methods to this file instead of the table")
    options = parser.parse_args()
    os.environ["SFUMATO_DATA"]  # fail before anything is computed
    sizes = [int(one) for one in options.users.split(",")]
    if options.picture:
        picture(options.picture, sizes, options.keys)
    else:
        table(options.schedule, sizes, options.keys)


if __name__ == "__main__":
    main()
