"""One user's file, row or value decides nothing for others, ends no run and is quoted nowhere."""

from __future__ import annotations

from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import apache_beam as beam
import deltalake
import h3
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import shapely

import sfumato
from sfumato.beam import PrivateHistogram
from sfumato.pipelines.command_line.run import columns_of, request_of
from sfumato.pipelines.frame.inputs import layout_of
from sfumato.schemas.errors import DataError
from sfumato.schemas.region import Places
from sfumato.schemas.release import MANIFEST_FILE
from sfumato.transforms.histogram.central_counts import count_items
from sfumato.transforms.histogram.count_noise import ItemBound
from sfumato.transforms.histogram.sampling_round import WHOLE, NumberPrefixes, TextPrefixes
from sfumato.transforms.histogram.user_sample import Sample, merge
from sfumato.transforms.inputs.data_frame import table_of
from sfumato.transforms.inputs.log_file import reading_file
from sfumato.transforms.inputs.points import points_of
from sfumato.transforms.inputs.table_files import delta_files
from sfumato.transforms.locations.distributions import bound_distributions
from sfumato.transforms.locations.spill import Spill
from sfumato.transforms.locations.users import bound_slots, bound_users
from sfumato.transforms.privacy.keys import FixedSecret, RunKey
from tests.attacks.jobs import JOBS, REGION, city, run
from tests.conftest import write_files
from tests.keys import write_key
from tests.seeds import seeded_rng

# One user's file, partition or row decides nothing for others: tables, empty hours, views, crowded groups.
#
# Each case was an attack: a guest's data file replaced everybody's, their date ended a run, their missing value met a
# type that Arrow does not filter, their quiet hour had a file without types, their place in a sample changed a type.


LISTED = "histogram --column=kind --trust=central --items_file={folder}/items.txt"
READING = {**JOBS, "listed": LISTED}  # of 900 users, as some of them state: of 400 one in 10^7 would be refused


def ends_well(job: str, where: str | Path, folder: Path) -> bool:
    write_key(folder / "key")
    (folder / "items.txt").write_text("k0\nk1\n")
    return run(READING[job].format(folder=folder), where, folder) == 0


def test_data_files_of_a_table_may_share_a_name(tmp_path: Path) -> None:
    """Spark gives a task's files one name in every partition."""
    for kind, users in (("k0", 400), ("0", 1), ("zz", 1)):
        (tmp_path / "table" / f"kind={kind}").mkdir(parents=True)
        pq.write_table(city(users).drop_columns(["kind"]), tmp_path / "table" / f"kind={kind}" / "part-00000.parquet")
    kinds = deltalake.Schema([deltalake.Field("kind", "string")])
    deltalake.convert_to_deltalake(str(tmp_path / "table"), partition_by=kinds, partition_strategy="hive")
    found = {dict(file.partition)["kind"]: file.path for file in delta_files(str(tmp_path / "table"))}
    assert {kind: pq.read_metadata(path).num_rows for kind, path in found.items()} == {"k0": 400, "0": 1, "zz": 1}
    assert all(f"kind={kind}/" in path for kind, path in found.items())


def test_a_day_beyond_all_calendars_is_a_day_like_others(tmp_path: Path) -> None:
    folder = "a table"  # with a space in its name
    days = pa.array([20_000] * 400 + [5_000_000, None], pa.int32()).cast(pa.date32())
    deltalake.write_deltalake(str(tmp_path / folder), city(402).append_column("day", days), partition_by=["day"])
    assert {dict(file.partition)["day"] for file in delta_files(str(tmp_path / folder))} == {
        "2024-10-04", "15659-07-15", None,
    }  # fmt: skip
    assert ends_well("heatmap", f"delta:{tmp_path / folder}", tmp_path)


def as_views(table: pa.Table, are_bytes: bool) -> pa.Table:
    ids = table["user_id"]
    ids = ids.cast(pa.binary()).cast(pa.large_binary()).cast(pa.binary_view()) if are_bytes else ids.cast(VIEW)
    kinds = table["kind"].cast(VIEW)
    return table.set_column(0, "user_id", ids).set_column(table.schema.get_field_index("kind"), "kind", kinds)


VIEW = pa.string_view()


