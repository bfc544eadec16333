"""`sfumato moments`: everything that can be wrong with a request or its data, and what a dry run reports."""

from __future__ import annotations

import json
import math
import re
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sfumato.pipelines.command_line.cli import parse_command
from sfumato.schemas.known_digits import NOISE_Z
from sfumato.schemas.moments import ValueRange
from sfumato.transforms.moments.central.plan import CentralMomentsPlan
from sfumato.transforms.moments.local.tally import RandomisedResponse
from sfumato.transforms.moments.request import MomentsRequest
from sfumato.transforms.release.published_release import open_release
from tests.conftest import write_files
from tests.jobs.moment_logs import CENTRAL, LENGTH, REGION, run, table
from tests.rejections import rejects

LISTED = ["--group_by", "kind", "--groups", "bus,tram"]
ON_MAP = ["--cells", "3", *REGION]


@pytest.fixture(scope="module")
def pattern(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_files(table(300, 2), tmp_path_factory.mktemp("requests") / "logs", 2)


PAIR = "--second_column change --statistics covariance"
CURATOR = "--trust central"
KIND = "--group_by kind"
CELLS = "--cells 3 --region -1,50,1,51"
ZONES = "--zones /nowhere/tracts.geojson --id_column tract"
LEDGER = "--ledger ledger.db --dataset rides --period 2026-11-20 --budget 0.8/1d"
BITS_AS_THEY_ARE = "--trust secagg --no_dp"
REFUSED = {
    "bits": ["--bits 0", "--bits 53", "--bits many", f"{CURATOR} --range 0,9 --bits 8"],
    "fraction_bits": ["--fraction_bits 53", "--fraction_bits -53", "--fraction_bits half"],
    "signed": [
        *("--signed both", "--signed shift", "--signed shift:", "--signed split:3", "--signed ''"),
        *("--signed shift:ten", "--signed shift:nan", "--signed shift:-inf"),
        "--signed shift:1e300 --statistics variance",
    ],
    "epsilon": [
        *("--epsilon 0", "--epsilon -1", "--epsilon nan", "--epsilon inf", "--epsilon 1e-19", "--epsilon much"),
        *(f"{CURATOR} --epsilon {epsilon}" for epsilon in ("0", "9e-6", "31", "nan")),
    ],
    "no_dp": [f"--epsilon 1 {BITS_AS_THEY_ARE}", f"{CURATOR} --no_dp"],
    "budget": [f"{BITS_AS_THEY_ARE} {LEDGER} --key_file key --release_id monday"],
    "dataset": ["--ledger ledger.db"],
    "statistics": [
        *("--statistics median", "--statistics ''", "--statistics mean,", "--statistics 'mean, mean'"),
        *("--statistics moment:1", "--statistics moment:9", "--statistics moment:two"),
        *("--statistics moment", "--statistics moment:3.0", "--statistics mean:3", "--statistics Mean"),
        "--statistics geometric_mean --signed split",
        "--statistics log_product --signed shift:1",
        "--statistics moment:8 --bits 52 --fraction_bits -52",  # its square is no number
        *(
            f"{CURATOR} --range 0,9 --statistics {name}"
            for name in ("geometric_mean", "mean,mean", "moment:02", "mean:2")
        ),
    ],
    "variance": ["--variance exact", f"{CURATOR} --variance raw"],
    "method": [
        *("--method fast", f"--method threshold {KIND} --groups bus", f"--method threshold {ZONES}"),
        f"{CURATOR} --method weighted",
    ],
    "tuning": ["--method weighted --tuning paper", "--tuning best"],
    "bits_per_client": ["--bits_per_client 0", "--bits 10 --bits_per_client 11", f"{CURATOR} --bits_per_client 2"],
    "range": [
        "--range 0,9",
        *(f"{CURATOR} --range {ends}" for ends in ("5,5", "9,1", "0,inf", "nan,1", "1", "0,5e-324")),
        f"{CURATOR} --range 0,9 --statistics count",  # numbers of users need none
        # Sums of a range that are no numbers must not end in an error after the charge.
        f"{CURATOR} --range 0,1e121",
        f"{CURATOR} --range 0,1e61 --statistics variance",
        f"{CURATOR} --range -1e16,0 --statistics mean,moment:8",
    ],
    "second_column": ["--statistics covariance", "--second_column change", f"{PAIR} --second_column length"],
    "second_bits": [
        *("--second_bits 3", f"{PAIR} --second_bits 60"),
        f"{PAIR} --bits 40 --second_bits 25",  # both columns have 64 bits in all
        f"{PAIR} {CURATOR} --second_range 0,1 --second_bits 3",
    ],
    "second_fraction_bits": [f"{PAIR} --second_fraction_bits 53"],
    "second_signed": [f"{PAIR} --second_signed both"],
    "second_range": [f"{PAIR} --second_range 0,1", f"{PAIR} {CURATOR} --second_range 1,0"],
    "warm_start": [
        *("--warm_start /nowhere", "--warm_start .", f"{PAIR} --warm_start /nowhere"),
        *("--warm_start /nowhere --method weighted", f"{CURATOR} --warm_start there"),
    ],
    "groups": [
        *("--groups bus", KIND, f"{KIND} --groups bus,tram --groups_file names"),
        *(f"{KIND} --groups {names}" for names in ("bus,tram,bus", "bus,other", "everybody", "bus,,tram", "''")),
        f"{KIND} --groups {','.join(map(str, range(16_385)))}",
    ],
    "groups_file": ["--groups_file names", f"{KIND} --groups_file /nowhere/names"],
    "group_by": [f"--group_by {name} --groups a" for name in ("user_id", "length")],
    "group_epsilon": [
        "--group_epsilon 2",
        *(f"{KIND} --groups a --group_epsilon {epsilon}" for epsilon in ("nan", "0", "1e-6", "31")),
        f"{KIND} --groups a --bits_per_client 2 --group_epsilon 1.9e-5",
        f"{CURATOR} {KIND} --groups a --group_epsilon 1",
    ],
    "min_group": ["--min_group 9", *(f"{one} {KIND} --groups a --min_group 0" for one in ("", CURATOR))],
    "cells": [
        *(f"{KIND} --groups bus {CELLS}", f"{CELLS} --groups bus", "--cells 3"),
        *(f"--region -1,50,1,51 --cells {depth}" for depth in (0, 8, 21)),
    ],
    "region": [
        *("--region -1,50,1,51", f"{ZONES} --region -1,50,1,51"),
        *("--cells 3 --region 1,2", "--cells 3 --region 1,50,-1,51"),
    ],
    "zones": [f"{ZONES} {KIND} --groups bus", f"{ZONES} {CELLS}", f"{ZONES} --groups a", ZONES],
    "id_column": ["--zones tracts.geojson", "--zones tracts.geojson --id_column ''", "--id_column tract"],
    "column": ["--column user_id"],
    "max_bad_fraction": ["--max_bad_fraction nan", "--max_bad_fraction -0.1"],
}


@pytest.mark.parametrize(("option", "options"), [(name, one) for name, several in REFUSED.items() for one in several])
def test_request_refuses(option: str, options: str) -> None:
    """The error is about that option, and no file of logs has to be there for it."""
    given = shlex.split(options)
    privacy = [] if {"--epsilon", "--no_dp"} & {*given} else ["--epsilon", "4"]
    with rejects(option):
        parse_command(MomentsRequest, ["--input", "x", "--output", "y", "--column", "length", *privacy, *given])[
            0
        ].resolve()


@pytest.mark.parametrize(
    ("option", "options"), [("epsilon", "--column x"), ("epsilon", f"--column x {CURATOR}"), ("column", "--epsilon 1")]
)
def test_request_needs(option: str, options: str) -> None:
    with rejects(option):
        parse_command(MomentsRequest, ["--input", "x", "--output", "y", *shlex.split(options)])


def test_the_form_of_reports_sets_the_range_of_a_curator() -> None:
    given = ["--input", "x", "--output", "y", *CENTRAL, "--epsilon", "1", "--bits", "10", "--signed", "shift:100"]
    plan = parse_command(MomentsRequest, given)[0].resolve().plan
    assert isinstance(plan, CentralMomentsPlan)
    assert plan.span == ValueRange(-100.0, 923.0)


@pytest.mark.parametrize(
    ("options", "hint"),
    [
        (["--column", "size"], "no column 'size' (--column); choose from user_id, latitude"),
        (["--group_by", "latitude", "--groups", "a"], "column 'latitude' holds double"),
        ([*ON_MAP, "--longitude_column", "kind"], "column 'kind' must hold degrees"),
    ],
)
def test_moments_refuses_columns_before_any_work(
    pattern: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str], hint: str
) -> None:
    assert run(pattern, tmp_path / "out", *LENGTH, *options) == 2
    assert hint in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


