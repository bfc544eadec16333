"""Who reports what, coins, and the meter. Every client is a group, so that the tallies show each client's reports."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from fractions import Fraction
from typing import Any

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from sfumato.schemas.errors import DataError
from sfumato.schemas.moments import FixedPoint, Statistic
from sfumato.transforms.moments.client_values import Block
from sfumato.transforms.moments.local.allocation import Prior, Tuning, by_weight
from sfumato.transforms.moments.local.plan import MomentsPlan
from sfumato.transforms.moments.local.protocol import MomentsState
from sfumato.transforms.moments.local.quantities import Quantity
from sfumato.transforms.moments.local.tally import (
    Query,
    RandomisedResponse,
    check_queries,
    check_reports,
    count_reports,
)
from sfumato.transforms.privacy.keys import FixedSecret, RunKey
from tests.rejections import rejects
from tests.seeds import seeded_rng
from tests.statistics import FLAKE_RATE
from tests.unit.moments.blocks import block_of, without

FORM = FixedPoint(8)
VALUE = Quantity(FORM, "value")
VARIANCE = (Statistic("mean"), Statistic("variance"))


def key(number: int = 0) -> RunKey:
    return RunKey.derive(FixedSecret(b"tally tests!" * 3), {"number": number})


def clients(n: int, number: int = 0, seed: int = 0, name: str = "block") -> Block:
    """Clients who are a group each."""
    codes = seeded_rng(seed).integers(0, 256, n).astype(np.uint8)
    return block_of(codes, np.arange(n, dtype=np.uint16), key(number), name)


def query(first: float = 0.0, last: float = 1.0, reports: int = 1, power: float = 0.5) -> Query:
    return Query(VALUE, 1, first, last, by_weight(VALUE.slots, power, reports))


@pytest.mark.parametrize("reports", [1, 3, 8])
@pytest.mark.parametrize("n", [0, 1, 7, 1003])
def test_every_client_tells_so_many_different_bits_of_hers(reports: int, n: int) -> None:
    for number in range(2):
        block = clients(n, number)
        counted = count_reports(block, query(reports=reports), n, RandomisedResponse(None, reports), key(number))
        assert counted.reports.shape == (n, 8)
        assert (counted.reports <= 1).all()
        assert (counted.reports.sum(axis=1) == reports).all()
        assert block.groups is not None
        for code, group in zip(block.codes.tolist(), block.groups.tolist(), strict=True):
            for slot in np.flatnonzero(counted.reports[group]).tolist():
                assert counted.ones[group, slot] == code >> slot & 1


@pytest.mark.false_alarm(8 * FLAKE_RATE)
@pytest.mark.parametrize(("reports", "span"), [(1, (0.0, 1.0)), (3, (1 / 3, 0.75)), (8, (0.0, 1 / 3))])
def test_every_bit_has_its_share_of_the_clients(reports: int, span: tuple[float, float]) -> None:
    n, bit_query = 50_000, query(*span, reports=reports)
    counted = count_reports(replace(clients(n), groups=None), bit_query, 1, RandomisedResponse(None, reports), key())
    for count, probability in zip(
        counted.reports[0].tolist(), (reports * bit_query.probabilities).tolist(), strict=True
    ):
        assert stats.binomtest(count, n, min(probability, 1.0) * (span[1] - span[0])).pvalue > FLAKE_RATE


PLANS: list[dict[str, Any]] = [
    {"statistics": VARIANCE, "variance": "raw", "method": "weighted"},
    {"statistics": (*VARIANCE, Statistic("moment:3"), Statistic("geometric_mean")), "bits_per_client": 3},
    {"statistics": (*VARIANCE, Statistic("moment:3")), "tuning": Tuning(first_share=0.5), "epsilon": 2.0},
    {"statistics": VARIANCE, "prior": True},
    {"statistics": VARIANCE, "prior": "value"},
]


@pytest.mark.false_alarm(3.2 * FLAKE_RATE)
@pytest.mark.parametrize("options", PLANS)
def test_every_client_is_queried_in_one_round_exactly(options: dict[str, Any]) -> None:
    """A client queried twice would report twice as often as the meter says."""
    if "prior" in options:
        # As an earlier release of the same column left it: its squares are about its own mean.
        about = {"value": Quantity(FORM, "value").slots.weight, "square": Quantity(FORM, "square", 127.0).slots.weight}
        found = {
            kind: Prior(weight, np.full(len(weight), 0.4), np.full(len(weight), 0.1)) for kind, weight in about.items()
        }
        options = {**options, "prior": found if options["prior"] is True else {"value": found["value"]}}
    plan = MomentsPlan(form=FORM, **options)
    n = 700
    for number in range(2):
        state, block = MomentsState(plan), clients(n, number)
        for _ in plan.stages:
            queries = state.next_queries()
            counted = [count_reports(block, one, n, plan.response, key(number)) for one in queries]
            state = state.advance(queries, counted)
        times = sum((one.reports > 0).any(axis=1).astype(int) for _, one in state.tallies)
        assert np.array_equal(times, np.ones(n))
        each = [one.reports.sum(axis=1) for _, one in state.tallies]
        assert all(set(reports.tolist()) <= {0, plan.bits_per_client} for reports in each)
        for one, reports in zip((bit_query for bit_query, _ in state.tallies), each, strict=True):
            share = min(one.last - one.first, 1.0)  # and their shares are the plan's
            assert stats.binomtest(np.count_nonzero(reports), n, share).pvalue > FLAKE_RATE / 10


@pytest.mark.false_alarm(10 * FLAKE_RATE)
def test_coins_differ_between_blocks_rounds_and_quantities() -> None:
    """Else the flipped reports of one client would show those of another."""
    n, response = 4000, RandomisedResponse(0.5)
    empty = block_of(np.zeros(n, np.uint8), np.arange(n, dtype=np.uint16), key())
    square = replace(query(), quantity=Quantity(FORM, "power:2"))
    first = replace(query(), probabilities=np.eye(8)[0])  # all are asked for one bit, which is 0
    lies = [
        count_reports(empty, first, n, response, key()).ones[:, 0],
        count_reports(block_of(empty.codes, np.arange(n, dtype=np.uint16), key(), "b"), first, n, response, key()).ones[
            :, 0
        ],
        count_reports(empty, replace(first, round=2), n, response, key()).ones[:, 0],
        count_reports(
            empty, replace(square, probabilities=np.eye(len(square.quantity.slots))[0]), n, response, key()
        ).ones[:, 0],
        count_reports(empty, first, n, response, key(1)).ones[:, 0],
    ]
    lie = 1 - response.truth_probability
    for left, right in itertools.combinations(lies, 2):
        both = int((left & right).sum())
        assert stats.binomtest(both, n, lie**2).pvalue > FLAKE_RATE
        assert stats.binomtest(n, n, lie).pvalue < FLAKE_RATE  # what equal coins would give


@pytest.mark.false_alarm(9 * FLAKE_RATE)
def test_rounding_is_by_a_coin_of_the_client(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pattern over ranks, the same in all blocks, would round everybody after a missing client anew, and never
    average out over small blocks: so no two blocks or rounds have the same uniforms, and a client's are no other's.
    """
    seen: list[np.ndarray] = []
    honest = Quantity.codes

    def noted(self: Quantity, codes: np.ndarray, uniforms: np.ndarray) -> Any:
        seen.append(uniforms)
        return honest(self, codes, uniforms)

    monkeypatch.setattr(Quantity, "codes", noted)
    square = Quantity(FORM, "square", 100.3)
    queries = [Query(square, number, 0.0, 1.0, by_weight(square.slots, 0.5, 1)) for number in (1, 2)]
    for name, bit_query in (("one", queries[0]), ("two", queries[0]), ("one", queries[1])):
        count_reports(clients(5000, name=name), bit_query, 5000, RandomisedResponse(None), key())
    count_reports(without(clients(5000, name="one"), 17), queries[0], 5000, RandomisedResponse(None), key())
    assert np.array_equal(np.delete(seen[0], 17), seen.pop())
    for uniforms in seen:
        assert stats.kstest(uniforms, "uniform").pvalue > FLAKE_RATE
        assert abs(np.corrcoef(uniforms[1:], uniforms[:-1])[0, 1]) < 6.2 / np.sqrt(5000)  # no pattern along the ranks
    for one, other in itertools.combinations(seen, 2):
        assert abs(np.corrcoef(one, other)[0, 1]) < 6.2 / np.sqrt(5000)