@pytest.mark.parametrize(("job", "are_bytes"), [*((job, True) for job in READING), ("heatmap", False)])
def test_a_missing_value_beside_views_ends_no_run(job: str, are_bytes: bool, tmp_path: Path) -> None:
    """Arrow filters no views, and whether a row is filtered out follows from records."""
    guest = city(2).set_column(0, "user_id", pa.array([None, "guest"]))
    guest = guest.set_column(1, "latitude", pa.array([None, np.nan]))
    guest = guest.set_column(3, "kind", pa.nulls(2, pa.string()))
    pq.write_table(as_views(pa.concat_tables([city(), guest]), are_bytes), tmp_path / "log.parquet")
    assert ends_well(job, tmp_path / "log.parquet", tmp_path)


@pytest.mark.parametrize("job", READING)
def test_an_hour_without_anybody_ends_no_run(job: str, tmp_path: Path) -> None:
    """pandas gives a column without values Arrow's type of nulls: here each column in a file of its own."""
    (tmp_path / "logs").mkdir()
    pq.write_table(city(), tmp_path / "logs" / "10.parquet")
    for number, column in enumerate(("user_id", "latitude", "kind", "time")):
        for hour, table in ((number, city(2)), (11 + number, city(0))):
            place = table.schema.get_field_index(column)
            table = table.set_column(place, column, pa.nulls(table.num_rows))
            pq.write_table(table, tmp_path / "logs" / f"{hour:02}.parquet")
    assert ends_well(job, tmp_path / "logs", tmp_path)


def test_other_parts_of_a_point_are_not_read(tmp_path: Path) -> None:
    others = city(400)
    axes = [others["longitude"].combine_chunks(), others["latitude"].combine_chunks(), pa.array(["x"] * 400)]
    points = pa.StructArray.from_arrays(axes, ["x", "y", "note"])
    pq.write_table(pa.table({"user_id": others["user_id"], "geometry": points}), tmp_path / "log.parquet")
    write_key(tmp_path / "key")
    assert run("heatmap", tmp_path / "log.parquet", tmp_path, "--geometry_column=geometry") == 0


@pytest.mark.slow
def test_a_partition_whose_name_is_not_utf8_ends_no_run(tmp_path: Path) -> None:
    for name in (b"kind=k0", b"kind=\xff", b"kind=%FE"):
        folder = bytes(tmp_path) + b"/logs/" + name
        Path(folder.decode("utf-8", "surrogateescape")).mkdir(parents=True)
        with open(folder + b"/log.csv", "wb") as file:
            users = 900 if name == b"kind=k0" else 1
            lines = [f"{name!r}{number},50.5,0.5" for number in range(users)]
            file.write("\n".join(["user_id,latitude,longitude", *lines, ""]).encode())
    for job in ("heatmap", "histogram", "central histogram", "listed"):
        (tmp_path / job).mkdir()
        assert ends_well(job, tmp_path / "logs", tmp_path / job)


@pytest.mark.parametrize("values", [False, True])
def test_no_number_of_users_in_a_group_is_an_error(values: bool) -> None:
    """At depth 20 with the hours of a week, 65,536 users fit beside a code. More are taken in blocks."""
    places, rng = Places(20, 168), seeded_rng(5)
    users = rng.integers(0, 2**64, 66_000, np.uint64)
    rows = np.concatenate([users, users[:30_000]])
    codes = rng.integers(0, 4**20, len(rows), np.uint64) | rng.integers(0, 168, len(rows), np.uint64) << np.uint64(40)
    weights = rng.random(len(rows))

    def chunk(kept: np.ndarray) -> list[bytes]:
        columns = (rows[kept], weights[kept], codes[kept]) if values else (rows[kept], codes[kept])
        return [Spill().store(*(np.ascontiguousarray(column).data for column in columns))]

    halves = [np.isin(rows, users[::2]), np.isin(rows, users[1::2])]
    everybody = np.ones(len(rows), bool)
    for bound in (bound_users, lambda chunks, places: bound_users(chunks, places, top=True)):
        apart = np.sort(np.concatenate([bound(chunk(half), places) for half in halves]))
        assert np.array_equal(np.sort(bound(chunk(everybody), places)), apart)
    if not values:
        apart = np.sort(np.concatenate([bound_slots(chunk(half), places, 4) for half in halves]))
        assert np.array_equal(bound_slots(chunk(everybody), places, 4), apart)
    together = bound_distributions(chunk(everybody), places, 100)
    parts = [bound_distributions(chunk(half), places, 100) for half in halves]
    order = np.argsort(np.concatenate([part.users for part in parts]), kind="stable")
    for name in ("users", "codes", "weights"):
        apart = np.concatenate([getattr(part, name) for part in parts])[order]
        assert np.array_equal(getattr(together, name), apart)


