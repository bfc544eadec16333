"""Moments: one user more or less is in as many counts as the noise is for, and nothing exact is published.

Finding 2 of guarantee.md's table, for this job: before, `sfumato moments` published the exact number of users and of
reports by bit, and quotas moved other users' bits when somebody joined. Every sensitivity is found by brute force,
under the same key, in whole runs of the protocol. The second round's questions are held, as they are where the noisy
tallies of the first are equal. With a second column a user has two values: they must not have two reports. A threshold
question must not depend on the value, nor reach users of the first round.
"""

from __future__ import annotations

import inspect
import io
import itertools
import json
import math

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from scipy import stats

from sfumato.schemas.moments import FixedPoint, Method, Statistic
from sfumato.transforms.moments.client_values import Block, encode_columns
from sfumato.transforms.moments.groups import Grouping
from sfumato.transforms.moments.local import transform
from sfumato.transforms.moments.local.allocation import chosen_method
from sfumato.transforms.moments.local.plan import MomentsPlan
from sfumato.transforms.moments.local.protocol import MomentsState
from sfumato.transforms.moments.local.quantities import Quantity
from sfumato.transforms.moments.local.release import moments_files
from sfumato.transforms.moments.local.tally import Query, Tally, count_reports, sum_tallies
from sfumato.transforms.privacy.keys import RunKey, random_bits
from sfumato.transforms.privacy.mechanism import discrete_laplace_stddev
from tests.attacks.moments import CITIES, blocks, is_usable, log, release_of, run_key, values_of, without
from tests.seeds import seeded_rng
from tests.statistics import FLAKE_RATE

FORM, SECOND = FixedPoint(5), FixedPoint(4, 0, "split")
ALL = (Statistic("mean"), Statistic("variance"), Statistic("moment:3"), Statistic("geometric_mean"))
OF_PAIRS = tuple(map(Statistic, ("covariance", "correlation", "mean")))
X, Y = range(40), range(-30, 30)  # many beyond what the forms hold


class Counting:
    """Counts the reports of blocks, of each distinct block and query once: one user less changes one block."""

    def __init__(self, plan: MomentsPlan, rows: int, key: RunKey):
        self.plan, self.rows, self.key = plan, rows, key
        self.known: dict[tuple[object, ...], Tally] = {}

    def __call__(self, made: list[Block], query: Query) -> Tally:
        none = Tally(*np.zeros((2, self.rows, len(query.quantity.slots)), np.int64))
        return sum_tallies([none, *(self.of_block(block, query) for block in made)])

    def of_block(self, block: Block, query: Query) -> Tally:
        arrays = (block.codes, block.random_bits, block.groups)
        name = (id(query), *(None if one is None else one.tobytes() for one in arrays))
        if name not in self.known:
            self.known[name] = count_reports(block, query, self.rows, self.plan.response, self.key)
        return self.known[name]


def rows_of(grouping: Grouping | None) -> int:
    return 1 if grouping is None else grouping.tally_rows


def ran(made: list[Block], plan: MomentsPlan, count: Counting) -> tuple[MomentsState, list[Tally]]:
    """The whole run, and its exact tallies."""
    state, exact = MomentsState(plan), []
    for _ in plan.stages:
        queries = state.next_queries()
        tallies = [count(made, query) for query in queries]
        exact += tallies
        state = state.advance(queries, plan.protect(queries, tallies, count.key))
    return state, exact


@pytest.mark.parametrize("grouping", [None, Grouping(CITIES)], ids=["all", "groups"])
@pytest.mark.parametrize("second", [None, SECOND], ids=["one", "pair"])
@pytest.mark.parametrize(
    ("method", "epsilon", "reports"), [("adaptive", 1.0, 2), ("threshold", 1.0, 1), ("weighted", None, 3)]
)
def test_one_user_adds_one_to_a_count_for_each_reported_bit(
    reports: int, grouping: Grouping | None, second: FixedPoint | None, method: Method, epsilon: float | None
) -> None:
    """All of them in the counts of one query, also where a user has two numbers."""
    statistics = ALL if second is None else OF_PAIRS
    plan = MomentsPlan(
        form=FORM, second=second, statistics=statistics, method=method, epsilon=epsilon, bits_per_client=reports
    )
    key, values = run_key(reports), values_of(grouping, FORM, second or False)
    batch, count = log(12, reports, X, Y if second else None), Counting(plan, rows_of(grouping), key)
    everybody = blocks(batch, values, key)
    queries = [query for query, _ in ran(everybody, plan, count)[0].tallies]
    before = [count(everybody, query) for query in queries]
    if second is not None:
        assert {query.quantity.kind for query in queries} == set(plan.quantities)
    for gone in range(12):
        kept = blocks(without(batch, gone), values, key)
        moved = []
        for query, full in zip(queries, before, strict=True):
            less = count(kept, query)
            changes = np.stack([full.ones - less.ones, full.zeros - less.zeros])
            assert set(changes.ravel().tolist()) <= {0, 1}  # nobody else's report moved
            moved.append(int(changes.sum()))
        assert sorted(moved)[:-1] == [0] * (len(moved) - 1)
        assert max(moved) == reports * is_usable(batch, gone)


