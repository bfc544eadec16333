"""The page of nightly releases: its map files against brute force, and its text."""

from __future__ import annotations

import base64
import html
import json
import re
from dataclasses import replace
from datetime import date, timedelta
from typing import Any

import numpy as np
import pytest
from numpy.random import default_rng
from numpy.typing import NDArray

from sfumato.schemas.region import Grid, Region
from sfumato.schemas.timeline import DatedRelease, Spending
from sfumato.schemas.tree import Tree, node_levels, node_names, node_positions
from sfumato.transforms.heatmap.raster import density as density_of
from sfumato.transforms.release import page_index
from sfumato.transforms.release.page_index import index_page, map_file
from tests.transforms.release.city import embedded

REGION = Region(-122.5, 37.7, -122.3, 37.8)
FIRST = date(2026, 10, 22)
PRINTED = re.compile(r"sfumatoMap\((.*)\);\n", re.DOTALL)


# ---------------------------------------------------------------- map files


def a_tree(seed: int, depth: int) -> Tree:
    """Some nodes of every level; several own what their descendants leave over."""
    rng = default_rng(seed)
    nodes = [np.uint64(1)]
    for level in range(1, depth + 1):
        nodes += [np.uint64((1 << (2 * level)) + code) for code in np.flatnonzero(rng.random(4**level) < 0.4 / level)]
    return Tree.of(depth, np.array(nodes, np.uint64))


def cells_of(tree: Tree, counts: NDArray[np.float64], stddev: NDArray[np.float64]) -> dict[str, Any]:
    return {"cell_id": node_names(tree.entries), "count": counts, "stddev": stddev}


def content_of(file: bytes) -> dict[str, Any]:
    found = PRINTED.fullmatch(file.decode())
    assert found
    return dict(json.loads(found[1]))


def rasters_of(file: bytes) -> tuple[dict[str, Any], NDArray[np.float64], NDArray[np.int64], NDArray[np.float64]]:
    """(content, share, level, variance) of a map file, each raster float64[side, side] with row 0 in the north."""
    content = content_of(file)

    def numbers(name: str, kind: str) -> NDArray[Any]:
        return np.frombuffer(base64.b64decode(content[name]), kind)

    lengths = numbers("runs", "<u2").astype(int) + 1
    level, variance = (np.repeat(numbers(name, kind), lengths) for name, kind in (("level", "u1"), ("variance", "<f4")))
    share = content["most"] * (numbers("share", "<u2").astype(np.float64) / 65535) ** 2
    side = content["side"]
    rows = np.zeros((3, side, side))
    for z in range(side * side):
        x = sum(((z >> (2 * k + 1)) & 1) << k for k in range(10))
        y = sum(((z >> (2 * k)) & 1) << k for k in range(10))
        rows[:, y, x] = share[z], level[z], variance[z]
    return content, rows[0], rows[1].astype(int), rows[2]


def by_brute_force(
    tree: Tree, counts: NDArray[np.float64], stddev: NDArray[np.float64], side: int
) -> tuple[NDArray[np.float64], NDArray[np.int64], NDArray[np.float64]]:
    """Share, level and variance of each pixel: every finest cell asks every node whether it is the deepest over it."""
    fine = 1 << tree.depth
    levels, columns, rows = node_positions(tree.entries)
    owner = np.zeros((fine, fine), int)
    for y in range(fine):
        for x in range(fine):
            over = [
                i
                for i in range(len(levels))
                if (x >> (tree.depth - levels[i]), y >> (tree.depth - levels[i])) == (columns[i], rows[i])
            ]
            owner[y, x] = max(over, key=lambda i: levels[i])
    areas = np.bincount(owner.ravel(), minlength=len(levels))
    positive = np.where(areas > 0, np.maximum(counts, 0), 0)
    per_cell = (positive / np.maximum(areas, 1) / positive.sum())[owner]
    noise = (stddev**2 / np.maximum(areas, 1) / positive.sum() ** 2)[owner]
    k, pixels = fine // side, side.bit_length() - 1
    blocks = (side, k, side, k)
    level = np.minimum(levels[owner], pixels).reshape(blocks).min(axis=(1, 3))
    return per_cell.reshape(blocks).sum(axis=(1, 3)), level, noise.reshape(blocks).sum(axis=(1, 3))


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("side", [16, 8, 4])
def test_map_file_agrees_with_brute_force(seed: int, side: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_index, "MOST_SIDE", side)
    tree, rng = a_tree(seed, 4), default_rng(100 + seed)
    assert (tree.areas < 4 ** (4 - node_levels(tree.entries))).any()  # some own but a part of themselves
    counts, stddev = rng.normal(50, 40, len(tree.entries)), rng.uniform(0.1, 9, len(tree.entries))
    file = map_file("2026-11-20", density_of(tree, counts), cells_of(tree, counts, stddev), Grid(REGION, 4))
    content, share, level, variance = rasters_of(file)
    assert (content["side"], content["date"]) == (side, "2026-11-20")
    assert content["region"] == {"west": -122.5, "south": 37.7, "east": -122.3, "north": 37.8}
    wanted_share, wanted_level, wanted_variance = by_brute_force(tree, counts, stddev, side)
    # A root is off by half a step of 65535, a share by twice its root times that, and float32 by 2^-24.
    steps = np.sqrt(share.max() * wanted_share) / 65535 + share.max() / 65535**2
    assert (np.abs(share - wanted_share) <= steps * 1.001).all()
    np.testing.assert_array_equal(level, wanted_level)
    np.testing.assert_allclose(variance, wanted_variance, rtol=2**-23)


