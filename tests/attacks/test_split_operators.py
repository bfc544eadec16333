"""Two servers: what a dishonest operator, or anyone who can write to the parties' folders, can do.

These tests fail if an operator verifies reports under a second key, counts bytes whose ids it did not compare, lets the
order of files decide which copy of a report counts, or if the collector adds up a share of somebody else.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from sfumato.pipelines import split
from sfumato.schemas.errors import DataError, RequestError
from sfumato.transforms.split import aggregate, blocks
from sfumato.transforms.split.collect import collect, opened
from sfumato.transforms.split.hpke import seal
from sfumato.transforms.split.parties import Aggregator, party_key, private_key
from sfumato.transforms.split.prio3 import HELPER, LEADER, Prio3, encode_share
from sfumato.transforms.split.reports import UNREADABLE, Formats, make_reports, open_records
from sfumato.transforms.split.task import Task
from tests.keys import write_key
from tests.rejections import rejects
from tests.seeds import seeded_rng
from tests.two_servers import HONEST, City, cells_of

EXACTLY = pytest.mark.false_alarm(1e-10)  # noise of counts that is not 0 at epsilon 30, or above 190 at 0.15
NESTED = b"[" * 100_000
ROLES = ("leader", "helper")
NUMBERS = {"leader": LEADER, "helper": HELPER}


@pytest.fixture
def city(tmp_path: Path) -> City:
    return City.new(tmp_path)


def private_of(city: City, party: str) -> bytes:
    return private_key(party_key(f"{city.folder}/{party}.key"))


def counts_of(city: City) -> list[int]:
    shares = [city.share(role).read_bytes() for role in ROLES]
    return collect(city.task, shares, private_of(city, "collector")).counts


@EXACTLY
@pytest.mark.parametrize("role", ROLES)
def test_no_report_is_verified_under_a_second_key(finished: City, role: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Verifier shares of one report under two keys are two equations that give an operator the cell."""
    (finished.folder / "verify.key").unlink()
    write_key(finished.folder / "verify.key", hashlib.sha256(b"a second key").digest())
    shutil.copytree(finished.folder / "exchange" / "requests", finished.folder / "second" / "requests")
    monkeypatch.setattr(blocks, "open_records", lambda *_: pytest.fail("a report was opened"))
    assert finished.aggregate(role, exchange="second") == RequestError.exit_code
    assert not (finished.folder / "second" / "responses").exists()


def test_an_operators_own_key_is_no_verification_key(city: City) -> None:
    """One that the other operator, the collector or a device knows in part would not be a secret of two."""
    content = json.loads(city.task.text)
    for one in ("leader", "helper", "collector"):
        with rejects("task"):
            Task.parse(json.dumps(content | {"verify": content[one]}))


