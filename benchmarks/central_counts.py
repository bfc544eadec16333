"""Counts with a trusted curator beside sample and threshold: hot spots of the SF cabs, and Tokyo check-ins.

    SFUMATO_DATA=... python -m benchmarks.central_counts [--keys 20]

The jobs' own stages are called one after the other, without a runner. In the set of cabs every trip is a user of its
own. Recall is over the true top cells, found among the published ones or among as many of the most frequent of them.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.hotspots import REGION
from sfumato.schemas.items import ItemColumns
from sfumato.schemas.locations import LocationColumns
from sfumato.schemas.region import Grid, Region
from sfumato.transforms.histogram.bounded_items import Everybody, ItemBound, choose_items, count_items
from sfumato.transforms.histogram.central_plan import CentralPlan
from sfumato.transforms.histogram.count_noise import choose_noise
from sfumato.transforms.histogram.item_encoding import CellItems, ColumnItems, Items
from sfumato.transforms.histogram.noisy_histogram import noisy_levels
from sfumato.transforms.histogram.sampling_plan import SamplePlan
from sfumato.transforms.histogram.trie import NumberPrefixes, spread_levels
from sfumato.transforms.histogram.user_sample import Sample, Sampler, count_rounds, threshold
from sfumato.transforms.privacy.keys import FixedSecret, RunKey
from sfumato.transforms.text_tables import markdown_table

DELTA = 1e-8
TOKYO = Region(139.47, 35.51, 139.91, 35.87)
TOKYO_DELTA = 1e-5
Row = dict[str, float]


def key_of(number: int) -> RunKey:
    return RunKey.derive(FixedSecret(b"central counts benchmark"), {"number": number})


def encode(items: Items, batch: pa.RecordBatch, key: RunKey) -> Sample:
    """All records of everybody."""
    return items.encode(batch, key, Everybody(key).drawn_in_any_round).sample


def quality(found: np.ndarray, counts: np.ndarray, exact: dict[int, int], top: int, scale: float = 1) -> Row:
    """Of published items and their estimates: recall of the true top, and the error of what is published."""
    best = sorted(exact, key=lambda item: (-exact[item], item))[:top]
    ours = found[np.argsort(-counts, kind="stable")[:top]]
    errors = counts * scale - np.array([exact.get(item, 0) for item in found.tolist()])
    return {
        "published": len(found),
        f"recall of the top {top}": float(np.isin(best, found).mean()),
        "recall within as many": float(np.isin(best, ours).mean()),
        "mean absolute error": float(np.abs(errors).mean()) if len(found) else float("nan"),
    }


def cabs(folder: Path, keys: int) -> Iterator[list[str]]:
    batch = pq.read_table(folder / "sf_cabs_starts.parquet").combine_chunks().to_batches()[0]
    depth, top = 8, 50
    items, prefixes = CellItems(LocationColumns(), Grid(REGION, depth)), NumberPrefixes(4, depth)
    key = key_of(0)
    truth = count_items(encode(items, batch, key), ItemBound(), key, prefixes, (depth,))[0]
    exact = dict(zip(truth.items.tolist(), truth.counts.tolist(), strict=True))
    for epsilon in (0.1, 0.5, 1.0):
        for levels in (1, 2, 3):
            plan = CentralPlan(epsilon=epsilon, delta=DELTA, domains=tuple(4**one for one in spread_levels(depth, levels)))
            for noise in ("laplace", "truncated", "gaussian", "auto") if levels == 1 else ("auto",):
                chosen = CentralPlan(epsilon=epsilon, delta=DELTA, domains=plan.domains, noise=noise)
                rows = []
                for number in range(keys):
                    rounds = [truth]
                    last = noisy_levels(rounds, _last(chosen), key_of(number), (depth,)).levels[-1]
                    rows.append(quality(last.items, last.counts, exact, top))
                law = chosen.noises[-1]
                yield _line(f"central, {law.kind}{' (auto)' if noise == 'auto' else ''}", epsilon, levels, rows, law.threshold, law.hidden_count())
        for levels in (1, 3):
            sample_plan = SamplePlan(epsilon=epsilon, delta=DELTA, rounds=levels, items=4**depth)
            rows = []
            for number in range(keys):
                sampler = Sampler(key_of(number), sample_plan.sampling, levels)
                sample = items.encode(batch, sampler.key, sampler.drawn_in_any_round).sample
                counts = count_rounds(sample, sampler, prefixes, spread_levels(depth, levels))
                shown = threshold(counts[-1], sample_plan.sampling, depth)
                rows.append(quality(shown.items, shown.counts, exact, top))
            tau = sample_plan.sampling.threshold
            yield _line("sample and threshold", epsilon, levels, rows, tau, sample_plan.hidden_count())


def _last(plan: CentralPlan) -> CentralPlan:
    """A plan of its last round alone, with that round's noise."""
    only = CentralPlan(domains=plan.domains[-1:])
    only.__dict__["noises"] = plan.noises[-1:]
    return only


def _line(name: str, epsilon: float, levels: int, rows: list[Row], least: int | None, hidden: int) -> list[str]:
    mean = {one: float(np.mean([row[one] for row in rows])) for one in rows[0]}
    recalls = [f"{mean[one]:.3f}" for one in mean if one.startswith("recall")]
    error = f"{mean['mean absolute error']:.3g}"
    return [f"{epsilon:g}", name, str(levels), str(least), str(hidden), f"{mean['published']:,.0f}", *recalls, error]
