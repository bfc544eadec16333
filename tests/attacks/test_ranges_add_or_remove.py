"""Attacks 2 and 3, for `sfumato ranges build`: what one user more in the logs changes, under the same key.

Adjacency is add or remove one user. Under one key the noise is the same, so two runs on logs that differ in one user
show all that the user changes: the count of the one part that holds them, by 1, before noise that the charge pays for.
How many parts there are, where they lie and what is planned follow from noisy values.
"""

from __future__ import annotations

import numpy as np
import pytest

from sfumato.transforms.privacy.admission import NoisyUserCounts
from sfumato.transforms.privacy.keys import FixedSecret, RunKey
from sfumato.transforms.privacy.mechanism import discrete_laplace_stddev
from sfumato.transforms.ranges.field_counts import ExactCounts, NoisyGrid
from sfumato.transforms.ranges.plan import collect
from tests.seeds import seeded_rng
from tests.unit.ranges.test_plan import plan

KEY = RunKey.derive(FixedSecret(b"add or remove one user"), {"job": "ranges"})
ADMISSION = NoisyUserCounts(
    300.0, 0.0, 2.0**-7, discrete_laplace_stddev(2.0**-7)
)  # noisy, so that it may be the same for both


def neighbours(seed: int, users: int = 300) -> tuple[ExactCounts, ExactCounts, int]:
    """People, the same with one user more, and that user's cell."""
    codes = seeded_rng(seed).integers(0, 4**12, users + 1).astype(np.uint64)
    return ExactCounts.from_codes(12, codes[:-1]), ExactCounts.from_codes(12, codes), int(codes[-1])


@pytest.mark.parametrize("seed", range(2))
def test_a_user_changes_one_count_of_a_grid_by_one(seed: int) -> None:
    planned = plan("grid", epsilon=0.5)
    without, with_them, code = neighbours(seed)
    one, other = (collect(people, ADMISSION, planned, KEY).counts for people in (without, with_them))
    assert isinstance(one, NoisyGrid)
    assert isinstance(other, NoisyGrid)
    np.testing.assert_array_equal(one.x_edges, other.x_edges)
    np.testing.assert_array_equal(one.y_edges, other.y_edges)
    held = ExactCounts.from_codes(12, np.array([code], np.uint64)).on_grid(one.x_edges, one.y_edges)
    np.testing.assert_array_equal(other.users - one.users, held)
    assert one.noise_stddev == other.noise_stddev


@pytest.mark.parametrize("method", ["grid", "auto"])
def test_no_plan_looks_at_the_exact_number_of_users(method: str) -> None:
    """With the same noisy number of users, 300 people and nobody are planned for alike."""
    planned = plan(method, epsilon=1.0)
    found = [
        collect(people, ADMISSION, planned, KEY)
        for people in (neighbours(0)[0], ExactCounts.from_codes(12, np.empty(0, np.uint64)))
    ]
    assert found[0].spec == found[1].spec
    assert found[0].population == found[1].population
    assert found[0].counts.users.shape == found[1].counts.users.shape
