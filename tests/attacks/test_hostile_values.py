"""One user decides for nobody else: whatever they write, other users' records are read as without them.

A value of one user must neither change the type, parser or records of others, nor end a run. Every hostile value
goes through every reader, column and place in the file. Then the same log without that user is read, and the other
users' hashes, cells, items, numbers and groups must be equal.
"""

from __future__ import annotations

import itertools
import random
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from sfumato.pipelines.command_line.run import request_of
from sfumato.pipelines.frame.inputs import inspect, layout_of, match_files
from sfumato.schemas.locations import NUMBERS, Auxiliary, ItemColumns, LocationColumns
from sfumato.schemas.log_layout import LogLayout
from sfumato.schemas.moments import FixedPoint, ValueColumns
from sfumato.schemas.region import Grid, Region
from sfumato.transforms.histogram.item_encoding import ColumnItems, NumberItems
from sfumato.transforms.inputs import text_lines
from sfumato.transforms.inputs.data_frame import table_of
from sfumato.transforms.inputs.log_reader import read_batches, slice_file
from sfumato.transforms.inputs.rows import log_of_rows
from sfumato.transforms.locations.encode import encode_locations
from sfumato.transforms.moments.client_values import Values
from sfumato.transforms.moments.groups import ColumnGroups
from sfumato.transforms.privacy.keys import FixedSecret, RunKey
from tests.attacks import hostile
from tests.attacks.hostile import VALUES, Raw, Row, of_guest, of_others, placed

KEY = RunKey.derive(FixedSecret(b"hostile!" * 4), {"job": "hostile"})
GRID = Grid(Region(-1, 50, 1, 51), 10)
LOCATIONS = LocationColumns(time="t", auxiliary=Auxiliary("kind", ("k0", "k1", "k2")))
ITEMS = ColumnItems(ItemColumns("kind"))
NUMBER_ITEMS = NumberItems(ItemColumns("value", kinds=NUMBERS), 0, 100, 12)
CLIENTS = Values(ValueColumns("value", group="kind"), FixedPoint(8, 4), ColumnGroups("kind", ("k0", "k1")))


@dataclass(frozen=True)
class EveryColumn:
    """The columns of all jobs at once, with the types of their roles."""

    def names(self) -> list[str]:
        return ["user_id", "latitude", "longitude", "t", "kind", "value"]

    def text_types(self) -> dict[str, pa.DataType]:
        return {**ITEMS.columns.text_types(), **NUMBER_ITEMS.columns.text_types(), **LOCATIONS.text_types()}

    def check(self, schema: pa.Schema, path: str) -> dict[str, str]:
        LOCATIONS.check(schema, path)
        CLIENTS.columns.check(schema, path)
        return ITEMS.columns.check(schema, path)


COLUMNS = EveryColumn()


def everybody(users: Any) -> Any:
    return np.ones(len(users), dtype=bool)


def records_of(where: Path, **options: Any) -> Counter[tuple[Any, ...]]:
    """What all jobs keep of a log: the records of each user, and the users of dropped rows, by their hashes."""
    return sum(records_by_file(where, **options).values(), Counter())


def records_by_file(where: Path, **options: Any) -> dict[str, Counter[tuple[Any, ...]]]:
    """The same of each file of a folder, or of one file, by its path."""
    request = request_of("heatmap", {"input": str(where), "output": "out", "region": "-1,50,1,51", **options})
    files = match_files(request.input, layout_of(request))
    inspect(files, COLUMNS)
    found = {}
    for file in files:
        batches = (one for part in slice_file(file.log) for one in read_batches(part, COLUMNS, ahead=False))
        found[file.path] = kept_of(pa.Table.from_batches(batches))
    return found


def kept_of(table: pa.Table) -> Counter[tuple[Any, ...]]:
    return Counter(record for batch in table.combine_chunks().to_batches() for record in records_of_batch(batch))


