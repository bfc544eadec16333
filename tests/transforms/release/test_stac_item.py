"""Items and catalogs by pystac, its schemas and its own readers."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pystac
import pytest
from pystac.extensions.file import FileExtension
from pystac.validation.stac_validator import JsonSchemaSTACValidator

from sfumato.transforms.release.published_release import Release, open_release
from sfumato.transforms.release.release_folder import publish
from sfumato.transforms.release.stac_item import stac_bytes, stac_catalog, stac_item
from tests.transforms.release.city import REGION, city_release

LEDGER = {"first_day": "2026-11-20", "last_day": "2026-11-21"}


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory) -> Release:
    folder = tmp_path_factory.mktemp("city") / "release"
    publish(str(folder), city_release("flat", depth=3).files, "made-up", overwrite=False)
    return open_release(folder)


def is_valid(content: dict[str, Any]) -> bool:
    """By the JSON schemas of the specification, which pystac carries, so that no network is needed."""
    kind = pystac.STACObjectType.CATALOG if content["type"] == "Catalog" else pystac.STACObjectType.ITEM
    try:
        JsonSchemaSTACValidator().validate_core(content, kind, content["stac_version"])
    except pystac.STACValidationError:
        return False
    return True


def with_manifest(release: Release, **changes: Any) -> Release:
    return Release(release.path, {**release.manifest, **changes}, release.digest)


def test_an_item_is_valid_and_says_where_when_and_how_private(release: Release) -> None:
    content = stac_item(with_manifest(release, ledger=LEDGER), release.path, "CC-BY-4.0")
    item = pystac.Item.from_dict(json.loads(stac_bytes(content)))
    assert is_valid(content)
    assert item.bbox == [REGION["west"], REGION["south"], REGION["east"], REGION["north"]]
    assert item.datetime is None
    assert str(item.common_metadata.start_datetime) == "2026-11-20 00:00:00+00:00"
    assert str(item.common_metadata.end_datetime) == "2026-11-21 23:59:59+00:00"
    assert item.common_metadata.license == "CC-BY-4.0"
    assert item.properties["sfumato:epsilon"] == release.manifest["privacy"]["epsilon"]
    assert item.properties["sfumato:trust"] == release.manifest["privacy"]["trust"]
    assert item.properties["description"] == release.guarantee


def test_assets_are_the_files_with_their_sizes_and_checksums(release: Release) -> None:
    item = pystac.Item.from_dict(stac_item(release, release.path))
    assert set(item.assets) == {path.name for path in Path(release.path).iterdir()}
    for name, asset in item.assets.items():
        content = Path(asset.href).read_bytes()
        stated = FileExtension.ext(asset)
        assert stated.checksum == "1220" + hashlib.sha256(content).hexdigest()
        assert stated.size in (len(content), None)
        assert (stated.size is None) == (name == "manifest.json")  # the manifest does not state its own
        assert asset.media_type
    assert item.assets["cells.parquet"].media_type == "application/vnd.apache.parquet"
    assert item.assets["cells.parquet"].roles == ["data"]


def test_without_a_ledger_the_time_is_that_of_the_run_and_without_a_region_there_is_no_place(release: Release) -> None:
    content = stac_item(with_manifest(release, region=None), "..")
    assert is_valid(content)
    assert content["geometry"] is None
    assert "bbox" not in content
    assert content["properties"]["datetime"] == "2026-11-21T00:50:00Z"
    assert "license" not in content["properties"]
    assert content["properties"]["sfumato:licence"] == "not stated"
    assert content["assets"]["cells.parquet"]["href"] == "../cells.parquet"


def test_what_was_not_validated_is_noticed(release: Release) -> None:
    content = stac_item(release, release.path)
    del content["properties"]["datetime"]
    assert not is_valid(content)
    assert not is_valid({**stac_item(release, release.path), "id": 5})


def test_a_catalog_leads_to_its_items(release: Release, tmp_path: Path) -> None:
    links = [{"rel": rel, "href": "../catalog.json", "type": "application/json"} for rel in ("root", "parent")]
    (tmp_path / "stac").mkdir()
    (tmp_path / "stac" / "one.json").write_bytes(stac_bytes(stac_item(release, "../releases/one", links=links)))
    content = stac_catalog("taxis", {"./stac/one.json": "2026-11-20"})
    assert is_valid(content)
    (tmp_path / "catalog.json").write_bytes(stac_bytes(content))
    catalog = pystac.Catalog.from_file(str(tmp_path / "catalog.json"))
    (item,) = catalog.get_items()
    assert item.id == release.manifest["release_id"]
    assert item.get_root() is catalog
    assert item.assets["cells.parquet"].get_absolute_href() == str(tmp_path / "releases" / "one" / "cells.parquet")
