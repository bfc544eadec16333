"""Lines 7, 9 and 16: one charge is for one content, under one name, with one program.

7: only the manifest was hashed, and it held no hashes of the files. 9: the same file was charged under another day or
dataset, each within its limit. 16: the code changed between a kill and the next run, the version did not.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from datetime import date, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any
from zoneinfo import available_timezones

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sfumato.pipelines.command_line import cli
from sfumato.pipelines.frame import inputs
from sfumato.schemas.errors import BudgetError, LedgerError
from sfumato.schemas.ledger import Limit, Period
from sfumato.schemas.log_layout import DayRows
from sfumato.transforms.inputs.local_time import of_days
from sfumato.transforms.privacy.ledger.charge_rules import ReusedError, ReusedFileError, file_digest, select_files
from sfumato.transforms.release import metadata
from sfumato.transforms.release.metadata import code_digest
from sfumato.transforms.release.published_release import open_release
from sfumato.transforms.release.release_folder import with_digests
from tests.attacks.jobs import charged_run
from tests.attacks.releases import LIMITS, publish_release
from tests.conftest import make_logs, write_files
from tests.keys import write_key
from tests.seeds import seeded_rng
from tests.unit.privacy.ledger.helpers import charge, ledger

SECRET = bytes(range(32))
ONE, TWO, THREE = (file_digest(SECRET, hashlib.sha256(name).hexdigest()) for name in (b"one", b"two", b"three"))


# --- line 7: the manifest holds the digest of every other file ---


def test_the_ledger_binds_every_file_and_not_only_the_manifest(tmp_path: Path) -> None:
    """Another content of any file gives another manifest, which is refused under the first one's charge."""
    files = {"cells.parquet": b"cells", "manifest.json": b'{"format": "sfumato-release/2"}'}
    sealed = with_digests(files)
    assert with_digests(sealed) == sealed  # an attempt that is repeated is the same
    assert with_digests({**files, "cells.parquet": b"cellt"})["manifest.json"] != sealed["manifest.json"]
    book = ledger(tmp_path)
    book.reserve(charge("one"), LIMITS)
    book.commit("one", hashlib.sha256(sealed["manifest.json"]).hexdigest())
    other = with_digests({**files, "cells.parquet": b"cellt"})["manifest.json"]
    with pytest.raises(LedgerError, match="different manifest"):
        book.commit("one", hashlib.sha256(other).hexdigest())


def test_names_in_a_manifest_reach_no_other_file(tmp_path: Path) -> None:
    output = publish_release(tmp_path, "one", "2026-11-20")
    path = output / "manifest.json"
    manifest = json.loads(path.read_text())
    manifest["files"] = {name: {"sha256": "0" * 64, "bytes": 1} for name in ("../secret", "manifest.json", "..")}
    path.write_text(json.dumps(manifest))
    assert open_release(output).listed == {}
    for broken in (["density.npy"], {"density.npy": None}, 7):
        path.write_text(json.dumps({**manifest, "files": broken}))
        assert "the list of files in the manifest is damaged" in str(open_release(output).damage())


# --- line 9: the same file under another day or dataset ---


@pytest.mark.parametrize("elsewhere", [{"period": "2026-11-21"}, {"dataset": "bikes"}])
def test_a_file_is_charged_to_one_day_and_dataset(tmp_path: Path, elsewhere: dict[str, str]) -> None:
    book = ledger(tmp_path)
    book.set_limits("bikes", LIMITS)
    book.reserve(charge("one", files=(ONE, TWO)), LIMITS)
    again = charge("two", **{"files": (TWO, THREE), **elsewhere})
    before = book.history().entries
    with pytest.raises(ReusedFileError):
        book.check(again)
    with pytest.raises(ReusedFileError):
        book.reserve(again)
    assert book.history().entries == before
    book.reserve(charge("three", **{"files": (THREE,), **elsewhere}), LIMITS)  # another file


def test_a_reuse_that_is_allowed_is_charged_to_both(tmp_path: Path) -> None:
    """Five releases of one file under five datasets, each within its limit of 1, are over the first one's limit."""
    book = ledger(tmp_path)
    book.reserve(charge("r0", epsilon="0.5", files=(ONE,)), Limit.parse_all("1/1d"))
    granted = 0
    for number in range(1, 5):
        try:
            more = charge(f"r{number}", epsilon="0.5", dataset=f"copy{number}", files=(ONE,))
            book.reserve(more, Limit.parse_all("1/1d"), allow_reuse=True)
            assert book.reserve(more, allow_reuse=True).charge.also_charged == (("taxis", Period.parse("2026-11-20")),)
            granted += 1
        except BudgetError:
            pass
    assert granted == 1
    history = book.history(with_limits=True)
    assert sum(one.epsilon for one in history.charges if one.dataset == "taxis") == Decimal(1)
    with pytest.raises(BudgetError):  # so the first dataset has nothing left either
        book.reserve(charge("more", epsilon="0.1"))


