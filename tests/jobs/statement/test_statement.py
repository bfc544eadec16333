"""`sfumato statement` of one release of each job and trust model."""

from __future__ import annotations

import hashlib
import json
import os
import re
from pathlib import Path
from typing import Any

import fastjsonschema
import pytest
import yaml

from sfumato.pipelines.command_line.cli import main
from tests import ROOT
from tests.releases import COMMANDS, Releases

KINDS = [*COMMANDS, "heatmap", "flat"]
STORED = ROOT / "tests" / "data" / "version_0_1_0"


def statement(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> str:
    """What the command prints."""
    capsys.readouterr()
    assert main(["statement", *map(str, arguments)]) == 0
    return capsys.readouterr().out


@pytest.fixture(scope="module")
def schema() -> dict[str, Any]:
    if "SFUMATO_DATA" not in os.environ:
        pytest.skip("SFUMATO_DATA is unset: no record was compared with the registry's schema")
    path = Path(os.environ["SFUMATO_DATA"]) / "registry" / "deployments-schema.yaml"
    found: dict[str, Any] = yaml.safe_load(path.read_text())
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_numbers_are_those_of_the_manifest(kind: str, published: Releases, capsys: pytest.CaptureFixture[str]) -> None:
    manifest = json.loads((published[kind] / "manifest.json").read_text())
    privacy = manifest["privacy"]
    found = yaml.safe_load(statement(capsys, published[kind]))["deployment"]
    loss = found["privacy_loss"]
    stated = {name: privacy[name] for name in ("epsilon", "delta", "rho") if privacy.get(name)}
    assert loss["privacy_parameters"] == stated
    entries = [privacy.get(name) for name in ("population", "admission", "rounds_guarantee", "collector")]
    entries += privacy.get("sub_queries", [])
    costs = [one[name] for one in entries if one for name in ("epsilon", "delta", "rho") if one.get(name)]
    costs += [*privacy.get("shares", {}).values(), *(privacy.get(f"{name}_spent") for name in stated)]
    shown = sorted(float(number) for number in re.findall(r"[εδρ] = ([\d.e-]*\d)", loss["privacy_parameters_details"]))
    assert shown == sorted(float(f"{cost:.6g}") for cost in costs if cost)
    for text in (privacy["adjacency"], privacy["contribution_bound"]):
        assert text in loss["privacy_unit_details"]
    made = found["implementation"]
    assert privacy["mechanism"][1:] in made["mechanisms"]
    assert re.search(r"- Floating point: \w", made["mechanisms"])
    assert len(made["justification"].splitlines()) >= 3
    assert found["basic"]["publication_date"] == manifest["created"][:10]
    variant = "Approximate DP" if privacy["delta"] else "Pure DP"
    assert found["dp_variant"]["variant_name"] == variant


@pytest.mark.parametrize("kind", KINDS)
def test_record_follows_the_registrys_schema(
    kind: str, published: Releases, schema: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    valid = fastjsonschema.compile(schema)
    given = ("--curator", "City", "--curator", "Harbour", "--sector", "Energy", "--source", "https://example.org")
    for options in ((), given):
        record = yaml.safe_load(statement(capsys, published[kind], *options))
        valid(record)
        groups = schema["properties"]["deployment"]["properties"]
        for group, content in groups.items():
            required = {name for name, field in content["properties"].items() if field.get("tier") and name != "notes"}
            missing = required - set(record["deployment"][group])
            assert missing <= {"data_product_sector", "data_source_type_details"}, group


def test_json_ld_has_place_date_and_record(published: Releases, capsys: pytest.CaptureFixture[str]) -> None:
    found = json.loads(statement(capsys, published["monday"], "--format", "json-ld", "--title", "</script>"))
    assert found["@type"] == "Dataset"
    assert found["name"] == "</script>"
    assert found["spatialCoverage"]["geo"]["box"] == "37.7 -122.51 37.82 -122.35"
    assert found["deployment"]["privacy_loss"]["privacy_parameters"] == {"epsilon": 4.0}
    assert "spatialCoverage" not in json.loads(statement(capsys, published["words"], "--format", "json-ld"))


def test_ledger_adds_charges_and_limits(capsys: pytest.CaptureFixture[str]) -> None:
    ledger = STORED / "ledger.db"
    found = yaml.safe_load(statement(capsys, STORED / "2026-11-18", "--ledger", ledger))["deployment"]
    composition = found["accounting"]["composition"]
    assert "Charged to the data set `city` for 2026-11-18 to 2026-11-18" in composition
    assert "`city`: 2, for days from 2026-11-17 to 2026-11-18" in composition
    assert "epsilon 1 in 30 days" in composition


def test_audit_is_cited_for_its_own_release_only(
    published: Releases, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report = tmp_path / "report.json"
    assert main(["audit", str(published["words"]), "--output", str(report)]) == 0
    found = yaml.safe_load(statement(capsys, published["words"], "--audit", report))["deployment"]
    cited = found["implementation"]["justification"]
    assert hashlib.sha256(report.read_bytes()).hexdigest() in cited
    assert json.loads(report.read_text())["verdict"] in cited
    assert main(["statement", str(published["monday"]), "--audit", str(report)]) == 2


def test_output_is_a_file_that_is_not_replaced(
    published: Releases, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "new" / "record.yaml"
    assert statement(capsys, published["words"], "--output", output) == f"{output}\n"
    assert output.read_text() == statement(capsys, published["words"])
    assert main(["statement", str(published["words"]), "--output", str(output)]) == 2
    statement(capsys, published["words"], "--output", output, "--overwrite", "--format", "text")
    assert output.read_text().startswith("Release words")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["{out}"], "no release found"),
        ([str(STORED / "few")], "was refused"),
        (["{release}", "--ledger", "{out}/none.db"], "ledger: "),
        (["{release}", "--ledger", str(STORED / "ledger.db")], "ledger: "),
        (["{release}", "--audit", "{out}/none.json"], "audit: "),
        (["{release}", "--audit", "{release}/manifest.json"], "audit: "),
        (["{release}", "--audit", "{release}/index.html"], "audit: "),
        (["{release}", "--output", "{out}"], "output: must name a file"),
        (["{release}", "--output", "{release}/manifest.json/x"], "output: "),
        (["{release}", "--sector", "Farming"], "sector: must be one of"),
        (["{release}", "--format", "xml"], "format: must be one of"),
        (["{release}", "--title", ""], "title: "),
        (["{release}", "--overwrite"], "overwrite: "),
        (["{release}", "--curater", "x"], "did you mean --curator?"),
        (["{changes}"], "changes between two"),
        ([], "release: required"),
    ],
)
def test_bad_input_is_named(
    arguments: list[str], words: str, published: Releases, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    places = {"out": str(tmp_path), "release": str(published["words"])}
    if "{changes}" in arguments:
        places["changes"] = str(published["changes"])
    capsys.readouterr()
    assert main(["statement", *(one.format(**places) for one in arguments)]) == 2
    assert words in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
