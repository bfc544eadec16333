"""The house's rules: arrows point one way, the mathematics does not import Beam, files stay readable."""

from __future__ import annotations

import ast
import functools
import json
import re
import subprocess
import sys
from collections import Counter

import pytest

import sfumato
from tests import ROOT

FOLDERS = ("schemas", "transforms", "pipelines")
# The modules of transforms/ that wire pipelines or reach for remote files; all others are pure.
WITH_BEAM = {
    "transforms/io/storage.py",
    "transforms/beam_support/__init__.py",
    "transforms/counting/transform.py",
    "transforms/heatmap/transform.py",
    "transforms/heatmap/device_rounds.py",
    "transforms/histogram/transform.py",
    "transforms/flows/transform.py",
    "transforms/moments/transform.py",
    "transforms/moments/central/transform.py",
    "transforms/moments/local/transform.py",
    "transforms/beam_support/beam_caches.py",
    "transforms/beam_support/beam_patch.py",
    "transforms/locations/read.py",
    "transforms/observability/metrics.py",
    "transforms/privacy/secrets.py",
    "transforms/quantiles/transform.py",
    "transforms/ranges/query_files.py",
    "transforms/ranges/transform.py",
    "transforms/release/catalog.py",
    "transforms/split/aggregate.py",
    "transforms/split/blocks.py",
    "transforms/split/collect.py",
    "transforms/release/release_folder.py",
    "transforms/release/release_index.py",
    "transforms/release/publishing.py",
    "transforms/synth/transform.py",
    "transforms/zones/transform.py",
}
# Those that wait for each other do so for random times; nothing else of theirs is random.
WAITING = {"transforms/privacy/ledger/stores.py", "transforms/privacy/ledger/ledger.py"}
SOURCES = sorted(str(path.relative_to(ROOT)) for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))
API = sorted(str(path.relative_to(ROOT)) for path in (ROOT / "api").rglob("*.py"))


@functools.cache
def parsed(path: str) -> ast.Module:
    """The syntax tree of a source file."""
    return ast.parse((ROOT / path).read_text())


@functools.cache
def imports(path: str) -> set[str]:
    found = set()
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
    return found


@pytest.mark.parametrize("path", SOURCES)
def test_arrows_point_one_way(path: str) -> None:
    above = {"schemas": ("transforms", "pipelines"), "transforms": ("pipelines",), "pipelines": ()}
    for folder in above[path.split("/")[0]]:
        assert not {name for name in imports(path) if name.startswith(f"sfumato.{folder}")}


@pytest.mark.slow
def test_the_mathematics_does_not_import_beam_even_indirectly() -> None:
    pure = [p for p in SOURCES if not p.startswith("pipelines") and p not in WITH_BEAM]
    assert len(pure) > 25
    names = ["sfumato." + p.removesuffix(".py").replace("/", ".").removesuffix(".__init__") for p in pure]
    code = f"import sys\nfor name in {names!r}: __import__(name)\nassert 'apache_beam' not in sys.modules"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert {p for p in SOURCES if p.startswith("transforms") and "apache_beam" in imports(p)} <= WITH_BEAM


# Slow to load. A heatmap of locations, unweighted and without categories, needs none of them, nor do counts with a
# trusted curator's noise; nor does Beam.
UNUSED = ("scipy.special", "scipy.optimize", "scipy.stats", "scipy.sparse", "scipy.linalg", "dp_accounting")
UNUSED += ("matplotlib.pyplot", "sklearn", "jax", "ortools", "rasterio", "xarray", "deltalake", "pyiceberg")
# Each job runs in a fork of a process that has imported Beam. It prints what it imports in a line of its own.
RUN = """import json, os, sys, apache_beam
before = set(sys.modules)
for arguments in json.loads(sys.argv[1]):
    if not os.fork():
        from sfumato.pipelines.command_line.cli import main
        assert main(arguments) == 0
        print("\\nloaded", *(name for name in sys.modules if name not in before), flush=True)
        os._exit(0)
    assert os.wait()[1] == 0"""


CELLS = ("--region", "3.00,1.00,3.13,1.13")
CURATED = ("--epsilon", "1", "--delta", "1e-5", "--trust", "central")


