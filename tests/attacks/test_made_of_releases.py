"""What is made of a release follows from its published files alone."""

from __future__ import annotations

import builtins
import io
import os
import shutil
import socket
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import shapely

import sfumato
from sfumato.pipelines.command_line.cli import main
from sfumato.transforms.export.formats import FORMATS
from sfumato.transforms.release.release_folder import publish
from tests.attacks.jobs import charged_run, city
from tests.conftest import write_files
from tests.keys import write_key
from tests.unit.release.city import city_release

# What leaves by `sfumato export` is a function of the published files, whole or not at all, and says its guarantee.


SUFFIXES = {name: one.suffixes[0] for name, one in FORMATS.items()}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("published") / "release"
    publish(str(folder), city_release("adaptive", depth=4).files, "made-up", overwrite=False)
    return folder


def exported(folder: Path, output: Path, name: str) -> int:
    return main(["export", str(folder), "--output", str(output), "--format", name])


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


def test_a_refused_release_is_not_exported(tmp_path: Path) -> None:
    refusal = tmp_path / "refused"
    refusal.mkdir()
    (refusal / "manifest.json").write_text('{"format": "sfumato-refusal/2", "reason": "too few users"}')
    assert exported(refusal, tmp_path / "map.csv", "csv") == 2


# Zones of a release are post-processing: they read its published files alone, and leave every other file as it is.


def test_zones_read_nothing_but_published_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The logs and the key are gone, the ledger is as before, and no file of the release is written."""
    pattern = write_files(city(), tmp_path / "logs", 2)
    write_key(tmp_path / "key")
    assert charged_run("heatmap", pattern, tmp_path) == 0
    charged = (tmp_path / "ledger.db").read_bytes()
    shutil.rmtree(tmp_path / "logs")
    (tmp_path / "key").unlink()
    release = sfumato.open_release(tmp_path / "day")
    published = {path: path.read_bytes() for path in (tmp_path / "day").iterdir()}
    read: list[str] = []
    opened = builtins.open

    def watched(file: Any, *arguments: Any, **named: Any) -> Any:
        if isinstance(file, str | os.PathLike):
            read.append(os.path.abspath(file))
        return opened(file, *arguments, **named)

    monkeypatch.setattr(builtins, "open", watched)
    monkeypatch.setattr(io, "open", watched)
    given = ["zones", "--release", str(tmp_path / "day"), "--h3", "3", "--output", str(tmp_path / "out.csv")]
    assert main(given) == 0
    release.zones([shapely.box(-0.5, 50.2, 0.2, 50.7)])
    mine = {path for path in read if path.startswith(str(tmp_path)) and ".out.csv." not in path}
    assert str(tmp_path / "day" / "cells.parquet") in mine
    assert mine <= {str(tmp_path / "day" / name) for name in ("manifest.json", "cells.parquet", "totals.parquet")}
    assert (tmp_path / "ledger.db").read_bytes() == charged
    assert {path: path.read_bytes() for path in (tmp_path / "day").iterdir()} == published


def test_the_same_release_and_zones_give_the_same_table(folder: Path) -> None:
    """Nothing random: asking again, or for more zones, tells no more than the release does."""
    release = sfumato.open_release(folder)
    zone, other = shapely.box(-74.0, 40.70, -73.95, 40.75), shapely.box(-73.94, 40.70, -73.93, 40.75)
    alone, again, both = (release.zones(zones).drop(columns="geometry") for zones in ([zone], [zone], [zone, other]))
    assert alone.equals(again)
    pd.testing.assert_frame_equal(alone, both.iloc[:1], rtol=1e-12)  # sums of other shapes round otherwise
