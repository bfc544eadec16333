"""What forms, columns, statistics and tables of moments accept, and what they refuse."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from sfumato.schemas.errors import RequestError
from sfumato.schemas.moments import (
    BITS_SCHEMA,
    MOMENTS_SCHEMA,
    BitMeans,
    FixedPoint,
    MomentEstimate,
    ValueColumns,
    moment_cells_schema,
)
from sfumato.schemas.release import CELLS_SCHEMA


@pytest.mark.parametrize(
    ("form", "step", "low", "high"),
    [
        (FixedPoint(), 1.0, 0.0, 65535.0),
        (FixedPoint(8, 2), 0.25, 0.0, 63.75),
        (FixedPoint(3, -4), 16.0, 0.0, 112.0),
        (FixedPoint(8, 0, "shift", 100.0), 1.0, -100.0, 155.0),
        (FixedPoint(8, 0, "shift", -100.0), 1.0, 100.0, 355.0),
        (FixedPoint(8, 1, "split"), 0.5, -127.5, 127.5),
        (FixedPoint(52, 52), 2.0**-52, 0.0, 1 - 2.0**-52),
        (FixedPoint(52, -52, "split"), 2.0**52, -(2.0**104) + 2.0**52, 2.0**104 - 2.0**52),
        (FixedPoint(1), 1.0, 0.0, 1.0),
    ],
)
def test_steps_and_ranges(form: FixedPoint, step: float, low: float, high: float) -> None:
    assert (form.step, form.low, form.high) == (step, low, high)
    assert math.copysign(1, form.low) == (-1 if low < 0 else 1)  # no negative zero in a manifest


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"bits": 0}, "bits: must lie in 1..52, got 0"),
        ({"bits": 53}, "bits: must lie in 1..52, got 53"),
        ({"bits": -1}, "bits: must lie in 1..52, got -1"),
        ({"bits": True}, "bits: must lie in 1..52, got True"),
        ({"bits": math.nan}, "bits: must lie in 1..52, got nan"),
        ({"fraction_bits": 53}, "fraction_bits: must lie in -52..52, got 53"),
        ({"fraction_bits": -53}, "fraction_bits: must lie in -52..52, got -53"),
        ({"fraction_bits": False}, "fraction_bits: must lie in -52..52, got False"),
        ({"fraction_bits": math.nan}, "fraction_bits: must lie in -52..52, got nan"),
        ({"signed": "shift", "offset": math.nan}, "signed: shift:OFFSET needs a finite number, got nan"),
        ({"signed": "shift", "offset": math.inf}, "signed: shift:OFFSET needs a finite number, got inf"),
        ({"offset": 3.0}, "signed: shift:OFFSET needs a finite number, got 3.0"),
        ({"signed": "split", "offset": 3.0}, "signed: shift:OFFSET needs a finite number, got 3.0"),
    ],
)
def test_forms_that_cannot_be_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(RequestError, match=message):
        FixedPoint(**arguments)


@pytest.mark.parametrize("arguments", [{"bits": 4.5}, {"fraction_bits": 0.5}, {"signed": "both"}])
def test_forms_of_other_types_are_refused(arguments: dict[str, Any]) -> None:
    with pytest.raises(RequestError):
        FixedPoint(**arguments)


SCHEMA = pa.schema(
    {
        "user_id": pa.string(),
        "speed": pa.float32(),
        "city": pa.dictionary(pa.int32(), pa.string()),
        "latitude": pa.float64(),
        "longitude": pa.float64(),
        "big": pa.uint64(),
        "words": pa.list_(pa.string()),
    }
)


def test_columns_to_read_and_their_kinds() -> None:
    columns = ValueColumns("speed", group="city", latitude="latitude", longitude="longitude")
    assert columns.names() == ["user_id", "speed", "city", "latitude", "longitude"]
    assert columns.check(SCHEMA, "f") == {"speed": "floating-point numbers", "city": "text"}
    rows = ValueColumns("latitude", user_id=None, latitude="latitude", longitude="longitude")
    assert rows.names() == ["latitude", "longitude"]  # each once
    assert rows.check(SCHEMA, "f") == {"latitude": "floating-point numbers"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"column": "user_id"}, "column: 'user_id' is the column of user ids"),
        ({"column": "x", "group": "user_id"}, "group_by: 'user_id' is the column of user ids, or that of the values"),
        ({"column": "x", "group": "x"}, "group_by: 'x' is the column of user ids, or that of the values"),
    ],
)
def test_columns_that_are_two_things_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(RequestError, match=message):
        ValueColumns(**arguments)


def test_half_a_place_is_refused() -> None:
    with pytest.raises(RequestError):
        ValueColumns("x", latitude="latitude")


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (ValueColumns("height"), "f: no column 'height'; set --column to one of: user_id, speed"),
        (ValueColumns("city"), "f: column 'city' holds string, and must hold integers or floating-point numbers"),
        (ValueColumns("words"), "f: column 'words' .* must hold integers or floating-point numbers"),
        (ValueColumns("big"), "f: column 'big' holds uint64, and must hold integers"),
        (ValueColumns("speed", user_id="id"), "f: no column 'id'; set --user_id_column to one of"),
        (ValueColumns("speed", group="town"), "f: no column 'town'; set --group_by to one of"),
        (ValueColumns("speed", group="latitude"), "f: column 'latitude' holds double, and must hold categories"),
        (ValueColumns("speed", latitude="lat", longitude="longitude"), "f: no column 'lat'"),
        (ValueColumns("speed", latitude="city", longitude="longitude"), "f: column 'city' must hold degrees"),
    ],
)
def test_columns_that_are_not_there_or_hold_something_else_are_refused(columns: ValueColumns, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        columns.check(SCHEMA, "f")


@pytest.mark.parametrize("name", ["mean", "stddev", "reports", "squashed", "read_probability"])
def test_a_value_for_every_bit(name: str) -> None:
    three = {key: np.zeros(3) for key in ("weight", "mean", "stddev", "reports", "squashed", "read_probability")}
    BitMeans("value", **three)
    with pytest.raises(ValueError, match=f"{name}: must hold one value for each of the 3 bits"):
        BitMeans("value", **{**three, name: np.zeros(2)})


def test_tables_have_the_fields_of_what_they_hold() -> None:
    assert MOMENTS_SCHEMA.names == list(MomentEstimate.__dataclass_fields__)
    assert BITS_SCHEMA.names == list(BitMeans.__dataclass_fields__)
    assert not any(field.nullable for field in (*MOMENTS_SCHEMA, *BITS_SCHEMA))


def test_cells_have_every_statistic_beside_the_place() -> None:
    schema = moment_cells_schema(["mean", "moment:3"])
    assert schema.names[:6] == ["cell_id", "depth", "west", "south", "east", "north"]
    assert schema.names[6:11] == ["mean_value", "mean_stddev", "mean_low", "mean_high", "mean_clients"]
    assert schema.names[11:16] == [f"moment:3_{name[5:]}" for name in schema.names[6:11]]
    drawn = [f"mean_{name}" for name in ("shrunk", "shrunk_stddev", "differs", "simultaneous_low", "simultaneous_high")]
    assert schema.names[16:] == [*drawn, "h3", "quadkey", "geometry"]
    assert schema.metadata == CELLS_SCHEMA.metadata  # GeoParquet