# --- randomised response ---


EPSILONS = [1e-6, 0.1, math.log(3), 10.0, 44.0]
SUBKEY = b"response tests" * 2 + b"four"
WORDS = seeded_rng(0).integers(0, 2**64, 100_000, dtype=np.uint64)  # of clients


def precise(epsilon: float) -> mpmath.mpf:
    return mpmath.mpf(Fraction(epsilon).numerator) / Fraction(epsilon).denominator


@pytest.mark.parametrize("epsilon", EPSILONS)
@pytest.mark.parametrize("reports", [1, 7, 52])
def test_the_threshold_is_the_probability_rounded_down(epsilon: float, reports: int) -> None:
    response = RandomisedResponse(epsilon, reports)
    with mpmath.workdps(60):
        odds = mpmath.exp(precise(epsilon) / reports)
        assert response.threshold == min(int(mpmath.floor(odds / (1 + odds) * 2**64)), 2**64 - 1)


@given(st.floats(1e-15, 1e300), st.integers(1, 52))
def test_all_reports_together_never_tell_more_than_epsilon(epsilon: float, reports: int) -> None:
    """The loss of each is ln(p / (1 - p)) at most, whatever the two values; those of different bits add up."""
    response = RandomisedResponse(epsilon, reports)
    assert 2**63 < response.threshold < 2**64
    with mpmath.workdps(60):
        p = mpmath.mpf(response.threshold) / 2**64
        loss = reports * mpmath.log(p / (1 - p))
        assert loss <= precise(epsilon)
        # And hardly less: one step of the threshold more would be too much.
        one_more = min(response.threshold + 1, 2**64 - 1)
        above = mpmath.mpf(one_more) / 2**64
        assert one_more == response.threshold or reports * mpmath.log(above / (1 - above)) > precise(epsilon)


