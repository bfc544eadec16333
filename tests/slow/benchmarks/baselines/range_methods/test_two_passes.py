import math
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.baselines.range_methods.two_passes import split_epsilon
from sfumato.schemas.errors import RequestError


@given(st.floats(1e-6, 60), st.floats(1e-3, 0.999))
def test_parts_are_the_shares_and_make_up_the_whole(epsilon: float, share: float) -> None:
    first, second = split_epsilon(epsilon, share)
    assert Fraction(first) + Fraction(second) == Fraction(epsilon)
    assert first <= share * epsilon
    assert first == pytest.approx(share * epsilon, rel=1e-9)
    assert second > 0


@pytest.mark.parametrize("share", [0.0, 1.0, -0.5, math.nan, 1e-30])
def test_shares_that_leave_nothing_are_refused(share: float) -> None:
    with pytest.raises(RequestError, match="share"):
        split_epsilon(1.0, share)


@pytest.mark.parametrize("epsilon", [0.0, -1.0, math.nan, math.inf])
def test_epsilons_that_are_none_are_refused(epsilon: float) -> None:
    with pytest.raises(RequestError, match="epsilon"):
        split_epsilon(epsilon, 0.5)
