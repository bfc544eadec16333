"""The page of a folder of nightly releases: timeline, one night's map, the difference of two. Pure post-processing.

`map_file` makes of one release the small script that the page loads when its date is chosen: a page that is opened
from a disk may load scripts and nothing else. `index_page` makes the page itself, some 600 bytes a night.
"""

from __future__ import annotations

import base64
import datetime
import html
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from sfumato.schemas.region import Grid, interleave
from sfumato.schemas.release import (
    CELLS_FILE,
    DENSITY_FILE,
    MANIFEST_FILE,
    PAGE_FILE,
    PICTURE_FILE,
)
from sfumato.schemas.timeline import DatedRelease, Spending
from sfumato.schemas.tree import Tree, node_levels
from sfumato.transforms.release.page_shell import PALETTE, fill, render_shell
from sfumato.transforms.release.picture import coarsened, per_square_km, tiny
from sfumato.transforms.release.picture_scale import written_top

MAP_FORMAT = 1  # of the map files; a page shows those of its own format alone
MOST_SIDE = 256  # pixels of a map file's side
_STEPS = 65535  # of a share, which is stored by its square root
_ALARM = "The noise of {nights} came from a known source, so anyone who has it can take the noise away again."
_SCRIPTS = (
    "page_words.js",
    "page_pieces.js",
    "page_index_maps.js",
    "page_index_colours.js",
    "page_index_view.js",
    "page_index_time.js",
    "page_index.js",
)
_STYLES = ("page.css", "page_compare.css", "page_index.css")
_PACKED = ("date", "release_id", "folder", "job", "epsilon", "delta", "users", "warm_start", "map", "safe")
_FILES = (("latest.json", "date and folder of the newest release, for programs"),)
_STILL = '<p class="noscript">Scripts are off, so this is the list of releases alone. Each has a page of its own.</p>'
_MONTHS = (
    "January", "February", "March", "April", "May", "June", "July", "August", "September", "October", "November",
    "December",
)  # fmt: skip
_MAP_FILES = ((PICTURE_FILE, "picture"), (CELLS_FILE, "cells"), (DENSITY_FILE, "density"))


def map_file(
    date: str, density: NDArray[np.float64], cells: pa.Table | Mapping[str, Sequence[Any]], grid: Grid
) -> bytes:
    """One night's map as a script that hands it to the page; equal arguments give equal bytes.

    All rasters are in the quadtree's order (pixel z lies where `region.interleave` gives z), so a tree cell is a run:
      - share: the square root of each pixel's share of the users, as uint16 of the largest's;
      - runs of equal (level, variance), their lengths less 1 as uint16. level: depth of the coarsest cell that owns a
        part of the pixel, at most the pixels' own. variance: float32, of the noise in the pixel's share, such that sums
        over whole cells are theirs: a cell of k pixels leaves 1 / k of its variance in each, and cells finer than a
        pixel add theirs up in it.

    Args:
        date: YYYY-MM-DD.
        density: float64[n, n] shares of the users, row 0 in the north; n is a power of two. Coarsened to 256.
        cells: the release's table of cells, or its columns `cell_id`, `count` and `stddev` by name.
        grid: the region and depth of the release.

    Raises:
        ValueError: the density is no such square, or a cell's name or deviation makes no sense.
    """
    side = len(density)
    if density.shape != (side, side) or not side or side & (side - 1) or side > grid.side:
        raise ValueError(f"density: must be a square of 2^d a side, at most {grid.side}, got shape {density.shape}")
    if not np.isfinite(density).all():
        raise ValueError("density: must be finite numbers")
    shown = coarsened(density, MOST_SIDE)
    depth = len(shown).bit_length() - 1
    level, variance = _noise(cells, grid.depth, depth)
    axis = np.arange(len(shown), dtype=np.uint32)
    place = np.argsort(interleave(np.tile(axis, len(shown)), np.repeat(axis, len(shown))))
    most = float(shown.max())
    roots = np.round(np.sqrt(shown.ravel()[place] / (most or 1.0)) * _STEPS)
    variance = variance.astype(np.float32)
    starts = np.flatnonzero(np.concatenate(([True], (np.diff(level) != 0) | (np.diff(variance) != 0))))
    lengths = np.diff(np.append(starts, len(level)))
    content = {
        "format": MAP_FORMAT,
        "date": date,
        "side": len(shown),
        "region": asdict(grid.region),
        "top": float(f"{written_top(100 * per_square_km(shown, grid.region), shown):.6g}"),  # % of users per km^2
        "most": most,
        "share": _packed(roots, "<u2"),
        "runs": _packed(lengths - 1, "<u2"),
        "level": _packed(level[starts], "<u1"),
        "variance": _packed(variance[starts], "<f4"),
    }
    return f"sfumatoMap({json.dumps(content, allow_nan=False, separators=(',', ':'))});\n".encode()


