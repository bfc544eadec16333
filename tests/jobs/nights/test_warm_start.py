"""An earlier release as a starting point: what is read, what is refused, and what a job makes of it."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.evaluation.in_memory import Rows, run_in_memory
from sfumato.pipelines.command_line import cli
from sfumato.schemas.locations import Auxiliary, LocationColumns
from sfumato.schemas.region import Grid, Places, Region
from sfumato.schemas.tree import Tree
from sfumato.transforms.counting.manifest import heatmap_manifest
from sfumato.transforms.counting.methods import Adaptive, Flat
from sfumato.transforms.counting.parameters import CountParameters, check_prior
from sfumato.transforms.counting.state import Estimate
from sfumato.transforms.counting.sub_queries import first_state
from sfumato.transforms.heatmap.release import add_up_to, cells_table, release_files
from sfumato.transforms.heatmap.request import heatmap_parameters, start_of
from sfumato.transforms.heatmap.transform import CountHeatmap, bind_key
from sfumato.transforms.nights.warm_start import WarmStart, digest
from sfumato.transforms.privacy.keys import FixedSecret, RunKey
from sfumato.transforms.release.metadata import ReleaseMetadata
from sfumato.transforms.release.published_release import open_release
from tests.conftest import REGION, make_logs, write_files
from tests.jobs import oracle
from tests.jobs.heatmap.test_heatmap import KEY as JOB_KEY
from tests.jobs.heatmap.test_heatmap import PAPER, SMALL, assert_same, command, run_state
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


def orphans() -> Tree:
    """Three siblings whose parent was collapsed: they do not make it whole, and it must not come back."""
    return Tree.of(DEPTH, np.array([4, 5, 6, 112, 113, 114], dtype=np.uint64))


@pytest.mark.parametrize("tree", [*(Tree.uniform(DEPTH, level) for level in (0, 3, 5)), ragged_tree(), orphans()])
def test_warm_start_reads_the_estimate_of_the_cells(tree: Tree) -> None:
    estimate = estimate_on(tree)
    assert same(read(estimate), estimate)


@given(st.sets(st.integers(1, (4 ** (DEPTH + 1) - 1) // 3), max_size=60), st.integers(0, 9))
@settings(max_examples=50, deadline=None)
def test_warm_start_reads_trees_of_any_nodes(numbers: set[int], seed: int) -> None:
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


def test_warm_start_reads_the_finest_grid() -> None:
    deepest = np.uint64(4**20 + 4**20 - 1)  # the south-eastern corner, 41 bits
    estimate = estimate_on(Tree.of(20, np.array([deepest, deepest >> np.uint64(2)])))
    assert same(read(estimate, Grid(REGION, 20)), estimate)


@pytest.mark.parametrize(
    ("method", "values"),
    [
        ("adaptive", {"schedule": "paper", "estimator": "last"}),
        ("adaptive", {"categories": 2}),
        ("flat", {"categories": 3}),
        ("spatial_decomposition", {}),
        ("emd", {"contribution": "one"}),
    ],
)
def test_warm_start_reads_a_release_by_any_method(baselines: None, method: str, values: dict[str, Any]) -> None:
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
    assert [result.cost for result in again.results] == [2.0 - again.population.cost]
    assert np.isfinite(warm.method.decode(again, DEPTH).counts).all()


@pytest.mark.parametrize("value", [0.0, -3.0])
def test_warm_start_from_a_map_of_nobody(value: float) -> None:
    tree = ragged_tree()
    nobody = Estimate(tree, np.full(len(tree.entries), value), np.zeros(len(tree.entries)))
    for method in (Adaptive(), Adaptive(schedule="lean"), Adaptive(schedule="paper", estimator="last")):
        parameters = CountParameters(depth=DEPTH, population=3000, shard_size=300, dropout=0.5, method=method)
        state = run_in_memory(crowd(3000), 3000, parameters, KEY, nobody)
        assert state.budget.spent == 1.0
        assert np.isfinite(method.decode(state, DEPTH).counts).all()


def test_papers_schedule_starts_from_the_earlier_tree() -> None:
    parameters = CountParameters(
        depth=DEPTH, population=3000, shard_size=300, dropout=0.5, method=Adaptive(schedule="paper", estimator="last")
    )
    state = run_in_memory(crowd(3000), 3000, parameters, KEY, estimate_on(ragged_tree()))
    assert state.results[0].encoding.tree == ragged_tree()


# No names of cells of this grid; "r00" is there already, and the Arabic digit is not one of ours.
NO_CELLS = ("r00", "r04", "r٣", None, "r" + (DEPTH + 1) * "3")


def cells_of(tree: Tree | None = None) -> pa.Table:
    return cells_table(estimate_on(tree or Tree.uniform(DEPTH, 2)), GRID)


def with_column(name: str, values: list[Any]) -> pa.Table:
    cells = cells_of()
    return cells.set_column(cells.schema.get_field_index(name), name, pa.array(values))


def changed(name: str, value: Any, place: int = 3) -> pa.Table:
    values = cells_of()[name].to_pylist()
    values[place] = value
    return with_column(name, values)


@pytest.mark.parametrize(
    "cells",
    [
        lambda: changed("count", float("nan")),
        lambda: changed("count", None),
        lambda: with_column("count", ["many"] * 16),
        lambda: changed("stddev", -1e-9),
        lambda: cells_of().slice(1),
        lambda: cells_of().slice(0, 0),
        lambda: pa.concat_tables([cells_of(), cells_of().slice(0, 1)]),
        lambda: with_column("cell_id", list(range(16))),
        *(lambda name=name: cells_of().drop_columns([name]) for name in ("stddev", "count", "cell_id")),
        *(lambda name=name: changed("cell_id", name) for name in NO_CELLS),
    ],
)
def test_warm_start_rejects_damaged_cells(cells: Callable[[], pa.Table]) -> None:
    with rejects("warm_start"):
        WarmStart.from_release(MANIFEST, cells(), GRID)


def stating(part: str, **values: Any) -> dict[str, Any]:
    """The manifest with other values in one of its parts."""
    return {**MANIFEST, part: {**MANIFEST[part], **values}}


@pytest.mark.parametrize(
    "manifest",
    [
        {},
        {**MANIFEST, "job": "histogram"},
        {**MANIFEST, "region": None},
        {**MANIFEST, "grid": {}},
        {**MANIFEST, "privacy": {}},
        stating("grid", depth=6),
        stating("region", west=-2.0),
        stating("region", west=float("nan")),
        stating("privacy", epsilon=float("nan")),
        stating("privacy", epsilon=0),
        stating("privacy", randomness="fine"),
    ],
)
def test_warm_start_rejects_other_manifests(manifest: dict[str, Any]) -> None:
    with rejects("warm_start"):
        WarmStart.from_release(manifest, cells_of(), GRID)


@pytest.mark.parametrize("safe", [False, None, 1, "true"])
def test_warm_start_is_safe_only_where_the_manifest_says_so(safe: object) -> None:
    manifest = stating("privacy", randomness={"source": "somewhere", "safe": safe})
    assert not WarmStart.from_release(manifest, cells_of(), GRID).safe
    assert WarmStart.from_release(MANIFEST, cells_of(), GRID).safe


@pytest.mark.parametrize(
    "parameters",
    [
        CountParameters(depth=DEPTH, method=Flat()),
        CountParameters(depth=DEPTH, method=Flat(estimator="bayes")),
        CountParameters(depth=6),  # another one
    ],
)
def test_check_prior_rejects_methods_and_depths(parameters: CountParameters) -> None:
    with rejects("warm_start"):
        check_prior(estimate_on(ragged_tree()), parameters)
    with rejects("warm_start"):
        CountHeatmap(REGION, parameters, KEY, prior=estimate_on(ragged_tree()))
    check_prior(None, parameters)


def test_bind_key_is_another_for_each_earlier_release() -> None:
    """One key, one input: the question may be the same, so the noise must not be."""
    parameters, columns = CountParameters(depth=DEPTH), LocationColumns()
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


def test_warm_start_asks_by_earlier_map_and_public_figures() -> None:
    parameters = CountParameters(depth=DEPTH, population=3000, shard_size=300, dropout=0.5)
    prior = estimate_on(Tree.uniform(DEPTH, 3))
    states = [run_in_memory(crowd(users), 3000, parameters, KEY, prior) for users in (2500, 3000)]
    assert states[0].results[0].encoding == states[1].results[0].encoding
    first_query = first_state(states[0].population, states[0].budget.first(1), parameters, prior).query
    assert first_query is not None
    assert first_query.encoding == states[0].results[0].encoding
    assert first_query.shard_range is None  # all shards, whose users have nothing else to answer


def test_memory_of_nights_makes_a_finer_tree() -> None:
    """The digest binds the key to what shapes the query."""
    counts = seeded_rng(1).gamma(0.5, 20_000 / 128, 4**4)
    once = Estimate(Tree.uniform(DEPTH, 4), counts, np.full(4**4, 10.0))
    many = replace(once, memory=16.0)
    assert digest(once) != digest(many) != digest(replace(once, memory=8.0))
    parameters = CountParameters(depth=DEPTH, epsilon=0.1, population=20_000)
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
def test_job_with_warm_start_equals_the_oracle(logs: str, monday: Path, options: dict[str, str]) -> None:
    start = start_of(open_release(monday), Grid(REGION, SMALL["depth"])).estimate
    parameters = heatmap_parameters("adaptive", {**SMALL, **options})
    state = run_state(logs, parameters, prior=start)
    assert_same(state, oracle.heatmap(logs, REGION, parameters, JOB_KEY, prior=start))
    assert state.budget.spent == 4.0
    if options != PAPER:  # nothing is left to find out before the measurement
        assert len(state.results) == 1


def refused(capsys: pytest.CaptureFixture[str], logs: str, output: Path, *more: str, seed: bool = True) -> None:
    """Asserts that the job refuses its warm start before any work."""
    arguments = command(logs, output, *more)
    if not seed:
        at = arguments.index("--seed")
        del arguments[at : at + 2]
    assert cli.main(arguments) == 2
    assert not output.exists()
    error = capsys.readouterr().err
    assert "warm_start: " in error
    assert "to read" not in error
    assert "Traceback" not in error


def test_warm_start_rejects_folders_without_a_release(
    logs: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "empty").mkdir()
    for place in (tmp_path / "empty", tmp_path / "nowhere", Path(logs).parent / "log-0.parquet", ""):
        refused(capsys, logs, tmp_path / "out", "--warm_start", str(place))
    strange = tmp_path / "strange" / "manifest.json"
    strange.parent.mkdir()
    for manifest in ("[]", "{", '{"format": "sfumato-changes/1"}'):
        strange.write_text(manifest)
        refused(capsys, logs, tmp_path / "out", "--warm_start", str(strange.parent))


@pytest.mark.parametrize(
    "options",
    [
        ("--region", "-1,50,1,51.5"),
        ("--depth", "7"),
        ("--method", "flat"),
        ("--time_column", "time", "--slots", "hour"),
    ],
)
def test_warm_start_rejects_heatmaps_that_do_not_fit(
    logs: str, monday: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], options: tuple[str, ...]
) -> None:
    refused(capsys, logs, tmp_path / "out", "--warm_start", str(monday), *options)


def test_warm_start_rejects_noise_that_anybody_can_take_away(
    logs: str, monday: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It came from a seed. What is as unsafe itself may start from it."""
    refused(capsys, logs, tmp_path / "out", "--warm_start", str(monday), seed=False)
