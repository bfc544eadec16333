"""`sfumato moments`: the release, its key, log, charge and start, of one column and of two, in all trust models."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from numpy.typing import NDArray
from scipy import stats

from sfumato.pipelines.command_line.cli import parse_command
from sfumato.transforms.moments.request import MomentsRequest
from sfumato.transforms.release.published_release import open_release
from tests.conftest import write_files
from tests.digests import page_text
from tests.jobs.moment_logs import CENTRAL, LENGTH, REGION, contents, run, shows, table, usable, users_of
from tests.keys import SECRET, write_key
from tests.leaks import holds
from tests.rejections import rejects
from tests.seeds import seeded_rng
from tests.statistics import FLAKE_RATE

SURE = float(stats.norm.isf(FLAKE_RATE / 2))  # standard deviations of a normal error
SURE_OF_LAPLACE = 8  # half widths of an interval: 17 standard deviations, which Laplace noise exceeds with P < 1e-9
BUDGET = ["--dataset", "rides", "--period", "2026-11-20", "--budget", "0.8/1d"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Logs in three files of several row groups, and a key."""
    folder = tmp_path_factory.mktemp("moments")
    write_files(table(), folder / "logs", 3)
    write_key(folder / "key")
    return folder


@pytest.fixture(scope="module")
def pattern(folder: Path) -> str:
    return str(folder / "logs" / "*.parquet")


def keyed(folder: Path, release_id: str = "monday") -> list[str]:
    return ["--key_file", str(folder / "key"), "--release_id", release_id]


def lengths() -> NDArray[np.float64]:
    """The usable values of all rows; each of the 1,900 users has one."""
    logs = table()
    assert users_of(logs, usable(logs)) == 1900
    return logs["length"].to_numpy()[usable(logs)]


@pytest.fixture(scope="module")
def published(folder: Path, pattern: str) -> Path:
    """The release `monday`, of the key."""
    statistics_options = ["--statistics", "mean,variance", "--method", "adaptive"]
    assert run(pattern, folder / "published", *LENGTH, *statistics_options, *keyed(folder)) == 0
    return folder / "published"


# --- what is published ---


