"""An earlier release as a starting point: what is read, what is refused, and what a job makes of it."""

from __future__ import annotations

import io
import json
import shutil
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import apache_beam as beam
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from apache_beam.runners.portability.fn_api_runner import FnApiRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.evaluation.in_memory import Rows, run_in_memory
from sfumato.pipelines import cli
from sfumato.pipelines.inputs import match_files
from sfumato.schemas.errors import RequestError
from sfumato.schemas.locations import Auxiliary, LocationColumns
from sfumato.schemas.places import Places
from sfumato.schemas.region import Grid, Region
from sfumato.schemas.tree import Tree, node_names
from sfumato.transforms.heatmap.manifest import heatmap_manifest
from sfumato.transforms.heatmap.methods import Adaptive, Flat
from sfumato.transforms.heatmap.parameters import HeatmapParameters, check_prior
from sfumato.transforms.heatmap.private_heatmap import PrivateHeatmap, bind_key
from sfumato.transforms.heatmap.release import add_up_to, cells_table, release_files
from sfumato.transforms.heatmap.request import heatmap_parameters, start_of
from sfumato.transforms.heatmap.schedule import plan
from sfumato.transforms.heatmap.state import Estimate
from sfumato.transforms.heatmap.warm_start import WarmStart, digest
from sfumato.transforms.privacy.keys import FixedSecret, RunKey
from sfumato.transforms.release.metadata import ReleaseMetadata
from sfumato.transforms.release.published_release import open_release
from tests.conftest import REGION, make_logs, write_files
from tests.digests import seal_again
from tests.jobs import oracle
from tests.jobs.heatmap.test_heatmap import KEY as JOB_KEY
from tests.jobs.heatmap.test_heatmap import PAPER, SMALL, assert_same, command
from tests.rejections import rejects
from tests.seeds import seeded_rng

KEY = RunKey.derive(FixedSecret(b"warm start" * 3), {})


DEPTH = 5


GRID = Grid(REGION, DEPTH)


MANIFEST: dict[str, Any] = {
    "job": "heatmap",
    "release_id": "monday",
    "region": asdict(REGION),
    "grid": {"depth": DEPTH, "side": 32},
    "privacy": {"epsilon": 2.0, "randomness": {"source": "key file", "safe": True}},
}


def estimate_on(tree: Tree, seed: int = 0) -> Estimate:
    rng, entries = seeded_rng(seed), len(tree.entries)
    return Estimate(tree, rng.normal(20, 30, entries), rng.uniform(0, 9, entries))


def read(estimate: Estimate, grid: Grid = GRID) -> Estimate:
    """What is read back of an estimate's table of cells, by way of Parquet."""
    file = io.BytesIO()
    pq.write_table(cells_table(estimate, grid), file)
    manifest = {**MANIFEST, "grid": {"depth": grid.depth}}
    return WarmStart.from_release(manifest, pq.read_table(io.BytesIO(file.getvalue())), grid).estimate


def same(one: Estimate, other: Estimate) -> bool:
    pairs = ((one.counts, other.counts), (one.stddev, other.stddev))
    return one.tree == other.tree and all(np.array_equal(a, b) for a, b in pairs)


def ragged_tree() -> Tree:
    """A root with three children of which one is split, a node with one child alone, and an orphan two levels below."""
    return Tree.of(DEPTH, np.array([4, 5, 6, 16, 17, 18, 19, 24, 6 * 64 + 7, 1024 + 999], dtype=np.uint64))


def crowd(users: int, categories: int = 1) -> Rows:
    rng, places = seeded_rng(3), Places(DEPTH, categories)
    codes = np.where(rng.random(users) < 0.7, rng.choice(rng.integers(0, 4**DEPTH, 4), users), 1000)
    drawn = rng.integers(0, categories, users) << (2 * DEPTH) | codes
    low = np.uint64(places.bits)
    return Rows(
        places, np.sort(rng.integers(0, 1 << 64, users, dtype=np.uint64)) >> low << low, drawn.astype(np.uint64)
    )


# --- what is read is what was published ---


