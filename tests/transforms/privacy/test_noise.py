import itertools
import math
from fractions import Fraction

import mpmath
import numpy as np
import pytest
from scipy import stats

from sfumato.transforms.privacy.keys import FixedSecret, RunKey
from sfumato.transforms.privacy.mechanism import (
    discrete_laplace_stddev,
    epsilon_for_stddev,
    polya_difference_stddev,
)
from sfumato.transforms.privacy.noise import (
    discrete_laplace,
    geometric,
    geometric_table,
    polya_difference_events,
)
from tests.statistics import FLAKE_RATE, chi_square_p, discrete_laplace_pmf, polya_difference_pmf

KEY = RunKey.derive(FixedSecret(b"noise tests" * 2), {"test": "noise"})
STREAMS = np.arange(200, dtype=np.uint64)


def draw(epsilon: float, label: str = "a") -> np.ndarray:
    return discrete_laplace(KEY, label, STREAMS, 1000, epsilon)


@pytest.mark.parametrize("epsilon", [3.0, 1.0, 0.3, 0.05])
def test_discrete_laplace_has_its_distribution(epsilon: float) -> None:
    sample = draw(epsilon).ravel()
    assert chi_square_p(sample, discrete_laplace_pmf(epsilon, math.ceil(25 / epsilon))) > FLAKE_RATE


@pytest.mark.parametrize("epsilon", [3.0, 1.0, 0.3, 0.05])
@pytest.mark.parametrize("scale", [0.7, 1.3])
def test_noise_of_another_scale_would_be_noticed(epsilon: float, scale: float) -> None:
    wrong = draw(epsilon / scale, "wrong").ravel()
    assert chi_square_p(wrong, discrete_laplace_pmf(epsilon, math.ceil(25 / epsilon))) < FLAKE_RATE


@pytest.mark.parametrize("epsilon", [5.0, 1.0, 0.01, 1e-4, 1e-6])
def test_geometric_reaches_beyond_its_table(epsilon: float) -> None:
    """The continuous limit where the table covers a small part of the distribution, exact tails elsewhere."""
    sample = geometric(KEY, "tail", STREAMS, 500, epsilon).ravel()
    if epsilon >= 0.01:
        expected = stats.geom(-np.expm1(-epsilon), loc=-1)
        reach = int(expected.isf(1e-4)) + 1
        pmf = np.concatenate([np.zeros(reach), expected.pmf(np.arange(reach + 1))])
        pmf[-1] = expected.sf(reach - 1)
        assert chi_square_p(sample, pmf) > FLAKE_RATE
    else:
        assert stats.kstest(sample * epsilon, "expon").pvalue > FLAKE_RATE


@pytest.mark.parametrize("epsilon", [2.0, 0.7, 0.05, 1e-3, 1e-6])
def test_thresholds_keep_every_likelihood_ratio_within_epsilon(epsilon: float) -> None:
    """The implemented pmf, as exact fractions: neighbouring values differ by a factor e^epsilon, to 2^-40."""
    thresholds = [1 << 64, *map(int, geometric_table(epsilon).thresholds)]
    pmf = [Fraction(a - b, 1 << 64) for a, b in itertools.pairwise(thresholds)]
    some = range(0, len(pmf) - 1, max(1, len(pmf) // 50))
    mpmath.mp.dps = 40
    for k in some:
        ratio = pmf[k] / pmf[k + 1]
        loss = mpmath.log(mpmath.mpf(ratio.numerator) / ratio.denominator)
        assert abs(loss - epsilon) < epsilon * 2.0**-16
        if epsilon >= 0.05:
            assert abs(loss - epsilon) < 2.0**-38


def test_a_row_depends_on_key_label_and_stream_alone() -> None:
    whole = draw(0.5)
    some = discrete_laplace(KEY, "a", STREAMS[[7, 3]], 1000, 0.5)
    assert np.array_equal(some, whole[[7, 3]])
    assert not np.array_equal(draw(0.5, "b"), whole)
    other = RunKey.derive(FixedSecret(b"noise tests" * 2), {"test": "another request"})
    assert not np.array_equal(discrete_laplace(other, "a", STREAMS, 1000, 0.5), whole)
    # Rows and entries are uncorrelated: 200,000 products of unit variance.
    z = whole / discrete_laplace_stddev(0.5)
    for product in (z[1:] * z[:-1], z[:, 1:] * z[:, :-1], z[:, :500] * z[:, 500:]):
        assert abs(product.mean()) < 6.2 / math.sqrt(product.size)


@pytest.mark.parametrize(("shape", "epsilon"), [(0.05, 0.5), (0.3, 0.1), (1.0, 1.0), (2.5, 0.3)])
def test_sparse_polya_differences_have_their_distribution(shape: float, epsilon: float) -> None:
    entries = 1000
    events = polya_difference_events(KEY, "sparse", STREAMS, np.full(200, shape), np.full(200, entries), epsilon)
    noise = np.zeros((200, entries), dtype=np.int64)
    np.add.at(noise, (events.row, events.slot), events.value)
    reach = math.ceil(20 / epsilon)
    assert chi_square_p(noise.ravel(), polya_difference_pmf(shape, epsilon, reach)) > FLAKE_RATE
    for scale in (0.7, 1.3):
        assert chi_square_p(noise.ravel(), polya_difference_pmf(shape, epsilon / scale, reach)) < FLAKE_RATE


def test_no_surplus_where_the_shape_is_zero() -> None:
    events = polya_difference_events(KEY, "none", STREAMS, np.zeros(200), np.full(200, 1000), 0.1)
    assert len(events.value) == 0


@pytest.mark.parametrize("epsilon", [1e-6, 0.01, 0.5, 3.0])
@pytest.mark.parametrize("sensitivity", [1, 7])
def test_stddev_and_its_inverse_agree_with_the_printed_equations(epsilon: float, sensitivity: int) -> None:
    mpmath.mp.dps = 60
    beta = mpmath.exp(-mpmath.mpf(epsilon) / sensitivity)
    stddev = mpmath.sqrt(2 * beta) / (1 - beta)  # Eq. 5
    printed = -sensitivity * mpmath.log((stddev**2 + 1 - mpmath.sqrt(2 * stddev**2 + 1)) / stddev**2)  # Eq. 8
    assert math.isclose(discrete_laplace_stddev(epsilon, sensitivity), stddev, rel_tol=1e-12)
    assert math.isclose(epsilon_for_stddev(float(stddev), sensitivity), printed, rel_tol=1e-12)


def test_polya_difference_stddev_by_summation() -> None:
    pmf = polya_difference_pmf(1.7, 0.4, 150)
    k = np.arange(-150, 151)
    assert math.isclose(polya_difference_stddev(1.7, 0.4), math.sqrt((pmf * k**2).sum()), rel_tol=1e-9)
