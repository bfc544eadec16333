"""The page of a comparison, from its published files: methods first, pictures, error curves, tables.

It shows exact data and is no release: the page says so first.
"""

from __future__ import annotations

import base64
import io
import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from numpy.typing import NDArray
from PIL import Image

from sfumato.schemas.comparison import BY_TRUTH, EVALUATION, YARDSTICK, Setting, Value
from sfumato.schemas.release import DENSITIES_FILE, MANIFEST_FILE, RUNS_FILE, TABLE_FILE
from sfumato.schemas.views import ComparisonBody, Fact, FileLink, MethodRow, MetricName, PageView, Scale, Section, Table
from sfumato.transforms.evaluation.comparison_table import (
    DASH,
    RATIO_OF,
    Mean,
    Row,
    amount_text,
    best_rows,
    in_groups,
    option_names,
    reading,
    share_text,
    value_text,
)
from sfumato.transforms.evaluation.density_metrics import METRICS
from sfumato.transforms.report.scales import density_scale

MAX_PICTURES = 96
MAX_PICTURE_BYTES = 3_000_000  # of all together, before base64 makes them a third larger
_RATIO = f"{RATIO_OF} / {YARDSTICK}"
_FILES = [
    FileLink(name=TABLE_FILE, description="one row for each setting: means and standard errors over keys"),
    FileLink(name=RUNS_FILE, description="one row for each run"),
    FileLink(name=DENSITIES_FILE, description="the exact density and the estimated ones, at most 256 cells a side"),
    FileLink(name=MANIFEST_FILE, description="every parameter, every version, and the table"),
]
_READING = (
    "Every method met the same cohorts: run for run, the same users were drawn and the same of them vanished. A figure "
    "is the mean over the runs, with its standard error; a picture is that of one run.",
    f"A method that is marked “not private” has looked at the exact data. It is there to compare with and cannot be "
    f"published. {YARDSTICK} is the uniform grid of the best level, without any noise: the least squared error of all "
    "uniform grids, and no bound for other maps or figures.",
)


def comparison_view(files: Mapping[str, bytes]) -> PageView:
    """The page of a comparison's published files, by name: the manifest and the densities."""
    manifest = {name: value for name, value in json.loads(files[MANIFEST_FILE]).items() if name != "files"}
    metrics = [name for name in manifest["metrics"] if name in METRICS]
    entries = [_row(one) for one in manifest["settings"]]
    album = _Album.of(files[DENSITIES_FILE], [row.setting for row in entries])
    rows = [row for group in in_groups(entries) for row in group]
    body = _body(rows, metrics, album)
    headline = _headline(rows, metrics)
    chips = [Fact(term="Settings", text=f"{len(rows):,}")]
    for name in body.shared[:3]:
        texts = list(dict.fromkeys(value_text(row.options[name]) for row in rows if name in row.options))
        chips.append(Fact(term=name, text=f"{texts[0]} to {texts[-1]}" if len(texts) > 4 else ", ".join(texts)))
    return PageView(
        title="Comparison of methods",
        headline=headline,
        description=f"An evaluation on exact data, by {', '.join(metrics)}: {headline}.",
        job="compare",
        release_id=str(manifest.get("release_id", "")),
        created=str(manifest.get("created", "")),
        chips=chips,
        guarantee=EVALUATION,
        alarm=f"Evaluation on exact data: do not publish. {EVALUATION}",
        files=_FILES,
        sections=_sections(rows, body, album.left_out),
        manifest=manifest,
        body=body,
    )


def _headline(rows: Sequence[Row], metrics: Sequence[str]) -> str:
    """Which private method is the best by the first metric, and in how many groups of settings."""
    private = list(dict.fromkeys(row.setting.method for row in rows if row.private))
    wins = Counter(setting.method for setting, name in best_rows(rows, metrics[:1]) if name == metrics[0])
    if not wins or len(private) < 2:
        names = f", {private[0]}," if len(private) == 1 else ""
        return f"{len(private)} private method{'s' if len(private) != 1 else ''}{names} on exact data"
    best, won = wins.most_common(1)[0]
    superlative = "lowest" if METRICS[metrics[0]].better == "lower" else "highest"
    return (
        f"{best} has the {superlative} {metrics[0]} in {won} of {wins.total()} settings, of {len(private)} private "
        "methods"
    )


