"""Measures the strength of the tests: plants faults in the product, one at a time, and lists what no test notices.

    python -m tests.planted_faults --jobs 2

Each fault is planted in a copy of the tree, which imports its own product. The tests of `make test` whose imports reach
the fault run until one fails: the nearest files first, and of those the ones that reach few modules. The fault counts
as caught if that test, by itself, fails with it and passes without it. Where the time is up, it is caught only if one
test has run for half of it, which then hangs. Exit status: 0 if a share of `NEEDED` is caught, else 1.
"""

from __future__ import annotations

import argparse
import ast
import functools
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from tests.mistakes import FAULTS, Fault

ROOT = Path(__file__).resolve().parents[1]
PRODUCT = ("api", "pipelines", "transforms", "schemas")
NEEDED = 0.97
_BATCHES = (3, 12)  # test files of the first processes; a start takes seconds, and so do the imports of many files
_MODULE = re.compile(r"[a-z_]\w*(?:\.[a-z_]\w*)+")
_EVENTS = "PLANTED_FAULTS_EVENTS"  # in the environment: the file of what happens in a run of tests


@functools.cache
def product() -> dict[str, str]:
    """Returns the text of each of the product's modules, by its path in the tree.

    The module that quotes snippets, for the self-test of audits, is left out.
    """
    return {path: (ROOT / path).read_text() for path in _tracked(PRODUCT) if not path.endswith("/audit_self_test.py")}


def module_with(fault: Fault) -> str:
    """Returns the path of the module in which a fault is planted.

    Raises:
        ValueError: no module or several ones hold the snippet, or the changed module is no Python.
    """
    found = [path for path, text in product().items() for _ in fault.matches(text)]
    if len(found) != 1:
        raise ValueError(f"{fault.name}: the snippet occurs {len(found)} times ({', '.join(found) or 'nowhere'})")
    try:
        compile(fault.planted(product()[found[0]]), found[0], "exec")
    except SyntaxError as error:
        raise ValueError(f"{fault.name}: {found[0]} does not compile ({error})") from None
    return found[0]


def _tracked(folders: Sequence[str] = ()) -> list[str]:
    """Lists the tree's files: all, or the Python of some folders."""
    command = ["git", "ls-files", "-z", *(f"{folder}/*.py" for folder in folders)]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return [path for path in listed.split("\0") if path and (ROOT / path).is_file()]


class Imports:
    """Knows which modules tests import, directly or not: lazily, by names in registries, and in code that is text."""

    def __init__(self) -> None:
        self._paths = {name_of(path): path for path in _tracked((*PRODUCT, "tests", "benchmarks"))}
        self._edges = {name: set(self._imported(ROOT / path)) - {name} for name, path in self._paths.items()}
        self._reached: dict[str, dict[str, int]] = {}

    def tests_of(self, path: str) -> list[str]:
        """Returns the test files that reach a module, a step nearer those of its room, or of its name."""
        ranked = []
        for test in filter(re.compile(r"tests/(.*/)?test_(?!planted_faults)\w+\.py").fullmatch, self._paths.values()):
            distances = self._distances(test)
            if (distance := distances.get(name_of(path))) is not None:
                _, _, inner = test.removeprefix("tests/").partition("/")  # without the tier
                room, _, name = inner.rpartition("/")
                folder, _, module = path.removeprefix("transforms/").rpartition("/")
                # The tests of the module's room come first, however far the imports that lead to it.
                nearer = (
                    3 * (room.split("/")[0] == folder.split("/")[0]) + (room == folder) + (name == f"test_{module}")
                )
                ranked.append((distance - nearer, len(distances), test))
        return [test for *_, test in sorted(ranked)]

    def _distances(self, test: str) -> dict[str, int]:
        """Counts the steps to each module from a test file and its fixtures, but those of all tests."""
        if test not in self._reached:
            fixtures = [f"{folder}/conftest.py" for folder in Path(test).parents[:-2]]
            found = dict.fromkeys((name for name in map(name_of, (test, *fixtures)) if name in self._paths), 0)
            queue = deque(found)
            while queue:
                name = queue.popleft()
                for other in self._edges[name] - found.keys():
                    found[other] = found[name] + 1
                    queue.append(other)
            self._reached[test] = found
        return self._reached[test]

    def _imported(self, path: Path) -> Iterator[str]:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                modules = [self._module(one.name) for one in node.names]
            elif isinstance(node, ast.ImportFrom):
                modules = [self._module(f"{node.module}.{one.name}") for one in node.names]
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                names = [name for one in _MODULE.findall(node.value) for name in (one, f"sfumato.{one}")]
                modules = [module for module in map(self._module, names) if "." in module]
            else:
                continue
            for module in filter(None, modules):
                yield module
                while "." in (module := module.rpartition(".")[0]):  # the outermost package imports all, when asked
                    yield from (module for _ in range(module in self._paths))

    def _module(self, name: str) -> str:
        """Returns the module that a dotted name begins with, or nothing."""
        while name and name not in self._paths:
            name = name.rpartition(".")[0]
        return name


