"""Building a model as a pipeline against the same in memory, over files, bundles, threads and processes."""

from __future__ import annotations

import pickle
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import apache_beam as beam
import numpy as np
import pyarrow as pa
import pytest
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.pipeline import PipelineVisitor
from apache_beam.runners.portability.fn_api_runner import FnApiRunner
from hypothesis import given
from hypothesis import strategies as st

from sfumato.pipelines.runners.runner_settings import LocalRunner
from sfumato.schemas.locations import LocationColumns
from sfumato.schemas.region import Places
from sfumato.transforms.counting.parameters import CountParameters
from sfumato.transforms.locations.spill import Spill
from sfumato.transforms.privacy.keys import FixedSecret, RunKey
from sfumato.transforms.ranges.field_counts import CollectionSpec, ExactCounts, NoisyGrid
from sfumato.transforms.ranges.methods import RangeMethod
from sfumato.transforms.ranges.model import GridModel
from sfumato.transforms.ranges.plan import METHODS, Built, RangesPlan, collect, collected_from_heatmap
from sfumato.transforms.ranges.transform import BuildRanges, SumExactCounts
from tests.conftest import REGION, make_logs, write_files
from tests.jobs import oracle
from tests.unit.ranges.oracle import admission_of
from tests.unit.ranges.test_plan import plan

KEY = RunKey.derive(FixedSecret(b"combine ranges" * 3), {"job": "ranges"})
IN_THREADS = ("--direct_num_workers=2",)
USERS = 1500


def run(pattern: str, transform: beam.PTransform, *options: str) -> Any:
    """The one element that a transform makes of files. It comes back through a file."""
    folder = Path(pattern).parent
    with beam.Pipeline(runner=LocalRunner(), options=PipelineOptions(list(options))) as root:
        paths = sorted(str(path) for path in folder.glob("*.parquet"))
        _ = root | beam.Create(paths) | transform | beam.Map(_keep, str(folder / "found"))
    return pickle.loads((folder / "found").read_bytes())


def _keep(element: Any, path: str) -> None:
    Path(path).write_bytes(pickle.dumps(element))


def exact_people(pattern: str, planned: RangesPlan, columns: LocationColumns) -> ExactCounts:
    """Everybody's one place, user by user."""
    key = KEY.narrowed({**planned.metadata(), "columns": columns.metadata()})
    records = oracle.records_of_users(pattern, REGION, 12, key, columns)
    places = oracle.weights_of_users(records, CountParameters(depth=12), columns)
    return ExactCounts.from_codes(12, np.array([code for one in places.values() for code in one], np.uint64))


def same_counts(one: Any, other: Any) -> None:
    """The very same noisy counts."""
    assert type(one) is type(other)
    for name, value in vars(one).items():
        if not name.startswith("_"):
            np.testing.assert_array_equal(value, getattr(other, name))


@pytest.fixture(scope="module")
def table() -> pa.Table:
    return make_logs(USERS, 3, 5, "string")


@pytest.fixture
def pattern(table: pa.Table, tmp_path: Path) -> str:
    return write_files(table, tmp_path / "logs", 3, row_group_size=400)


@given(
    st.lists(st.lists(st.integers(0, 40), max_size=30), max_size=40),
    st.lists(st.integers(0, 3), min_size=40, max_size=40),
)
def test_people_add_up_however_they_are_bundled(elements: list[list[int]], where: list[int]) -> None:
    """Elements are spread over accumulators, some of which stay empty, and these are merged."""
    places = Places(12)
    count, spill = SumExactCounts(places), Spill()
    accumulators = [count.create_accumulator() for _ in range(4)]
    for element, place in zip(elements, where, strict=False):
        words = np.array(element, np.uint64) | np.uint64(7 << 40)  # bits of a hash above the place
        accumulators[place] = count.add_input(accumulators[place], spill.store(words.data))
    accumulators[1] = count.compact(accumulators[1])
    found = count.extract_output(count.merge_accumulators(accumulators))
    codes, users = np.unique(np.array([code for one in elements for code in one], np.uint64), return_counts=True)
    np.testing.assert_array_equal(found.codes, codes)
    np.testing.assert_array_equal(found.users, users)
    assert found.depth == 12


@pytest.mark.parametrize("options", [(), IN_THREADS], ids=["one", "threads"])
def test_the_counts_are_those_in_memory(pattern: str, options: tuple[str, ...]) -> None:

    planned, columns = plan("grid", epsilon=0.5, cell_width=4000.0), LocationColumns()
    built = run(pattern, BuildRanges(planned, KEY), *options)
    people = exact_people(pattern, planned, columns)
    assert people.users.sum() == USERS
    key = KEY.narrowed({**planned.metadata(), "columns": columns.metadata()})
    expected = collect(people, admission_of(people, planned, key), planned, key)
    assert isinstance(built, Built)
    same_counts(built.collected.counts, expected.counts)
    assert built.collected.population == expected.population
    assert built.collected.spec == expected.spec


