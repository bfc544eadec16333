"""Nights: forged and damaged ones end before the charge, maps follow from answers, and no id is left."""

from __future__ import annotations

import ast
import builtins
import functools
import hashlib
import io
import json
import os
import re
import shutil
import socket
import subprocess
import sys
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from sfumato.pipelines.command_line import cli
from sfumato.schemas.errors import RequestError
from sfumato.schemas.ledger import Period
from sfumato.transforms.nights import nights_state
from sfumato.transforms.nights.night import nights_before
from sfumato.transforms.nights.nights_state import MAX_NODES, MAX_SCALE, NightsState
from sfumato.transforms.nights.nights_update import update
from sfumato.transforms.privacy import keys, user_hashes
from sfumato.transforms.privacy.ledger.ledger import open_ledger
from sfumato.transforms.statistics.posterior.full_tree import TreeMeasurement
from tests.conftest import make_logs, write_files
from tests.keys import write_key
from tests.refreshes import Place
from tests.rejections import rejects
from tests.seeds import seeded_rng
from tests.unit.nights.nights import CELLS, STDDEV, TREE, counts_of, measure_night, night_of, run_nights

# Somebody who may write to the output folder forges what a night continues: an honest error before any charge.
#
# The files are data: nothing in them runs, and a small file does not fill the memory. Whatever is accepted gives a
# map and a state that the next night can read, because a night that fails after its charge is lost.


STATE, _ = run_nights(range(6))
NEXT = date(2026, 11, 20)


def with_metadata(**values: object) -> pa.Table:
    table = STATE.to_table()
    about = json.loads(table.schema.metadata[nights_state._METADATA])
    return table.replace_schema_metadata({nights_state._METADATA: json.dumps({**about, **values}).encode()})


def scales(**values: float) -> pa.Table:
    return with_metadata(scales={"drift": 1.0, "night": 1.0, **values})


FORGED = {
    "nested": STATE.to_table().replace_schema_metadata({nights_state._METADATA: b"[" * 100_000 + b"]" * 100_000}),
    "a negative node": with_metadata(events=[[-16, "2026-03-07", 0.1, 0.1]]),
    "a scale beyond the range": scales(night=1.01 * MAX_SCALE),
    "a scale below the range": scales(drift=0.99 / MAX_SCALE),
}


@pytest.mark.parametrize("name", FORGED)
def test_a_forged_state_is_an_honest_error(name: str) -> None:
    with pytest.raises(RequestError, match=r"nights\.parquet is damaged"):
        NightsState.from_table(FORGED[name], 8)


ACCEPTED = {
    "the largest scales": scales(night=MAX_SCALE, drift=MAX_SCALE),
    "the smallest scales": scales(night=1 / MAX_SCALE, drift=1 / MAX_SCALE),
    "a huge event": with_metadata(events=[[16, "2026-03-07", 9e5, 0.0]]),
}


@pytest.mark.parametrize("name", ACCEPTED)
@pytest.mark.parametrize("users", [1e-9, 200_000.0])
def test_an_accepted_state_gives_a_map_and_a_readable_state(name: str, users: float) -> None:
    state = NightsState.from_table(ACCEPTED[name], 8)
    after, tonight = update(state, night_of(6), [measure_night(6, counts_of(6))], users, 50.0)
    assert np.isfinite(tonight.estimate.counts).all()
    assert NightsState.from_table(after.to_table(), 8).night == night_of(6)


@pytest.mark.parametrize("users", [0.0, 1e-9])
def test_a_night_of_nobody_but_a_crowd_is_no_lost_night(users: float) -> None:
    """The noisy number of users is cut off at 0, and a noisy count may still stand out."""
    counts = seeded_rng(1).laplace(0, STDDEV / 2**0.5, CELLS)
    counts[5] += 20 * STDDEV
    measured = [TreeMeasurement(TREE, counts, np.full(CELLS, STDDEV**2), 29.0)]
    after, tonight = update(STATE, night_of(6), measured, users, 60.0)
    assert tonight.changes
    again = NightsState.from_table(after.to_table(), 8)
    assert again.events == after.events
    assert update(again, night_of(7), [measure_night(7, counts_of(7))], 200_000.0, 60.0)[0].rests_on == (
        Period(night_of(0), night_of(7)),
    )


