"""Groups: who is in which, the noise on their tallies, and that it is enough for one client more or less."""

from __future__ import annotations

import datetime
import math
import pickle
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import shapely
from scipy import stats

from sfumato.schemas.moments import OTHER, FixedPoint
from sfumato.schemas.region import Grid, Region
from sfumato.transforms.geo.zone_file import Zones
from sfumato.transforms.moments.groups import CellGroups, ColumnGroups, Grouping, ZoneGroups
from sfumato.transforms.moments.local.plan import MomentsPlan
from sfumato.transforms.moments.local.tally import Tally, with_noise
from sfumato.transforms.privacy.keys import FixedSecret, RunKey
from sfumato.transforms.privacy.mechanism import discrete_laplace_stddev
from sfumato.transforms.statistics.shrinkage import simultaneous_z
from tests.seeds import seeded_rng
from tests.statistics import FLAKE_RATE, chi_square_p, discrete_laplace_pmf
from tests.unit.zones.polygons import brute_force, voronoi, zones_of

REGION = Region(-1.0, 50.0, 1.0, 51.0)
CITIES = ColumnGroups("city", ("Bath", "Cork", "Deal"))


def key(number: int = 0) -> RunKey:
    return RunKey.derive(FixedSecret(b"group tests!" * 3), {"number": number})


def noise(reports: int, epsilon: float = 1.0, number: int = 0, name: tuple[str, int] = ("value", 1)) -> np.ndarray:
    """What is added to 20,000 counts of ones, and to as many of zeros."""
    counted = Tally(*seeded_rng(0).integers(0, 10**6, (2, 2000, 10)))
    noisy = with_noise(counted, name, reports, epsilon, key(number))
    return np.stack([noisy.ones - counted.ones, noisy.zeros - counted.zeros])


@pytest.mark.false_alarm(2 * FLAKE_RATE)
@pytest.mark.parametrize(("reports", "epsilon"), [(1, 0.5), (5, 2.0)])
def test_noise_is_that_of_the_counts_that_one_user_adds_to(reports: int, epsilon: float) -> None:
    """A user of two reports adds 1 to two counts."""
    sample = noise(reports, epsilon).ravel()
    reach = math.ceil(60 * reports / epsilon)
    assert chi_square_p(sample, discrete_laplace_pmf(epsilon / reports, reach)) > FLAKE_RATE
    for wrong in {0.7, 1.3, 2.0, 0.5}:
        assert chi_square_p(sample, discrete_laplace_pmf(wrong * epsilon / reports, reach)) < FLAKE_RATE
    # A plan's tallies have what its admission leaves of its epsilon.
    plan = MomentsPlan(form=FixedPoint(6), release_epsilon=epsilon, bits_per_client=reports)
    assert plan.noise_stddev == discrete_laplace_stddev(0.99 * epsilon, reports)
    assert plan.tally_epsilon + plan.admission().cost == pytest.approx(epsilon, rel=1e-12)
    kurtosis = 6 + 1 / sample.var()  # below that of the discrete Laplace distribution
    stated = discrete_laplace_stddev(epsilon, reports)
    assert sample.var() / stated**2 == pytest.approx(1, abs=6.2 * math.sqrt(kurtosis / len(sample)))


@pytest.mark.false_alarm(7 * FLAKE_RATE)
def test_noise_is_drawn_once_for_every_count() -> None:
    """A second draw for the same count would average it out; the same for two counts would cancel in a difference."""
    once = noise(2)
    assert np.array_equal(once, noise(2))
    for other in (noise(2, name=("value", 2)), noise(2, name=("square", 1)), noise(2, number=1)):
        assert abs(np.corrcoef(once.ravel(), other.ravel())[0, 1]) < 6.2 / math.sqrt(once.size)
    ones, zeros = once
    pairs = [(ones, zeros), (ones[1:], ones[:-1]), (ones[:, 1:], ones[:, :-1]), (zeros[:, 1:], ones[:, :-1])]
    for left, right in pairs:
        assert abs(np.corrcoef(left.ravel(), right.ravel())[0, 1]) < 6.2 / math.sqrt(left.size)
    # A group's noise does not depend on how many other groups there are.
    few = Tally(np.zeros((3, 10), np.int64), np.zeros((3, 10), np.int64))
    assert np.array_equal(with_noise(few, ("value", 1), 2, 1.0, key()).ones, ones[:3])


@pytest.mark.parametrize(
    ("values", "names", "expected"),
    [
        (pa.array(["Cork", None, "Bath", "bath", ""]), ("Bath", "Cork"), [1, 2, 0, 2, 2]),
        (pa.array(["Cork", None, "Bath"], pa.string_view()), ("Bath", "Cork"), [1, 2, 0]),
        (pa.array(["Cork", None, "Bath", "X"]).dictionary_encode(), ("Bath", "Cork"), [1, 2, 0, 2]),
        (pa.array([3, -1, None, 30], pa.int16()), ("-1", "3"), [1, 0, 2, 2]),
        (pa.array([3, 3, None, 1], pa.int64()).dictionary_encode(), ("1", "3"), [1, 1, 2, 0]),
        (pa.array([True, False, None]), ("false", "true"), [1, 0, 2]),
        (pa.array([datetime.date(2026, 1, 2), None]), ("2026-01-02",), [0, 1]),
        (pa.array(["é", "e"]), ("é",), [0, 1]),
    ],
)
def test_rows_are_in_the_group_of_their_text_or_in_none(values: pa.Array, names: tuple, expected: list[int]) -> None:
    groups = ColumnGroups("g", names)
    found = groups.encode(pa.RecordBatch.from_pydict({"g": values}))
    assert found.tolist() == expected
    assert found.dtype == np.uint16
    assert (len(groups), tuple(groups.names())) == (len(names), names)


