"""What every method that collects a Partition is held to."""

from __future__ import annotations

import numpy as np

from benchmarks.baselines.range_methods.partitions import Partition
from sfumato.transforms.ranges.field_counts import ExactCounts
from sfumato.transforms.ranges.methods import RangeMethod
from tests.unit.ranges.oracle import image, run_key, spec_of


def rectangles(partition: Partition) -> list[tuple[int, int, int, int]]:
    return list(zip(*(getattr(partition, name).tolist() for name in ("x0", "y0", "x1", "y1")), strict=True))


def exact_users(partition: Partition, people: ExactCounts) -> np.ndarray:
    found = image(people)
    return np.array([found[y0:y1, x0:x1].sum() for x0, y0, x1, y1 in rectangles(partition)])


def assert_covers_once(partition: Partition) -> None:
    painted = np.zeros((partition.side, partition.side), dtype=int)
    for x0, y0, x1, y1 in rectangles(partition):
        assert 0 <= x0 < x1 <= partition.side
        assert 0 <= y0 < y1 <= partition.side
        painted[y0:y1, x0:x1] += 1
    assert (painted == 1).all()


def collected(method: RangeMethod, people: ExactCounts, epsilon: float, key: int = 1) -> Partition:
    found = method.collect(people, spec_of(people.depth, float(people.users.sum()), epsilon), run_key(key))
    assert isinstance(found, Partition)
    return found


def assert_same(one: Partition, other: Partition) -> None:
    for name in ("x0", "y0", "x1", "y1", "users", "variance"):
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name))


def assert_a_partition_by_key(method: RangeMethod, people: ExactCounts, epsilon: float) -> None:
    one = collected(method, people, epsilon)
    assert_covers_once(one)
    assert_same(one, collected(method, people, epsilon))
    other = collected(method, people, epsilon, key=2)
    assert_covers_once(other)
    assert len(other.users) != len(one.users) or (other.users != one.users).any()


def noise(method: RangeMethod, people: ExactCounts, epsilon: float, keys: int) -> tuple[np.ndarray, np.ndarray]:
    """What was added to the users of the parts, over many keys, and the variances stated for it."""
    added, stated = [], []
    for key in range(keys):
        found = collected(method, people, epsilon, key)
        added.append(found.users - exact_users(found, people))
        stated.append(found.variance)
    return np.concatenate(added), np.concatenate(stated)