# --- through the releases of a ledger ---


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two nights and a key."""
    folder = tmp_path_factory.mktemp("forged")
    write_key(folder / "key")
    for number in (1, 2):
        write_files(make_logs(600, 2, seed=number), folder / f"logs{number}", 2)
        assert run(folder, number, *([folder / "night1"] if number == 2 else [])) == 0
    return folder


def run(folder: Path, number: int, *starts: Path) -> int:
    night = f"2026-11-1{number}"
    arguments = ["--input", folder / f"logs{number}", "--region", "-1,50,1,51", "--depth", 5, "--epsilon", 1]
    arguments += ["--output", folder / f"night{number}", "--release_id", f"night{number}", "--key_file", folder / "key"]
    arguments += ["--ledger", folder / "ledger.db", "--dataset", "city", "--period", night, "--night", night]
    arguments += ["--budget", "1/30d", "--rotation", f"{number}/3"]
    arguments += ["--warm_start", ",".join(map(str, starts))] if starts else []
    return cli.main(["heatmap", *map(str, arguments)])


CHANGES: list[tuple[tuple[str | int, ...], Any]] = [
    (("results", "users"), float("nan")),
    (("results", "users"), -5),
    (("results", "users_stddev"), 1e300),
    (("privacy", "sub_queries"), []),
    (("privacy", "sub_queries"), [{"index": 1, "shards": 1, "shards_lost": 0}] * 1000),
    (("privacy", "sub_queries", 0, "index"), float("inf")),
    (("privacy", "sub_queries", 0, "shards_lost"), 1),
    (("privacy", "cohort", "shards"), 0),
    (("privacy", "cohort", "shards"), float("inf")),
    (("privacy", "rotation"), {"cohort": 1, "cohorts": 0}),
    (("privacy", "rotation"), {"cohort": 1, "cohorts": 10**9}),
    (("grid", "depth"), 10**9),
]


@pytest.mark.parametrize(("at", "value"), CHANGES)
def test_a_forged_manifest_is_an_honest_error(
    place: Path, tmp_path: Path, at: tuple[str | int, ...], value: Any
) -> None:
    shutil.copytree(place / "night2", tmp_path / "night2")
    manifest = json.loads((tmp_path / "night2" / "manifest.json").read_bytes())
    inner: Any = manifest
    for one in at[:-1]:
        inner = inner[one]
    inner[at[-1]] = value
    (tmp_path / "night2" / "manifest.json").write_text(json.dumps(manifest))
    with rejects("warm_start"):
        nights_before([str(place / "night1"), str(tmp_path / "night2")], NEXT)


def test_an_honest_release_is_added(place: Path) -> None:
    """So the tests above fail for what they change."""
    state = nights_before([str(place / "night1"), str(place / "night2")], NEXT).state
    assert state is not None
    assert state.night == date(2026, 11, 12)


@pytest.mark.parametrize("name", ["nights.parquet", "cells.parquet", "answers.parquet"])
def test_a_small_file_of_very_many_rows_is_not_read(
    place: Path, tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its footer says how many there are. A writer makes billions of equal rows of a few kilobytes."""
    rows = 20_000_000
    sink = io.BytesIO()
    pq.write_table(pa.table({"node": pa.array(np.zeros(rows, dtype=np.uint8))}), sink)
    content = sink.getvalue()
    assert len(content) < 100_000
    assert rows > 2 * MAX_NODES
    for number in (1, 2):
        shutil.copytree(place / f"night{number}", tmp_path / f"night{number}")
    forged = tmp_path / ("night2" if name == "answers.parquet" else "night1")
    (forged / name).write_bytes(content)
    manifest = json.loads((forged / "manifest.json").read_bytes())
    manifest["files"][name]["sha256"] = hashlib.sha256(content).hexdigest()
    (forged / "manifest.json").write_text(json.dumps(manifest))
    before = pa.total_allocated_bytes()
    for one in ("key", "ledger.db"):
        shutil.copy(place / one, tmp_path / one)
    write_files(make_logs(600, 2, seed=3), tmp_path / "logs3", 2)
    capsys.readouterr()
    assert run(tmp_path, 3, tmp_path / "night1", tmp_path / "night2") == 2
    assert re.search(rf"{re.escape(name)} must have at most [0-9,]+ rows, got 20,000,000", capsys.readouterr().err)
    assert pa.total_allocated_bytes() - before < rows


