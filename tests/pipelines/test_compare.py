"""`sfumato compare` and `sfumato plan` as commands."""

from __future__ import annotations

import csv
import io
import json
from collections import defaultdict
from pathlib import Path

import apache_beam as beam
import numpy as np
import pyarrow.parquet as pq
import pytest
from apache_beam.runners.portability.fn_api_runner import FnApiRunner

from sfumato.pipelines import cli
from sfumato.pipelines.inputs import match_files
from sfumato.schemas.comparison import EVALUATION
from sfumato.schemas.errors import RequestError
from sfumato.schemas.places import Places
from sfumato.schemas.region import Grid, by_row
from sfumato.transforms.evaluation.cases import make_cases
from sfumato.transforms.evaluation.compare_methods import CompareMethods, _DrawFn
from sfumato.transforms.evaluation.evaluate_case import Evaluation
from sfumato.transforms.locations.spill import Spill, load
from sfumato.transforms.privacy.keys import FixedSecret, RunKey
from sfumato.transforms.release.published_release import open_release
from tests.conftest import REGION, make_logs, write_files


def command(pattern: str, output: Path, *more: str) -> list[str]:
    return [
        "compare", "--input", pattern, "--output", str(output), "--region", str(REGION), "--depth", "5",
        "--shard_size", "500", "--seed", "3", "--keys", "2", *more,
    ]  # fmt: skip


def runs(output: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO((output / "runs.csv").read_text())))


def test_methods_meet_the_same_cohorts_over_the_whole_grid(baselines: None, logs, tmp_path: Path, capsys) -> None:
    out = tmp_path / "out"
    more = ("--methods", "adaptive,hierarchical,emd", "--users", "600,1200", "--epsilon", "1,4", "--dropout", "0,0.1")
    assert cli.main(command(logs(1500, 2, 3), out, *more, "--metrics", "mse,similarity")) == 0
    shown = capsys.readouterr()
    assert EVALUATION in shown.err
    assert (out / "table.md").read_text() in shown.out
    found = runs(out)
    by_method = defaultdict(list)
    for one in found:
        by_method[one["method"]].append(one)
    # keys x users x dropout, and epsilon for what spends it
    assert {name: len(mine) for name, mine in by_method.items()} == {
        "best_level": 8, "adaptive": 16, "hierarchical": 16, "hierarchical (level by truth)": 16, "emd": 16,
    }  # fmt: skip
    manifest = json.loads((out / "manifest.json").read_text())
    assert manifest["notice"] == EVALUATION
    assert manifest["parameters"]["epsilon"] == [1.0, 4.0]
    page = (out / "index.html").read_text()
    assert EVALUATION in page
    with pytest.raises(RequestError, match="an evaluation of methods on exact data, no release"):
        open_release(out)


def test_everybody_at_a_huge_epsilon_has_the_exact_map(logs, tmp_path: Path) -> None:
    """No sampling and next to no noise: the flat map is the truth, and so is the best level."""
    out, pattern = tmp_path / "out", logs(900)
    more = ("--methods", "flat", "--epsilon", "30", "--trust", "central", "--metrics", "mse,l1,emd", "--keys", "1")
    assert cli.main(command(pattern, out, *more)) == 0
    for one in runs(out):
        assert (float(one["mse"]), float(one["l1"]), float(one["emd"])) == (0, 0, 0)


def test_the_yardstick_knows_what_the_survivors_show(logs, tmp_path: Path) -> None:
    """Of everybody it knows all; of those who do not vanish, what a sample of that size shows, and no more."""
    out, pattern = tmp_path / "out", logs(900)
    more = ("--methods", "flat", "--users", "900", "--dropout", "0,0.3", "--metrics", "mse")
    assert cli.main(command(pattern, out, *more)) == 0
    table = pq.read_table(Path(pattern).parent)
    codes = Grid(REGION, 5).codes(table["longitude"].to_numpy(), table["latitude"].to_numpy())
    truth = by_row(np.bincount(codes.astype(int), minlength=4**5) / len(codes))
    # Sampling 630 of 900: the variance of a share p is p (1 - p) / 630 * 270 / 899.
    sampling = float(np.mean(truth * (1 - truth)) / 630 * 270 / 899)
    for one in (one for one in runs(out) if one["method"] == "best_level"):
        if one["dropout"] == "0.0":
            assert float(one["mse"]) == 0
        else:
            assert 0 < float(one["mse"]) < 2 * sampling


def test_a_comparison_is_the_same_again_and_in_two_threads(logs, tmp_path: Path) -> None:
    pattern, more = logs(1500, 1, 4), ("--methods", "adaptive,emd", "--users", "700")
    assert cli.main(command(pattern, tmp_path / "one", *more)) == 0
    threads = ("--direct_num_workers", "2")
    assert cli.main(command(pattern, tmp_path / "two", *more, *threads)) == 0
    for name in ("runs.csv", "table.csv", "table.md"):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()


