"""An attack on types: one user's value made objects or floating-point numbers of a whole column.

Then `7` of all other users was another id, or the run ended with an error that no other log gives.
Now each value of a data frame is read by itself.
"""

from __future__ import annotations

from datetime import UTC, date, datetime
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import shapely

import sfumato
from sfumato.pipelines.inputs import layout_of
from sfumato.pipelines.run import columns_of, request_of
from sfumato.transforms.inputs.data_frame import table_of
from sfumato.transforms.inputs.points import points_of
from tests.seeds import seeded_rng

pytestmark = pytest.mark.usefixtures("blank_pictures")

REGION = (-1.0, 50.0, 1.0, 51.0)
USERS = 60


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


def frame(users: int = USERS) -> pd.DataFrame:
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


AT_CELLS = {"cell_column": "cell", "cell_index": "h3:9"}
REQUESTS: dict[str, tuple[str, dict[str, Any]]] = {
    "heatmap": ("heatmap", {"region": REGION, "auxiliary": "flag", "weight_column": "km"}),
    "heatmap of times": ("heatmap", {"region": REGION, "time_column": "time"}),
    "heatmap of cells": ("heatmap", {"region": REGION, **AT_CELLS}),
    "heatmap of kinds": ("heatmap", {"region": REGION, "auxiliary": "kind", "categories": "0,1"}),
    "heatmap of e7": ("heatmap", {"region": REGION, "coordinates": "e7"}),
    "heatmap of points": ("heatmap", {"region": REGION, "geometry_column": "cell"}),
    "histogram": ("histogram", {"column": "kind", "epsilon": 1, "delta": 1e-6}),
    "quantiles": ("quantiles", {"column": "km", "range": (0, 10), "epsilon": 1, "delta": 1e-6}),
    "moments": ("moments", {"column": "km", "epsilon": 1, "group_by": "kind", "groups": "0,1"}),
    "flows": ("flows", {"region": REGION, "time_column": "time"}),
}  # fmt: skip


def read(name: str, logs: pd.DataFrame) -> pa.Table:
    """What a job reads of a data frame."""
    job, options = REQUESTS[name]
    request = request_of(job, {"input": "x", "output": "y", **options})
    return table_of(logs, columns_of(request), layout_of(request, columns_of(request)))


def others_of(table: pa.Table) -> dict[str, list[Any]]:
    return dict(table.slice(0, USERS).to_pydict())


@pytest.mark.slow
@pytest.mark.parametrize("name", REQUESTS)
def test_no_users_value_changes_what_is_read_of_others(name: str) -> None:
    alone = read(name, frame())
    for column in alone.column_names:
        for odd in ODD:
            both = read(name, with_odd(column, odd))
            assert both.schema == alone.schema
            assert others_of(both) == others_of(alone), (column, type(odd))


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
    others = [None if user == 5 else user for user in range(USERS)]
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


def test_columns_that_no_job_reads_are_left_alone() -> None:
    logs = frame().assign(other=[Strange()] * USERS)
    assert read("histogram", logs).column_names == ["user_id", "kind"]
    with pytest.raises(sfumato.RequestError, match=r"no column 'kind'.*other"):
        sfumato.histogram(logs.drop(columns="kind"), column="kind", epsilon=1.0, delta=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("job", "odd_column", "options"),
    [
        ("heatmap", "latitude", {"region": REGION, "depth": 4}),
        ("zones", "user_id", {"region": REGION, "quadkey": 8}),
        ("histogram", "kind", {"column": "kind"}),
        ("hotspots", "kind", {"column": "kind", "depth": 2, "levels": 2}),
        ("quantiles", "km", {"column": "km", "range": (0, 10)}),
        ("moments", "km", {"column": "km", "range": (0, 10), "trust": "central"}),
        ("flows", "time", {"region": REGION, "time_column": "time"}),
        ("ranges", "longitude", {"region": REGION, "method": "grid", "sizes": (500, 5000)}),
    ],
)
def test_no_users_value_ends_a_run(job: str, odd_column: str, options: dict[str, Any]) -> None:
    for odd in ("guest", 2**63):
        release = getattr(sfumato, job)(with_odd(odd_column, odd), epsilon=1.0, seed=1, **options)
        assert release.manifest["release_id"]
