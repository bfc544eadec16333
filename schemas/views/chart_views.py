"""The charts of a page: bars of items, a distribution, means and moments, answers of ranges."""

from __future__ import annotations

from typing import Any, Literal

from sfumato.schemas.views.map_views import MapBody
from sfumato.schemas.views.view_parts import Bounds, ViewPart


class Bar(ViewPart):
    """A ranked item, group or prefix. `parent` is the row of the prefix that it extends, -1 for none."""

    name: str
    value: float
    low: float
    high: float
    share: float | None = None  # of all users
    parent: int = -1
    level: int = 0
    cut: bool = False  # the name is the beginning of longer ones
    users: float | None = None  # who answered for a group


class BarsBody(ViewPart):
    """Ranked items, groups or prefixes."""

    kind: Literal["bars"] = "bars"
    unit: str
    noun: str  # what a row is: item, prefix, group
    explanation: str  # one sentence: what the number counts
    bars: list[Bar]
    reference: float | None = None  # the value of all users, drawn as a line


class QuantileRow(ViewPart):
    """A quantile: `share` of the users lie below `value`, which lies in low..high at 95%."""

    share: float
    value: float
    low: float
    high: float


class RangeRow(ViewPart):
    """Users with a value from `low` to below `high`, with their 95% interval."""

    low: float
    high: float
    users: float
    users_low: float
    users_high: float


class CurveBody(ViewPart):
    """A distribution function with its 95% band, quantiles and ranges of values.

    Attributes:
        value, share, low, high: points of the function, ascending, and its band.
        points: the only values at which the function was queried, drawn as dots; empty where it is known everywhere.
        histogram: published counts of intervals of equal width, ascending. An absent interval has too few users.
        hidden: the largest number of users that an absent interval can have; None where there is no histogram.
        note: one sentence on the accuracy.
    """

    kind: Literal["curve"] = "curve"
    column: str
    value: list[float]
    share: list[float]
    low: list[float]
    high: list[float]
    quantiles: list[QuantileRow]
    ranges: list[RangeRow]
    points: list[float] = []
    histogram: list[RangeRow] = []
    hidden: float | None = None
    note: str = ""


class StatisticRow(ViewPart):
    """A statistic of all users with its 95% interval, written with the digits that are known."""

    name: str
    value: float
    low: float
    high: float
    text: str
    range: str


class BitRow(ViewPart):
    """A bit: its place value, share of users with it set, interval, and whether it was dropped.

    Attributes:
        quantity: the column or function of columns that the bits encode.
        share, low, high: noise may move them outside 0..1; None where nothing is known.
        dropped: probably empty.
    """

    quantity: str
    place: str
    share: float | None
    low: float | None
    high: float | None
    reports: float
    dropped: bool


class BitTexts(ViewPart):
    """Texts of the chart of bits: for bits of values, or for answers on thresholds.

    Attributes:
        title, about: above the chart; about is a sentence or two.
        share: what a bar's height is.
        place: what its place is, before the name of the quantity.
    """

    title: str = "Bits behind the estimate"
    about: str = "A value is the sum of the place values of its set bits. Each user sent only one or a few bits."
    share: str = "Share of users whose bit is set"
    place: str = "what a set bit adds to"


class MomentsBody(ViewPart):
    """Statistics of all users, of groups or cells, and the bits that they were computed from.

    Attributes:
        limits: the least and the greatest value that counts.
        deviation: of the values, the square root of their variance; None where no variance was estimated.
        reading: what the interval of the statistic of all users allows for, in a sentence or two.
        bits: empty where a trusted curator added up the values.
    """

    kind: Literal["moments"] = "moments"
    column: str
    limits: tuple[float, float]
    deviation: float | None = None
    statistics: list[StatisticRow]
    reading: str = ""
    groups: list[BarsBody]  # one for each statistic; empty without groups
    map: MapBody | None = None
    bits: list[BitRow]
    bit_texts: BitTexts = BitTexts()


class RangesBody(ViewPart):
    """A model of range queries: its own arrays, so that the page answers any square.

    Attributes:
        sizes_metres: the side lengths the model was made for, least and largest.
        start: x, y of the centre in degrees and side in metres of the square that is shown first.
        model: arrays and numbers of the model in JSON, by the model's kind.
        background: a coarse map of the model's own answers.
    """

    kind: Literal["ranges"] = "ranges"
    region: Bounds
    sizes_metres: tuple[float, float]
    start: tuple[float, float, float]
    model: dict[str, Any]
    background: MapBody
