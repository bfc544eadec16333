"""The examples for schedulers: each is checked by its scheduler's own tools, and their commands by sfumato's parser."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from configparser import ConfigParser
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from sfumato.pipelines.command_line.cli import CRASHED, parse_command
from sfumato.schemas import errors
from sfumato.schemas.requests.commands import RefreshRequest
from tests import ROOT

SCHEDULES = ROOT / "runner_configs" / "schedules"
AIRFLOW = Path(os.environ.get("SFUMATO_AIRFLOW", ROOT / "build" / "airflow"))
SFUMATO = "/opt/sfumato/bin/sfumato"

LATER = errors.NotReadyError.exit_code
NEEDS_A_PERSON = {
    kind.exit_code for kind in (errors.DataError, errors.RequestError, errors.BudgetError, errors.LedgerError)
}
CRASH = 70


def parse(command: list[str]) -> dict[str, Any]:
    """The options of a `sfumato refresh` command as text, by the job's own parser, which has to know all of them."""
    assert command[:2] == [SFUMATO, "refresh"]
    request, unknown = parse_command(RefreshRequest, command[2:])
    assert unknown == []
    return {name: None if value is None else str(value) for name, value in vars(request).items()}


def stub(folder: Path) -> Path:
    """A program in place of sfumato's that notes its arguments in `calls` and ends with the status in `status`."""
    program = folder / "sfumato"
    (folder / "status").write_text("0")
    program.write_text(f'#!/bin/sh\necho "$@" >>{folder}/calls\necho news\nexit $(cat {folder}/status)\n')
    program.chmod(0o755)
    return program


def test_the_table_of_exit_statuses_is_that_of_the_errors() -> None:
    rows = re.findall(r"^\| (\d+) \|", (SCHEDULES / "README.md").read_text(), flags=re.MULTILINE)
    assert [int(row) for row in rows] == [0, *sorted(NEEDS_A_PERSON), CRASHED, LATER]
    every = {kind.exit_code for kind in errors.SfumatoError.__subclasses__()}
    assert every == {*NEEDS_A_PERSON, LATER}


def cron() -> tuple[dict[str, str], list[tuple[list[str], str]]]:
    """The crontab's variables, and (five fields, command) of each entry."""
    variables, entries = {}, []
    for line in (SCHEDULES / "crontab").read_text().splitlines():
        if assignment := re.fullmatch(r"(\w+)=(.*)", line):
            variables[assignment[1]] = assignment[2]
        elif line and not line.startswith("#"):
            *fields, command = line.split(None, 5)
            entries.append((fields, command))
    return variables, entries


def test_cron_accepts_its_table() -> None:
    crontab = shutil.which("crontab")
    if crontab is None:
        pytest.skip("no crontab here (Debian package cron)")
    found = subprocess.run([crontab, "-n", SCHEDULES / "crontab"], capture_output=True, text=True)
    if "usage" in found.stderr:
        pytest.skip("this crontab cannot check a file (-n, as of Debian's cron)")
    assert found.returncode == 0, found.stderr


def test_cron_tries_every_hour_of_the_morning() -> None:
    _, entries = cron()
    hours: list[int] = []
    for (minute, hour, *rest), command in entries:
        assert 0 <= int(minute) < 60
        assert rest == ["*", "*", "*"]
        first, _, last = hour.partition("-")
        hours += range(int(first), int(last or first) + 1)
        assert "%" not in command  # a line break to cron
    assert hours == list(range(5, 12))


@pytest.mark.parametrize("status", [0, *sorted(NEEDS_A_PERSON), LATER, CRASH])
def test_cron_mails_what_a_person_must_see(tmp_path: Path, status: int) -> None:
    variables, entries = cron()
    assert parse([variables["SFUMATO"], "refresh", "--config", variables["CONFIG"]])["config"] == variables["CONFIG"]
    settings = {**variables, "SFUMATO": str(stub(tmp_path)), "LOG": str(tmp_path / "log"), "PATH": os.environ["PATH"]}
    (tmp_path / "status").write_text(str(status))
    mails = []
    for _, command in entries:
        ran = subprocess.run([variables["SHELL"], "-c", command], env=settings, capture_output=True, text=True)
        assert ran.stderr == ""
        mails.append(ran.stdout != "")  # cron mails what a command says
    assert mails == [status not in (0, LATER), status != 0]
    assert (tmp_path / "calls").read_text() == f"refresh --config {variables['CONFIG']}\n" * 2
    assert (tmp_path / "log").read_text() == "news\n" * 2


def unit(name: str) -> ConfigParser:
    parser = ConfigParser(interpolation=None, comment_prefixes=("#",))
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read(SCHEDULES / name)
    return parser


