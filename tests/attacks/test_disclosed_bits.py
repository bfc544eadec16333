"""Bits that users send as they are: the ledger records them, and no dataset with limits has any.

A ledger's limit is a promise about all releases of a dataset. A release without differential privacy keeps no limit, so
it must not slip in beside the charges: not under a dataset with limits, not with its files, not by a rewritten ledger.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from sfumato.pipelines.command_line import cli
from sfumato.pipelines.command_line.run import request_of
from sfumato.pipelines.frame.release_run import _publish_refusal
from sfumato.pipelines.moments import MomentsJob
from sfumato.schemas.errors import LedgerError, NotAdmittedError, RefusedError
from sfumato.schemas.ledger import Disclosure, Limit, Period
from sfumato.transforms.privacy.ledger.charge_rules import ReusedError, ReusedFileError
from sfumato.transforms.privacy.ledger.history import (
    DISCLOSE,
    LIMITS,
    RECOVER,
    RESERVE,
    charge_content,
    disclosure_content,
    limits_content,
    recover_content,
    replay,
)
from sfumato.transforms.privacy.ledger.ledger import open_ledger
from sfumato.transforms.release.metadata import ReleaseMetadata
from sfumato.transforms.release.notices import stated_charge
from sfumato.transforms.release.publishing import ledger_metadata
from tests.attacks.releases import chained, entries_of
from tests.conftest import write_files
from tests.jobs.moment_logs import LENGTH, run, table
from tests.keys import write_key
from tests.rejections import rejects
from tests.unit.privacy.ledger.helpers import charge, ledger

DAY = Period.parse("2026-11-20")
OF = {"release_id": "plain", "job": "moments", "dataset": "bits", "request": "request", "binding": "binding"}
PLAIN = Disclosure(**OF, period=DAY, bits=2, files=("a" * 32,))
METERED = ["--trust", "secagg", "--no_dp", *LENGTH, "--method", "weighted", "--period", "2026-11-20"]


def test_no_dataset_has_limits_and_bits_as_they_are(tmp_path: Path) -> None:
    book = ledger(tmp_path)
    book.reserve(charge("one"), Limit.parse_all("1/30d"))
    with rejects("no_dp"):
        book.disclose(replace(PLAIN, dataset="taxis"))
    assert book.disclose(PLAIN).bits == 2
    with rejects("budget"):
        book.reserve(charge("two", dataset="bits"), Limit.parse_all("1/30d"))
    with rejects("budget"):
        book.set_limits("Bits", Limit.parse_all("1/30d"))


def test_a_release_is_recorded_once_and_for_one_request(tmp_path: Path) -> None:
    book = ledger(tmp_path)
    book.reserve(charge("one"), Limit.parse_all("1/30d"))
    first = book.disclose(PLAIN)
    assert book.disclose(PLAIN) == first
    assert list(book.history().disclosures) == ["plain"]
    for other in (replace(PLAIN, binding="other"), replace(PLAIN, bits=1), replace(PLAIN, release_id="one")):
        with pytest.raises(ReusedError):
            book.disclose(other)


def test_files_under_limits_are_not_read_without_privacy(tmp_path: Path) -> None:
    book = ledger(tmp_path)
    book.reserve(replace(charge("one"), files=PLAIN.files), Limit.parse_all("2/30d"))
    with pytest.raises(ReusedFileError):
        book.disclose(PLAIN)
    assert book.disclose(PLAIN, allow_reuse=True).release_id == "plain"
    again = replace(charge("two"), files=PLAIN.files)
    with pytest.raises(ReusedFileError):
        book.reserve(again)
    assert book.reserve(again, allow_reuse=True).charge.release_id == "two"


def test_a_rewritten_ledger_with_both_is_refused() -> None:
    """As somebody who may write entries, but does not pass through `Ledger`."""
    limit, bits = limits_content("bits", Limit.parse_all("1/30d")), disclosure_content(PLAIN)
    for first, second in (
        ((LIMITS, limit), (DISCLOSE, bits)),
        ((DISCLOSE, bits), (LIMITS, limit)),
        ((DISCLOSE, bits), (DISCLOSE, bits)),
    ):
        assert replay(chained([], first)).entries == 1
        with pytest.raises(LedgerError, match="entry 1"):
            replay(chained([], first, second))
    for wrong in ({"bits": 0}, {"bits": True}, {"bits": "2"}, {"first": "today"}, {"files": ["x"]}):
        with pytest.raises(LedgerError, match="entry 0 cannot be read"):
            replay(chained([], (DISCLOSE, {**bits, **wrong})))


def test_a_release_id_of_bits_as_they_are_is_not_charged(tmp_path: Path) -> None:
    """Two releases of one name would be one in `ledger verify`, and the charge would stand for both."""
    book = ledger(tmp_path)
    book.disclose(PLAIN)
    limits = Limit.parse_all("1/30d")
    for attempt in (book.reserve, book.check):
        with pytest.raises(ReusedError):
            attempt(charge("plain"), limits)
    book.set_limits("taxis", limits)
    with pytest.raises(LedgerError, match="release plain was charged by a different entry"):
        book.recover(charge("plain"), "f" * 64, "manifest", None)
    for kind, content in (
        (RESERVE, charge_content(charge("plain"))),
        (RECOVER, recover_content(charge("plain"), "f" * 64, "manifest", None)),
    ):
        entries = chained(entries_of(tmp_path), (kind, content))
        with pytest.raises(LedgerError, match=f"entry {len(entries) - 1} charges release plain again"):
            replay(entries)


def test_earlier_versions_do_not_pass_over_such_an_entry() -> None:
    (entry,) = chained([], (DISCLOSE, disclosure_content(PLAIN)))
    assert json.loads(entry)["format"] == "sfumato-ledger/4"


def test_the_meter_adds_up_what_a_user_sent(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Releases with randomised response and without, of one bit and of two; heatmaps send no bits of a value."""
    book = ledger(tmp_path)
    limits = Limit.parse_all("9/30d")
    book.reserve(replace(charge("one"), bits=1), limits)
    book.reserve(replace(charge("two"), bits=2))
    book.reserve(charge("map"))
    book.disclose(PLAIN)
    book.disclose(replace(PLAIN, release_id="more", bits=1))
    place = ["--ledger", str(tmp_path / "ledger.db")]
    for dataset, bits, said in (
        ("taxis", 3, "at most 3 bits of their values for 2 releases; 0 of them unchanged"),
        ("bits", 3, "at most 3 bits of their values for 2 releases; 3 of them unchanged"),
    ):
        account = ["ledger", "account", "--user_id", "7", "--dataset", dataset, *place]
        assert cli.main([*account, "--format", "json"]) == 0
        assert json.loads(capsys.readouterr().out)["bits_sent"] == bits
        assert cli.main(account) == 0
        assert said in capsys.readouterr().out
    assert cli.main(["ledger", "show", *place]) == 0
    shown = capsys.readouterr().out
    assert "no privacy" in shown
    assert "| bits" in shown


