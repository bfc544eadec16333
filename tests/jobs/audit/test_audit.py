"""`sfumato audit` on real releases: it accuses none of them, and finds what was planted."""

from __future__ import annotations

import hashlib
import io
import json
import re
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

from sfumato.pipelines.command_line.cli import main
from sfumato.pipelines.operations.audit import gather
from sfumato.schemas.errors import RequestError
from sfumato.transforms.audit.findings import Finding, audit, verdict
from tests.once import made_once
from tests.releases import COMMANDS, MADE_UP, REGION, Releases
from tests.seeds import seeded_rng

CELLS = ("--region", ",".join(map(str, REGION)))
GAUSSIAN = ("--epsilon", "4", "--delta", "1e-6")
CURATED, SPLIT = ("--trust", "central"), ("--trust", "split")
# Releases whose noise none of tests/releases.py has.
OTHERS: Mapping[str, tuple[str, ...]] = {
    "gaussian": ("heatmap", *CELLS, "--depth", "5", *GAUSSIAN, "--shard_size", "300"),
    "gaussian, central": ("heatmap", *CELLS, "--depth", "5", *GAUSSIAN, *CURATED),
    "distributions": ("heatmap", *CELLS, "--depth", "5", "--epsilon", "4", "--contribution", "all"),
    "colluding": ("heatmap", *CELLS, "--depth", "5", "--epsilon", "4", "--colluding", "0.2"),
    "threshold": ("histogram", "--column", "kind", *CURATED, *GAUSSIAN, "--noise", "laplace"),
    "truncated": ("histogram", "--column", "kind", *CURATED, *GAUSSIAN, "--noise", "truncated"),
    "gaussian counts": ("histogram", "--column", "kind", *CURATED, *GAUSSIAN, "--noise", "gaussian"),
    "heatmap, split": ("heatmap", *CELLS, "--depth", "5", "--epsilon", "4", *SPLIT),
    "gaussian, split": ("heatmap", *CELLS, "--depth", "5", *GAUSSIAN, *SPLIT),
    "zones, split": ("zones", *CELLS, "--quadkey", "12", "--epsilon", "4", *SPLIT),
    "histogram, split": ("histogram", *CELLS, "--cells", "3", "--epsilon", "4", *SPLIT),
    "quantiles, split": ("quantiles", "--column", "latitude", "--range", "37,38", "--epsilon", "4", *SPLIT),
    "hotspots, top": ("hotspots", *CELLS, "--depth", "5", "--levels", "2", "--top", "9", *CURATED, "--epsilon", "4"),
    "hierarchy": ("quantiles", "--column", "latitude", "--range", "37,38", *CURATED, "--method", "hierarchical"),
}
HEATMAPS = ("heatmap", "heatmap, central", "monday", "rates", "gaussian", "gaussian, central", "distributions")
UNDERSTATED = (*HEATMAPS, "colluding", "zones", "zones, levels", "central", "hotspots, central", "threshold")
UNDERSTATED += tuple(f"{kind}, split" for kind in ("heatmap", "gaussian", "zones", "histogram", "quantiles"))
UNDERSTATED += ("visits", "truncated", "gaussian counts", "hierarchy", "moments", "moments, central", "words", "ranges")
DEAR = ("gaussian, central", "gaussian, split", "gaussian counts", "distributions")  # to account for, like "gaussian"
COSTS = ("epsilon", "epsilon_spent", "rho", "rho_spent", "admission", "tallies", "outside", "sums", "range")

Folder = Callable[[str], Path]


@pytest.fixture(scope="session")
def releases(published: Releases, tmp_path_factory: pytest.TempPathFactory) -> Folder:
    """The folder of a release by kind; one is charged to `ledger.db` beside it."""

    def make(kind: str, folder: Path) -> None:
        folder.rmdir()
        city = published.city
        ledger = folder.with_suffix(".db")
        charged = ("--ledger", str(ledger), "--dataset", "city", "--period", "2026-11-20", "--budget", "100/365d")
        job = [*COMMANDS["monday"], *charged] if kind == "charged" else list(OTHERS[kind])
        job += ["--input", str(city / "logs" / "*.parquet"), "--key_file", str(city / "key")]
        assert main([*job, "--release_id", "audited", "--output", str(folder)]) == 0

    def folder_of(kind: str) -> Path:
        if kind in COMMANDS or kind in MADE_UP:
            return published[kind]
        name = "audited_" + kind.replace(", ", "_").replace(" ", "_")
        return made_once(tmp_path_factory, name, lambda folder: make(kind, folder))

    return folder_of


