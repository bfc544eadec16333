"""`sfumato audit --job`: it accuses no job, and finds faults that are planted in a copy of sfumato."""

from __future__ import annotations

import json
import logging
import sys
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from sfumato.pipelines.command_line import cli
from sfumato.pipelines.command_line.run import JOBS
from sfumato.pipelines.operations import audit_job, audit_runs, audit_self_test
from sfumato.pipelines.operations.audit_runs import Audit
from sfumato.pipelines.operations.audit_self_test import FAULTS, SELF_TEST_JOBS, city, copy_package, plant, tried
from sfumato.schemas.errors import RequestError
from sfumato.transforms.audit import noise_tests
from sfumato.transforms.audit.facts import SINGLE
from sfumato.transforms.audit.request import JobAuditRequest
from sfumato.transforms.audit.sequential import EpsilonTest
from tests.releases import COMMANDS


@pytest.fixture(scope="session")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("self test") / "logs.parquet"
    pq.write_table(city(), path)
    return path


@pytest.fixture(scope="session")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("copy") / "sfumato"
    copy_package(folder)
    return folder


def report_of(job: str, logs: Path, folder: Path, *more: str) -> tuple[int, dict[str, list[str]]]:
    """The exit status of an audit and the results by check."""
    path = folder / "report.json"
    path.unlink(missing_ok=True)
    words = {**SELF_TEST_JOBS, **FALSE_ALARMS}[job].split()
    epsilon = () if any(word.startswith("--epsilon") for word in words) else ("--epsilon=1",)
    status = cli.main(["audit", "--job", *words, *epsilon, f"--input={logs}", f"--output={path}", "--users=1", *more])
    found: dict[str, list[str]] = {}
    for one in json.loads(path.read_text())["checks"]:
        found.setdefault(one["check"], []).append(one["result"])
    return status, found


FALSE_ALARMS = {
    "hotspots, top": "hotspots --column=kind --depth=2 --levels=2 --trust=central --delta=1e-4 --top=5",
    "hotspots, sampled": "hotspots --column=kind --depth=2 --levels=2 --delta=1e-3 --epsilon=2",
    "large epsilon": "histogram --region=-1,50,1,51 --cells=3 --trust=central --epsilon=12",
}


@pytest.fixture
def seldom_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    """An audit draws its keys anew, and accuses right code with p up to 1e-5, and 0.05 of runs with fresh keys."""
    monkeypatch.setattr(noise_tests, "_LEVEL", noise_tests._LEVEL / 100)
    monkeypatch.setattr(audit_job, "_LEVEL", 1e-7)
    monkeypatch.setattr(EpsilonTest.refutes, "__defaults__", (1e-7,))


TRIED = (*SELF_TEST_JOBS, *FALSE_ALARMS)
LIKE_OTHERS = ("histogram", "hotspots, top", "hotspots, sampled", "moments, central", "large epsilon")  # and no cheaper


@pytest.mark.slow
@pytest.mark.usefixtures("seldom_wrong")
@pytest.mark.false_alarm(1e-7)
@pytest.mark.parametrize(
    "job", [pytest.param(one, marks=pytest.mark.exhaustive if one in LIKE_OTHERS else ()) for one in TRIED]
)
def test_no_job_is_accused(job: str, logs: Path, tmp_path: Path) -> None:
    status, found = report_of(job, logs, tmp_path, "--minutes=0")
    assert status == 0
    assert not any("violation" in results for results in found.values())
    assert found["One user changes nothing but what the key changes too"][0] == "holds"


@pytest.mark.slow
@pytest.mark.usefixtures("seldom_wrong")
@pytest.mark.false_alarm(1e-7)
def test_large_logs_are_audited_on_a_sample(logs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit_job, "_SAMPLE", 700)
    status, _ = report_of("moments, central", logs, tmp_path, "--minutes=0")
    assert status == 0
    assert "on the logs of 700 users" in (tmp_path / "report.json").read_text()


@pytest.mark.slow
@pytest.mark.usefixtures("seldom_wrong")
@pytest.mark.false_alarm(3e-7)
def test_runs_with_fresh_keys_do_not_refute_a_heatmap(logs: Path, tmp_path: Path) -> None:
    status, found = report_of("heatmap", logs, tmp_path, "--minutes=0.05")
    assert status == 0
    assert found["Runs with fresh keys do not refute the stated epsilon"] == ["holds"]


@pytest.fixture
def audited(logs: Path, tmp_path: Path) -> Audit:
    """An audit of a small histogram."""
    words = [*SELF_TEST_JOBS["histogram, central"].split(), "--epsilon=1", f"--input={logs}"]
    job, request, settings = audit_job._parsed(JobAuditRequest(job=words[0]), words[1:])
    return audit_job._audit_of(job, request, settings, tmp_path)


