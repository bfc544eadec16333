"""The jobs of sample and threshold: what they publish, and everything that can be wrong with a request or its data."""

from __future__ import annotations

import itertools
import json
import math
import os
import re
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from scipy import stats

from sfumato.pipelines.command_line import cli
from sfumato.pipelines.command_line.run import request_class
from sfumato.transforms.histogram.accountant import delta, rounds_delta
from sfumato.transforms.release.published_release import open_release
from tests.conftest import make_logs, write_files
from tests.digests import numbers_in, page_text
from tests.rejections import rejects
from tests.seeds import seeded_rng

PLAIN = {"index.html", "manifest.json"}


def table(users: int = 6000, records: int = 2) -> pa.Table:
    logs = make_logs(users, records, 0)
    rng = seeded_rng(1)
    kinds = rng.geometric(0.2, logs.num_rows)
    return (
        logs.append_column("kind", pa.array([f"kind-{'abc'[k % 3]}-{k}" for k in kinds.tolist()]))
        .append_column("code", pa.array(100 * kinds + rng.integers(0, 3, logs.num_rows)))
        .append_column("length", pa.array(np.append(rng.exponential(3, logs.num_rows - 2), [np.inf, -7.0])))
        .append_column("day", pa.array(kinds.astype(np.int32), pa.date32()))
    )