def _row(entry: Mapping[str, Any]) -> Row:
    """A row of the table, from its entry in the manifest."""

    def mean(one: Mapping[str, float | None]) -> Mean:
        return Mean(*(math.nan if one[name] is None else float(one[name] or 0) for name in ("mean", "stderr")))

    def amount(name: str) -> float:
        return math.nan if entry[name] is None else float(entry[name])

    return Row(
        Setting(str(entry["method"]), tuple(entry["options"].items())),
        int(entry["keys"]),
        {name: mean(one) for name, one in entry["metrics"].items()},
        mean(entry["mse_ratio"]) if entry["mse_ratio"] else None,
        amount("entries"),
        amount("bits"),
        amount("shards_lost"),
    )


def _body(rows: Sequence[Row], metrics: Sequence[str], album: _Album) -> ComparisonBody:
    shared, own = option_names(rows)
    return ComparisonBody(
        notice=EVALUATION,
        rows=[_method_row(row, metrics, album.at.get(row.setting)) for row in rows],
        metrics=[MetricName(name=one, help=METRICS[one].help, better=METRICS[one].better) for one in metrics],
        shared=shared,
        own=own,
        start=_start(rows, album.at, shared, own),
        pictures=[f"data:image/png;base64,{base64.b64encode(one).decode()}" for one in album.pictures],
        captions=[_together(one) for one in album.labels],
        scale=album.scale,
        reading=reading(rows, False),
    )


def _method_row(row: Row, metrics: Sequence[str], picture: int | None) -> MethodRow:
    def finite(value: float) -> float | None:
        return float(f"{value:.9g}") if math.isfinite(value) else None

    return MethodRow(
        method=row.setting.method,
        private=row.private,
        options={**row.options},
        texts={name: value_text(value) for name, value in row.options.items()},
        metrics={
            name: (finite(row.metrics[name].value), finite(row.metrics[name].error), row.metrics[name].text)
            for name in metrics
        },
        picture=picture,
    )


