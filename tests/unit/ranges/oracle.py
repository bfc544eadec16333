"""Slow, plain counterparts of what the ranges' code does with arrays."""

from __future__ import annotations

import numpy as np
from numpy.random import Generator

from sfumato.schemas.ranges import Boxes, Field, Sizes
from sfumato.schemas.region import Grid, Region, interleave
from sfumato.transforms.privacy.admission import ChargeAndAdmit, NoisyUserCounts, UserCounts
from sfumato.transforms.privacy.keys import FixedSecret, RunKey
from sfumato.transforms.ranges.field_counts import CollectionSpec, ExactCounts
from sfumato.transforms.ranges.plan import RangesPlan
from tests.seeds import seeded_rng


def run_key(number: int) -> RunKey:
    return RunKey.derive(FixedSecret(b"ranges" * 6), {"number": number})


def admission_of(people: ExactCounts, plan: RangesPlan, key: RunKey) -> NoisyUserCounts:
    """What a job has counted where all rows are usable."""
    return ChargeAndAdmit(plan.count_parameters.admission())(UserCounts(int(people.users.sum())), key)


def people_at(depth: int, x: np.ndarray, y: np.ndarray) -> ExactCounts:
    return ExactCounts.from_codes(depth, interleave(np.asarray(x, dtype=np.uint32), np.asarray(y, dtype=np.uint32)))


def town(depth: int, users: int, seed: int = 3) -> ExactCounts:
    """Half of the users in a small lump, the others anywhere."""
    generator, side = seeded_rng(seed), 1 << depth
    lump = generator.normal(side / 3, side / 12, (users // 2, 2)).astype(int)
    anywhere = generator.integers(0, side, (users - users // 2, 2))
    return people_at(depth, *np.clip(np.concatenate([lump, anywhere]), 0, side - 1).T)


def image(people: ExactCounts) -> np.ndarray:
    """Users by row and column of base cells, one user group at a time."""
    found = np.zeros((people.side, people.side), dtype=np.int64)
    for code, users in zip(people.codes.tolist(), people.users.tolist(), strict=True):
        x = sum((code >> (2 * bit + 1) & 1) << bit for bit in range(people.depth))
        y = sum((code >> (2 * bit) & 1) << bit for bit in range(people.depth))
        found[y, x] += users
    return found


def spec_of(depth: int, users: float, epsilon: float) -> CollectionSpec:
    return CollectionSpec(Field(Grid(Region(-1, -1, 1, 1), depth)), users, epsilon, Sizes(1.0, 2.0))


def random_boxes(generator: Generator, side: int, boxes: int) -> Boxes:
    """Some reach beyond the field, some lie outside, some have no area."""
    x, y = generator.uniform(-2, side + 2, (2, 2, boxes))
    x.sort(axis=0)
    y.sort(axis=0)
    x[1, 0] = x[0, 0]
    return Boxes(x[0], y[0], x[1], y[1])


def overlap(low: float, high: float, first: float, last: float) -> float:
    return max(0.0, min(high, last) - max(low, first))
