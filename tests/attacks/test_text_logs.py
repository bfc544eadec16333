"""Logs of text and tables: a fault is found before the charge and quoted nowhere, and a file is known again.

A reader that skips bad lines, or that reads what another row's quotes hide, would publish other numbers. One that fails
after the charge would lose the day.
"""

from __future__ import annotations

import gzip
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from sfumato.pipelines import cli
from sfumato.transforms.inputs import text_lines
from sfumato.transforms.privacy.ledger.ledger import open_ledger
from tests.conftest import make_logs
from tests.keys import write_key
from tests.log_forms import delta, records, write_csv, write_ndjson

pytestmark = pytest.mark.usefixtures("blank_pictures")

REGION = "--region=-1,50,1,51"
JOBS = {
    "heatmap": ["heatmap", REGION, "--depth=4"],
    "histogram": ["histogram", REGION, "--cells=3", "--population=900"],
    "hotspots": ["hotspots", "--column=kind", "--population=900", "--levels=2", "--depth=2"],
    "quantiles": ["quantiles", "--column=latitude", "--range=50,51", "--bits=4", "--population=900"],
    "moments": ["moments", "--column=latitude", "--bits=6"],
    "ranges": ["ranges", "build", REGION, "--method=ug", "--sizes=500,900"],
}
SECRET = "secret-user"


def city(users: int = 900) -> pa.Table:
    table = make_logs(users, 1, seed=1, kind="string")
    return table.append_column("kind", pa.array([f"k{number % 3}" for number in range(table.num_rows)]))


def run(job: str, folder: Path, where: str | Path, release_id: str = "day", *more: str) -> int:
    place = ["--input", str(where), "--output", str(folder / release_id), f"--release_id={release_id}"]
    ledger = [f"--ledger={folder / 'ledger.db'}", "--dataset=city", "--budget=9:0.1/1d"]
    return cli.main([*JOBS[job], "--epsilon=2", *place, f"--key_file={folder / 'key'}", *ledger, *more])


def charged(folder: Path) -> int:
    return len(open_ledger(str(folder / "ledger.db")).history().charges) if (folder / "ledger.db").exists() else 0


# --- faults in the last row ---


def short_line(path: Path) -> None:
    path.write_text(path.read_text() + f"{SECRET},50.5\n")


def open_quote(path: Path) -> None:
    path.write_text(path.read_text() + f'"{SECRET},50.5,0.5,k1\n')


def line_break_in_quotes(path: Path) -> None:
    path.write_text(path.read_text() + f'{SECRET},50.5,0.5,"k\n1"\n')


def no_text(path: Path) -> None:
    path.write_bytes(path.read_bytes() + SECRET.encode() + b"\xff,50.5,0.5,k1\n")


FAULTS: list[Callable[[Path], None]] = [short_line, open_quote, line_break_in_quotes, no_text]


