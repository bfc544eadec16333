"""Shared parts of pictures: colours, palettes, and a sheet with title and captions. The colours are the page's."""

from __future__ import annotations

import io
import re
import textwrap
from functools import cache

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.font_manager import findfont, get_font
from numpy.typing import NDArray
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from sfumato.schemas.charts import readable
from sfumato.schemas.views import PageView

GROUND, VOID, INK, SOFT, FAINT, ALARM = "#faf7f2", "#fffdf6", "#1f1a24", "#564e5a", "#b8ada0", "#b91c1c"
DPI = 160
FONT, TITLE_FONT = "DejaVu Sans", "DejaVu Serif"  # come with matplotlib: the picture is the same everywhere
LEFT_EDGE = 0.45  # inches, of titles and captions
_LEAST_SHADE = 0.12  # of a count's colours on the bare ground
_LINE, _TITLE = 0.22, 0.36  # inches: a line of text, and the title's
_CHARACTER = 0.083  # inches, of a text of ten points

# From white over green to blue, every eighth colour: evenly darker (in OKLab), so that it can be read without telling
# hues apart, and nowhere like inferno, the palette of users. Written from its dark end.
_RATES = (
    "1a2f6b1b35731b3c7a1c42821c498a1b4f921b569a1a5e9d1866a0166ea41576a7127eaa1487ab198faa1f97a9249fa8"
    "2aa8a635afa549b6a459bca368c2a277c9a084cf9f94d4a3a4d9a8b2ddacc1e2b1cfe7b5dbecbfe6f1ccf0f6d9fbfbe6"
)
# Blue for less, orange for more, the ground's colour for the same; apart for every eye.
_CHANGES = "0b2a5e14458a2767b54a8dd187b5e4c3d9f0f4f1ecf6dbb9efb577e08a3bc2601c943f0d5f2606"
_PAPER = "fdf9dc"  # of the lowest count


def palette(kind: str, *, on_ground: bool = False) -> NDArray[np.float64]:
    """Returns the 256 colours of a measure, by its `kind` (`schemas.views.map_views.Measure`): float64[256, 3] in 0..1.

    on_ground: whether cells lie on the bare ground, from which the lowest colour must differ.
    """
    if kind == "count":
        inferno = np.asarray(matplotlib.colormaps["inferno"](np.arange(16, 248, 8)), dtype=np.float64)[:, :3]
        stops = np.vstack([inferno, _stops(_PAPER)])[::-1]
    else:
        stops = _stops(_CHANGES) if kind == "change" else _stops(_RATES)[::-1]
    shades = np.linspace(_LEAST_SHADE if on_ground and kind == "count" else 0.0, 1.0, 256)
    return np.stack([np.interp(shades, np.linspace(0, 1, len(stops)), channel) for channel in stops.T], axis=1)


def _stops(colours: str) -> NDArray[np.float64]:
    """Returns the colours of a text of hexadecimal digits: float64[n, 3] in 0..1."""
    return np.array([list(bytes.fromhex(one)) for one in re.findall("......", colours)]) / 255


def on_pixels(inches: float) -> float:
    """Returns a length that is a whole number of pixels."""
    return round(inches * DPI) / DPI


class Canvas:
    """A figure with a title and headline above, captions below, and room for axes between.

    The view's title, headline, place, days and guarantee are written; a demonstration seed's alarm replaces the
    guarantee.
    `height`: inches of room, including the margins of axes. `notes` are sentences under the figure.
    """

    def __init__(self, view: PageView, width: float, height: float, notes: list[str]):
        most = int((width - 2 * LEFT_EDGE) / _CHARACTER)
        headline = textwrap.wrap(readable(view.headline), int(most * 0.92))
        where = " · ".join(readable(one) for one in (view.place, view.period) if one)
        below = textwrap.wrap(" ".join(note for note in notes if note), most)
        promise = textwrap.wrap(view.alarm or view.guarantee, most)
        self.description = " ".join([view.headline, *notes, view.alarm or view.guarantee])
        self.title = readable(view.heading or view.title)
        self.width = width
        self.bottom = on_pixels(0.3 + _LINE * len(below + promise))
        self.height = on_pixels(self.bottom + height + 0.3 + _TITLE + _LINE * (len(headline) + bool(where)))
        self.figure = Figure(figsize=(width, self.height), dpi=DPI, facecolor=GROUND)
        y = self.height - 0.3 - 0.28
        self._write(y, self.title, INK, 19, TITLE_FONT)
        for line in headline:
            y -= _LINE * 1.15
            self._write(y, line, INK, 11)
        if where:
            self._write(y - _LINE, where, SOFT, 10)
        for place, line in enumerate(reversed([*below, *promise])):
            colour = ALARM if view.alarm and place < len(promise) else SOFT
            self._write(0.2 + _LINE * place, line, colour, 10)

    def _write(self, y: float, text: str, colour: str, size: float, font: str = FONT) -> None:
        self.figure.text(
            LEFT_EDGE / self.width, y / self.height, drawable(text, font), color=colour, fontsize=size, family=font,
            parse_math=False,
        )  # fmt: skip

    def axes(self, left: float, bottom: float, width: float, height: float) -> Axes:
        """Returns axes at a place in inches, `bottom` counted from the room's lower edge."""
        w, h = self.width, self.height
        axes = self.figure.add_axes((left / w, (self.bottom + bottom) / h, width / w, height / h))
        axes.set_facecolor(GROUND)
        axes.set_axisbelow(True)
        axes.tick_params(colors=SOFT, labelsize=9, length=0, pad=6)
        for side, spine in axes.spines.items():
            spine.set_color(FAINT)
            spine.set_visible(side in {"left", "bottom"})
        return axes

    def png(self) -> bytes:
        """Returns a PNG file that names what it shows and no time of making; equal pictures are equal bytes."""
        drawn = FigureCanvasAgg(self.figure)
        drawn.draw()
        about = PngInfo()
        for name, text in {"Title": self.title, "Description": self.description, "Software": "sfumato"}.items():
            about.add_text(name, text)
        file = io.BytesIO()
        opaque = Image.fromarray(np.asarray(drawn.buffer_rgba())[..., :3])  # a third faster, and a tenth smaller
        opaque.save(file, "png", pnginfo=about, dpi=(DPI, DPI))
        return file.getvalue()


def label(name: str, most: int = 34) -> str:
    """Truncates a name to at most this many characters, in glyphs that the font can render."""
    text = readable(name) or "(empty)"
    return drawable(text if len(text) <= most else text[: most - 1] + "…")


def drawable(text: str, font: str = FONT) -> str:
    """Returns the text with a box for every character that a font cannot draw."""
    return "".join(one if _has_glyph(one, font) else "□" for one in text)


@cache
def _has_glyph(character: str, font: str) -> bool:
    return bool(get_font(findfont(font)).get_char_index(ord(character)))