def test_the_same_day_may_be_looked_at_twice(tmp_path: Path) -> None:
    """Another attempt, another job and a week with the day in it are charged to the day, and its limits count them."""
    book = ledger(tmp_path)
    book.reserve(charge("one", epsilon="0.2", files=(ONE,)), LIMITS)
    book.reserve(charge("two", epsilon="0.2", files=(ONE,), job="moments"))
    book.reserve(charge("week", "2026-11-16:2026-11-22", epsilon="0.2", files=(ONE, TWO)))
    with pytest.raises(ReusedFileError):
        book.reserve(charge("tomorrow", "2026-11-23", epsilon="0.2", files=(ONE,)))


def test_a_resumed_run_is_not_a_reuse(tmp_path: Path) -> None:
    book = ledger(tmp_path)
    mine = charge("one", files=(ONE,), epsilon="0.4")
    reservation = book.reserve(mine, LIMITS)
    book.reserve(charge("other", "2026-11-21", epsilon="0.4", files=(ONE,)), allow_reuse=True)
    assert book.reserve(mine) == reservation
    with pytest.raises(ReusedError):
        book.reserve(charge("one", files=(TWO,), epsilon="0.4", binding="other"))


def test_digests_tell_content_to_who_has_the_secret_alone() -> None:
    content = hashlib.sha256(b"a log").hexdigest()
    assert file_digest(SECRET, content) == file_digest(SECRET, content)
    assert file_digest(SECRET, content) != file_digest(bytes(32), content)
    assert len({ONE, TWO, THREE}) == 3
    assert content[:32] != file_digest(SECRET, content)


digests = st.lists(st.sampled_from([ONE, TWO, THREE]), max_size=6)


@given(digests, digests)
def test_charged_late_and_missing_files_are_told_apart(charged: list[str], found: list[str]) -> None:
    selection = select_files(charged, found)
    assert sorted((*selection.charged, *selection.late)) == list(range(len(found)))
    kept = [found[place] for place in selection.charged]
    assert sorted([*kept, *selection.missing]) == sorted(charged)
    for digest in (ONE, TWO, THREE):
        assert kept.count(digest) == min(charged.count(digest), found.count(digest))


# --- line 16: the code ---