def test_a_refused_release_sent_no_bits(tmp_path: Path) -> None:
    """Only counts of users were drawn."""
    book = ledger(tmp_path)
    book.reserve(replace(charge("one"), bits=1), Limit.parse_all("9/30d"))
    assert book.settle("one", "0.01", 0, "too few users").charge.bits is None
    assert book.history().reservations["one"].charge.bits is None


@pytest.mark.slow
def test_a_charge_that_is_made_again_has_its_bits(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """From the manifest, or the notice in its place. A lost ledger would else be a way to a smaller sum of bits."""
    pattern = write_files(table(300, 2), tmp_path / "logs", 2)
    write_key(tmp_path / "key")
    private = ["--epsilon", "1", *LENGTH, "--bits_per_client", "2"]
    keyed = ["--key_file", str(tmp_path / "key"), "--dataset", "city", "--budget", "2/1d"]
    places = [str(tmp_path / f"{name}.db") for name in ("first", "second")]
    for name, day in (("kept", "2026-11-20"), ("removed", "2026-11-21")):
        more = [*private, "--period", day, *keyed, "--release_id", name, "--ledger", places[0], "--allow_reuse"]
        assert run(pattern, tmp_path / "out" / name, *more) == 0
    remove = ["releases", "remove", str(tmp_path / "out" / "removed"), "--reason", "a leak", "--ledger", places[0]]
    assert cli.main(remove) == 0
    limit = ["ledger", "limit", "--dataset", "city", "--budget", "9/1d", "--ledger", places[1]]
    assert cli.main(limit) == 0
    assert cli.main(["ledger", "restore", "--releases", str(tmp_path / "out"), "--ledger", places[1]]) == 0
    for place in places:
        assert [one.charge.bits for one in open_ledger(place).history().reservations.values()] == [2, 2]
        account = ["ledger", "account", "--user_id", "7", "--dataset", "city", "--ledger", place, "--format", "json"]
        capsys.readouterr()
        assert cli.main(account) == 0
        # The second release counts for both days, because it read the same file. Its bits were sent once.
        found = json.loads(capsys.readouterr().out)
        assert (len(found["charges"]), found["bits_sent"]) == (3, 4)


@pytest.mark.parametrize("has_sent", [False, True])
def test_a_notice_of_a_refusal_states_the_bits_that_were_sent(tmp_path: Path, has_sent: bool) -> None:
    """After the queries, all of epsilon is spent and the bits are sent. At the admission, neither."""
    output = str(tmp_path / "out")
    options = {"input": "logs", "output": output, "column": "length", "epsilon": 1, "bits_per_client": 2}
    job = MomentsJob.of(request_of("moments", options))
    book = ledger(tmp_path)
    reserved = book.reserve(replace(charge("one", job="moments"), bits=2), Limit.parse_all("1/30d"))
    stated = ledger_metadata(reserved)
    metadata = ReleaseMetadata("moments", "one", "2026-11-21", "key file", True, job.parameters(), stated)
    refusal = RefusedError("an estimate is no number") if has_sent else NotAdmittedError("too many bad rows")
    _publish_refusal(job, metadata, job.admission(), refusal)
    found = stated_charge(output, (tmp_path / "out" / "manifest.json").read_bytes()).charge
    assert found.bits == (2 if has_sent else None)
    assert (found.epsilon == 1) == has_sent


def test_a_recorded_release_is_in_order(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It was never charged, and that is no loss. A release that nobody recorded is still one."""
    pattern = write_files(table(300, 2), tmp_path / "logs", 2)
    write_key(tmp_path / "key")
    place = ["--ledger", str(tmp_path / "ledger.db")]
    keyed = ["--key_file", str(tmp_path / "key"), "--release_id", "plain"]
    out = tmp_path / "out" / "plain"
    assert run(pattern, out, *METERED, *keyed, "--dataset", "rides", *place) == 0
    verify = ["ledger", "verify", "--releases", str(tmp_path / "out"), *place]
    assert cli.main(verify) == 0
    assert "recorded, without differential privacy" in capsys.readouterr().out
    assert cli.main(["releases", "remove", str(out), "--reason", "a leak", *place]) == 4
    assert "no charge; delete its folder" in capsys.readouterr().err
    manifest = json.loads((out / "manifest.json").read_text())
    privacy = manifest["privacy"]
    for change in (
        {"privacy": {**privacy, "meter": {"bits_per_client": 2}}},
        {"privacy": {**privacy, "epsilon": 1.0}},
        {"privacy": None},
        {"release_id": "unknown"},
    ):
        (out / "manifest.json").write_text(json.dumps({**manifest, **change}))
        assert cli.main(verify) == 4
        assert "was never charged" in capsys.readouterr().err


def test_a_refusal_without_an_epsilon_says_why(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It leaves no notice, because a notice states what was spent of an epsilon."""
    pattern = write_files(table(300, 1), tmp_path / "logs", 1)
    metered = [one for one in METERED if one not in ("--period", "2026-11-20")]
    assert run(pattern, tmp_path / "out", *metered, "--min_users", "1000000") == 75
    assert "1,000,000" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