@pytest.mark.slow
def test_nothing_raw_is_in_the_release_or_in_the_log(
    folder: Path, pattern: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    logs = table()
    dropped, rows = int((~usable(logs)).sum()), logs.num_rows
    raw = [rows, rows - dropped, *(file.stat().st_size for file in (folder / "logs").iterdir())]
    assert min(raw) > 1900  # the number of users, which is public
    more = [*LENGTH, "--log_format", "json", *keyed(folder)]
    assert run(pattern, tmp_path / "out", *more) == 0
    told = capfd.readouterr().err
    page = page_text((tmp_path / "out" / "index.html").read_text())
    for text in (told, (tmp_path / "out" / "manifest.json").read_text(), page):
        assert [number for number in raw if shows(text, number)] == []
        # Ids of nine digits, as numbers of their own: others may be part of a fraction or digest, once in 500 seeds.
        ids = [user for user in logs["user_id"].to_pylist()[:100] if user > 10**8]
        assert len(ids) > 50
        assert not any(shows(text, user) for user in ids)
    for content in (*contents(tmp_path / "out").values(), told.encode()):
        assert not holds(content, SECRET)
    events = [json.loads(line) for line in told.splitlines()]
    assert [one["event"] for one in events if one["event"] not in ("read_file", "no_ledger")] == [
        "files",
        "read_logs",
        "round",
        "round",
    ]
    assert sum(one["event"] == "read_file" for one in events) == 3
    rounds = open_release(tmp_path / "out").manifest["results"]["rounds"]
    for one, stated in zip([one for one in events if one["event"] == "round"], rounds, strict=True):
        assert {name: one[name] for name in stated} == stated
        assert one["release_id"] == "monday"
    # What the search is worth: operations data are shown when asked for.
    assert run(pattern, tmp_path / "out", *more, "--overwrite", "--verbose") == 0
    told = capfd.readouterr().err
    (metrics,) = [one["metrics"] for one in map(json.loads, told.splitlines()) if one["event"] == "metrics"]
    assert shows(told, rows)
    assert (metrics["read_rows"], metrics["reported_bits"]) == (rows, 1900)
    assert metrics["dropped_not_finite_rows"] + metrics["dropped_null_value_rows"] == dropped
    assert metrics["dropped_null_value_rows"] == logs["length"].null_count
    assert metrics["clamped_rows"] == int((logs["length"].to_numpy()[usable(logs)] > 1023.5).sum())


# --- its key ---


@pytest.mark.false_alarm(3 * FLAKE_RATE)
def test_without_dp_bits_are_reported_as_they_are(pattern: str, tmp_path: Path) -> None:
    many = ["--bits_per_client", "2", "--statistics", "geometric_mean,moment:3,mean"]
    metered = ["--trust", "secagg", "--no_dp", "--method", "weighted"]
    assert run(pattern, tmp_path / "out", *LENGTH, *metered, *many) == 0
    manifest = open_release(tmp_path / "out").manifest
    assert (manifest["privacy"]["trust"], manifest["privacy"]["epsilon"]) == ("secagg", None)
    meter = manifest["privacy"]["meter"]
    assert (meter["bits_per_client"], meter["cap"], meter["expected_private_bits"]) == (2, 2, 2.0)
    assert manifest["method"] == "weighted"
    length = lengths()
    found = {row["statistic"]: row for row in pq.read_table(tmp_path / "out" / "moments.parquet").to_pylist()}
    mean, cubes = np.log(length).mean(), length**3
    truths = {
        "geometric_mean": (math.exp(mean), math.exp(mean) * np.log(length).std()),
        "moment:3": (cubes.mean(), cubes.std()),
        "mean": (length.mean(), length.std()),
    }
    assert list(found) == list(truths)
    for name, (truth, spread) in truths.items():  # 1,900 users, of whom one record of two counts
        assert abs(found[name]["value"] - truth) < SURE * math.hypot(found[name]["stddev"], spread / math.sqrt(1900))
    clients = sum(one["clients"] for one in manifest["results"]["rounds"])
    assert clients == manifest["results"]["clients"] == 1900
    assert sum(one["reports"] for one in manifest["results"]["rounds"]) == 3800


# --- its charge ---


def test_no_charged_release_starts_from_one_that_nobody_charged(
    folder: Path, pattern: str, published: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    books = ["--epsilon", "0.5", "--ledger", str(tmp_path / "ledger.db"), *BUDGET, "--warm_start", str(published)]
    assert run(pattern, tmp_path / "out", *LENGTH, *keyed(folder, "tuesday"), *books) == 2
    assert "is not in the ledger" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


# --- what it starts from ---


@pytest.mark.false_alarm(FLAKE_RATE)
@pytest.mark.slow
def test_warm_start_replaces_the_first_round(folder: Path, pattern: str, published: Path) -> None:
    warm = [*LENGTH, *keyed(folder, "tuesday"), "--warm_start", str(published)]
    assert run(pattern, folder / "warm", *warm, "--statistics", "mean,moment:3") == 0
    release = open_release(folder / "warm")
    stages = [(one["quantity"], one["round"]) for one in release.manifest["results"]["rounds"]]
    # What the earlier release does not know of is asked in two rounds.
    assert sorted(stages) == [("power:3", 1), ("power:3", 2), ("value", 2)]
    assert release.manifest["parameters"]["warm_start"]["release_id"] == "monday"
    assert any("add up" in one for one in release.manifest["privacy"]["assumptions"])
    (mean, _) = release.arrow_table("moments.parquet").to_pylist()
    spread = lengths().std() / math.sqrt(1900)
    assert abs(mean["value"] - lengths().mean()) < SURE * math.hypot(mean["stddev"], spread)


def start_from(release: Path, *more: str) -> None:
    """Resolves a request that starts from a release."""
    given = ["--input", "x", "--output", "y", *LENGTH, "--epsilon", "4", "--warm_start", str(release), *more]
    parse_command(MomentsRequest, given)[0].resolve()


@pytest.mark.parametrize("more", [["--column", "change"], ["--bits", "11"], ["--statistics", "moment:3"]])
def test_warm_start_rejects_another_column_or_form(published: Path, more: list[str]) -> None:
    start_from(published)
    with rejects("warm_start"):
        start_from(published, *more)


@pytest.mark.parametrize(
    "change",
    [
        *({"format": "other/1"}, {"bits.parquet": b""}, {"bits.parquet": None}, {"manifest.json": b"{"}),
    ],
    ids=lambda one: str(one)[:30],
)
def test_warm_start_rejects_damaged_releases(published: Path, tmp_path: Path, change: dict[str, Any]) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(published, copy)
    for name, value in change.items():
        if "." not in name:
            manifest = json.loads((copy / "manifest.json").read_text())
            (copy / "manifest.json").write_text(json.dumps({**manifest, name: value}))
        elif value is None:
            (copy / name).unlink()
        else:
            (copy / name).write_bytes(value)
    with rejects("warm_start"):
        start_from(copy)


# --- a trusted curator ---


@pytest.fixture(scope="module")
def one_each(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Logs of one record a user in three files, so that no draw chooses records."""
    one_each = tmp_path_factory.mktemp("central")
    write_files(table(1900, 1), one_each / "logs", 3)
    write_key(one_each / "key")
    return one_each


@pytest.fixture(scope="module")
def pattern_of_one_each(one_each: Path) -> str:
    return str(one_each / "logs" / "*.parquet")


def usable_frame(one_each: Path) -> pd.DataFrame:
    logs = pd.concat(map(pd.read_parquet, sorted((one_each / "logs").glob("*.parquet"))))
    return logs[np.isfinite(logs["length"])]


def released(release: Path) -> dict[tuple[str, str], Any]:
    rows = open_release(str(release)).moments.itertuples()
    return {(row.group, row.statistic): row for row in rows}


def assert_near(row: Any, exact: float) -> None:
    assert abs(row.value - exact) <= SURE_OF_LAPLACE * (row.high - row.low) / 2


@pytest.mark.false_alarm(5e-9)
def test_central_statistics_by_group_are_those_of_the_logs(
    one_each: Path, pattern_of_one_each: str, tmp_path: Path
) -> None:
    names = "count,sum,mean,variance,moment:3"
    groups = ["--group_by", "kind", "--groups", "bus,tram,walk,boat"]
    release = tmp_path / "out"
    assert run(pattern_of_one_each, release, *CENTRAL, "--range", "0,600", "--statistics", names, *groups) == 0
    logs, rows = usable_frame(one_each), released(release)
    assert {group for group, _ in rows} == {"everybody", "bus", "tram", "walk"}
    for group in ("everybody", "bus", "tram", "walk"):
        x = np.clip(logs["length"] if group == "everybody" else logs["length"][logs["kind"] == group], 0, 600)
        for name, exact in {
            "count": len(x),
            "sum": x.sum(),
            "mean": x.mean(),
            "variance": x.var(ddof=0),
            "moment:3": (x**3).mean(),
        }.items():
            assert_near(rows[group, name], exact)
    assert not (release / "bits.parquet").exists()


@pytest.mark.false_alarm(5e-9)
def test_central_range_is_found_and_cells_have_means(one_each: Path, pattern_of_one_each: str, tmp_path: Path) -> None:
    release = tmp_path / "out"
    assert run(pattern_of_one_each, release, *CENTRAL, "--cells", "1", *REGION) == 0
    stated = json.loads((release / "manifest.json").read_text())
    assert stated["range"]["source"] == "noisy counts"
    logs, rows = usable_frame(one_each), released(release)
    low, high = stated["range"]["low"], stated["range"]["high"]
    assert_near(rows["everybody", "mean"], np.clip(logs["length"], low, high).mean())
    cells = open_release(str(release)).cells.set_index("cell_id")
    for name, cell in cells.iterrows():
        inside = logs["longitude"].between(cell["west"], cell["east"], inclusive="left") & logs["latitude"].between(
            cell["south"], cell["north"], inclusive="left"
        )
        assert_near(rows[name, "mean"], np.clip(logs["length"][inside], low, high).mean())
    assert len(cells) >= 1  # one of four cells has 100 of the 1,900 users


# --- two columns ---


USERS = 30_000
OF_SPEED = [*CENTRAL[:2], "--column", "speed", "--range", "0,127", "--second_column", "delay"]


@pytest.fixture(scope="module")
def pairs() -> pa.Table:
    """One record a user; one in a hundred lacks one of the numbers."""
    rng = seeded_rng(1)
    x, other = rng.normal(size=(2, USERS))
    speed, delay = 60 + 15 * x, 10 * (-0.7 * x + math.sqrt(0.51) * other)
    kind = np.where(rng.random(USERS) < 0.5, "bus", "tram")
    delay = np.where(kind == "tram", 10 * other, delay)
    delay[:150] = math.nan
    missing = np.zeros(USERS, bool)
    missing[150:300] = True
    return pa.table(
        {
            "user_id": [f"u{number}" for number in range(USERS)],
            "speed": pa.array(np.clip(speed, 0, 127), mask=missing),
            "delay": pa.array(np.clip(delay, -63, 63)),
            "kind": kind.tolist(),
        }
    )


@pytest.fixture(scope="module")
def pattern_of_pairs(pairs: pa.Table, tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("pairs")
    write_key(folder / "key")
    return write_files(pairs, folder / "logs", 3)


def truth(pairs: pa.Table, kind: str | None = None) -> dict[str, float]:
    frame = pairs.to_pandas().dropna()
    frame = frame if kind is None else frame[frame["kind"] == kind]
    covariance = np.cov(frame["speed"], frame["delay"], bias=True)
    own, both, other = covariance[0, 0], covariance[0, 1], covariance[1, 1]
    return {"variance": own, "covariance": both, "correlation": both / math.sqrt(own * other), "count": len(frame)}


@pytest.mark.false_alarm(4e-9)
def test_a_trusted_curators_correlation_is_that_of_the_logs(
    pairs: pa.Table, pattern_of_pairs: str, tmp_path: Path
) -> None:
    release, exact = tmp_path / "out", truth(pairs)
    names = "correlation,covariance,variance,count"
    assert run(pattern_of_pairs, release, *OF_SPEED, "--statistics", names, "--epsilon", "1") == 0
    for row in open_release(str(release)).moments.itertuples():
        assert_near(row, exact[row.statistic])
        assert row.stddev < 0.06 * abs(exact[row.statistic])
    stated = json.loads((release / "manifest.json").read_text())
    assert stated["second"]["range"]["source"] == "noisy counts"
    assert stated["range"]["source"] == "given"
    page = page_text((release / "index.html").read_text())
    for sentence in (
        "Those of delay lie between",
        "Users with speed above its range",
        "Users with delay above its range",
    ):
        assert sentence in page


def test_a_user_with_one_of_both_numbers_counts_as_unusable(
    pattern_of_pairs: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """300 of 30,000 users, so a limit of a tenth of a per cent refuses, and one of two per cent does not."""
    statistics_options = [*OF_SPEED, "--second_range=-63,63", "--statistics", "covariance", "--epsilon", "20"]
    assert run(pattern_of_pairs, tmp_path / "refused", *statistics_options, "--max_bad_fraction", "0.001") == 1
    assert run(pattern_of_pairs, tmp_path / "made", *statistics_options, "--max_bad_fraction", "0.02") == 0
