"""sfumato doctor: each check is made to fail for real, and nothing secret is shown."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from sfumato.pipelines.command_line import cli
from sfumato.pipelines.operations import doctor
from sfumato.pipelines.runners import job_servers
from sfumato.schemas.ledger import Limit
from sfumato.transforms.privacy.ledger.ledger import Ledger, open_ledger
from sfumato.transforms.privacy.ledger.stores import SqliteStore
from tests import DATA
from tests.keys import SECRET, write_key
from tests.leaks import forms
from tests.unit.privacy.ledger.helpers import charge, ledger

LIMITS = Limit.parse_all("1/1d")


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A key, a ledger, a folder of logs and a refresh's configuration."""
    write_key(tmp_path / "key")
    ledger(tmp_path).reserve(charge("one"), LIMITS)
    (tmp_path / "days").mkdir()
    options = {"region": [0, 0, 1, 1], "depth": 4, "epsilon": 1}
    config = {
        "dataset": "taxis", "input": "days", "output": "published", "ledger": "ledger.db", "key_file": "key",
        "budget": [{"epsilon": 1, "days": 1}], "options": options,
    }  # fmt: skip
    (tmp_path / "refresh.yaml").write_text(yaml.safe_dump(config))
    return tmp_path


class Doctor:
    """Runs the command and returns its checks by name."""

    def __init__(self, capsys: pytest.CaptureFixture[str]):
        self._capsys = capsys

    def __call__(self, *arguments: str) -> dict[str, dict[str, Any]]:
        status = cli.main(["doctor", *arguments, "--format", "json"])
        shown = self._capsys.readouterr()
        checks = json.loads(shown.out)
        failed = [one["name"] for one in checks if one["state"] == "failed"]
        assert status == (1 if failed else 0)
        assert all(name in shown.err for name in failed)
        for text in (shown.out, shown.err):
            assert not any(form in text.encode() for form in forms(SECRET))
        return {one["name"]: one for one in checks}


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Doctor:
    return Doctor(capsys)


def config_of(place: Path) -> tuple[str, str]:
    return "--config", str(place / "refresh.yaml")


def test_all_is_in_order(place: Path, run: Doctor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_listening", lambda: iter(()))  # others may run engines on this machine
    monkeypatch.setattr(doctor, "_DISK_GB", 0)
    found = run(*config_of(place))
    assert {check["state"] for check in found.values()} == {"ok"}
    assert set(found) == {"runner", "temporary folder", "ports", "key", "ledger", "clock"}
    assert not (place / "published").exists()
    assert open_ledger(str(place / "ledger.db")).history().entries == 2


@pytest.mark.parametrize(
    ("mode", "content", "words"),
    [
        (0o644, SECRET, "other users can read"),
        (0o600, b"short", "contains 5 bytes"),
        (0o600, b"a word and another, and no key " * 2, "neither hexadecimal nor base64"),
        (0o600, bytes(32), "is not random"),
    ],
)
def test_a_bad_key(place: Path, run: Doctor, mode: int, content: bytes, words: str) -> None:
    (place / "key").write_bytes(content)
    (place / "key").chmod(mode)
    found = run(*config_of(place))["key"]
    assert found["state"] == "failed"
    assert words in found["text"]


def test_a_ledger_without_the_charge_of_a_published_release(place: Path, run: Doctor) -> None:
    """As for a refresh: a ledger that was lost is no new one."""
    release = DATA / "version_0_1_0" / "2026-11-17"
    shutil.copytree(release, place / "published" / "releases" / "2026-11-17")
    found = run(*config_of(place))["ledger"]
    assert (found["state"], "was never charged" in found["text"]) == ("failed", True)
    (place / "ledger.db").unlink()
    found = run(*config_of(place))["ledger"]
    assert (found["state"], "restore it from a copy" in found["text"]) == ("failed", True)


def test_a_clock_before_the_ledgers_newest_entry(place: Path, run: Doctor) -> None:
    later = datetime.now(UTC) + timedelta(hours=3)
    Ledger(SqliteStore(str(place / "ledger.db")), lambda: later).set_limits("taxis", Limit.parse_all("0.9/1d"))
    found = run("--ledger", str(place / "ledger.db"))["clock"]
    assert found["state"] == "failed"
    assert f"newest entry at {later:%F %T}" in found["text"]


# --- runners ---


def test_a_clock_long_after_the_ledgers_newest_entry(place: Path, run: Doctor) -> None:
    before = datetime.now(UTC) - timedelta(days=400)
    Ledger(SqliteStore(str(place / "old.db")), lambda: before).set_limits("taxis", LIMITS)
    found = run("--ledger", str(place / "old.db"))["clock"]
    assert found["state"] == "warning"
    assert "400 days after" in found["text"]


def _java(place: Path) -> str:
    java = place / "java"
    java.write_text("#!/bin/sh\n")
    java.chmod(0o755)
    return f"--job_server_java_launcher={java}"


ENGINE = ("--runner_config", "flink")
# Options of a job and of `doctor`, and words of the message; none if a job can start.
ENGINES = {
    "no jar": (lambda place: ["--open_job_server", f"--flink_job_server_jar={place}/no.jar"], "make flink-jar"),
    "no Java": (lambda place: ["--open_job_server", "--job_server_java_launcher=/nowhere/java"], "was not found"),
    "others reach it": (lambda place: [_java(place)], "reachable through eth0"),
    "nobody answers": (lambda _: ["--job_endpoint", "127.0.0.1:1"], "127.0.0.1:1"),
    "a wrong option": (lambda _: ["--no_such_option", "1"], "--no_such_option"),
    "in order": (lambda place: ["--open_job_server", _java(place)], ""),
}


@pytest.mark.parametrize("case", list(ENGINES))
def test_an_engine_is_judged_as_a_job_would(
    case: str, place: Path, run: Doctor, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In the same words; a job looks before it reads its input."""
    monkeypatch.setattr(job_servers, "_network_interfaces", lambda: ["eth0"])
    (place / "job-server.jar").touch()
    monkeypatch.setenv("SFUMATO_FLINK_JAR", str(place / "job-server.jar"))
    make, words = ENGINES[case]
    options = [*ENGINE, *make(place)]
    found = run(*options)["runner"]
    assert (found["state"], words in found["text"]) == ("failed" if words else "ok", True)
    nothing = ["--input", str(place / "nothing.parquet"), "--output", str(place / "out"), "--region", "0,0,1,1"]
    assert cli.main(["heatmap", *nothing, *options]) == 2
    expected = f"sfumato heatmap: {found['text']}" if words else "sfumato heatmap: --input: no file matches"
    assert capsys.readouterr().err.startswith(expected)


# --- the machine ---


_SERVE = """
import socket, sys
with socket.create_server((sys.argv[1], 0)) as server:
    print(server.getsockname()[1], flush=True)
    sys.stdin.read()
"""


@pytest.mark.parametrize(("address", "is_open"), [("127.0.0.1", False), ("0.0.0.0", True)])
def test_a_server_of_an_engine_that_others_reach(run: Doctor, address: str, is_open: bool) -> None:
    command = [sys.executable, "-c", _SERVE, address, "apache_beam.runners.worker"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        port = server.stdout.readline().strip()
        found = run()["ports"]
        server.communicate()
    assert (f"(process {server.pid}) on port {port}" in found["text"]) is is_open


def test_a_configuration_stands_alone(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["doctor", *config_of(place), "--ledger", "elsewhere"]) == 2
    assert "ledger: cannot be combined with --config" in capsys.readouterr().err
