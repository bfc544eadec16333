"""The ledger of rotating cohorts against a brute-force account of every user, on 10,000 random schedules.

A user is one cohort in each partition. The brute force keeps what every user has spent in every window. The ledger must
accept a charge if and only if no user exceeds a limit by it: never more than the budget, and nothing left unused.
"""

from __future__ import annotations

import itertools
import json
from dataclasses import dataclass, field, replace
from datetime import date, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from numpy.random import Generator, default_rng
from numpy.typing import NDArray

from sfumato.pipelines.command_line import cli
from sfumato.schemas.errors import BudgetError, LedgerError
from sfumato.schemas.ledger import Charge, Limit, Period
from sfumato.schemas.rotation import Rotation
from sfumato.transforms.privacy.keys import FixedSecret
from sfumato.transforms.privacy.ledger.history import RESERVE, charge_content, replay
from sfumato.transforms.privacy.ledger.windows import find_overrun, fits, max_spent, spent_in_window
from sfumato.transforms.privacy.mechanism import epsilon_for_delta, rho_for_delta
from sfumato.transforms.privacy.secrets import FileSecret
from sfumato.transforms.privacy.user_hashes import cohort_of, rotation_key, with_partition
from tests.attacks.releases import chained, entries_of
from tests.keys import write_key
from tests.rejections import rejects
from tests.unit.privacy.ledger.helpers import charge, ledger

ORIGIN = date(2026, 1, 1)
DAYS = 20  # that are charged
BEFORE = 15  # days of the longest window that begins before the first day
UNIT = Decimal("0.001")
DATASET = "city"


@dataclass
class EveryUser:
    """What every user has spent in every window of each limit, in integers or floats.

    Attributes:
        cohorts: of each partition.
        windows: lengths in days.
        limits: what each user may spend in each of these windows.
        spent: of each length: float64[users, starts], where the first window begins BEFORE days before ORIGIN.
    """

    cohorts: tuple[int, ...]
    windows: tuple[int, ...]
    limits: tuple[float, ...]
    users: NDArray[np.int64] = field(init=False)
    spent: list[NDArray[np.float64]] = field(init=False)

    def __post_init__(self) -> None:
        self.users = np.array(list(itertools.product(*(range(1, one + 1) for one in self.cohorts))))
        self.spent = [np.zeros((len(self.users), BEFORE + DAYS + 5)) for _ in self.windows]

    def queried_users(self, rotation: tuple[int, int] | None) -> NDArray[np.bool_]:
        """Who counts a charge: all users, or those of a cohort in a partition."""
        return np.ones(len(self.users), bool) if rotation is None else self.users[:, rotation[0]] == rotation[1]

    def left(self, rotation: tuple[int, int] | None, first: int, last: int) -> float:
        """What the asked user who has spent the most may still spend, over all windows that share a day."""
        who = self.queried_users(rotation)
        return min(
            limit - spent[who, first - days + 1 + BEFORE : last + 1 + BEFORE].max()
            for days, limit, spent in zip(self.windows, self.limits, self.spent, strict=True)
        )

    def after(self, amount: float, rotation: tuple[int, int] | None, first: int, last: int) -> NDArray[np.float64]:
        """What each asked user would have spent in each window that shares a day, of all lengths: one dimension."""
        who = self.queried_users(rotation)
        found = [
            spent[who, first - days + 1 + BEFORE : last + 1 + BEFORE].ravel()
            for days, spent in zip(self.windows, self.spent, strict=True)
        ]
        return np.concatenate(found) + amount

    def add(self, amount: float, rotation: tuple[int, int] | None, first: int, last: int) -> None:
        """Adds to the account of everybody who is asked."""
        who = self.queried_users(rotation)
        for days, spent in zip(self.windows, self.spent, strict=True):
            spent[who, first - days + 1 + BEFORE : last + 1 + BEFORE] += amount


def partition(number: int) -> str:
    return f"{number:032x}"


