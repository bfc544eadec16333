import numpy as np
import pyarrow as pa
import pytest

from sfumato.schemas.errors import RequestError
from sfumato.schemas.locations import LocationColumns
from sfumato.schemas.region import Grid
from sfumato.transforms.locations.encode import DROP_REASONS, encode_locations
from sfumato.transforms.privacy.keys import keyed_hash
from tests.conftest import REGION

GRID = Grid(REGION, 6)
COLUMNS = LocationColumns()
KEY = b"k" * 32


def batch(rows: list[tuple]) -> pa.RecordBatch:
    ids, latitude, longitude = zip(*rows, strict=True)
    return pa.record_batch(
        {
            "user_id": pa.array(ids),
            "latitude": pa.array(latitude, pa.float64()),
            "longitude": pa.array(longitude, pa.float64()),
        }
    )


def test_bad_rows_are_dropped_and_counted_by_their_first_reason() -> None:
    encoded = encode_locations(
        batch(
            [
                (1, 50.5, 0.0),
                (None, None, 0.0),  # null_user_id
                (2, None, 0.0),  # null_coordinate
                (3, 50.5, None),  # null_coordinate
                (4, np.nan, 0.0),  # not_finite
                (5, 50.5, np.inf),  # not_finite
                (6, 91.0, 0.0),  # out_of_range
                (7, 50.5, -181.0),  # out_of_range
                (8, 51.0001, 0.0),  # out_of_region
                (9, 51.0, 1.0),  # the border belongs to the region
            ]
        ),
        COLUMNS,
        GRID,
        KEY,
    )
    assert encoded.rows == 10
    assert dict(zip(DROP_REASONS, encoded.dropped, strict=True)) == {
        "null_user_id": 1,
        "null_coordinate": 2,
        "not_finite": 2,
        "out_of_range": 2,
        "out_of_region": 1,
        "null_value": 0,
        "no_prefix_code": 0,
        "not_utf8": 0,
    }
    assert encoded.users.tolist() == keyed_hash(KEY, np.array([1, 9])).tolist()
    expected = GRID.codes(np.array([0.0, 1.0]), np.array([50.5, 51.0]))
    assert encoded.codes.tolist() == expected.tolist()


def test_blocks_do_not_show(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(1)
    rows = [
        (i, la, lo) for i, la, lo in zip(range(500), rng.uniform(49.9, 51, 500), rng.uniform(-1, 1.1, 500), strict=True)
    ]
    whole = encode_locations(batch(rows), COLUMNS, GRID, KEY)
    monkeypatch.setattr("sfumato.transforms.locations.encode._BLOCK_ROWS", 7)
    blocks = encode_locations(batch(rows), COLUMNS, GRID, KEY)
    assert 0 < sum(whole.dropped) < 500
    assert (blocks.users == whole.users).all()
    assert (blocks.codes == whole.codes).all()
    assert blocks.dropped == whole.dropped


@pytest.mark.parametrize(
    ("kind", "distinct"),
    [
        (pa.int32(), 3),
        (pa.uint64(), 3),
        (pa.string(), 3),
        (pa.large_string(), 3),
        (pa.binary(), 3),
        (pa.dictionary(pa.int32(), pa.string()), 3),
    ],
)
def test_ids_of_every_type_hash_equal_users_equally(kind: pa.DataType, distinct: int) -> None:
    ids = pa.array(["7", "8", "7", "9"])
    column = ids.dictionary_encode() if pa.types.is_dictionary(kind) else ids.cast(kind)
    table = pa.record_batch({"user_id": column, "latitude": pa.array([50.5] * 4), "longitude": pa.array([0.0] * 4)})
    users = encode_locations(table, COLUMNS, GRID, KEY).users
    assert users[0] == users[2]
    assert len(set(users.tolist())) == distinct


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"user_id": None}, r"f\.parquet: no column 'user_id'; set --user_id_column to one of: latitude, longitude"),
        ({"latitude": None}, "no column 'latitude'"),
        ({"user_id": pa.float64()}, "column 'user_id' must hold integers, strings or bytes, it holds double"),
        ({"longitude": pa.string()}, "column 'longitude' must hold degrees .* it holds string"),
    ],
)
def test_columns_are_checked_by_name_and_type(changes: dict, message: str) -> None:
    types = {"user_id": pa.int64(), "latitude": pa.float64(), "longitude": pa.float64(), **changes}
    schema = pa.schema([(name, kind) for name, kind in types.items() if kind is not None])
    with pytest.raises(RequestError, match=message):
        COLUMNS.check(schema, "f.parquet")
