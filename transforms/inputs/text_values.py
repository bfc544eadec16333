"""Values of text formats, parsed one by one by the role of their column. Pure.

A value is parsed by its own text only: what another record holds decides neither its type nor its parser. A value of
another kind than its column's is missing and never an error, because whether a run ends must not depend on one user's
record.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt
from numpy.typing import NDArray

from sfumato.schemas.locations import TIME_TYPE, is_text
from sfumato.schemas.log_layout import LogLayout

_BLANKS = " \t"  # around numbers and times; an id or a category keeps its own
_NUMBER = r"^[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?$"
_WHOLE = r"^[+-]?[0-9]{1,18}$"
_MAX_SECONDS = 9e12  # since 1970, either way: what microseconds in 63 bits hold
_MAX_EXACT = 2.0**53  # integers below this are exact as floating-point numbers
_BYTES_OF = (
    (pt.is_string, pa.binary()),
    (pt.is_large_string, pa.large_binary()),
    (pt.is_string_view, pa.binary_view()),
)

# Dates that exist, so that Arrow's parser, which sees nothing else, cannot fail on one of them.
_DATE = (
    r"(?:[0-9]{4}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])"
    r"|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)|02-(?:0[1-9]|1[0-9]|2[0-8]))"
    r"|(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:[02468][048]|[13579][26])00)-02-29)"
)
_HOUR, _SIXTY = "(?:[01][0-9]|2[0-3])", "[0-5][0-9]"
_SECONDS = rf"(?::{_SIXTY}(?:\.[0-9]+)?)?"
_ZONE = rf"(?:[Zz]|[+-]{_HOUR}(?::?{_SIXTY})?)"
_LOCAL_TIME = rf"^{_DATE}(?:[T ]{_HOUR}(?::{_SIXTY}{_SECONDS})?)?$"
_ZONED_TIME = rf"^{_DATE}[T ]{_HOUR}:{_SIXTY}{_SECONDS}{_ZONE}$"
_FINER_THAN_MICROSECONDS = r"(\.[0-9]{6})[0-9]+"
_HALF_DAY = (  # 2026-11-27 08:30 PM
    rf"^(?P<day>{_DATE})[T ](?P<hour>0?[1-9]|1[0-2])(?P<rest>(?::{_SIXTY}(?::{_SIXTY}(?:\.[0-9]+)?)?)?)"
    r"[ \x{A0}\x{202F}]*(?P<half>[AaPp])\.?[Mm]\.?$"
)


def parsed(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """Parses text as values of a kind; a value of another kind, and an empty one, is missing.

    Numbers are decimal and finite. Times are ISO 8601 with a zone or in UTC, or seconds since 1970; a word such as
    `now` is no time, because it would mean the clock of the run. Booleans are true, false, 1 and 0.

    column: strings, which need not be UTF-8. kind: strings, float64, int64, booleans, or TIME_TYPE.
    """
    if is_text(kind):
        return pc.if_else(pc.equal(column, ""), None, column)
    column = pc.ascii_trim(column, _BLANKS)
    if pt.is_timestamp(kind):
        return _times(column)
    if pt.is_boolean(kind):
        lower = pc.ascii_lower(column)
        is_true, is_false = (pc.is_in(lower, pa.array(texts, lower.type)) for texts in (["true", "1"], ["false", "0"]))
        return pc.if_else(pc.or_(is_true, is_false), is_true, None)
    return _integers(column) if pt.is_integer(kind) else finite(_numbers(column))


def with_point(column: pa.Array) -> pa.Array:
    """Returns numbers with decimal commas as numbers with points; 1.234 is then no number, but missing.

    column: strings.
    """
    return pc.replace_substring(pc.if_else(pc.match_substring(column, "."), "", column), ",", ".")


def iso_dates(column: pa.Array, order: str) -> pa.Array:
    """Returns times such as 27.11.2026 8:30 and 27/11/2026 8:30 AM as 2026-11-27T08:30, and any other text as it is.

    column: strings. order: `dmy`, or `mdy` for 11/27/2026.
    """
    column = pc.ascii_trim(column, _BLANKS)
    for pattern, padded in ((r"^([0-9][./-])", r"0\1"), (r"^([0-9]{2}[./-])([0-9][./-])", r"\10\2")):
        column = pc.replace_substring_regex(column, pattern, padded)
    day, month = (r"\1", r"\2") if order == "dmy" else (r"\2", r"\1")
    column = pc.replace_substring_regex(column, r"^([0-9]{2})[./-]([0-9]{2})[./-]([0-9]{4})", rf"\3-{month}-{day}")
    column = pc.replace_substring_regex(column, r"^([0-9]{4}-[0-9]{2}-[0-9]{2}),?[ T]+([0-9]:)", r"\1T0\2")
    day, hour, rest, half = pc.extract_regex(column, _HALF_DAY).flatten()  # missing where there is no AM or PM
    hour = pc.if_else(pc.equal(hour, "12"), "0", hour).cast(pa.int8())
    hour = pc.add(hour, pc.if_else(pc.equal(pc.ascii_lower(half), "p"), 12, 0)).cast(day.type)
    time = pc.binary_join_element_wise(pc.ascii_lpad(hour, 2, "0"), rest, "")
    return pc.coalesce(pc.binary_join_element_wise(day, time, "T"), column)


def in_one_form(column: pa.Array, kind: pa.DataType, layout: LogLayout) -> pa.Array:
    """Returns text with the decimal points and ISO 8601 dates that `parsed` reads. kind: of the column's values."""
    if layout.decimal == "," and (pt.is_floating(kind) or pt.is_integer(kind)):
        return with_point(column)
    return iso_dates(column, layout.dates) if layout.dates is not None and pt.is_timestamp(kind) else column


