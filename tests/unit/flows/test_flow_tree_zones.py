"""Pairs of zones: exact counts by brute force, the noise of every pair, coverage of intervals, and rests."""

from __future__ import annotations

import numpy as np
import pytest
import shapely

from sfumato.transforms.flows.flow_estimate import Flows, estimate_zone_flows
from sfumato.transforms.flows.flow_tree import FlowPlan, ZonedCells, measure_zone_flows
from sfumato.transforms.flows.user_trips import MAX_PAIR_DEPTH, join_cells
from sfumato.transforms.privacy.mechanism import discrete_laplace_stddev
from tests.seeds import seeded_rng
from tests.unit.flows.samples import key_of
from tests.unit.zones.polygons import voronoi, zones_of

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


def released(codes: np.ndarray, counts: np.ndarray, epsilon: float, number: int) -> Flows:
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


def test_every_pair_has_the_noise_of_the_whole_budget() -> None:
    """Variance over 3,600 pairs: of discrete Laplace noise, kurtosis 6, within 6 standard errors."""
    codes, counts, exact = sample(20_000, 0)
    plan = FlowPlan(0.5, max_trips=3)
    measured = measure_zone_flows(codes, counts, CELLS, plan, key_of(0))
    noise = measured.noisy - exact
    stddev = discrete_laplace_stddev(plan.tree_epsilon, 3)
    assert abs(noise.mean()) < 6 * stddev / COUNT
    assert abs(noise.var() / stddev**2 - 1) < 6 * np.sqrt(5) / COUNT
    other = measure_zone_flows(codes, counts, CELLS, FlowPlan(0.6, max_trips=3), key_of(0)).noisy - exact
    assert abs(np.corrcoef(noise, other)[0, 1]) < 6 / COUNT  # other options, other draws


@pytest.mark.parametrize("epsilon", [0.3, 1.0])
def test_intervals_hold_the_truth(epsilon: float) -> None:
    """Of listed pairs and of rests, over 8 releases of other trips."""
    held, rests = [], []
    for number in range(8):
        codes, counts, exact = sample(30_000, number)
        flows = released(codes, counts, epsilon, number)
        listed, pairs = ~flows.is_rest, flows.pair.astype(np.int64)
        truth = exact[pairs[listed]]
        held.append((flows.low[listed] <= truth) & (truth <= flows.high[listed]))
        others = exact.copy()
        others[pairs[listed]] = 0
        rest = others.reshape(COUNT, COUNT).sum(axis=1)
        rests.append((flows.low[~listed] <= rest) & (rest <= flows.high[~listed]))
    assert 0.93 <= np.concatenate(held).mean() <= 0.985  # ends are whole numbers: small counts are covered more often
    assert 0.90 <= np.concatenate(rests).mean() <= 0.995


def test_rows_of_an_origin_add_up_to_its_noisy_count() -> None:
    codes, counts, _ = sample(20_000, 5)
    flows = released(codes, counts, 0.5, 5)
    pairs = flows.pair.astype(np.int64)
    origins = np.where(flows.is_rest, pairs, pairs // COUNT)
    assert np.allclose(np.bincount(origins, flows.trips), np.bincount(origins, flows.noisy))
    assert sorted(pairs[flows.is_rest]) == list(range(COUNT))
