"""Runs of an audit use one key on several logs. None of them can be published, charged or left behind."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from sfumato.pipelines.command_line import cli
from sfumato.pipelines.command_line.run import release_job
from sfumato.pipelines.frame.release_run import run_release
from sfumato.pipelines.operations import audit_job
from sfumato.pipelines.operations.audit import gather
from sfumato.pipelines.operations.audit_runs import Audit
from sfumato.pipelines.runners.runner_settings import runner_settings
from sfumato.transforms.audit.findings import KEY, Finding, audit
from tests.attacks.jobs import REGION, city


@pytest.fixture
def logs(tmp_path: Path) -> str:
    path = tmp_path / "city.parquet"
    pq.write_table(city(300), path)
    return str(path)


def values(logs: str, folder: Path) -> dict[str, str]:
    return {"input": logs, "output": str(folder / "release"), "region": REGION.partition("=")[2], "depth": "3",
            "epsilon": "1", "trust": "central", "key_file": str(folder / "key"), "release_id": "audit"}  # fmt: skip


def test_a_release_of_an_audit_states_that_it_protects_nobody(logs: str, tmp_path: Path) -> None:
    assert cli.main(["key", "new", str(tmp_path / "key")]) == 0
    run_release(release_job("heatmap", values(logs, tmp_path)), runner_settings(None, []), audit=True)
    manifest = json.loads((tmp_path / "release" / "manifest.json").read_text())
    assert manifest["privacy"]["randomness"]["safe"] is False
    assert manifest["warnings"]
    broken = [one.check for one in audit(gather(str(tmp_path / "release"), None)) if one.result == "violation"]
    assert broken == [KEY]


def test_no_option_makes_a_run_of_an_audit(logs: str, tmp_path: Path) -> None:
    words = [f"--{name}={value}" for name, value in values(logs, tmp_path).items()]
    assert cli.main(["key", "new", str(tmp_path / "key")]) == 0
    assert cli.main(["heatmap", *words, "--audit"]) == 2
    assert not (tmp_path / "release").exists()


def test_an_audit_leaves_a_report_that_others_cannot_read(
    logs: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The runs, with exact differences between them, were in a folder that only the operator could read."""
    runs = tmp_path / "runs"
    runs.mkdir()
    monkeypatch.setenv("TMPDIR", str(runs))
    monkeypatch.setattr("tempfile.tempdir", None)
    modes = []

    def seen(audited: Audit, *arguments: object, **options: object) -> list[Finding]:
        modes.append(stat.S_IMODE(os.stat(audited.folder).st_mode))
        assert audited.outcome(audited.key(), "1", []).message is None
        return []

    monkeypatch.setattr(audit_job, "examine", seen)
    report = tmp_path / "report.json"
    words = ["heatmap", f"--input={logs}", REGION, "--depth=3", "--epsilon=1", "--trust=central"]
    more = ["--users=1", "--minutes=0", f"--output={report}"]
    assert cli.main(["audit", "--job", *words, *more]) == 0
    assert modes == [0o700]
    assert list(runs.iterdir()) == []
    assert stat.S_IMODE(report.stat().st_mode) == 0o600
    assert sorted(path.name for path in tmp_path.iterdir()) == ["city.parquet", "report.json", "runs"]