@EXACTLY
@pytest.mark.parametrize("role", ROLES)
def test_a_file_that_changes_between_reads_ends_the_run(city: City, role: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ids are compared in a first read. A second that repeats one report would count its user hundreds of times."""
    city.report([11] + [0] * 399)
    path, size = city.folder / "reports" / "a.bin", Formats(city.task).report.itemsize
    content, read = path.read_bytes(), blocks._content
    if role == "helper":
        assert city.aggregate("leader") == 0

    def read_and_replace(aggregator: Aggregator, block: blocks.Block) -> bytes:
        found = read(aggregator, block)
        if role == "leader":
            path.write_bytes(content[:size] * (len(content) // size))
        else:
            city.exchanged("requests", change=lambda requests: np.repeat(requests[:1], len(requests)))
        return found

    monkeypatch.setattr(blocks, "_content", read_and_replace)
    assert city.aggregate(role) == DataError.exit_code
    assert not city.share(role).exists()
    assert city.spent(role) == []


@EXACTLY
def test_damaged_copies_do_not_displace_a_report(city: City) -> None:
    """Whoever can add files to the folder of reports, in any order of names."""
    content, formats = city.report(cells_of(HONEST), "m"), Formats(city.task)
    damaged = np.frombuffer(content, dtype=formats.report).copy()
    damaged["leader_payload"][:, 5] ^= 1
    for name in ("a", "z"):
        city.write(name, damaged[:200].tobytes())
    city.run()
    assert counts_of(city) == HONEST.tolist()


@EXACTLY
@pytest.mark.parametrize("name", ["a", "z"])
def test_two_reports_with_one_id_do_not_count(city: City, name: str) -> None:
    """Otherwise the order of files would let anyone exchange a report for another one."""
    honest = city.report([5] * 400, "m")
    size = Formats(city.task).report.itemsize
    randomness = honest[:16] + os.urandom(Formats(city.task).randomness_size - 16)
    city.report([9], name, randomness=randomness)
    city.write("copy", honest[size : 2 * size])  # equal byte for byte: it counts once
    city.run()
    assert counts_of(city) == [399 * (cell == 5) for cell in range(16)]


@EXACTLY
def test_a_request_repeated_with_another_verifier_is_refused(city: City) -> None:
    city.report([5] * 400)
    assert city.aggregate("leader") == 0

    def repeated(requests: np.ndarray) -> np.ndarray:
        requests[1] = requests[0]
        requests["verifier"][1, 0] ^= 1
        return requests

    city.exchanged("requests", change=repeated)
    assert city.aggregate("helper") == 0
    assert city.exchanged("responses")["type"].tolist() == [2, 2] + [0] * 398


@EXACTLY
def test_only_an_operator_writes_to_the_exchange(city: City) -> None:
    """A device knows all of its report but the point of the check, which the leader's request would show it. With that
    it could forge a request for any report: here the one that the leader's own proof check does not see."""
    city.report([5] * 400)
    assert city.aggregate("leader") == 0
    path = city.folder / "exchange" / "requests" / "00000000.bin"
    good = path.read_bytes()
    assert city.exchanged("requests")["verifier"][0].tobytes() not in good
    for bad in (good[:-1] + bytes([good[-1] ^ 1]), bytes(len(good))):
        path.write_bytes(bad)
        assert city.aggregate("helper") == DataError.exit_code
    path.write_bytes(good)
    assert city.aggregate("helper") == 0
    answers = city.folder / "exchange" / "responses" / "00000000.bin"
    answers.write_bytes(good)  # of another kind
    assert city.aggregate("leader") == DataError.exit_code
    assert not city.share("leader").exists()


def test_a_block_of_requests_has_a_bound(city: City) -> None:
    """Or a leader could have the helper hold any number of reports in memory at once."""
    city.report([5] * 400)
    assert city.aggregate("leader") == 0
    city.exchanged("requests", change=lambda requests: np.resize(requests, 513))
    assert city.aggregate("helper") == DataError.exit_code
    assert city.spent("helper") == []


def forged_share(city: City, sender: bytes | None) -> bytes:
    """Returns a helper's share with all that the collector compares, sealed by another sender."""
    task, genuine = city.task, json.loads(city.share("helper").read_text())
    associated = aggregate.share_associated(task, HELPER, genuine["batch"], genuine["reports"])
    plain = encode_share([7] * task.circuit.length)
    enc, payload = seal(bytes.fromhex(task.collector), aggregate.share_info(HELPER), associated, plain, sender=sender)
    return json.dumps(genuine | {"enc": enc.hex(), "payload": base64.b64encode(payload).decode()}).encode()


@EXACTLY
@pytest.mark.parametrize("sender", [None, "leader", "collector"])
def test_only_an_operator_writes_its_share(finished: City, sender: str | None) -> None:
    collector = private_of(finished, "collector")
    secret = None if sender is None else private_of(finished, sender)
    with pytest.raises(DataError):
        opened(finished.task, forged_share(finished, secret), collector)
    own = forged_share(finished, private_of(finished, "helper"))  # an operator can return a wrong sum
    assert opened(finished.task, own, collector)[3] == [7] * 16


@EXACTLY
def test_a_malformed_share_is_an_error_with_a_message(finished: City) -> None:
    good = json.loads(finished.share("helper").read_text())
    changes: list[dict[str, object]] = [
        {"role": []},
        {"role": "collector"},
        {"batch": ["b"]},
        {"reports": "1"},
        {"reports": True},
        {"reports": 1 << 70},
        {"enc": "00"},
        {"enc": "00" * 32},
        {"enc": 1},
        {"payload": ""},
        {"payload": "é"},
        {"format": 1},
        {"task": None},
        {"more": 1},
    ]
    malformed = [json.dumps(good | change).encode() for change in changes]
    for content in (*malformed, b"", b"{", b"null", b"[]", b"\xff\xfe", NESTED):
        with pytest.raises(DataError):
            opened(finished.task, content, private_of(finished, "collector"))
    finished.share("helper").write_bytes(NESTED)
    assert finished.collect() == DataError.exit_code


@EXACTLY
def test_sums_that_are_no_counts_are_an_error(finished: City) -> None:
    genuine = json.loads(finished.share("helper").read_text())
    associated = aggregate.share_associated(finished.task, HELPER, genuine["batch"], genuine["reports"])
    plain = encode_share([1 << 100] * 16)
    keys = bytes.fromhex(finished.task.collector), aggregate.share_info(HELPER)
    enc, payload = seal(*keys, associated, plain, sender=private_of(finished, "helper"))
    wrong = genuine | {"enc": enc.hex(), "payload": base64.b64encode(payload).decode()}
    finished.share("helper").write_text(json.dumps(wrong))
    assert finished.collect() == DataError.exit_code


def test_nested_json_is_an_error_with_a_message(city: City) -> None:
    city.report([3] * 10)
    assert city.aggregate("leader") == 0
    (city.folder / "exchange" / "requests" / "complete.json").write_bytes(NESTED)
    assert city.aggregate("helper") == DataError.exit_code
    (city.folder / "exchange" / "responses").mkdir()
    (city.folder / "exchange" / "responses" / "complete.json").write_bytes(NESTED)
    assert city.aggregate("leader") == DataError.exit_code
    (city.folder / "task.json").write_bytes(NESTED)
    assert city.aggregate("helper") == RequestError.exit_code


EDITS: list[dict[str, object]] = [{"min_batch": 1}, {"name": "another day"}, {"end": "2026-11-22T00:00:00+00:00"}]


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("edit", EDITS, ids=lambda edit: next(iter(edit)))
def test_a_report_is_not_opened_in_another_task(city: City, role: str, edit: dict[str, object]) -> None:
    """The encryption is bound to the task, before any proof is looked at: with the keys and cells of the same city."""
    task = city.task
    other = city.write_task(city.folder / "other.json", **edit)
    for made_for, read_in in ((task, other), (other, task)):
        records = np.frombuffer(make_reports(made_for, [3] * 5, task.start), dtype=Formats(task).report)
        errors = open_records(read_in, NUMBERS[role], records, private_of(city, role)).errors
        assert errors.tolist() == [UNREADABLE] * 5
        assert not open_records(made_for, NUMBERS[role], records, private_of(city, role)).errors.any()


@pytest.mark.parametrize("change", [lambda text: text + "\n", lambda text: text.replace(": ", ":", 1)])
def test_a_task_is_the_bytes_of_its_file(city: City, change: Callable[[str], str]) -> None:
    """So devices in any language need no canonical form, which two programs could make in two ways."""
    task = city.task
    other = Task.parse(change(task.text))
    assert other.id != task.id
    records = np.frombuffer(make_reports(task, [3], task.start), dtype=Formats(task).report)
    assert open_records(other, LEADER, records, private_of(city, "leader")).errors.tolist() == [UNREADABLE]


@EXACTLY
def test_cheats_and_lost_reports_leave_honest_sums_exact(city: City, monkeypatch: pytest.MonkeyPatch) -> None:
    """1% of the devices prove what is not so, and 5% of the reports arrive at one operator only, or cut."""
    rng, formats = seeded_rng(38), Formats(city.task)
    cells = rng.integers(0, 16, 1_000)
    fate = rng.permutation(np.repeat(["cheat", "cut", "lost", "honest"], [10, 25, 25, 940]))
    encoded = np.eye(16, dtype=np.int64)[cells]
    encoded[np.flatnonzero(fate == "cheat"), rng.integers(0, 16, 10)] += 5
    with monkeypatch.context() as patch:
        patch.setattr(Prio3, "shard", lambda prio3, _, ids, rest: prio3.shard_encoded(encoded, ids, rest))
        content = city.report(cells.tolist())
    records = np.frombuffer(content, dtype=formats.report).copy()
    records["helper_payload"][fate == "cut", -20:] = 0
    city.write("a", records[fate != "lost"].tobytes())
    city.run()
    assert counts_of(city) == np.bincount(cells[fate == "honest"], minlength=16).tolist()


@EXACTLY
def test_a_killed_collector_repeats_its_bytes_and_charges_once(finished: City, monkeypatch: pytest.MonkeyPatch) -> None:
    account = ["--ledger", f"{finished.folder}/collector.db", "--dataset", "city", "--budget", "100/365d"]
    with monkeypatch.context() as patch:
        patch.setattr(split, "publish", lambda *_: pytest.fail("killed"))
        with pytest.raises(pytest.fail.Exception):
            finished.collect(*account)
    assert finished.spent("collector") == [finished.task.epsilon]
    with monkeypatch.context() as patch:  # long after
        patch.setattr(split, "datetime", None)
        assert finished.collect(*account) == 0
        assert finished.collect(*account, output="again") == 0
    assert finished.spent("collector") == [finished.task.epsilon]
    files = [sorted((finished.folder / name).iterdir()) for name in ("release", "again")]
    for one, other in zip(*files, strict=True):
        assert (one.name, one.read_bytes()) == (other.name, other.read_bytes())


@EXACTLY
def test_a_task_is_collected_from_one_batch(city: City) -> None:
    """Shares of two batches of one task, from operators that lost their ledgers, would show the report between them."""
    account = ["--ledger", f"{city.folder}/collector.db", "--dataset", "city", "--budget", "100/365d"]
    city.report(cells_of(HONEST))
    city.run()
    assert city.collect(*account) == 0
    for path in (city.folder / "leader.db", city.folder / "helper.db"):
        path.unlink()
    city.report([0], "one more")
    for role in ("leader", "helper", "leader"):
        assert city.aggregate(role, exchange="second") == 0
    assert city.collect(*account, output="second release") == RequestError.exit_code
    assert not (city.folder / "second release").exists()
    assert city.spent("collector") == [city.task.epsilon]
