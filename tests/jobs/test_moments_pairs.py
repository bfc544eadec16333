"""`sfumato moments` of two columns: covariances and correlations against the logs, in all trust models."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sfumato.pipelines import cli
from sfumato.transforms.release.published_release import open_release
from tests.conftest import write_files
from tests.digests import page_text
from tests.jobs.moment_logs import contents, run
from tests.keys import write_key
from tests.seeds import seeded_rng

USERS = 60_000
FORMS = [
    "--column",
    "speed",
    "--bits",
    "7",
    "--second_column",
    "delay",
    "--second_bits",
    "6",
    "--second_signed",
    "split",
]
STATISTICS = ["--statistics", "correlation,covariance,variance"]
CENTRAL = ["--trust", "central", "--column", "speed", "--range", "0,127", "--second_column", "delay"]


@pytest.fixture(scope="module")
def logs() -> pa.Table:
    """One record a user; one in a hundred lacks one of the numbers."""
    rng = seeded_rng(1)
    x, other = rng.normal(size=(2, USERS))
    speed, delay = 60 + 15 * x, 10 * (-0.7 * x + math.sqrt(0.51) * other)
    kind = np.where(rng.random(USERS) < 0.5, "bus", "tram")
    delay = np.where(kind == "tram", 10 * other, delay)
    delay[:300] = math.nan
    missing = np.zeros(USERS, bool)
    missing[300:600] = True
    return pa.table(
        {
            "user_id": [f"u{number}" for number in range(USERS)],
            "speed": pa.array(np.clip(speed, 0, 127), mask=missing),
            "delay": pa.array(np.clip(delay, -63, 63)),
            "kind": kind.tolist(),
        }
    )


@pytest.fixture(scope="module")
def pattern(logs: pa.Table, tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("pairs")
    write_key(folder / "key")
    return write_files(logs, folder / "logs", 3)


def truth(logs: pa.Table, kind: str | None = None) -> dict[str, float]:
    frame = logs.to_pandas().dropna()
    frame = frame if kind is None else frame[frame["kind"] == kind]
    covariance = np.cov(frame["speed"], frame["delay"], bias=True)
    own, both, other = covariance[0, 0], covariance[0, 1], covariance[1, 1]
    return {"variance": own, "covariance": both, "correlation": both / math.sqrt(own * other), "count": len(frame)}


@pytest.mark.slow
@pytest.mark.parametrize("privacy", [["--epsilon", "8"], ["--trust", "secagg", "--no_dp"]], ids=["local", "secagg"])
def test_users_reports_show_the_correlation(privacy: list[str], logs: pa.Table, pattern: str, tmp_path: Path) -> None:
    """The stated deviations are wide, so six of them hold any draw."""
    release = tmp_path / "out"
    assert run(pattern, release, *FORMS, *STATISTICS, *privacy) == 0
    exact = truth(logs)
    rows = {row["statistic"]: row for row in pq.read_table(release / "moments.parquet").to_pylist()}
    assert list(rows) == ["correlation", "covariance", "variance"]
    for name, row in rows.items():
        assert abs(row["value"] - exact[name]) < 6 * row["stddev"]
        assert row["value"] == pytest.approx(exact[name], rel=0.35)
    stated = json.loads((release / "manifest.json").read_text())
    assert stated["second"]["column"] == "delay"
    assert (stated["second"]["fixed_point"]["low"], stated["second"]["fixed_point"]["high"]) == (-63, 63)
    assert stated["method"] == "adaptive"
    assert stated["privacy"]["meter"]["bits_per_client"] == 1
    quantities = set(pq.read_table(release / "bits.parquet")["quantity"].to_pylist())
    assert quantities == {"value", "second_value", "product", "square", "second_square"}
    page = page_text((release / "index.html").read_text())
    assert "Correlation of speed and delay" in page


@pytest.mark.slow
def test_correlations_of_groups(logs: pa.Table, pattern: str, tmp_path: Path) -> None:
    release = tmp_path / "out"
    groups = ["--group_by", "kind", "--groups", "bus,tram"]
    assert run(pattern, release, *FORMS, "--statistics", "correlation", "--epsilon", "8", *groups) == 0
    rows = {row["group"]: row for row in pq.read_table(release / "moments.parquet").to_pylist()}
    for kind in ("bus", "tram"):
        assert abs(rows[kind]["value"] - truth(logs, kind)["correlation"]) < 0.25
        assert rows[kind]["low"] <= truth(logs, kind)["correlation"] <= rows[kind]["high"]
    assert rows["bus"]["value"] < rows["tram"]["value"] - 0.3


@pytest.mark.parametrize("second", [["--second_range=-63,63"], []], ids=["given", "found"])
def test_a_trusted_curators_correlation_is_that_of_the_logs(
    second: list[str], logs: pa.Table, pattern: str, tmp_path: Path
) -> None:
    release, exact = tmp_path / "out", truth(logs)
    names = "correlation,covariance,variance,count"
    assert run(pattern, release, *CENTRAL, *second, "--statistics", names, "--epsilon", "1") == 0
    for row in open_release(str(release)).moments.itertuples():
        # Six half widths are 13 standard deviations of Laplace noise: P < 1e-7.
        assert abs(row.value - exact[row.statistic]) < 6 * (row.high - row.low) / 2
        assert row.value == pytest.approx(exact[row.statistic], rel=0.02)
    stated = json.loads((release / "manifest.json").read_text())
    assert stated["second"]["range"]["source"] == ("given" if second else "noisy counts")
    assert stated["range"]["source"] == "given"
    page = page_text((release / "index.html").read_text())
    for sentence in ("Those of delay lie in", "Users with speed above its range", "Users with delay above its range"):
        assert sentence in page


def test_a_user_with_one_of_both_numbers_counts_as_unusable(
    pattern: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """600 of 60,000 users, so a limit of a tenth of a per cent refuses, and one of two per cent does not."""
    asked = [*CENTRAL, "--second_range=-63,63", "--statistics", "covariance", "--epsilon", "20"]
    assert run(pattern, tmp_path / "refused", *asked, "--max_bad_fraction", "0.001") == 1
    assert run(pattern, tmp_path / "made", *asked, "--max_bad_fraction", "0.02") == 0


def test_the_plan_says_what_both_columns_hold(pattern: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(pattern, tmp_path / "out", *FORMS, *STATISTICS, "--dry_run") == 0
    shown = capsys.readouterr().out
    assert "values lie in 0 to 127" in shown
    assert "those of the second column lie in -63 to 63" in shown
    assert not (tmp_path / "out").exists()
    assert cli.main(["moments", "--help"]) == 0
    assert "--second_column" in capsys.readouterr().out


@pytest.mark.slow
def test_one_input_has_one_release(pattern: str, tmp_path: Path) -> None:
    for name in ("a", "b"):
        assert run(pattern, tmp_path / name, *FORMS, "--statistics", "covariance", "--release_id", "pairs") == 0
    assert contents(tmp_path / "a") == contents(tmp_path / "b")
