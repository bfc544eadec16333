import numpy as np
import pytest
from scipy import stats

from sfumato.schemas.errors import RequestError
from sfumato.transforms.privacy.shared_noise import Noise
from sfumato.transforms.secagg.modulus import Window, choose_window, min_window, noise_bound, size_bound
from tests.statistics import polya_difference_pmf


@pytest.mark.parametrize("shape", [1.0, 1.05, 2.0])
@pytest.mark.parametrize("epsilon", [2.0, 0.3, 0.1])
@pytest.mark.parametrize("probability", [1e-2, 1e-6, 1e-10])
def test_noise_bounds_are_safe_and_not_wasteful(shape: float, epsilon: float, probability: float) -> None:
    reach = int(60 / epsilon)
    pmf = polya_difference_pmf(shape, epsilon, reach)
    tail = np.cumsum(pmf[::-1])[::-1]  # tail[i] = P[Z >= i - reach]
    bound = noise_bound(epsilon, 1, shape, probability)
    assert tail[bound + reach] <= probability
    exact = int(np.argmax(tail <= probability)) - reach
    assert bound <= exact * 1.5 + 6 / epsilon + 2


@pytest.mark.parametrize(("expected", "n"), [(100, 1000), (10_000, 10**6), (5, 50)])
@pytest.mark.parametrize("probability", [1e-3, 1e-9])
def test_size_bounds_are_safe(expected: float, n: int, probability: float) -> None:
    assert stats.binom.sf(size_bound(expected, probability), n, expected / n) <= probability


def test_auto_takes_the_power_of_two_and_given_ones_are_checked() -> None:
    least = min_window(
        expected_size=10_000,
        noise=Noise(required=9_500),
        is_planned=False,
        cost=0.5,
        sensitivity=1,
        gamma=1,
        entries=1000,
        shards=10,
        probability=1e-6,
    )
    assert 10_500 < least.modulus < 11_500
    auto = choose_window(least, None, False)
    assert auto.modulus == 16_384
    assert auto.bits == 14
    assert auto.low >= least.low
    assert auto.modulus - auto.low >= least.modulus - least.low
    assert choose_window(least, least.modulus, False) == least
    with pytest.raises(RequestError, match=f"the least that would do is {least.modulus}"):
        choose_window(least, least.modulus - 1, False)
    small = choose_window(least, 100, True)
    assert small.modulus == 100
    assert 0 <= small.low < 100


def test_bits() -> None:
    assert [Window(m, 0).bits for m in (2, 3, 4, 5, 1 << 16, (1 << 16) + 1)] == [1, 2, 2, 3, 16, 17]
