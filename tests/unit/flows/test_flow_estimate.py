"""Estimates of flows: rows that hold every trip once, intervals that cover, posteriors, and the page."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from sfumato.schemas.region import Region
from sfumato.schemas.tree import node_positions
from sfumato.schemas.views import PageView
from sfumato.schemas.views.flow_views import FlowsBody
from sfumato.transforms.flows.flow_estimate import estimate_flows, posterior_counts, rest_level
from sfumato.transforms.flows.flow_tree import measure_flows
from sfumato.transforms.flows.plan import FlowPlan
from sfumato.transforms.flows.release import FlowMetadata, flow_files
from sfumato.transforms.flows.user_trips import split_pairs
from sfumato.transforms.flows.view import flows_view
from sfumato.transforms.privacy.admission import NoisyUserCounts
from sfumato.transforms.release.metadata import ReleaseMetadata
from tests.seeds import seeded_rng
from tests.statistics import FLAKE_RATE
from tests.unit.flows.samples import BITS, DEPTH, assert_covered, clustered, key_of, released, truth

CODES, COUNTS = clustered(20_000)


@pytest.mark.parametrize("epsilon", [0.2, 1.0])
def test_rows_of_a_coarse_pair_add_up_to_its_noisy_count(epsilon: float) -> None:
    levels = measure_flows(CODES, COUNTS, BITS, FlowPlan(epsilon, depth=DEPTH), 20_000, key_of(0))
    flows = estimate_flows(levels)
    within = rest_level(levels[0].level)
    assert flows.is_rest.sum() == 16**within
    coarse = (flows.pair >> (4 * (flows.level - within)).astype(np.uint64)).astype(np.int64)
    expected = np.zeros(16**within)
    for one in levels:
        np.add.at(expected, (one.nodes >> np.uint64(4 * (one.level - within))).astype(np.int64), one.noisy)
    assert np.allclose(np.bincount(coarse, flows.trips, 16**within), expected)
    assert np.allclose(np.bincount(coarse, flows.noisy, 16**within), expected)


def test_no_row_lies_in_another_but_in_its_rest() -> None:
    flows = released(CODES, COUNTS, 1.0, 1)
    listed = {
        (level, pair)
        for level, pair in zip(flows.level[~flows.is_rest].tolist(), flows.pair[~flows.is_rest].tolist(), strict=True)
    }
    assert len(listed) == (~flows.is_rest).sum()
    for level, pair in listed:
        assert not any((level - up, pair >> (4 * up)) in listed for up in range(1, level))


@pytest.mark.false_alarm(6 * FLAKE_RATE)
@pytest.mark.slow
@pytest.mark.parametrize("epsilon", [0.5, 1.0])
def test_intervals_of_flows_and_of_rests_cover(epsilon: float) -> None:
    """Of some thousand rows of 12 releases, of the 50 largest of each (600 rows), and of rests."""
    held, top, rest = [], [], []
    for number in range(12):
        flows = released(CODES, COUNTS, epsilon, number)
        exact = truth(flows, CODES, COUNTS)
        inside = (flows.low <= exact) & (exact <= flows.high)
        listed = np.flatnonzero(~flows.is_rest)
        held.append(inside[listed])
        top.append(inside[listed[np.argsort(-flows.trips[listed])[:50]]])
        zero = flows.is_rest & (flows.trips < 0)
        rest.append(inside[flows.is_rest & ~zero])
    for rows in (held, top, rest):
        assert_covered(np.concatenate(rows))


@pytest.mark.slow
@pytest.mark.false_alarm(2e-9)
def test_noisy_sums_are_unbiased() -> None:
    """The z-scores of the total of 60 releases: their mean is normal, the sum of their squares chi-square.

    Sums of some hundred noises are normal nearly; the limits of the squares are wider by a fifth for that.
    """
    scores = []
    for number in range(60):
        flows = released(CODES, COUNTS, 1.0, 100 + number)
        scores.append((flows.trips.sum() - COUNTS.sum()) / np.sqrt((flows.noise_stddev**2).sum()))
    z = np.array(scores)
    assert abs(z.mean()) < stats.norm.isf(FLAKE_RATE / 2) / np.sqrt(60)
    low, high = stats.chi2.ppf([FLAKE_RATE / 2, 1 - FLAKE_RATE / 2], 60)
    assert low / 1.2 < (z**2).sum() < 1.2 * high


@pytest.mark.false_alarm(1e-9)
def test_shrunk_flows_have_less_error_than_noisy_counts() -> None:
    """Over other draws the errors' ratio is 0.73 with a deviation of 0.03."""
    flows = released(CODES, COUNTS, 0.5, 5)
    exact = truth(flows, CODES, COUNTS)
    listed = ~flows.is_rest
    assert np.abs(flows.trips - exact)[listed].sum() < np.abs(np.maximum(flows.noisy, 0) - exact)[listed].sum()


