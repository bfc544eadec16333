"""Charges of rotating cohorts in a ledger: entries, one request a release id, refusals, pruned releases."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from sfumato.schemas.errors import BudgetError, LedgerError
from sfumato.schemas.ledger import Charge, Limit
from sfumato.schemas.rotation import Rotation
from sfumato.transforms.privacy.ledger.history import (
    COMMIT,
    PRUNE,
    RESERVE,
    charge_content,
    charge_of,
    entry_bytes,
    read_entries,
    replay,
)
from sfumato.transforms.privacy.ledger.ledger import ReusedError
from sfumato.transforms.privacy.ledger.stores import SqliteStore
from tests.rejections import rejects
from tests.unit.privacy.ledger.helpers import charge, ledger

LIMITS = Limit.parse_all("1/1d,2/7d")
SEVENTH = Rotation(7, 30, "a" * 32)


def asked(release_id: str, rotation: Rotation = SEVENTH, **more: str) -> Charge:
    return replace(charge(release_id, **more), rotation=rotation)


def forged(entries: list[bytes], kind: str, content: dict[str, Any]) -> list[bytes]:
    """The entries and one more, rightly chained."""
    head = read_entries(entries)[-1]["hash"]
    return [*entries, entry_bytes(len(entries), head, "2026-11-21T03:00:00+00:00", "nonce", kind, content)]


def entries_of(folder: Path) -> list[bytes]:
    return SqliteStore(str(folder / "ledger.db")).read()


def test_a_charge_is_read_as_it_was_written() -> None:
    content = charge_content(asked("one"))
    assert content["rotation"] == {"cohort": 7, "cohorts": 30, "partition": "a" * 32}
    assert charge_of(json.loads(json.dumps(content))) == asked("one")


def test_a_charge_of_all_users_is_written_as_by_earlier_versions() -> None:
    content = charge_content(charge("one"))
    assert "rotation" not in content
    entry = entry_bytes(0, "0" * 64, "2026-11-21T03:00:00+00:00", "nonce", RESERVE, content)
    # Of the version before charges had rotations.
    assert hashlib.sha256(entry).hexdigest() == "9faa55bdc8d6ec41aa2fda2f2e7d63892c9332068fc68ba43b7830094e82876b"


@pytest.mark.parametrize(
    "changes",
    [{"cohort": 31}, {"cohort": 0}, {"cohort": "7"}, {"cohort": True}, {"cohorts": 367}, {"cohorts": 2.0},
     {"partition": ""}, {"partition": "A" * 32}, {"partition": None}, {"more": 1}],
)  # fmt: skip
def test_a_rotation_that_is_none_is_not_guessed_at(tmp_path: Path, changes: dict[str, Any]) -> None:
    ledger(tmp_path).reserve(charge("one"), LIMITS)
    content = charge_content(asked("two"))
    content["rotation"] |= changes
    with pytest.raises(LedgerError, match="a charge cannot be read"):
        replay(forged(entries_of(tmp_path), RESERVE, content))


@pytest.mark.parametrize("rotation", [None, [], "7/30", 7, {}, {"cohort": 7, "cohorts": 30}])
def test_no_rotation_of_another_form_is_read(tmp_path: Path, rotation: Any) -> None:
    """An entry that names a rotation would count for all users if it were overlooked; it is refused."""
    ledger(tmp_path).reserve(charge("one"), LIMITS)
    content = {**charge_content(asked("two")), "rotation": rotation}
    with pytest.raises(LedgerError, match="a charge cannot be read"):
        replay(forged(entries_of(tmp_path), RESERVE, content))


def test_a_charge_states_its_partition() -> None:
    with rejects("rotation"):
        asked("one", Rotation(7, 30))


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (asked("one", replace(SEVENTH, cohort=8)), "another request"),
        (asked("one", Rotation(7, 31, "b" * 32)), "another request"),
        (charge("one"), "another request"),
        (asked("one", replace(SEVENTH, partition="b" * 32), binding="other"), "other input, another key"),
    ],
)
def test_a_release_id_stands_for_one_cohort(tmp_path: Path, other: Charge, message: str) -> None:
    book = ledger(tmp_path)
    book.reserve(asked("one"), LIMITS)
    assert book.reserve(asked("one"), LIMITS).index == 1  # a retry
    with pytest.raises(ReusedError, match=message):
        book.reserve(other, LIMITS)
    assert book.history().entries == 2


def test_a_refused_run_and_a_file_that_counts_twice_keep_their_cohort(tmp_path: Path) -> None:
    book = ledger(tmp_path)
    book.reserve(replace(asked("one"), files=("f" * 32,)), LIMITS)
    settled = book.settle("one", "0.1", "0", "too few users")
    assert settled.charge.rotation == SEVENTH
    assert book.history().reservations["one"].charge.rotation == SEVENTH
    other = Rotation(2, 3, "b" * 32)
    book.reserve(
        replace(asked("two", other, dataset="bikes", epsilon="0.9"), files=("f" * 32,)), LIMITS, allow_reuse=True
    )
    counted = [one for one in book.history().charges if one.release_id == "two"]
    assert [(one.dataset, one.rotation) for one in counted] == [("bikes", other), ("taxis", other)]
    book.history(with_limits=True)
    with pytest.raises(BudgetError, match=r"epsilon 1\.0 is spent"):  # by a user of both cohorts
        book.check(replace(charge("three"), epsilon=Decimal("0.01")))
    with rejects("rotation"):
        book.reserve(asked("four", Rotation(2, 4, "b" * 32), period="2026-12-20"))


def test_what_cohorts_exceed_shows_in_a_chain_that_is_whole(tmp_path: Path) -> None:
    book = ledger(tmp_path)
    book.reserve(asked("one"), LIMITS)
    book.reserve(asked("two", replace(SEVENTH, cohort=8)))
    replay(entries_of(tmp_path), with_limits=True)
    more = forged(entries_of(tmp_path), RESERVE, charge_content(asked("three", epsilon="0.001")))
    replay(more)
    with pytest.raises(LedgerError, match="entry 3 exceeds the limit"):
        replay(more, with_limits=True)


# --- pruned releases ---


def test_a_published_release_is_pruned_once(tmp_path: Path) -> None:
    book = ledger(tmp_path)
    book.reserve(charge("one"), LIMITS)
    with pytest.raises(LedgerError, match="release one is not known to be published"):
        book.prune("one")
    with pytest.raises(LedgerError, match="release two is not known to be published"):
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


def test_a_refused_release_has_nothing_to_prune(tmp_path: Path) -> None:
    book = ledger(tmp_path)
    book.reserve(charge("one"), LIMITS)
    book.settle("one", "0.1", "0", "too few users")
    with pytest.raises(LedgerError, match="not known to be published"):
        book.prune("one")


@pytest.mark.parametrize("content", [{"release_id": "two"}, {"release_id": "gone"}, {"release_id": None}, {}])
def test_an_entry_that_prunes_nothing_shows(tmp_path: Path, content: dict[str, Any]) -> None:
    book = ledger(tmp_path)
    for name in ("one", "two"):
        book.reserve(charge(name, epsilon="0.5"), LIMITS)
    book.commit("one", "abc")
    with pytest.raises(LedgerError, match="removes the files of"):
        replay(forged(entries_of(tmp_path), PRUNE, content))
    pruned = forged(entries_of(tmp_path), PRUNE, {"release_id": "one"})
    with pytest.raises(LedgerError, match="removes the files of"):
        replay(forged(pruned, PRUNE, {"release_id": "one"}))
    with pytest.raises(LedgerError):  # nothing else is published in its place
        replay(forged(pruned, COMMIT, {"release_id": "one", "manifest": "other"}))