# A night's manifest was cut: the next night left it out in silence. Its noise must not protect other data too.


DAYS = ["2026-11-18", "2026-11-19", "2026-11-20"]
DAMAGED, NEW = DAYS[1:]
CONFIG = {
    "dataset": "city", "input": "logs", "output": "published", "ledger": "ledger.db", "key_file": "key",
    "budget": [{"epsilon": 4, "days": 1}],
    "options": {"region": [-1, 50, 1, 51], "depth": 3, "epsilon": 4, "trust": "central"},
}  # fmt: skip


@pytest.fixture(scope="module")
def published_nights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two published nights, and the logs of a third, in a folder that is to stay as it is."""
    folder = tmp_path_factory.mktemp("nights")
    place = folder / "place"
    place.mkdir()
    write_key(place / "key")
    (place / "refresh.yaml").write_text(yaml.safe_dump(CONFIG))
    for number, day in enumerate(DAYS):
        write_files(make_logs(300, 1, seed=number), place / "logs" / f"dt={day}", 2)
    for day in DAYS[:2]:
        assert refresh(place, day) == 0
    return place.rename(folder / "kept")


@pytest.fixture
def two_nights(published_nights: Path) -> Path:
    """A copy of them, to be damaged, where they were published."""
    place = published_nights.parent / "place"
    shutil.rmtree(place, ignore_errors=True)
    return Path(shutil.copytree(published_nights, place))


def refresh(two_nights: Path, day: str) -> int:
    return cli.main(["refresh", "--config", str(two_nights / "refresh.yaml"), "--date", day])


def release(two_nights: Path, day: str) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (two_nights / "published" / "releases" / day).iterdir()}


def cut(two_nights: Path) -> None:
    manifest = two_nights / "published" / "releases" / DAMAGED / "manifest.json"
    manifest.write_bytes(manifest.read_bytes()[:500])


def state(two_nights: Path) -> None:
    """Damages the file that the next night starts from."""
    (two_nights / "published" / "releases" / DAMAGED / "nights.parquet").write_bytes(b"")


def lost(two_nights: Path) -> None:
    shutil.rmtree(two_nights / "published" / "releases" / DAMAGED)


def emptied(two_nights: Path) -> None:
    shutil.rmtree(two_nights / "published")


@pytest.mark.slow
@pytest.mark.parametrize("damage", [cut, state, lost, emptied])
def test_the_refusal_is_the_same_whatever_the_logs_hold(
    two_nights: Path, damage: object, capsys: pytest.CaptureFixture[str]
) -> None:
    """It comes before any record is read, and before the charge: it follows from published files and the ledger."""
    damage(two_nights)  # type: ignore[operator]
    entries, said = open_ledger(str(two_nights / "ledger.db")).history().entries, set()
    capsys.readouterr()
    logs = two_nights / "logs" / f"dt={NEW}"
    cut_log = functools.partial((logs / "log-1.parquet").write_bytes, b"no log")
    for damage_logs in (lambda: None, (logs / "log-0.parquet").unlink, cut_log):
        damage_logs()
        assert refresh(two_nights, NEW) == 4
        said.add(capsys.readouterr().err)
    assert len(said) == 1
    assert open_ledger(str(two_nights / "ledger.db")).history().entries == entries


@pytest.mark.slow
@pytest.mark.parametrize("damage", [cut, state, lost])
def test_a_night_is_made_again_from_its_own_charge_or_not_at_all(
    two_nights: Path, damage: object, capsys: pytest.CaptureFixture[str]
) -> None:
    """The same noise over other logs would show the difference: one user's rows that were deleted since."""
    whole = release(two_nights, DAMAGED)
    damage(two_nights)  # type: ignore[operator]
    before = open_ledger(str(two_nights / "ledger.db")).history()
    logs = two_nights / "logs" / f"dt={DAMAGED}"
    logs.rename(two_nights / "kept")
    write_files(make_logs(300, 1, seed=1).slice(1), logs, 2)  # without one user
    left = (two_nights / "published" / "releases" / DAMAGED).exists() and release(two_nights, DAMAGED)
    capsys.readouterr()
    assert refresh(two_nights, DAMAGED) == 2
    assert "was charged for other input" in capsys.readouterr().err
    assert left == ((two_nights / "published" / "releases" / DAMAGED).exists() and release(two_nights, DAMAGED))
    shutil.rmtree(logs)
    (two_nights / "kept").rename(logs)
    assert refresh(two_nights, DAMAGED) == 0
    assert release(two_nights, DAMAGED) == whole
    assert open_ledger(str(two_nights / "ledger.db")).history() == before