def orphans() -> Tree:
    """Three siblings whose parent was collapsed: they do not make it whole, and it must not come back."""
    return Tree.of(DEPTH, np.array([4, 5, 6, 112, 113, 114], dtype=np.uint64))


@pytest.mark.parametrize("tree", [*(Tree.uniform(DEPTH, level) for level in (0, 3, 5)), ragged_tree(), orphans()])
def test_cells_are_read_back_as_the_estimate_that_they_are_of(tree: Tree) -> None:
    estimate = estimate_on(tree)
    assert same(read(estimate), estimate)


@given(st.sets(st.integers(1, (4 ** (DEPTH + 1) - 1) // 3), max_size=60), st.integers(0, 9))
@settings(max_examples=100, deadline=None)
def test_trees_of_any_nodes_are_read_back(numbers: set[int], seed: int) -> None:
    """Partial nodes and orphans; a node that is absent though all its children are there owns nothing either way."""
    levels = [4**level for level in range(DEPTH + 1)]
    nodes, first = [], 0
    for size in levels:  # the numbers, level by level, as nodes
        nodes += [size + number - first for number in numbers if first <= number < first + size]
        first += size
    estimate = estimate_on(Tree.of(DEPTH, np.array(nodes, dtype=np.uint64)), seed)
    found = read(estimate)
    assert np.array_equal(found.tree.entries, estimate.tree.entries)
    assert np.array_equal(found.tree.index.boundaries, estimate.tree.index.boundaries)
    assert np.array_equal(found.tree.index.owner, estimate.tree.index.owner)
    assert np.array_equal(found.counts, estimate.counts)


def test_the_order_of_the_cells_does_not_matter() -> None:
    estimate = estimate_on(ragged_tree())
    cells = cells_table(estimate, GRID)
    shuffled = cells.take(seeded_rng(1).permutation(cells.num_rows))
    assert same(WarmStart.from_release(MANIFEST, shuffled, GRID).estimate, estimate)


def test_the_finest_grid_of_all_is_read_back() -> None:
    deepest = np.uint64(4**20 + 4**20 - 1)  # the south-eastern corner, 41 bits
    estimate = estimate_on(Tree.of(20, np.array([deepest, deepest >> np.uint64(2)])))
    assert same(read(estimate, Grid(REGION, 20)), estimate)


@pytest.mark.parametrize(
    ("method", "values"),
    [
        ("adaptive", {}),
        ("adaptive", {"cohorts": "disjoint"}),
        ("adaptive", {"schedule": "paper", "estimator": "last"}),
        ("adaptive", {"schedule": "paper"}),
        ("adaptive", {"categories": 2}),
        ("flat", {"level": 3}),
        ("flat", {"categories": 3}),
        ("adaptive_grid", {}),
        ("spatial_decomposition", {}),
        ("emd", {"contribution": "one"}),
    ],
)
def test_a_release_by_any_method_is_read_back_as_its_map(baselines: None, method: str, values: dict[str, Any]) -> None:
    categories = values.pop("categories", 1) if "categories" in values else 1
    common = {"depth": DEPTH, "population": 3000, "shard_size": 300, "dropout": 0.5, "epsilon": 2.0}
    parameters = heatmap_parameters(method, {**common, **values}, categories)
    names = ("false", "true") if categories == 2 else tuple("abc")
    columns = LocationColumns(auxiliary=Auxiliary("kind", names) if categories > 1 else None)
    metadata = ReleaseMetadata(
        "heatmap", "monday", "now", "seed", False, {**parameters.metadata(), "columns": columns.metadata()}
    )
    state = run_in_memory(crowd(3000, categories), 3000, parameters, KEY)
    made = add_up_to(parameters.method.decode(state, DEPTH), state.users_estimate()[0])
    if values.get("schedule") == "paper":
        assert not made.tree.complete
    files = release_files(state, parameters, metadata, GRID)
    cells = pq.read_table(io.BytesIO(files["cells.parquet"]))
    start = WarmStart.from_release(heatmap_manifest(state, parameters, metadata, GRID), cells, GRID)
    assert same(start.estimate, made)
    assert start.metadata() == {"release_id": "monday", "epsilon": 2.0, "digest": digest(made)}
    assert not start.safe  # by a seed
    # It serves: the next release asks once, for everything.
    warm = replace(parameters, method=Adaptive(), contribution=None, gamma=None)
    again = run_in_memory(crowd(3000, categories), 3000, warm, KEY, start.estimate)
    assert [result.spent.epsilon for result in again.results] == [2.0 - again.population.epsilon]
    assert np.isfinite(warm.method.decode(again, DEPTH).counts).all()


@pytest.mark.parametrize("value", [0.0, -3.0])
def test_a_map_of_nobody_is_a_start_as_well(value: float) -> None:
    tree = ragged_tree()
    nobody = Estimate(tree, np.full(len(tree.entries), value), np.zeros(len(tree.entries)))
    for method in (Adaptive(), Adaptive(schedule="lean"), Adaptive(schedule="paper", estimator="last")):
        parameters = HeatmapParameters(depth=DEPTH, population=3000, shard_size=300, dropout=0.5, method=method)
        state = run_in_memory(crowd(3000), 3000, parameters, KEY, nobody)
        assert state.budget.spent == 1.0
        assert np.isfinite(method.decode(state, DEPTH).counts).all()


def test_the_papers_schedule_starts_from_the_earlier_tree() -> None:
    parameters = HeatmapParameters(
        depth=DEPTH, population=3000, shard_size=300, dropout=0.5, method=Adaptive(schedule="paper", estimator="last")
    )
    state = run_in_memory(crowd(3000), 3000, parameters, KEY, estimate_on(ragged_tree()))
    assert state.results[0].encoding.tree == ragged_tree()


# --- damage ---


def cells_of(tree: Tree | None = None) -> pa.Table:
    return cells_table(estimate_on(tree or Tree.uniform(DEPTH, 2)), GRID)


def with_column(name: str, values: list[Any]) -> pa.Table:
    cells = cells_of()
    return cells.set_column(cells.schema.get_field_index(name), name, pa.array(values))


def changed(name: str, value: Any, place: int = 3) -> pa.Table:
    values = cells_of()[name].to_pylist()
    values[place] = value
    return with_column(name, values)


LACKS = "the release's manifest lacks its region, grid or guarantee"


DAMAGED = "warm_start: the release's cells are damaged"


@pytest.mark.parametrize(
    ("cells", "words"),
    [
        (lambda: changed("count", float("nan")), "no numbers"),
        (lambda: changed("count", float("inf")), "no numbers"),
        (lambda: changed("count", None), "no numbers"),
        (lambda: with_column("count", ["many"] * 16), ""),
        (lambda: with_column("count", [[1.0]] * 16), ""),
        (lambda: changed("stddev", -1e-9), "no numbers"),
        (lambda: changed("stddev", float("nan")), "no numbers"),
        (lambda: cells_of().slice(1), "do not cover"),
        (lambda: cells_of().slice(0, 15), "do not cover"),
        (lambda: cells_of().slice(0, 0), ""),
        (lambda: pa.concat_tables([cells_of(), cells_of().slice(0, 1)]), "repeat"),
        (lambda: changed("cell_id", "r00"), "repeat"),  # twice the first
        (lambda: changed("cell_id", "x"), "'x' is no cell id"),
        (lambda: changed("cell_id", ""), "'' is no cell id"),
        (lambda: changed("cell_id", "r04"), "'r04' is no cell id"),
        (lambda: changed("cell_id", "r0 1"), "'r0 1' is no cell id"),
        (lambda: changed("cell_id", "R01"), "'R01' is no cell id"),
        (lambda: changed("cell_id", "01"), "'01' is no cell id"),
        (lambda: changed("cell_id", "rr01"), "'rr01' is no cell id"),
        (lambda: changed("cell_id", "r0r1"), "'r0r1' is no cell id"),
        (lambda: changed("cell_id", "r٣"), "is no cell id"),  # a digit, but not one of ours
        (lambda: changed("cell_id", "r" + 40 * "0"), "is no cell id"),
        (lambda: changed("cell_id", None), "None is no cell id"),
        (lambda: with_column("cell_id", list(range(16))), "0 is no cell id"),
        (lambda: changed("cell_id", "r" + (DEPTH + 1) * "3"), "is no cell id: r and at most 5 digits 0 to 3"),
        (lambda: changed("cell_id", "r" + 30 * "3"), "is no cell id: r and at most 5 digits 0 to 3"),
        (lambda: cells_of().drop_columns(["stddev"]), "stddev"),
        (lambda: cells_of().drop_columns(["count"]), "count"),
        (lambda: cells_of().drop_columns(["cell_id"]), "cell_id"),
    ],
)
def test_damaged_cells_are_refused(cells: Callable[[], pa.Table], words: str) -> None:
    with pytest.raises(RequestError) as caught:
        WarmStart.from_release(MANIFEST, cells(), GRID)
    assert str(caught.value).startswith(DAMAGED)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("manifest", "words"),
    [
        ({**MANIFEST, "job": "histogram"}, "a heatmap's release is needed, this one is of 'histogram'"),
        ({}, "a heatmap's release is needed, this one is of None"),
        ({"job": "heatmap"}, LACKS),
        ({**MANIFEST, "region": None}, LACKS),
        ({**MANIFEST, "region": [1, 2, 3, 4]}, LACKS),
        ({**MANIFEST, "region": {**MANIFEST["region"], "west": "far"}}, LACKS),
        ({**MANIFEST, "grid": {}}, LACKS),
        ({**MANIFEST, "grid": {"depth": None}}, LACKS),
        ({**MANIFEST, "privacy": {}}, LACKS),
        ({**MANIFEST, "privacy": None}, LACKS),
        ({**MANIFEST, "privacy": {"epsilon": 1.0}}, LACKS),
        ({**MANIFEST, "privacy": {**MANIFEST["privacy"], "epsilon": "1 or so"}}, LACKS),
        ({**MANIFEST, "privacy": {**MANIFEST["privacy"], "epsilon": float("nan")}}, LACKS),
        ({**MANIFEST, "privacy": {**MANIFEST["privacy"], "epsilon": float("inf")}}, LACKS),
        ({**MANIFEST, "privacy": {**MANIFEST["privacy"], "epsilon": 0}}, LACKS),
        ({**MANIFEST, "privacy": {**MANIFEST["privacy"], "randomness": "fine"}}, LACKS),
        ({**MANIFEST, "region": {**MANIFEST["region"], "west": -2.0}}, "is of region -2,50,1,51"),
        ({**MANIFEST, "region": {**MANIFEST["region"], "west": float("nan")}}, "west must be a finite number"),
        ({**MANIFEST, "grid": {"depth": 6}}, "has depth 6, this heatmap 5; give the same"),
    ],
)
def test_other_jobs_regions_and_depths_are_refused(manifest: dict[str, Any], words: str) -> None:
    with pytest.raises(RequestError) as caught:
        WarmStart.from_release(manifest, cells_of(), GRID)
    assert str(caught.value).startswith("warm_start: ")
    assert words in str(caught.value)


@pytest.mark.parametrize("safe", [False, None, 1, "true"])
def test_only_what_says_so_has_a_key_that_nobody_can_guess(safe: object) -> None:
    privacy = {**MANIFEST["privacy"], "randomness": {"source": "somewhere", "safe": safe}}
    assert not WarmStart.from_release({**MANIFEST, "privacy": privacy}, cells_of(), GRID).safe
    assert WarmStart.from_release(MANIFEST, cells_of(), GRID).safe


@pytest.mark.parametrize("method", [Flat(), Flat(estimator="bayes")])
def test_methods_that_start_from_nothing_are_refused(method: Flat) -> None:
    parameters = HeatmapParameters(depth=DEPTH, method=method)
    for build in (check_prior, lambda prior, own: PrivateHeatmap(REGION, own, KEY, prior=prior)):
        with rejects("warm_start"):
            build(estimate_on(ragged_tree()), parameters)
    check_prior(None, parameters)


def test_a_map_of_another_depth_is_refused() -> None:
    with rejects("warm_start"):
        check_prior(estimate_on(ragged_tree()), HeatmapParameters(depth=6))


# --- keys ---


def test_each_earlier_release_has_noise_of_its_own() -> None:
    """One key, one input: the question may be the same, so the noise must not be."""
    parameters, columns = HeatmapParameters(depth=DEPTH), LocationColumns()
    one = estimate_on(Tree.uniform(DEPTH, 2))
    priors = [
        None,
        one,
        replace(one, counts=one.counts + 1e-9),
        replace(one, stddev=one.stddev * 2),
        estimate_on(Tree.uniform(DEPTH, 3)),
        estimate_on(ragged_tree()),
    ]
    keys = [bind_key(KEY, REGION, parameters, columns, prior).subkey("shard noise 1") for prior in priors]
    assert len(set(keys)) == len(priors)
    assert keys[1] == bind_key(KEY, REGION, parameters, columns, read(one)).subkey("shard noise 1")
    elsewhere = Region(-1.0, 50.0, 1.0, 51.5)
    assert bind_key(KEY, elsewhere, parameters, columns, one).subkey("shard noise 1") not in keys


def test_a_digest_is_of_nodes_counts_and_deviations() -> None:
    tree = ragged_tree()
    one = estimate_on(tree)
    assert digest(one) == digest(Estimate(Tree.of(DEPTH, tree.nodes[::-1]), one.counts.copy(), one.stddev.copy()))
    moved = np.roll(one.counts, 1)
    others = [replace(one, counts=moved), replace(one, stddev=np.roll(one.stddev, 1)), estimate_on(tree, 1)]
    assert digest(one) not in {digest(other) for other in others}
    assert len(node_names(tree.entries)) == len(one.counts)


def test_what_is_asked_depends_on_the_earlier_map_and_public_figures_alone() -> None:
    parameters = HeatmapParameters(depth=DEPTH, population=3000, shard_size=300, dropout=0.5)
    prior = estimate_on(Tree.uniform(DEPTH, 3))
    states = [run_in_memory(crowd(users), 3000, parameters, KEY, prior) for users in (2500, 3000)]
    assert states[0].results[0].encoding == states[1].results[0].encoding
    asked = plan(states[0].population, states[0].budget.first(0), parameters, prior).query
    assert asked is not None
    assert asked.encoding == states[0].results[0].encoding
    assert asked.shard_range is None  # all shards, whose users have nothing else to answer


def test_nights_that_add_up_make_a_finer_tree_and_another_digest() -> None:
    """The digest binds the key to what shapes the query."""
    counts = seeded_rng(1).gamma(0.5, 20_000 / 128, 4**4)
    once = Estimate(Tree.uniform(DEPTH, 4), counts, np.full(4**4, 10.0))
    many = replace(once, memory=16.0)
    assert digest(once) != digest(many) != digest(replace(once, memory=8.0))
    parameters = HeatmapParameters(depth=DEPTH, epsilon=0.1, population=20_000)
    states = [run_in_memory(crowd(20_000), 20_000, parameters, KEY, prior) for prior in (once, many)]
    entries = [len(state.results[0].tree.entries) for state in states]
    assert entries[1] > entries[0]


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_files(make_logs(3000, 2, seed=0), tmp_path_factory.mktemp("logs"), 3)


@pytest.fixture(scope="module")
def monday(logs: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("releases") / "on_monday"
    assert cli.main(command(logs, output, "--release_id", "monday")) == 0
    return output


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, PAPER, {"trust": "central"}], ids=["default", "paper", "central"])
def test_the_job_equals_the_oracle(logs: str, monday: Path, tmp_path: Path, options: dict[str, str]) -> None:
    start = start_of(open_release(monday), Grid(REGION, SMALL["depth"]))
    parameters, out = heatmap_parameters("adaptive", {**SMALL, **options}), tmp_path / "state"
    paths = [file.path for file in match_files(logs)]
    coder = beam.coders.registry.get_coder(object)
    with beam.Pipeline(runner=FnApiRunner()) as root:
        heatmap = PrivateHeatmap(REGION, parameters, JOB_KEY, prior=start.estimate)
        _ = root | beam.Create(paths) | heatmap | beam.Map(lambda found: out.write_bytes(coder.encode(found)))
    state = coder.decode(out.read_bytes())
    assert_same(state, oracle.heatmap(logs, REGION, parameters, JOB_KEY, prior=start.estimate))
    assert state.budget.spent == 4.0
    if options != PAPER:  # nothing is left to find out before the measurement
        assert len(state.results) == 1


def test_a_release_says_from_which_it_started_and_not_where_that_stood(logs: str, monday: Path, tmp_path: Path) -> None:
    assert cli.main(command(logs, tmp_path / "out", "--warm_start", str(monday), "--release_id", "tuesday")) == 0
    release, before = open_release(tmp_path / "out"), start_of(open_release(monday), Grid(REGION, 6))
    published = open_release(monday)
    assert np.array_equal(np.sort(before.estimate.counts), np.sort(published.cells["count"].to_numpy()))
    assert release.manifest["parameters"]["warm_start"] == {
        "release_id": "monday",
        "epsilon": 4.0,
        "digest": digest(before.estimate),
    }
    assert published.manifest["parameters"]["warm_start"] is None
    (asked,) = release.manifest["privacy"]["sub_queries"]
    assert asked["epsilon"] + release.manifest["privacy"]["population"]["epsilon"] == 4.0
    assert asked["shards"] == 10
    assert release.manifest["privacy"]["composition"] == "sequential"
    for file in (tmp_path / "out").iterdir():
        content = file.read_bytes()
        for secret in (monday.name, str(monday.parent)):
            assert secret.encode() not in content


@pytest.mark.slow
def test_another_earlier_release_gives_other_noise(logs: str, monday: Path, tmp_path: Path) -> None:
    """By seed and release id everything else is the same; the earlier map differs in one count's last place."""
    copy = tmp_path / "copy"
    shutil.copytree(monday, copy)
    cells = pq.read_table(copy / "cells.parquet")
    counts = cells["count"].to_numpy().copy()
    counts[0] = np.nextafter(counts[0], np.inf)
    pq.write_table(cells.set_column(cells.schema.get_field_index("count"), "count", [counts]), copy / "cells.parquet")
    seal_again(copy)
    starts = {"first": monday, "second": copy, "again": monday}
    found = {}
    for name, start in starts.items():
        assert cli.main(command(logs, tmp_path / name, "--warm_start", str(start), "--release_id", "tuesday")) == 0
        found[name] = open_release(tmp_path / name)
    assert np.array_equal(found["first"].density, found["again"].density)
    assert not np.array_equal(found["first"].density, found["second"].density)
    digests = {one.manifest["parameters"]["warm_start"]["digest"] for one in found.values()}
    assert len(digests) == 2


@pytest.mark.slow
def test_rates_start_from_a_release_without_and_with_them(monday: Path, tmp_path: Path) -> None:
    table = make_logs(3000, 1, seed=0)
    infected = seeded_rng(1).random(table.num_rows) < 0.3
    pattern = write_files(table.append_column("infected", [infected]), tmp_path / "logs", 2)
    rates = ("--auxiliary", "infected")
    assert cli.main(command(pattern, tmp_path / "one", *rates, "--warm_start", str(monday))) == 0
    assert cli.main(command(pattern, tmp_path / "two", *rates, "--warm_start", str(tmp_path / "one"))) == 0
    assert "rate" in open_release(tmp_path / "two").cells.columns
    assert len(open_release(tmp_path / "two").manifest["privacy"]["sub_queries"]) == 1


# --- what is no release to start from ---


def refused(capsys: pytest.CaptureFixture[str], logs: str, output: Path, *more: str) -> str:
    """The message with which the job ends, before any work."""
    assert cli.main(command(logs, output, *more)) == 2
    assert not output.exists()
    error = capsys.readouterr().err
    assert "to read" not in error
    assert "Traceback" not in error
    return error


def test_a_folder_without_a_release(logs: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "empty").mkdir()
    for place in (tmp_path / "empty", tmp_path / "nowhere", Path(logs).parent / "log-0.parquet"):
        error = refused(capsys, logs, tmp_path / "out", "--warm_start", str(place))
        assert f"warm_start: {place}: no release here" in error
    assert "warm_start: : no release here" in refused(capsys, logs, tmp_path / "out", "--warm_start", "")


@pytest.mark.parametrize("manifest", ["[]", "7", "null", '"text"', "{}", "{", ""])
def test_a_folder_with_another_manifest(
    logs: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], manifest: str
) -> None:
    (tmp_path / "strange").mkdir()
    (tmp_path / "strange" / "manifest.json").write_text(manifest)
    error = refused(capsys, logs, tmp_path / "out", "--warm_start", str(tmp_path / "strange"))
    assert f"warm_start: {tmp_path / 'strange'}: " in error