def systemd(tmp_path: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs systemd-analyze on copies of the units whose command exists on this machine; skips where it is missing."""
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("no systemd-analyze here (Debian package systemd)")
    for path in SCHEDULES.glob("sfumato-refresh.*"):
        (tmp_path / path.name).write_text(path.read_text().replace(SFUMATO, sys.executable))
    return subprocess.run([analyze, *arguments], cwd=tmp_path, capture_output=True, text=True)


def test_systemd_finds_no_fault_in_the_units(tmp_path: Path) -> None:
    units = ("./sfumato-refresh.service", "./sfumato-refresh.timer")
    found = systemd(tmp_path, "verify", *units)
    assert (found.returncode, found.stderr) == (0, "")
    service = tmp_path / "sfumato-refresh.service"
    service.write_text(service.read_text().replace("Restart=", "RestartForceExitStatus=75\nRestart=", 1))
    analyze = shutil.which("systemd-analyze")
    assert analyze is not None
    planted = subprocess.run([analyze, "verify", units[0]], cwd=tmp_path, capture_output=True, text=True)
    assert (
        "isn't allowed for Type=oneshot" in planted.stderr or planted.returncode == 0
    )  # systemd 254 and later allow it


def test_the_service_is_confined(tmp_path: Path) -> None:
    found = systemd(tmp_path, "security", "--offline=true", "--threshold=25", "./sfumato-refresh.service")
    if "unrecognized option" in found.stderr:
        pytest.skip("this systemd-analyze cannot judge a file (--offline, as of version 250)")
    assert found.returncode == 0, found.stdout


def test_the_timer_goes_off_every_night_when_the_utc_day_is_over(tmp_path: Path) -> None:
    timer = unit("sfumato-refresh.timer")["Timer"]
    assert timer["Persistent"] == "true"
    found = systemd(tmp_path, "calendar", "--iterations=2", "--base-time=2026-11-20 12:00:00 UTC", timer["OnCalendar"])
    if "unrecognized option" in found.stderr:
        pytest.skip("this systemd-analyze knows no base time (as of version 244)")
    times = re.findall(r"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d) UTC", found.stdout)
    assert {"2026-11-21 05:00:00", "2026-11-22 05:00:00"} <= set(times)


def test_a_launch_is_one_that_dataflow_knows() -> None:
    """Against the API's own message, which refuses unknown fields."""
    dataflow = pytest.importorskip("google.cloud.dataflow_v1beta3", exc_type=ImportError)
    body = json.loads((SCHEDULES / "cloud_scheduler.json").read_text())
    request = dataflow.LaunchFlexTemplateRequest.from_json(json.dumps(body))
    launch = request.launch_parameter
    assert launch.container_spec_gcs_path.startswith("gs://")
    assert re.fullmatch("[a-z]([-a-z0-9]{0,1022}[a-z0-9])?", launch.job_name)
    template = json.loads((SCHEDULES.parent / "dataflow" / "metadata.json").read_text())
    known = {one["name"]: one for one in template["parameters"]}
    assert {name for name, one in known.items() if not one.get("isOptional")} <= set(launch.parameters) <= set(known)
    for name, value in launch.parameters.items():
        filled = value.replace("MY-PROJECT", "my-project").replace("MY-BUCKET", "my-bucket")
        assert all(re.search(one, filled) for one in known[name]["regexes"])
    body["launchParameter"]["containerSpecGcsPaths"] = body["launchParameter"].pop("containerSpecGcsPath")
    with pytest.raises(Exception, match="containerSpecGcsPaths"):
        dataflow.LaunchFlexTemplateRequest.from_json(json.dumps(body))


def test_cloud_scheduler_command_uses_a_service_account() -> None:
    text = (SCHEDULES / "README.md").read_text()
    (command,) = re.findall(r"gcloud scheduler jobs create http .*?(?=\n\n)", text, flags=re.DOTALL)
    words = shlex.split(command.replace("\\\n", " "))
    values = dict(zip(words[6::2], words[7::2], strict=True))
    assert (SCHEDULES / values["--message-body-from-file"]).is_file()
    assert values["--uri"].endswith(f"/locations/{values['--location']}/flexTemplates:launch")
    assert values["--time-zone"] == "Etc/UTC"
    assert values["--oauth-service-account-email"].endswith(".iam.gserviceaccount.com")
    assert re.fullmatch(r"0 [\d,]+ \* \* \*", values["--schedule"])


@pytest.fixture(scope="module")
def airflow(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `home`, whose DAGs are ours with a stub of sfumato's command; needs an installed Airflow."""
    if not (AIRFLOW / "bin" / "airflow").exists():
        pytest.skip(f"no Airflow in {AIRFLOW}; `make test-airflow` installs one")
    folder = tmp_path_factory.mktemp("airflow")
    dags = folder / "home" / "dags"
    dags.mkdir(parents=True)
    text = (SCHEDULES / "airflow_dag.py").read_text()
    (dags / "airflow_dag.py").write_text(text.replace(SFUMATO, str(stub(folder))))
    return folder


def in_airflow(folder: Path, program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    settings = {
        **{name: value for name, value in os.environ.items() if not name.startswith(("AIRFLOW", "PYTHON"))},
        "AIRFLOW_HOME": str(folder / "home"),
        "AIRFLOW__CORE__DAGS_FOLDER": str(folder / "home" / "dags"),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
    }
    command = [AIRFLOW / "bin" / program, *arguments]
    return subprocess.run(command, env=settings, cwd=folder, capture_output=True, text=True, timeout=300)


_CHECK = """
import json, sys
from airflow.dag_processing.dagbag import DagBag
from airflow.sdk.exceptions import AirflowException, AirflowFailException
from airflow.serialization.serialized_objects import DagSerialization

folder = sys.argv[1]
bag = DagBag(f"{folder}/home/dags")
(dag,) = bag.dags.values()
dag.validate()
dag.check_cycle()
assert DagSerialization.from_dict(DagSerialization.to_dict(dag)).dag_id == dag.dag_id
(task,) = dag.tasks
facts = {
    "errors": bag.import_errors,
    "warnings": [str(one) for one in bag.captured_warnings.values()],
    "max_active_runs": dag.max_active_runs,
    "catchup": dag.catchup,
    "retries": task.retries,
    "command": task.bash_command,
    "fates": {},
}
task.bash_command = f"{folder}/sfumato"  # without the template of the date
for status in json.loads(sys.argv[2]):
    with open(f"{folder}/status", "w") as file:
        file.write(str(status))
    try:
        task.execute({})
        fate = "success"
    except AirflowFailException:
        fate = "failed"
    except AirflowException:
        fate = "up for retry"
    facts["fates"][status] = fate
print("facts:" + json.dumps(facts))
"""


def test_airflow_imports_the_dag_and_tries_again_what_may_help(airflow: Path) -> None:
    statuses = [0, *sorted(NEEDS_A_PERSON), LATER, CRASH]
    ran = in_airflow(airflow, "python", "-c", _CHECK, str(airflow), json.dumps(statuses))
    assert ran.returncode == 0, ran.stderr
    facts = json.loads(re.findall(r"^facts:(.*)$", ran.stdout, flags=re.MULTILINE)[0])
    assert facts["errors"] == {}
    assert facts["warnings"] == []
    assert facts["max_active_runs"] == 1
    assert facts["catchup"] is True
    assert facts["retries"] >= 5
    command = (
        facts["command"]
        .replace(str(airflow / "sfumato"), SFUMATO)
        .replace("{{ data_interval_start | ds }}", "2026-11-20")
    )
    assert parse(shlex.split(command))["date"] == "2026-11-20"
    expected = {"0": "success", str(LATER): "up for retry", str(CRASH): "up for retry"}
    assert facts["fates"] == {**expected, **{str(status): "failed" for status in NEEDS_A_PERSON}}


def test_airflow_runs_the_dag_for_the_day_before(airflow: Path) -> None:
    migrated = in_airflow(airflow, "airflow", "db", "migrate")
    assert migrated.returncode == 0, migrated.stderr
    loaded = in_airflow(airflow, "airflow", "dags", "reserialize")
    assert loaded.returncode == 0, loaded.stderr
    shown = in_airflow(airflow, "airflow", "dags", "details", "sfumato_refresh", "-o", "json")
    (details,) = json.loads(shown.stdout[shown.stdout.index("[{") :])
    assert details["has_import_errors"] == "False"
    start, end = (details[f"next_dagrun_data_interval_{side}"] for side in ("start", "end"))
    assert datetime.fromisoformat(start) == datetime(2026, 11, 1, 5, tzinfo=UTC)
    assert datetime.fromisoformat(end) == datetime.fromisoformat(details["next_dagrun_run_after"])
    (airflow / "calls").unlink(missing_ok=True)
    (airflow / "status").write_text("0")
    ran = in_airflow(airflow, "airflow", "dags", "test", "sfumato_refresh", "2026-11-21T05:00:00+00:00")
    assert ran.returncode == 0, ran.stderr
    assert (airflow / "calls").read_text() == "refresh --config /etc/sfumato/refresh.yaml --date 2026-11-20\n"