def test_the_order_of_rows_chooses_no_pair() -> None:
    """The first number of one record never goes with the second number of another."""
    batch = log(30, 2, X, Y)
    shuffled = batch.take(pa.array(seeded_rng(3).permutation(batch.num_rows)))
    for values in (values_of(None, FORM, SECOND), values_of(None, None, True)):
        found = [np.concatenate([one.codes for one in blocks(rows, values, run_key())]) for rows in (batch, shuffled)]
        assert sorted(found[0].tolist(), key=str) == sorted(found[1].tolist(), key=str)
    frame = batch.to_pandas().dropna()
    assert set(found[0].tolist()) <= set((frame["x"].to_numpy() + 1j * frame["y"].to_numpy()).tolist())


def test_no_pair_changes_a_report_by_more_than_epsilon() -> None:
    """Every bit of the product of every two pairs: a report is its bit or the complement, with odds of e^epsilon."""
    epsilon = 0.7
    plan = MomentsPlan(form=FORM, second=SECOND, statistics=OF_PAIRS, epsilon=epsilon)
    grid = np.array([x + 1j * y for x, y in itertools.product(range(32), range(-15, 16))])
    codes, _ = encode_columns(grid, FORM, SECOND)
    product = Quantity(FORM, "product", 11.3, second=SECOND, second_centre=-0.4)
    units = product.codes(codes, np.full(len(codes), 0.5))
    truth = plan.response.truth_probability
    for slot in range(len(product.slots)):
        bits = product.slots.bits(units, np.full(len(units), slot))
        ones = np.where(bits, truth, 1 - truth)
        for report in (ones, 1 - ones):
            assert math.log(report.max() / report.min()) <= epsilon


def test_the_noise_is_for_that_many_counts() -> None:
    """Its scale is what a user's reports and the tallies' part of epsilon need, with groups and without."""
    for epsilon, reports in itertools.product((0.1, 1.0, 3.0), (1, 2, 5)):
        plan = MomentsPlan(form=FORM, epsilon=epsilon, bits_per_client=reports)
        assert plan.noise_stddev >= discrete_laplace_stddev(epsilon, reports)
        assert plan.tally_epsilon is not None
        assert plan.tally_epsilon + plan.admission().cost <= epsilon * (1 + 1e-12)
        apart = MomentsPlan(form=FORM, epsilon=epsilon, release_epsilon=0.5, bits_per_client=reports)
        assert apart.noise_stddev >= discrete_laplace_stddev(0.5, reports)


@pytest.mark.parametrize(
    ("grouping", "method"),
    [(None, "adaptive"), (Grouping(CITIES, 1), "adaptive"), (None, "threshold")],
    ids=["all", "groups", "thresholds"],
)
def test_the_release_is_a_function_of_the_noisy_tallies_alone(grouping: Grouping | None, method: Method) -> None:
    """Two logs whose noisy tallies are the same have the same files: one user more, and noise that takes them away."""
    plan = MomentsPlan(form=FORM, statistics=ALL[:2], method=method, epsilon=1.0)
    batch, values = log(60, 1, range(32)), values_of(grouping, FORM)
    count = Counting(plan, rows_of(grouping), run_key())
    state, _ = ran(blocks(batch, values, run_key()), plan, count)
    gone = next(user for user in range(60) if is_usable(batch, user))
    kept = blocks(without(batch, gone), values, run_key())
    replayed, rounds = MomentsState(plan), iter(state.tallies)
    for stage in plan.stages:
        queries, noisy = zip(*(next(rounds) for _ in stage), strict=True)
        found = replayed.next_queries()  # what is asked next follows from the noisy tallies
        for one, query in zip(found, queries, strict=True):
            assert one.probabilities.tolist() == query.probabilities.tolist()
            assert one.quantity.centre == query.quantity.centre
        exact = [count(kept, query) for query in found]
        noise = [Tally(one.ones - few.ones, one.zeros - few.zeros) for one, few in zip(noisy, exact, strict=True)]
        replayed = replayed.advance(found, [few + one for few, one in zip(exact, noise, strict=True)])
    assert moments_files(state, release_of(grouping)) == moments_files(replayed, release_of(grouping))


