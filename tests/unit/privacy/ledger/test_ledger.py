"""Reserve, then commit; the chain; limits; refusals; cohorts. Each refusal also shows that nothing was written."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sqlite3
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from sfumato.schemas.errors import BudgetError, FormatError, LedgerError, RequestError
from sfumato.schemas.ledger import Charge, Limit
from sfumato.schemas.rotation import Rotation
from sfumato.transforms.privacy.ledger.charge_rules import ReusedError
from sfumato.transforms.privacy.ledger.history import (
    RESERVE,
    SETTLE,
    Reservation,
    charge_content,
    entry_bytes,
    read_entries,
    replay,
)
from sfumato.transforms.privacy.ledger.ledger import Ledger, open_ledger
from sfumato.transforms.privacy.ledger.stores import SqliteStore
from tests.rejections import rejects
from tests.unit.privacy.ledger.helpers import charge, forks, ledger

LIMITS = Limit.parse_all("3/7d,1/1d")


def store(folder: Path) -> SqliteStore:
    return SqliteStore(str(folder / "ledger.db"))


def forged(entries: list[bytes], kind: str, content: dict[str, Any]) -> list[bytes]:
    """The entries and one more, rightly chained."""
    head = read_entries(entries)[-1]["hash"]
    return [*entries, entry_bytes(len(entries), head, "2026-11-21T03:00:00+00:00", "nonce", kind, content)]


def entries_of(folder: Path) -> list[bytes]:
    return SqliteStore(str(folder / "ledger.db")).read()


def test_reserve_then_commit(tmp_path: Path) -> None:
    book = ledger(tmp_path)
    assert book.history().entries == 0
    assert not list(tmp_path.iterdir())  # looking makes no file
    reservation = book.reserve(charge("one"), LIMITS)
    assert (reservation.index, reservation.manifest) == (1, None)
    assert reservation.time == "2026-11-21T03:00:00+00:00"
    book.commit("one", "abc")
    history = book.history(with_limits=True)
    assert history.entries == 3
    assert history.reservations["one"].manifest == "abc"
    assert history.reservations["one"].hash == reservation.hash
    assert history.limits == {"taxis": LIMITS}


def test_a_release_is_charged_once(tmp_path: Path) -> None:
    book = ledger(tmp_path)
    first = book.reserve(charge("one"), LIMITS)
    assert book.reserve(charge("one"), LIMITS) == first
    assert book.reserve(charge("one")) == first
    book.commit("one", "abc")
    book.commit("one", "abc")
    assert book.reserve(charge("one"), LIMITS).index == first.index
    assert book.history().entries == 3


@pytest.mark.parametrize(
    "changed",
    [
        {"binding": "other"},
        {"request": "other"},
        {"epsilon": "0.5"},
        {"period": "2026-11-19"},
        {"starts_from": "earlier"},
    ],
)
def test_a_release_id_stands_for_one_request_on_one_input(tmp_path: Path, changed: dict[str, str]) -> None:
    book = ledger(tmp_path)
    book.reserve(charge("one"), LIMITS)
    with rejects("release_id", ReusedError):
        book.reserve(charge("one", **changed), LIMITS)
    assert book.history().entries == 2


def test_the_error_says_when_it_would_fit(tmp_path: Path) -> None:
    book = ledger(tmp_path)
    for number in (1, 2, 3):
        book.reserve(charge(f"r{number}", f"2026-11-0{number}"), LIMITS)
    with pytest.raises(BudgetError, match=r"epsilon 3 in 7 days.*data of 2026-11-08 or later would fit"):
        book.reserve(charge("r4", "2026-11-04"), LIMITS)
    with pytest.raises(BudgetError, match=r"epsilon 1 in 1 day.*data of 2026-11-08 or later would fit"):
        book.reserve(charge("again", "2026-11-03", "0.1"), LIMITS)
    with pytest.raises(BudgetError, match="never fits"):
        book.reserve(charge("large", "2026-12-03", "1.5"), LIMITS)
    assert book.history().entries == 4
    book.reserve(charge("r8", "2026-11-08"), LIMITS)


def test_limits_are_set_once_and_changed_by_hand(tmp_path: Path) -> None:
    book = ledger(tmp_path)
    with rejects("budget"):
        book.reserve(charge("one"))
    assert book.history().entries == 0
    book.reserve(charge("one"), LIMITS)
    with rejects("budget"):
        book.reserve(charge("two", "2026-11-19"), Limit.parse_all("20/7d"))
    book.set_limits("taxis", Limit.parse_all("20/7d"))
    book.set_limits("taxis", Limit.parse_all("20/7d"))
    assert book.history().entries == 3
    book.reserve(charge("two"), Limit.parse_all("20/7d"))
    book.set_limits("taxis", Limit.parse_all("1/7d"))  # what was spent before stays right
    assert book.history(with_limits=True).limits["taxis"] == Limit.parse_all("1/7d")
    with pytest.raises(BudgetError):
        book.reserve(charge("three", "2026-11-22", "0.1"))


def test_nothing_is_published_that_was_not_reserved(tmp_path: Path) -> None:
    book = ledger(tmp_path)
    with rejects("ledger", LedgerError):
        book.commit("one", "abc")
    book.reserve(charge("one"), LIMITS)
    book.commit("one", "abc")
    with rejects("ledger", LedgerError):
        book.commit("one", "abd")


# --- tampering ---


@pytest.fixture
def filled(tmp_path: Path) -> list[bytes]:
    book = ledger(tmp_path)
    for number in (1, 2, 3):
        book.reserve(charge(f"r{number}", f"2026-11-0{number}"), LIMITS)
        book.commit(f"r{number}", f"{number}" * 64)
    return store(tmp_path).read()


def test_every_changed_byte_shows(filled: list[bytes]) -> None:
    assert len(read_entries(filled)) == 7
    for index, entry in enumerate(filled):
        for place in range(0, len(entry), 7):
            changed = entry[:place] + bytes([entry[place] ^ 1]) + entry[place + 1 :]
            with pytest.raises(LedgerError):
                replay([*filled[:index], changed, *filled[index + 1 :]])


def test_removed_repeated_and_reordered_entries_show(filled: list[bytes]) -> None:
    for index in range(len(filled) - 1):
        with pytest.raises(LedgerError):
            replay(filled[:index] + filled[index + 1 :])
        with pytest.raises(LedgerError):
            replay([*filled[: index + 1], filled[index], *filled[index + 1 :]])
        with pytest.raises(LedgerError):
            replay([*filled[:index], filled[index + 1], filled[index], *filled[index + 2 :]])


def test_entries_of_another_chain_show(tmp_path: Path, filled: list[bytes]) -> None:
    """Each is whole, and has the number of the one whose place it takes."""
    (tmp_path / "other").mkdir()
    book = ledger(tmp_path / "other")
    for number in (1, 2, 3):
        book.reserve(charge(f"r{number}", f"2026-11-0{number}"), LIMITS)
        book.commit(f"r{number}", f"{number}" * 64)
    other = store(tmp_path / "other").read()
    assert len(read_entries(other)) == len(filled)
    for index in range(1, len(filled)):
        with pytest.raises(LedgerError):
            read_entries([*filled[:index], *other[index:]])


def test_an_entry_of_a_later_format_is_not_guessed_at(filled: list[bytes]) -> None:
    """A format that a hash confirms was written; one that a hash refutes is damage."""
    body = json.loads(filled[0])
    changed = {**body, "format": "sfumato-ledger/9"}
    with rejects("ledger", LedgerError):
        replay([json.dumps(changed, sort_keys=True, separators=(",", ":")).encode()])
    changed.pop("hash")
    written = json.dumps(changed, sort_keys=True, separators=(",", ":")).encode()
    changed["hash"] = hashlib.sha256(written).hexdigest()
    newer = json.dumps(changed, sort_keys=True, separators=(",", ":")).encode()
    with rejects("ledger", FormatError):
        replay([newer])
    with rejects("ledger", FormatError):
        replay([filled[0], b'{"format":"sfumato-ledger/10","of":"another form"}'])


# --- the file ---


def test_the_file_refuses_changes(tmp_path: Path, filled: list[bytes]) -> None:
    with sqlite3.connect(tmp_path / "ledger.db") as database:
        for statement in ("UPDATE entries SET entry = x'00' WHERE number = 1", "DELETE FROM entries WHERE number = 6"):
            with pytest.raises(sqlite3.IntegrityError, match="append only"):
                database.execute(statement)
    database.close()
    assert store(tmp_path).read() == filled


@pytest.mark.parametrize("content", [b"no database", b"SQLite format 3\0" + bytes(200)])
def test_a_file_that_is_no_ledger(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "ledger.db").write_bytes(content)
    with rejects("ledger", LedgerError):
        ledger(tmp_path).reserve(charge("one"), LIMITS)
    assert (tmp_path / "ledger.db").read_bytes() == content


def test_places(tmp_path: Path) -> None:
    with rejects("ledger"):
        open_ledger(str(tmp_path / "missing" / "ledger.db")).reserve(charge("one"), LIMITS)
    with rejects("ledger"):
        open_ledger(str(tmp_path))
    with rejects("ledger"):
        open_ledger("s3://bucket/ledger")


def test_a_file_that_cannot_be_written_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger(tmp_path).reserve(charge("one"), LIMITS)
    monkeypatch.setattr("os.access", lambda _, mode: mode != os.W_OK)  # root may write anywhere
    with rejects("ledger"):
        ledger(tmp_path).reserve(charge("two", "2026-11-19"), LIMITS)


def test_a_write_that_was_killed_half_way_is_undone(tmp_path: Path, filled: list[bytes]) -> None:
    """What `kill -9` within a commit leaves: new pages in the file, and beside it the journal of the old ones."""
    database = sqlite3.connect(tmp_path / "ledger.db", isolation_level=None)
    database.execute("PRAGMA cache_size = 1")
    database.execute("BEGIN IMMEDIATE")
    for number in range(20):
        database.execute("INSERT INTO entries VALUES (?, ?)", (len(filled) + number, bytes(20_000)))
    (tmp_path / "killed").mkdir()
    for name in ("ledger.db", "ledger.db-journal"):  # a copy, without the lock that ends with its owner
        shutil.copy(tmp_path / name, tmp_path / "killed" / name)
    database.execute("ROLLBACK")
    database.close()
    assert (tmp_path / "killed" / "ledger.db").stat().st_size > (tmp_path / "ledger.db").stat().st_size
    assert store(tmp_path / "killed").read() == filled
    ledger(tmp_path / "killed").reserve(charge("next", "2026-12-20"), LIMITS)


@pytest.mark.parametrize(
    ("epsilon", "delta"),
    [("-1", "0"), ("0", "0"), ("NaN", "0"), ("Infinity", "0"), ("1", "-0.1"), ("1", "1"), ("1", "NaN")],
)
def test_a_charge_that_gives_back_is_none(tmp_path: Path, filled: list[bytes], epsilon: str, delta: str) -> None:
    """Neither through the door, nor as an entry that somebody appends by hand, well chained."""
    amounts = {"epsilon": Decimal(epsilon), "delta": Decimal(delta)}
    with pytest.raises(RequestError):
        replace(charge("new"), **amounts)
    content = {**charge_content(charge("new", "2026-12-20")), "epsilon": epsilon, "delta": delta}
    with rejects("ledger", LedgerError):
        replay(forged(filled, RESERVE, content))


def test_a_release_starts_from_one_that_was_charged(tmp_path: Path) -> None:
    book = ledger(tmp_path)
    with rejects("warm_start"):
        book.reserve(charge("one", starts_from="elsewhere"), LIMITS)
    book.reserve(charge("one", "2026-11-19"), LIMITS)
    book.reserve(charge("two", starts_from="one"), LIMITS)


def test_changes_of_limits_are_remembered(tmp_path: Path) -> None:
    book = ledger(tmp_path)
    book.reserve(charge("one"), LIMITS)
    book.set_limits("taxis", Limit.parse_all("100/1d"))
    book.set_limits("taxis", LIMITS)
    changes = book.history().changes
    assert [(one.index, [str(limit) for limit in one.before]) for one in changes] == [
        (0, []), (2, ["1/1d", "3/7d"]), (3, ["100/1d"]),
    ]  # fmt: skip


# --- many at once ---


def _charge_ten(folder: Path, name: str, start: Any) -> None:
    """Exits with 100 and the number of charges that were refused."""
    book, refused = Ledger(store(folder)), 0
    start.wait()
    for number in range(10):
        try:
            book.reserve(charge(f"{name}-{number}", epsilon="0.1"), Limit.parse_all("4/1d"))
        except BudgetError:
            refused += 1
    raise SystemExit(100 + refused)


def test_processes_lose_no_entry_and_exceed_no_limit(tmp_path: Path) -> None:
    """Five want ten tenths each, and together they may have forty."""
    fork = forks()
    start = fork.Barrier(5, timeout=300)
    processes = {name: fork.Process(target=_charge_ten, args=(tmp_path, name, start)) for name in "abcde"}
    for process in processes.values():
        process.start()
    for process in processes.values():
        process.join(300)
    history = ledger(tmp_path).history(with_limits=True)
    assert history.entries == 41
    granted = Counter(name[0] for name in history.reservations)
    assert sum(granted.values()) == 40
    assert {name: 110 - granted[name] for name in processes} == {name: one.exitcode for name, one in processes.items()}


@pytest.mark.parametrize("refused", [False, True])
def test_two_at_once_under_one_release_id_are_charged_once(tmp_path: Path, refused: bool) -> None:
    """Nor do two that settle a refusal at the same time settle it twice."""
    book = ledger(tmp_path)
    append, first = SqliteStore.append, []
    if refused:
        book.reserve(charge("one"), LIMITS)

    def write(to: Ledger) -> Reservation:
        return to.settle("one", 0.1, 0.0, WHY) if refused else to.reserve(charge("one"), LIMITS)

    class Raced(SqliteStore):
        def append(self, index: int, entry: bytes) -> bool:
            if not first:  # the other one is faster
                first.append(write(book))
            return append(self, index, entry)

    assert write(Ledger(Raced(str(tmp_path / "ledger.db")))) == first[0]
    assert book.history().entries == (3 if refused else 2)
    assert len(book.history().reservations) == 1


# --- a refused release costs what its check cost ---


ONE_A_DAY = Limit.parse_all("1/1d")
WHY = "about 12 users, fewer than 100"


def test_a_refused_release_counts_what_its_check_cost(tmp_path: Path) -> None:
    book = ledger(tmp_path)
    first = book.reserve(charge("one", delta="1e-9"), Limit.parse_all("1:1e-8/1d"))
    settled = book.settle("one", 0.01, 0.0, WHY)
    assert book.settle("one", "0.01", "0", WHY) == settled  # again changes nothing
    history = book.history(with_limits=True)
    assert history.entries == 3
    assert history.reservations["one"] == settled
    assert (settled.index, settled.hash, settled.refusal) == (first.index, first.hash, WHY)
    assert settled.reserved_charge == first.charge
    assert [(one.epsilon, one.delta) for one in history.charges] == [(Decimal("0.01"), Decimal(0))]
    with rejects("ledger", LedgerError):
        book.commit("one", "result")
    with pytest.raises(BudgetError):
        book.reserve(charge("two"))
    book.reserve(charge("two", epsilon="0.99"))


def test_the_same_input_repeats_its_refusal(tmp_path: Path) -> None:
    book = ledger(tmp_path)
    book.reserve(charge("one", epsilon="0.9"), ONE_A_DAY)
    settled = book.settle("one", 0.01, 0.0, WHY)
    assert book.check(charge("one", epsilon="0.9")) == settled
    assert book.reserve(charge("one", epsilon="0.9")) == settled
    with rejects("release_id", ReusedError):  # the same noise on the same input
        book.reserve(charge("one", "2026-11-19", epsilon="0.9"))
    mended = charge("one", epsilon="0.9", binding="mended")
    reservation = book.reserve(mended)
    assert (reservation.charge, reservation.refusal) == (mended, None)
    history = book.history(with_limits=True)
    assert sum(one.epsilon for one in history.charges) == Decimal("0.91")
    assert history.refusals == (settled,)
    with rejects("release_id", ReusedError):
        book.reserve(charge("one", epsilon="0.9"))
    with pytest.raises(BudgetError):
        book.reserve(charge("two", epsilon="0.1"))
    book.settle("one", 0.01, 0.0, WHY)
    book.reserve(charge("one", epsilon="0.9", binding="mended twice"))
    assert sum(one.epsilon for one in book.history(with_limits=True).charges) == Decimal("0.92")


@pytest.mark.parametrize(("epsilon", "delta"), [("1.01", "0"), ("0.5", "1e-9"), ("0", "0"), ("-1", "0"), ("nan", "0")])
def test_a_refusal_costs_a_part_of_what_was_reserved(tmp_path: Path, epsilon: str, delta: str) -> None:
    book = ledger(tmp_path)
    book.reserve(charge("one"), ONE_A_DAY)
    with pytest.raises(RequestError):
        book.settle("one", epsilon, delta, WHY)
    entries = entries_of(tmp_path)
    assert len(entries) == 2
    content = {"release_id": "one", "epsilon": epsilon, "delta": delta, "reason": WHY}
    with rejects("ledger", LedgerError):
        replay(forged(entries, SETTLE, content))


def test_what_was_published_is_spent(tmp_path: Path) -> None:
    book = ledger(tmp_path)
    with rejects("ledger", LedgerError):
        book.settle("one", 0.1, 0.0, WHY)
    book.reserve(charge("one"), ONE_A_DAY)
    book.commit("one", "abc")
    with rejects("ledger", LedgerError):
        book.settle("one", 0.1, 0.0, WHY)
    book.reserve(charge("two", "2026-11-21"))
    book.settle("two", 0.1, 0.0, WHY)
    with rejects("ledger", LedgerError):
        book.settle("two", 0.2, 0.0, WHY)


def test_a_check_raises_what_a_charge_would_and_writes_nothing(tmp_path: Path) -> None:
    book = ledger(tmp_path)
    with rejects("budget"):
        book.check(charge("one"))
    with pytest.raises(BudgetError):
        book.check(charge("one", epsilon="2"), ONE_A_DAY)
    assert book.check(charge("one"), ONE_A_DAY) is None
    assert not list(tmp_path.iterdir())
    reservation = book.reserve(charge("one"), ONE_A_DAY)
    assert book.check(charge("one")) == reservation
    for other, error in (
        (charge("two"), BudgetError),
        (charge("one", binding="other"), ReusedError),
        (charge("two", "2026-11-21", starts_from="nothing"), RequestError),
    ):
        with pytest.raises(error):
            book.check(other)
    with rejects("budget"):
        book.check(charge("two", "2026-11-21"), Limit.parse_all("2/1d"))
    assert book.history().entries == 2


# --- rotating cohorts, and pruned releases ---


TWO_A_WEEK = Limit.parse_all("1/1d,2/7d")
SEVENTH = Rotation(7, 30, "a" * 32)


def cohort_charge(release_id: str, rotation: Rotation = SEVENTH, **more: str) -> Charge:
    return replace(charge(release_id, **more), rotation=rotation)


def test_a_charge_of_all_users_is_written_as_by_earlier_versions() -> None:
    content = charge_content(charge("one"))
    assert "rotation" not in content
    entry = entry_bytes(0, "0" * 64, "2026-11-21T03:00:00+00:00", "nonce", RESERVE, content)
    # Of the version before charges had rotations.
    assert hashlib.sha256(entry).hexdigest() == "9faa55bdc8d6ec41aa2fda2f2e7d63892c9332068fc68ba43b7830094e82876b"


ROTATION = {"cohort": 7, "cohorts": 30, "partition": "a" * 32}


@pytest.mark.parametrize(
    "rotation",
    [*({**ROTATION, **changes} for changes in (
        {"cohort": 31}, {"cohort": 0}, {"cohort": "7"}, {"cohort": True}, {"cohorts": 367}, {"cohorts": 2.0},
        {"partition": ""}, {"partition": "A" * 32}, {"partition": None}, {"more": 1})),
     None, [], "7/30", 7, {}, {"cohort": 7, "cohorts": 30}],
)  # fmt: skip
def test_a_rotation_that_cannot_be_read_is_not_guessed_at(tmp_path: Path, rotation: Any) -> None:
    """An entry that names a rotation would count for all users if it were overlooked; it is refused."""
    ledger(tmp_path).reserve(charge("one"), TWO_A_WEEK)
    content = {**charge_content(cohort_charge("two")), "rotation": rotation}
    with rejects("ledger", LedgerError):
        replay(forged(entries_of(tmp_path), RESERVE, content))


@pytest.mark.parametrize(
    "other",
    [
        cohort_charge("one", replace(SEVENTH, cohort=8)),
        cohort_charge("one", Rotation(7, 31, "b" * 32)),
        charge("one"),
        cohort_charge("one", replace(SEVENTH, partition="b" * 32), binding="other"),
    ],
)
def test_a_release_id_stands_for_one_cohort(tmp_path: Path, other: Charge) -> None:
    book = ledger(tmp_path)
    book.reserve(cohort_charge("one"), TWO_A_WEEK)
    assert book.reserve(cohort_charge("one"), TWO_A_WEEK).index == 1  # a retry
    with rejects("release_id", ReusedError):
        book.reserve(other, TWO_A_WEEK)
    assert book.history().entries == 2


def test_a_refused_run_and_a_reused_file_keep_their_cohort(tmp_path: Path) -> None:
    book = ledger(tmp_path)
    book.reserve(replace(cohort_charge("one"), files=("f" * 32,)), TWO_A_WEEK)
    settled = book.settle("one", "0.1", "0", "too few users")
    assert settled.charge.rotation == SEVENTH
    assert book.history().reservations["one"].charge.rotation == SEVENTH
    other = Rotation(2, 3, "b" * 32)
    book.reserve(
        replace(cohort_charge("two", other, dataset="bikes", epsilon="0.9"), files=("f" * 32,)),
        TWO_A_WEEK,
        allow_reuse=True,
    )
    counted = [one for one in book.history().charges if one.release_id == "two"]
    assert [(one.dataset, one.rotation) for one in counted] == [("bikes", other), ("taxis", other)]
    book.history(with_limits=True)
    with pytest.raises(BudgetError):  # by a user of both cohorts
        book.check(replace(charge("three"), epsilon=Decimal("0.01")))
    with rejects("rotation"):
        book.reserve(cohort_charge("four", Rotation(2, 4, "b" * 32), period="2026-12-20"))


@pytest.mark.parametrize("made", [charge, cohort_charge])
def test_a_charge_above_the_limits_shows_in_a_whole_chain(tmp_path: Path, made: Callable[..., Charge]) -> None:
    book = ledger(tmp_path)
    book.reserve(made("one"), TWO_A_WEEK)
    if made is cohort_charge:
        book.reserve(cohort_charge("two", replace(SEVENTH, cohort=8)))
    replay(entries_of(tmp_path), with_limits=True)
    more = forged(entries_of(tmp_path), RESERVE, charge_content(made("three", epsilon="0.001")))
    replay(more)
    with rejects("ledger", LedgerError):
        replay(more, with_limits=True)


# --- pruned releases ---


def test_a_published_release_is_pruned_once(tmp_path: Path) -> None:
    book = ledger(tmp_path)
    book.reserve(charge("one"), TWO_A_WEEK)
    with rejects("ledger", LedgerError):
        book.prune("one")
    with rejects("ledger", LedgerError):
        book.prune("two")
    book.commit("one", "abc")
    for _ in range(2):
        book.prune("one")
    history = book.history(with_limits=True)
    assert history.entries == 4
    assert history.reservations["one"].pruned == "2026-11-21T03:00:00+00:00"
    assert history.charges == [charge("one")]  # it stays spent
    book.commit("one", "abc")  # the same publication, repeated
    assert book.history().entries == 4
    book.reserve(charge("refused", "2026-12-20"))
    book.settle("refused", "0.1", "0", WHY)
    with rejects("ledger", LedgerError):
        book.prune("refused")