# A map over nights is post-processing: it follows from released noisy counts, and from nothing else.


ROOM = Path(__file__).parents[2] / "transforms" / "nights"
ALLOWED = (
    "sfumato.schemas.",
    "sfumato.transforms.nights.",
    "sfumato.transforms.statistics.posterior.",
    "sfumato.transforms.statistics.",
)
_RUN = """import hashlib
from tests.unit.nights.nights import run_nights
state, maps = run_nights(range(9), None, range(100, 104), 900)
table = state.to_table()
parts = [maps[-1].estimate.counts, *maps[-1].variance]
parts += [column.chunk(0).flatten().to_numpy() if "list" in str(column.type) else column.to_numpy() for column in table]
print(hashlib.sha256(b"".join(part.tobytes() for part in parts)).hexdigest())"""


def test_the_mathematics_of_nights_imports_no_reader() -> None:
    modules = sorted(set(ROOM.glob("*.py")) - {ROOM / "plan.py", ROOM / "warm_start.py", ROOM / "night.py"})
    assert len(modules) == 5
    for module in modules:
        for node in ast.walk(ast.parse(module.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module] if isinstance(node, ast.ImportFrom) and node.module else []
            for name in names:
                if name.startswith("sfumato."):
                    assert name.startswith(ALLOWED) or name == "sfumato.transforms.counting.state", (module.name, name)
                else:
                    assert name not in ("os", "io", "random", "secrets", "pathlib", "pyarrow.parquet"), module.name


def test_a_night_opens_no_file_and_no_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("a file or a connection was opened")

    for where, name in ((builtins, "open"), (io, "open"), (os, "open"), (socket, "socket"), (subprocess, "Popen")):
        monkeypatch.setattr(where, name, refuse)
    state, maps = run_nights(range(3))
    assert maps[-1].estimate.counts.sum() == pytest.approx(counts_of(2).sum())
    state.to_table()


@pytest.mark.slow
def test_the_same_answers_give_the_same_bytes_in_any_process() -> None:
    """Neither the number of threads nor the order of hashes nor the time of the run enters."""
    found = set()
    for threads, seed in (("1", "1"), ("2", "2")):
        environment = {
            **os.environ,
            "OMP_NUM_THREADS": threads,
            "OPENBLAS_NUM_THREADS": threads,
            "PYTHONHASHSEED": seed,
        }
        command = [sys.executable, "-c", _RUN]
        found.add(subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout)
    assert len(found) == 1
    assert len(found.pop().strip()) == 64


# A user who asks to be deleted: no file that a job leaves, and no log, holds their id or a hash of it.


ID_DAYS = ("2026-11-19", "2026-11-20")
USER = "rider-7f3c9a5577"  # not to be met by chance
NUMBER = 4_611_686_018_427_387_847
OPTIONS = {"region": [-1, 50, 1, 51], "depth": 4, "epsilon": 4, "trust": "central"}


def write_nights(folder: Path, kind: str) -> None:
    """Two nights in which the user has a fifth of all records, with text or integers as ids."""
    for number, day in enumerate(ID_DAYS):
        logs = make_logs(400, 2, seed=number, kind="string" if kind == "text" else "int")
        own = make_logs(200, 1, seed=9 + number)
        value = USER if kind == "text" else NUMBER
        own = own.set_column(0, "user_id", pa.array([value] * len(own), logs["user_id"].type))
        write_files(pa.concat_tables([logs, own]), folder / f"dt={day}", 2)


def hashes_of_runs(monkeypatch: pytest.MonkeyPatch) -> list[tuple[bytes, np.ndarray]]:
    """Keeps every key under which a run hashes ids, and all the hashes."""
    kept: list[tuple[bytes, np.ndarray]] = []
    original = user_hashes.keyed_hash

    def keeping(key: bytes, values: np.ndarray) -> np.ndarray:
        found = original(key, values)
        kept.append((key, found))
        return found

    monkeypatch.setattr(user_hashes, "keyed_hash", keeping)
    return kept


def unpacked(path: Path) -> list[bytes]:
    """A file's bytes, and of a Parquet file, which is compressed, all values of every column too."""
    content = path.read_bytes()
    if path.suffix != ".parquet":
        return [content]
    columns = pq.read_table(io.BytesIO(content)).columns
    texts = [repr(column.to_pylist()).encode() for column in columns]
    numbers = [column.combine_chunks() for column in columns if pa.types.is_primitive(column.type)]
    return [content, *texts, *(one.to_numpy(zero_copy_only=False).tobytes() for one in numbers)]


def forms(values: list[bytes | int]) -> set[bytes]:
    """What a file might hold of an id or a hash: digits, hexadecimal digits, and bytes in either order."""
    found = set()
    for value in values:
        if isinstance(value, int):
            signed = value - 2**64 if value >= 2**63 else value
            found |= {str(value).encode(), str(signed).encode(), b"%x" % value}
            found |= {value.to_bytes(8, "little"), value.to_bytes(8, "big")}
        else:
            found |= {value, value.hex().encode()}
    return found


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["text", "integers"])
@pytest.mark.parametrize("rotation", [1, 2])
def test_no_file_and_no_log_holds_an_id_or_its_hash(
    tmp_path: Path,
    kind: str,
    rotation: int,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    kept = hashes_of_runs(monkeypatch)
    write_nights(tmp_path / "logs", kind)
    place = Place(tmp_path / "place", tmp_path / "logs", options=OPTIONS, rotation=rotation)
    for day in ID_DAYS:
        assert place.refresh("--date", day) == 0
    said = capfd.readouterr()
    assert kept, "ids are hashed by this function"
    user = np.array([USER.encode()], dtype=object) if kind == "text" else np.array([NUMBER], dtype=np.int64)
    own = {int(keys.keyed_hash(key, user)[0]) for key, _ in kept}
    assert any(np.isin(list(own), found.astype(np.uint64)).any() for _, found in kept)  # the user was hashed
    name: bytes | int = USER.encode() if kind == "text" else NUMBER
    raw = USER.encode() if kind == "text" else str(NUMBER).encode()
    plain = [hashlib.new(method, raw).digest() for method in ("md5", "sha1", "sha256")]
    sought = forms([name, *own, *plain])
    left = [path for path in place.folder.rglob("*") if path.is_file() and "logs" not in path.parts]
    assert {"nights.parquet", "answers.parquet", "ledger.db", "timeline.json"} <= {path.name for path in left}
    for path in left:
        for content in unpacked(path):
            assert not [one for one in sought if one in content], path
    for text in (said.out, said.err):
        assert not [one for one in sought if one in text.encode()]