@pytest.fixture
def copied(releases: Folder, tmp_path: Path) -> Folder:
    """A copy of a release by kind, to be changed."""
    return lambda kind: Path(shutil.copytree(releases(kind), tmp_path / "copy"))


def found(folder: Path, result: str = "violation", ledger: Path | None = None) -> list[Finding]:
    """The findings of an audit with this result."""
    findings = audit(gather(str(folder), None if ledger is None else str(ledger)))
    assert re.match(r"(No violation|1 violation|[2-9] violations) found\.", verdict(findings))
    return [one for one in findings if one.result == result]


def forge(folder: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Changes the manifest of a release."""
    manifest = json.loads((folder / "manifest.json").read_text())
    change(manifest)
    (folder / "manifest.json").write_text(json.dumps(manifest, indent=2))


def forge_table(folder: Path, name: str, column: str, change: Callable[[pa.Table, np.ndarray], None]) -> None:
    """Changes a column of a table, with a digest that fits."""
    table = pq.read_table(folder / name)
    values = table[column].to_numpy().copy()
    change(table, values)
    table = table.set_column(table.column_names.index(column), table.field(column), pa.array(values))
    file = io.BytesIO()
    pq.write_table(table, file)
    (folder / name).write_bytes(file.getvalue())
    digest = hashlib.sha256(file.getvalue()).hexdigest()
    forge(folder, lambda manifest: manifest["files"][name].update(sha256=digest, bytes=len(file.getvalue())))


def understate(entry: Any, share: float) -> None:
    """Multiplies every stated cost within an entry of a manifest."""
    for name, value in entry.items() if isinstance(entry, dict) else enumerate(entry):
        if name in COSTS and isinstance(value, float):
            entry[name] = share * value
        elif isinstance(value, dict | list):
            understate(value, share)


@pytest.mark.false_alarm(1e-6)
@pytest.mark.parametrize("kind", [
    *COMMANDS, *MADE_UP, *(pytest.param(one, marks=pytest.mark.slow if one in DEAR else ()) for one in OTHERS)
])  # fmt: skip
def test_audit_finds_no_violation(kind: str, releases: Folder) -> None:
    assert found(releases(kind)) == []
    cost = [one.check for one in found(releases(kind), "holds") if one.check.startswith("Epsilon")]
    assert len(cost) == 1


@pytest.mark.parametrize("kind", UNDERSTATED)
def test_audit_finds_understated_epsilon(kind: str, copied: Folder) -> None:
    folder = copied(kind)
    forge(folder, lambda manifest: understate(manifest["privacy"], 0.95))
    assert [one.check for one in found(folder)] == ["Epsilon and delta follow from the stated noise"]


@pytest.mark.parametrize("kind", ["quantiles, central", "trips"])
def test_audit_finds_total_below_its_parts(kind: str, copied: Folder) -> None:
    folder = copied(kind)
    forge(folder, lambda manifest: manifest["privacy"].update(epsilon=0.9))
    assert len(found(folder)) == 1


def test_audit_finds_understated_delta(copied: Folder) -> None:
    folder = copied("threshold")
    forge(folder, lambda manifest: manifest["privacy"].update(delta=0.9 * manifest["privacy"]["delta_spent"]))
    assert len(found(folder)) == 1


def test_audit_finds_noise_that_the_table_contradicts(copied: Folder) -> None:
    folder = copied("monday")

    def louder(manifest: dict[str, Any]) -> None:
        understate(manifest["privacy"], 0.95)
        for query in manifest["privacy"]["sub_queries"]:
            query["noise_stddev"] *= 1.06

    forge(folder, louder)
    assert "Tables agree with the manifest and in themselves" in [one.check for one in found(folder)]


def test_audit_finds_sub_query_that_is_not_stated(copied: Folder) -> None:
    folder = copied("monday")
    forge(folder, lambda manifest: manifest["privacy"]["sub_queries"].pop())
    assert [one.check for one in found(folder)] == ["Tables agree with the manifest and in themselves"]


@pytest.mark.parametrize("kind", ["monday", "zones", "central", "quantiles, central", "moments", "trips", "ranges"])
def test_audit_finds_edit_of_any_file(kind: str, copied: Folder) -> None:
    folder, rng = copied(kind), seeded_rng(1)
    for path in sorted(folder.iterdir()):
        if path.name == "manifest.json":
            continue
        content = path.read_bytes()
        at = int(rng.integers(len(content)))
        path.write_bytes(content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])
        assert any(path.name in one.why for one in found(folder)), path.name
        path.write_bytes(content)
    (folder / "more.parquet").write_bytes(b"")
    assert any("more.parquet" in one.why for one in found(folder))


def test_audit_with_ledger_finds_edit_of_manifest(releases: Folder, copied: Folder) -> None:
    folder, ledger = copied("charged"), releases("charged").with_suffix(".db")
    assert found(folder, ledger=ledger) == []
    assert not any(one.check.startswith("The ledger") for one in found(folder, "not checked", ledger))
    manifest, rng = (folder / "manifest.json").read_bytes(), seeded_rng(2)
    for at in rng.integers(len(manifest), size=12).tolist():
        changed = bytes([manifest[at] ^ 1])
        (folder / "manifest.json").write_bytes(manifest[:at] + changed + manifest[at + 1 :])
        try:
            broken = found(folder, ledger=ledger)
        except RequestError:  # it is no manifest any more
            continue
        assert broken != []


@pytest.mark.parametrize("kind", ["heatmap", "heatmap, central", "gaussian", "hotspots, central"])
@pytest.mark.parametrize("place", ["first", "last"])
def test_audit_finds_changed_answer(kind: str, place: str, copied: Folder) -> None:
    folder = copied(kind)
    hotspots = kind.startswith("hotspots")
    file, column = ("cells.parquet", "count") if hotspots else ("answers.parquet", "users")

    def add(table: pa.Table, values: np.ndarray) -> None:
        # No sum that the answer is compared with has a larger deviation than that of all answers.
        values[0 if place == "first" else -1] += 50 * np.linalg.norm(table["stddev"].to_numpy())

    forge_table(folder, file, column, add)
    assert {one.check for one in found(folder)} == {"Noisy counts of the same users agree"}


def test_audit_finds_zone_that_is_not_the_sum_of_its_zones(copied: Folder) -> None:
    folder = copied("zones, levels")

    def add(table: pa.Table, values: np.ndarray) -> None:
        values[-1] += 50 * table["stddev"][-1].as_py()

    forge_table(folder, "zones.parquet", "users", add)
    assert [one.check for one in found(folder)] == ["Tables agree with the manifest and in themselves"]


def test_audit_finds_counted_zones_with_other_noise(copied: Folder) -> None:
    folder = copied("visits")
    forge_table(folder, "zones.parquet", "stddev", lambda _, values: np.multiply(values, 0.9, out=values))
    assert [one.check for one in found(folder)] == ["Tables agree with the manifest and in themselves"]


def test_audit_finds_key_from_a_seed(copied: Folder) -> None:
    folder = copied("monday")
    forge(folder, lambda manifest: manifest["privacy"]["randomness"].update(safe=False))
    assert [one.check for one in found(folder)] == ["The key is secret"]


@pytest.mark.parametrize(
    ("stated", "result"), [("c0de" * 16, "holds"), ("0" * 64, "not checked"), (None, "not checked")]
)
def test_audit_compares_code(stated: str | None, result: str, copied: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sfumato.transforms.audit.findings.code_digest", lambda: "c0de" * 16)
    folder = copied("monday")
    assert json.loads((folder / "manifest.json").read_text())["code"] == "c0de" * 16  # of tests/job_fixtures.py
    forge(folder, lambda manifest: manifest.update(code=stated))
    code = [one.result for one in audit(gather(str(folder), None)) if one.check.startswith("Code")]
    assert code[-1] == result


NO_VALUES = (None, "x", -1, float("nan"), [], {}, 10**400)
FIELDS = ("sub_queries", "population", "noise", "cohort", "delta", "epsilon", "trust")


@pytest.mark.parametrize(("field", "value"), [
    pytest.param(field, value, marks=() if (number + other) % len(FIELDS) < 2 else pytest.mark.slow)
    for number, value in enumerate(NO_VALUES)
    for other, field in enumerate(FIELDS)
])  # fmt: skip
def test_audit_says_what_it_cannot_check(field: str, value: Any, copied: Folder) -> None:
    folder = copied("monday")
    forge(folder, lambda manifest: manifest["privacy"].update({field: value}))
    findings = audit(gather(str(folder), None))
    cost = [one.result for one in findings if one.check.startswith("Epsilon")]
    assert cost
    assert cost != ["holds"] or field == "trust"  # any other than central is secagg, which it is


def test_audit_command_reports(copied: Folder, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, file = copied("monday"), tmp_path / "report.json"
    assert main(["audit", str(folder), "--output", str(file)]) == 0
    report = json.loads(file.read_text())
    assert (report["format"], report["release_id"], report["ledger"]) == ("sfumato-audit/1", "monday", None)
    printed = capsys.readouterr().out
    assert all(f"{one['check']}: {one['result']} ({one['why']})" in printed for one in report["checks"])
    assert report["verdict"].startswith("No violation found. Not checked: The ledger")
    assert report["verdict"] in printed
    (folder / "heatmap.png").unlink()
    assert main(["audit", str(folder), "--output", str(tmp_path / "other.json")]) == 1
    assert json.loads((tmp_path / "other.json").read_text())["verdict"].startswith("1 violation found.")


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    """A folder with a private and a public key of two auditors."""
    for name, secret in (("auditor", b"a" * 32), ("other", b"b" * 32)):
        key = Ed25519PrivateKey.from_private_bytes(secret)
        private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        (tmp_path / f"{name}.key").write_bytes(private)
        (tmp_path / f"{name}.key").chmod(0o600)
        (tmp_path / f"{name}.pub").write_bytes(
            key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
        )
    return tmp_path


def test_audit_verifies_a_signed_report(keys: Path, copied: Folder, releases: Folder) -> None:
    folder, report = copied("monday"), keys / "report.json"
    made = ["audit", str(folder), "--output", str(report), "--sign", str(keys / "auditor.key")]
    assert main(made) == 0
    signed = ["--verify", str(report), "--auditor", str(keys / "auditor.pub")]
    assert main(["audit", str(folder), *signed]) == 0
    assert main(["audit", str(folder), *signed[:-1], str(keys / "other.pub")]) == 1
    assert main(["audit", str(releases("heatmap")), *signed]) == 1  # a report on another release
    content = report.read_bytes()
    report.write_bytes(content.replace(b"No violation", b"No  violation"))
    assert main(["audit", str(folder), *signed]) == 1
    report.write_bytes(content)
    forge(folder, lambda manifest: manifest.update(warnings=[]))
    assert main(["audit", str(folder), *signed]) == 1


def test_audit_passes_on_signed_violations(keys: Path, copied: Folder) -> None:
    folder, report = copied("monday"), keys / "report.json"
    picture = (folder / "heatmap.png").read_bytes()
    (folder / "heatmap.png").unlink()
    assert main(["audit", str(folder), "--output", str(report), "--sign", str(keys / "auditor.key")]) == 1
    (folder / "heatmap.png").write_bytes(picture)
    assert main(["audit", str(folder)]) == 0
    assert main(["audit", str(folder), "--verify", str(report), "--auditor", str(keys / "auditor.pub")]) == 1


@pytest.mark.parametrize("arguments", [
    ["--sign", "{keys}/auditor.key"],
    ["--output", "{keys}/a.json", "--sign", "{keys}/auditor.pub"],
    ["--output", "{keys}/a.json", "--sign", "{keys}/none"],
    ["--verify", "{keys}/auditor.pub"],
    ["--auditor", "{keys}/auditor.pub"],
    ["--verify", "{keys}/auditor.pub", "--auditor", "{keys}/auditor.pub"],  # without a signature
])  # fmt: skip
def test_audit_rejects_bad_signature_options(arguments: list[str], keys: Path, releases: Folder) -> None:
    assert main(["audit", str(releases("monday")), *(one.format(keys=keys) for one in arguments)]) == 2
    assert not (keys / "a.json").exists()


def test_audit_signs_with_no_key_that_others_can_read(
    keys: Path, releases: Folder, capsys: pytest.CaptureFixture[str]
) -> None:
    (keys / "auditor.key").chmod(0o640)
    made = ["audit", str(releases("monday")), "--output", str(keys / "a.json"), "--sign", str(keys / "auditor.key")]
    assert main(made) == 2
    assert "sign" in capsys.readouterr().err
    assert not (keys / "a.json").exists()


@pytest.mark.parametrize(
    "arguments",
    [
        ["{none}"],
        ["{folder}", "--ledger", "{none}"],
        ["{folder}", "--output", "{folder}/manifest.json"],
        ["{folder}", "--output", "{folder}/manifest.json/report.json"],
        ["{changes}"],
    ],
)
def test_audit_rejects_bad_input(arguments: list[str], published: Releases, tmp_path: Path) -> None:
    places = {"none": tmp_path / "none", "folder": published["monday"], "changes": published["changes"]}
    assert main(["audit", *(one.format(**places) for one in arguments)]) == 2
