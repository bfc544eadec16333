"""Changes between two nights: how often a found change is wrong, and how many planted ones are found.

    python -m benchmarks.changes [--pairs 200] [--quick]

Two nights of the synthetic city are drawn from one pool of locations, each user's location anew, so that without a
move nothing but noise and chance differs. Each night's map is made by the real state machine with a key of its own.

- No move: a pair is wrong if any node is found. The share of wrong pairs is the false discovery rate.
- A move: from each of some crowded nodes people move to another node, so many that the expected difference is four
  standard deviations, as stated for the noisier of the two nodes. A planted node is found if it, a node around it
  without the other end of the move, or a node within it is found with the right sign. A found node is false if equally
  many users are expected there on both nights. Power is the share of planted nodes found.

Peers on the same maps: Bonferroni, and Yekutieli's descent from the region's quarters, both at 5%. `--quick`: 20 pairs.
"""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import dataclass

import numpy as np

from benchmarks.city_people import make_people
from benchmarks.evaluation.in_memory import Rows, run_in_memory
from benchmarks.few_users import markdown
from sfumato.schemas.rectangle import PENUMBRA
from sfumato.schemas.region import Grid, Places
from sfumato.schemas.tree import node_levels
from sfumato.transforms.changes.map_changes import MapChanges, MapCounts, find_changes
from sfumato.transforms.counting.estimator import unbiased_counts
from sfumato.transforms.counting.state import Estimate
from sfumato.transforms.heatmap.request import heatmap_parameters
from sfumato.transforms.privacy.keys import FixedSecret, RunKey
from sfumato.transforms.secagg.encodings import TreeEncoding
from sfumato.transforms.synth.city import build_city

DEPTH, POOL, RATE = 10, 3_000_000, 0.05
KEY = RunKey.derive(FixedSecret(b"changes of maps"), {"benchmark": "changes"})


@dataclass(frozen=True, eq=False)
class Night:
    """A night's map."""

    counts: MapCounts
    estimate: Estimate


def night(codes: np.ndarray, name: str, trial: int, options: dict[str, object], prior: Estimate | None) -> Night:
    """The map of users at the finest cells `codes`, uint64[n]."""
    users = len(codes)
    parameters = heatmap_parameters("adaptive", {"depth": DEPTH, **options})
    places, rng = Places(DEPTH, 1), np.random.default_rng([trial, users, len(name)])
    hashes = np.sort(rng.integers(0, 1 << (64 - places.bits), users, dtype=np.uint64)) << np.uint64(places.bits)
    key = KEY.narrowed({"night": name, "trial": trial, **options})
    state = run_in_memory(Rows(places, hashes, codes), users, parameters, key, prior)
    estimate = parameters.method.decode(state, DEPTH)
    counts = unbiased_counts(estimate, state)
    encoding = state.results[-1].encoding
    assert isinstance(encoding, TreeEncoding)
    return Night(MapCounts(PENUMBRA, counts, encoding.tree, state.answered_tail_sums), estimate)


def nodes_of(codes: np.ndarray, level: int) -> np.ndarray:
    """The tree node of a level that holds each finest cell."""
    return (codes >> np.uint64(2 * (DEPTH - level))) | np.uint64(1 << (2 * level))