def test_another_jobs_release_and_an_evaluation(logs: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shared = ["--input", logs, "--region", "-1,50,1,51", "--seed", "1"]
    assert cli.main(["histogram", "--output", str(tmp_path / "cells"), "--cells", "4", *shared]) == 0
    (tmp_path / "table").mkdir()
    (tmp_path / "table" / "manifest.json").write_text('{"format": "sfumato-evaluation/2"}')
    capsys.readouterr()
    error = refused(capsys, logs, tmp_path / "out", "--warm_start", str(tmp_path / "cells"))
    assert "warm_start: a heatmap's release is needed, this one is of 'histogram'" in error
    error = refused(capsys, logs, tmp_path / "out", "--warm_start", str(tmp_path / "table"))
    assert f"warm_start: {tmp_path / 'table'}: an evaluation on exact data" in error


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--region", "-1,50,1,51.5"), "warm_start: the release is of region -1,50,1,51"),
        (("--depth", "7"), "warm_start: the release has depth 6, this heatmap 7; give the same"),
        (("--method", "flat"), "warm_start: method flat has no warm start; use adaptive"),
        (("--method", "emd"), "warm_start: method emd has no warm start; use adaptive"),
    ],
)
def test_a_heatmap_that_does_not_fit(
    logs: str, monday: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], options: tuple[str, ...], words: str
) -> None:
    assert words in refused(capsys, logs, tmp_path / "out", "--warm_start", str(monday), *options)