def finite(numbers: pa.Array) -> pa.Array:
    """Returns floating-point numbers in which those that are not finite are missing."""
    is_finite = pc.is_finite(numbers)
    return numbers if pc.all(is_finite).as_py() is not False else pc.if_else(is_finite, numbers, None)


def _numbers(column: pa.Array) -> pa.Array:
    """Returns float64[n]; infinite where a number is too large."""
    try:  # columns of numbers only; all that Arrow takes for a number is one by the pattern too, or not finite
        return column.cast(pa.float64())
    except pa.ArrowInvalid:
        return pc.if_else(pc.match_substring_regex(column, _NUMBER), column, None).cast(pa.float64())


def _integers(column: pa.Array) -> pa.Array:
    """Returns int64[n] of text such as 7 and 7.0."""
    exact = pc.if_else(pc.match_substring_regex(column, _WHOLE), column, None)
    exact = pc.replace_substring_regex(exact, r"^\+", "").cast(pa.int64())
    numbers = _numbers(column)
    whole = pc.and_(pc.less(pc.abs(numbers), _MAX_EXACT), pc.equal(numbers, pc.floor(numbers)))
    return pc.coalesce(exact, pc.if_else(whole, numbers, None).cast(pa.int64()))


def _times(column: pa.Array) -> pa.Array:
    """Returns TIME_TYPE[n], truncated to microseconds."""
    numbers = pc.match_substring_regex(column, _NUMBER)
    zoned = pc.match_substring_regex(column, _ZONED_TIME)
    local = pc.match_substring_regex(column, _LOCAL_TIME)
    cut = pc.replace_substring_regex(column, _FINER_THAN_MICROSECONDS, r"\1")
    cut = pc.replace_substring_regex(cut, "z$", "Z")
    local_times = pc.if_else(local, cut, None).cast(pa.timestamp("us"))
    found = pc.coalesce(pc.if_else(zoned, cut, None).cast(TIME_TYPE), pc.assume_timezone(local_times, "UTC"))
    if not pc.any(numbers).as_py():
        return found
    seconds = pc.if_else(numbers, column, None).cast(pa.float64())
    seconds = pc.if_else(pc.less(pc.abs(seconds), _MAX_SECONDS), seconds, None)
    moments = pc.cast(pc.round(pc.multiply(seconds, 1e6)), pa.int64()).cast(TIME_TYPE)
    return pc.coalesce(found, moments)