def _noise(
    cells: pa.Table | Mapping[str, Sequence[Any]], depth: int, pixels: int
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """(level int64[4^pixels], variance float64[4^pixels]) by pixel in the quadtree's order; see `map_file`.

    depth: of the cells' grid. pixels: depth of the raster.
    """
    columns = [cells[name] for name in ("cell_id", "count", "stddev")]
    names, counts, stddev = (np.asarray(one) for one in columns)
    nodes = _nodes(names.tolist(), depth)
    if not (np.isfinite(counts).all() and np.isfinite(stddev).all() and (stddev >= 0).all()):
        raise ValueError("cells: counts must be finite numbers, and deviations finite and >= 0")
    tree = Tree.of(depth, nodes)
    own = np.minimum(np.searchsorted(tree.entries, nodes), len(tree.entries) - 1)
    if not np.array_equal(tree.entries[own], nodes):
        raise ValueError("cells: one of them is covered by four others, and has no place of its own")
    users = float(np.maximum(counts, 0)[tree.areas[own] > 0].sum())  # what the density's shares are shares of
    spread = np.zeros(len(tree.entries))
    # Where nobody was seen nothing is known, and a share is off by 1 at most.
    spread[own] = (stddev / users) ** 2 if users > 0 else 1.0
    spread /= np.maximum(tree.areas, 1)
    index, shift = tree.index, np.uint64(2 * (depth - pixels))
    borders = np.arange((1 << (2 * pixels)) + 1, dtype=np.uint64) << shift
    cuts = np.union1d(borders, index.boundaries)
    owner = index.owner[np.searchsorted(index.boundaries, cuts[:-1], side="right") - 1]
    first = np.searchsorted(cuts, borders[:-1])
    variance = np.add.reduceat(spread[owner] * np.diff(cuts).astype(np.float64), first)
    level = np.minimum.reduceat(np.minimum(node_levels(tree.entries), pixels)[owner], first)
    return level, variance


def _nodes(names: Sequence[str], depth: int) -> NDArray[np.uint64]:
    """Tree nodes uint64[n] of names such as `r213`. Raises ValueError."""
    if not names or any(name[:1] != "r" or len(name) > depth + 1 or name[1:].strip("0123") for name in names):
        raise ValueError(f"cells: names must be r and at most {depth} digits 0..3")
    return np.array([int("1" + name[1:], 4) for name in names], dtype=np.uint64)


def _packed(values: NDArray[Any], kind: str) -> str:
    return base64.b64encode(values.astype(kind).tobytes()).decode()


def index_page(title: str, nights: Sequence[DatedRelease], spending: Sequence[Spending] = ()) -> str:
    """The page as one text; equal arguments give equal texts. It loads `maps/` when a date is chosen, nothing else.

    Args:
        title: what the releases are of, such as the dataset's name.
        nights: at least one, each date once, in any order.
        spending: the ledger's limits, and what had been spent of each; empty where no ledger was kept.

    Raises:
        ValueError: no night, or a date twice.
    """
    nights = sorted(nights, key=lambda night: night.date)
    if not nights:
        raise ValueError("nights: a page needs at least one, got none")
    if len({night.date for night in nights}) < len(nights):
        raise ValueError("nights: every date once")
    unsafe = sum(not night.safe for night in nights)
    safe = {"source": "", "safe": unsafe == 0}
    return render_shell(
        title="Private releases",
        metadata={"release_id": title, "privacy": {"randomness": safe}},
        problems=[],
        data={
            "palette": PALETTE,
            "format": MAP_FORMAT,
            "names": _PACKED,
            "nights": [[getattr(night, name) for name in _PACKED] for night in nights],
            "spending": [_pack(one, nights[0].date) for one in spending],
        },
        files=_FILES,
        stage=fill(
            "page_index.html",
            {
                "spending": "".join(_spending_words(nights, spending)),
                "rows": "".join(_row(night) for night in reversed(nights)),
            },
        ),
        scripts=_SCRIPTS,
        styles=_STYLES,
        still=_STILL,
        alarm=_ALARM.format(nights=_some(unsafe, len(nights))),
        loads=True,
    )


def _some(count: int, of: int) -> str:
    """So many of these releases, in words."""
    if of == 1:
        return "this release"
    return "all of these releases" if count == of else f"{count:,} of these releases" if count > 1 else "one of them"


def _pack(limit: Spending, first: str) -> dict[str, Any]:
    """What the scripts need of a limit; days are counted from the first night's."""
    start = datetime.date.fromisoformat(first)
    spent = [((datetime.date.fromisoformat(day) - start).days, amount) for day, amount in limit.spent]
    return {"epsilon": limit.epsilon, "days": limit.days, "spent": spent}


def _row(night: DatedRelease) -> str:
    """The night as a row of the table of all releases."""
    files = [(PAGE_FILE, "page"), (MANIFEST_FILE, "manifest"), *(_MAP_FILES if night.has_map else ())]
    links = " ".join(f'<a href="{night.folder}/{name}">{text}</a>' for name, text in files)
    users = "" if night.users is None else f"{night.users:,.0f}"
    notes = "" if night.safe else ' <small class="unsafe">not private</small>'
    delta = f", δ {tiny(night.delta)}" if night.delta else ""
    return (
        f'<tr><th scope="row">{night.date}</th><td>{html.escape(night.job)}{notes}</td>'
        f"<td>{users}</td><td>{night.epsilon:g}{delta}</td><td>{links}</td></tr>"
    )


def _spending_words(nights: Sequence[DatedRelease], spending: Sequence[Spending]) -> list[str]:
    """What was spent, in paragraphs."""
    total, delta = sum(night.epsilon for night in nights), sum(night.delta for night in nights)
    also = f" and δ {tiny(delta)}" if delta else ""
    count = f"{len(nights):,} release{'s'[: len(nights) != 1]}"
    words = [
        f"The {count} of this page spent ε {total:.6g}{also} in all, added up: so much at most is lost by somebody who "
        "is in the data of every one of them."
    ]
    if not spending:
        words.append("No ledger was kept, so nothing here says that no more was spent on the same data.")
    for one in spending:
        limit = f"ε {one.epsilon:g}" + (f" and δ {tiny(one.delta)}" if one.delta else "")
        window = "on one day" if one.days == 1 else f"in any {one.days} days"
        spent = "nothing was spent yet"
        if one.spent:
            last, now = one.spent[-1]
            most = max(value for _, value in one.spent)
            span = f"on {_spoken(last)}" if one.days == 1 else f"in the {one.days} days up to {_spoken(last)}"
            spent = f"ε {now:.6g} was spent {span}, and {most:.6g} at most in any window that ends on a day shown here"
        words.append(f"The ledger allows {limit} {window}: {spent}.")
    return [f"<p>{html.escape(text)}</p>" for text in words]


def _spoken(text: str) -> str:
    """A date as people write it: 20 November 2026."""
    day = datetime.date.fromisoformat(text)
    return f"{day.day} {_MONTHS[day.month - 1]} {day.year}"