@pytest.mark.slow
def test_files_of_two_types_are_refused_whoever_is_drawn(tmp_path: Path) -> None:
    """In a pipeline of one's own. Else the type of what is published would show that a guest is in the sample."""
    pq.write_table(pa.table({"user_id": range(300), "kind": [7] * 300}), tmp_path / "a.parquet")
    pq.write_table(pa.table({"user_id": [999], "kind": ["guest"]}), tmp_path / "b.parquet")
    for _ in range(3):
        pipeline = beam.Pipeline()
        paths = pipeline | beam.Create([str(tmp_path / name) for name in ("a.parquet", "b.parquet")])
        _ = paths | PrivateHistogram(column="kind", epsilon=4.0, delta=1e-5)
        with pytest.raises(Exception, match=r"column 'kind' contains"):
            pipeline.run().wait_until_finish()


# A user whose records say no place does not decide whether a run succeeds: its status would tell that they are there.
#
# Bad coordinates are counted with noise. So are cells of another resolution and points of another reference system,
# also where one file, and so one batch, holds them alone. A file that cannot be read at all is another matter: it is
# damaged.


PLACED = 600
_RNG = seeded_rng(3)
LONGITUDES, LATITUDES = _RNG.uniform(-1, 1, PLACED), _RNG.uniform(50, 51, PLACED)
SECRET = 2**53 + 1  # no float64 is this integer


def cells(resolution: int, users: int) -> pa.Array:
    places = zip(LATITUDES[:users], LONGITUDES[:users], strict=True)
    return pa.array([h3.latlng_to_cell(*place, resolution) for place in places])


def points(srid: int, users: int, order: int = 1) -> pa.Array:
    shapes = shapely.set_srid(shapely.points(LONGITUDES[:users], LATITUDES[:users]), srid)
    return pa.array(shapely.to_wkb(shapes, include_srid=True, byte_order=order))


def not_utf_8() -> pa.Array:
    """A text that is none, as no check of Parquet finds."""
    raw = pa.array([b"\xff%d" % SECRET], pa.binary())
    return pa.Array.from_buffers(pa.string(), 1, raw.buffers())


def structs(x: list[int], y: list[int]) -> pa.Array:
    return pa.StructArray.from_arrays([pa.array(x), pa.array(y)], ["x", "y"])


def e7(values: np.ndarray) -> tuple[pa.Array, pa.Array]:
    return pa.array((10**7 * values).astype(np.int64)), pa.array([SECRET])


WKT = pa.array([f"POINT ({x} {y})" for x, y in zip(LONGITUDES, LATITUDES, strict=True)])
AT_POINTS, AT_CELLS = ["--geometry_column=place"], ["--cell_column=place", "--cell_index=h3:9"]
# Of each form: columns of others and of a guest, and options.
PLACES: dict[str, tuple[dict[str, tuple[pa.Array, pa.Array]], list[str]]] = {
    "cell": ({"place": (cells(9, PLACED), cells(8, 1))}, AT_CELLS),
    "point": ({"place": (points(4326, PLACED), points(3857, 1))}, AT_POINTS),
    "big-endian point": ({"place": (points(4326, PLACED), points(3857, 1, 0))}, AT_POINTS),
    "e7": ({"latitude": e7(LATITUDES), "longitude": e7(LONGITUDES)}, ["--coordinates=e7"]),
    "struct": ({"place": (structs([0] * PLACED, [50] * PLACED), structs([SECRET], [51]))}, AT_POINTS),
    "WKT": ({"place": (WKT, not_utf_8())}, AT_POINTS),
    "H3": ({"place": (cells(9, PLACED), not_utf_8())}, AT_CELLS),
}


