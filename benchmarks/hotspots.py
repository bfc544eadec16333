"""Hot spots of the SF cabs: how many of the truly most visited cells `sfumato hotspots` finds.

    SFUMATO_DATA=... python -m benchmarks.hotspots [--keys 10] [--depth 8] [--top 50]

The job's own stages are called one after the other, without a runner. Every trip is a user of its own, as the set has
no riders. Precision is 1 where every published cell was visited; recall is over the true top cells.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

from sfumato.schemas.locations import LocationColumns
from sfumato.schemas.region import Grid, Region
from sfumato.transforms.histogram.item_encoding import CellItems
from sfumato.transforms.histogram.plan import SamplePlan
from sfumato.transforms.histogram.sampling_round import NumberPrefixes, grow_trie, spread_levels
from sfumato.transforms.histogram.user_sample import Sampler, count_rounds, threshold
from sfumato.transforms.privacy.keys import FixedSecret, RunKey

# Every trip of the set starts in here.
REGION = Region(-122.51, 37.70, -122.35, 37.82)


def run(path: Path, plan: SamplePlan, depth: int, top: int, number: int) -> dict[str, float]:
    """One key: precision; recall among the published cells, and among the `top` most frequent of them."""
    batch = pq.read_table(path).combine_chunks().to_batches()[0]
    items, prefixes = CellItems(LocationColumns(), Grid(REGION, depth)), NumberPrefixes(4, depth)
    levels = spread_levels(depth, plan.rounds)
    key = RunKey.derive(FixedSecret(b"hot spots benchmark"), {"number": number})
    sampler = Sampler(key, plan.sampling, plan.rounds)
    sample = items.encode(batch, key, sampler.drawn_in_any_round).sample
    counts = count_rounds(sample, sampler, prefixes, levels)
    shown = [threshold(one, plan.sampling, level) for one, level in zip(counts, levels, strict=True)]
    last = grow_trie(shown, prefixes).levels[-1]
    everybody = items.encode(batch, key, lambda users: np.ones(len(users), bool)).sample
    visited, visits = np.unique(everybody.items, return_counts=True)
    best = visited[np.argsort(-visits, kind="stable")[:top]]
    ours = last.items[np.argsort(-last.sampled, kind="stable")[:top]]
    return {
        "published": len(last),
        "precision": float(np.isin(last.items, visited).mean()) if len(last) else 1.0,
        "recall": float(np.isin(best, last.items).mean()),
        "recall in top": float(np.isin(best, ours).mean()),
    }


def rows(path: Path, depth: int, top: int, keys: int) -> Iterator[str]:
    """Lines of a Markdown table."""
    yield "| epsilon | levels | sampling rate | threshold | cells published | precision | recall | recall in top |"
    yield "|---|---|---|---|---|---|---|---|"
    for epsilon in (0.1, 0.5, 1.0):
        for rounds in (1, 3, depth):
            plan = SamplePlan(epsilon=epsilon, rounds=rounds, items=4**depth)
            runs = [run(path, plan, depth, top, number) for number in range(keys)]
            mean = {name: np.mean([one[name] for one in runs]) for name in runs[0]}
            yield (
                f"| {epsilon:g} | {rounds} | {plan.sampling.rate:.3f} | {plan.sampling.threshold} "
                f"| {mean['published']:.0f} | {mean['precision']:.2f} | {mean['recall']:.3f} "
                f"| {mean['recall in top']:.3f} |"
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keys", type=int, default=10)
    parser.add_argument("--depth", type=int, default=8)
    parser.add_argument("--top", type=int, default=50)
    options = parser.parse_args()
    path = Path(os.environ["SFUMATO_DATA"]) / "sf_cabs_starts.parquet"
    print(f"SF cabs, depth {options.depth}, true top {options.top}, delta 1e-8, mean of {options.keys} keys\n")
    for line in rows(path, options.depth, options.top, options.keys):
        print(line, flush=True)


if __name__ == "__main__":
    main()