def test_variances_of_pixels_add_up_to_their_cells() -> None:
    tree = Tree.uniform(5, 2)
    counts, stddev = np.full(16, 100.0), np.arange(1.0, 17.0)
    _, _, level, variance = rasters_of(
        map_file("2026-11-20", density_of(tree, counts), cells_of(tree, counts, stddev), Grid(REGION, 5))
    )
    assert (level == 2).all()
    sums = variance.reshape(4, 8, 4, 8).sum(axis=(1, 3))
    _, x, y = node_positions(tree.entries)
    np.testing.assert_allclose(sums[y, x], (stddev / 1600) ** 2, rtol=1e-5)


def test_map_file_is_small_and_always_the_same() -> None:
    tree = Tree.uniform(10, 6)
    rng = default_rng(3)
    counts = rng.uniform(0, 100, len(tree.entries))
    cells = cells_of(tree, counts, rng.uniform(1, 9, len(counts)))
    density = density_of(tree, counts)
    file = map_file("2026-11-20", density, cells, Grid(REGION, 10))
    assert content_of(file)["side"] == 256
    assert file == map_file("2026-11-20", density.copy(), dict(reversed(cells.items())), Grid(REGION, 10))
    assert len(file) < 256 * 256 * 2 * 4 / 3 + len(counts) * 7 * 4 / 3 + 1000


def test_where_nobody_was_seen_nothing_is_known() -> None:
    tree = Tree.uniform(3, 1)
    counts = np.array([-3.0, -1.0, 0.0, -2.0])
    _, share, _, variance = rasters_of(
        map_file("2026-11-20", density_of(tree, counts), cells_of(tree, counts, np.ones(4)), Grid(REGION, 3))
    )
    np.testing.assert_allclose(share, 1 / 64)
    np.testing.assert_allclose(variance.sum(), 4)  # each of four cells may be off by all


@pytest.mark.parametrize(
    ("density", "cells", "words"),
    [
        (np.ones((8, 4)), {}, "square"),
        (np.ones((6, 6)), {}, "square"),
        (np.ones((32, 32)), {}, "at most 16"),
        (np.full((16, 16), np.nan), {}, "finite"),
        (None, {"cell_id": ["r4"]}, "names"),
        (None, {"cell_id": ["r00000"]}, "names"),
        (None, {"cell_id": ["x"]}, "names"),
        (None, {"stddev": [-1.0]}, "deviations"),
        (None, {"stddev": [np.nan]}, "deviations"),
        (None, {"count": [np.inf]}, "counts"),
        (None, {"cell_id": ["r", "r0", "r1", "r2", "r3"], "count": [1.0] * 5, "stddev": [1.0] * 5}, "covered"),
    ],
)
def test_map_file_refuses(density: NDArray[np.float64] | None, cells: dict[str, Any], words: str) -> None:
    whole = {"cell_id": ["r"], "count": [1.0], "stddev": [1.0]}
    with pytest.raises(ValueError, match=words):
        map_file("2026-11-20", np.ones((16, 16)) / 256 if density is None else density, whole | cells, Grid(REGION, 4))


# ---------------------------------------------------------------- the page's text


def day(number: int) -> str:
    return str(FIRST + timedelta(number))


def a_night(number: int, **changes: Any) -> DatedRelease:
    told = {
        "date": day(number),
        "release_id": f"bay-{day(number)}",
        "folder": f"releases/{day(number)}",
        "job": "heatmap",
        "epsilon": 0.5,
        "delta": 0.0,
        "users": 120_000.0 + 1000 * number,
        "created": f"{day(number)}T03:00:00+00:00",
        "warm_start": f"bay-{day(number - 1)}" if number else None,
        "map": f"maps/{day(number)}.js",
        "safe": True,
    }
    return DatedRelease(**(told | changes))


