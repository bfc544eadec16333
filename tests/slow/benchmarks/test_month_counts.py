"""Tests of benchmarks/month_counts.py: nights as counts of cells, and variances on paper."""

from datetime import date

import numpy as np
import pytest

from benchmarks.city_nights import DEPTH, Crowd
from benchmarks.month_counts import CountNight, PaperVariances, draw_nights
from benchmarks.month_ways import REFERENCE, Way, run_key
from sfumato.schemas.tree import Tree
from sfumato.schemas.trust import Trust
from sfumato.transforms.heatmap.state import HeatmapState
from tests.seeds import seeded_rng

DAY = date(2026, 10, 13)


@pytest.fixture(scope="module")
def night() -> CountNight:
    return next(draw_nights([DAY], 300_000, seed=2))


def _state(night: CountNight, way: Way, trust: Trust) -> HeatmapState:
    return night.run(way.cohorts, way.parameters(trust), run_key(1, way, night.day, trust), None)


def test_counts_of_entries_are_those_of_their_cells(night: CountNight) -> None:
    tree = Tree.uniform(DEPTH, 3)
    assert np.array_equal(night.entry_counts(tree), night.counts.reshape(64, -1).sum(axis=1))
    finer = tree.refine(tree.nodes[-5:], tree.nodes[:0])
    owners = finer.index.owners(np.arange(4**DEPTH, dtype=np.uint64))
    assert np.array_equal(night.entry_counts(finer), np.bincount(owners, night.counts, len(finer.entries)))


def test_crowd_moves_users_and_keeps_their_number(night: CountNight) -> None:
    crowd = Crowd((10.0, 6.45), 3_000)
    after = night.with_crowd(crowd)
    assert after.users == night.users
    assert (after.counts >= 0).all()
    moved = (after.exact() - night.exact()) * night.users
    place = crowd.density() > crowd.density().max() / 100
    # 99% of the crowd is in these cells. Six deviations of its number and of those who left: 6 sqrt(30 + 300).
    assert abs(moved[place].sum() - 0.99 * 3_000 * (1 - night.expected[place].sum())) < 6 * np.sqrt(330)


@pytest.mark.parametrize("trust", [Trust.SECAGG, Trust.CENTRAL])
def test_noise_has_the_stated_deviation(night: CountNight, trust: Trust) -> None:
    """The mean square of the errors of n entries is its variance within 6 standard deviations: kurtosis at most 6."""
    state = _state(night, REFERENCE, trust)
    assert len(state.results) == 2
    for result in state.results:
        if result.shard_range is not None:  # asks a part of the users
            continue
        errors = result.counts - night.entry_counts(result.tree)
        mean = (errors**2).mean() / result.spent.noise_stddev**2
        assert abs(mean - 1) < 6 * np.sqrt(5 / len(errors))


def test_paper_has_the_noise_of_a_run(night: CountNight) -> None:
    """The paper's variance is that of a run that spent its whole budget at once, on all shards."""
    for trust in (Trust.SECAGG, Trust.CENTRAL):
        for way in (REFERENCE, Way("test", 10)):
            paper = PaperVariances.of_way(way, trust, night.users)
            state = _state(night, way, trust)
            entry = way.cohorts**2 * state.noise_stddev(way.parameters(trust).budget.total) ** 2
            assert entry == pytest.approx(paper.noise, rel=0.1)  # shards are whole
            assert paper.sampling == way.cohorts - 1


def test_sampling_has_the_variance_of_paper() -> None:
    """c times a binomial number: 4,000 draws have its variance within 6 standard deviations of 1.6%."""
    cohorts, users = 30, 600
    drawn = cohorts * seeded_rng(4).binomial(users, 1 / cohorts, 4_000)
    sampling = PaperVariances.of_way(Way("test", cohorts), Trust.CENTRAL, 1e5).sampling
    assert np.var(drawn) / (sampling * users) == pytest.approx(1, abs=6 * np.sqrt(2.06 / 4_000))