def _start(rows: Sequence[Row], at: Mapping[Setting, int], shared: Sequence[str], own: Sequence[str]) -> dict[str, Any]:
    """The options' values that are shown first: those in the middle, or of the nearest group that has pictures."""
    middle: dict[str, Value] = {}
    for name in (*shared, *own):
        values = sorted(
            {row.options[name] for row in rows if name in row.options}, key=lambda v: (isinstance(v, str), v)
        )
        middle[name] = values[(len(values) - 1) // 2]
    pictured = [row.options for row in rows if row.private and row.setting in at]
    nearest = min(pictured, key=lambda one: sum(one[name] != middle[name] for name in shared), default=middle)
    return middle | {name: nearest[name] for name in shared}


@dataclass(frozen=True)
class _Album:
    """Pictures on one scale of colours; the first is the truth's.

    Colours stand for the density over that of an even spread, so pictures of different resolution compare.

    Attributes:
        scale: of the colours.
        pictures: PNG files.
        labels: of each picture, the settings whose picture it is.
        at: the number of each setting's picture.
        left_out: how many settings' pictures found no room.
    """

    scale: Scale
    pictures: list[bytes]
    labels: list[list[str]]
    at: dict[Setting, int]
    left_out: int

    @classmethod
    def of(cls, file: bytes, settings: Sequence[Setting]) -> _Album:
        """From the published densities and the settings in the manifest's order."""
        columns = pq.read_table(io.BytesIO(file)).to_pydict()
        squares = [_relative(np.asarray(one, np.float64)) for one in columns["density"]]
        scale = density_scale(squares[0].ravel(), squares[0].ravel(), "times the density of an even spread")
        album = cls(scale, [_png(squares[0], scale)], [["truth"]], {}, 0)
        size, left_out = len(album.pictures[0]), 0
        for square, numbers in zip(squares[1:], columns["settings"][1:], strict=True):
            png = _png(square, scale)
            if len(album.pictures) == MAX_PICTURES or size + len(png) > MAX_PICTURE_BYTES:
                left_out += len(numbers)
                continue
            size += len(png)
            album.at.update((settings[number], len(album.pictures)) for number in numbers)
            album.pictures.append(png)
            album.labels.append([settings[number].label for number in numbers])
        return replace(album, left_out=left_out)


def _relative(density: NDArray[np.float64]) -> NDArray[np.float64]:
    """A density by rows over that of an even spread: float64[side, side]."""
    side = math.isqrt(density.size)
    return np.asarray(np.maximum(density, 0).reshape(side, side) * density.size)


def _png(values: NDArray[np.float64], scale: Scale) -> bytes:
    """A picture whose grey is the place on the scale; the page gives it the colours of its theme."""
    knee = scale.knee or 1.0
    shades = np.minimum(np.log1p(values / knee) / math.log1p(scale.high / knee), 1.0)
    file = io.BytesIO()
    Image.fromarray(np.rint(255 * shades).astype(np.uint8)).save(file, "PNG", optimize=True)
    return file.getvalue()


def _sections(rows: Sequence[Row], body: ComparisonBody, left_out: int) -> list[Section]:
    """The report: the methods at the first setting, all settings, and how to read them."""
    here = [row for row in rows if all(body.start.get(name) == value for name, value in row.options.items())]
    at = ", ".join(f"{name} {value_text(body.start[name])}" for name in (*body.shared, *body.own))
    by_truth = [row for row in rows if row.setting.method.endswith(BY_TRUTH)]
    others = [row for row in rows if row not in by_truth]
    here = sorted((row for row in others if row in here), key=lambda row: _rank(row, body.metrics[0]))
    left = f"{left_out:,} settings have no picture here: they are left out to keep this page small." if left_out else ""
    options = [*body.shared, *body.own]
    made = [
        Section(title="Methods", lead=f"At {at}." if at else None, table=_table("Methods", here, body, [])),
        Section(title="All settings", lead=body.reading, table=_table("All settings", others, body, options)),
    ]
    if by_truth:
        lead = "The same methods, with the level of their map chosen by looking at the exact data. Not private."
        made.append(
            Section(
                title="Level by truth", lead=lead, table=_table("Level by truth", by_truth, body, options), folded=True
            )
        )
    figures = [
        Fact(term=one.name, text=f"{one.help.rstrip('.')}; {one.better} is better") for one in body.metrics
    ]  # fmt: skip
    figures.append(Fact(term="entries, bits", text="what one client sends, in all sub-queries together"))
    made.append(Section(title="How to read it", paragraphs=[*_READING, left] if left else [*_READING]))
    lead = "e is the estimated density, t the exact one."
    made.append(Section(title="What the figures mean", lead=lead, facts=figures))
    return made


def _rank(row: Row, metric: MetricName) -> tuple[bool, float]:
    """Private methods first, then by a metric, the best first."""
    value = row.metrics[metric.name].value * (1 if metric.better == "lower" else -1)
    return not row.private, value if math.isfinite(value) else math.inf


def _table(title: str, rows: Sequence[Row], body: ComparisonBody, options: Sequence[str]) -> Table:
    """Rows as texts, with columns for some options. A method that is not private is marked."""
    metrics = [one.name for one in body.metrics]
    ratio, lost = any(row.ratio for row in rows), any(row.shards_lost > 0 for row in rows)
    heads = ["method", *options, *metrics, *([_RATIO] if ratio else []), "entries", "bits"]
    heads += ["shards lost"] if lost else []
    texts = []
    for row in rows:
        method = row.setting.method + ("" if row.private or row.setting.method.endswith(BY_TRUTH) else " (not private)")
        one = [method, *(value_text(row.options.get(name)) for name in options)]
        one += [row.metrics[name].text for name in metrics]
        one += [row.ratio.text if row.ratio else DASH] if ratio else []
        one += [amount_text(row.entries), amount_text(row.bits)]
        texts.append(one + ([share_text(row.shards_lost)] if lost else []))
    numeric = [False, *(not any(isinstance(row.options.get(name), str) for row in rows) for name in options)]
    return Table(title=title, heads=heads, rows=texts, numeric=numeric + [True] * (len(heads) - len(numeric)))


def _together(labels: Sequence[str]) -> str:
    return labels[0] if len(labels) == 1 else f"{labels[0]}, and {len(labels) - 1} more that look the same"
