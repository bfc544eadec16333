import math

import pyarrow as pa
import pytest

from sfumato.schemas.errors import RequestError
from sfumato.schemas.locations import MAX_CATEGORIES, Auxiliary, LocationColumns
from sfumato.schemas.places import Places
from sfumato.schemas.requests.request_base import parts_of
from tests.rejections import rejects

BASE = {"user_id": pa.int64(), "latitude": pa.float64(), "longitude": pa.float64()}


def auxiliary(column: str, categories: str | None) -> Auxiliary:
    """As a request makes it of its options."""
    return Auxiliary(column, assumed=True) if categories is None else Auxiliary(column, parts_of(categories))


def check(columns: LocationColumns, **types: pa.DataType) -> None:
    assert columns.check(pa.schema([*BASE.items(), *types.items()]), "f.parquet") == {}


@pytest.mark.parametrize(
    ("depth", "categories", "bits", "dtype"),
    [
        (1, 1, 2, "uint32"),
        (16, 1, 32, "uint32"),
        (15, 3, 32, "uint32"),
        (15, 4, 32, "uint32"),
        (15, 5, 33, "uint64"),
        (16, 2, 33, "uint64"),
        (20, 16, 44, "uint64"),
    ],
)
def test_places_have_as_many_bits_as_they_need(depth: int, categories: int, bits: int, dtype: str) -> None:
    places = Places(depth, categories)
    assert (places.bits, places.dtype, int(places.mask)) == (bits, dtype, 2**bits - 1)
    last = (categories - 1) << 2 * depth | 4**depth - 1
    assert last.bit_length() == bits or categories == 1


def test_columns_are_named_once_and_the_first_three_are_the_plain_ones() -> None:
    assert LocationColumns().names() == ["user_id", "latitude", "longitude"]
    many = LocationColumns(weight="latitude", auxiliary=Auxiliary("ill"))
    assert many.names() == ["user_id", "latitude", "longitude", "ill"]
    assert many.names_beside_coordinates() == ["user_id", "latitude", "ill"]
    assert (many.has_weights, many.categories, many.dwell_limit) == (True, 2, None)
    assert LocationColumns(time="t", max_dwell=5).dwell_limit == 5


@pytest.mark.parametrize("kind", [pa.float32(), pa.int16(), pa.uint64(), pa.dictionary(pa.int8(), pa.float64())])
def test_weights_are_numbers(kind: pa.DataType) -> None:
    check(LocationColumns(weight="w"), w=kind)


@pytest.mark.parametrize("kind", [pa.timestamp("ms"), pa.timestamp("ns", tz="UTC"), pa.int64(), pa.float64()])
def test_times_are_timestamps_or_seconds(kind: pa.DataType) -> None:
    check(LocationColumns(time="t"), t=kind)


@pytest.mark.parametrize(
    ("auxiliary", "kind"),
    [
        (Auxiliary("a"), pa.bool_()),
        (auxiliary("a", None), pa.bool_()),
        (Auxiliary("a", ("true", "false")), pa.bool_()),
        (auxiliary("a", None), pa.uint8()),
        (auxiliary("a", "0, 1,2"), pa.int32()),
        (auxiliary("a", "-1,7"), pa.int64()),
        (auxiliary("a", "a,b,c"), pa.string()),
        (auxiliary("a", "false,true"), pa.large_string()),
        (auxiliary("a", "a,b"), pa.dictionary(pa.int32(), pa.string())),
    ],
)
def test_categories_that_fit(auxiliary: Auxiliary, kind: pa.DataType) -> None:
    check(LocationColumns(auxiliary=auxiliary), a=kind)


@pytest.mark.parametrize(
    ("categories", "kind", "message"),
    [
        (None, pa.string(), r"holds string; give its values as --categories a,b,c \(they are published.*is private"),
        (None, pa.float64(), "must hold booleans, integers or text of a few values, it holds double"),
        (None, pa.timestamp("s"), "must hold booleans, integers or text"),
        ("a,b", pa.int64(), "its categories are whole numbers, or false,true for 0 and 1; give --categories 0,1,2"),
        ("0,01", pa.int64(), "whole numbers"),
        ("0,18446744073709551616", pa.int64(), "whole numbers"),
        ("well,ill", pa.bool_(), "holds booleans, whose categories are false,true; got 'well,ill'"),
        ("false,true,maybe", pa.bool_(), "booleans"),
    ],
)
def test_categories_that_do_not_fit_the_column(categories: str | None, kind: pa.DataType, message: str) -> None:
    with pytest.raises(RequestError, match=message) as error:
        check(LocationColumns(auxiliary=auxiliary("status", categories)), status=kind)
    assert str(error.value).startswith("f.parquet: column 'status' ")


@pytest.mark.parametrize(
    ("categories", "message"),
    [
        ("", "categories: one of them is empty"),
        ("a,,b", "categories: one of them is empty, in 'a,,b'"),
        ("a", "categories: give 2 to 16, got 'a'"),
        ("a,b, a", "categories: 'a' is there twice"),
        (",".join(map(str, range(MAX_CATEGORIES + 1))), "categories: too many, 17; there may be 16"),
    ],
)
def test_lists_that_cannot_be(categories: str, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        auxiliary("a", categories)
    assert len(auxiliary("a", ",".join(map(str, range(MAX_CATEGORIES)))).categories) == MAX_CATEGORIES


@pytest.mark.parametrize(
    ("columns", "types", "message"),
    [
        (LocationColumns(weight="w"), {}, "no column 'w'; set --weight_column to one of"),
        (LocationColumns(time="t"), {}, "no column 't'; set --time_column to one of"),
        (LocationColumns(auxiliary=Auxiliary("a")), {}, "no column 'a'; set --auxiliary to one of"),
        (LocationColumns(weight="w"), {"w": pa.string()}, "column 'w' must hold weights as numbers, it holds string"),
        (LocationColumns(weight="w"), {"w": pa.bool_()}, "must hold weights as numbers"),
        (LocationColumns(time="t"), {"t": pa.string()}, "column 't' must hold timestamps, or seconds as numbers"),
        (LocationColumns(time="t"), {"t": pa.date32()}, "must hold timestamps"),
    ],
)
def test_columns_of_weights_and_times_are_checked(columns: LocationColumns, types: dict, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        check(columns, **types)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"weight": "w", "time": "t"}, "weight_column, time_column: .*'w'.*'t'; give one"),
        ({"auxiliary": Auxiliary("user_id")}, "auxiliary: 'user_id' is the column of user ids"),
        *(({"max_dwell": bad}, "max_dwell: must be a finite number of seconds > 0") for bad in (0, -1, math.nan)),
        ({"max_dwell": math.inf}, "max_dwell"),
    ],
)
def test_columns_that_do_not_go_together(changes: dict, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        LocationColumns(**changes)
    with rejects("auxiliary"):
        Auxiliary("")


def test_a_misspelt_column_is_named_with_the_nearest() -> None:
    schema = pa.schema([("user_id", pa.int64()), ("latitude", pa.float64()), ("longitude", pa.float64())])
    with pytest.raises(RequestError, match="no column 'latitud'; did you mean latitude\\?; set --latitude_column"):
        LocationColumns(latitude="latitud").check(schema, "f")