def test_a_warm_start_is_compared_with_a_cold_one(logs, tmp_path: Path) -> None:
    more = ("--methods", "adaptive,adaptive", "--users", "900", "--earlier_releases", "0,1", "--metrics", "mse,l1")
    assert cli.main(command(logs(2000, 2, 3), tmp_path / "out", *more)) == 0
    found = [one for one in runs(tmp_path / "out") if one["method"] == "adaptive"]
    assert [one["earlier_releases"] for one in found] == ["0", "0", "1", "1"]
    assert len({one["mse"] for one in found}) == 4
    assert json.loads((tmp_path / "out" / "manifest.json").read_text())["parameters"]["earlier_releases"] == [0, 1]


def compared(pattern: str, earlier: bool, shown: Path) -> tuple[list[tuple[object, ...]], list[tuple[bool, bytes]]]:
    """Outcomes under a fixed key, in the order of the cases, and what was drawn of 300 users, by cohort."""
    cases = make_cases(["adaptive"], {"depth": [5], "users": [300, 600], "earlier_releases": [0, int(earlier)]})
    key = RunKey.derive(FixedSecret(b"compared" * 4), {})
    paths = [file.path for file in match_files(pattern)]
    coder = beam.coders.registry.get_coder(object)
    with beam.Pipeline(runner=FnApiRunner()) as root:
        compare = CompareMethods(REGION, cases, 2, Evaluation(("mse", "l1")), key)
        outcomes, _ = root | beam.Create(paths) | compare
        told = outcomes | beam.Map(lambda one: (one.setting.label, one.key, one.metrics, one.entries, one.bits))
        _ = told | beam.combiners.ToList() | beam.Map(lambda found: shown.write_bytes(coder.encode(found)))
    return sorted(coder.decode(shown.read_bytes()), key=str)


def test_files_and_bundles_do_not_show_in_a_comparison(tmp_path: Path) -> None:
    table = make_logs(1500, 2, seed=5)
    shuffled = table.take(np.random.default_rng(1).permutation(table.num_rows))
    one = compared(write_files(table, tmp_path / "a", 1, row_group_size=10_000), True, tmp_path / "one")
    many = compared(write_files(shuffled, tmp_path / "b", 7, row_group_size=97), True, tmp_path / "many")
    assert one == many
    # What runs without an earlier release is the same whether others have one.
    alone = compared(str(tmp_path / "a" / "*.parquet"), False, tmp_path / "alone")
    cold = [(label.replace(", earlier_releases 0", ""), *rest) for label, *rest in one if label.endswith("releases 0")]
    mine = [(label.replace(", earlier_releases 0", ""), *rest) for label, *rest in alone if "adaptive" in label]
    assert cold == mine
    assert len(cold) == 4


def test_the_earlier_cohort_is_drawn_by_itself() -> None:
    """Two samples of 400 of 2,000 users, independent of each other: 80 are in both, give or take."""
    rng, places, spill = np.random.default_rng(2), Places(5), Spill()
    words = np.sort(rng.integers(0, 1 << 64, 2000, dtype=np.uint64))
    element = spill.store(words.data)
    key = RunKey.derive(FixedSecret(b"draws" * 5), {})
    drawn = {}
    for earlier in (False, True):
        parts = list(_DrawFn([400], 3, earlier, places, key, spill).process(element, 2000))
        assert len(parts) == 3 * (1 + earlier)
        drawn[earlier] = {(number, first): load(part) for (_, number), (first, part) in parts}
    codes = [{one: np.frombuffer(columns[1], np.uint64) for one, columns in drawn[e].items()} for e in (False, True)]
    for number in range(3):  # the cohort itself is the same with and without an earlier one
        assert np.array_equal(codes[0][number, False], codes[1][number, False])
    users = {one: set(np.frombuffer(columns[0], np.uint64).tolist()) for one, columns in drawn[True].items()}
    for one in users.values():
        assert abs(len(one) - 400) < 6.2 * np.sqrt(2000 * 0.2 * 0.8)
    assert len({frozenset(one) for one in users.values()}) == 6


def test_a_comparison_replaces_a_comparison(logs, tmp_path: Path, capsys) -> None:
    arguments = command(logs(600), tmp_path / "out", "--methods", "flat")
    assert cli.main(arguments) == 0
    assert cli.main(arguments) == 2
    assert "exists already" in capsys.readouterr().err
    assert cli.main([*arguments, "--overwrite"]) == 0