def records_of_batch(batch: pa.RecordBatch) -> Iterator[tuple[Any, ...]]:
    places = encode_locations(batch, LOCATIONS, GRID, KEY.subkey("users"))
    assert places.values is not None
    yield from zip(places.users.tolist(), itertools.repeat("cell"), places.codes.tolist(), places.values.tolist())
    yield from {(user, "no cell") for user in places.unusable.tolist()}
    for name, items in (("item", ITEMS), ("bin", NUMBER_ITEMS)):
        sample = items.encode(batch, KEY, everybody).sample
        yield from zip(sample.users.tolist(), itertools.repeat(name), sample.items.tolist())
    clients = CLIENTS.encode(batch, KEY)
    assert clients.users is not None
    assert clients.groups is not None
    yield from zip(clients.users.tolist(), itertools.repeat("value"), clients.codes.tolist(), clients.groups.tolist())


def check_others(with_guest: Counter[tuple[Any, ...]], others: Counter[tuple[Any, ...]], what: object) -> None:
    """Other users have the same records, and the guest is one user at most."""
    known = {record[0] for record in others}
    kept = Counter(
        {record: number for record, number in with_guest.items() if record[0] in known and record[1] != "no cell"}
    )
    expected = Counter({record: number for record, number in others.items() if record[1] != "no cell"})
    assert kept == expected, what
    assert len({record[0] for record in with_guest} - known) <= 1, what


