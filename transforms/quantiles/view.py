"""What the pages of quantiles show, made of a release's published files only. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from sfumato.schemas.guarantee import Trust
from sfumato.schemas.known_digits import not_negative, with_interval
from sfumato.schemas.release import BINS_FILE, CURVE_FILE, MANIFEST_FILE, QUANTILES_FILE, QUANTILES_PICTURE, RANGES_FILE
from sfumato.schemas.views import Body, PageView
from sfumato.schemas.views.chart_views import CurveBody, QuantileRow, RangeRow
from sfumato.schemas.views.view_parts import Fact, Section, Table
from sfumato.transforms.histogram.view import READING, SampledPage, view_of
from sfumato.transforms.report.numbers import column_texts, percent
from sfumato.transforms.report.released import Files
from sfumato.transforms.report.sections import table_section

_WHO = {
    Trust.CENTRAL: "A trusted curator, the operator of this job, saw the logs and drew the published values once, with "
    "a secret key.",
    Trust.SPLIT: "Two servers received shares of the bins of users' values, which disclose nothing. Each added its own "
    "noise to its share of every count, and only the total of both was seen.",
}
_BINS = 48  # of the histogram of a distribution, at most
_FILES = {
    QUANTILES_FILE: "the quantiles, each with its interval",
    RANGES_FILE: "the ranges: estimated users, 95% interval",
    CURVE_FILE: "the distribution function with its band",
    BINS_FILE: "one row for each published interval of values, of every level",
    QUANTILES_PICTURE: "the distribution as a picture",
    MANIFEST_FILE: "the guarantee, every round, every parameter, every version",
}


def quantiles_view(files: Files) -> PageView:
    """Returns the page of a release of `sfumato quantiles`. files: by name."""
    return view_of(files, QuantilesPage, CentralQuantilesPage)


class QuantilesPage(SampledPage):
    """Texts of the page of a distribution by sample and threshold."""

    FILES: ClassVar[dict[str, str]] = _FILES

    def own_chip(self) -> Fact:
        counted = self.parameters["counted"]
        return Fact(term="Range", text=f"{counted['low']:g} to {counted['high']:g}".replace("-", "−"))

    def content(self) -> tuple[Body, str, list[Section]]:
        curve, quantiles = self.table(CURVE_FILE), self.table(QUANTILES_FILE).to_pylist()
        ranges = self.table(RANGES_FILE).to_pylist() if RANGES_FILE in self.files else []
        at_points = self.parameters["method"] in ("interactive", "exponential")
        columns = {name: [float(f"{one:.12g}") for one in curve[name].to_pylist()] for name in curve.column_names}
        share, low, high = (np.array(columns[name]) for name in ("share", "low", "high"))
        inner = sorted(set(columns["value"]))[1:-1]
        known = _margin(np.array(columns["value"]), share, low, high, inner if at_points else None)
        where = "At its dots the" if at_points else "The"
        note = "" if known is None else f"{where} curve is known to ± {100 * known:.2g} percentage points (95%)."
        if at_points:
            note += " Between two dots it may lie anywhere between their heights."
        range_rows = [
            _range_row(one["low"], one["high"], one["users"], one["users_low"], one["users_high"]) for one in ranges
        ]
        body = CurveBody(
            column=self.column,
            value=columns["value"],
            share=columns["share"],
            low=columns["low"],
            high=columns["high"],
            quantiles=[QuantileRow(**one) for one in quantiles],
            ranges=range_rows,
            points=inner if at_points else [],
            histogram=self._histogram() if BINS_FILE in self.files else [],
            hidden=float(self.hidden) if BINS_FILE in self.files else None,
            note=note,
        )
        sections = []
        if quantiles:
            rows = [
                [f"{100 * one['share']:g}%", *with_interval(one["value"], one["low"], one["high"])] for one in quantiles
            ]
            heads = ["Share of users", "Lie below", "At 95%, from", "to"]
            sections.append(table_section("The quantiles", heads, rows))
        if ranges:
            ends = column_texts([one[name] for one in ranges for name in ("low", "high")])
            rows = []
            for i, one in enumerate(range_rows):
                users = with_interval(one.users, one.users_low, one.users_high)
                rows.append([*ends[2 * i : 2 * i + 2], *users, percent(one.users / max(self.all_users, 1.0))])
            heads = ["From", "To below", "Users", "At 95%, from", "to", "Share of all users"]
            sections.append(table_section("The ranges", heads, rows))
        reading = [
            f"{self.ONE_RECORD} The curve shows the share of users below each value. Where it is steep there are "
            "many users; where it is flat there are few or none.",
            *self.curve_reading(),
            "Values outside the range count at its nearest end.",
        ]
        if note:
            reading.append(note)
        return body, self._curve_headline(quantiles), [*sections, Section(title=READING, paragraphs=reading)]

    def curve_reading(self) -> list[str]:
        """Returns what the band and the intervals of a distribution leave open."""
        return [
            "The band shows only the sampling error. It is pointwise: at each value it contains the true curve about "
            "95 times in 100. A quantile's interval is derived from it.",
            f"A value range with too few sampled users is not published. It has at most {self.hidden:,} users at 99% "
            "confidence, so the curve can be slightly low or high near rare values.",
        ]

    def _curve_headline(self, quantiles: list[dict[str, Any]]) -> str:
        if not quantiles:
            return f"One sampled record per user: no distribution of {self.column} could be published"
        middle = min(quantiles, key=lambda one: abs(one["share"] - 0.5))
        share = "half" if middle["share"] == 0.5 else f"{100 * middle['share']:g}%"
        value, low, high = with_interval(middle["value"], middle["low"], middle["high"])
        return (
            f"One sampled record per user: {share} of about {self.all_users_text} users have {self.column} below "
            f"{value} (between {low} and {high})"
        )

    def _histogram(self) -> list[RangeRow]:
        """Returns the published bins of the finest level with few enough of them."""
        table = self.table(BINS_FILE)
        levels = np.asarray(table["level"])
        fitting = [level for level in np.unique(levels).tolist() if 1 << level <= _BINS]
        rows = table.filter(pa.array(levels == max(fitting, default=-1)))
        columns = (rows["low"].to_pylist(), rows["high"].to_pylist(), rows["count"].to_pylist())
        return [_range_row(*row) for row in zip(*columns, *(ends.tolist() for ends in self.ends(rows)), strict=True)]


class CentralQuantilesPage(QuantilesPage):
    """Texts of the page of quantiles by a trusted curator."""

    DRAWN: ClassVar[str] = "The noise"

    def stddev_of(self, users: float) -> float:
        return 0.0

    def curve_reading(self) -> list[str]:
        if self.parameters["method"] == "exponential":
            return [
                "A quantile's interval contains the true value at least 95 times in 100. It allows for long ranges "
                "without values, so it is wider than necessary where values are dense.",
                "The curve passes through the published quantiles and the ends of their intervals. Between two dots it "
                "is only known to rise.",
            ]
        return [
            "The band shows the error from noise. It is pointwise: at each border of a bin it contains the true curve "
            "about 95 times in 100. A quantile's interval is derived from it."
        ]

    def made(self) -> Section:
        paragraphs = [_WHO[self._manifest["privacy"]["trust"]]]
        if self.parameters["method"] == "exponential":
            paragraphs.append(
                "The middle quantile was drawn first, then the middle quantile of each half, down to the last. A value "
                "is more likely to be drawn the closer the number of users below it is to the requested number."
            )
            names = {"index": "Level", "epsilon": "Epsilon", "draws": "Draws"}
        else:
            paragraphs.append(
                "The users were counted in bins of several widths, with noise on every count, including those of empty "
                "bins. The curve is the best fit to all counts."
            )
            names = {"index": "Level", "epsilon": "Epsilon", "level": "Bins"}
            names["noise_stddev"] = "Standard deviation of a count"
        rows = [
            [f"{2 ** one[name] if name == 'level' else one[name] + (name == 'index'):,.4g}" for name in names]
            for one in self.rounds
        ]
        table = Table(title="Level by level", heads=list(names.values()), rows=rows, numeric=[True] * len(names))
        return Section(title="How it was made", paragraphs=paragraphs, table=table if rows else None)


def _range_row(low: float, high: float, users: float, users_low: float, users_high: float) -> RangeRow:
    users, users_low, users_high = not_negative(users, users_low, users_high)
    return RangeRow(low=low, high=high, users=users, users_low=users_low, users_high=users_high)


def _margin(
    value: np.ndarray, share: np.ndarray, low: np.ndarray, high: np.ndarray, shown_values: Sequence[float] | None
) -> float | None:
    """Returns how far the true share may lie from the curve at worst. At a value that occurs twice, both bands hold."""
    found = []
    for one in np.unique(value).tolist() if shown_values is None else shown_values:
        rows = value == one
        found.append(min(high[rows].min(), 1.0) - share[rows].mean())
        found.append(share[rows].mean() - low[rows].max())
    return max(found) if found else None