def one_charge(name: str, first: int, last: int, rotation: tuple[int, int] | None, cohorts: tuple[int, ...]) -> Charge:
    """A charge of these days for all users, or for a cohort (partition's number, cohort). It costs 1."""
    period = Period(ORIGIN + timedelta(days=first), ORIGIN + timedelta(days=last))
    own = None if rotation is None else Rotation(rotation[1], cohorts[rotation[0]], partition(rotation[0]))
    return Charge(
        release_id=name,
        job="heatmap",
        dataset=DATASET,
        period=period,
        epsilon=Decimal(1),
        delta=Decimal(0),
        request="",
        binding="",
        rotation=own,
    )


def drawn(rng: Generator, cohorts: tuple[int, ...], night: int) -> tuple[int, int, tuple[int, int] | None]:
    """A random charge: its first and last day, and whom it asks. Mostly the night's cohort, as a refresh would."""
    late = rng.random() < 0.3
    first = int(rng.integers(0, DAYS)) if late else night
    last = min(first + (int(rng.integers(0, 4)) if rng.random() < 0.2 else 0), DAYS - 1)
    if rng.random() < 0.25:
        return first, last, None
    which = int(rng.integers(0, len(cohorts)))
    number = cohorts[which]
    return first, last, (which, int(rng.integers(1, number + 1)) if rng.random() < 0.3 else 1 + first % number)