@pytest.fixture
def short_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks of a few lines, so that their borders lie everywhere, in slices of some chunks."""
    for name, value in (("CHUNK_BYTES", 500), ("SLICE_BYTES", 1_800)):
        monkeypatch.setattr(text_lines, name, value)


def attack(reader: str, column: str, values: list[Any], places: list[str], rows: int, folder: Path) -> None:
    write, others = hostile.WRITERS[reader], of_others()
    expected = records_of(write(others, folder))
    logs, attempts = folder / "logs", {}
    logs.mkdir(exist_ok=True)
    for value, place in itertools.product(values, places):
        if isinstance(value, Raw) and (reader == "parquet" or b"1005" in value.data):
            continue  # a logger that lets users write whole records is beyond help
        log = write(placed(others, of_guest(column, value, rows), place), folder)
        attempts[str(log.rename(logs / f"{len(attempts)}{log.suffix}"))] = (column, repr(value)[:80], place)
    for path, found in records_by_file(logs).items() if attempts else ():
        check_others(found, expected, attempts.pop(path))
    assert not attempts
    shutil.rmtree(logs)


# Longitudes are read as latitudes are, and another line end meets only the first and the last column of a line.
KINDS = [(reader, name) for reader in hostile.WRITERS for name in hostile.COLUMNS if name != "longitude"]
KINDS = [(reader, name) for reader, name in KINDS if reader != "csv, CR LF" or name in ("user_id", "note")]
PLACES = ["first", "middle", "last"]


@pytest.mark.usefixtures("short_chunks")
@pytest.mark.parametrize(("reader", "column"), KINDS)
def test_a_hostile_value_changes_no_other_user(reader: str, column: str, tmp_path: Path) -> None:
    """A sample; `test_every_hostile_value_changes_no_other_user` tries all."""
    assert len(VALUES) > 300
    rng = random.Random(f"{reader} {column}")
    for place in PLACES:
        attack(reader, column, rng.sample(VALUES, 4), [place], 1, tmp_path)


@pytest.mark.slow
@pytest.mark.usefixtures("short_chunks")
@pytest.mark.parametrize(("reader", "column"), KINDS)
def test_every_hostile_value_changes_no_other_user(reader: str, column: str, tmp_path: Path) -> None:
    for number, place in enumerate(PLACES):
        attack(reader, column, VALUES[number::3], [place], 1, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(("reader", "column"), KINDS)
def test_20000_hostile_rows_change_no_other_user(reader: str, column: str, tmp_path: Path) -> None:
    rng = random.Random(f"{column} {reader}")
    short = [value for value in VALUES if len(repr(value)) < 200]
    for place in PLACES:
        attack(reader, column, rng.sample(short, 1), [place], 20_000, tmp_path)


POINT = {"geometry_column": "geometry"}
PLACE_FORMS: dict[str, tuple[Callable[[list[Row], Path], Path], list[Any], dict[str, Any]]] = {
    "GeoParquet": (hostile.write_geoparquet, hostile.WKB, POINT),
    "WKT in CSV": (hostile.write_wkt_csv, hostile.WKT, POINT),
    "WKT in NDJSON": (hostile.write_wkt_ndjson, [*hostile.WKT, 7, True, [0.5, 50.5]], POINT),
    "H3 in CSV": (hostile.write_cells, hostile.CELLS, {"cell_column": "geometry", "cell_index": "h3:8"}),
}


@pytest.mark.parametrize("form", PLACE_FORMS)
def test_a_hostile_place_changes_no_other_user(form: str, tmp_path: Path) -> None:
    write, values, options = PLACE_FORMS[form]
    others = of_others()
    expected = records_of(write(others, tmp_path), **options)
    assert sum(record[1] == "cell" for record in expected) == len(others)
    for number, value in enumerate(values):
        guest = [{**row, "geometry": value} for row in of_guest("note", "")]
        found = records_of(write(placed(others, guest, PLACES[number % 3]), tmp_path), **options)
        check_others(found, expected, (form, repr(value)[:80]))


@pytest.mark.slow
@pytest.mark.parametrize("column", ["user_id", "latitude", "t", "kind", "value"])
def test_a_hostile_partition_changes_no_other_user(column: str, tmp_path: Path) -> None:
    others = of_others(12)
    expected = records_of(hostile.write_hive(others, tmp_path, column))
    texts = [value for value in VALUES if isinstance(value, str | bytes | float) and str(value) not in ("", ".", "..")]
    texts = [text for text in texts if len(repr(text)) < 60 and not (isinstance(text, str) and text.isspace())]
    for value in random.Random(column).sample(texts, 25):
        found = records_of(hostile.write_hive([*others, *of_guest(column, value)], tmp_path, column))
        check_others(found, expected, (column, repr(value)))


def frame_of(rows: list[Row]) -> pd.DataFrame:
    columns = {}
    for name in hostile.COLUMNS:
        values = [row[name] for row in rows]
        try:
            columns[name] = pd.Series(values)
        except (UnicodeEncodeError, OverflowError):  # of pandas, which makes text or numbers of them
            columns[name] = pd.Series(values, dtype=object)
    return pd.DataFrame(columns)


@pytest.mark.slow
@pytest.mark.parametrize("column", hostile.COLUMNS)
def test_a_hostile_value_in_a_row_changes_no_other_user(column: str) -> None:
    """Rows of a caller's pipeline: the guest's row is in their bundle, and may lack the column."""
    layout = LogLayout(columns=tuple(COLUMNS.names()))

    def kept(rows: list[Row]) -> Counter[tuple[Any, ...]]:
        log = log_of_rows(rows, COLUMNS, layout)
        return kept_of(
            pa.Table.from_batches(batch for part in slice_file(log) for batch in read_batches(part, COLUMNS))
        )

    others = of_others()
    expected = kept(others)
    for number, value in enumerate(value for value in VALUES if not isinstance(value, Raw)):
        check_others(kept(placed(others, of_guest(column, value), PLACES[number % 3])), expected, repr(value)[:80])
    lacks = [{name: value for name, value in row.items() if name != column} for row in of_guest(column, "")]
    check_others(kept([*others, *lacks]), expected, "no such column")


@pytest.mark.slow
@pytest.mark.parametrize("column", hostile.COLUMNS)
def test_a_hostile_value_in_a_frame_changes_no_other_user(column: str) -> None:
    """Half of the values beside ids that are text, half beside integers."""
    layout = LogLayout(columns=tuple(COLUMNS.names()))
    others, values = of_others(), [value for value in VALUES if not isinstance(value, Raw)]
    for part, ids in enumerate(("text", "integers")):
        if ids == "integers":  # and pandas has other types for all of them once a guest is there
            others = [{**row, "user_id": 1000 + number, "t": 1_795_168_800} for number, row in enumerate(others)]
        expected = kept_of(table_of(frame_of(others), COLUMNS, layout))
        for number, value in enumerate(values[part::2]):
            rows = placed(others, of_guest(column, value), PLACES[number % 3])
            check_others(kept_of(table_of(frame_of(rows), COLUMNS, layout)), expected, (column, repr(value)[:80]))
