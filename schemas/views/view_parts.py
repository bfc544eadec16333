"""The parts of every page: facts, tables, sections, regions and scales of colours."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, model_validator

Numbers = list[float | None]  # None where a value is not known
Path = list[tuple[float, float]]  # points [longitude, latitude]; a ring's last is its first
_TILES = re.compile(
    r"(https://[a-z0-9-]+(?:\.[a-z0-9-]+)+(?::[0-9]{1,5})?|http://(?:localhost|127\.0\.0\.1)(?::[0-9]{1,5})?)"
    r"/(?:[A-Za-z0-9._~@=&?/+%-]|\{[zxyr]\})+"
)


def tile_host(tiles: str) -> str:
    """Returns the origin that a page with these tiles may load images from, such as `https://tile.example.org`.

    Raises ValueError unless it is a pattern of addresses with {z}, {x} and {y}. What it says may go into a page's
    content security policy, so nothing else passes.
    """
    found = _TILES.fullmatch(tiles)
    if found is None or not all(tiles.count(name) == 1 for name in ("{z}", "{x}", "{y}")):
        raise ValueError(
            "tiles: must be the address of a tile server's pictures with {z}, {x} and {y} in it, such as "
            f"https://tile.example.org/{{z}}/{{x}}/{{y}}.png (http:// only for this machine), got {tiles!r}"
        )
    return found[1]


Tiles = Annotated[str, AfterValidator(lambda tiles: tile_host(tiles) and tiles)]


class ViewPart(BaseModel):
    """A part of a page: immutable, with finite numbers and no other fields."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, defer_build=True)


class Fact(ViewPart):
    """A term and its text."""

    term: str
    text: str


class FileLink(ViewPart):
    """A file that lies next to the page."""

    name: str
    description: str


class Table(ViewPart):
    """A table of texts. `numeric` marks the columns that hold numbers; a reader can sort by each column.

    `links` holds the relative address that each row's first text leads to; it is empty where they lead nowhere.
    """

    title: str
    heads: list[str]
    rows: list[list[str]]
    numeric: list[bool]
    links: list[str] = []

    @model_validator(mode="after")
    def _check(self) -> Table:
        if len(self.numeric) != len(self.heads) or any(len(row) != len(self.heads) for row in self.rows):
            raise ValueError(f"rows: each must have {len(self.heads)} texts, like `heads`")
        if self.links and len(self.links) != len(self.rows):
            raise ValueError(f"links: must hold one for each of {len(self.rows)} rows, got {len(self.links)}")
        return self


class Section(ViewPart):
    """A part of the report under the first screen. It is plain HTML and needs no script."""

    title: str
    lead: str | None = None
    paragraphs: list[str] = []
    facts: list[Fact] = []
    table: Table | None = None
    folded: bool = False  # shown only when the reader opens it


class Bounds(ViewPart):
    """A region in degrees."""

    west: float
    south: float
    east: float
    north: float


class Scale(ViewPart):
    """A scale of colours.

    Attributes:
        kind: `log`: colour position log(1 + value / knee) / log(1 + high / knee), from 0 to `high`; `linear`: from
            `low` to `high`; `diverging`: linear, with the middle colour at 0 and low = -high.
        low, high: the values of the first and last colour.
        knee: of the log scale, in the value's unit; None for the others.
        unit: of the values, such as `users per km²`.
        ticks: (value, text) pairs for the legend, ascending. A text starts with ≥ or ≤ where values lie beyond.
    """

    kind: Literal["log", "linear", "diverging"]
    low: float
    high: float
    knee: float | None = None
    unit: str
    ticks: list[tuple[float, str]]
