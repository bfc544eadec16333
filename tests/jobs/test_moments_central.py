"""`sfumato moments --trust central`: the command's answer against the logs, its requests, its charge."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from sfumato.pipelines import cli
from sfumato.transforms.privacy.ledger.ledger import open_ledger
from sfumato.transforms.release.published_release import open_release
from tests.conftest import write_files
from tests.jobs.moment_logs import REGION, contents, run, table
from tests.keys import write_key

CENTRAL = ["--trust", "central", "--column", "length"]
SURE = 8  # half widths of an interval: 17 standard deviations, which Laplace noise exceeds with P < 1e-9


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Logs of one record a user in three files, so that no draw chooses records."""
    folder = tmp_path_factory.mktemp("central")
    write_files(table(1900, 1), folder / "logs", 3)
    write_key(folder / "key")
    return folder


@pytest.fixture(scope="module")
def pattern(folder: Path) -> str:
    return str(folder / "logs" / "*.parquet")


def usable(folder: Path) -> pd.DataFrame:
    logs = pd.concat(map(pd.read_parquet, sorted((folder / "logs").glob("*.parquet"))))
    return logs[np.isfinite(logs["length"])]


def published(release: Path) -> dict[tuple[str, str], Any]:
    rows = open_release(str(release)).moments.itertuples()
    return {(row.group, row.statistic): row for row in rows}


def assert_near(row: Any, exact: float) -> None:
    assert abs(row.value - exact) <= SURE * (row.high - row.low) / 2


def test_statistics_by_group_are_those_of_the_logs(folder: Path, pattern: str, tmp_path: Path) -> None:
    names = "count,sum,mean,variance,moment:3"
    groups = ["--group_by", "kind", "--groups", "bus,tram,walk,boat"]
    release = tmp_path / "out"
    assert run(pattern, release, *CENTRAL, "--range", "0,600", "--statistics", names, *groups) == 0
    logs, rows = usable(folder), published(release)
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


def test_a_range_is_found_and_cells_have_means(folder: Path, pattern: str, tmp_path: Path) -> None:
    release = tmp_path / "out"
    assert run(pattern, release, *CENTRAL, "--cells", "1", *REGION) == 0
    stated = json.loads((release / "manifest.json").read_text())
    assert stated["range"]["source"] == "noisy counts"
    logs, rows = usable(folder), published(release)
    low, high = stated["range"]["low"], stated["range"]["high"]
    assert_near(rows["everybody", "mean"], np.clip(logs["length"], low, high).mean())
    cells = open_release(str(release)).cells.set_index("cell_id")
    for name, cell in cells.iterrows():
        inside = logs["longitude"].between(cell["west"], cell["east"], inclusive="left") & logs["latitude"].between(
            cell["south"], cell["north"], inclusive="left"
        )
        assert_near(rows[name, "mean"], np.clip(logs["length"][inside], low, high).mean())
    assert len(cells) == 4


def test_the_form_of_reports_sets_the_range_too(pattern: str, tmp_path: Path) -> None:
    wide = ["--bits", "10", "--signed", "shift:100"]
    assert run(pattern, tmp_path / "out", *CENTRAL, *wide) == 0
    stated = json.loads((tmp_path / "out" / "manifest.json").read_text())
    assert stated["range"] == {"low": -100.0, "high": 923.0, "source": "given"}
    assert stated["parameters"]["range"] == [-100.0, 923.0]


def test_values_of_either_sign_need_no_form(pattern: str, tmp_path: Path) -> None:
    asked = ["--trust", "central", "--column", "change", "--range", "-300,300", "--rows_are_users"]
    assert run(pattern, tmp_path / "out", *asked) == 0
    assert published(tmp_path / "out")["everybody", "mean"].value == pytest.approx(-20, abs=10)


@pytest.mark.slow
def test_a_retry_gives_the_same_files_and_charges_once(folder: Path, pattern: str, tmp_path: Path) -> None:
    key = ["--key_file", str(folder / "key"), "--release_id", "monday", "--range", "0,600", "--epsilon", "0.5"]
    ledger = ["--ledger", str(tmp_path / "ledger.db"), "--dataset", "rides", "--period", "2026-11-20"]
    budget = ["--budget", "0.6/1d"]
    first, second = tmp_path / "first", tmp_path / "second"
    assert run(pattern, first, *CENTRAL, *key, *ledger, *budget) == 0
    assert run(pattern, second, *CENTRAL, *key, *ledger, *budget) == 0
    assert contents(first) == contents(second)
    (charge,) = open_ledger(str(tmp_path / "ledger.db")).history().charges
    assert (float(charge.epsilon), float(charge.delta), charge.trust) == (0.5, 0.0, "central")


WRONG = [
    (["--range", "5,5"], "range: must be LOW,HIGH, finite and LOW < HIGH, got 5,5"),
    (["--range", "9,1"], "range: must be LOW,HIGH"),
    (["--range", "0,inf"], "range: must be numbers LOW,HIGH"),
    (["--range", "nan,1"], "range: must be numbers LOW,HIGH"),
    (["--range", "1"], "range: "),
    (["--range", "0,9", "--bits", "8"], "bits: sets the range of the numbers, as --range does"),
    (["--range", "0,9", "--statistics", "count"], "range: numbers of users need none"),
    (["--statistics", "geometric_mean"], "statistics: with --trust central there are count, sum"),
    (["--method", "weighted"], "method: is of users' reports"),
    (["--variance", "raw"], "variance: is of users' reports"),
    (["--bits_per_client", "2"], "bits_per_client: is of users' reports"),
    (["--group_by", "kind", "--groups", "a", "--group_epsilon", "1"], "group_epsilon: is of users' reports"),
    (["--warm_start", "there"], "warm_start: is of users' reports"),
    (["--no_dp"], "no_dp: bits that are sent as they are"),
    (["--epsilon", "0"], "epsilon: must lie in"),
    (["--epsilon", "31"], "epsilon: must lie in"),
    (["--epsilon", "nan"], "epsilon: must be a number"),
    (["--min_group", "0", "--group_by", "kind", "--groups", "a"], "min_group: must be a number of clients >= 1"),
]


@pytest.mark.parametrize(("options", "message"), WRONG, ids=[" ".join(options) for options, _ in WRONG])
def test_wrong_requests_are_refused(
    pattern: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str], message: str
) -> None:
    assert run(pattern, tmp_path / "out", *CENTRAL, *options) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_range_is_no_option_of_reports(pattern: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(pattern, tmp_path / "out", "--column", "length", "--range", "0,9") == 2
    assert "range: needs --trust central" in capsys.readouterr().err


def test_a_missing_epsilon_is_refused(pattern: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wrong = ["moments", "--input", pattern, "--output", str(tmp_path / "out"), *CENTRAL]
    assert cli.main(wrong) == 2
    assert "epsilon: give --epsilon E" in capsys.readouterr().err


@pytest.mark.parametrize("options", [["--range", "0,600"], [], ["--statistics", "count"]])
def test_a_dry_run_says_what_it_costs(
    pattern: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str]
) -> None:
    assert run(pattern, tmp_path / "out", *CENTRAL, *options, "--dry_run") == 0
    text = capsys.readouterr().out
    assert "the operator adds up the value of one record a user" in text
    assert "central, this run:" in text
    assert ("values lie in 0 to 600" in text) == (options[:1] == ["--range"])
    assert ("by powers of two" in text) == (not options)
    assert not (tmp_path / "out").exists()