@pytest.mark.parametrize(
    ("epsilon", "reports"), [(0.0, 1), (-1.0, 1), (math.nan, 1), (math.inf, 1), (1e-19, 1), (5e-324, 1), (1e-17, 1000)]
)
def test_epsilons_that_cannot_be_are_refused(epsilon: float, reports: int) -> None:
    with rejects("epsilon"):
        RandomisedResponse(epsilon, reports)


@pytest.mark.parametrize("epsilon", EPSILONS)
@pytest.mark.parametrize("reports", [1, 3])
def test_shares_and_variances_are_those_of_the_paper(epsilon: float, reports: int) -> None:
    """Of a bit response with probability q = p m + (1 - p) (1 - m), the share is m again, and q (1 - q) / (2 p - 1)^2
    is m (1 - m) + e^e / (e^e - 1)^2 (Section 3.3)."""
    response, each = RandomisedResponse(epsilon, reports), epsilon / reports
    means = np.linspace(0, 1, 11)
    expected = means * response.truth_probability + (1 - means) * (1 - response.truth_probability)
    growth = math.exp(each)
    # Rounding: of p - 1/2, 2^-53 of 1/2 in e / 4; and below e^-e for large e.
    slack = 2.0**-50 / math.tanh(each / 2) ** 2
    assert response.unbiased_share(expected) == pytest.approx(means, abs=slack)
    wanted = means * (1 - means) + growth / math.expm1(each) ** 2
    assert response.variance(expected) == pytest.approx(wanted, rel=slack, abs=slack)
    assert response.gain == pytest.approx(math.tanh(each / 2), rel=2.0**-50, abs=2.0**-60)


@pytest.mark.false_alarm(FLAKE_RATE)
@pytest.mark.parametrize(("epsilon", "bit"), [(0.3, False), (1.0, True)])
def test_true_bits_are_told_as_often_as_they_should(epsilon: float, bit: bool) -> None:
    n = 100_000
    response = RandomisedResponse(epsilon)
    truths = int((response.respond(np.full(n, bit), SUBKEY, 0, WORDS[:n]) == bit).sum())
    truth = math.exp(epsilon) / (1 + math.exp(epsilon))
    assert stats.binomtest(truths, n, truth).pvalue > FLAKE_RATE
    for wrong in (0.7 * epsilon, 1.3 * epsilon):
        probability = math.exp(wrong) / (1 + math.exp(wrong))
        assert stats.binomtest(truths, n, probability).pvalue < FLAKE_RATE


def test_lies_are_a_function_of_key_stream_and_client() -> None:
    response = RandomisedResponse(1.0, 2)
    ones, zeros = np.ones(1001, bool), np.zeros(1001, bool)
    lies = response.respond(zeros, SUBKEY, 3, WORDS[:1001])
    assert np.array_equal(response.respond(zeros, SUBKEY, 3, WORDS[:1001]), lies)
    assert np.array_equal(~response.respond(ones, SUBKEY, 3, WORDS[:1001]), lies)  # not of the bit
    assert np.array_equal(response.respond(zeros[:500], SUBKEY, 3, WORDS[:500]), lies[:500])  # nor of who else is there
    assert not np.array_equal(response.respond(zeros, SUBKEY, 4, WORDS[:1001]), lies)
    assert not np.array_equal(response.respond(zeros, SUBKEY[::-1], 3, WORDS[:1001]), lies)
    assert response.respond(zeros[:0], SUBKEY, 3, WORDS[:0]).shape == (0,)


# --- the meter ---


@pytest.mark.parametrize("reports", [199, 201])
def test_check_reports_refuses_other_than_the_query_has(reports: int) -> None:
    response = RandomisedResponse(1.0, 2)
    check_reports(response, 100, 200)
    check_reports(response, 0, 0)
    with rejects("meter", DataError):
        check_reports(response, 100, reports)


QUERIED = [((0, 0.5), (0.5, 1), True), ((0, 0.6), (0.5, 1), False), ((0.2, 0.4), (0, 1), False)]


@pytest.mark.parametrize(("first", "second", "right"), QUERIED)
def test_check_queries_lets_no_two_reach_one_user(first: Any, second: Any, right: bool) -> None:
    queries = [query(*first), query(*second)]
    if right:
        check_queries(queries)
    else:
        with pytest.raises(DataError):
            check_queries(queries)