@pytest.mark.false_alarm(2e-9)
@pytest.mark.parametrize("grouping", [None, Grouping(CITIES, 1)], ids=["all", "groups"])
def test_no_count_is_published_as_it_is(grouping: Grouping | None) -> None:
    """A published number equals the exact one no more often than its noise is 0.

    The noise of a bit's reports is four discrete Laplace variates of epsilon 0.5 or more variance: together they are 0
    with a probability below 8%. Numbers of a whole round, or of all clients, have the noise of ten variates and
    more: they are exact with a probability below 5% each, and under all of 8 keys with one below 1e-10.
    """
    plan = MomentsPlan(form=FORM, statistics=ALL[:1], epsilon=0.5)
    batch, values = log(100, 3, range(32)), values_of(grouping, FORM)
    of_bits, of_more = [], []
    for number in range(8):
        key = run_key(number)
        state, exact = ran(blocks(batch, values, key), plan, Counting(plan, rows_of(grouping), key))
        files = moments_files(state, release_of(grouping))
        results = json.loads(files["manifest.json"])["results"]
        reports = np.array(pq.read_table(io.BytesIO(files["bits.parquet"]))["reports"])
        true = sum(one.reports.sum(axis=0) for one in exact)
        of_bits.append(reports == true)
        rounds = zip(results["rounds"], exact, strict=True)
        more = [one["reports"] == int(counted.reports.sum()) for one, counted in rounds]
        of_more.append([*more, results["clients"] == int(true.sum())])
    equal = np.concatenate(of_bits)
    assert stats.binomtest(int(equal.sum()), len(equal), 0.08, "greater").pvalue > FLAKE_RATE
    assert not np.all(of_more, axis=0).any()


# --- thresholds ---

USERS = 600
THRESHOLDS = {"form": FixedPoint(8), "method": "threshold"}


def rounds(plan: MomentsPlan, codes: np.ndarray, queries: list[Query] | None = None) -> list[tuple[Query, Tally]]:
    """The tallies of all rounds; queries: held, or those that follow from the answers.

    Each user is a group of their own, so that tallies show everybody's reports.
    """
    users = len(codes)
    numbers = np.arange(users, dtype=np.uint64)
    bits = random_bits(run_key().subkey("users"), np.zeros_like(numbers), numbers)[:, 0]
    block = Block.from_clients(codes.astype(np.uint8), bits, numbers.astype(np.uint16))
    state, tallied = MomentsState(plan), []
    for number in range(len(plan.stages)):
        round_queries = state.next_queries() if queries is None else [queries[number]]
        every = [count_reports(block, query, users, plan.response, run_key()) for query in round_queries]
        state = state.advance(round_queries, [tally.joined(np.zeros(users, np.int64)) for tally in every])
        tallied += zip(round_queries, every, strict=True)
    return tallied


def test_nobody_reports_in_both_rounds() -> None:
    plan = MomentsPlan(**THRESHOLDS, epsilon=1.0)
    (_, first), (_, second) = rounds(plan, seeded_rng(0).integers(0, 256, USERS))
    assert ((first.reports.sum(axis=1) + second.reports.sum(axis=1)) == 1).all()


def test_the_question_does_not_depend_on_the_value() -> None:
    """With the questions held, other values change answers alone; the thresholds are the same, too.

    Without randomised response a user's answer is whether their value reaches a threshold that is theirs: it rises from
    0 to 1 once as the value rises, whatever it was before.
    """
    plan = MomentsPlan(**THRESHOLDS)
    round_queries = [query for query, _ in rounds(plan, seeded_rng(1).integers(0, 256, USERS))]
    slots, answers = [], []
    for value in range(256):
        found = rounds(plan, np.full(USERS, value), round_queries)
        slots.append(np.hstack([tally.reports for _, tally in found]))
        answers.append(sum(tally.ones.sum(axis=1) for _, tally in found))
    assert all((one == slots[0]).all() for one in slots)
    rises = np.diff(np.array(answers), axis=0)
    assert (rises >= 0).all()
    assert (rises.sum(axis=0) == 1).all()  # no value is below all thresholds or above all: the lowest is 1, the top 255


@pytest.mark.false_alarm(3e-9)
@pytest.mark.parametrize("value", [0, 255])
def test_every_answer_is_protected(value: int) -> None:
    """All users have one value, so all truths are one answer: the share of lies is that of epsilon.

    Of 2,000 users so many lie that half as many would be noticed, but with a probability below 1e-9.
    """
    plan, users = MomentsPlan(**THRESHOLDS, epsilon=1.0), 2_000
    round_queries = [query for query, _ in rounds(plan, seeded_rng(2).integers(0, 256, users))]
    tallies = [tally for _, tally in rounds(plan, np.full(users, value), round_queries)]
    lies = sum(int((tally.zeros if value else tally.ones).sum()) for tally in tallies)
    lie = 1 - plan.response.truth_probability
    assert lie == pytest.approx(1 / (1 + np.e))
    assert stats.binomtest(lies, users, lie).pvalue > FLAKE_RATE
    assert stats.binomtest(lies, users, lie * 0.5).pvalue < FLAKE_RATE


def test_the_method_is_chosen_by_the_noisy_number_of_users() -> None:
    """A change of one user could change the method; the number is that of the admission, whose epsilon is paid."""
    assert "users=admission.users" in inspect.getsource(transform.PushBits.expand)
    plan = MomentsPlan(form=FixedPoint(8), method="auto", epsilon=1.0, statistics=(Statistic("mean"),))
    for users in (999.0, 1001.0):
        assert MomentsState(plan, users=users).method == chosen_method(users, 1.0, 8)
    assert plan.admission().cost > 0