@pytest.mark.parametrize("job", JOBS)
def test_a_broken_last_row_is_found_before_the_charge(
    job: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Then the file is mended, and the day is published under its name. No message quotes the row."""
    monkeypatch.setattr(text_lines, "CHUNK_BYTES", 9_000)  # the last row is in the last of several chunks
    write_key(tmp_path / "key")
    faults = FAULTS if job == "heatmap" else FAULTS[:1]
    for fault in faults:
        fault(write_csv(city(), tmp_path / "log.csv"))
        assert run(job, tmp_path, tmp_path / "log.csv", "day", "--period=2026-11-20") in (1, 2), fault.__name__
        assert charged(tmp_path) == 0, fault.__name__
        said = capfd.readouterr()
        assert "log.csv" in said.err
        assert SECRET not in said.err + said.out, fault.__name__
    write_csv(city(), tmp_path / "log.csv")
    assert run(job, tmp_path, tmp_path / "log.csv", "day", "--period=2026-11-20") == 0
    assert charged(tmp_path) == 1


def test_a_cut_off_json_or_gzip_is_found_before_the_charge(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    write_key(tmp_path / "key")
    written = write_ndjson(city(), tmp_path / "log.ndjson")
    written.write_text(written.read_text() + f'{{"user_id": "{SECRET}", "latitude": 50')
    packed = tmp_path / "log.csv.gz"
    packed.write_bytes(gzip.compress(write_csv(city(), tmp_path / "all.csv").read_bytes())[:-9])
    for path in (written, packed):
        assert run("heatmap", tmp_path, path, "day", "--period=2026-11-20") == 1
        assert charged(tmp_path) == 0
        assert SECRET not in capfd.readouterr().err


@pytest.mark.parametrize("form", ["csv", "ndjson"])
@pytest.mark.parametrize("job", ["heatmap", "quantiles", "moments"])
def test_a_value_of_one_user_ends_no_run(
    job: str, form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """The exit status is public. It says nothing of a user whose record holds text for a number, in the last chunk."""
    monkeypatch.setattr(text_lines, "CHUNK_BYTES", 9_000)
    write_key(tmp_path / "key")
    path = (write_csv if form == "csv" else write_ndjson)(city(), tmp_path / f"log.{form}")
    lines = {
        "csv": f"{SECRET},{SECRET},0.5,k1\n",
        "ndjson": json.dumps({"user_id": SECRET, "latitude": SECRET, "longitude": 0.5, "kind": 7}) + "\n",
    }
    path.write_text(path.read_text() + lines[form])
    assert run(job, tmp_path, path, "day", "--period=2026-11-20") == 0
    said = capfd.readouterr()
    assert SECRET not in said.err + said.out


# --- what the ledger knows again ---


def test_a_csv_file_is_known_again_under_another_name(tmp_path: Path) -> None:
    write_key(tmp_path / "key")
    first = write_csv(city(), tmp_path / "log.csv")
    assert run("heatmap", tmp_path, first, "one", "--period=2026-11-20") == 0
    (tmp_path / "elsewhere").mkdir()
    shutil.copy(first, tmp_path / "elsewhere" / "other.txt")
    again = ["--period=2026-11-21", "--input_format=csv"]
    assert run("heatmap", tmp_path, tmp_path / "elsewhere", "two", *again) == 2
    assert charged(tmp_path) == 1


def test_the_files_of_a_table_are_known_again_in_a_later_version(tmp_path: Path) -> None:
    """A second day may not read the first day's rows again, only because the table has a new version."""
    import deltalake

    write_key(tmp_path / "key")
    where = delta(records(600), tmp_path / "table")
    assert run("heatmap", tmp_path, where, "one", "--period=2026-11-20") == 0
    deltalake.write_deltalake(str(tmp_path / "table"), records(600, seed=7), mode="append")
    assert run("heatmap", tmp_path, where, "two", "--period=2026-11-21") == 2
    assert charged(tmp_path) == 1
    assert run("heatmap", tmp_path, where, "one", "--period=2026-11-20") == 0  # published already, and not changed


def test_a_filter_of_partitions_is_stated_and_bound_to_the_key(tmp_path: Path) -> None:
    """Two filters that choose the same files are two requests, and another day's files are another charge."""
    write_key(tmp_path / "key")
    for day in (20, 21):
        (tmp_path / "logs" / f"day=2026-11-{day}").mkdir(parents=True)
        write_csv(city().slice(0, 400 + day), tmp_path / "logs" / f"day=2026-11-{day}" / "log.csv")
    chosen = ["--where=day=2026-11-20", "--period=2026-11-20"]
    assert run("heatmap", tmp_path, tmp_path / "logs", "one", *chosen) == 0
    manifest = json.loads((tmp_path / "one" / "manifest.json").read_text())
    assert manifest["parameters"]["where"] == ["day=2026-11-20"]
    again = ["--where=day=2026-11-19:2026-11-20", "--period=2026-11-20"]
    shutil.rmtree(tmp_path / "one")
    assert run("heatmap", tmp_path, tmp_path / "logs", "one", *again) == 2  # another request under a charged id
    other = ["--where=day=2026-11-21", "--period=2026-11-21"]
    assert run("heatmap", tmp_path, tmp_path / "logs", "two", *other) == 0
