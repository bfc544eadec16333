"""What leaves by `sfumato export` is a function of the published files, whole or not at all, and says its guarantee."""

from __future__ import annotations

import shutil
import socket
from pathlib import Path

import pytest

from sfumato.pipelines.cli import main
from sfumato.transforms.export.formats import FORMATS
from sfumato.transforms.release.release_folder import publish
from tests.unit.release.city import city_release

SUFFIXES = {name: one.suffixes[0] for name, one in FORMATS.items()}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("published") / "release"
    publish(str(folder), city_release("adaptive", depth=4).files, "made-up", overwrite=False)
    return folder


def exported(folder: Path, output: Path, name: str) -> int:
    resolution = ["--resolution", "7"] if FORMATS[name].resolution else []
    return main(["export", str(folder), "--output", str(output), "--format", name, *resolution])


@pytest.mark.parametrize("name", FORMATS)
def test_a_copy_of_the_published_files_gives_the_same_export(
    name: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There are no logs, no key, no ledger and no network here: nothing else can have entered the file."""
    copy = tmp_path / "elsewhere"
    shutil.copytree(folder, copy)

    def no_network(*_: object) -> None:
        raise AssertionError("an export opened a connection")

    monkeypatch.setattr(socket.socket, "connect", no_network)
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    one, two = tmp_path / "one" / f"map{SUFFIXES[name]}", tmp_path / "two" / f"map{SUFFIXES[name]}"
    assert exported(folder, one, name) == 0
    assert exported(copy, two, name) == 0
    assert one.read_bytes() == two.read_bytes()


@pytest.mark.parametrize("name", FORMATS)
def test_a_changed_release_is_not_exported(name: str, folder: Path, tmp_path: Path) -> None:
    """Nobody can have a number of their own carried under the guarantee of a release."""
    copy = tmp_path / "changed"
    shutil.copytree(folder, copy)
    content = bytearray((copy / "cells.parquet").read_bytes())
    content[len(content) // 2] ^= 1
    (copy / "cells.parquet").write_bytes(bytes(content))
    output = tmp_path / f"map{SUFFIXES[name]}"
    assert exported(copy, output, name) == 2
    assert not output.exists()


@pytest.mark.parametrize("name", FORMATS)
def test_a_refused_release_is_not_exported(name: str, folder: Path, tmp_path: Path) -> None:
    refusal = tmp_path / "refused"
    refusal.mkdir()
    (refusal / "manifest.json").write_text('{"format": "sfumato-refusal/2", "reason": "too few users"}')
    assert exported(refusal, tmp_path / f"map{SUFFIXES[name]}", name) == 2
