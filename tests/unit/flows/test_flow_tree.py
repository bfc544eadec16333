"""The noisy tree of pairs, its budget, and pairs of zones, against exact counts."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import shapely

from sfumato.transforms.flows.flow_estimate import Flows, estimate_zone_flows
from sfumato.transforms.flows.flow_tree import ZonedCells, measure_flows, measure_zone_flows
from sfumato.transforms.flows.plan import FlowPlan
from sfumato.transforms.flows.user_trips import MAX_PAIR_DEPTH, count_prefixes, join_cells
from tests.rejections import rejects
from tests.seeds import seeded_rng
from tests.statistics import FLAKE_RATE, chi_square_p, discrete_laplace_pmf
from tests.unit.flows.samples import BITS, DEPTH, assert_covered, clustered, key_of
from tests.unit.zones.polygons import voronoi, zones_of

CODES, COUNTS = clustered(20_000)


def test_almost_without_noise_every_trip_is_counted_once() -> None:
    levels = measure_flows(CODES, COUNTS, BITS, FlowPlan(1000.0, depth=DEPTH), 20_000, key_of(0))
    assert len(levels) > 1
    total = 0
    for one in levels:
        kept = ~one.is_split
        exact = count_prefixes(CODES, COUNTS, one.nodes[kept], BITS - 4 * one.level)
        assert np.array_equal(one.noisy[kept], exact)
        assert (one.noisy[one.is_split] == 0).all()
        total += exact.sum()
    assert total == COUNTS.sum()
    for above, below in pairwise(levels):  # the children of split pairs, and no others
        assert np.array_equal(np.unique(below.nodes >> np.uint64(4)), above.nodes[above.is_split])
        assert len(below.nodes) == 16 * above.is_split.sum()


@pytest.mark.false_alarm(3 * FLAKE_RATE)  # of each of at most three levels
@pytest.mark.parametrize("max_trips", [1, 3])
def test_the_noise_is_discrete_laplace_of_the_stated_rate(max_trips: int) -> None:
    plan = FlowPlan(1.0, max_trips=max_trips, depth=DEPTH)
    levels = measure_flows(CODES, COUNTS, BITS, plan, 20_000, key_of(1))
    for splits, one in enumerate(levels):
        kept = ~one.is_split
        noise = one.noisy[kept] - count_prefixes(CODES, COUNTS, one.nodes[kept], BITS - 4 * one.level)
        expected = plan.final_epsilon(splits, one.level == plan.levels(20_000)[-1]) / max_trips
        assert one.rate == pytest.approx(expected)
        if len(noise) > 1000:
            assert chi_square_p(noise, discrete_laplace_pmf(one.rate, 80)) > FLAKE_RATE


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 4.0])
@pytest.mark.parametrize("depth", [1, 4, 10])
def test_the_epsilons_on_every_way_down_add_up_to_the_budget(epsilon: float, depth: int) -> None:
    plan = FlowPlan(epsilon, depth=depth)
    levels = plan.levels(100_000)
    for splits, level in enumerate(levels):  # a pair that ends here was decided about at each level above, and here
        decisions = splits + (level != levels[-1])
        spent = decisions * plan.split_epsilon + plan.final_epsilon(splits, level == levels[-1])
        assert spent + plan.admission_rule.cost == pytest.approx(epsilon, rel=1e-12)
        assert spent + plan.admission_rule.cost <= epsilon * (1 + 1e-12)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"epsilon": 0}, "epsilon"),
        ({"epsilon": float("nan")}, "epsilon"),
        ({"max_trips": 0}, "max_trips_per_user"),
        ({"max_trips": 1001}, "max_trips_per_user"),
        ({"depth": 0}, "depth"),
        ({"depth": 16}, "depth"),
        ({"max_bad_fraction": 2}, "max_bad_fraction"),
    ],
)
def test_a_value_out_of_range_is_named(options: dict[str, float], named: str) -> None:
    with rejects(named):
        FlowPlan(**options)  # type: ignore[arg-type]


COUNT = 60
SHAPES = voronoi(COUNT, 3)
CELLS = ZonedCells(zones_of(SHAPES))


def sample(trips: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Distinct codes and counts of trips between hubs, and the exact count of each pair of zones."""
    rng = seeded_rng(seed)
    hubs = rng.uniform([3.01, 1.01], [3.19, 1.19], (25, 2))
    shares = rng.dirichlet(np.full(25, 0.5))
    ends = [np.clip(hubs[rng.choice(25, trips, p=shares)] + rng.normal(0, 0.01, (trips, 2)), [3, 1], [3.2, 1.2])
            for _ in range(2)]  # fmt: skip
    found = [CELLS.locate(*end.T) for end in ends]
    both = found[0][0] & found[1][0]
    cells = [codes[both[inside]] for inside, codes in found]
    zones = [CELLS.zone_of(one) for one in cells]
    exact = np.bincount(zones[0] * COUNT + zones[1], minlength=COUNT**2)
    codes, counts = np.unique(join_cells(cells[0], cells[1], MAX_PAIR_DEPTH), return_counts=True)
    return codes, counts.astype(np.int64), exact


