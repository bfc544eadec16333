import numpy as np
import pytest

from sfumato.schemas.errors import RequestError
from sfumato.transforms.privacy.mechanism import discrete_laplace_stddev
from sfumato.transforms.ranges.methods import dawa
from sfumato.transforms.ranges.methods.dawa import Dawa, cheapest_partition, hilbert_index
from tests.transforms.ranges.methods.common import (
    assert_a_partition_by_key,
    assert_discrete_laplace,
    collected,
    noise,
)
from tests.transforms.ranges.oracle import (
    assert_covers_once,
    exact_users,
    people_at,
    rectangles,
    run_key,
    town,
)

PEOPLE = town(6, 4000)
LARGEST = 40.0  # three quarters of it are the largest that noise can keep


@pytest.mark.parametrize("epsilon", [0.05, 1.0, 5.0])
def test_parts_cover_the_field_once_by_key(epsilon: float) -> None:
    assert_a_partition_by_key(Dawa(), PEOPLE, epsilon)


def test_users_are_exact_at_the_largest_epsilon() -> None:
    found = collected(Dawa(), PEOPLE, LARGEST)
    np.testing.assert_array_equal(found.users, exact_users(found, PEOPLE))
    assert 100 < len(found.users) < 4096


def test_buckets_are_counted_with_the_rest_of_epsilon() -> None:
    added, stated = noise(Dawa(dawa_share=0.4), PEOPLE, 1.0, 20)
    assert_discrete_laplace(added, 0.6, wrong=1.0)
    np.testing.assert_allclose(stated, discrete_laplace_stddev(0.6) ** 2)


@pytest.mark.parametrize("share", [0.25, 0.5])
def test_the_partition_is_that_of_its_share_on_the_curve(share: float) -> None:
    counts = np.zeros(4096, dtype=np.int64)
    x, y = PEOPLE.xy
    for cell, users in zip(hilbert_index(x, y, 6).tolist(), PEOPLE.users.tolist(), strict=True):
        counts[cell] += users
    starts, levels = cheapest_partition(counts, share * 0.5, 1 / ((1 - share) * 0.5), run_key(1))
    found = collected(Dawa(share), PEOPLE, 0.5)
    areas = [(x1 - x0) * (y1 - y0) for x0, y0, x1, y1 in rectangles(found)]
    assert areas == (1 << levels).tolist()
    row, column = np.indices((64, 64)).reshape(2, -1)
    index = hilbert_index(column, row, 6).reshape(64, 64)
    for (x0, y0, x1, y1), start, area in zip(rectangles(found), starts.tolist(), areas, strict=True):
        assert index[y0:y1, x0:x1].min() == start
        assert index[y0:y1, x0:x1].max() == start + area - 1


def test_a_finer_field_is_counted_by_the_cells_of_the_curve(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dawa, "_DEPTH", 3)
    found = collected(Dawa(), PEOPLE, LARGEST)
    assert_covers_once(found)
    np.testing.assert_array_equal(found.users, exact_users(found, PEOPLE))
    assert all(edge % 8 == 0 for rectangle in rectangles(found) for edge in rectangle)


def test_a_whole_city_takes_seconds() -> None:
    found = collected(Dawa(), town(12, 20_000), 0.2)
    assert found.side == 4096
    assert ((found.x1 - found.x0) * (found.y1 - found.y0)).sum() == 4096**2


def test_nobody() -> None:
    assert_a_partition_by_key(Dawa(), people_at(6, [], []), 1.0)


@pytest.mark.parametrize("share", [0.0, 1.0, -1.0, float("nan")])
def test_shares_out_of_range_are_refused(share: float) -> None:
    with pytest.raises(RequestError, match="dawa_share"):
        Dawa(share)