def a_limit(nights: int, days: int = 365, epsilon: float = 200.0) -> Spending:
    return Spending(epsilon, 0.0, days, [(day(i), 0.5 * min(i + 1, days)) for i in range(nights)])


A_YEAR = [a_night(i) for i in range(365)]


def test_a_year_of_nights_is_small() -> None:
    nights = [replace(night, map=f"maps/{night.date}-0123456789ab.js") for night in A_YEAR]
    text = index_page("bay_area", nights, [a_limit(365), a_limit(365, 7, 4.0)])
    assert len(text.encode()) < 300_000


def test_equal_nights_give_equal_pages_in_any_order() -> None:
    some = A_YEAR[:9]
    assert index_page("bay", some, [a_limit(9)]) == index_page("bay", some[::-1], [a_limit(9)])


def test_page_refuses_what_it_cannot_show() -> None:
    with pytest.raises(ValueError, match="at least one"):
        index_page("bay", [], [])
    with pytest.raises(ValueError, match="once"):
        index_page("bay", [A_YEAR[0], A_YEAR[0]], [])


def test_page_loads_nothing_but_its_maps() -> None:
    text = index_page("bay", A_YEAR[:3], [])
    markup = re.sub(r"(?s)(?<=<script).*?(?=</script>)", "", text)
    for address in re.findall(r"""(?:src|href|srcset|action|data|poster)\s*=\s*["']?([^"'\s>]+)""", markup):
        assert address.startswith(("data:", "#", "releases/2026-10-2"))
    script = text[text.rindex("<script>") :].replace("http://www.w3.org/2000/svg", "")  # a name, no address
    assert not re.search(r"https?://|fetch\(|XMLHttpRequest|WebSocket|import\(|sendBeacon|innerHTML|eval\(", script)
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', text)
    assert policy
    scripts = r"script-src 'sha256-[^;]*' 'self' file:; style-src 'sha256-[^;]*'; img-src data:; .*"
    assert re.fullmatch(rf"default-src 'none'; {scripts}", html.unescape(policy[1]))


def test_no_name_can_leave_its_place() -> None:
    attack = "</script><script>alert(1)</script><!-- <img src=x onerror=alert(1)> & \u2028 {{style}} {{data}}\"'"
    night = a_night(1, release_id=attack, job=attack, warm_start=attack, created=attack)
    text = index_page(attack, [a_night(0), night], [])
    assert text.count("</script>") == 2
    assert text.count("<script") == 2
    assert "<!--" not in text
    assert "<img" not in text
    assert "\u2028" not in text[text.index("<script") :]
    found = embedded(text)
    assert found["manifest"]["release_id"] == attack
    assert found["nights"][1][found["names"].index("warm_start")] == attack


def test_table_links_the_files_that_each_release_has() -> None:
    text = index_page("bay", [a_night(0), a_night(1, job="histogram", map=None, users=None, delta=1e-8)], [])
    for name in ("index.html", "manifest.json", "heatmap.png", "cells.parquet", "density.npy"):
        assert f'href="releases/{day(0)}/{name}"' in text
        assert (f'href="releases/{day(1)}/{name}"' in text) == (name in ("index.html", "manifest.json"))
    assert "<td></td><td>0.5, δ 10⁻⁸</td>" in text


def test_spending_is_told_in_words() -> None:
    nights = [a_night(i, delta=1e-8 if i == 2 else 0.0) for i in range(3)]
    text = index_page("bay", nights, [Spending(4.0, 1e-7, 7, [(day(0), 3.5), (day(1), 1.0)]), a_limit(3, 1, 0.75)])
    assert "The 3 releases of this page spent ε 1.5 and δ 10⁻⁸ in all" in text
    assert (
        "The ledger allows ε 4 and δ 10⁻⁷ in any 7 days: ε 1 was spent in the 7 days up to 23 October 2026, and 3.5 at "
        "most in any window that ends on a day shown here."
    ) in text
    assert "The ledger allows ε 0.75 on one day: ε 0.5 was spent on 24 October 2026" in text
    assert "No ledger was kept" not in text
    assert "No ledger was kept" in index_page("bay", nights, [])


def test_known_seeds_raise_the_alarm() -> None:
    assert "NOT private" not in index_page("bay", A_YEAR[:3], [])
    one = index_page("bay", [*A_YEAR[:3], a_night(3, safe=False)], [])
    assert "The noise of one of them came from a known source" in one
    assert one.count('class="unsafe"') == 1
    assert "The noise of all of these releases" in index_page("bay", [a_night(i, safe=False) for i in range(3)], [])
