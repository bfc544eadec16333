"""A refused release costs what its check cost; a mended input is charged beside it."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path

import pytest

from sfumato.schemas.errors import BudgetError, LedgerError, RequestError
from sfumato.schemas.ledger import Limit
from sfumato.transforms.privacy.ledger.history import SETTLE, entry_bytes, read_entries, replay
from sfumato.transforms.privacy.ledger.ledger import Ledger, ReusedError
from sfumato.transforms.privacy.ledger.stores import SqliteStore
from tests.unit.privacy.ledger.helpers import charge, ledger

LIMITS = Limit.parse_all("1/1d")
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
    with pytest.raises(LedgerError, match="was refused, so no result of it can be published"):
        book.commit("one", "result")
    with pytest.raises(BudgetError):
        book.reserve(charge("two"))
    book.reserve(charge("two", epsilon="0.99"))


def test_the_same_input_repeats_its_refusal_and_a_mended_one_is_charged_anew(tmp_path: Path) -> None:
    book = ledger(tmp_path)
    book.reserve(charge("one", epsilon="0.9"), LIMITS)
    settled = book.settle("one", 0.01, 0.0, WHY)
    assert book.check(charge("one", epsilon="0.9")) == settled
    assert book.reserve(charge("one", epsilon="0.9")) == settled
    with pytest.raises(ReusedError, match="another request"):  # the same noise on the same input
        book.reserve(charge("one", "2026-11-19", epsilon="0.9"))
    mended = charge("one", epsilon="0.9", binding="mended")
    reservation = book.reserve(mended)
    assert (reservation.charge, reservation.refusal) == (mended, None)
    history = book.history(with_limits=True)
    assert sum(one.epsilon for one in history.charges) == Decimal("0.91")
    assert history.refusals == (settled,)
    with pytest.raises(ReusedError, match="other input"):
        book.reserve(charge("one", epsilon="0.9"))
    with pytest.raises(BudgetError):
        book.reserve(charge("two", epsilon="0.1"))
    book.settle("one", 0.01, 0.0, WHY)
    book.reserve(charge("one", epsilon="0.9", binding="mended twice"))
    assert sum(one.epsilon for one in book.history(with_limits=True).charges) == Decimal("0.92")


@pytest.mark.parametrize(("epsilon", "delta"), [("1.01", "0"), ("0.5", "1e-9"), ("0", "0"), ("-1", "0"), ("nan", "0")])
def test_a_refusal_costs_a_part_of_what_was_reserved(tmp_path: Path, epsilon: str, delta: str) -> None:
    book = ledger(tmp_path)
    book.reserve(charge("one"), LIMITS)
    with pytest.raises(RequestError):
        book.settle("one", epsilon, delta, WHY)
    entries = SqliteStore(str(tmp_path / "ledger.db")).read()
    assert len(entries) == 2
    content = {"release_id": "one", "epsilon": epsilon, "delta": delta, "reason": WHY}
    forged = entry_bytes(2, read_entries(entries)[-1]["hash"], "2026-11-21T03:00:00+00:00", "nonce", SETTLE, content)
    with pytest.raises(LedgerError, match="entry 2 cannot be read"):
        replay([*entries, forged])


def test_what_was_published_is_spent(tmp_path: Path) -> None:
    book = ledger(tmp_path)
    with pytest.raises(LedgerError, match="nothing was ever charged"):
        book.settle("one", 0.1, 0.0, WHY)
    book.reserve(charge("one"), LIMITS)
    book.commit("one", "abc")
    with pytest.raises(LedgerError, match="was published"):
        book.settle("one", 0.1, 0.0, WHY)
    book.reserve(charge("two", "2026-11-21"))
    book.settle("two", 0.1, 0.0, WHY)
    with pytest.raises(LedgerError, match="refused before"):
        book.settle("two", 0.2, 0.0, WHY)


@pytest.mark.parametrize("again", [False, True])
def test_an_entry_that_settles_nothing_shows(tmp_path: Path, again: bool) -> None:
    book = ledger(tmp_path)
    book.reserve(charge("one"), LIMITS)
    book.settle("one", 0.1, 0.0, WHY) if again else book.commit("one", "abc")
    entries = SqliteStore(str(tmp_path / "ledger.db")).read()
    content = {"release_id": "one", "epsilon": "0.05", "delta": "0", "reason": WHY}
    forged = entry_bytes(3, read_entries(entries)[-1]["hash"], "2026-11-21T03:00:00+00:00", "nonce", SETTLE, content)
    with pytest.raises(LedgerError, match="which is not reserved"):
        replay([*entries, forged])


def test_a_check_raises_what_a_charge_would_and_writes_nothing(tmp_path: Path) -> None:
    book = ledger(tmp_path)
    with pytest.raises(RequestError, match="has no limits"):
        book.check(charge("one"))
    with pytest.raises(BudgetError):
        book.check(charge("one", epsilon="2"), LIMITS)
    assert book.check(charge("one"), LIMITS) is None
    assert not list(tmp_path.iterdir())
    reservation = book.reserve(charge("one"), LIMITS)
    assert book.check(charge("one")) == reservation
    for other, error in (
        (charge("two"), BudgetError),
        (charge("one", binding="other"), ReusedError),
        (charge("two", "2026-11-21", starts_from="nothing"), RequestError),
    ):
        with pytest.raises(error):
            book.check(other)
    with pytest.raises(RequestError, match="and not 2/1d"):
        book.check(charge("two", "2026-11-21"), Limit.parse_all("2/1d"))
    assert book.history().entries == 2


def test_two_that_settle_at_once_settle_once(tmp_path: Path) -> None:
    book = ledger(tmp_path)
    book.reserve(charge("one"), LIMITS)
    append, first = SqliteStore.append, []

    class Raced(SqliteStore):
        def append(self, index: int, entry: bytes) -> bool:
            if not first:  # the other one is faster
                first.append(book.settle("one", 0.1, 0.0, WHY))
            return append(self, index, entry)

    assert Ledger(Raced(str(tmp_path / "ledger.db"))).settle("one", 0.1, 0.0, WHY) == first[0]
    assert book.history().entries == 3