@pytest.mark.parametrize("form", PLACES)
def test_a_user_without_a_place_ends_no_run_and_is_not_quoted(
    form: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Among others, and alone in a file. Libraries quote the value that they cannot convert: it stood in the log."""
    write_key(tmp_path / "key")
    (tmp_path / "logs").mkdir()
    columns, options = PLACES[form]
    others, guest = (
        pa.table({"user_id": ids, **{name: pair[number] for name, pair in columns.items()}})
        for number, ids in enumerate((np.arange(PLACED), np.array([PLACED])))
    )
    pq.write_table(pa.concat_tables([others, guest]), tmp_path / "logs" / "a.parquet")
    pq.write_table(guest, tmp_path / "logs" / "b.parquet")
    status = run("heatmap", tmp_path / "logs", tmp_path, *options)
    said = capfd.readouterr()
    assert str(SECRET) not in said.err + said.out
    assert status == 0


# An attack by crashes: a run ended with a traceback if a group of users had no usable row.
#
# Groups follow from the key and the ids. So the exit status told the exact number of usable rows of a group, which is
# secret. Here no group has a usable row, or no group exists at all.


KEY = RunKey.derive(FixedSecret(b"nobody is here, and it is said so"), {})
MAP = f"{REGION} --depth=4"
CATEGORY = "--trust=central --column=kind"
BOUNDS = "--max_items_per_user=2 --max_records_per_item=3"
RUNS = {
    "top place by weight": f"heatmap {MAP} --contribution=top --weight_column=km",
    "all places by dwell": f"heatmap {MAP} --contribution=all --time_column=time",
    "slots": f"heatmap {MAP} --time_column=time --slots=weekday --records_per_user=3 --trust=central",
    "zones": f"zones {REGION} --quadkey=8 --contribution=all",
    "ranges": f"ranges build {REGION} --method=grid --sizes=500,900 --weight_column=km",
    "histogram of records": f"histogram {CATEGORY} --max_records_per_item=2",
    "histogram of items": f"histogram {CATEGORY} {BOUNDS}",
    "histogram of cells": f"histogram {REGION} --cells=3 --trust=central {BOUNDS}",
    "histogram of an average day": f"histogram {REGION} --quadkey=8 --trust=central --average_day --day_column=time "
    "--period=2026-11-20:2026-11-21",
    "hotspots of cells": f"hotspots {MAP} --levels=2 --trust=central --top=3 {BOUNDS}",
    "hotspots": f"hotspots {CATEGORY} --levels=2 --depth=2 {BOUNDS}",
    "quantiles": "quantiles --trust=central --column=km --range=0,10 --method=exponential",
    "moments": "moments --trust=central --column=km --statistics=mean,variance",
    "moments of groups": "moments --column=km --bits=6 --group_by=kind --groups=a,b",
    "flows of records": f"flows {REGION} --time_column=time --max_trips_per_user=2",
    **{f"the smallest {name}": words for name, words in JOBS.items()},
}


@pytest.mark.slow
@pytest.mark.parametrize("name", RUNS)
def test_every_job_ends_as_with_users(name: str, tmp_path: Path) -> None:
    """It publishes a release, or the reason of a noisy refusal, where users' rows hold nothing but an id."""
    write_key(tmp_path / "key")
    for users in (0, 3):
        table = city(users)
        empty = {one.name: pa.nulls(users, one.type) for one in table.schema if one.name != "user_id"}
        pattern = write_files(pa.table({"user_id": table["user_id"], **empty}), tmp_path / f"logs-{users}", 1)
        run(RUNS[name], pattern, tmp_path, release_id=f"of-{users}")
        assert (tmp_path / f"of-{users}" / MANIFEST_FILE).is_file()


def nobody(texts: bool) -> Sample:
    empty = np.empty(0, np.uint64)
    return Sample.from_arrays(empty, empty, texts={7: "seven"} if texts else None)


@pytest.mark.parametrize("max_records", [1, 2])
@pytest.mark.parametrize("max_items", [1, 3])
def test_counts_of_nobody_are_empty_under_every_bound(max_items: int, max_records: int) -> None:
    bound = ItemBound(max_items, max_records)
    of_numbers = count_items(nobody(texts=False), bound, KEY, NumberPrefixes(4, 8), [2, 8])
    of_texts = count_items(merge([nobody(texts=True)] * 2), bound, KEY, TextPrefixes(4), [2, WHOLE])
    assert [int(counts.counts.sum()) for counts in (*of_numbers, *of_texts)] == [0] * 4


# An attack on types: one user's value made objects or floating-point numbers of a whole column.
#
# Then `7` of all other users was another id, or the run ended with an error that no other log gives. Now each value
# of a data frame is read by itself.


FRAME_REGION = (-1.0, 50.0, 1.0, 51.0)
FRAMED = 60


class Strange:
    """A value that Arrow and `str` refuse."""

    def __str__(self) -> str:
        raise ValueError("a secret")

    __repr__ = __str__


ODD: list[Any] = [
    "guest", "", "7", "1e3", "now", "\ud800", b"\xff", True, np.bool_(False), 7.0, 7.5,
    np.float32(0.1), -0.0, 2**63, -(2**70), 10**400, 10**5000, np.uint64(2**63), float("nan"),
    float("inf"), None, pd.NA, pd.NaT, [1, 2], {"a": 1}, {3}, 1j, Strange(), date(2026, 11, 20),
    date.max, datetime(1, 1, 1), datetime(2026, 11, 20, tzinfo=UTC), pd.Timedelta("1s"),
    pd.Timestamp("1969-12-31 23:59:59.999999999"), pd.Timestamp("2026-11-20", tz="Asia/Tokyo"),
    np.datetime64("2026-11-20T05:00:00"), np.datetime64("NaT"), np.timedelta64(5, "s"),
    "2026-11-20T05:00:00+09:00",
]  # fmt: skip


def frame(users: int = FRAMED) -> pd.DataFrame:
    rng, number = seeded_rng(3), np.arange(users)
    return pd.DataFrame({
        "user_id": number,
        "latitude": rng.uniform(50, 51, users),
        "longitude": rng.uniform(-1, 1, users),
        "to_latitude": rng.uniform(50, 51, users),
        "to_longitude": rng.uniform(-1, 1, users),
        "kind": number % 3,
        "km": number / 4,
        "time": pd.Timestamp("2026-11-20") + pd.to_timedelta(number, "min"),
        "flag": number % 2 == 0,
        "cell": np.uint64(0x8928308280FFFFF) + number.astype(np.uint64),
    })  # fmt: skip


def with_odd(column: str, odd: Any) -> pd.DataFrame:
    """The same records, and one of another user, whose value is odd."""
    logs = frame().astype(object)
    more = {name: [*logs[name], odd if name == column else logs[name][0]] for name in logs}
    if column != "user_id":
        more["user_id"][-1] = -1
    # pandas takes a type from the values. A cell is an object: as a float it would be rounded.
    exact = pd.Series(more.pop("cell"), dtype=object)
    inferred = {name: pd.Series(values) for name, values in more.items()}
    return pd.DataFrame(inferred).assign(cell=exact)


REQUESTS: dict[str, tuple[str, dict[str, Any]]] = {
    "heatmap": ("heatmap", {"region": FRAME_REGION, "auxiliary": "flag", "weight_column": "km"}),
    "heatmap of times": ("heatmap", {"region": FRAME_REGION, "time_column": "time"}),
    "heatmap of cells": ("heatmap", {"region": FRAME_REGION, "cell_column": "cell", "cell_index": "h3:9"}),
    "heatmap of kinds": ("heatmap", {"region": FRAME_REGION, "auxiliary": "kind", "categories": "0,1"}),
    "heatmap of e7": ("heatmap", {"region": FRAME_REGION, "coordinates": "e7"}),
    "heatmap of points": ("heatmap", {"region": FRAME_REGION, "geometry_column": "cell"}),
    "histogram": ("histogram", {"column": "kind", "epsilon": 1, "delta": 1e-6}),
    "quantiles": ("quantiles", {"column": "km", "range": (0, 10), "epsilon": 1, "delta": 1e-6}),
    "moments": ("moments", {"column": "km", "epsilon": 1, "group_by": "kind", "groups": "0,1"}),
    "flows": ("flows", {"region": FRAME_REGION, "time_column": "time"}),
}  # fmt: skip


def read(name: str, logs: pd.DataFrame) -> pa.Table:
    """What a job reads of a data frame."""
    job, options = REQUESTS[name]
    request = request_of(job, {"input": "x", "output": "y", **options})
    return table_of(logs, columns_of(request), layout_of(request, columns_of(request)))


def others_of(table: pa.Table) -> dict[str, list[Any]]:
    return dict(table.slice(0, FRAMED).to_pydict())


@pytest.mark.slow
@pytest.mark.parametrize("name", REQUESTS)
def test_no_users_value_changes_what_is_read_of_others(name: str) -> None:
    alone = read(name, frame())
    for column in alone.column_names:
        for odd in ODD:
            both = read(name, with_odd(column, odd))
            assert both.schema == alone.schema
            assert others_of(both) == others_of(alone), (column, type(odd))


@pytest.mark.parametrize("name", ["flows", "heatmap of times"])
def test_no_users_time_changes_the_type_of_the_column(name: str) -> None:
    """A value of another type makes objects of pandas' times with a zone. Whether times lack zones is published."""
    logs = frame()
    logs["time"] = logs["time"].dt.tz_localize("Asia/Tokyo")
    odd = logs.astype({"time": object})
    odd.loc[3, "time"] = "2026-11-19 15:03"
    assert read(name, odd).schema == read(name, logs).schema


@pytest.mark.parametrize("name", REQUESTS)
def test_columns_of_numbers_give_the_values_of_their_objects(name: str) -> None:
    """Columns of one type are converted together, and others value by value."""
    logs = frame()
    logs["time"] = logs["time"].dt.tz_localize("Asia/Tokyo")
    logs.loc[3, ["km", "latitude", "time"]] = None
    assert read(name, logs).equals(read(name, logs.astype(object)))
    assert read(name, logs).equals(read(name, logs.convert_dtypes()))


def test_a_missing_value_leaves_the_ids_and_categories_of_others() -> None:
    """In pandas it makes floating-point numbers of them."""
    logs = frame()
    logs.loc[5, ["user_id", "kind"]] = np.nan
    assert logs["user_id"].dtype == np.float64
    found = read("histogram", logs)
    others = [None if user == 5 else user for user in range(FRAMED)]
    ids, kinds = (found[name].to_pylist() for name in ("user_id", "kind"))
    assert ids == [None if user is None else str(user) for user in others]
    assert kinds == [None if user is None else str(user % 3) for user in others]


def test_values_are_those_of_their_text() -> None:
    logs = pd.DataFrame({"user_id": range(6), "kind": [7, 7.0, 7.5, True, b"x", [1]]})
    assert read("histogram", logs)["kind"].to_pylist() == ["7", "7", "7.5", "true", "x", None]
    logs = pd.DataFrame({"user_id": range(6), "km": [7, "7.5", True, "x", np.inf, None]})
    assert read("quantiles", logs)["km"].to_pylist() == [7.0, 7.5, None, None, None, None]


def test_points_are_read_in_every_form() -> None:
    point = shapely.Point(0.5, 50.5)
    forms = [point, point.wkb, point.wkb_hex, point.wkt, b"\xff", shapely.Point(), None, 7]
    logs = pd.DataFrame({"user_id": range(len(forms)), "cell": pd.Series(forms, dtype=object)})
    latitude, longitude = points_of(read("heatmap of points", logs)["cell"].combine_chunks())
    assert latitude.to_pylist()[:4] == [50.5] * 4
    assert longitude.to_pylist()[:4] == [0.5] * 4
    assert not np.isfinite(latitude.to_numpy(zero_copy_only=False)[4:]).any()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("job", "odd_column", "options"),
    [
        ("heatmap", "latitude", {"region": FRAME_REGION, "depth": 4}),
        ("zones", "user_id", {"region": FRAME_REGION, "quadkey": 8}),
        ("histogram", "kind", {"column": "kind"}),
        ("hotspots", "kind", {"column": "kind", "depth": 2, "levels": 2}),
        ("quantiles", "km", {"column": "km", "range": (0, 10)}),
        ("moments", "km", {"column": "km", "range": (0, 10), "trust": "central"}),
        ("flows", "time", {"region": FRAME_REGION, "time_column": "time"}),
        ("ranges", "longitude", {"region": FRAME_REGION, "method": "grid", "sizes": (500, 5000)}),
    ],
)
def test_no_users_value_ends_a_run(job: str, odd_column: str, options: dict[str, Any]) -> None:
    for odd in ("guest", 2**63):
        release = getattr(sfumato, job)(with_odd(odd_column, odd), epsilon=1.0, seed=1, **options)
        assert release.manifest["release_id"]


# An error of reading quotes nothing of a file: its message reaches logs and terminals.


def test_text_that_is_not_utf_8_is_not_quoted() -> None:
    with pytest.raises(DataError) as caught, reading_file("a.parquet", "Parquet"):
        b"Anna\xff".decode()
    assert caught.value.file == "a.parquet"
    assert "0xff" not in str(caught.value)
    assert "position" not in str(caught.value)
