"""Counts of a public list of items: pure differential privacy, and every item is published, present or not."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from scipy import stats

from sfumato.pipelines import cli
from sfumato.transforms.release.published_release import open_release
from tests.seeds import seeded_rng
from tests.statistics import FLAKE_RATE

USERS = 3000


def logs(folder: Path, kinds: pa.Array) -> str:
    """Two files of one record a user."""
    folder.mkdir()
    table = pa.table({"user_id": np.arange(len(kinds)), "kind": kinds})
    for number in range(2):
        pq.write_table(table.slice(number * len(kinds) // 2, len(kinds) // 2), folder / f"{number}.parquet")
    return str(folder / "*.parquet")


def run(tmp_path: Path, kinds: pa.Array, listed: str, *more: str) -> int:
    (tmp_path / "items").write_text(listed)
    options = ["--column", "kind", "--trust", "central", "--items_file", str(tmp_path / "items"), "--seed", "1", *more]
    return cli.main(
        ["histogram", "--input", logs(tmp_path / "logs", kinds), "--output", str(tmp_path / "out"), *options]
    )


@pytest.mark.parametrize("numbers", [False, True])
def test_every_listed_item_is_published_with_noise_at_delta_0(tmp_path: Path, numbers: bool) -> None:
    names = ["3", "14", "159"] if numbers else ["bus", "tram", "straße"]
    kinds = seeded_rng(0).choice([*names, "26"], USERS, p=[0.5, 0.3, 0.1, 0.1])
    column = pa.array(kinds.astype(np.int64)) if numbers else pa.array(kinds).dictionary_encode()
    assert run(tmp_path, column, "\n".join([*names, "none"])) == 0
    release = open_release(tmp_path / "out")
    privacy = release.manifest["privacy"]
    assert (privacy["delta"], privacy["delta_spent"], privacy["rounds"][0]["threshold"]) == (0, 0, None)
    counts = release.items.set_index("item")["count"]
    assert set(counts.index) == {*names, "none", "other"}
    truth = {**{name: (kinds == name).sum() for name in names}, "none": 0, "other": (kinds == "26").sum()}
    far = stats.laplace.isf(FLAKE_RATE / 10, scale=1 / privacy["rounds"][0]["epsilon"])
    assert all(abs(counts[name] - number) <= far + 1 for name, number in truth.items())
    assert "26" not in str(release.manifest["parameters"])


def test_unlisted_values_never_leave(tmp_path: Path) -> None:
    assert run(tmp_path, pa.array([*["bus"] * 999, "zebra-1871"]), "bus\ntram\n") == 0
    files = [path.read_bytes() for path in (tmp_path / "out").iterdir()]
    assert not any(b"zebra-1871" in content for content in files)
    assert set(open_release(tmp_path / "out").items["item"]) == {"bus", "tram", "other"}


@pytest.mark.parametrize(
    ("listed", "more", "message"),
    [
        ("", (), "items_file: must list different items"),
        ("a\na\n", (), "items_file: must list different items"),
        ("a\nother\n", (), "items_file: must list different items"),
        ("a\n", ("--trust", "secagg"), "items_file: .* needs --column NAME and --trust central"),
        ("a\n", ("--items_file", "nowhere"), "items_file: nowhere cannot be read"),
    ],
)
def test_bad_lists_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], listed: str, more: tuple[str, ...], message: str
) -> None:
    assert run(tmp_path, pa.array(["a"] * 10), listed, *more) == 2
    assert re.search(message, capsys.readouterr().err)