def test_a_run_keeps_all_that_it_leaves(audited: Audit, monkeypatch: pytest.MonkeyPatch) -> None:
    run_release = audit_runs.run_release

    def leaking(job: Any, settings: Any, audit: bool) -> None:
        sys.stdout.write("37 rows\n")
        sys.stderr.write("38 rows\n")
        logging.getLogger("another").warning("39 rows")
        place = audited.folder / "run"
        for name in ("logs_2", "logs/more", "tmp/more", "../beside"):
            (place / name).write_text("40")
        run_release(job, settings, audit=audit)

    monkeypatch.setattr(audit_runs, "run_release", leaking)
    facts = audited.outcome(audited.key()).facts
    numbers = facts["the log"].loc[SINGLE]
    assert [numbers[f"{name} 1, number 1"] for name in ("stdout", "stderr", "another ")] == [37, 38, 39]
    assert {"logs_2", "logs/more", "tmp/more", "../beside"} <= set(facts[""].columns)
    assert not (audited.folder / "beside").exists()
    assert "release/cells.parquet" in facts


def test_a_page_that_the_tables_do_not_render_is_found(audited: Audit, monkeypatch: pytest.MonkeyPatch) -> None:
    key = audited.key()
    assert audited.outcome(key, renders=True).unrendered == ()
    monkeypatch.setattr(audit_runs, "page_files", lambda view: {"index.html": b"other"})
    assert audited.outcome(key, renders=True).unrendered == ("index.html",)


def test_a_refused_run_has_a_message_and_facts(audited: Audit) -> None:
    refused = audited.outcome(audited.key(), min_users=10**9)
    assert refused.message is not None
    assert refused.measured == ()
    assert refused.fact(("the end", SINGLE, "exit status")) != 0


def test_named_users_are_audited(logs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names, seen = tmp_path / "names", []
    names.write_text("7\n12\n\n7\n")
    neighbours = audit_job._neighbours

    def kept(*arguments: Any) -> Any:
        seen.append({neighbour.records[0] for neighbour in neighbours(*arguments)})
        raise RequestError("job: enough")

    monkeypatch.setattr(audit_job, "_neighbours", kept)
    for users in (str(names), "7,12", "2"):
        words = [*SELF_TEST_JOBS["histogram, central"].split(), "--epsilon=1", f"--input={logs}", f"--users={users}"]
        assert cli.main(["audit", "--job", *words]) == 2
    assert seen[0] == seen[1] == {"7", "12"}
    assert len(seen[2]) == 2


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name.replace(" ", "_"))
def test_every_fault_can_be_planted(fault: audit_self_test.PlantedFault, package: Path, tmp_path: Path) -> None:
    copied = tmp_path / "sfumato"
    place = fault.path_in(package).relative_to(package)
    (copied / place).parent.mkdir(parents=True)
    (copied / place).write_text((package / place).read_text())
    plant(copied, fault)
    compile((copied / place).read_text(), str(place), "exec")
    assert (copied / place).read_text() != (package / place).read_text()


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS[:1], ids=lambda fault: fault.name.replace(" ", "_"))
def test_a_planted_fault_is_found(fault: audit_self_test.PlantedFault, logs: Path, tmp_path: Path) -> None:
    copy_package(tmp_path / "sfumato")
    found, _ = tried(tmp_path, logs, fault, fault.job)
    assert found.startswith("One user changes")


@pytest.mark.parametrize(
    ("words", "option"),
    [
        (["--users=0"], "users"),
        (["--users=1,nobody"], "users"),
        (["--users=,"], "users"),
        (["--minutes=-1"], "minutes"),
        (["--sign=key"], "sign"),
        (["--output=/etc/passwd/report.json"], "output"),
    ],
)
def test_bad_options_are_refused_before_a_run(
    words: list[str], option: str, logs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status = cli.main(["audit", "--job", *SELF_TEST_JOBS["heatmap"].split(), "--epsilon=1", f"--input={logs}", *words])
    assert status == 2
    assert option in capsys.readouterr().err


@pytest.mark.parametrize("job", ["changes", "nothing"])
def test_only_jobs_that_publish_are_audited(job: str, logs: Path) -> None:
    assert cli.main(["audit", "--job", job, f"--input={logs}"]) == 2


def test_every_publishing_job_is_audited() -> None:
    publishing = {name for name, job in JOBS.items() if job.publishes}
    for commands in ([words.split() for words in SELF_TEST_JOBS.values()], COMMANDS.values()):
        assert publishing == {name for name in publishing for words in commands if name.split()[0] == words[0]}
