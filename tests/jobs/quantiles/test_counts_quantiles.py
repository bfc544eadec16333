"""`sfumato quantiles --trust central`: what it publishes beside the answer in memory, and what it refuses."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from sfumato.pipelines.command_line import cli
from sfumato.transforms.quantiles.request import QuantilesRequest
from sfumato.transforms.release.published_release import open_release
from tests.conftest import write_files
from tests.digests import numbers_in, page_text
from tests.rejections import rejects
from tests.seeds import seeded_rng

USERS = 4987
COLUMN = ["--column", "km", "--range=-2,30"]


def lengths() -> np.ndarray:
    """Each user's value: a third is 0, the others are far apart; one is outside the range."""
    values = np.where(np.arange(USERS) % 3 == 0, 0.0, seeded_rng(1).exponential(4, USERS))
    values[-1] = np.inf
    return values


def ages() -> np.ndarray:
    return seeded_rng(2).integers(18, 75, USERS)


@pytest.fixture(scope="module")
def pattern(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Two or three records a user in four files, all with the user's value: any of them may be drawn."""
    users = seeded_rng(3).permutation(np.concatenate([np.arange(USERS)] * 2 + [np.arange(0, USERS, 2)]))
    logs = pa.table({"user_id": users, "km": lengths()[users], "age": ages()[users], "kind": users.astype(str)})
    return write_files(logs, tmp_path_factory.mktemp("quantiles") / "logs", 4)


def run(pattern: str, output: Path, *more: str) -> int:
    options = ["--input", pattern, "--output", str(output), "--trust", "central", "--seed", "1", *more]
    return cli.main(["quantiles", *options])


@pytest.mark.parametrize("method", ["exponential", "hierarchical"])
def test_a_release_is_the_answer_in_memory_with_noise(pattern: str, tmp_path: Path, method: str) -> None:
    ranges = ["--ranges=0.5:4,-2:30"] if method == "hierarchical" else []
    shares, epsilon = (0.1, 0.5, 0.9), 20.0
    more = ["--method", method, "--quantiles", "0.5,0.9,0.1", "--epsilon", f"{epsilon:g}", *ranges]
    assert run(pattern, tmp_path / "out", *COLUMN, *more) == 0
    files = {"index.html", "manifest.json", "quantiles.parquet", "curve.parquet", "quantiles.png"}
    assert set(os.listdir(tmp_path / "out")) == files | ({"ranges.parquet"} if ranges else set())
    release = open_release(tmp_path / "out")
    privacy = release.manifest["privacy"]
    assert (privacy["trust"], privacy["epsilon"], privacy["delta"], privacy["delta_spent"]) == (
        "central",
        epsilon,
        0,
        0,
    )
    assert sum(one["epsilon"] for one in privacy["rounds"]) + privacy["admission"]["epsilon"] == pytest.approx(epsilon)
    assert abs(privacy["admission"]["users"] - USERS) < 40 * privacy["admission"]["noise_stddev"]
    assert "add or remove one user" in privacy["adjacency"]
    found, values = release.quantiles, np.sort(np.clip(lengths(), -2, 30))
    assert found["share"].tolist() == [0.5, 0.9, 0.1]
    width = 32 / 2 ** release.manifest["parameters"]["bits"]
    for share, value, low, high in found[["share", "value", "low", "high"]].itertuples(index=False):
        assert low <= value <= high
        # The noise of any draw or sum of counts exceeds 40 users with a probability below 1e-9; one bin is not known.
        allowed = 40 / USERS
        below, above = np.quantile(values, [max(share - allowed, 0), min(share + allowed, 1)])
        assert below - width <= value <= above + width
    assert found["low"][2] <= 0 < found["high"][2]  # a third of the users are at 0
    if ranges:
        exact = [((values >= 0.5) & (values < 4)).sum(), USERS]
        assert np.abs(release.ranges["users"].to_numpy() - exact).max() < 40
        assert (release.ranges["stddev"] > 0).all()
    text = page_text((tmp_path / "out" / "index.html").read_text())
    assert "A trusted curator, the operator of this job, saw the logs" in text
    assert shares[1] in found["share"].tolist()


def test_whole_numbers_are_whole(pattern: str, tmp_path: Path) -> None:
    assert run(pattern, tmp_path / "out", "--column", "age", "--range", "18,74", "--epsilon", "2") == 0
    release = open_release(tmp_path / "out")
    assert release.manifest["parameters"]["method"] == "exponential"
    found = release.quantiles
    assert (found[["value", "low", "high"]].to_numpy() % 1 == 0).all()
    truth = np.quantile(ages(), found["share"], method="inverted_cdf")
    assert np.abs(found["value"] - truth).max() <= 3  # 250 users


def test_one_user_gives_a_release_however_little_it_shows(tmp_path: Path) -> None:
    logs = write_files(pa.table({"user_id": [7], "km": [1.5]}), tmp_path / "logs", 1)
    for method in ("exponential", "hierarchical"):
        assert run(logs, tmp_path / method, *COLUMN, "--method", method) == 0
        release = open_release(tmp_path / method)
        is_empty = "There seem to be no users: no quantile is published." in release.manifest["warnings"]
        assert is_empty == (len(release.quantiles) == 0)


def test_nothing_raw_is_in_the_release_or_the_log(
    pattern: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run(pattern, tmp_path / "out", *COLUMN) == 0
    manifest, page = ((tmp_path / "out" / name).read_text() for name in ("manifest.json", "index.html"))
    text = capfd.readouterr().err + manifest + page_text(page)
    # The noise on the number of users, of a deviation of 141, may be 0: once in 200 keys.
    raw = {USERS, 12468} - {json.loads(manifest)["privacy"]["admission"]["users"]}
    assert not [number for number in raw if f"{number:,}" in text]
    assert not raw & set(numbers_in(json.loads(manifest)))


WRONG = [
    ("method", {"method": "interactive"}),
    ("ranges", {"method": "exponential", "ranges": "0:1"}),
    ("contact", {"contact": "limited"}),
    ("items", {"items": 9}),
    *(("bits", {"bits": bits}) for bits in (0, 31)),
    ("bits", {"bits": 21, "method": "hierarchical"}),
    ("levels", {"levels": 13, "method": "hierarchical"}),
    ("quantiles", {"quantiles": "0.5,1"}),
    *(("epsilon", {"epsilon": epsilon}) for epsilon in ("nan", 1e-7)),
    ("trust", {"trust": "local"}),
    *(("method", {"trust": trust, "method": "exponential"}) for trust in ("split", "secagg")),
]


@pytest.mark.parametrize(("option", "given"), WRONG)
def test_request_rejects(option: str, given: dict[str, object]) -> None:
    options = {"input": "x", "output": "out", "column": "km", "range": "-2,30", "trust": "central", **given}
    with rejects(option):
        QuantilesRequest.of(options).resolve()