def name_of(path: str) -> str:
    """Returns the module that a path of the tree is imported as."""
    name = path.removesuffix(".py").replace("/", ".").removesuffix(".__init__")
    folder, dot, rest = name.partition(".")
    if folder == "api":
        return f"sfumato{dot}{rest}"
    return f"sfumato.{name}" if folder in PRODUCT else name


@dataclass(frozen=True)
class Verdict:
    """Says which test caught a fault, if any, and after how many seconds."""

    fault: Fault
    test: str | None
    seconds: float
    remark: str = ""

    def __str__(self) -> str:
        found = "SURVIVED" if self.test is None else f"caught by {self.test}"
        return f"{self.fault.name:60}  {found} in {self.seconds:.0f} s{self.remark}"


@dataclass(frozen=True)
class _Run:
    """Says which test failed first; and where the time was up, which one was running, and for how long."""

    failed: str | None = None
    running: str | None = None
    quiet: float = 0.0
    is_complete: bool = True


@dataclass
class Copy:
    """Tries faults in a copy of the tree, in a folder of its own."""

    folder: Path
    sound: dict[str, bool] = field(default_factory=dict)  # tests that failed: whether they pass without a fault
    writes: int = 0

    def __post_init__(self) -> None:
        for path in _tracked():
            (self.tree / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / path, self.tree / path)
        package = self.folder / "links" / "sfumato"  # it comes before the installed one in all processes
        package.mkdir(parents=True)
        others = (self.tree / name for name in (*PRODUCT[1:], "runner_configs"))
        for one in (*(self.tree / PRODUCT[0]).iterdir(), *others):
            (package / one.name).symlink_to(one)
        (self.folder / "tmp").mkdir()

    @property
    def tree(self) -> Path:
        """Returns the copy's root."""
        return self.folder / "tree"

    def try_fault(self, fault: Fault, tests: Sequence[str], limit: float) -> Verdict:
        """Plants a fault, runs tests until one fails for it, and takes the fault out again."""
        start, path, by_chance = time.monotonic(), module_with(fault), set[str]()
        ends = [sum(_BATCHES[:number]) for number in range(len(_BATCHES) + 1)]
        batches = [tests[begin:end] for begin, end in zip(ends, [*ends[1:], None], strict=True)]
        while batches := list(filter(None, batches)):
            self._write(path, fault.planted(product()[path]))
            ran = self._run(batches[0], start + limit - time.monotonic(), by_chance)
            fails_again = ran.failed is not None and not self._passes(ran.failed, limit)
            self._write(path, product()[path])
            seconds = time.monotonic() - start
            if not ran.is_complete and ran.quiet > limit / 2:
                return Verdict(fault, ran.running, seconds, ", because it hangs")
            if not ran.is_complete:
                return Verdict(fault, None, seconds, ", when time was up")
            if ran.failed is None:
                del batches[0]
            elif fails_again and self._is_sound(ran.failed, limit):
                return Verdict(fault, ran.failed, seconds)
            else:
                by_chance.add(ran.failed)
        return Verdict(fault, None, time.monotonic() - start)

    def _is_sound(self, test: str, limit: float) -> bool:
        if test not in self.sound:
            self.sound[test] = self._passes(test, limit)
        return self.sound[test]

    def _passes(self, test: str, limit: float) -> bool:
        return self._run([test] if "::" in test else [test, "--collect-only"], limit) == _Run()

    def _write(self, path: str, text: str) -> None:
        place = self.tree / path
        place.write_text(text)
        self.writes += 1
        os.utime(place, (self.writes, self.writes))  # Python knows bytecode by the second and the size of its source

    def _run(self, arguments: Sequence[str], limit: float, without: Collection[str] = ()) -> _Run:
        unsound = (test for test, is_sound in self.sound.items() if not is_sound)
        left_out = [f"--{'deselect' if '::' in test else 'ignore'}={test}" for test in (*unsound, *without)]
        options = ["-x", "-p", "no:cacheprovider", "-p", "tests.planted_faults", *left_out]
        events, before = self.folder / "events", os.environ.get("PYTHONPATH")
        events.write_text("")
        own = {
            "PYTHONPATH": os.pathsep.join(filter(None, [str(self.folder / "links"), before])),
            "PYTHONDONTWRITEBYTECODE": "",
            "TMPDIR": str(self.folder / "tmp"),
            _EVENTS: str(events),
        }
        with (self.folder / "log").open("w") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "pytest", *options, *arguments], cwd=self.tree, env={**os.environ, **own},
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip
            status = None
            with suppress(subprocess.TimeoutExpired):
                status = process.wait(max(limit, 1.0))
            quiet = time.time() - events.stat().st_mtime
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # what a test left behind too
            process.wait()
        happened = [line.split(" ", 1) for line in events.read_text().splitlines()]
        failed = next((test for kind, test in happened if kind == "failed"), None)
        running = happened[-1][1] if happened else arguments[0]
        if status is None and failed is None:
            return _Run(None, running, quiet, is_complete=False)
        return _Run() if status in (0, 5) else _Run(failed or running)  # 5: no test is left; no test failed: a crash


