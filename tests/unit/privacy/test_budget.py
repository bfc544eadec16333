import math
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sfumato.transforms.privacy.budget import Budget
from tests.rejections import rejects


@given(st.floats(1e-6, 50), st.lists(st.floats(1e-9, 60), max_size=12))
def test_spending_is_exact(total: float, wishes: list[float]) -> None:
    budget = Budget(total)
    for wish in wishes:
        charge = budget.affordable(wish)
        assert 0 <= charge <= wish
        if charge > 0:
            budget = budget.charge(charge)
        exact = sum(map(Fraction, budget.charges), Fraction(0))
        assert exact <= Fraction(total)
        assert Fraction(budget.spent) == exact
        assert Fraction(budget.remaining) == Fraction(total) - exact
    if budget.remaining > 0:
        budget = budget.charge(budget.remaining)
    assert math.fsum(budget.charges) == total
    assert budget.spent == total
    assert budget.remaining == 0


@pytest.mark.parametrize("total", [0.0, -1.0, math.nan, math.inf])
def test_a_bad_total_is_refused(total: float) -> None:
    with rejects("epsilon"):
        Budget(total)


@pytest.mark.parametrize("charge", [1.0000000001, 0.0, -0.1, math.nan, 1 / 3 * 2.0**-60])
def test_a_charge_beyond_the_budget_or_off_its_grid_is_refused(charge: float) -> None:
    with pytest.raises(ValueError, match="cannot charge"):
        Budget(1.0).charge(charge)
