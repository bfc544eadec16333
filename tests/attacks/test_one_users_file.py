"""One user's file, partition or row decides nothing for others: tables, empty hours, views, crowded groups.

Each case was an attack: a guest's data file replaced everybody's, their date ended a run, their missing value met a
type that Arrow does not filter, their quiet hour had a file without types, their place in a sample changed a type.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import apache_beam as beam
import deltalake
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sfumato.beam import PrivateHistogram
from sfumato.pipelines import cli
from sfumato.schemas.places import Places
from sfumato.transforms.inputs.table_files import delta_files
from sfumato.transforms.locations.distributions import bound_distributions
from sfumato.transforms.locations.spill import Spill
from sfumato.transforms.locations.users import bound_slots, bound_users
from tests.conftest import make_logs
from tests.seeds import seeded_rng

pytestmark = pytest.mark.usefixtures("blank_pictures")

REGION = "--region=-1,50,1,51"
JOBS = {
    "heatmap": ["heatmap", REGION, "--depth=3", "--method=flat"],
    "histogram": ["histogram", "--column=kind", "--population=400", "--delta=1e-5"],
    "central histogram": ["histogram", "--column=kind", "--trust=central", "--delta=1e-5"],
    "listed": ["histogram", "--column=kind", "--trust=central", "--items_file={folder}/items.txt"],
    "quantiles": ["quantiles", "--column=latitude", "--range=50,51", "--trust=central"],
    "moments": ["moments", "--column=latitude", "--bits=6"],
    "flows": ["flows", REGION, "--origin=longitude,latitude", "--destination=to_x,to_y"],
}


def run(job: str, where: str | Path, folder: Path) -> int:
    (folder / "items.txt").write_text("k0\nk1\n")
    options = [one.format(folder=folder) for one in JOBS[job]]
    return cli.main([*options, "--epsilon=2", "--seed=1", f"--input={where}", f"--output={folder}/out", "--overwrite"])


def log(users: int, kind: Any = "k0") -> pa.Table:
    table = make_logs(users, 1, seed=users, kind="string")
    ends = {"kind": pa.array([kind] * users, pa.string()), "to_x": table["longitude"], "to_y": table["latitude"]}
    for name, column in ends.items():
        table = table.append_column(name, column)
    return table


def test_data_files_of_a_table_may_share_a_name(tmp_path: Path) -> None:
    """Spark gives a task's files one name in every partition."""
    for kind, users in (("k0", 400), ("0", 1), ("zz", 1)):
        (tmp_path / "table" / f"kind={kind}").mkdir(parents=True)
        pq.write_table(log(users).drop_columns(["kind"]), tmp_path / "table" / f"kind={kind}" / "part-00000.parquet")
    kinds = deltalake.Schema([deltalake.Field("kind", "string")])
    deltalake.convert_to_deltalake(str(tmp_path / "table"), partition_by=kinds, partition_strategy="hive")
    found = {dict(file.partition)["kind"]: file.path for file in delta_files(str(tmp_path / "table"))}
    assert {kind: pq.read_metadata(path).num_rows for kind, path in found.items()} == {"k0": 400, "0": 1, "zz": 1}
    assert all(f"kind={kind}/" in path for kind, path in found.items())


@pytest.mark.parametrize("folder", ["table", "a table"])
def test_a_day_beyond_all_calendars_is_a_day_like_others(folder: str, tmp_path: Path) -> None:
    days = pa.array([20_000] * 400 + [5_000_000, None], pa.int32()).cast(pa.date32())
    deltalake.write_deltalake(str(tmp_path / folder), log(402).append_column("day", days), partition_by=["day"])
    assert {dict(file.partition)["day"] for file in delta_files(str(tmp_path / folder))} == {
        "2024-10-04", "15659-07-15", None,
    }  # fmt: skip
    assert run("heatmap", f"delta:{tmp_path / folder}", tmp_path) == 0


VIEWS: dict[str, Callable[[pa.Table], pa.Table]] = {
    "ids": lambda table: table.set_column(0, "user_id", table["user_id"].cast(pa.string_view())),
    "bytes": lambda table: table.set_column(
        0, "user_id", table["user_id"].cast(pa.binary()).cast(pa.large_binary()).cast(pa.binary_view())
    ),
    "kinds": lambda table: table.set_column(3, "kind", table["kind"].cast(pa.string_view())),
}


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("job", JOBS)
def test_a_missing_value_beside_views_ends_no_run(job: str, view: str, tmp_path: Path) -> None:
    """Arrow filters no views, and whether a row is filtered out follows from records."""
    others, guest = log(400), log(2, None)
    guest = guest.set_column(0, "user_id", pa.array([None, "guest"]))
    guest = guest.set_column(1, "latitude", pa.array([None, np.nan]))
    for number, table in enumerate((others, pa.concat_tables([others, guest]))):
        pq.write_table(VIEWS[view](table), tmp_path / f"{number}.parquet")
        assert run(job, tmp_path / f"{number}.parquet", tmp_path) == 0


@pytest.mark.parametrize("job", JOBS)
@pytest.mark.parametrize("column", ["user_id", "latitude", "kind"])
def test_an_hour_without_anybody_ends_no_run(column: str, job: str, tmp_path: Path) -> None:
    """pandas gives a column without values Arrow's type of nulls."""
    (tmp_path / "logs").mkdir()
    pq.write_table(log(400), tmp_path / "logs" / "10.parquet")
    for hour, table in ((9, log(2)), (11, log(0))):
        place = table.schema.get_field_index(column)
        pq.write_table(
            table.set_column(place, column, pa.nulls(table.num_rows)), tmp_path / "logs" / f"{hour:02}.parquet"
        )
    assert run(job, tmp_path / "logs", tmp_path) == 0


def test_other_parts_of_a_point_are_not_read(tmp_path: Path) -> None:
    others = log(400)
    axes = [others["longitude"].combine_chunks(), others["latitude"].combine_chunks(), pa.array(["x"] * 400)]
    points = pa.StructArray.from_arrays(axes, ["x", "y", "note"])
    pq.write_table(pa.table({"user_id": others["user_id"], "geometry": points}), tmp_path / "log.parquet")
    JOBS["points"] = ["heatmap", REGION, "--depth=3", "--method=flat", "--geometry_column=geometry"]
    assert run("points", tmp_path / "log.parquet", tmp_path) == 0


@pytest.mark.slow
def test_a_partition_whose_name_is_not_utf8_ends_no_run(tmp_path: Path) -> None:
    for name in (b"kind=k0", b"kind=\xff", b"kind=%FE"):
        folder = bytes(tmp_path) + b"/logs/" + name
        Path(folder.decode("utf-8", "surrogateescape")).mkdir(parents=True)
        with open(folder + b"/log.csv", "wb") as file:
            users = 400 if name == b"kind=k0" else 1
            lines = [f"{name!r}{number},50.5,0.5" for number in range(users)]
            file.write("\n".join(["user_id,latitude,longitude", *lines, ""]).encode())
    for job in ("heatmap", "histogram", "central histogram", "listed"):
        assert run(job, tmp_path / "logs", tmp_path) == 0


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
        with pytest.raises(Exception, match=r"column 'kind' holds"):
            pipeline.run().wait_until_finish()
