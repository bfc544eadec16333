"""Thresholds: the question is independent of the value, a report is protected, and nobody reports in two rounds.

Each test fails if its promise is broken: a question that follows the value, a report without randomised response, a
second round that reaches users of the first, or a method that is chosen by an exact number of users.
"""

from __future__ import annotations

import inspect

import numpy as np
import pytest
from scipy import stats

from sfumato.schemas.moments import FixedPoint, Statistic
from sfumato.transforms.moments import transform
from sfumato.transforms.moments.client_values import Block
from sfumato.transforms.moments.local.allocation import chosen_method
from sfumato.transforms.moments.local.protocol import MomentsPlan, MomentsState
from sfumato.transforms.moments.local.tally import Query, Tally, count_reports
from sfumato.transforms.privacy.keys import FixedSecret, RunKey, random_bits
from tests.seeds import seeded_rng
from tests.statistics import FLAKE_RATE

USERS = 600
PLAN = {"form": FixedPoint(8), "method": "threshold"}


def key() -> RunKey:
    return RunKey.derive(FixedSecret(b"attacks on thresholds"), {})


def block(codes: np.ndarray) -> Block:
    """Users, each a group of their own, so that tallies show everybody's reports."""
    numbers = np.arange(USERS, dtype=np.uint64)
    bits = random_bits(key().subkey("users"), np.zeros_like(numbers), numbers)[:, 0]
    return Block.from_clients(codes.astype(np.uint8), bits, numbers.astype(np.uint16))


def rounds(plan: MomentsPlan, codes: np.ndarray, queries: list[Query] | None = None) -> list[tuple[Query, Tally]]:
    """The tallies of all rounds; queries: held, or those that follow from the answers."""
    state, found, tallied = MomentsState(plan), block(codes), []
    for number in range(len(plan.stages)):
        asked = plan.next_queries(state) if queries is None else [queries[number]]
        every = [count_reports(found, query, USERS, plan.response, key()) for query in asked]
        state = state.advance(asked, [tally.joined(np.zeros(USERS, np.int64)) for tally in every])
        tallied += zip(asked, every, strict=True)
    return tallied


def test_nobody_reports_in_both_rounds() -> None:
    plan = MomentsPlan(**PLAN, epsilon=1.0)
    (_, first), (_, second) = rounds(plan, seeded_rng(0).integers(0, 256, USERS))
    assert ((first.reports.sum(axis=1) + second.reports.sum(axis=1)) == 1).all()


def test_the_question_does_not_depend_on_the_value() -> None:
    """With the questions held, other values change answers alone; the thresholds are the same, too.

    Without randomised response a user's answer is whether their value reaches a threshold that is theirs: it rises from
    0 to 1 once as the value rises, whatever it was before.
    """
    plan = MomentsPlan(**PLAN)
    asked = [query for query, _ in rounds(plan, seeded_rng(1).integers(0, 256, USERS))]
    slots, answers = [], []
    for value in range(256):
        found = rounds(plan, np.full(USERS, value), asked)
        slots.append(np.hstack([tally.reports for _, tally in found]))
        answers.append(sum(tally.ones.sum(axis=1) for _, tally in found))
    assert all((one == slots[0]).all() for one in slots)
    rises = np.diff(np.array(answers), axis=0)
    assert (rises >= 0).all()
    assert (rises.sum(axis=0) == 1).all()  # no value is below all thresholds or above all: the lowest is 1, the top 255


@pytest.mark.parametrize("value", [0, 255])
def test_every_answer_is_protected(value: int) -> None:
    """All users have one value, so all truths are one answer: the share of lies is that of epsilon."""
    plan = MomentsPlan(**PLAN, epsilon=1.0)
    asked = [query for query, _ in rounds(plan, seeded_rng(2).integers(0, 256, USERS))]
    lies = sum(
        int((tally.zeros if value else tally.ones).sum()) for _, tally in rounds(plan, np.full(USERS, value), asked)
    )
    lie = 1 - plan.response.truth_probability
    assert lie == pytest.approx(1 / (1 + np.e))
    assert stats.binomtest(lies, USERS, lie).pvalue > FLAKE_RATE
    assert stats.binomtest(lies, USERS, lie * 0.5).pvalue < FLAKE_RATE  # half as many lies would be noticed


def test_the_method_is_chosen_by_the_noisy_number_of_users() -> None:
    """A change of one user could change the method; the number is that of the admission, whose epsilon is paid."""
    assert "users=admission.users" in inspect.getsource(transform.PushBits.expand)
    plan = MomentsPlan(form=FixedPoint(8), method="auto", epsilon=1.0, statistics=(Statistic("mean"),))
    for users in (999.0, 1001.0):
        assert plan.method_of(MomentsState(plan, users=users)) == chosen_method(users, 1.0, 8)
    assert plan.admission().epsilon > 0
