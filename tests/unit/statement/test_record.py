"""Registry records of stored releases, and of releases whose parameters do not hold as they are."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from sfumato.pipelines.command_line.run import JOBS
from sfumato.schemas.guarantee import FLOATING_NOISE
from sfumato.transforms.release.metadata import UNSAFE
from sfumato.transforms.release.published_release import Release, open_release
from sfumato.transforms.statement.record import _TESTS, OPTIONS, LedgerAccount, registry_record
from sfumato.transforms.statement.record_formats import FORMATS, json_ld_text, yaml_text
from sfumato.transforms.statement.request import StatementRequest
from tests import ROOT
from tests.rejections import rejects
from tests.unit.test_threat_model import ROWS

STORED = ROOT / "tests" / "data" / "version_0_1_0"
PERSONAL = {
    "curator": ("City of Penumbra", "Harbour board"),
    "title": "Where people are",
    "purpose": "To plan trams",
    "place": "Penumbra",
    "sector": "Government",
    "author": ("A. Writer",),
    "source": ("https://example.org/map",),
}


def request_of(**values: Any) -> StatementRequest:
    return StatementRequest.of({"release": "release", **values})


def stored(name: str, change: Callable[[dict[str, Any]], object] = lambda manifest: None) -> Release:
    """A stored release, with a changed manifest."""
    release = open_release(STORED / name)
    manifest = json.loads(json.dumps(release.manifest))
    change(manifest)
    return replace(release, manifest=manifest)


def deployment(release: Release, account: LedgerAccount | None = None, **values: Any) -> dict[str, Any]:
    return registry_record(release, request_of(**values), "a map", account)["deployment"]


def test_variant_names_the_noise_of_the_release() -> None:
    gauss, night = deployment(stored("gauss")), deployment(stored("2026-11-18"))
    assert gauss["dp_variant"]["variant_name"] == "Zero-concentrated DP"
    assert gauss["privacy_loss"]["privacy_parameters"] == {"epsilon": 0.5, "delta": 1e-6, "rho": 0.007701168084001975}
    assert "2^-46" in gauss["implementation"]["mechanisms"]
    assert night["dp_variant"]["variant_name"] == "Pure DP"
    assert night["privacy_loss"]["privacy_parameters"] == {"epsilon": 1.0}


def test_unsafe_key_is_the_first_unprotected_quantity() -> None:
    found = deployment(stored("gauss", lambda manifest: manifest["privacy"]["randomness"].update(safe=False)))
    assert found["dp_variant"]["variant_name"] == "Custom"
    assert found["dp_variant"]["unprotected_quantities"].startswith(f"- {UNSAFE}\n")


def test_unprotected_participation_is_a_custom_variant() -> None:
    entry = {"protected": False, "description": "Not protected."}
    found = deployment(stored("gauss", lambda manifest: manifest["privacy"].update(participation=entry)))
    assert found["dp_variant"]["variant_name"] == "Custom"
    assert found["dp_variant"]["unprotected_quantities"].startswith("- Not protected.\n")


def test_noise_of_clients_is_stated_as_floating_point() -> None:
    found = deployment(stored("2026-11-18", lambda manifest: manifest["privacy"]["assumptions"].append(FLOATING_NOISE)))
    assert f"- Floating point: {FLOATING_NOISE}\n" in found["implementation"]["mechanisms"]
    assert FLOATING_NOISE not in found["deployment_model"]["actors"]


@pytest.mark.parametrize("entry", [{"epsilon": None}, {"trust": "none"}])
def test_release_without_privacy_has_no_record(entry: dict[str, Any]) -> None:
    with rejects("release"):
        deployment(stored("gauss", lambda manifest: manifest["privacy"].update(entry)))


def test_what_a_readers_own_job_leaves_out_is_not_stated() -> None:
    def change(manifest: dict[str, Any]) -> None:
        manifest["privacy"] = {name: manifest["privacy"][name] for name in ("epsilon", "trust", "randomness")}
        manifest.update(job="users", parameters={})

    release = stored("gauss", change)
    found = deployment(release)
    assert found["implementation"]["mechanisms"].startswith("- Not stated.\n")
    assert found["privacy_loss"]["privacy_unit_details"].startswith("not stated.")
    assert "Columns read: not stated." in found["dp_variant"]["data_domain"]
    for write in FORMATS.values():
        assert "None" not in write(registry_record(release, request_of(**PERSONAL), "a map"), release.manifest)


def test_simulated_trust_is_central_and_says_so() -> None:
    for trust in ("secagg", "local"):
        model = deployment(stored("gauss", lambda manifest, trust=trust: manifest["privacy"].update(trust=trust)))
        assert model["deployment_model"]["model_name"] == "Central"
        assert "the raw logs" in model["deployment_model"]["model_name_details"]


def test_series_is_known_by_the_manifest_or_the_ledger() -> None:
    assert deployment(stored("2026-11-18"))["deployment_model"]["release_type"] == "Many releases"
    account = LedgerAccount(1, ["Charges: 1."])
    alone = deployment(stored("gauss"), account)
    assert alone["deployment_model"]["release_type"] == "One release"
    assert "- Charges: 1.\n" in alone["accounting"]["composition"]
    series = deployment(stored("gauss"), account._replace(charges=2))
    assert series["deployment_model"]["release_type"] == "Many releases"


def test_personal_fields_hold_what_their_options_say() -> None:
    found = deployment(stored("gauss"), **PERSONAL)
    fields = {**found["basic"], **found["administrative"]}
    for field, option in OPTIONS.items():
        text = fields[field] if isinstance(fields[field], str) else tuple(fields[field])
        assert text == (PERSONAL[option] if field != "sources" else "https://example.org/map")
    assert found["implementation"] == deployment(stored("gauss"))["implementation"]


def test_title_days_hours_and_day_column_are_the_releases_own() -> None:
    def change(manifest: dict[str, Any]) -> None:
        manifest["title"] = "Stops at eight"
        del manifest["ledger"]
        manifest["parameters"].update(day_column="t", days_read="2026-10-06", hours="8-9")

    release = stored("gauss", change)
    found = deployment(release)
    assert found["basic"]["name"] == "Stops at eight"
    assert deployment(release, title="Mine")["basic"]["name"] == "Mine"
    assert found["dp_variant"]["data_domain"].endswith(", t. Records of 6 Oct 2026, 8–9 h.")
    record = registry_record(release, request_of(), "a map")
    assert record["url_slug"].startswith("stops-at-eight-")
    assert json.loads(json_ld_text(record, release.manifest))["temporalCoverage"] == "2026-10-06/2026-10-06"


@pytest.mark.parametrize(("trust", "method"), [("secagg", "from a random sample"), ("central", "with noise")])
def test_description_of_counts_names_the_method(trust: str, method: str) -> None:
    release = stored("gauss", lambda manifest: manifest["privacy"].update(trust=trust))
    record = registry_record(release, request_of(), JOBS["histogram"].summary)
    assert record["deployment"]["basic"]["description"].split(". ")[0].endswith(f", {method}")


PRINTABLE = st.characters(exclude_categories=("C", "Z"), include_characters=" <>'\"#:|&")
LINE = st.text(PRINTABLE).map(lambda text: f"{text}.")


@given(title=LINE, curators=st.lists(LINE, min_size=1, max_size=3), place=LINE)
def test_any_line_of_text_is_read_back(title: str, curators: list[str], place: str) -> None:
    release = stored("gauss")
    record = registry_record(release, request_of(title=title, curator=curators, place=place), "a map")
    assert yaml.safe_load(yaml_text(record, release.manifest)) == record
    text = json_ld_text(record, release.manifest)
    assert "<" not in text
    found = json.loads(text)
    assert found["deployment"] == record["deployment"]
    assert [one["name"] for one in found["creator"]] == curators


@pytest.mark.parametrize(
    ("option", "value"),
    [
        *((option, text) for option in PERSONAL if option != "sector" for text in ("", " ", "two\nlines", "\x1b[31m")),
        *((option, ("good", "")) for option in ("curator", "author", "source")),
        *(("sector", text) for text in ("", "Farming", "government")),
        *(("format", text) for text in ("", "json", "YAML")),
        ("overwrite", True),
        ("overwrite", "perhaps"),
        ("release", None),
    ],
)
def test_bad_option_is_named(option: str, value: Any) -> None:
    is_several = option in ("curator", "author", "source") and isinstance(value, str)
    with rejects(option):
        request_of(**{option: (value,) if is_several else value})


def test_named_tests_are_those_of_the_threat_model() -> None:
    assert {f"tests/{test}" for test in _TESTS.values()} <= {f"{file}::{name}" for _, file, name in ROWS}