@dataclass(frozen=True, eq=False)
class Move:
    """So many expected users move from each node `origin` to a node `target` of the same level; uint64[k] each."""

    level: int
    origin: np.ndarray
    target: np.ndarray
    users: np.ndarray

    def apply(self, codes: np.ndarray, here: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """Codes after the move. here: expected users of each origin."""
        moved = codes.copy()
        nodes = nodes_of(codes, self.level)
        for origin, target, users, all_here in zip(self.origin, self.target, self.users, here, strict=True):
            rows = np.flatnonzero(nodes == origin)
            going = rows[rng.random(len(rows)) < users / all_here]
            inside = np.uint64(4 ** (DEPTH - self.level) - 1)
            first = (int(target) - (1 << (2 * self.level))) << (2 * (DEPTH - self.level))
            moved[going] = np.uint64(first) | (codes[going] & inside)
        return moved

    def expected(self, node: np.ndarray) -> np.ndarray:
        """The expected difference of users of each node, for nodes no finer than the moved ones; sign for finer."""
        level, found = node_levels(node), np.zeros(len(node))
        for origin, target, users in zip(self.origin, self.target, self.users, strict=True):
            for end, sign in ((origin, -1.0), (target, 1.0)):
                shift = 2 * (self.level - np.minimum(level, self.level)).astype(np.uint64)
                above = np.right_shift(np.uint64(end), shift)
                down = np.right_shift(node, 2 * (np.maximum(level, self.level) - self.level).astype(np.uint64))
                found += np.where(down == above, sign * users, 0.0)
        return found


def yekutieli(changes: MapChanges) -> np.ndarray:
    """Nodes found by a descent from the quarters: Benjamini-Hochberg in each family whose parent was found.

    The root is not tested, since its sum does not change. The level is that of Yekutieli's bound for a whole tree.
    """
    p = dict(zip(changes.node.tolist(), changes.p_value.tolist(), strict=True))
    found, families = set(), [[4, 5, 6, 7]]
    while families:
        family = [node for node in families.pop() if not np.isnan(p.get(node, np.nan))]
        ordered = sorted(family, key=p.__getitem__)
        passed = [i for i, node in enumerate(ordered) if p[node] <= RATE / 2 / 1.44 * (i + 1) / len(ordered)]
        for node in ordered[: passed[-1] + 1 if passed else 0]:
            found.add(node)
            families.append([4 * node + child for child in range(4)])
    return np.isin(changes.node, np.array(sorted(found), dtype=np.uint64))


def methods(changes: MapChanges) -> dict[str, np.ndarray]:
    """Found nodes, bool[n], by method."""
    p = np.nan_to_num(changes.p_value, nan=1.0)
    return {
        "changes": changes.changed,
        "shown alone": changes.shown,
        "Bonferroni": p <= RATE / max(changes.tested.sum(), 1),
        "descent from the quarters": yekutieli(changes),
    }


def is_found(changes: MapChanges, found: np.ndarray, move: Move, number: int) -> tuple[bool, bool]:
    """Whether origin and target of a move were found, by themselves, by a node within, or by one around."""
    level = node_levels(changes.node)
    ends = []
    for end, other, sign in (
        (move.origin[number], move.target[number], -1.0),
        (move.target[number], move.origin[number], 1.0),
    ):
        low = np.minimum(level, move.level)
        shift = 2 * (move.level - low).astype(np.uint64)
        down = np.right_shift(changes.node, 2 * (level - low).astype(np.uint64))
        related = (down == np.right_shift(np.uint64(end), shift)) & (down != np.right_shift(np.uint64(other), shift))
        ends.append(bool((found & related & (np.sign(changes.difference) == sign)).any()))
    return ends[0], ends[1]


def summary(users: int, options: dict[str, object], pairs: int, pool: np.ndarray, warm: bool, planted: int,
            planted_level: int, signal: float) -> list[list[str]]:  # fmt: skip
    """Rows of the table for one setting."""
    rng = np.random.default_rng(users)
    nodes, pooled = np.unique(nodes_of(pool, planted_level), return_counts=True)
    expected = pooled * (users / len(pool))
    spread = typical_stddev(users, options, pool, nodes) if planted else np.zeros(len(nodes))
    rates: dict[str, list[float]] = {}
    power: dict[str, list[float]] = {}
    covered, selected, tests = [], [], []
    for trial in range(pairs):
        move = Move(planted_level, *(np.zeros(0, np.uint64),) * 2, np.zeros(0))
        here = np.zeros(0)
        if planted:
            crowded = np.flatnonzero(np.isfinite(spread) & (expected > 1.5 * signal * spread))
            chosen = rng.choice(crowded, min(planted, len(crowded) // 2), replace=False)
            others = rng.choice(np.setdiff1d(np.flatnonzero(np.isfinite(spread)), chosen), len(chosen), replace=False)
            amount = signal * np.maximum(spread[chosen], spread[others])
            move, here = Move(planted_level, nodes[chosen], nodes[others], amount), expected[chosen]
        first = night(rng.choice(pool, users), "first", trial, options, None)
        after = move.apply(rng.choice(pool, users), here, rng)
        second = night(after, "second", trial, options, first.estimate if warm else None)
        changes = find_changes(first.counts, second.counts, RATE)
        truth = move.expected(changes.node)
        level = node_levels(changes.node)
        exact = level <= planted_level
        if exact.any():
            inside = (changes.low <= truth) & (truth <= changes.high)
            covered.append(inside[exact & changes.tested].mean())
            chosen_rows = exact & changes.changed
            if chosen_rows.any():
                selected.append(((changes.changed_low <= truth) & (truth <= changes.changed_high))[chosen_rows].mean())
        tests.append(changes.tested.sum())
        for name, found in methods(changes).items():
            false = found & ((truth == 0) | (np.sign(truth) != np.sign(changes.difference)))
            rates.setdefault(name, []).append(float(false.sum() / max(found.sum(), 1)))
            hits = [one for number in range(len(move.origin)) for one in is_found(changes, found, move, number)]
            power.setdefault(name, []).append(float(np.mean(hits)) if hits else np.nan)
    rows = []
    for name, values in rates.items():
        error = np.std(values) / np.sqrt(len(values))
        rows.append([
            f"{users:,}", "warm" if warm else "cold", ", ".join(f"{b}" for b in options.values()),
            f"{2 * planted}" if planted else "none", f"{signal:g}" if planted else "", name, f"{np.mean(tests):,.0f}",
            f"{100 * np.mean(values):.1f}% ± {196 * error:.1f}",
            f"{100 * np.mean(power[name]):.0f}%" if planted else "",
            f"{100 * np.mean(covered):.1f}%" if name == "changes" else "",
            f"{100 * np.mean(selected):.1f}%" if name == "changes" and selected else "",
        ])  # fmt: skip
    return rows


def typical_stddev(users: int, options: dict[str, object], pool: np.ndarray, nodes: np.ndarray) -> np.ndarray:
    """The standard deviation of a difference without a move, for each node; NaN where maps do not always know it."""
    found = []
    for trial in range(3):
        rng = np.random.default_rng([7, trial])
        maps = [night(rng.choice(pool, users), name, trial + 10**6, options, None) for name in ("a", "bb")]
        changes = find_changes(maps[0].counts, maps[1].counts, RATE)
        known = np.full(len(nodes), np.nan)
        place = np.minimum(np.searchsorted(changes.node, nodes), len(changes.node) - 1)
        there = (changes.node[place] == nodes) & changes.tested[place]
        known[there] = changes.stddev[place[there]]
        found.append(known)
    return np.asarray(np.mean(found, axis=0))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=200)
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    pairs = 20 if options.quick else options.pairs
    people = make_people(0, POOL, city=build_city())
    pool = Grid(PENUMBRA, DEPTH).codes(people["longitude"].to_numpy(), people["latitude"].to_numpy())
    settings = [
        (users, {"trust": trust}, warm, planted, 4 if users == 20_000 else 5, 4.0)
        for users, trust, warm, planted in (
            (20_000, "secagg", False, 0), (20_000, "secagg", False, 10), (20_000, "central", False, 0),
            (20_000, "central", False, 10), (100_000, "secagg", False, 0), (100_000, "secagg", True, 0),
            (100_000, "secagg", False, 2), (100_000, "secagg", False, 10), (100_000, "secagg", True, 10),
        )
    ]  # fmt: skip
    rows = []
    for users, given, warm, planted, level, signal in settings:
        started = time.monotonic()
        rows += summary(users, given, pairs, pool.astype(np.uint64), warm, planted, level, signal)
        print(rows[-4:], f"{time.monotonic() - started:.0f} s", file=sys.stderr)
    heads = ["users", "start", "trust", "changed nodes", "signal, std. dev.", "method", "tests",
             "false discovery rate", "power", "95% intervals cover", "intervals of found changes cover"]  # fmt: skip
    print(f"{pairs} pairs a row; false discovery rate aimed at: {100 * RATE:g}%\n")
    print(markdown(heads, rows))


if __name__ == "__main__":
    main()
