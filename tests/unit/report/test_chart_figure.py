"""Pictures of what is no map."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from matplotlib.text import Text

from sfumato.schemas.views import (
    Bar,
    BarsBody,
    BitRow,
    CurveBody,
    MomentsBody,
    QuantileRow,
    RangeRow,
    RangesBody,
    TimelineBody,
)  # fmt: skip
from sfumato.transforms.release.builder import picture
from sfumato.transforms.report import chart_figure
from sfumato.transforms.report.canvas import drawable, label
from sfumato.transforms.report.chart_figure import axis_ends
from tests.seeds import seeded_rng
from tests.unit.report.samples import REGION, layer_of, map_of, pixels, view_of


def bars_of(values: list[float], **changes: Any) -> BarsBody:
    bars = [Bar(name=f"item {i}", value=one, low=one - 1, high=one + 1) for i, one in enumerate(values)]
    body = BarsBody(unit="users", noun="item", explanation="Each user counts once.", bars=bars)
    return body.model_copy(update=changes)


def bit(share: float | None, low: float | None, high: float | None, place: str = "1", dropped: bool = False) -> BitRow:
    return BitRow(quantity="km", place=place, share=share, low=low, high=high, reports=10, dropped=dropped)


CURVE = CurveBody(
    column="km", value=[0, 1, 2, 4], share=[0, 0.5, 0.8, 1], low=[0, 0.4, 0.7, 1], high=[0, 0.6, 0.9, 1],
    quantiles=[QuantileRow(share=0.5, value=1, low=0.8, high=1.2), QuantileRow(share=0.99, value=3.9, low=3.7, high=4)],
    ranges=[],
)  # fmt: skip
BITS = [
    bit(0.5, 0.4, 0.6),
    bit(-0.9, -1.2, -0.6, "2"),
    bit(0.2, -1, 2, "4"),
    bit(0.1, 0, 0.2, "8", dropped=True),
    bit(None, None, None, "16"),
]
MOMENTS = MomentsBody(
    column="km", limits=(0, 9), statistics=[], groups=[bars_of([3.0, -1.0], reference=2.0)], bits=BITS
)
COUNTED = CURVE.model_copy(
    update={
        "histogram": [RangeRow(low=0, high=1, users=50, users_low=40, users_high=60)],
        "hidden": 9.0,
        "points": [1.0],
    }
)
BODIES = [bars_of([5.0, 3.0]), CURVE, COUNTED, MOMENTS]


def texts_of(body: Any) -> dict[str, Text]:
    """The texts of a picture by what they say."""
    texts: Any = picture(view_of(body)).figure.findobj(Text)
    return {text.get_text(): text for text in texts}


@pytest.mark.parametrize("body", BODIES, ids=lambda body: body.kind)
def test_picture_of_every_chart_is_deterministic(body: Any) -> None:
    data = picture(view_of(body)).png()
    assert data == picture(view_of(body)).png()
    assert "with ε = 1".encode() in data
    image = pixels(data)
    assert image.shape[1] == 1504
    assert len(np.unique(np.round(image * 255) @ (1, 256, 65536))) > 30


def test_picture_of_a_timeline_is_refused() -> None:
    with pytest.raises(TypeError):
        picture(view_of(TimelineBody(map_format=1, nights=[], spending=[])))


EMPTY = [
    bars_of([]), CURVE.model_copy(update={key: [] for key in ("value", "share", "low", "high", "quantiles")}),
    MomentsBody(column="x", limits=(0, 9), statistics=[], groups=[], bits=[]),
]  # fmt: skip


@pytest.mark.parametrize("body", EMPTY, ids=lambda body: body.kind)
def test_nothing_at_all_is_drawn_too(body: Any) -> None:
    assert pixels(picture(view_of(body)).png()).shape[0] > 200


def test_only_the_largest_items_are_drawn_and_the_picture_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[str] = []
    monkeypatch.setattr(chart_figure, "label", lambda name, most=34: drawn.append(name) or name)
    values = seeded_rng(1).permutation(40).astype(float).tolist()
    body = bars_of(values)
    assert b"The 30 largest of 40." in picture(view_of(body)).png()
    assert drawn == [f"item {values.index(float(one))}" for one in range(39, 9, -1)]


def test_prefixes_are_left_out_where_what_extends_them_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[str] = []
    monkeypatch.setattr(chart_figure, "label", lambda name, most=34: drawn.append(name) or name)
    body = bars_of([9.0, 5.0, 4.0])
    tree = [body.bars[0], *(bar.model_copy(update={"parent": 0}) for bar in body.bars[1:])]
    picture(view_of(body.model_copy(update={"bars": tree})))
    assert drawn == ["item 1", "item 2"]


def test_shares_beyond_the_chart_are_written_as_numbers_and_unclear_bits_are_keyed() -> None:
    assert {"↓ −90%", "asked too rarely to tell", "squashed: probably empty"} <= set(texts_of(MOMENTS))
    assert "asked too rarely to tell" not in texts_of(MOMENTS.model_copy(update={"bits": BITS[:1]}))


def test_quantiles_are_written_inside_the_picture() -> None:
    texts = texts_of(CURVE)
    assert texts["50%: 1.000"].get_horizontalalignment() == "left"
    assert texts["99%: 3.900"].get_horizontalalignment() == "right"


def test_an_interval_that_is_known_poorly_does_not_hide_how_values_differ() -> None:
    value, low, high = np.array([1.0, 2.0, 3.0]), np.array([0.9, -1e6, 2.9]), np.array([1.1, 1e6, 3.1])
    left, right = axis_ends(value, low, high)
    assert -2.5 < left < 0.9
    assert 3.1 < right < 6.5
    assert axis_ends(np.array([]), np.array([]), np.array([])) == (0.0, 1.0)
    assert all(map(math.isfinite, axis_ends(np.array([5.0]), np.array([math.nan]), np.array([math.inf]))))


@pytest.mark.slow
def test_maps_of_other_products_are_their_pictures() -> None:
    body = map_of(layer_of({(0, 0, 0): 0.5}))
    expected = picture(view_of(body)).png()
    ranges = RangesBody(region=REGION, sizes_metres=(1, 2), start=(0, 0, 1), model={}, background=body)
    assert picture(view_of(ranges)).png() == expected
    assert picture(view_of(MOMENTS.model_copy(update={"map": body}))).png() == expected
    assert picture(view_of(MOMENTS)).png() != expected


def test_names_from_the_logs_do_nothing_but_be_read() -> None:
    assert label("a" * 60) == "a" * 33 + "…"
    assert label("") == "(empty)"
    assert "\u202e" not in label("x\u202ey")
    assert drawable("a\U000f0000") == "a□"
    body = bars_of([1.0])
    hostile = body.bars[0].model_copy(update={"name": "$\\frac{1}{2}$ <b>&"})
    text = texts_of(body.model_copy(update={"bars": [hostile]}))["$\\frac{1}{2}$ <b>&"]
    assert not text.get_parse_math()
