"""The alert rules: each is checked by its system's own tools, and no exit status of the code is without one."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import time
from pathlib import Path

import pytest
import yaml

from sfumato.pipelines.command_line.cli import CRASHED
from sfumato.schemas import errors
from tests import ROOT

ALERTS = ROOT / "runner_configs" / "alerts"
RULES = ALERTS / "prometheus_rules.yaml"
RUNBOOK = ROOT / "docs" / "how_to" / "runbook.md"
STATUSES = {
    *(kind.exit_code for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, Exception)),
    *(CRASHED, 130, 143),
}
HOURS = {"SfumatoNotReady": 8, "SfumatoCrash": 1.5}


def firing(status: int, hours: float) -> set[str]:
    """The alerts that the rules mean for a status that has lasted so long."""
    names = {1: "SfumatoData", 2: "SfumatoConfiguration", 3: "SfumatoBudget", 4: "SfumatoLedger", 75: "SfumatoNotReady"}
    name = names.get(status, "SfumatoCrash" if status else None)
    return set() if name is None or hours < HOURS.get(name, 0) else {name}


def promtool(*arguments: str, cwd: Path) -> None:
    if shutil.which("promtool") is None:
        pytest.skip("needs promtool, of Debian's package prometheus")
    done = subprocess.run(["promtool", *arguments], cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_rules_are_rules_of_prometheus() -> None:
    promtool("check", "rules", str(RULES), cwd=ROOT)


def test_every_status_raises_its_alert_and_success_none(tmp_path: Path) -> None:
    """By Prometheus itself: a series of each status, and the alerts that fire after a while."""
    rules = yaml.safe_load(RULES.read_text())["groups"][0]["rules"]
    by_name = {rule["alert"]: rule for rule in rules}
    cases = []
    for status in sorted({0, 137, *STATUSES}):
        for hours in (1, 9):
            series = [
                {"series": 'sfumato_refresh_exit_status{refresh="city"}', "values": f"{status}x600"},
                {"series": 'sfumato_refresh_run_timestamp_seconds{refresh="city"}', "values": "0x600"},
            ]
            expected = firing(status, hours)
            assert status == 0 or hours < 8 or expected
            tests = []
            for name in by_name:
                if name in ("SfumatoNoRun", "SfumatoNoNight"):
                    continue
                fired = []
                if name in expected:
                    notes = by_name[name]["annotations"]
                    text = (
                        notes["summary"].replace("{{ $labels.refresh }}", "city").replace("{{ $value }}", str(status))
                    )
                    labels = {"refresh": "city", **by_name[name]["labels"]}
                    fired = [{"exp_labels": labels, "exp_annotations": {**notes, "summary": text}}]
                tests.append({"eval_time": f"{hours}h", "alertname": name, "exp_alerts": fired})
            cases.append({"interval": "1m", "input_series": series, "alert_rule_test": tests})
    file = tmp_path / "tests.yaml"
    file.write_text(yaml.safe_dump({"rule_files": [str(RULES)], "evaluation_interval": "1m", "tests": cases}))
    promtool("test", "rules", str(file), cwd=tmp_path)
    assert [name for name, rule in by_name.items() if rule["labels"]["severity"] == "page"] == ["SfumatoLedger"]


@pytest.mark.parametrize("status", [0, 4, 75, 143])
def test_the_wrapper_keeps_the_status_and_writes_metrics(tmp_path: Path, status: int) -> None:
    published = tmp_path / "published"
    published.mkdir()
    (published / "latest.json").write_text(
        json.dumps({"date": "2026-11-20", "release": "releases/2026-11-20"}, indent=2)
    )
    file = tmp_path / "city.prom"
    command = [str(ALERTS / "refresh_metrics.sh"), "city", str(published), str(file), "sh", "-c", f"exit {status}"]
    assert subprocess.run(command, check=False).returncode == status
    metrics = dict(re.findall(r'^(\w+)\{refresh="city"\} (\d+)$', file.read_text(), re.MULTILINE))
    assert int(metrics["sfumato_refresh_exit_status"]) == status
    assert abs(int(metrics["sfumato_refresh_run_timestamp_seconds"]) - time.time()) < 600
    assert int(metrics["sfumato_refresh_newest_night_timestamp_seconds"]) == 1_795_132_800
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == ["city.prom"]
    if shutil.which("promtool"):
        subprocess.run(["promtool", "check", "metrics"], input=file.read_bytes(), check=True)
    used = set(re.findall(r"sfumato_refresh_\w+", RULES.read_text()))
    assert used == set(metrics)


def test_the_policy_of_google_cloud_is_one() -> None:
    policy = json.loads((ALERTS / "cloud_monitoring_policy.json").read_text())
    log_filter = policy["conditions"][0]["conditionMatchedLog"]["filter"]
    events = set(re.findall(r'event="(\w+)"', log_filter))
    documented = set(re.findall(r"`(\w+)`", (ROOT / "docs/reference/observability.md").read_text()))
    assert events == {"failed", "crashed"}
    assert events <= documented
    assert f"NOT jsonPayload.exit_code={errors.NotReadyError.exit_code}" in log_filter
    monitoring = pytest.importorskip("google.cloud.monitoring_v3", reason="needs the package google-cloud-monitoring")
    parsed = monitoring.AlertPolicy.from_json(json.dumps(policy))  # which knows the names of all fields
    assert parsed.conditions[0].condition_matched_log.filter == log_filter


def test_the_runbook_has_every_status_and_no_other() -> None:
    heads = re.findall(r"^## (\d+(?:, \d+)*):? ", RUNBOOK.read_text(), re.MULTILINE)
    named = {int(one) for head in heads for one in head.split(", ")}
    assert named == {*STATUSES, 0, 137}


def test_every_alert_leads_to_a_place_of_the_runbook() -> None:
    heads = re.findall(r"^## (.+)$", RUNBOOK.read_text(), re.MULTILINE)
    anchors = {re.sub(r"[^\w\- ]", "", head.lower()).strip().replace(" ", "-") for head in heads}
    for rule in yaml.safe_load(RULES.read_text())["groups"][0]["rules"]:
        path, _, anchor = rule["annotations"]["runbook"].partition("#")
        assert ROOT / path == RUNBOOK
        assert anchor in anchors, anchor
    assert os.access(ALERTS / "refresh_metrics.sh", os.X_OK)