@pytest.mark.parametrize(
    ("options", "status", "words"),
    [
        (("--methods", "adaptive,flt"), 2, "method: there is no 'flt'"),
        (("--metrics", "mse,mae"), 2, "metrics: there is no 'mae'; known are mse, l1"),
        (("--metrics", "emd", "--depth", "9"), 2, "give --depth 8 or less instead of 9"),
        (("--methods", "adaptive", "--depth", "13"), 2, "at most 12"),
        (("--methods", "flat", "--depth", "13"), 2, "depth: flat queries every cell of a level, at most of level 12"),
        (("--users", "600,many"), 2, "users: must be a whole number in 1..1099511627776, got 'many'"),
        (("--methods", ""), 2, "methods: name at least one of adaptive"),
        (("--epsilon", ""), 2, "epsilon: must be a number in [0.0001, 30], got ''"),
        (("--dropout", "0.9"), 2, "the limit is 90%"),
        (("--users", "100000"), 1, "users: 100,000 are needed, and the logs have 600"),
        (("--keys", "0"), 2, "keys"),
        (("--blur", "nan"), 2, "blur"),
        (("--methods", "flat", "--calibration", "1"), 2, "calibration: is an option of adaptive"),
        (("--calibration", "0.1,0"), 2, "calibration"),
        (("--dropout", "2"), 2, "simulated_dropout"),
        (
            ("--methods", "adaptive", "--users", "300", "--earlier_releases", "0,2"),
            2,
            "earlier_releases: must be a whole",
        ),
        (
            ("--methods", "adaptive", "--users", "300", "--earlier_releases", "x"),
            2,
            "earlier_releases: must be whole numbers N,..., got 'x'",
        ),
        (("--methods", "adaptive", "--users", "300", "--earlier_releases", ""), 2, "earlier_releases"),
        (
            ("--methods", "adaptive", "--earlier_releases", "1"),
            2,
            "earlier_releases: an earlier release needs other users",
        ),
        (
            ("--methods", "flat", "--users", "300", "--earlier_releases", "1"),
            2,
            "method flat cannot start",
        ),
        (("--warm_start", "somewhere"), 2, "warm_start"),
        (("--auxiliary", "infected"), 2, "auxiliary"),
        (("--modulus", "64"), 2, "modulus: whether it holds the sums must be known before users are counted"),
    ],
)
def test_bad_requests_are_refused_by_name(
    logs, tmp_path: Path, capsys, options: tuple[str, ...], status: int, words: str
) -> None:
    assert cli.main(command(logs(600), tmp_path / "out", *options)) == status
    assert words in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_plan_in_full_and_as_a_table(capsys) -> None:
    assert cli.main(["plan", "--users", "100000"]) == 0
    shown = capsys.readouterr().out
    assert "100,000 users in 10 shards" in shown
    assert "all shards report" in shown
    assert "| devices that drop out |" in shown
    assert cli.main(["plan", "--users", "10000,100000", "--method", "adaptive,flat,emd", "--epsilon", "0.5,1"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 2 + 2 * 3 * 2
    varied = ["--emd_width", "5,10", "--trust", "secagg,central"]
    assert cli.main(["plan", "--users", "1000", "--method", "emd", *varied]) == 0
    header, _, *rows = capsys.readouterr().out.splitlines()
    assert "emd_width" in header
    assert "trust |" in header
    at = [number for number, head in enumerate(header.split("|")) if head.strip() in ("emd_width", "trust")]
    assert len({tuple(row.split("|")[number] for number in at) for row in rows}) == 4


def test_a_plan_with_a_trusted_server_speaks_of_no_shards(capsys) -> None:
    assert cli.main(["plan", "--users", "1000", "--trust", "central", "--method", "emd"]) == 0
    shown, models = capsys.readouterr().out.split("Each trust model")
    assert "| central |" in models
    assert "trusted curator" in shown
    for word in ("shard", "modulus", "overflow", "seen from"):
        assert word not in shown


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ((), "users: give the number of users"),
        (("--users", "1000", "--method", "best"), "method: there is no 'best'"),
        (("--users", "1000", "--modulus", "16"), "modulus: 16 is too small"),
        (("--users", "0"), "users"),
        (("--users", "1000", "--epsilon", "nan"), "epsilon"),
        (("--users", "1000", "--speed", "9"), "speed"),
        (("--users", "1e5"), "users: must be a whole number in 1..1099511627776, got '1e5'"),
        (("--users", "1000", "--epsilon", ""), "epsilon: must be a number in [0.0001, 30], got ''"),
        (("--users", "1000", "--method", ""), "methods: name at least one of"),
    ],
)
def test_a_bad_plan_is_refused_by_name(capsys, options: tuple[str, ...], words: str) -> None:
    assert cli.main(["plan", *options]) == 2
    assert words in capsys.readouterr().err
