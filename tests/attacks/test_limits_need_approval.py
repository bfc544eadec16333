"""Whoever could write to a ledger could raise its limits: a mistake, or a quiet change, and no second person saw it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sfumato.pipelines import cli
from sfumato.schemas.errors import LedgerError, RequestError
from sfumato.schemas.ledger import ADD_OR_REMOVE, ADJACENCIES, REPLACE, ZERO_OUT, Limit
from sfumato.transforms.privacy.keys import FixedSecret
from sfumato.transforms.privacy.ledger.approvals import ApproverKey, is_looser
from sfumato.transforms.privacy.ledger.entries import APPROVER, LIMITS, entry_bytes, limits_content, read_entries
from sfumato.transforms.privacy.ledger.history import replay
from sfumato.transforms.privacy.ledger.ledger import Ledger
from sfumato.transforms.privacy.ledger.sqlite_store import SqliteStore
from sfumato.transforms.privacy.ledger.windows import find_overrun, is_bounded
from tests.attacks.city import REGION, make_city
from tests.keys import write_key
from tests.transforms.privacy.ledger.helpers import charge, ledger

ONE, FIVE = Limit.parse_all("1/1d"), Limit.parse_all("5/1d")
ALICE, MALLORY = (ApproverKey(FixedSecret(hashlib.sha256(name).digest())) for name in (b"Alice", b"Mallory"))


def approved_ledger(folder: Path) -> Ledger:
    """A ledger of which Alice is the approver; `taxis` may spend 1 a day."""
    book = ledger(folder)
    book.set_limits("taxis", ONE)
    book.set_approver(ALICE)
    return book


def store_of(folder: Path) -> SqliteStore:
    return SqliteStore(str(folder / "ledger.db"))


def forge(folder: Path, kind: str, content: dict[str, Any]) -> None:
    """Appends a well-chained entry, as anybody can who may write to the file."""
    entries = store_of(folder).read()
    entry = entry_bytes(len(entries), read_entries(entries)[-1]["hash"], "t", "nonce", kind, content)
    assert store_of(folder).append(len(entries), entry)


def test_a_raised_limit_needs_the_approvers_key(tmp_path: Path) -> None:
    book = approved_ledger(tmp_path)
    before = book.history()
    for key in (None, MALLORY):
        with pytest.raises(
            RequestError, match=f"needs the approval of the ledger's approver, key {ALICE.public_key[:16]}"
        ):
            book.set_limits("taxis", FIVE, key)
    assert book.history() == before
    book.set_limits("taxis", FIVE, ALICE)
    assert book.history().limits["taxis"] == FIVE
    assert book.history().changes[-1].is_approved


def test_a_lowered_limit_needs_none_and_raising_it_again_does(tmp_path: Path) -> None:
    book = approved_ledger(tmp_path)
    book.set_limits("taxis", Limit.parse_all("0.5/1d"))
    assert not book.history().changes[-1].is_approved
    with pytest.raises(RequestError, match="loosens"):
        book.set_limits("taxis", ONE)


def test_a_forged_entry_without_a_signature_stops_the_ledger(tmp_path: Path) -> None:
    book = approved_ledger(tmp_path)
    forge(tmp_path, LIMITS, limits_content("taxis", FIVE))
    with pytest.raises(LedgerError, match="entry 2 loosens limits of taxis without the approver's signature"):
        book.reserve(charge("one", epsilon="5"))


def test_another_persons_signature_is_none(tmp_path: Path) -> None:
    book = approved_ledger(tmp_path)
    content = limits_content("taxis", FIVE)
    forge(tmp_path, LIMITS, {**content, "approval": MALLORY.approval(book.history().head, content)})
    with pytest.raises(LedgerError, match="without the approver's signature"):
        book.history()


@pytest.mark.parametrize("approval", ["", "00" * 64, "no hexadecimal", 7, None, ["a"], "f" * 100_000])
def test_no_approval_crashes_a_reader(tmp_path: Path, approval: object) -> None:
    book = approved_ledger(tmp_path)
    forge(tmp_path, LIMITS, {**limits_content("taxis", FIVE), "approval": approval})
    with pytest.raises(LedgerError, match="without the approver's signature"):
        book.history()


def test_a_signature_is_of_these_limits_at_this_place_of_this_ledger(tmp_path: Path) -> None:
    book = approved_ledger(tmp_path)
    book.set_limits("taxis", FIVE, ALICE)
    signed = json.loads(store_of(tmp_path).read()[-1])["content"]
    book.set_limits("taxis", ONE)
    entries = store_of(tmp_path).read()
    for content in (signed, {**signed, "limits": ["9/1d"]}, {**signed, "dataset": "bikes"}):
        last = entry_bytes(len(entries), read_entries(entries)[-1]["hash"], "t", "nonce", LIMITS, content)
        with pytest.raises(LedgerError, match="without the approver's signature"):
            replay([*entries, last])
    other = tmp_path / "other"
    other.mkdir()
    approved_ledger(other).set_limits("taxis", Limit.parse_all("0.9/1d"))
    forge(other, LIMITS, signed)
    with pytest.raises(LedgerError, match="without the approver's signature"):
        ledger(other).history()


def test_a_new_dataset_is_a_new_budget(tmp_path: Path) -> None:
    """Otherwise the logs of tonight would be charged to `taxis2`, with limits of its own."""
    book = approved_ledger(tmp_path)
    for act in (
        lambda: book.set_limits("taxis2", ONE),
        lambda: book.reserve(charge("one", dataset="taxis2"), ONE),
        lambda: book.check(charge("one", dataset="taxis2"), ONE),
    ):
        with pytest.raises(RequestError, match="dataset 'taxis2' loosens its limits"):
            act()
    forge(tmp_path, LIMITS, limits_content("taxis2", ONE))
    with pytest.raises(LedgerError, match="loosens limits of taxis2"):
        book.history()


def test_another_approver_needs_the_first_ones_signature(tmp_path: Path) -> None:
    book = approved_ledger(tmp_path)
    for key in (None, MALLORY):
        with pytest.raises(RequestError, match="another approver needs the approval"):
            book.set_approver(MALLORY, key)
    book.set_approver(ALICE)  # nothing to do
    entries = book.history().entries
    book.set_approver(MALLORY, ALICE)
    assert book.history().entries == entries + 1
    book.set_limits("taxis", FIVE, MALLORY)
    with pytest.raises(RequestError):
        book.set_limits("taxis", Limit.parse_all("9/1d"), ALICE)
    forge(tmp_path, APPROVER, {"public_key": ALICE.public_key})
    with pytest.raises(LedgerError, match="replaces the approver without their signature"):
        book.history()


@pytest.mark.parametrize("public_key", ["", "0" * 63, "Z" * 64, 7, None, ALICE.public_key.upper()])
def test_an_approver_has_a_public_key(tmp_path: Path, public_key: object) -> None:
    ledger(tmp_path).set_limits("taxis", ONE)
    forge(tmp_path, APPROVER, {"public_key": public_key})
    with pytest.raises(LedgerError, match="names an approver without a public key"):
        ledger(tmp_path).history()


# --- what is looser ---


@pytest.mark.parametrize(
    ("before", "after", "looser"),
    [
        ("1/1d", "1/1d", False),
        ("1/1d", "0.9/1d", False),
        ("1/1d", "1.1/1d", True),
        ("1/1d", "1:1e-9/1d", True),
        ("1:1e-6/1d", "1:1e-7/1d", False),
        ("1/30d", "1/60d", False),  # a longer window holds the shorter ones
        ("1/30d", "1/29d", True),
        ("1/1d,9/365d", "1/1d", True),
        ("1/1d", "1/1d,9/365d", False),
        ("1/1d,9/365d", "0.5/1d,8/365d", False),
        ("1/1d,9/365d", "1/365d", False),
        ("1/1d", f"1/1d,9/1d@{REPLACE}", True),  # charges of `replace` were refused, and now may be up to 9
        ("1/1d", f"1/1d,9/1d@{ZERO_OUT}", True),
        (f"1/1d@{REPLACE}", f"1/1d@{REPLACE},1/1d", False),
        (f"1/1d@{REPLACE}", "1/1d", True),
    ],
)
def test_what_needs_approval(before: str, after: str, looser: bool) -> None:
    assert is_looser(Limit.parse_all(before), Limit.parse_all(after)) is looser
    assert is_looser((), Limit.parse_all(after))


limits = st.lists(
    st.builds("{}{}/{}d{}".format, st.sampled_from(["0.5", "1", "2"]), st.sampled_from(["", ":1e-6"]),
              st.integers(1, 3), st.sampled_from(["", f"@{ZERO_OUT}", f"@{REPLACE}"])),
    min_size=1, max_size=3, unique_by=lambda text: text.partition("/")[2],
).map(lambda found: Limit.parse_all(",".join(found)))  # fmt: skip


def accepted(in_force: Sequence[Limit], spending: Sequence[tuple[str, int, str]]) -> list[bool]:
    """Which of several charges the limits allow, each after all before it, whether they were allowed or not."""
    charges = [
        charge(f"r{number}", f"2026-11-{day:02}", epsilon, adjacency=adjacency)
        for number, (epsilon, day, adjacency) in enumerate(spending)
    ]
    fits = [find_overrun(charges[:at], one, in_force) is None for at, one in enumerate(charges)]
    return [is_bounded(one, in_force) and fit for one, fit in zip(charges, fits, strict=True)]


@given(
    limits,
    limits,
    st.lists(
        st.tuples(st.sampled_from(["0.25", "0.5", "1"]), st.integers(1, 5), st.sampled_from(ADJACENCIES)), max_size=4
    ),
)
def test_limits_that_need_no_approval_allow_nothing_new(
    before: tuple[Limit, ...], after: tuple[Limit, ...], spending: list[tuple[str, int, str]]
) -> None:
    """By brute force over ledgers: where the limits before refuse a charge, limits that are not looser do too."""
    if is_looser(before, after):
        return
    for old, new in zip(accepted(before, spending), accepted(after, spending), strict=True):
        assert old or not new


@pytest.mark.parametrize(
    ("before", "after", "days"), [("1/1d", "2/1d", (1, 1)), ("1/3d", "1/2d", (1, 3)), ("1/1d,2/3d", "1/1d", (1, 2, 3))]
)
def test_the_brute_force_finds_what_looser_limits_allow(before: str, after: str, days: tuple[int, ...]) -> None:
    spending = [("1", day, ADD_OR_REMOVE) for day in days]
    assert not accepted(Limit.parse_all(before), spending)[-1]
    assert accepted(Limit.parse_all(after), spending)[-1]


# --- the command ---


def test_the_command_and_a_job(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pattern = make_city(tmp_path, 300)
    for name in ("alice", "mallory"):
        write_key(tmp_path / name, hashlib.sha256(name.encode()).digest())

    def run(action: str, *more: str) -> int:
        return cli.main(["ledger", action, *more, "--ledger", str(tmp_path / "ledger.db")])

    alice, mallory = ("--approver_key", str(tmp_path / "alice")), ("--approver_key", str(tmp_path / "mallory"))
    assert run("approver", str(tmp_path / "alice")) == 2  # there is no ledger yet
    assert run("limit", "--dataset", "city", "--budget", "4/1d") == 0
    assert run("approver", str(tmp_path / "alice")) == 0
    assert "before: no approver" in capsys.readouterr().out
    for key in ((), mallory):
        assert run("limit", "--dataset", "city", "--budget", "8/1d", *key) == 2
        assert "--approver_key FILE" in capsys.readouterr().err
    assert run("approver", str(tmp_path / "mallory"), *mallory) == 2
    job = [
        "heatmap", "--input", pattern, *REGION, "--depth", "4", "--epsilon", "4", "--key_file", str(tmp_path / "key"),
        "--ledger", str(tmp_path / "ledger.db"), "--period", "2026-11-20", "--release_id", "one",
        "--output", str(tmp_path / "out"),
    ]  # fmt: skip
    assert cli.main([*job, "--dataset", "elsewhere", "--budget", "99/1d"]) == 2
    assert "dataset 'elsewhere' loosens its limits" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
    assert run("limit", "--dataset", "city", "--budget", "8/1d", *alice) == 0
    assert run("show") == 0
    shown = capsys.readouterr().out
    assert "from 4/1d to 8/1d, signed by the approver" in shown
    assert f"need the signature of key {json_approver(tmp_path)[:16]}" in shown
    (tmp_path / "alice").chmod(0o644)
    assert run("limit", "--dataset", "city", "--budget", "9/1d", *alice) == 2
    assert "approver_key: others than the owner" in capsys.readouterr().err
    assert run("verify", *alice) == 2
    assert "approver_key: only `sfumato ledger limit`, `approver` and `restore` take it" in capsys.readouterr().err


def json_approver(folder: Path) -> str:
    """The approver's public key in the file."""
    contents = [json.loads(entry) for entry in store_of(folder).read()]
    return str(next(one["content"]["public_key"] for one in contents if one["kind"] == APPROVER))
