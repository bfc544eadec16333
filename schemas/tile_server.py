"""The address of a tile server, which a page may load street maps from. Pure."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import AfterValidator

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
            f"https://tile.example.org/{{z}}/{{x}}/{{y}}.png (http:// for this machine only), got {tiles!r}"
        )
    return found[1]


Tiles = Annotated[str, AfterValidator(lambda tiles: tile_host(tiles) and tiles)]
