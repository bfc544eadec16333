"""Counts with a trusted curator beside sample and threshold: hot spots of the SF cabs, and Tokyo check-ins.

    SFUMATO_DATA=... python -m benchmarks.central_counts [--keys 20]

The jobs' own stages are called one after the other, without a runner. In the set of cabs every trip is a user of its
own; in Tokyo a user has several check-ins.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.hotspots import REGION
from sfumato.schemas.locations import ItemColumns, LocationColumns
from sfumato.schemas.region import Grid, Region
from sfumato.transforms.histogram.central_counts import (
    CentralCountPlan,
    NoisyHistogram,
    count_items,
    noisy_levels,
)
from sfumato.transforms.histogram.count_noise import ItemBound
from sfumato.transforms.histogram.item_encoding import CellItems, ColumnItems, Items
from sfumato.transforms.histogram.plan import SamplePlan
from sfumato.transforms.histogram.sampling_round import Histogram, NumberPrefixes, spread_levels
from sfumato.transforms.histogram.user_sample import Everybody, ItemCounts, Sampler, count_rounds, threshold
from sfumato.transforms.observability.text_tables import markdown_table
from sfumato.transforms.privacy.keys import FixedSecret, RunKey

UNBOUNDED = 1 << 30
TOKYO = Region(139.47, 35.51, 139.91, 35.87)
Published = Callable[[RunKey], Histogram | NoisyHistogram]


class Log:
    """A log whose items are counted."""

    def __init__(self, path: Path, items: Items, prefixes: NumberPrefixes | None = None):
        self.batch: pa.RecordBatch = pq.read_table(path).combine_chunks().to_batches()[0]
        self.items, self.prefixes = items, prefixes

    def curated(self, plan: CentralCountPlan, levels: Sequence[int], key: RunKey) -> NoisyHistogram:
        """The last level with a curator's noise."""
        return noisy_levels(self.counts(plan.bound, levels, key), plan, key, levels).levels[-1]

    def sampled(self, plan: SamplePlan, levels: Sequence[int], key: RunKey) -> Histogram:
        """The last level by sample and threshold."""
        sampler = Sampler(key, plan.sampling, plan.rounds)
        sample = self.items.encode(self.batch, key, sampler.drawn_in_any_round).sample
        return threshold(count_rounds(sample, sampler, self.prefixes, levels)[-1], plan.sampling, levels[-1])

    def counts(self, bound: ItemBound, levels: Sequence[int], key: RunKey) -> list[ItemCounts]:
        sample = self.items.encode(self.batch, key, Everybody(key).drawn_in_any_round).sample
        return count_items(sample, bound, key, self.prefixes, levels)


def names(counts: ItemCounts | Histogram | NoisyHistogram) -> list[str]:
    """What the items are called under any key."""
    return list(map(str, counts.items.tolist() if counts.texts is None else counts.texts))


def quality(published: Published, exact: dict[str, int], top: int, keys: int) -> list[str]:
    """Items published, recall of the true top, and the error of all items; means over keys."""
    best = sorted(exact, key=lambda name: (-exact[name], name))[:top]
    rows = []
    for number in range(keys):
        shown = published(RunKey.derive(FixedSecret(b"central counts benchmark"), {"number": number}))
        found = dict(zip(names(shown), shown.counts.tolist(), strict=True))
        ours = sorted(found, key=lambda name: -found[name])[:top]
        error = sum(abs(found.get(name, 0.0) - exact.get(name, 0)) for name in {*found, *exact}) / sum(exact.values())
        recall, within = (len(set(best) & set(some)) / top for some in (found, ours))
        rows.append((len(found), recall, within, 100 * error))
    count, recall, within, error = np.mean(rows, axis=0)
    return [f"{count:,.0f}", f"{recall:.3f}", f"{within:.3f}", f"{error:.1f}"]


def exact_of(log: Log, level: int, records: bool = False) -> dict[str, int]:
    """All users of every item, or all their records, without a bound."""
    key = RunKey.derive(FixedSecret(b"central counts benchmark"), {"exact": True})
    (counts,) = log.counts(ItemBound(UNBOUNDED, UNBOUNDED if records else 1), (level,), key)
    return dict(zip(names(counts), counts.counts.tolist(), strict=True))