def released_zones(codes: np.ndarray, counts: np.ndarray, epsilon: float, number: int) -> Flows:
    return estimate_zone_flows([measure_zone_flows(codes, counts, CELLS, FlowPlan(epsilon), key_of(number))])


def test_the_zone_of_a_place_holds_the_centre_of_its_cell() -> None:
    """By shapely, zone by zone; all but places within a cell of a border are in the zone that holds them."""
    rng = seeded_rng(1)
    x, y = rng.uniform([2.99, 0.99], [3.21, 1.21], (5_000, 2)).T
    inside, codes = CELLS.locate(x, y)
    assert np.array_equal(inside, (x >= 3) & (x <= 3.2) & (y >= 1) & (y <= 1.2))
    zones = CELLS.zone_of(codes)
    held = np.array([shapely.contains_xy(shape, x[inside], y[inside]) for shape in SHAPES])
    at_border = ~held[zones, np.arange(len(zones))]
    side = 0.2 / 2**MAX_PAIR_DEPTH
    away = [shapely.distance(SHAPES[zone], shapely.points(x[inside][row], y[inside][row]))
            for row, zone in zip(np.flatnonzero(at_border), zones[at_border], strict=True)]  # fmt: skip
    assert all(one <= side for one in away)
    assert at_border.mean() < 0.01


@pytest.mark.false_alarm(2 * FLAKE_RATE + 2e-9)
def test_every_pair_has_the_noise_of_the_whole_budget() -> None:
    """Of 3,600 pairs. The correlation of two releases' noise is normal: 6 deviations, 2e-9."""
    codes, counts, exact = sample(20_000, 0)
    found = []
    for epsilon in (0.5, 0.6):  # other options, other draws
        plan = FlowPlan(epsilon, max_trips=3)
        noise = measure_zone_flows(codes, counts, CELLS, plan, key_of(0)).noisy - exact
        assert chi_square_p(noise, discrete_laplace_pmf(plan.tree_epsilon / 3, 300)) > FLAKE_RATE
        found.append(noise)
    assert abs(np.corrcoef(found)[0, 1]) < 6 / COUNT


@pytest.mark.false_alarm(4 * FLAKE_RATE)
@pytest.mark.parametrize("epsilon", [0.3, 1.0])
def test_intervals_hold_the_truth(epsilon: float) -> None:
    """Of listed pairs and of rests, over 8 releases of other trips."""
    held, rests = [], []
    for number in range(8):
        codes, counts, exact = sample(30_000, number)
        flows = released_zones(codes, counts, epsilon, number)
        listed, pairs = ~flows.is_rest, flows.pair.astype(np.int64)
        truth = exact[pairs[listed]]
        held.append((flows.low[listed] <= truth) & (truth <= flows.high[listed]))
        others = exact.copy()
        others[pairs[listed]] = 0
        rest = others.reshape(COUNT, COUNT).sum(axis=1)
        rests.append((flows.low[~listed] <= rest) & (rest <= flows.high[~listed]))
    assert_covered(np.concatenate(held))
    assert_covered(np.concatenate(rests))