# --- data ---


def logs_of(folder: Path, values: Any, records: int = 1) -> str:
    users = np.repeat(np.arange(-(-len(values) // records)), records)[: len(values)]
    return write_files(pa.table({"user_id": users, "x": values, "kind": ["bus"] * len(values)}), folder / "logs", 2)


@pytest.mark.false_alarm(1e-9)
@pytest.mark.parametrize(
    ("values", "refused"),
    [
        (np.where(np.arange(500) % 2, np.inf, 1.0), True),
        (np.where(np.arange(500) < 40, -1.0, 1.0), False),
    ],
    ids=["half of them", "negative"],
)
def test_too_many_users_without_a_value_are_refused(tmp_path: Path, values: Any, refused: bool) -> None:
    """By a noisy count, of epsilon 0.3 here. What noise may do to a share near the limit is tested with admission.

    The line of refusal is 51 users above the tenth, and 40 users are 10 below it: its noise is 68 with P < 1e-9.
    Half of all are 200 above the tenth.
    """
    pattern = logs_of(tmp_path, values)
    assert run(pattern, tmp_path / "out", "--column", "x", "--epsilon", "30") == int(refused)
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text())
    assert (manifest.get("status") == "refused") == refused


def test_a_tenth_of_bad_values_is_left_out_and_counted(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    bad = [np.nan] * 7 + [np.inf, -np.inf] * 4 + [-3.0] * 5 + [None] * 9 + [1e300] * 3
    pattern = logs_of(tmp_path, pa.array(bad + [5.0] * 468, pa.float64()))
    more = ["--trust", "secagg", "--no_dp", "--verbose", "--log_format", "json"]
    assert run(pattern, tmp_path / "out", "--column", "x", "--bits", "4", *more) == 0
    (metrics,) = [one["metrics"] for one in map(json.loads, capfd.readouterr().err.splitlines()) if "metrics" in one]
    found = [metrics[f"dropped_{reason}_rows"] for reason in ("not_finite", "null_value", "negative_value")]
    assert (metrics["read_rows"], found, metrics["clamped_rows"]) == (500, [15, 9, 5], 3)
    (row,) = pq.read_table(tmp_path / "out" / "moments.parquet").to_pylist()
    assert row["clients"] == 471


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rows", "records", "more"),
    [
        (0, 1, []),
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


# --- a dry run ---


def dry(pattern: str, output: Path, capsys: pytest.CaptureFixture[str], *more: str, width: int = 105) -> str:
    assert run(pattern, output, *more, "--dry_run") == 0
    text = capsys.readouterr().out
    assert max(map(len, text.replace(str(output.parent), "").replace(pattern, "").splitlines())) <= width
    assert not output.exists()
    return text


def errors_of(text: str) -> dict[int, float]:
    """Of numbers of users, the error that the mean would have."""
    found = re.findall(r"^\| +([\d,]+) \| +±([\d.e+]+) \|$", text, re.MULTILINE)
    return {int(users.replace(",", "")): float(error) for users, error in found}


@pytest.mark.parametrize(("reports", "statistics"), [(2, "mean,moment:3")])
def test_dry_run_states_the_error_of_the_best_probabilities(
    pattern: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], reports: int, statistics: str
) -> None:
    """Lemma 3.3: the least variance is (sum of 2^j sqrt(v))^2 / n, v that of one report of a bit that half have set."""
    bits = ["--bits", "8", "--fraction_bits", "2", "--bits_per_client", str(reports)]
    text = dry(pattern, tmp_path / "out", capsys, *LENGTH, *bits, "--epsilon", "3", "--statistics", statistics)
    odds = math.exp(3 / reports)
    one = math.sqrt(0.25 + odds / (odds - 1) ** 2)
    share_of_reports = reports / (1 + (reports == 2))  # each quantity has its part of the clients
    found = errors_of(text)
    assert list(found) == [10**k for k in range(4, 9)]
    least = 1.96 * one * 255 / 4 / math.sqrt(share_of_reports)
    assert [error * math.sqrt(users) for users, error in found.items()] == pytest.approx([least] * 5, rel=0.01)
    truth = RandomisedResponse(3.0, reports).truth_probability
    assert f"a bit is sent as it is with probability {truth:.4f}" in text
    assert f"a client sends {reports} bit{'s'[: reports != 1]} about one of {1 + (reports == 2)}: value" in text
    assert "values lie in 0 to 63.75, in steps of 0.25" in text
    assert "auto takes: threshold, or weighted for fewer than 111 users by a noisy count" in text


def test_a_dry_run_is_what_the_run_does(pattern: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    more = ["--column", "change", "--bits", "10", "--signed", "shift:512", *LISTED, "--group_epsilon", "2.5"]
    text = dry(pattern, tmp_path / "out", capsys, *more, "--epsilon", "1.5")
    assert "the epsilon 2.5 spent will not be recorded" in text
    assert "columns user_id, change, kind" in text
    assert run(pattern, tmp_path / "out", *more, "--epsilon", "1.5") == 0
    manifest = open_release(tmp_path / "out").manifest
    stated = manifest["privacy"]["groups"]
    noise = float(re.search(r"noise ±([\d.]+) \(95%\) on every count", text)[1])  # type: ignore[index]
    assert noise == pytest.approx(NOISE_Z * stated["noise_stddev"], rel=0.01)
    assert f"epsilon {stated['epsilon']:g} for adding or removing one user" in text
    assert f"2 groups, and `other`; a group is shown if it has {stated['min_group']} users by noisy counts" in text
    form = manifest["fixed_point"]
    assert f"values lie in {form['low']:g} to {form['high']:g}, in steps of {form['step']:g}" in text
    assert f"with probability {manifest['privacy']['meter']['truth_probability']:.4f}" in text
    assert f"method {manifest['method']}" in text