@pytest.mark.parametrize("damage", ["cut", "missing", "empty", "noise", "column", "geometry"])
def test_a_damaged_release(
    logs: str, monday: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], damage: str
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(monday, copy)
    file = copy / "cells.parquet"
    content = file.read_bytes()
    if damage == "missing":
        file.unlink()
    elif damage == "column":
        pq.write_table(pq.read_table(file).drop_columns(["stddev"]), file)
        seal_again(copy)
    elif damage == "geometry":  # is not read: no damage to what is
        pq.write_table(pq.read_table(file).drop_columns(["geometry"]), file)
        seal_again(copy)
        assert cli.main(command(logs, tmp_path / "out", "--warm_start", str(copy))) == 0
        return
    else:
        middle = len(content) // 2
        file.write_bytes(
            {"cut": content[:middle], "empty": b"", "noise": content[:9] + bytes(middle) + content[-middle:]}[damage]
        )
    error = refused(capsys, logs, tmp_path / "out", "--warm_start", str(copy))
    expected = {"missing": "cells.parquet is gone, which was published", "column": "the release's cells are damaged ("}
    assert "warm_start: " in error
    assert expected.get(damage, "cells.parquet is damaged") in error


def test_a_release_whose_noise_anybody_can_take_away(
    logs: str, monday: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It came from a seed. What is as unsafe itself may start from it."""
    arguments = command(logs, tmp_path / "out", "--warm_start", str(monday))
    at = arguments.index("--seed")
    assert cli.main([*arguments[:at], *arguments[at + 2 :]]) == 2
    error = capsys.readouterr().err
    assert "warm_start: anybody can guess the key of that release" in error
    assert "to read" not in error
    assert not (tmp_path / "out").exists()


def test_a_manifest_without_its_grid(
    logs: str, monday: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(monday, tmp_path / "copy")
    manifest = json.loads((monday / "manifest.json").read_text())
    del manifest["grid"]
    (tmp_path / "copy" / "manifest.json").write_text(json.dumps(manifest))
    error = refused(capsys, logs, tmp_path / "out", "--warm_start", str(tmp_path / "copy"))
    assert "warm_start: the release's manifest lacks its region, grid or guarantee" in error
