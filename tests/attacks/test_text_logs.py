"""Logs of text and tables: a damaged file is found before the charge, one user ends no run, a file is known again."""

from __future__ import annotations

import gzip
import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sfumato.schemas.locations import LocationColumns
from sfumato.schemas.log_layout import DayRows, LogLayout
from sfumato.transforms.inputs.log_file import LogFile
from sfumato.transforms.inputs.log_reader import read_batches, slice_file
from sfumato.transforms.privacy import admission
from sfumato.transforms.privacy.admission import AdmissionRule, NoisyUserCounts, UserCounts, count_users
from sfumato.transforms.privacy.keys import RunKey
from tests.attacks.hostile import VALUES, WRITERS, Raw, Row, of_guest, placed
from tests.attacks.jobs import JOBS, charged_run, charges, city
from tests.keys import write_key
from tests.log_forms import delta, records, write_csv
from tests.seeds import seeded_rng

# The writers know no second place for flows; of zones the count of users is too noisy for these few.
READING = [name for name in JOBS if name not in ("flows", "zones")]
SAMPLED = {"histogram", "hotspots", "quantiles"}  # whose admission counts a sample of the users


# --- damaged files ---


def packed_and_cut_off(path: Path) -> Path:
    cut = path.with_suffix(".csv.gz")
    cut.write_bytes(gzip.compress(path.read_bytes())[:-9])
    return cut


def without_header(path: Path) -> Path:
    path.write_text(path.read_text().split("\n", 1)[1])
    return path


def with_other_line_ends(path: Path) -> Path:
    path.write_text(path.read_text().replace("\n", "\r"))
    return path


def as_utf_16(path: Path) -> Path:
    path.write_bytes(path.read_text().encode("utf-16"))
    return path


def as_utf_16_without_mark(path: Path) -> Path:
    path.write_bytes(path.read_text().encode("utf-16-le"))
    return path


def as_json_array(path: Path) -> Path:
    array = path.with_suffix(".ndjson")
    array.write_text(json.dumps(city().to_pylist()))
    return array


DAMAGES = [packed_and_cut_off, without_header, with_other_line_ends, as_utf_16, as_utf_16_without_mark, as_json_array]


