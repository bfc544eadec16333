"""The house's rules: arrows point one way, the mathematics does not import Beam, files stay readable."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FOLDERS = ("schemas", "transforms", "pipelines")
# The modules of transforms/ that wire pipelines or reach for remote files; all others are pure.
WITH_BEAM = {
    "transforms/evaluation/compare.py",
    "transforms/files.py",
    "transforms/heatmap/private_heatmap.py",
    "transforms/heatmap/refine.py",
    "transforms/histogram/sample_and_threshold.py",
    "transforms/moments/bit_pushing.py",
    "transforms/locations/group.py",
    "transforms/beam_patch.py",
    "transforms/locations/read.py",
    "transforms/metrics.py",
    "transforms/privacy/secrets.py",
    "transforms/ranges/answering.py",
    "transforms/ranges/combine.py",
    "transforms/release/catalog.py",
    "transforms/release/release_folder.py",
    "transforms/release/release_index.py",
    "transforms/release/publishing.py",
    "transforms/synth/generate.py",
}
# Those that wait for each other do so for random times; nothing else of theirs is random.
WAITING = {"transforms/privacy/ledger/bucket_store.py", "transforms/privacy/ledger/ledger.py"}
SOURCES = sorted(str(path.relative_to(ROOT)) for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))


def imports(path: str) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse((ROOT / path).read_text())):
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


def test_the_mathematics_does_not_import_beam_even_indirectly() -> None:
    pure = [p for p in SOURCES if not p.startswith("pipelines") and p not in WITH_BEAM]
    assert len(pure) > 25
    names = ["sfumato." + p.removesuffix(".py").replace("/", ".").removesuffix(".__init__") for p in pure]
    code = f"import sys\nfor name in {names!r}: __import__(name)\nassert 'apache_beam' not in sys.modules"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert {p for p in SOURCES if p.startswith("transforms") and "apache_beam" in imports(p)} <= WITH_BEAM


@pytest.mark.parametrize("command", ["ledger", "refresh"])
def test_who_shows_no_page_does_not_load_what_draws_it(command: str) -> None:
    """These commands start at night, some of them to find that nothing is to be done."""
    code = f"""import sys, sfumato.pipelines.{command}
drawing = [name for name in sys.modules if name == 'matplotlib' or name.startswith('sfumato.transforms.release.p')]
assert drawing == ['sfumato.transforms.release.catalog'], drawing"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_nothing_that_reads_the_truth_has_a_way_into_a_release() -> None:
    """Only the evaluation and the command that runs it may use what looks at the exact data."""
    users = {
        path for path in SOURCES if any(name.startswith("sfumato.transforms.evaluation") for name in imports(path))
    }
    outside = {path for path in users if not path.startswith("transforms/evaluation/")}
    assert outside <= {"pipelines/compare.py", "transforms/release/page_compare.py"}
    assert "pipelines/compare.py" in outside


def test_no_file_is_too_long() -> None:
    kinds = ("*.py", "*.js", "*.css", "*.html")
    paths = [p for folder in (*FOLDERS, "tests", "benchmarks") for kind in kinds for p in (ROOT / folder).rglob(kind)]
    assert {str(p): n for p in paths if (n := len(p.read_text().splitlines())) > 600} == {}


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
        tree = ast.parse((ROOT / path).read_text())
        assert ast.get_docstring(tree) or path.endswith("__init__.py"), path
        for node in tree.body:
            if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_"):
                assert ast.get_docstring(node), f"{path}: {node.name}"