def test_each_run_reads_its_files_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a disk with a coarse clock a rewritten file looks the same. A digest of an earlier run would bind the key to
    other data than those that are read: the same noise on both.
    """
    monkeypatch.setattr(inputs, "file_version", lambda _: "the clock has not moved")
    path = tmp_path / "log.parquet"
    found = []
    for seed in (1, 2):
        write_files(make_logs(20, 1, seed=seed), tmp_path / f"{seed}", 1)
        (written,) = (tmp_path / f"{seed}").glob("*.parquet")
        path.write_bytes(written.read_bytes().ljust(20_000, b"\0"))  # of one size
        (file,) = inputs.match_files(str(path))
        found.append(file.digest)
        assert file.digest == hashlib.sha256(path.read_bytes()).hexdigest()
    assert found[0] != found[1]


def test_the_code_has_a_digest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A changed line of any module, a module more and another version of a library that draws noise all show."""
    root = Path(metadata.__file__).resolve().parents[2]
    for folder in ("schemas", "transforms", "pipelines"):
        shutil.copytree(root / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__"))
    here = code_digest()
    assert code_digest() is here  # it is made once
    monkeypatch.setattr(metadata, "__file__", str(tmp_path / "transforms" / "release" / "metadata.py"))
    digest = code_digest.__wrapped__
    assert digest() == here  # wherever it is installed
    found = {here}
    for name in ("transforms/privacy/discrete_laplace.py", "pipelines/heatmap.py", "schemas/ledger.py"):
        with (tmp_path / name).open("a") as file:
            file.write("\n")
        found.add(digest())
    (tmp_path / "transforms" / "more.py").write_text("")
    found.add(digest())
    (tmp_path / "transforms" / "notes.txt").write_text("no code")
    found.add(digest())
    version = metadata._version
    for name in ("numpy", "cryptography", "pandas", "scipy", "pyarrow", "apache-beam"):
        monkeypatch.setattr(metadata, "_version", lambda one, name=name: "0" if one == name else version(one))
        found.add(digest())
    assert len(found) == 1 + 4 + 6


# --- a job ---


@pytest.mark.slow
def test_a_job_from_a_kill_to_a_lost_ledger(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Killed, resumed by other code, its release edited, its file charged to another day, its ledger deleted."""
    write_files(make_logs(900, 2, seed=3), tmp_path / "logs", 1)
    write_key(tmp_path / "key")

    def run(name: str, *more: str) -> int:
        own = ("--dataset=City", "--budget=4/1d", *more)
        return charged_run("heatmap", tmp_path / "logs", tmp_path, *own, release_id=name, epsilon=4)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sfumato.transforms.release.publishing.publish", lambda *_: 1 / 0)
        with pytest.raises((RuntimeError, ZeroDivisionError), match="division by zero"):
            run("one")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sfumato.pipelines.frame.run_key.code_digest", lambda: "0" * 64)
        assert run("one") == 2
    assert "another version" in capsys.readouterr().err
    assert run("one") == 0
    check = ["ledger", "verify", "--ledger", str(tmp_path / "ledger.db"), "--releases", str(tmp_path / "one")]
    assert cli.main(check) == 0
    (charged,) = ledger(tmp_path).history().charges
    assert (charged.dataset, len(charged.files)) == ("city", 1)

    assert run("two", "--period=2026-11-21") == 2
    assert run("two", "--dataset=town") == 2
    assert "--allow_reuse" in capsys.readouterr().err
    assert run("two", "--dataset=city") == 3  # City and city are one

    whole = (tmp_path / "one" / "density.npy").read_bytes()
    (tmp_path / "one" / "density.npy").write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    assert cli.main(check) == 4
    assert "density.npy is damaged" in capsys.readouterr().err
    assert run("one") == 0  # under its charge
    assert "is made again" in capsys.readouterr().err
    assert (tmp_path / "one" / "density.npy").read_bytes() == whole
    assert ledger(tmp_path).history().charges == [charged]
    assert cli.main(check) == 0

    (tmp_path / "ledger.db").unlink()
    assert run("two") == 4
    assert "were lost" in capsys.readouterr().err
    assert not (tmp_path / "ledger.db").exists()


# Releases of neighbouring days may read one file without paying twice, only because no row of it is in both.


FILES: dict[str, Any] = {"files": ("0" * 32,)}
BY = "time Europe/Berlin"


@pytest.mark.parametrize("zone", sorted(available_timezones())[::40])
def test_every_row_is_of_one_day_of_a_zone(zone: str) -> None:
    rng, first = seeded_rng(5), date(2026, 3, 27)
    near = pa.array(rng.integers(1774500000, 1774500000 + 8 * 86400, 5000))
    days = [first + timedelta(days=one) for one in range(-2, 12)]
    counted = sum(of_days(near, DayRows("time", zone, day, day))[0].astype(int) for day in days)
    assert (np.asarray(counted) == 1).all()
    seconds = pa.array(rng.integers(-(10**9), 2 * 10**9, 2000))
    kept, before, after = of_days(seconds, DayRows("time", zone, first, first + timedelta(days=6)))
    assert kept.sum() + before + after == len(seconds)


def test_days_that_share_no_row_share_a_file(tmp_path: Path) -> None:
    book = ledger(tmp_path)
    for day in ("2026-03-28", "2026-03-29"):
        book.reserve(charge(day, day, rows_by=BY, **FILES), Limit.parse_all("1/1d,2/30d"))
    charges = book.history(with_limits=True).charges
    assert [(str(one.period), one.rows_by, one.also_charged) for one in charges] == [
        ("2026-03-28", BY, ()), ("2026-03-29", BY, ()),
    ]  # fmt: skip


@pytest.mark.parametrize(
    "other",
    [
        {"rows_by": "time Europe/Lisbon"},  # an hour would be in both days
        {"rows_by": "created Europe/Berlin"},
        {},  # all rows
        {"rows_by": BY, "dataset": "other"},
    ],
)
@pytest.mark.parametrize("swapped", [False, True])
def test_all_else_shares_rows_and_is_refused(tmp_path: Path, other: dict[str, Any], swapped: bool) -> None:
    book = ledger(tmp_path)
    pair = [{"rows_by": BY}, other]
    first, second = pair[::-1] if swapped else pair
    book.reserve(charge("one", "2026-03-28", **first, **FILES), Limit.parse_all("9/1d"))
    with pytest.raises(ReusedFileError):
        book.reserve(charge("two", "2026-03-29", **second, **FILES), Limit.parse_all("9/1d"))
    book.reserve(charge("two", "2026-03-29", **second, **FILES), Limit.parse_all("9/1d"), allow_reuse=True)
    assert len(book.history().charges) == 3  # the second counts for both days
