"""`sfumato ledger account` and `show` with rotating cohorts: what an operator sees, and which options are refused."""

from __future__ import annotations

import hashlib
import json
import shutil
from dataclasses import replace
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from sfumato.pipelines.command_line import cli
from sfumato.schemas.ledger import Limit
from sfumato.schemas.rotation import Rotation
from sfumato.transforms.privacy.secrets import FileSecret
from sfumato.transforms.privacy.user_hashes import cohort_of, rotation_key, with_partition
from tests.keys import write_key
from tests.unit.privacy.ledger.helpers import charge, ledger

FIRST = date(2026, 9, 1)


@pytest.fixture
def place(sixty_nights: Path, tmp_path: Path) -> Path:
    """A copy of them, to be changed."""
    shutil.copytree(sixty_nights, tmp_path / "place")
    return tmp_path / "place"


@pytest.fixture(scope="module")
def sixty_nights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The key and the ledger of two months of nights of thirty cohorts."""
    folder = tmp_path_factory.mktemp("nights")
    write_key(folder / "key")
    key = rotation_key(FileSecret(str(folder / "key")), "taxis", 30, "user_id")
    book = ledger(folder)
    for number in range(60):
        night = FIRST + timedelta(days=number)
        rotation = with_partition(Rotation.of_night(night, 30), key)
        book.reserve(replace(charge(f"n{night}", str(night)), rotation=rotation), Limit.parse_all("1/30d,9/365d"))
    return folder


def run(place: Path, *arguments: str) -> int:
    return cli.main(["ledger", *arguments, "--ledger", str(place / "ledger.db")])


def account(place: Path, user: str, *more: str) -> list[str]:
    return ["account", "--user_id", user, "--dataset", "taxis", "--key_file", str(place / "key"), *more]


def account_of(place: Path, capsys: pytest.CaptureFixture[str], user: str) -> dict[str, Any]:
    assert run(place, *account(place, user, "--format", "json")) == 0
    content: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert (content["user_id"], content["dataset"]) == (user, "taxis")
    return content


def nights_of(place: Path, user: int | str) -> list[str]:
    """The nights that ask a user, by the cohort of the reader."""
    cohort = cohort_of(pa.array([user]), rotation_key(FileSecret(str(place / "key")), "taxis", 30, "user_id"), 30)[0]
    nights = [FIRST + timedelta(days=number) for number in range(60)]
    return [str(night) for night in nights if Rotation.of_night(night, 30).cohort == cohort]


@pytest.mark.parametrize(
    "user", ["bob", "0042", "-0", "18446744073709551616", "é", "7.0", " 7", "4711", "0", "-3", "18446744073709551611"]
)
def test_a_user_is_asked_as_the_reader_asks_them(
    sixty_nights: Path, capsys: pytest.CaptureFixture[str], user: str
) -> None:
    found = account_of(sixty_nights, capsys, user)
    assert [one["first_day"] for one in found["charges"]] == nights_of(sixty_nights, user)
    if user.lstrip("-").isdigit() and str(int(user)) == user and int(user) < 2**64:  # in logs with integers too
        kind = pa.uint64() if int(user) >= 2**63 else pa.int64()
        cohort = cohort_of(
            pa.array([int(user)], kind), rotation_key(FileSecret(str(sixty_nights / "key")), "taxis", 30, "user_id"), 30
        )
        assert {one["rotation"]["cohort"] for one in found["charges"]} == {cohort[0]}
    assert len(found["charges"]) == 2
    month, year = found["limits"]
    assert (month["epsilon_spent"], month["epsilon_left"], month["largest_epsilon"]) == ("1", "0", "1")
    assert (year["epsilon_spent"], year["epsilon_left"], year["largest_epsilon"]) == ("2", "7", "2")


def test_charges_under_another_key_are_named_and_counted(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What cannot be known is an upper bound, and says so."""
    book = ledger(place)
    other = replace(charge("lost", "2026-12-05", "0.5"), rotation=Rotation(2, 3, "b" * 32))
    book.reserve(other)
    assert run(place, *account(place, "bob")) == 0
    said = capsys.readouterr().out
    assert "lost: charged with another key or id column, so the user's cohort is unknown" in said
    assert "queried by 2 of 60 charges" in said  # of the one that is lost it is unknown
    found = account_of(place, capsys, "bob")
    assert [one["release_id"] for one in found["charges_under_another_key"]] == ["lost"]
    assert [one["epsilon_spent"] for one in found["limits"]] == ["0.5", "2.5"]
    write_key(place / "another", hashlib.sha256(b"another key").digest())
    (place / "key").unlink()
    (place / "another").rename(place / "key")
    found = account_of(place, capsys, "bob")
    assert len(found["charges_under_another_key"]) == 61
    assert found["charges"] == []
    assert found["limits"][1]["epsilon_spent"] == "2.5"  # the worst user's


def test_without_rotation_one_account_needs_no_key(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ledger(tmp_path).reserve(charge("one", "2026-11-20", "0.4"), Limit.parse_all("1/30d"))
    arguments = ["account", "--user_id", "7", "--dataset", "Taxis", "--format", "json"]
    assert run(tmp_path, *arguments) == 0
    found = json.loads(capsys.readouterr().out)
    assert [one["release_id"] for one in found["charges"]] == ["one"]
    assert found["limits"][0]["epsilon_left"] == "0.6"


def test_show_has_cohorts_where_there_are_any(place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ledger(place).reserve(charge("all", "2026-12-20", "0.5"))
    assert run(place, "show") == 0
    said = capsys.readouterr().out
    first = Rotation.of_night(FIRST, 30)
    assert f"| n{FIRST} | heatmap | {first}" in said
    assert "| cohort |" in said
    assert "for the user who has spent the most" in said
    assert run(place, "show", "--format", "json") == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["charges"][0]["rotation"] == {"cohort": first.cohort, "cohorts": 30}
    assert shown["charges"][-1]["rotation"] is None
    assert [(one["epsilon_spent"], one["epsilon_left"]) for one in shown["limits"]] == [("0.5", "0.5"), ("2.5", "6.5")]
    other = tmp_path / "other"
    other.mkdir()
    ledger(other).reserve(charge("all"), Limit.parse_all("1/30d"))
    run(other, "show")
    said = capsys.readouterr().out
    assert "| cohort |" not in said
    assert "the user who has spent the most" not in said


@pytest.mark.parametrize(
    ("option", "arguments"),
    [
        ("--user_id, --dataset", "account --dataset taxis"),
        ("--user_id, --dataset", "account --user_id 7"),
        ("--key_file", "account --user_id 7 --dataset taxis"),
        ("--dataset", "account --user_id 7 --dataset bikes --key_file key"),
        ("--key_file", "account --user_id 7 --dataset taxis --key_file none"),
        ("--key_file and --key_secret", "account --user_id 7 --dataset taxis --key_file a --key_secret b"),
        ("--key_secret", "account --user_id 7 --dataset taxis --key_secret b"),
        ("--user_id", "show --user_id 7"),
        ("--key_file", "verify --key_file 7"),
    ],
)
def test_bad_options_are_named(
    sixty_nights: Path, capsys: pytest.CaptureFixture[str], option: str, arguments: str
) -> None:
    assert run(sixty_nights, *arguments.split()) == 2
    assert f": {option}: " in capsys.readouterr().err


def test_a_key_that_others_may_read_is_refused(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (place / "key").chmod(0o644)
    assert run(place, *account(place, "bob")) == 2
    assert ": --key_file: other users can read" in capsys.readouterr().err