def schedule_of_epsilons(rng: Generator) -> int:
    """Charges a random schedule, each decision against the brute force. Returns how many charges were refused."""
    cohorts = tuple(int(one) for one in rng.choice([1, 2, 3, 4, 5, 7], rng.integers(1, 4)))
    windows = tuple(sorted({int(one) for one in rng.choice([1, 2, 5, 9, BEFORE], rng.integers(1, 4))}))
    most = tuple(sorted(int(one) for one in rng.integers(500, 3000, len(windows))))
    limits = [Limit(one * UNIT, Decimal(0), days) for one, days in zip(most, windows, strict=True)]
    everybody = EveryUser(cohorts, windows, tuple(map(float, most)))
    charges: list[Charge] = []
    rejected = night = 0
    for number in range(10):
        night = min(night + int(rng.choice([1, 1, 1, 2, 4])), DAYS - 1)  # nights are missing
        first, last, rotation = drawn(rng, cohorts, night)
        left = round(everybody.left(rotation, first, last))
        candidates = [left, left + 1, -(-99 * left // 100), most[0], int(rng.integers(1, most[-1]))]
        amount = max(int(rng.choice(candidates, p=[0.2, 0.15, 0.15, 0.25, 0.25])), 1)
        new = replace(one_charge(f"r{number}", first, last, rotation, cohorts), epsilon=amount * UNIT)
        accepted = find_overrun(charges, new, limits) is None
        assert accepted == (amount <= left), (cohorts, limits, charges, new)
        if not accepted:
            rejected += 1
            continue
        if rng.random() < 0.1:  # it is refused after its charge, and settled at a part of it
            amount = -(-amount // 10)
            new = replace(new, epsilon=amount * UNIT)
        everybody.add(amount, rotation, first, last)
        charges.append(new)
        assert all((spent <= limit).all() for spent, limit in zip(everybody.spent, everybody.limits, strict=True))
    check_accounts(rng, everybody, charges, limits)
    return rejected


def check_accounts(rng: Generator, everybody: EveryUser, charges: list[Charge], limits: list[Limit]) -> None:
    """The account of a random user, and that of the worst, in a random window and in the fullest."""
    user = int(rng.integers(0, len(everybody.users)))
    cohorts = {partition(number): int(one) for number, one in enumerate(everybody.users[user])}
    end = int(rng.integers(0, DAYS))
    for limit, spent in zip(limits, everybody.spent, strict=True):
        last, start = ORIGIN + timedelta(days=end), end - limit.days + 1 + BEFORE
        assert spent_in_window(charges, DATASET, last, limit, cohorts) == Decimal(int(spent[user, start])) * UNIT
        assert spent_in_window(charges, DATASET, last, limit) == Decimal(int(spent[:, start].max())) * UNIT
        fullest, worst = max_spent(charges, DATASET, limit, cohorts), max_spent(charges, DATASET, limit)
        assert (fullest[1] if fullest else 0) == Decimal(int(spent[user].max())) * UNIT
        assert (worst[1] if worst else 0) == Decimal(int(spent.max())) * UNIT


@pytest.mark.slow
@pytest.mark.parametrize("part", [pytest.param(one, marks=[pytest.mark.exhaustive] * (one >= 3)) for one in range(9)])
def test_random_schedules_use_every_users_budget_and_no_more(part: int) -> None:
    rng = default_rng([20, part])
    rejected = sum(schedule_of_epsilons(rng) for _ in range(1000))
    assert 1000 < rejected < 9000  # the test is about refusals as well as acceptances


def schedule_of_rhos(rng: Generator) -> None:
    """The same for Gaussian noise under limits with a delta: every user's rhos, or epsilons and deltas, must fit."""
    cohorts = tuple(int(one) for one in rng.choice([1, 2, 3, 5, 7], rng.integers(1, 4)))
    windows = tuple(sorted({int(one) for one in rng.choice([1, 5, 9, BEFORE], rng.integers(1, 3))}))
    epsilon, delta, own_delta = float(rng.choice([0.5, 1.0, 3.0])), 1e-6, 1e-7
    limits = [Limit(Decimal(str(epsilon)), Decimal("1e-6"), days) for days in windows]
    most = (rho_for_delta(epsilon, delta), epsilon, delta)
    accounts = [EveryUser(cohorts, windows, (one,) * len(windows)) for one in most]  # of rhos, epsilons, deltas
    charges: list[Charge] = []
    night = 0
    for number in range(8):
        night = min(night + int(rng.choice([1, 1, 1, 2, 4])), DAYS - 1)
        first, last, rotation = drawn(rng, cohorts, night)
        rho = max(float(rng.choice([0.99, 1.01, 0.3]) * accounts[0].left(rotation, first, last)), 0.02 * most[0])
        amounts = rho, epsilon_for_delta(rho, own_delta), own_delta
        exact = dict(zip(("rho", "epsilon", "delta"), (Decimal(repr(one)) for one in amounts), strict=True))
        new = replace(one_charge(f"r{number}", first, last, rotation, cohorts), **exact)
        accepted = find_overrun(charges, new, limits) is None
        after = [one.after(amount, rotation, first, last) for one, amount in zip(accounts, amounts, strict=True)]
        r, e, d = (one / limit for one, limit in zip(after, most, strict=True))
        # Rhos are composed to a delta with a rounding error of 1e-9.
        for tolerance, decision in ((1 - 1e-6, True), (1 + 1e-6, False)):
            if ((r <= tolerance) | (e <= tolerance) & (d <= tolerance)).all() == decision:
                assert accepted == decision, (cohorts, limits, charges, new)
        if accepted:
            for one, amount in zip(accounts, amounts, strict=True):
                one.add(amount, rotation, first, last)
            charges.append(new)


@pytest.mark.slow
def test_gaussian_schedules_keep_every_user_to_the_budget() -> None:
    rng = default_rng([20, 100])
    for _ in range(1000):
        schedule_of_rhos(rng)


def test_mixed_noise_is_composed_for_every_user() -> None:
    """Laplace and Gaussian charges of two partitions and of all users, against `fits` for every user and window."""
    rng, cohorts = default_rng([20, 200]), (2, 3)
    limit = Limit.parse("1:1e-6/6d")
    kinds = [
        {"epsilon": Decimal("0.3")},
        {"epsilon": Decimal("0.2"), "delta": Decimal("1e-7")},
        {"epsilon": Decimal("0.4"), "delta": Decimal("1e-7"), "rho": Decimal(repr(rho_for_delta(0.4, 1e-7)))},
    ]
    decisions = []
    for _ in range(12):
        charges: list[Charge] = []
        for number in range(12):
            first, last, rotation = drawn(rng, cohorts, number)
            kind = kinds[int(rng.integers(0, len(kinds)))]
            new = replace(one_charge(f"r{number}", first, last, rotation, cohorts), **kind)
            accepted = find_overrun(charges, new, [limit]) is None
            expected = True
            for user in itertools.product(*(range(1, one + 1) for one in cohorts)):
                own = [
                    one
                    for one in (*charges, new)
                    if one.rotation is None or user[int(one.rotation.partition, 16)] == one.rotation.cohort
                ]
                if new not in own:
                    continue
                for start in range(first - limit.days + 1, last + 1):
                    begin = ORIGIN + timedelta(days=start)
                    window = Period(begin, begin + timedelta(days=limit.days - 1))
                    expected &= fits([one for one in own if one.period.overlaps(window)], limit)
            assert accepted == expected, (charges, new)
            decisions.append(accepted)
            if accepted:
                charges.append(new)
    assert 20 < sum(decisions) < len(decisions) - 20


# --- through the ledger and its command ---


def rotated(release_id: str, day: date, key_file: str, dataset: str, epsilon: str, **more: Any) -> Charge:
    """The charge of a night's cohort of three."""
    key = rotation_key(FileSecret(key_file), dataset, 3, "user_id")
    own = charge(release_id, str(day), epsilon, dataset=dataset)
    return replace(own, rotation=with_partition(Rotation.of_night(day, 3), key), **more)


def test_the_command_shows_the_account_of_the_brute_force(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Through a ledger on a disk: a refusal, a charge of all users, and a file that counts for two datasets."""
    write_key(tmp_path / "key")
    key_file, limits = str(tmp_path / "key"), Limit.parse_all("1/3d,2/6d")
    book, nights = ledger(tmp_path), [ORIGIN + timedelta(days=number) for number in range(6)]
    for number, night in enumerate(nights):
        book.reserve(rotated(f"n{number}", night, key_file, "city", "0.75"), limits)
    book.settle("n4", "0.05", "0", "too few users")
    book.reserve(charge("all", str(nights[5]), "0.25", dataset="city"))
    file = ("f" * 32,)
    book.reserve(rotated("town", nights[0], key_file, "town", "0.2", files=file), limits)
    again = rotated("again", nights[4], key_file, "city", "0.7", files=file)
    with pytest.raises(BudgetError):
        book.reserve(replace(again, epsilon=Decimal("0.71")), allow_reuse=True)
    book.reserve(again, allow_reuse=True)
    charges = book.history().charges
    assert [(one.dataset, one.rotation) for one in charges if one.release_id == "again"] == [
        ("city", again.rotation), ("town", again.rotation),
    ]  # fmt: skip

    users, cohorts_by_partition = pa.array(np.arange(12)), {}
    for name in ("city", "town"):
        key = rotation_key(FileSecret(key_file), name, 3, "user_id")
        found = with_partition(Rotation(1, 3), key).partition
        cohorts_by_partition[found] = cohort_of(users, key, 3).tolist()
    ends = [ORIGIN + timedelta(days=number) for number in range(15)]
    for user, dataset in itertools.product(range(12), ("city", "town")):
        arguments = ["--ledger", str(tmp_path / "ledger.db"), "--dataset", dataset, "--user_id", str(user)]
        arguments += ["--key_file", key_file, "--format", "json"]
        assert cli.main(["ledger", "account", *arguments]) == 0
        account = json.loads(capsys.readouterr().out)
        counted = [one for one in charges if one.dataset == dataset]
        own = [
            one
            for one in counted
            if one.rotation is None or cohorts_by_partition[one.rotation.partition][user] == one.rotation.cohort
        ]
        assert [one["release_id"] for one in account["charges"]] == [one.release_id for one in own]
        for shown, limit in zip(account["limits"], limits, strict=True):
            spent = {end: Decimal(0) for end in ends}
            for end in ends:
                window = {end - timedelta(days=number) for number in range(limit.days)}
                spent[end] += sum(one.epsilon for one in own if window & set(one.period.days()))
            last = max(one.period.last for one in counted)
            assert Decimal(shown["epsilon_spent"]) == spent[last]
            assert Decimal(shown["epsilon_left"]) == limit.epsilon - spent[last]
            assert Decimal(shown["largest_epsilon"] or 0) == max(spent.values())


def test_the_account_of_one_user_does_not_change_anothers(tmp_path: Path) -> None:
    """A cohort whose budget is used up leaves the others' as it was, and is refused alone."""
    book, limits = ledger(tmp_path), Limit.parse_all("1/30d")

    def spent() -> list[Decimal]:
        charges, day = book.history().charges, date(2026, 1, 5)
        return [spent_in_window(charges, DATASET, day, limits[0], {partition(1): cohort}) for cohort in (1, 2, 3)]

    def asks(name: str, cohort: int, epsilon: str) -> Charge:
        return replace(charge(name, "2026-01-05", epsilon, dataset=DATASET), rotation=Rotation(cohort, 3, partition(1)))

    book.reserve(asks("one", 1, "0.4"), limits)
    book.reserve(asks("two", 2, "0.7"))
    assert spent() == [Decimal("0.4"), Decimal("0.7"), 0]
    book.reserve(asks("more", 1, "0.6"))
    assert spent() == [1, Decimal("0.7"), 0]
    with pytest.raises(BudgetError):
        book.reserve(asks("too-much", 1, "0.001"))
    book.reserve(asks("three", 3, "1"))
    book.reserve(asks("two-more", 2, "0.3"))
    with pytest.raises(BudgetError):  # everybody has spent everything
        book.reserve(charge("all", "2026-01-05", "0.001", dataset=DATASET))


def test_another_key_or_number_of_cohorts_charges_again(tmp_path: Path) -> None:
    """Who is in a cohort of one division may be in any cohort of another."""
    book = ledger(tmp_path)
    night = charge("one", "2026-01-05", dataset=DATASET)
    book.reserve(replace(night, rotation=Rotation(1, 3, partition(1))), Limit.parse_all("1/30d"))
    for rotation in (Rotation(2, 3, partition(2)), Rotation(2, 4, partition(3))):
        with pytest.raises(BudgetError):
            book.reserve(replace(night, release_id="two", rotation=rotation))
    book.reserve(replace(night, release_id="two", rotation=Rotation(2, 3, partition(1))))


def test_a_partition_has_one_number_of_cohorts(tmp_path: Path) -> None:
    """Otherwise two charges that ask the same users could be stated as different cohorts."""
    book = ledger(tmp_path)
    night = charge("one", "2026-01-05", dataset=DATASET)
    book.reserve(replace(night, rotation=Rotation(1, 3, partition(1))), Limit.parse_all("9/30d"))
    forged = replace(night, release_id="two", rotation=Rotation(2, 4, partition(1)))
    with rejects("rotation"):
        book.reserve(forged)
    with pytest.raises(LedgerError, match="number of cohorts"):
        replay(chained(entries_of(tmp_path), (RESERVE, charge_content(forged))))


@pytest.mark.false_alarm(1e-9)
def test_who_is_asked_depends_on_the_key_and_the_id_alone() -> None:
    """Not on other users, their order, their number or their records."""
    rng, key = default_rng([20, 400]), rotation_key(FixedSecret(b"s" * 32), DATASET, 30, "user_id")
    ids = rng.permutation(5000)
    cohorts = dict(zip(ids.tolist(), cohort_of(pa.array(ids), key, 30).tolist(), strict=True))
    for _ in range(20):
        some = rng.choice(5000, int(rng.integers(1, 3000)))  # with repetition, as in logs
        assert cohort_of(pa.array(some), key, 30).tolist() == [cohorts[one] for one in some.tolist()]
    other = cohort_of(pa.array(np.arange(5000)), rotation_key(FixedSecret(b"t" * 32), DATASET, 30, "user_id"), 30)
    same = sum(cohorts[number] == cohort for number, cohort in enumerate(other.tolist()))
    assert abs(same - 5000 / 30) < 7 * (5000 / 30) ** 0.5
