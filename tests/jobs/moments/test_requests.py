"""`sfumato moments`: everything that can be wrong with a request or its data, and what a dry run reports."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sfumato.pipelines import cli
from sfumato.transforms.moments.local.tally import RandomisedResponse
from sfumato.transforms.release.published_release import open_release
from tests.conftest import write_files
from tests.jobs.moment_logs import LENGTH, REGION, run, table

BY_KIND = ["--group_by", "kind"]
LISTED = [*BY_KIND, "--groups", "bus,tram"]
ON_MAP = ["--cells", "3", *REGION]
OF_PAIR = ["--second_column", "change", "--statistics", "covariance"]
IN_ZONES = ["--zones", "/nowhere/tracts.geojson", "--id_column", "tract"]


@pytest.fixture(scope="module")
def pattern(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_files(table(300, 2), tmp_path_factory.mktemp("requests") / "logs", 2)


WRONG = [
    (["--bits", "0"], "bits: must lie in 1..52, got 0"),
    (["--bits", "53"], "bits: must lie in 1..52, got 53"),
    (["--bits", "many"], "bits: must be a whole number, got 'many'"),
    (["--fraction_bits", "53"], "fraction_bits: must lie in -52..52, got 53"),
    (["--fraction_bits", "-53"], "fraction_bits: must lie in -52..52, got -53"),
    (["--fraction_bits", "half"], "fraction_bits: must be a whole number, got 'half'"),
    (["--signed", "both"], "signed: give shift:OFFSET or split, got 'both'"),
    (["--signed", "shift"], "signed: give shift:OFFSET or split, got 'shift'"),
    (["--signed", "shift:"], "signed: give shift:OFFSET or split, got 'shift:'"),
    (["--signed", "split:3"], "signed: give shift:OFFSET or split, got 'split:3'"),
    (["--signed", ""], "signed: give shift:OFFSET or split, got ''"),
    (["--signed", "shift:ten"], "signed: shift:OFFSET needs a number, got 'shift:ten'"),
    (["--signed", "shift:nan"], "signed: shift:OFFSET needs a finite number, got nan"),
    (["--signed", "shift:-inf"], "signed: shift:OFFSET needs a finite number, got -inf"),
    (["--signed", "shift:1e300", "--statistics", "variance"], "signed: shift:1e+300 is so large that values of its"),
    (["--epsilon", "0"], "epsilon: must be a finite number > 0, got 0.0"),
    (["--epsilon", "-1"], "epsilon: must be a finite number > 0, got -1.0"),
    (["--epsilon", "nan"], "epsilon: must be a number"),
    (["--epsilon", "inf"], "epsilon: must be a number"),
    (["--epsilon", "1e-19"], "epsilon: 1e-19 is too small for a report to say anything"),
    (["--epsilon", "much"], "epsilon: must be a number, got 'much'"),
    (["--epsilon", "1", "--trust", "secagg", "--no_dp"], "no_dp: not allowed with --epsilon"),
    (["--statistics", "median"], "statistics: there are mean, variance, moment:K (K from 2 to 8), geometric_mean"),
    (["--statistics", ""], "statistics: there are mean, variance"),
    (["--statistics", "mean,"], "statistics: there are mean, variance"),
    (["--statistics", "moment:1"], "statistics: there are mean, variance"),
    (["--statistics", "moment:9"], "statistics: there are mean, variance"),
    (["--statistics", "moment:two"], "statistics: there are mean, variance"),
    (["--statistics", "mean, mean"], "statistics: name one or more, each once, got 'mean,mean'"),
    (["--statistics", "geometric_mean", "--signed", "split"], "statistics: geometric_mean is of positive values"),
    (["--statistics", "log_product", "--signed", "shift:1"], "statistics: log_product is of positive values"),
    (["--variance", "exact"], "variance: must be one of centred, raw, got 'exact'"),
    (["--method", "fast"], "method: must be one of auto, threshold, adaptive, weighted, got 'fast'"),
    (["--method", "threshold", "--group_by", "kind", "--groups", "bus"], "method: thresholds are asked of everybody"),
    (["--method", "weighted", "--tuning", "paper"], "tuning: applies only with --method adaptive"),
    (["--tuning", "best"], "tuning: must be one of ours, paper, got 'best'"),
    (["--bits_per_client", "0"], "bits_per_client: must lie in 1..10, got 0"),
    (["--bits_per_client", "11"], "bits_per_client: must lie in 1..10, got 11"),
    (["--statistics", "covariance"], "second_column: covariance is of two columns; name the other with"),
    (["--second_column", "change"], "second_column: no statistic is of two columns; add covariance or correlation"),
    (["--second_bits", "3"], "second_bits: is of a second column; name it with --second_column NAME"),
    ([*OF_PAIR, "--second_bits", "60"], "second_bits: must lie in 1..52, got 60"),
    ([*OF_PAIR, "--second_fraction_bits", "53"], "second_fraction_bits: must lie in -52..52, got 53"),
    ([*OF_PAIR, "--second_signed", "both"], "second_signed: give shift:OFFSET or split, got 'both'"),
    ([*OF_PAIR, "--bits", "40", "--second_bits", "25"], "second_bits: both columns have 64 bits in all at most"),
    ([*OF_PAIR, "--second_range", "0,1"], "second_range: needs --trust central"),
    ([*OF_PAIR, "--trust", "central", "--second_range", "1,0"], "second_range: must be LOW,HIGH, finite and"),
    ([*OF_PAIR, "--trust", "central", "--second_range", "0,1", "--second_bits", "3"], "second_bits: sets the second"),
    ([*OF_PAIR, "--warm_start", "/nowhere"], "warm_start: is of one column"),
    ([*OF_PAIR, "--second_column", "length"], "second_column: 'length' is the column of user ids, or that of"),
    (["--groups", "bus"], "groups: are of a column, which needs --group_by NAME"),
    (["--groups_file", "names"], "groups_file: are of a column, which needs --group_by NAME"),
    (["--group_epsilon", "2"], "group_epsilon: is of groups, which need --group_by NAME, --cells DEPTH or --zones"),
    (["--min_group", "9"], "min_group: is of groups, which need --group_by NAME, --cells DEPTH or --zones FILE"),
    (BY_KIND, "groups: give the groups as --groups a,b,c or --groups_file FILE"),
    ([*LISTED, "--groups_file", "names"], "groups: give the groups as --groups a,b,c or --groups_file FILE"),
    ([*BY_KIND, "--groups", "bus,tram,bus"], "groups: 'bus' is listed twice"),
    ([*BY_KIND, "--groups", "bus,other"], "groups: 'other' cannot be the name of a group; rename it in the logs"),
    ([*BY_KIND, "--groups", "everybody"], "groups: 'everybody' cannot be the name of a group"),
    ([*BY_KIND, "--groups", "bus,,tram"], "groups: '' cannot be the name of a group"),
    ([*BY_KIND, "--groups", ""], "groups: '' cannot be the name of a group"),
    ([*BY_KIND, "--groups_file", "/nowhere/names"], "groups_file: /nowhere/names cannot be read (No such file"),
    ([*BY_KIND, "--groups_file", "/dev/null"], "groups: list 1 to 16,384 groups, got 0"),
    ([*LISTED, "--min_group", "0"], "min_group: must be a number of clients >= 1, got 0"),
    ([*LISTED, "--group_epsilon", "nan"], "group_epsilon: must be a number"),
    ([*LISTED, "--group_epsilon", "0"], "group_epsilon: must lie in 1e-05..30, got 0"),
    ([*LISTED, "--group_epsilon", "31"], "group_epsilon: must lie in 1e-05..30"),
    ([*LISTED, *ON_MAP], "cells: groups are cells or values of a column; give --cells or --group_by"),
    ([*ON_MAP, "--groups", "bus"], "cells: groups are cells or values of a column; give --cells or --group_by"),
    (["--cells", "3"], "cells: a grid of cells needs --region W,S,E,N"),
    (REGION, "region: cells of a region need --cells DEPTH"),
    (["--cells", "0", *REGION], "cells: must be a depth of 1 to 7, got 0"),
    (["--cells", "8", *REGION], "cells: depth 8 has more than 16,384 cells; give 1 to 7"),
    (["--cells", "21", *REGION], "cells: must be a depth of 1 to 7, got 21"),
    (["--cells", "3", "--region", "1,2"], "region: expected four numbers WEST,SOUTH,EAST,NORTH in degrees, got '1,2'"),
    (["--cells", "3", "--region", "1,50,-1,51"], "region: WEST,SOUTH,EAST,NORTH must have west < east"),
    ([*IN_ZONES, *LISTED], "zones: groups are zones, cells or values of a column; give --zones, --cells or --group_by"),
    ([*IN_ZONES, *ON_MAP], "zones: groups are zones, cells or values of a column; give --zones, --cells or --group_by"),
    ([*IN_ZONES, "--groups", "a"], "zones: groups are zones, cells or values of a column"),
    ([*IN_ZONES, *REGION], "region: is of --cells; zones of a file have their own"),
    ([*IN_ZONES, "--method", "threshold"], "method: thresholds are asked of everybody together"),
    (IN_ZONES, "zones: /nowhere/tracts.geojson cannot be read"),
    (["--zones", "tracts.geojson"], "id_column: name the property or column of the zones' ids with --id_column NAME"),
    (["--zones", "tracts.geojson", "--id_column", ""], "id_column: name the property or column of the zones' ids"),
    (["--id_column", "tract"], "id_column: is of a file of zones, which needs --zones FILE"),
    (["--group_by", "user_id", "--groups", "a"], "group_by: 'user_id' is the column of user ids"),
    (["--group_by", "length", "--groups", "a"], "group_by: 'length' is the column of user ids, or that of the values"),
    (["--group_by", "latitude", "--groups", "a"], "column 'latitude' holds double, and must hold categories"),
    (["--group_by", "colour", "--groups", "a"], "no column 'colour'; set --group_by to one of: user_id, latitude"),
    ([*ON_MAP, "--latitude_column", "north"], "no column 'north'; set --latitude_column"),
    ([*ON_MAP, "--longitude_column", "kind"], "column 'kind' must hold degrees as floating-point numbers"),
    (["--column", "size"], "no column 'size'; set --column to one of: user_id, latitude"),
    (["--column", "kind"], "column 'kind' holds string, and must hold integers or floating-point numbers; convert it"),
    (["--column", "night"], "column 'night' holds bool, and must hold integers or floating-point numbers; convert it"),
    (["--column", "user_id"], "column: 'user_id' is the column of user ids"),
    (["--user_id_column", "me"], "no column 'me'; set --user_id_column"),
    (["--max_bad_fraction", "nan"], "max_bad_fraction: must be a number in [0, 1], got 'nan'"),
    (["--max_bad_fraction", "-0.1"], "max_bad_fraction: must be a number in [0, 1], got '-0.1'"),
    (["--warm_start", "/nowhere"], "warm_start: /nowhere: no release here"),
    (["--warm_start", "."], "warm_start: .: no release here"),
    (["--ledger", "ledger.db"], "dataset: --ledger needs it, to know what to charge"),
    (["--bit", "3"], "--bit"),
]  # fmt: skip


@pytest.mark.parametrize(("options", "message"), WRONG, ids=lambda one: " ".join(one) if isinstance(one, list) else "")
def test_wrong_requests_end_before_any_work(
    pattern: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str], message: str
) -> None:
    assert run(pattern, tmp_path / "out", *LENGTH, *options) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (LENGTH, "epsilon: give --epsilon E, or --trust secagg --no_dp"),
        (["--epsilon", "1"], "column: required"),
    ],
)
def test_what_must_be_given(
    pattern: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str], message: str
) -> None:
    assert cli.main(["moments", "--input", pattern, "--output", str(tmp_path / "out"), *options]) == 2
    assert message in capsys.readouterr().err


# --- data ---


def logs_of(folder: Path, values: Any, records: int = 1) -> str:
    users = np.repeat(np.arange(-(-len(values) // records)), records)[: len(values)]
    return write_files(pa.table({"user_id": users, "x": values, "kind": ["bus"] * len(values)}), folder / "logs", 2)


NOTHING: dict[str, Any] = {
    "no number": np.full(500, np.nan),
    "half of them": np.where(np.arange(500) % 2, np.inf, 1.0),
    "no value": pa.array([None] * 60 + [1.0] * 440, pa.float64()),
    "negative": np.where(np.arange(500) < 51, -1.0, 1.0),
}


@pytest.mark.parametrize(
    ("values", "refused"), [("no number", True), ("half of them", True), ("no value", False), ("negative", False)]
)
def test_too_many_users_without_a_value_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], values: str, refused: bool
) -> None:
    """By a noisy count: where it could be noise, as with a share just above the tenth, the run goes on."""
    pattern = logs_of(tmp_path, NOTHING[values])
    assert run(pattern, tmp_path / "out", "--column", "x", "--epsilon", "30") == int(refused)
    error = capsys.readouterr().err
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text())
    assert ("have no usable record, more than --max_bad_fraction 0.1 allows" in error) == refused
    assert (manifest.get("status") == "refused") == refused


def test_a_tenth_of_bad_values_is_left_out_and_counted(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    bad = [np.nan] * 7 + [np.inf, -np.inf] * 4 + [-3.0] * 5 + [None] * 9 + [1e300] * 3
    pattern = logs_of(tmp_path, pa.array(bad + [5.0] * 468, pa.float64()))
    assert (
        run(pattern, tmp_path / "out", "--column", "x", "--bits", "4", "--trust", "secagg", "--no_dp", "--verbose") == 0
    )
    told = capfd.readouterr().err
    assert "rows read: 500; dropped: not_finite 15, null_value 9, negative_value 5; clamped: 3" in told
    (row,) = pq.read_table(tmp_path / "out" / "moments.parquet").to_pylist()
    assert row["clients"] == 471
    # 3 of 471 clients hold 15 and all others 5: each bit's mean has few values.
    assert abs(row["value"] - (468 * 5 + 3 * 15) / 471) < 6.2 * row["stddev"] + 0.1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rows", "records", "more"),
    [
        (0, 1, []),
        (4, 1, []),
        (40, 4, ["--rows_are_users", "--statistics", "variance,moment:3"]),
        (40, 4, [*LISTED, "--epsilon", "0.5"]),
    ],
)
def test_however_few_clients_a_release_is_published(tmp_path: Path, rows: int, records: int, more: list[str]) -> None:
    """Its existence does not depend on who is there. Its warnings say that nothing is known."""
    pattern = logs_of(tmp_path, np.arange(float(rows)), records)
    assert run(pattern, tmp_path / "out", "--column", "x", *more) == 0
    warnings = json.loads((tmp_path / "out" / "manifest.json").read_text())["warnings"]
    assert any("is not known" in one for one in warnings)


def test_columns_of_two_kinds_and_no_files(pattern: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mixed = tmp_path / "mixed"
    write_files(table(100, 1), mixed, 1)
    pq.write_table(table(100, 1).set_column(5, "kind", pa.array([3] * 100)), mixed / "other.parquet")
    assert run(str(mixed / "*.parquet"), tmp_path / "out", *LENGTH, *LISTED) == 2
    assert "column 'kind' holds" in capsys.readouterr().err
    assert run(str(tmp_path / "none*.parquet"), tmp_path / "out", *LENGTH) == 2
    assert "input: no file matches" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


# --- a dry run ---


def dry(pattern: str, output: Path, capsys: pytest.CaptureFixture[str], *more: str) -> str:
    assert run(pattern, output, *more, "--dry_run") == 0
    text = capsys.readouterr().out
    assert max(map(len, text.replace(str(output.parent), "").replace(pattern, "").splitlines())) <= 105
    assert not output.exists()
    return text


def errors_of(text: str) -> dict[int, float]:
    """Of numbers of users, the error that the mean would have."""
    found = re.findall(r"^\| +([\d,]+) \| +±([\d.e+]+) \|$", text, re.MULTILINE)
    return {int(users.replace(",", "")): float(error) for users, error in found}


@pytest.mark.parametrize(("reports", "statistics"), [(1, "mean"), (2, "mean,moment:3")])
def test_the_error_that_a_dry_run_tells_is_that_of_the_best_chances(
    pattern: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], reports: int, statistics: str
) -> None:
    """Lemma 3.3: the least variance is (sum of 2^j sqrt(v))^2 / n, v that of one report of a bit that half have set."""
    bits = ["--bits", "8", "--fraction_bits", "2", "--bits_per_client", str(reports)]
    text = dry(pattern, tmp_path / "out", capsys, *LENGTH, *bits, "--epsilon", "3", "--statistics", statistics)
    odds = math.exp(3 / reports)
    one = math.sqrt(0.25 + odds / (odds - 1) ** 2)
    asked = reports / (1 + (reports == 2))  # each quantity has its part of the clients
    found = errors_of(text)
    assert list(found) == [10**k for k in range(4, 9)]
    least = 1.96 * one * 255 / 4 / math.sqrt(asked)
    assert [error * math.sqrt(users) for users, error in found.items()] == pytest.approx([least] * 5, rel=0.01)
    truth = RandomisedResponse(3.0, reports).truth_probability
    assert f"a bit is sent as it is with probability {truth:.4f}" in text
    assert f"a client sends {reports} bit{'s'[: reports != 1]} about one of {1 + (reports == 2)}: value" in text
    assert "values lie in 0 to 63.75, in steps of 0.25" in text
    assert "auto takes: threshold, or weighted for fewer than 111 users by a noisy count" in text


def test_a_dry_run_is_what_the_run_does(pattern: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    more = ["--column", "change", "--bits", "10", "--signed", "shift:512", *LISTED, "--group_epsilon", "2.5"]
    text = dry(pattern, tmp_path / "out", capsys, *more, "--epsilon", "1.5")
    assert "nobody keeps account of the epsilon 2.5 that it costs" in text
    assert "columns user_id, change, kind" in text
    assert run(pattern, tmp_path / "out", *more, "--epsilon", "1.5") == 0
    manifest = open_release(tmp_path / "out").manifest
    stated = manifest["privacy"]["groups"]
    noise = float(re.search(r"noise ±([\d.]+) \(95%\) on every count", text)[1])  # type: ignore[index]
    assert noise == pytest.approx(1.96 * stated["noise_stddev"], rel=0.01)
    assert f"epsilon {stated['epsilon']:g} for adding or removing one user" in text
    assert f"2 groups, and `other`; a group is shown if it has {stated['min_group']} users by noisy counts" in text
    form = manifest["fixed_point"]
    assert f"values lie in {form['low']:g} to {form['high']:g}, in steps of {form['step']:g}" in text
    assert f"with probability {manifest['privacy']['meter']['truth_probability']:.4f}" in text
    assert f"method {manifest['method']}" in text


def test_a_dry_run_without_local_privacy(pattern: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = dry(pattern, tmp_path / "out", capsys, *LENGTH, "--trust", "secagg", "--no_dp", *ON_MAP)
    assert "nothing: there is no differential privacy that a ledger could account for" in text
    assert "each bit is sent as it is: no differential privacy" in text
    assert "64 groups, and `other`" in text
    assert "columns user_id, length, latitude, longitude" in text
    least = [1.96 * 0.5 * 1023] * 5
    assert [error * math.sqrt(users) for users, error in errors_of(text).items()] == pytest.approx(least, rel=0.01)