def cabs(folder: Path, keys: int) -> Iterator[list[str]]:
    """Hot spots at depth 8, delta 1e-8."""
    depth, top, delta = 8, 50, 1e-8
    path, grid = folder / "sf_cabs_starts.parquet", Grid(REGION, depth)
    log = Log(path, CellItems(LocationColumns(), grid), NumberPrefixes(4, depth))
    exact = exact_of(log, depth)
    heads = ["epsilon", "mechanism", "levels", "threshold", "may be hidden", "cells published", f"recall of top {top}"]
    yield [*heads, "recall in its own top", "error, %"]
    for epsilon in (0.1, 0.5, 1.0):
        for rounds, noise in ((1, "laplace"), (1, "gaussian"), (1, "auto"), (2, "auto"), (3, "auto")):
            levels = spread_levels(depth, rounds)
            plan = CentralCountPlan(epsilon, delta, domains=tuple(4**level for level in levels), noise=noise)
            last = plan.noises[-1]
            limits = [str(last.threshold), str(last.hidden_count())]
            name = f"central, {last.kind}" + (" (auto)" if noise == "auto" else "")
            row = quality(lambda key, plan=plan, levels=levels: log.curated(plan, levels, key), exact, top, keys)
            yield [f"{epsilon:g}", name, str(rounds), *limits, *row]
        for rounds in (1, 3):
            levels = spread_levels(depth, rounds)
            sample = SamplePlan(epsilon, delta, items=4**depth, rounds=rounds)
            limits = [str(sample.sampling.threshold), str(sample.hidden_count())]
            row = quality(lambda key, plan=sample, levels=levels: log.sampled(plan, levels, key), exact, top, keys)
            yield [f"{epsilon:g}", "sample and threshold", str(rounds), *limits, *row]


def tokyo(folder: Path, keys: int) -> Iterator[list[str]]:
    """Check-ins by category and by cell, several items a user, delta 1e-5, epsilon 1."""
    top, delta, epsilon = 20, 1e-5, 1.0
    path = folder / "foursquare_tokyo_checkins.parquet"
    by_cell = {f"cell, depth {depth}": CellItems(LocationColumns(), Grid(TOKYO, depth)) for depth in (7, 9)}
    items: dict[str, Items] = {"category": ColumnItems(ItemColumns("venue_category")), **by_cell}
    heads = ["items", "of", "mechanism", "items a user", "records an item", "threshold", "may be hidden"]
    yield [*heads, "published", f"recall of top {top}", "recall in its own top", "error, %"]
    for name, source in items.items():
        log = Log(path, source)
        for unit, bounds in (
            ("users", [(1, 1), (2, 1), (3, 1), (5, 1), (10, 1)]),
            ("records", [(1, 1), (1, 3), (3, 3), (5, 3), (5, 10)]),
        ):
            exact = exact_of(log, 0, unit == "records")
            for bound in bounds:
                plan = CentralCountPlan(epsilon, delta, ItemBound(*bound))
                last = plan.noises[-1]
                limits = [*map(str, bound), str(last.threshold), str(last.hidden_count())]
                row = quality(lambda key, log=log, plan=plan: log.curated(plan, (0,), key), exact, top, keys)
                yield [name, unit, f"central, {last.kind} (auto)", *limits, *row]
            sample = SamplePlan(epsilon, delta)
            limits = ["1", "1", str(sample.sampling.threshold), str(sample.hidden_count())]
            row = quality(lambda key, log=log, plan=sample: log.sampled(plan, (0,), key), exact, top, keys)
            yield [name, unit, "sample and threshold", *limits, *row]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keys", type=int, default=20)
    options = parser.parse_args()
    folder = Path(os.environ["SFUMATO_DATA"])
    for table, title in ((cabs, "SF cabs, 217,438 users"), (tokyo, "Tokyo check-ins, 8,261 of 1,467 users")):
        print(f"{title}: {table.__doc__} Mean of {options.keys} keys.\n")
        print(markdown_table(list(table(folder, options.keys)), left=(0, 1, 2)), flush=True)


if __name__ == "__main__":
    main()
