"""What every method is held to."""

from __future__ import annotations

import numpy as np

from sfumato.transforms.ranges.exact_counts import ExactCounts
from sfumato.transforms.ranges.methods.range_method import RangeMethod
from sfumato.transforms.ranges.noisy_counts import Partition
from tests.statistics import FLAKE_RATE, chi_square_p, discrete_laplace_pmf
from tests.transforms.ranges.oracle import assert_covers_once, exact_users, run_key, spec_of


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


def assert_discrete_laplace(added: np.ndarray, epsilon: float, wrong: float) -> None:
    """The noise is that of epsilon, and the test can tell it from that of a wrong epsilon."""
    sample = added.astype(np.int64)
    np.testing.assert_array_equal(sample, added)
    reach = round(30 / min(epsilon, wrong))
    assert chi_square_p(sample, discrete_laplace_pmf(epsilon, reach)) > FLAKE_RATE
    assert chi_square_p(sample, discrete_laplace_pmf(wrong, reach)) < FLAKE_RATE
