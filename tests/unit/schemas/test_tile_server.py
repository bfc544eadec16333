"""What views refuse."""

from __future__ import annotations

import pytest

from sfumato.schemas.tile_server import tile_host


@pytest.mark.parametrize(
    ("tiles", "host"),
    [
        ("https://tile.example.org/{z}/{x}/{y}.png", "https://tile.example.org"),
        ("https://maps.city-hall.gov:8443/wmts?layer=a&z={z}&col={x}&row={y}", "https://maps.city-hall.gov:8443"),
        ("https://a.b/{z}/{x}/{y}{r}.png", "https://a.b"),
        ("http://localhost:8080/{z}/{x}/{y}.png", "http://localhost:8080"),
        ("http://127.0.0.1/{z}/{y}/{x}", "http://127.0.0.1"),
    ],
)
def test_a_tile_servers_host_is_what_a_page_may_load_from(tiles: str, host: str) -> None:
    assert tile_host(tiles) == host


@pytest.mark.parametrize(
    "tiles",
    [
        "",
        "tile.example.org/{z}/{x}/{y}.png",
        "http://tile.example.org/{z}/{x}/{y}.png",  # anybody on the way would see what is looked at
        "https://{s}.example.org/{z}/{x}/{y}.png",
        "https://*.example.org/{z}/{x}/{y}.png",
        "https://example/{z}/{x}/{y}.png",
        "https://tile.example.org/{z}/{x}.png",
        "https://tile.example.org/{z}/{x}/{y}/{y}.png",
        "https://tile.example.org/{z}/{x}/{y}/{q}.png",
        "https://user:word@tile.example.org/{z}/{x}/{y}.png",
        "https://tile.example.org; script-src *;/{z}/{x}/{y}.png",
        "https://tile.example.org/{z}/{x}/{y}.png; script-src *",
        'https://tile.example.org/{z}/{x}/{y}.png"><script>',
        "https://tile.example.org/{z}/{x}/{y}.png\n",
        "https://tile.example.org /{z}/{x}/{y}.png",
        "https://tile.example.org:1234567/{z}/{x}/{y}.png",
        "https://tile.example.org:١/{z}/{x}/{y}.png",
        "javascript:alert('{z}{x}{y}')",
        "file:///{z}/{x}/{y}.png",
    ],
)
def test_what_could_widen_the_pages_policy_is_refused(tiles: str) -> None:
    with pytest.raises(ValueError, match=r"^tiles: must be the address of a tile server"):
        tile_host(tiles)