@pytest.mark.parametrize("job", READING)
def test_a_damaged_file_is_found_before_the_charge(job: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Then the file is mended, and the day is published under its name. No message quotes a record."""
    write_key(tmp_path / "key")
    (tmp_path / "logs").mkdir()
    for damage in DAMAGES if job == "heatmap" else DAMAGES[:1]:
        where = damage(write_csv(city(), tmp_path / "logs" / "log.csv"))
        assert charged_run(job, where, tmp_path) in (1, 2), damage.__name__
        assert not charges(tmp_path), damage.__name__
        said = capfd.readouterr()
        assert where.name in said.err
        assert "user-" not in said.err + said.out, damage.__name__
    if job == "heatmap":
        assert charged_run(job, write_csv(city(), tmp_path / "log.csv"), tmp_path) == 0
        assert len(charges(tmp_path)) == 1


# --- what one user writes ---


def rows_of_city() -> list[Row]:
    """The records of others, with the columns that hostile values go to."""
    return [
        {**row, "t": "2026-11-20T10:00:00Z", "value": 1.5 + number % 40, "note": ""}
        for number, row in enumerate(city().to_pylist())
    ]


def rows_of_guest() -> list[Row]:
    """Every hostile value in every column, and rows without an id: usable, unusable and no records at all."""
    raw = [value for value in VALUES if not isinstance(value, Raw) or b"1005" not in value.data]
    columns = ("latitude", "longitude", "t", "kind", "value", "note")
    rows = [row for column in columns for value in raw for row in of_guest(column, value)]
    return rows + of_guest("user_id", None, 500)


@pytest.mark.slow
@pytest.mark.parametrize("form", ["csv", "ndjson"])
@pytest.mark.parametrize("job", READING)
def test_one_user_ends_no_run(job: str, form: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """The exit status and the messages are those of the run without that user, but for noisy numbers and digests."""
    said = []
    for name, guest in (("others", []), ("with_guest", rows_of_guest())):
        (tmp_path / name).mkdir()
        where = WRITERS[form](placed(rows_of_city(), guest, "middle"), tmp_path / name)
        write_key(tmp_path / name / "key")
        assert charged_run(job, where, tmp_path / name) == 0
        captured = capfd.readouterr()
        # Warnings follow from what is published, which other noise or another sample has made.
        lines = [line for line in (captured.err + captured.out).splitlines() if "warning:" not in line]
        said.append([
            re.sub(r"[0-9a-f]{8,}|-?\d[\d,.]*(e[+-]\d+)?", "N", line.replace(name, "NAME")) for line in lines
        ])  # fmt: skip
    assert said[0] == said[1]
    assert "guest" not in str(said)


@pytest.mark.slow
@pytest.mark.parametrize("form", ["csv", "ndjson", "parquet"])
@pytest.mark.parametrize("job", READING)
def test_rows_without_an_id_count_as_one_user(
    job: str, form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They may all be one person's. The admission's noise hides one user, and not 3,000."""
    counted = list[UserCounts]()

    def count(counts: UserCounts, rule: AdmissionRule, key: RunKey) -> NoisyUserCounts:
        counted.append(counts)
        return count_users(counts, rule, key)

    monkeypatch.setattr(admission, "count_users", count)
    for rows in (0, 3_000):
        (tmp_path / f"{rows}").mkdir()
        write_key(tmp_path / f"{rows}" / "key")
        guest = of_guest("user_id", None, rows)
        where = WRITERS[form](placed(rows_of_city(), guest, "middle"), tmp_path / f"{rows}")
        assert charged_run(job, where, tmp_path / f"{rows}") == 0
    without, with_rows = counted
    assert without.unusable == 0
    assert with_rows.unusable in ({0, 1} if job in SAMPLED else {1})
    assert job in SAMPLED or with_rows.usable == without.usable


# --- what the ledger knows again ---


def test_a_csv_file_is_known_again_under_another_name(tmp_path: Path) -> None:
    write_key(tmp_path / "key")
    first = write_csv(city(), tmp_path / "log.csv")
    assert charged_run("heatmap", first, tmp_path, release_id="one") == 0
    (tmp_path / "elsewhere").mkdir()
    shutil.copy(first, tmp_path / "elsewhere" / "other.txt")
    again = ["--period=2026-11-21", "--input_format=csv"]
    assert charged_run("heatmap", tmp_path / "elsewhere", tmp_path, *again, release_id="two") == 2
    assert len(charges(tmp_path)) == 1


def test_the_files_of_a_table_are_known_again_in_a_later_version(tmp_path: Path) -> None:
    """A second day may not read the first day's rows again, only because the table has a new version."""
    import deltalake

    write_key(tmp_path / "key")
    where = delta(records(600), tmp_path / "table")
    assert charged_run("heatmap", where, tmp_path, release_id="one") == 0
    deltalake.write_deltalake(str(tmp_path / "table"), records(600, seed=7), mode="append")
    assert charged_run("heatmap", where, tmp_path, "--period=2026-11-21", release_id="two") == 2
    assert len(charges(tmp_path)) == 1
    assert charged_run("heatmap", where, tmp_path, release_id="one") == 0  # published already, and not changed


@pytest.mark.slow
def test_a_filter_of_partitions_is_stated_and_bound_to_the_key(tmp_path: Path) -> None:
    """Two filters that choose the same files are two requests, and another day's files are another charge."""
    write_key(tmp_path / "key")
    for day in (20, 21):
        (tmp_path / "logs" / f"day=2026-11-{day}").mkdir(parents=True)
        write_csv(city().slice(0, 400 + day), tmp_path / "logs" / f"day=2026-11-{day}" / "log.csv")
    chosen = ["--where=day=2026-11-20", "--period=2026-11-20"]
    assert charged_run("heatmap", tmp_path / "logs", tmp_path, *chosen, release_id="one") == 0
    manifest = json.loads((tmp_path / "one" / "manifest.json").read_text())
    assert manifest["parameters"]["where"] == ["day=2026-11-20"]
    again = ["--where=day=2026-11-19:2026-11-20", "--period=2026-11-20"]
    shutil.rmtree(tmp_path / "one")  # another request under a charged id
    assert charged_run("heatmap", tmp_path / "logs", tmp_path, *again, release_id="one") == 2
    other = ["--where=day=2026-11-21", "--period=2026-11-21"]
    assert charged_run("heatmap", tmp_path / "logs", tmp_path, *other, release_id="two") == 0


FORMS = {"decimal": LogLayout(decimal=","), "dmy": LogLayout(dates="dmy"), "mdy": LogLayout(dates="mdy")}


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_a_form_of_csv_lets_no_value_change_another(form: LogLayout, tmp_path: Path) -> None:
    """Numbers and times are read alike in a file of one user and between the hostile values of another."""
    good = [
        "1;50,25;13,5;27.11.2026 8:30",
        "2;50;13,5;1/2/2026 08:30:15",
        "3;1e1;-3,5;2026-11-27T08:30:00Z",
        "4;1;2;1/2/2026 8:30 PM",
    ]
    columns, header = LocationColumns(time="t"), "user_id;latitude;longitude;t"
    guests = [value for value in VALUES if isinstance(value, str) and value.isprintable() and ";" not in value]

    def read(lines: list[str]) -> list[dict[str, Any]]:
        path = tmp_path / "log.csv"
        path.write_bytes("\n".join([header, *lines, ""]).encode("utf-8", "surrogatepass"))
        parts = slice_file(LogFile(str(path), layout=form))
        batches = [batch for part in parts for batch in read_batches(part, columns)]
        # Python has no times after the year 9999.
        rows = pa.Table.from_batches(batches).set_column(
            3, "t", pa.chunked_array([b["t"].cast(pa.int64()) for b in batches])
        )
        return rows.to_pylist()

    alone = read(good)
    hostile = [f"guest;{value};{value};{value}" for value in guests if '"' not in value]
    among = read([*hostile[: len(hostile) // 2], *good, *hostile[len(hostile) // 2 :]])
    assert len(hostile) > 100
    assert [row for row in among if row["user_id"] in tuple("1234")] == alone
    assert len(among) == len(good) + len(hostile)


def test_hours_leave_out_rows_of_every_user_alike(tmp_path: Path) -> None:
    """A row is read by its own time only, so one user's rows decide nothing about another's."""
    layout = LogLayout(days=DayRows("t", "Europe/Berlin", None, None, (8, 9)))
    hours = seeded_rng(4).integers(0, 24, 600)
    users = np.arange(600) // 6
    times = pa.array((1_795_737_600 + 3600 * hours) * 10**6, pa.timestamp("us", "UTC"))  # 00:00 in UTC and more
    log = pa.table({"user_id": users, "latitude": users / 10.0, "longitude": hours / 1.0, "t": times})

    def read(table: pa.Table) -> list[tuple[int, float]]:
        pq.write_table(table, tmp_path / "log.parquet", row_group_size=50)
        parts = slice_file(LogFile(str(tmp_path / "log.parquet"), layout=layout))
        batches = (batch for part in parts for batch in read_batches(part, LocationColumns()))
        return [(row["user_id"], row["longitude"]) for batch in batches for row in batch.to_pylist()]

    every = read(log)
    assert {hour for _, hour in every} == {7.0}  # 08:00 in Berlin in winter
    for user in (0, 50, 99):
        without = read(log.filter(pa.array(users != user)))
        assert without == [row for row in every if row[0] != user]