def pytest_runtest_logstart(nodeid: str) -> None:
    """Notes that a test begins. This module is the plugin of its own runs of pytest."""
    _note("began", nodeid)


def pytest_runtest_logreport(report: Any) -> None:
    """Notes that a test failed."""
    if report.failed:
        _note("failed", report.nodeid)


def pytest_collectreport(report: Any) -> None:
    """Notes that a test file cannot be imported."""
    if report.failed:
        _note("failed", report.nodeid)


def _note(kind: str, test: str) -> None:
    with open(os.environ[_EVENTS], "a") as events:
        events.write(f"{kind} {test}\n")


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def _listed(faults: Sequence[Fault]) -> int:
    problems = 0
    for fault in faults:
        try:
            _say(f"{fault.subject:10}  {fault.name:60}  {module_with(fault)}")
        except ValueError as error:
            problems += 1
            _say(f"{fault.subject:10}  {error}")
    _say(f"{len(faults)} faults, {problems} of which cannot be planted")
    return 1 if problems else 0


def _tried(faults: Sequence[Fault], jobs: int, limit: float) -> int:
    imports, caught, survivors = Imports(), 0, list[Verdict]()
    tests = {fault: imports.tests_of(module_with(fault)) for fault in faults}
    with tempfile.TemporaryDirectory(prefix="faults-") as folder, ThreadPoolExecutor(jobs) as workers:
        copies = SimpleQueue[Copy]()
        for number in range(jobs):
            copies.put(Copy(Path(folder) / str(number)))

        def attempt(fault: Fault) -> Verdict:
            copy = copies.get()
            try:
                return copy.try_fault(fault, tests[fault], limit)
            finally:
                copies.put(copy)

        for done in as_completed([workers.submit(attempt, fault) for fault in faults]):
            _say(str(verdict := done.result()))
            caught += verdict.test is not None
            survivors += [verdict] if verdict.test is None else []
    for verdict in survivors:
        _say(f"survivor: {verdict.fault.name} ({module_with(verdict.fault)})")
    share = caught / max(len(faults), 1)
    _say(f"caught {caught} of {len(faults)} ({share:.1%})")
    return 0 if share >= NEEDED else 1


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the script, and returns its exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.planted_faults", description=__doc__.partition("\n")[0])
    parser.add_argument("--only", default="", metavar="TEXT", help="faults whose name or subject holds this")
    parser.add_argument("--first", type=int, metavar="N", help="the first N of these")
    parser.add_argument("--list", action="store_true", help="show the faults and their modules, and plant nothing")
    parser.add_argument("--jobs", type=int, default=2, help="faults at once, each in a copy of the tree (default: 2)")
    parser.add_argument("--seconds", type=float, default=600.0, help="most that a fault may take (default: 600)")
    given = parser.parse_args(arguments)
    faults = [fault for fault in FAULTS if given.only in f"{fault.subject} {fault.name}"][: given.first]
    return _listed(faults) if given.list else _tried(faults, given.jobs, given.seconds)


if __name__ == "__main__":
    sys.exit(main())