@pytest.fixture(scope="module")
def pattern(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_files(table(), tmp_path_factory.mktemp("sampled") / "logs", 4)


def run(job: str, pattern: str, output: Path, *more: str) -> int:
    return cli.main([job, "--input", pattern, "--output", str(output), "--seed", "1", *more])


def plausible(sampled: np.ndarray, mean: np.ndarray) -> np.ndarray:
    """Whether sums of independent draws with these means may be so large or small, but with probability 2e-11 each.

    A Poisson variable has heavier tails than any sum of independent events of its mean (Hoeffding, 1956).
    """
    return (stats.poisson.cdf(sampled, mean) > 1e-11) & (stats.poisson.sf(sampled - 1, mean) > 1e-11)


def unformatted(number: str) -> int:
    return int(number.replace(",", ""))


def check_guarantee(manifest: dict, epsilon: float = 1.0, most: float = 1e-8) -> dict:
    """The rounds really give what the manifest states."""
    privacy = manifest["privacy"]
    assert privacy["epsilon"] == privacy["epsilon_spent"] == epsilon
    assert privacy["delta"] == most
    (rate,) = {one["sampling_rate"] for one in privacy["rounds"]}
    (threshold,) = {one["threshold"] for one in privacy["rounds"]}
    admission = privacy["admission"]
    assert admission["epsilon"] == pytest.approx(0.01 * epsilon)
    rest = privacy["rounds_guarantee"]["epsilon"]
    assert rest + admission["epsilon"] <= epsilon * (1 + 1e-15)
    assert rounds_delta(rest, rate, threshold, len(privacy["rounds"])) <= privacy["delta_spent"] <= most
    assert privacy["rounds_guarantee"]["delta"] == privacy["delta_spent"]
    assert privacy["round_guarantee"] == {"epsilon": rest, "delta": delta(rest, rate, threshold)}
    # A quarter of the users is counted, with Laplace noise: each part is beyond this with a probability below 1e-10.
    assert abs(admission["users"] - 6000) < 6.5 * (6000 * 3) ** 0.5 + 17 * admission["noise_stddev"]
    assert "add or remove one user" in privacy["adjacency"]
    return privacy


@pytest.mark.false_alarm(1e-8)
@pytest.mark.drawn
def test_a_histogram_of_categories(pattern: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert run("histogram", pattern, tmp_path / "out", "--column", "kind") == 0
    shown = capfd.readouterr()
    assert shown.out.strip() == str(tmp_path / "out" / "index.html")
    assert "warning: The key came from a seed" in shown.err
    users, margin = map(unformatted, re.search(r"([\d,]+) users \(± ([\d,]+), 95%\)", shown.err).groups())
    assert abs(users - 6000) < 3.3 * margin
    assert margin > 1.95 * math.sqrt(3 * 6000)  # a quarter of the users is counted
    assert set(os.listdir(tmp_path / "out")) == {*PLAIN, "items.parquet", "histogram.png"}
    release = open_release(tmp_path / "out")
    privacy = check_guarantee(release.manifest)
    items = release.items
    rate, threshold = privacy["rounds"][0]["sampling_rate"], privacy["rounds"][0]["threshold"]
    assert list(items.columns) == ["item", "level", "count", "stddev", "sampled"]
    assert (items["sampled"] >= threshold).all()
    assert items["sampled"].is_monotonic_decreasing
    assert items["count"].to_numpy() == pytest.approx(items["sampled"].to_numpy() / rate)
    # About 6,000 users, each with one of two records; nothing is there that nobody has, and the frequent are all there.
    kinds = Counter(table()["kind"].to_pylist())
    assert set(items["item"]) <= set(kinds)
    frequent = {kind for kind, rows in kinds.items() if rows / 2 > release.manifest["results"]["hidden_count"] + 200}
    assert frequent
    assert frequent <= set(items["item"])
    # A user takes part with the rate, with one of two records.
    assert plausible(items["sampled"].to_numpy(), rate / 2 * items["item"].map(kinds).to_numpy()).all()
    assert release.manifest["results"]["published"] == len(items)


@pytest.mark.parametrize(
    ("options", "levels", "names"),
    [
        (["--column", "kind", "--depth", "6", "--levels", "3"], [2, 4, 6], {"kind-a", "kind-b", "kind-c"}),
        (["--column", "day", "--levels", "2"], [5, 10], None),
    ],
)
def test_hot_items_grow_from_their_prefixes(pattern: str, tmp_path: Path, options, levels, names) -> None:
    assert run("hotspots", pattern, tmp_path / "out", *options) == 0
    release = open_release(tmp_path / "out")
    privacy = check_guarantee(release.manifest)
    assert [one["level"] for one in privacy["rounds"]] == levels
    items = release.items
    assert sorted(set(items["level"])) == levels
    for above, below in itertools.pairwise(levels):
        parents = set(items["item"][items["level"] == above])
        assert {name[:above] for name in items["item"][items["level"] == below]} <= parents
    if names:
        assert set(items["item"][items["level"] == levels[-1]]) == names


@pytest.mark.slow
def test_the_same_key_gives_the_same_release_another_does_not(pattern: str, tmp_path: Path) -> None:
    for name in ("direct", "direct_threads"):
        assert run("histogram", pattern, tmp_path / name, "--column", "kind", "--runner_config", name) == 0
    one, two = ((tmp_path / name / "items.parquet").read_bytes() for name in os.listdir(tmp_path))
    assert one == two
    assert cli.main(["histogram", "--input", pattern, "--output", str(tmp_path / "c"), "--column", "kind"]) == 0
    one, other = (open_release(tmp_path / name).items for name in ("direct", "c"))
    assert one["sampled"].tolist() != other["sampled"].tolist()


@pytest.mark.false_alarm(1e-8)
def test_hotspots_hide_what_the_top_leaves_out(tmp_path: Path) -> None:
    """Three items of 2,000 users each, of which one is shown: the others are not 'at most a hundred'."""
    logs = write_files(pa.table({"user_id": range(6000), "x": ["a", "b", "c"] * 2000}), tmp_path / "logs", 2)
    assert run("hotspots", logs, tmp_path / "out", "--column", "x", "--depth", "1", "--levels", "1", "--top", "1") == 0
    results = open_release(tmp_path / "out").manifest["results"]
    assert results["published"] == 1
    # An estimate of 2,000 has a standard deviation of 140 or so, that of all users one of 150.
    assert results["hidden_count"] > 1000
    assert results["estimated_users"] == pytest.approx(6000, rel=0.2)


@pytest.mark.parametrize("population", [60000])
def test_a_wrong_population_publishes_its_refusal_alone(
    pattern: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], population: int
) -> None:
    more = ["--column", "kind", "--population", str(population), "--epsilon", "3"]
    assert run("histogram", pattern, tmp_path / "out", *more) == 1
    assert f"{population:,} users, and the logs hold about" in capsys.readouterr().err
    assert set(os.listdir(tmp_path / "out")) == PLAIN
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text())
    assert manifest["status"] == "refused"
    assert manifest["privacy"]["epsilon_spent"] == pytest.approx(0.03)


