import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy import stats

from sfumato.transforms.heatmap.posterior import inference
from sfumato.transforms.heatmap.posterior.inference import FLAT, ROUGHNESS, Energies, Learner, project
from tests.seeds import seeded_rng

ENERGIES = Energies(np.array([400.0, 25.0]), np.array([20.0, 5.0]), np.array([9.0, 3.0]), 0.6)


def test_energies_of_signal_and_noise() -> None:
    for family, (squared, users, noise) in enumerate(((400, 20, 9), (25, 5, 3))):
        for j, rho in enumerate(ROUGHNESS):
            assert ENERGIES.signal[family, j] == pytest.approx(rho * squared)
            assert ENERGIES.noise[family, j] == pytest.approx(noise + 0.6 * users * (0.75 - rho))


@pytest.mark.parametrize("shares", [(0.25,) * 4, (1, 0, 0, 0), (0.5, 0.3, 0.2, 0)])
def test_sampling_shows_as_a_multinomial_does(shares: tuple[float, ...]) -> None:
    """T users over four children of such shares: the variances are T p (1 - p), and their sum is the energy."""
    p = np.array(shares)
    rho = ((p - 0.25) ** 2).sum()
    assert 10 * (inference.LARGEST - rho) == pytest.approx((10 * p * (1 - p)).sum())


def test_the_likelihood_is_that_of_three_normal_variates_of_equal_variance() -> None:
    """A contrast of four numbers that add up to 0 has three coordinates; density ratios do not depend on which."""
    basis = np.array([[1, -1, 1, -1], [1, 1, -1, -1], [1, -1, -1, 1]]) / 2
    seen = np.array([[3.0, -1.0, -4.0, 2.0], [0.5, 0.5, -0.5, -0.5]])
    found = ENERGIES.likelihood((seen**2).sum(axis=1))
    deviation = np.sqrt((ENERGIES.signal + ENERGIES.noise) / 3)
    exact = stats.norm.pdf((seen @ basis.T)[:, None, :], scale=deviation[:, :, None]).prod(axis=2)
    np.testing.assert_allclose(found / found.max(axis=1, keepdims=True), exact / exact.max(axis=1, keepdims=True))


def test_what_is_kept_and_what_stays_unknown_are_a_normal_posteriors() -> None:
    """Signal and noise each of three coordinates, of variances S / 3 and E / 3: the posterior's mean and energy."""
    prior, noise = ENERGIES.signal / 3, ENERGIES.noise / 3
    np.testing.assert_allclose(ENERGIES.kept, (1 / noise) / (1 / prior + 1 / noise))
    np.testing.assert_allclose(ENERGIES.unknown(), 3 / (1 / prior + 1 / noise))


def test_the_likelihood_does_not_vanish_however_surprising_the_energy() -> None:
    energies = Energies(np.full(3, 1e-6), np.full(3, 1e-3), np.array([0.0, 1e-12, 1e12]), 1.0)
    found = energies.likelihood(np.array([0.0, 1e9, 0.0]))
    assert np.isfinite(found).all()
    assert (found.max(axis=1) > 0).all()


def objective(weights: np.ndarray, likelihood: np.ndarray, begin: np.ndarray) -> float:
    """The logarithm of the posterior that `_learn` climbs."""
    return float(np.log(likelihood @ weights).sum() + inference._PULL * (begin * np.log(weights)).sum())


@pytest.mark.parametrize("families", [1, 30, 1000])
def test_every_trial_makes_the_weights_more_likely(families: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = seeded_rng(families)
    likelihood = rng.gamma(0.3, 1, (families, len(FLAT))) + 1e-9
    begin = rng.dirichlet(np.full(len(FLAT), 2.0))
    before = objective(begin, likelihood, begin)
    for trials in range(1, 31):
        monkeypatch.setattr(inference, "_ITERATIONS", trials)
        weights = inference._learn(likelihood, begin)
        assert weights.sum() == pytest.approx(1)
        assert (weights > 0).all()
        now = objective(weights, likelihood, begin)
        assert now >= before - 1e-12 * abs(before)
        before = now


def test_weights_find_the_roughness_that_all_families_share() -> None:
    """2,000 families of one roughness, without noise to speak of."""
    rng, planted = seeded_rng(2), 7
    signal = rng.normal(0, np.sqrt(ROUGHNESS[planted] * 100**2 / 3), (2000, 3))
    energies = Energies(np.full(2000, 1e4), np.full(2000, 100.0), np.full(2000, 0.01), 0.0)
    likelihood = energies.likelihood((signal**2).sum(axis=1))
    weights = Learner().learn(likelihood, np.ones(2000, dtype=bool))
    assert weights.shape == (2, len(FLAT))
    assert (weights[0] == weights[1]).all()  # there are no weak ones: they are taken to be like the strong
    assert weights[1][planted - 1 : planted + 2].sum() > 0.9
    assert weights[1] @ np.log(ROUGHNESS) == pytest.approx(np.log(ROUGHNESS[planted]), abs=0.1)


def test_strong_and_weak_families_learn_apart_and_begin_where_the_level_above_has_ended() -> None:
    learner, rng = Learner(), seeded_rng(3)
    strong = np.repeat([True, False], 500)
    likelihood = np.full((1000, len(FLAT)), 1e-6)
    likelihood[:500, 2] = likelihood[500:, 11] = 1
    likelihood *= rng.uniform(0.5, 2, (1000, 1))
    first = learner.learn(likelihood, strong)
    assert first.argmax(axis=1).tolist() == [11, 2]
    np.testing.assert_allclose(first.sum(axis=1), 1)
    silent = learner.learn(np.ones((1, len(FLAT))), np.array([True]))  # says nothing
    np.testing.assert_allclose(silent[1], 0.97 * first[1] + 0.03 * FLAT)
    assert (silent[0] == first[0]).all()


NUMBERS = st.floats(-1e6, 1e6, allow_subnormal=False)


@given(arrays(float, (5, 4), elements=NUMBERS), arrays(float, 5, elements=st.floats(0, 1e6, allow_subnormal=False)))
@settings(max_examples=150, deadline=None)
def test_projection_is_the_nearest_point(children: np.ndarray, total: np.ndarray) -> None:
    """Of every set of children that may be above 0, the nearest point on its plane; the best of those that are >= 0."""
    found = project(children, total)
    scale = 1 + np.abs(children).max() + total.max()
    assert (found >= 0).all()
    np.testing.assert_allclose(found.sum(axis=1), total, atol=1e-12 * scale)
    for row, wanted, point in zip(children, total, found, strict=True):
        best = np.inf
        for size in range(1, 5):
            for chosen in map(list, itertools.combinations(range(4), size)):
                other = np.zeros(4)
                other[chosen] = row[chosen] + (wanted - row[chosen].sum()) / size
                if (other >= -1e-12 * scale).all():
                    best = min(best, float(np.linalg.norm(other - row)))
        assert np.linalg.norm(point - row) == pytest.approx(best, abs=1e-9 * scale)