@pytest.mark.parametrize("method", ["grid", "adaptive"])
def test_shards_count_what_clients_would_send(pattern: str, method: str) -> None:
    """Against the heatmap's oracle, client by client: several shards, of which each adds its noise."""
    given: dict[str, Any] = {"shard_size": 200, "dropout": 0.3, "epsilon": 2.0, "population": USERS}
    given |= {"cell_width": 9000.0} if method == "grid" else {"depth": 5} if method == "adaptive" else {}
    planned = plan(method, trust="secagg", **given)
    assert planned.heatmap is not None
    built = run(pattern, BuildRanges(planned, KEY))
    state = oracle.heatmap(pattern, REGION, planned.heatmap, KEY)
    expected = collected_from_heatmap(state, planned)
    same_counts(built.collected.counts, expected.counts)
    assert built.collected.population == expected.population
    assert state.shard_plan.shards > 5
    counts = built.collected.counts
    if method == "adaptive":
        return
    # Where people are: every cell is counted where it lies, north up, within the stated noise.
    codes = exact_people(pattern, plan(), LocationColumns())  # another key: other records of the same users
    exact = codes.on_grid(counts.x_edges, counts.y_edges)
    upright, flipped = (np.abs(grid - exact).mean() for grid in (counts.users, counts.users[::-1]))
    assert upright < 0.8 * flipped
    assert counts.noise_stddev == pytest.approx(state.results[-1].noise_stddev)


@dataclass(frozen=True)
class Learner(RangeMethod):
    """A method that learns ten words, of which the model keeps the lengths in order."""

    NAME: ClassVar[str] = "learner"
    TRAINS: ClassVar[bool] = True
    TEXT: ClassVar[str] = "for tests"

    folder: str = field(metadata={"help": "where it notes what it does"})

    def collect(self, people: ExactCounts, spec: CollectionSpec, key: RunKey) -> NoisyGrid:
        self._note("collect")
        edges = np.array([0, people.side])
        return NoisyGrid(edges, edges, np.array([[float(len(people.codes))]]), 1.0)

    def trainings(self, counts: NoisyGrid, spec: CollectionSpec) -> Sequence[Any]:
        assert isinstance(counts, NoisyGrid)
        return [(number, counts.users[0, 0]) for number in range(10)]

    def train(self, training: Any) -> Any:
        self._note("train")
        number, users = training
        return float(number), users

    def model(self, counts: NoisyGrid, spec: CollectionSpec, trained: Sequence[Any]) -> GridModel:
        assert isinstance(counts, NoisyGrid)
        assert {users for _, users in trained} == {counts.users[0, 0]}
        edges = np.arange(11) * 400
        edges[-1] = counts.side
        return GridModel(NoisyGrid(edges, counts.y_edges, np.array([[number for number, _ in trained]]), 1.0))

    def _note(self, what: str) -> None:
        with (Path(self.folder) / what).open("a") as file:
            file.write("once\n")


@pytest.fixture
def learner(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[], RangesPlan]:
    monkeypatch.setitem(METHODS, Learner.NAME, Learner)
    return lambda: plan("learner", population=USERS, folder=str(tmp_path))


def test_everything_is_learned_of_counts_that_are_made_once(
    learner: Callable[[], RangesPlan], pattern: str, tmp_path: Path
) -> None:
    built = run(pattern, BuildRanges(learner(), KEY), *IN_THREADS)
    assert built.model.model.grid.users.tolist() == [list(range(10))]  # in their order
    assert [len((tmp_path / name).read_text().split()) for name in ("collect", "train")] == [1, 10]


class Consumers(PipelineVisitor):
    """Who takes what a transform makes: {label of the maker: [labels of the takers]}."""

    def __init__(self) -> None:
        self.found: dict[str, list[str]] = defaultdict(list)

    def visit_transform(self, node: Any) -> None:
        for taken in (*node.inputs, *(one.pvalue for one in node.side_inputs)):
            if taken.producer is not None:  # but for the pipeline itself
                self.found[taken.producer.full_label].append(node.full_label)


@pytest.mark.parametrize(("method", "taker"), [("grid", "Build/Build"), ("snh", "Build/Settle/")])
def test_exact_people_reach_one_step_alone(pattern: str, method: str, taker: str) -> None:
    root, consumers = beam.Pipeline(runner=FnApiRunner()), Consumers()
    _ = root | beam.Create([pattern]) | "Build" >> BuildRanges(plan(method), KEY)
    root.visit(consumers)
    exact = [label for label in consumers.found if "/CountByCell/" in label]
    taken = {label for one in exact for label in consumers.found[one] if "/CountByCell/" not in label}
    assert taken == {"Build/Collect/Collect"}
    # What it makes is settled before two steps take it; one step takes it as it is.
    (first,) = consumers.found["Build/Collect/Collect"]
    assert first.startswith(taker)