def as_bytes(column: pa.Array) -> pa.Array:
    """Returns text or bytes as bytes, which need not be UTF-8."""
    for is_kind, raw in _BYTES_OF:
        if is_kind(column.type):
            column = column.cast(raw)
    return column.cast(pa.large_binary())


def decoded(column: pa.Array) -> pa.Array:
    """Returns the values of a dictionary-encoded column, and any other column as it is."""
    return column.dictionary_decode() if pt.is_dictionary(column.type) else column


def without_views(column: pa.Array) -> pa.Array:
    """Returns strings and bytes as such where they are views: Arrow filters no views.

    Whether a row is filtered out depends on records, so a type that cannot be filtered would let one user's record end
    a run.
    """
    if pt.is_string_view(column.type):
        return pc.cast(as_bytes(column), options=pc.CastOptions(pa.large_string(), allow_invalid_utf8=True))
    return column.cast(pa.large_binary()) if pt.is_binary_view(column.type) else column


def utf8_texts(values: pa.Array) -> NDArray[np.bool_] | None:
    """Returns whether each text is UTF-8 or missing, bool[n]; None if all are."""
    if pt.is_dictionary(values.type):
        readable = utf8_texts(values.dictionary)
        return None if readable is None else readable[values.indices.to_numpy(zero_copy_only=False)]
    try:
        values.validate(full=True)
    except pa.ArrowInvalid:
        raw = values.cast(pa.large_binary()).to_pylist()
        return np.array([text is None or text.decode(errors="ignore").encode() == text for text in raw])
    return None


def nulls(column: pa.Array) -> NDArray[np.bool_]:
    """Returns whether each value is missing: bool[n]."""
    return np.asarray(column.is_null().to_numpy(zero_copy_only=False), dtype=bool)


def canonical_text(value: Any) -> str | None:
    """Returns the text by which an id or a category of JSON or of a data frame is known in every format.

    The integer 7, the number 7.0 and the text "7" are one id: formats and tools turn one into the other, and a user
    would count twice. None for missing values, and for what is neither text, number nor boolean.
    """
    if isinstance(value, str):
        return value
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        try:
            return str(value)
        except ValueError:  # Python writes at most 4,300 digits
            return None
    if isinstance(value, float) and math.isfinite(value):
        return str(int(value)) if abs(value) < _MAX_EXACT and value.is_integer() else repr(value)
    return None


def values_of(values: Sequence[Any], kind: pa.DataType, layout: LogLayout) -> pa.Array:
    """Parses Python objects, of JSON or of a data frame, as values of a kind; see `parsed` and `in_one_form`."""
    if not pt.is_floating(kind):
        return parsed(in_one_form(text_array([canonical_text(value) for value in values]), kind, layout), kind)
    texts = [value if isinstance(value, str) else None for value in values]
    numbers = finite(pa.array([_number(value) for value in values], pa.float64()))
    if not any(text is not None for text in texts):
        return numbers
    return pc.coalesce(numbers, parsed(in_one_form(text_array(texts), kind, layout), kind))


def _number(value: Any) -> float | None:
    if type(value) is float:
        return value
    if isinstance(value, bool | np.bool_ | str) or not isinstance(value, int | float | np.number):
        return None
    try:
        return float(value)
    except (OverflowError, TypeError):  # an integer beyond all floats; a complex number
        return None


def text_array(texts: Sequence[str | bytes | None]) -> pa.Array:
    """Returns strings as an Arrow array. What is no UTF-8, such as half a surrogate pair, stays as bytes."""
    try:
        return pa.array(texts, pa.string())
    except (UnicodeEncodeError, pa.ArrowInvalid):
        raw = [text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text for text in texts]
        return pc.cast(pa.array(raw, pa.binary()), options=pc.CastOptions(pa.string(), allow_invalid_utf8=True))