JOBS = {
    "heatmap": (*CELLS, "--depth", "6"),
    "histogram": (*CELLS, "--cells", "6", *CURATED),
    "hotspots": (*CELLS, "--depth", "8", "--levels", "2", *CURATED),
    "quantiles": ("--column", "km_from_home", "--range", "0,30", *CURATED),
}


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """The modules that each job imports beside Beam's."""
    folder = tmp_path_factory.mktemp("city")
    sfumato.synth(folder / "logs", users=2000)
    place = ["--input", str(folder / "logs" / "*.parquet"), "--seed", "1", "--output"]
    runs = [[name, *options, *place, str(folder / name)] for name, options in JOBS.items()]
    done = subprocess.run([sys.executable, "-c", RUN, json.dumps(runs)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = [line.split() for line in done.stdout.splitlines() if line.startswith("loaded ")]
    return dict(zip(JOBS, found, strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("job", JOBS)
def test_a_job_loads_nothing_slow_that_it_does_not_use(job: str, loaded: dict[str, list[str]]) -> None:
    assert "sfumato.transforms.report.canvas" in loaded[job]  # the run made its picture
    assert [name for name in loaded[job] if name.startswith(UNUSED)] == []


@pytest.mark.parametrize("path", [*SOURCES, *API])
def test_no_product_module_imports_benchmarks(path: str) -> None:
    """They read the exact data, and are not installed."""
    assert not {name for name in imports(path) if name.split(".")[0] in ("benchmarks", "tests")}


def test_the_report_sees_views_alone() -> None:
    """So a page is post-processing of what is published: it cannot reach the data, the noise or the state of a run."""
    mine = [path for path in SOURCES if path.startswith("transforms/report/")]
    assert len(mine) > 5
    for path in mine:
        own = {name for name in imports(path) if name.startswith("sfumato.")}
        assert {one for one in own if not one.startswith(("sfumato.schemas", "sfumato.transforms.report"))} == set(), (
            path
        )


def test_no_file_is_too_long() -> None:
    kinds = ("*.py", "*.js", "*.ts", "*.css", "*.html", "*.j2")
    paths = [
        p
        for folder in (*FOLDERS, "tests", "benchmarks", "web/src")
        for kind in kinds
        for p in (ROOT / folder).rglob(kind)
    ]
    most = {True: 900, False: 600}  # of a file of tests, of which a room has few; of another
    assert {str(p): n for p in paths if (n := len(p.read_text().splitlines())) > most["tests" in p.parts]} == {}


def test_randomness_is_keyed() -> None:
    """No unkeyed generator: every draw of a run must be a function of its key. (The synthetic city is no release.)"""
    for path in SOURCES:
        if path.startswith("transforms/synth"):
            continue
        text = (ROOT / path).read_text()
        assert "np.random" not in text, path
        unkeyed = {"secrets"} if path in WAITING else {"random", "secrets"}
        assert not unkeyed & imports(path), path


def test_every_public_thing_has_a_docstring() -> None:
    for path in SOURCES:
        tree = parsed(path)
        assert ast.get_docstring(tree) or path.endswith("__init__.py"), path
        for node in tree.body:
            if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_"):
                assert ast.get_docstring(node), f"{path}: {node.name}"


# --- structure: cycles, imports inside functions, file names ---

# Modules that only some commands need, and that are expensive to load or not always installed.
DEFERRED = {
    "pipelines/frame/console.py": {"sfumato.transforms.observability.metrics"},
    "pipelines/heatmap.py": {"sfumato.transforms.nights.night"},
    "pipelines/operations/ledger.py": {"sfumato.pipelines.operations.releases"},
    "pipelines/operations/ledger_account.py": {"pyarrow", "sfumato.transforms.privacy.user_hashes"},
    "pipelines/operations/readers.py": {"sfumato.transforms.release.release_folder"},
    "transforms/heatmap/request.py": {"sfumato.transforms.nights.night"},
    "transforms/io/files.py": {"sfumato.transforms.io"},
    "transforms/histogram/accountant.py": {"dp_accounting.pld.pld_pmf", "dp_accounting.pld.privacy_loss_distribution"},
    "transforms/privacy/ledger/windows.py": {"dp_accounting.pld"},
    "transforms/release/publishing.py": {"sfumato.transforms.release.release_index"},
}
OPTIONAL = ("google", "apache_beam.io.gcp", "apache_beam.internal.gcp", "geopandas", "shapely", "ortools", "pydp")
OPTIONAL += ("jax", "optax", "tqdm", "sklearn", "matplotlib", "pandas", "IPython", "deltalake", "pyiceberg", "h3")
OPTIONAL += ("rasterio", "pyogrio", "xarray", "xlsxwriter", "requests", "tenacity", "Cryptodome", "pyhpke")
# File names in several folders, of one idea: what is recorded, the mechanism, and the command of that name; a release's
# files.
ONE_IDEA = {"ledger.py", "rotation.py", "moments.py", "refresh.py", "plan.py", "release_files.py"}
# The house's names: one file of each in a room.
ONE_IDEA |= {"request.py", "plan.py", "transform.py", "release.py", "view.py"}


# The rooms of jobs, each with the folders in which its modules lie.
ROOMS = {name: (name,) for name in ("heatmap", "zones", "flows", "histogram", "quantiles", "ranges")}
ROOMS |= {f"moments/{name}": ("moments", f"moments/{name}") for name in ("local", "central")}


@pytest.mark.parametrize("room", ROOMS)
def test_each_job_room_has_the_five_modules(room: str) -> None:
    """So a stranger finds any job by the same names. The room's docstring names them all, as a map of the room."""
    folders = [ROOT / "transforms" / folder for folder in ROOMS[room]]
    maps = [ast.get_docstring(ast.parse((folder / "__init__.py").read_text())) or "" for folder in folders]
    for name in ("request", "plan", "transform", "release", "view"):
        assert any((folder / f"{name}.py").is_file() for folder in folders), name
    for folder, text in zip(folders, maps, strict=True):
        missing = [path.stem for path in folder.glob("[!_]*.py") if not re.search(rf"\b{path.stem}\b", text)]
        assert missing == []


def module_of(path: str) -> str:
    return "sfumato." + path.removesuffix(".py").replace("/", ".").removesuffix(".__init__")


@functools.cache
def imported_modules(path: str) -> set[str]:
    """This package's modules that a file imports anywhere, but for type checkers alone."""
    modules = {module_of(one) for one in SOURCES}
    found: set[str] = set()
    tree = parsed(path)
    typing_only = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        for inner in ast.walk(node)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and id(node) not in typing_only:
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= names & modules or {node.module} & modules
    return found


def cycles(graph: dict[str, set[str]]) -> set[frozenset[str]]:
    """The strongly connected parts of a graph that have more than one node."""
    reached = {}
    for start in graph:
        seen, todo = set(), list(graph[start])
        while todo:
            if (one := todo.pop()) not in seen:
                seen.add(one)
                todo += graph.get(one, ())
        reached[start] = seen
    return {
        frozenset(part)
        for start in graph
        if len(part := {one for one in reached[start] if start in reached.get(one, ())} | {start}) > 1
    }


@pytest.mark.slow
def test_no_module_imports_itself_by_way_of_others() -> None:
    graph = {module_of(path): imported_modules(path) for path in SOURCES}
    assert not cycles(graph)


def test_no_room_imports_itself_by_way_of_others() -> None:
    """A room is a folder of `transforms` or `pipelines` with its subfolders; all of `schemas` is one."""
    room = {module_of(path): "/".join(path.split("/")[: 1 if path.startswith("schemas") else 2]) for path in SOURCES}
    graph: dict[str, set[str]] = {one: set() for one in room.values()}
    for path in SOURCES:
        mine = room[module_of(path)]
        graph[mine] |= {room[one] for one in imported_modules(path)} - {mine}
    assert not cycles(graph)


@pytest.mark.parametrize("path", SOURCES)
def test_imports_stand_at_the_top(path: str) -> None:
    """Inside functions only optional extras are imported, and a few modules that most commands do without."""
    tree = parsed(path)
    inside = set()
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef):
            for node in ast.walk(function):
                if isinstance(node, ast.ImportFrom) and node.module:
                    inside.add(node.module)
                elif isinstance(node, ast.Import):
                    inside |= {alias.name for alias in node.names}
    extra = {name for name in inside if not name.startswith(OPTIONAL)}
    assert extra <= DEFERRED.get(path, set())


def test_a_file_name_has_one_meaning() -> None:
    names = [path.rpartition("/")[2] for path in SOURCES if not path.endswith("__init__.py")]
    assert {name for name in names if names.count(name) > 1} <= ONE_IDEA


# --- tests ---

TIERS = ("unit", "jobs", "slow", "browser", "engines")


def test_a_room_has_at_most_four_test_files() -> None:
    """Whoever changes a room finds its tests without a search. A promise of the threat model has a file of its own."""
    rooms = Counter(path.parent for tier in TIERS for path in (ROOT / "tests" / tier).rglob("test_*.py"))
    assert len(rooms) > 40
    assert {str(room.relative_to(ROOT)): files for room, files in rooms.items() if files > 4} == {}


def test_a_unit_test_lies_in_the_room_of_its_module() -> None:
    rooms = {path.parent.relative_to(ROOT / "tests/unit") for path in (ROOT / "tests/unit").rglob("test_*.py")}
    folders = (ROOT, ROOT / "transforms")
    assert {str(room) for room in rooms if not any((folder / room).is_dir() for folder in folders)} == set()


def test_names_of_tests_are_short() -> None:
    paths = list((ROOT / "tests").rglob("test_*.py"))
    names = [
        node.name
        for path in paths
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef)
    ]
    assert len(names) > 1500
    assert [name for name in names if name.startswith("test_") and len(name) > 60] == []