@pytest.mark.false_alarm(1e-8)
def test_nothing_raw_is_in_the_release_or_the_log(
    pattern: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """12,000 rows of 6,000 users, and categories of too few users for any threshold: none of it anywhere."""
    assert run("histogram", pattern, tmp_path / "out", "--column", "kind") == 0
    kinds = Counter(table()["kind"].to_pylist())
    rare = [kind for kind, rows in kinds.items() if rows <= 20]  # of geometric numbers there always are some
    assert rare
    manifest_text, page = ((tmp_path / "out" / name).read_text() for name in ("manifest.json", "index.html"))
    text = capfd.readouterr().err + manifest_text + page_text(page)
    assert '"kind":"bars"' in text  # the search looks at what the page carries
    published = set(open_release(tmp_path / "out").items["item"])
    for kind in rare:
        assert kind not in published
        assert f'"{kind}"' not in text
    assert "12,000" not in text
    # A noisy count is the exact one in a run of 350 or so, at a tenth of the budget in one of 2,000 or more. The same
    # exact number in three runs is no noise.
    for seed in ("2", "3"):
        more = ["--column", "kind", "--epsilon", "0.1", "--seed", seed]
        assert run("histogram", pattern, tmp_path / seed, *more) == 0
    manifests = [json.loads((tmp_path / name / "manifest.json").read_text()) for name in ("out", "2", "3")]
    assert not {6000, 12000}.intersection(*map(numbers_in, manifests))


GRID = "--region -1,50,1,51"
VISITS = "--zones tracts.geojson --id_column tract"
DAYS = "--day_column time --period 2026-11-16:2026-11-20"
LENGTH = "quantiles --column length --range 0,9"
# What precedes, and by option the values that are wrong there.
WRONG = {
    "histogram --column kind": {
        "epsilon": ("nan", "0"), "delta": ("nan", "0", "1"), "population": ("0", "20"), "items": ("-1",),
        "max_bad_fraction": ("2",), "contact": ("limited", "fixed"), "parameters": ("ours",),
        "noise": ("gaussian",), "max_items_per_user": ("3",), "max_records_per_item": ("2",), "column": ("user_id",),
        "items_file": ("nowhere",), "id_column": ("tract",), "label_column": ("name",), "radius": ("9",),
    },
    "histogram --column kind --parameters paper": {"items": ("9",), "population": ("180",)},
    "histogram --column kind --trust central": {
        "contact": ("limited",), "parameters": ("paper",), "items": ("5",), "max_items_per_user": ("0", "1001"),
        "max_records_per_item": ("0",), "noise": ("uniform",), "delta": ("0", "1"), "epsilon": ("nan",),
        "items_file": ("nowhere",),
    },
    f"histogram --cells 3 {GRID}": {"items": ("0",)},
    f"histogram --cells 5 --trust central {GRID}": {"noise": ("truncated",)},
    "hotspots --column kind": {"depth": ("0",), "top": ("0",), "levels": ("0",), "trust": ("local",)},
    "hotspots --column kind --depth 4": {"levels": ("9",)},
    "hotspots --column kind --trust central": {"contact": ("fixed",)},
    f"hotspots --depth 4 --trust central {GRID}": {"levels": ("5",)},
    f"hotspots {GRID}": {"depth": ("40",)},
    "quantiles --column length": {"range": ("1,1", "5,1", "nan,1", "0", "0,1,2")},
    LENGTH: {"quantiles": ("0.5,1", "half"), "ranges": ("3:2", "3:10", "3"), "bits": ("0",), "levels": ("13",)},
    f"{LENGTH} --method interactive": {"ranges": ("3:4",)},
}  # fmt: skip
TOGETHER = [
    ("histogram", "column"),
    ("histogram --column kind --cells 3", "column and cells"),
    ("histogram --h3 7 --zones tracts.geojson", "zones and h3"),
    (f"histogram --column kind {GRID}", "region"),
    (f"histogram {GRID}", "column"),
    ("histogram --cells 3", "region"),
    ("histogram --quadkey 9", "region"),
    (f"histogram --h3 7 --radius 9 {GRID}", "radius"),
    (f"histogram --zones tracts.geojson --id_column tract {GRID}", "region"),
    ("histogram --zones tracts.geojson", "id_column"),
    ("histogram --zones nowhere.geojson --id_column tract", "zones"),
    (f"histogram --quadkey 23 {GRID}", "quadkey"),
    (f"histogram {VISITS} --trust central --average_day", "average_day"),
    (f"histogram {VISITS} --trust central --average_day {DAYS.partition(':')[0]}", "average_day"),
    (f"histogram {VISITS} --average_day {DAYS}", "average_day"),
    (f"histogram {VISITS} --trust central --average_day {DAYS} --max_records_per_item 2", "max_records_per_item"),
    (f"histogram --column kind --trust central --average_day {DAYS}", "average_day"),
    (f"histogram --cells 3 {GRID} --trust central --average_day {DAYS}", "average_day"),
    ("hotspots", "column"),
    (f"hotspots --column kind {GRID}", "column and region"),
    (f"histogram --cells 21 {GRID}", "depth"),
    ("quantiles --range 0,1", "column"),
]


@pytest.mark.parametrize(
    ("command", "option"),
    [
        *((f"{given} --{option} {value}", option)
          for given, wrong in WRONG.items() for option, values in wrong.items() for value in values),
        *TOGETHER,
    ],
)  # fmt: skip
def test_request_rejects_wrong_options(command: str, option: str) -> None:
    job, *options = command.split()
    with rejects(option):
        request, _ = cli.parse_command(request_class(job), ["--input", "x", "--output", "out", *options])
        request.resolve()