@pytest.mark.parametrize(("start", "expected"), [(1, 0), (2, 1), (3, 2), (4, 2), (5, 3)])
def test_the_level_of_rests_is_public(start: int, expected: int) -> None:
    assert rest_level(start) == expected


def noisy(exact: np.ndarray, rate: float, rng: np.random.Generator) -> np.ndarray:
    p = 1 - np.exp(-rate)
    return exact + rng.geometric(p, len(exact)) - rng.geometric(p, len(exact))


@pytest.mark.false_alarm(1e-9)
@pytest.mark.parametrize(("rate", "error"), [(0.3, 0.1), (1.0, 0.05)])
def test_posteriors_of_a_known_prior_are_bayes_rule(rate: float, error: float) -> None:
    """Counts are 0 with probability 0.6, else geometric of mean 10: Bayes' rule by hand beside what is learned.

    Over other draws the first two figures are 8 deviations or more below their limits. The third has a deviation of
    0.007 / rate, by the mean of the noise, and an excess of 0.02.
    """
    rng = seeded_rng(3)
    exact = np.where(rng.random(40_000) < 0.6, 0, rng.geometric(0.1, 40_000))
    values = noisy(exact, rate, rng)
    found = posterior_counts(values, rate, np.zeros(len(values), np.int64))
    counts = np.arange(400)
    prior = np.where(counts == 0, 0.6, 0.4 * 0.1 * 0.9 ** np.maximum(counts - 1.0, 0))
    names, places = np.unique(values, return_inverse=True)
    masses = prior * np.exp(-rate * np.abs(names[:, None] - counts))
    expected = (masses @ counts / masses.sum(axis=1))[places]
    assert np.abs(found.mean - expected).mean() < error  # the noise has a mean absolute value of 1 / rate
    assert np.abs(found.mean - exact).mean() < 1.05 * np.abs(expected - exact).mean()
    assert found.mean.mean() == pytest.approx(exact.mean(), abs=0.02 + 0.05 / rate)


@pytest.mark.false_alarm(6 * FLAKE_RATE)
@pytest.mark.parametrize("rate", [0.1, 0.5, 0.95])
def test_intervals_cover_what_they_say(rate: float) -> None:
    """Heavy-tailed counts with many zeros: of all 30,000, of those above 0, and of those that noise lifted highest.

    Zeros have whole ends, so of all there are more than 95%.
    """
    rng = seeded_rng(5)
    exact = np.where(rng.random(30_000) < 0.6, 0, np.floor(rng.pareto(1.2, 30_000) * 2)).astype(np.int64)
    values = noisy(exact, rate, rng)
    found = posterior_counts(values, rate, np.zeros(len(values), np.int64))
    held = (found.low <= exact) & (exact <= found.high)
    highest = np.argsort(-found.mean)[:300]
    for rows in (held, held[found.present >= 0.5], held[highest]):
        assert_covered(rows)


TRIPS = 20_000


def _page(number: int) -> tuple[PageView, NDArray[np.float64]]:
    """A page, and the exact trips of its listed flows by the large cell where they begin."""
    plan, exact = FlowPlan(1.0, depth=DEPTH), clustered(TRIPS, number)
    levels = measure_flows(*exact, BITS, plan, TRIPS, key_of(number))
    release = ReleaseMetadata("flows", "a-release", "2026-11-20T00:00:00+00:00", "operating system", True, {})
    described = FlowMetadata(release, plan, Region(3.0, 1.0, 3.13, 1.13), None, NoisyUserCounts(TRIPS, 0, 0.01, 141))
    view = flows_view(flow_files(levels, described))
    flows = estimate_flows(levels)
    top, trips = int(view.manifest["privacy"]["rounds"][0]["level"]), truth(flows, *exact)
    sums = np.zeros((2**top, 2**top))
    for row in np.flatnonzero(~flows.is_rest).tolist():
        level = int(flows.level[row])
        origin = split_pairs(flows.pair[row : row + 1], level)[0] | np.uint64(4**level)
        _, x, y = node_positions(origin >> np.uint64(2 * (level - top)))
        sums[y[0], x[0]] += trips[row]
    return view, sums


@pytest.mark.false_alarm(FLAKE_RATE)
@pytest.mark.slow
def test_the_map_s_intervals_hold_the_trips_of_the_listed_flows() -> None:
    held, places = 0, 0
    for number in range(4):
        view, sums = _page(number)
        assert isinstance(view.body, FlowsBody)
        layer = view.body.map.layers[0]
        measure = layer.measures[0]
        for x, y, value, low, high in zip(layer.x, layer.y, measure.value, measure.low, measure.high, strict=True):
            assert value is not None
            assert low is not None
            assert high is not None
            assert low <= value <= high
            held += low <= sums[y, x] <= high
            places += 1

    assert held >= stats.binom.ppf(FLAKE_RATE, places, 0.95)