@pytest.mark.parametrize("encode", [lambda array: array, lambda array: array.dictionary_encode()])
def test_text_that_is_not_utf8_is_in_no_group(encode: Any) -> None:
    offsets = pa.py_buffer(np.array([0, 1, 3, 5], np.int32))
    broken = pa.StringArray.from_buffers(3, offsets, pa.py_buffer(b"a\xff\xfe\xc3\xa9"))
    found = ColumnGroups("g", ("a", "é")).encode(pa.RecordBatch.from_arrays([encode(broken)], ["g"]))
    assert found.tolist() == [0, 2, 1]


def test_cells_are_those_of_the_grid_and_the_rest_is_in_none() -> None:
    groups = CellGroups(Grid(REGION, 2))
    rng = seeded_rng(3)
    north, east = rng.uniform(49.8, 51.2, 500), rng.uniform(-1.3, 1.3, 500)
    north[0] = np.nan
    batch = pa.RecordBatch.from_pydict({"latitude": [*north, None, 51.0], "longitude": [*east, 0.0, 1.0]})
    expected = []
    for y, x in zip([*north, math.nan, 51.0], [*east, 0.0, 1.0], strict=True):
        if not (50 <= y <= 51 and -1 <= x <= 1):
            expected.append(16)
            continue
        column, row = min(int((x + 1) / 2 * 4), 3), min(int((y - 50) * 4), 3)
        expected.append(
            int(groups.grid.codes(np.array([-1 + (column + 0.5) / 2]), np.array([50 + (row + 0.5) / 4]))[0])
        )
    assert groups.encode(batch).tolist() == expected
    assert len(groups) == len(set(groups.names())) == 16


def test_zone_groups_are_those_that_hold_the_points() -> None:
    zones, rng = zones_of(voronoi(30, 1)[:-3]), seeded_rng(0)  # with gaps
    east, north = rng.uniform(2.95, 3.25, 4000), rng.uniform(0.95, 1.25, 4000)
    inside = shapely.point_on_surface(zones.geometries)  # however small a zone is, one point is in it
    east[-len(zones) :], north[-len(zones) :] = shapely.get_x(inside), shapely.get_y(inside)
    east[:5], north[5:10] = np.nan, np.inf
    batch = pa.RecordBatch.from_pydict({"y": pa.array(north, mask=np.arange(4000) == 20), "x": east})
    found = pickle.loads(pickle.dumps(ZoneGroups(zones, "y", "x"))).encode(batch)
    north[20] = np.nan
    place = np.isfinite(east) & np.isfinite(north)
    expected = np.full(4000, len(zones))
    held = brute_force(zones, east[place], north[place])
    expected[place] = np.where(held < 0, len(zones), held)
    assert found.dtype == np.uint16
    assert (found == expected).all()
    assert len(np.unique(found)) == len(zones) + 1


def test_other_zones_are_other_groups() -> None:
    shapes = voronoi(9, 1)
    zones = zones_of(shapes)
    same = Zones(zones.ids, zones.geometries.copy(), source="another file")
    others = [zones_of(voronoi(9, 2)), Zones(zones.ids[::-1], zones.geometries), zones_of(shapes[::-1])]
    assert Grouping(ZoneGroups(zones)).stated() == Grouping(ZoneGroups(same)).stated()
    for other in [*map(ZoneGroups, others), ZoneGroups(zones, "y"), ZoneGroups(zones, longitude="x")]:
        assert Grouping(other).stated() != Grouping(ZoneGroups(zones)).stated()


def test_released_epsilon_is_capped_at_what_noise_can_keep() -> None:
    plan = MomentsPlan(form=FixedPoint(8), epsilon=60.0)
    assert (plan.released_epsilon, plan.response.epsilon) == (30.0, 60.0)
    assert MomentsPlan(form=FixedPoint(8)).released_epsilon is None
    for edge, reports in ((30.0, 1), (1e-5, 1), (2e-5, 2)):
        assert MomentsPlan(form=FixedPoint(8), release_epsilon=edge, bits_per_client=reports).noise_stddev > 0


@pytest.mark.false_alarm(FLAKE_RATE)
def test_groups_that_may_be_empty_are_not_shown() -> None:
    """Of 100 groups without a client the noise lifts any over the line in 5% of the runs: so many of 400."""
    rng, grouping, stddev = seeded_rng(0), Grouping(ColumnGroups("g", tuple(map(str, range(100)))), 1), 50.0
    margin = simultaneous_z(100) * stddev
    shown = sum(len(grouping.published_groups(rng.normal(0, stddev, 101), margin)[0]) > 1 for _ in range(400))
    assert stats.binomtest(shown, 400, 0.05, "greater").pvalue > FLAKE_RATE
    assert "7" in grouping.published_groups(np.where(np.arange(101) == 7, 400.0, 0.0), margin)[0]


def test_small_groups_are_merged_into_other() -> None:
    grouping = Grouping(CITIES, 100)
    names, places = grouping.published_groups(np.array([100.0, 99.5, 2000.0, 3.0]), 5.0)
    assert names == ["Bath", "Deal", OTHER]
    assert places.tolist() == [0, 2, 1, 2]  # Cork, and whoever is in no group
    names, places = grouping.published_groups(np.array([-4.0, 0.0, 99.0, 5000.0]), 5.0)
    assert names == [OTHER]
    assert places.tolist() == [0, 0, 0, 0]
    names, places = grouping.published_groups(np.array([1e3, 1e3, 1e3, 0.0]), 5.0)
    assert names == ["Bath", "Cork", "Deal", OTHER]
    assert places.tolist() == [0, 1, 2, 3]
