"""What the pages of counted items and cells show, made of a release's published files only. Pure."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import shapely
from numpy.typing import NDArray

from sfumato.schemas.charts import readable
from sfumato.schemas.guarantee import Trust
from sfumato.schemas.known_digits import NOISE_Z, Z, about, figures, not_negative
from sfumato.schemas.region import Grid, ground_metres
from sfumato.schemas.release import (
    CELLS_FILE,
    HISTOGRAM_PICTURE,
    HOTSPOTS_PICTURE,
    INDEX_FIELDS,
    ITEMS_FILE,
    MANIFEST_FILE,
    QUANTILES_PICTURE,
    ZONES_FILE,
)
from sfumato.schemas.tree import nodes_from_names
from sfumato.schemas.views import Body, PageView
from sfumato.schemas.views.chart_views import Bar, BarsBody
from sfumato.schemas.views.map_views import Layer, MapBody, Measure
from sfumato.schemas.views.view_parts import Fact, Scale, Section, Table
from sfumato.transforms.geo.zone_file import INDEXES
from sfumato.transforms.observability.text_tables import significant
from sfumato.transforms.privacy.admission import sampled_stddev
from sfumato.transforms.report.count_measures import busiest_text, cell_boxes, distinct_places, listed_note
from sfumato.transforms.report.layers import around_cells, cell_layer, finest_metres, zone_layer
from sfumato.transforms.report.numbers import length, percent, plural, shown_values
from sfumato.transforms.report.released import Files, Released
from sfumato.transforms.report.scales import count_scale, published_scale
from sfumato.transforms.report.sections import around_points, get, no_zone_here, radius_of, zone_noun
from sfumato.transforms.statistics.shrinkage import simultaneous_z

READING = "How to read it"  # the title of a section
_TABLE_ROWS = 100
_LARGE_ERROR = 0.05  # of a number of users: a 95% margin that is stated with it
_NOT_SHOWN = {*(field.name for field in INDEX_FIELDS), "geometry"}
_COMPLETE = re.compile(r"\d+|\d{4}-\d{2}-\d{2}")  # numbers and dates, which no trie cuts on its last level
_TITLES = {"histogram": "Private histogram", "hotspots": "Private hot spots", "quantiles": "Private quantiles"}
_PICTURES = {"histogram": HISTOGRAM_PICTURE, "hotspots": HOTSPOTS_PICTURE, "quantiles": QUANTILES_PICTURE}
_FILES = {
    ITEMS_FILE: "one row for each published item or prefix: estimated users, standard deviation",
    CELLS_FILE: "one row for each published cell: bounds, estimated users, standard deviation, shape",
    ZONES_FILE: "one row for each published zone: estimated users, standard deviation, polygon",
    HISTOGRAM_PICTURE: "the same as a picture",
    HOTSPOTS_PICTURE: "the same as a picture",
    MANIFEST_FILE: "the guarantee, every round, every parameter, every version",
}


def view_of(files: Files, sampled: type[SampledPage], central: type[SampledPage]) -> PageView:
    """Returns the page of a release of counted items. files: by name.

    sampled: the texts for a release by sample and threshold. central: for one with noise on the counts of all users.
    """
    release = Released(files)
    is_sampled = get(release.manifest, "privacy.trust") == Trust.SECAGG
    page = (sampled if is_sampled else central)(release)
    body, headline, sections = page.content()
    job = release.manifest["job"]
    return release.page(
        body,
        [*sections, page.made()],
        [page.own_chip()],
        page.FILES,
        [_PICTURES[job]],
        page.DRAWN,
        title=f"{page.UNIT.capitalize()} by {page.noun}" if ZONES_FILE in release.files else _TITLES[job],
        headline=headline,
        description=f"{headline}. Every user is protected by differential privacy.",
    )


def noun_of(release: Released) -> str:
    """Returns what one row of a release of counted items is called."""
    if CELLS_FILE in release.files:
        return "cell"
    return zone_noun(release.manifest) if ZONES_FILE in release.files else "item"


class SampledPage:
    """Texts of the page of a release by sample and threshold, from its tables and its manifest."""

    FILES: ClassVar[dict[str, str]] = _FILES
    DRAWN: ClassVar[str] = "The sample of users"
    ONE_RECORD: str = "Each user counts once, for one of their records, sampled at random."
    HEADLINE: str = "One sampled record per user"
    UNIT: str = "users"
    COUNTED: str = (
        "is the count among the sampled users, scaled up. Its interval contains the true count about 95 times in 100."
    )
    NEAR_THRESHOLD: ClassVar[str] = (
        "just above the threshold tends to be overestimated a little: with fewer of its users in the sample, it would "
        "not have been published."
    )

    def __init__(self, release: Released):
        manifest = release.manifest
        self._release, self.files, self._manifest = release, release.files, manifest
        self.parameters, self._results = manifest["parameters"], manifest["results"]
        self.rounds: list[dict[str, Any]] = manifest["privacy"]["rounds"]
        self.noun = noun_of(release)
        self.column = readable(str(self.parameters.get("column", "value")))
        self.hidden = self._results["hidden_count"]
        privacy = manifest["privacy"]
        counted = privacy["admission"] or {"users": 0.0, "noise_stddev": 0.0, "sampling_rate": 1.0}
        population = privacy["population"]["users"]
        # All users: those counted at the run's admission, a public number, or at least those of all published items.
        self.all_users = float(self._results["estimated_users"])
        self.all_stddev = self.stddev_of(self.all_users)
        if population is not None:
            self.all_users, self.all_stddev = float(population), 0.0
        elif counted["users"] > 3 * counted["noise_stddev"]:
            self.all_users = max(float(counted["users"]), 1.0)
            rate = counted.get("sampling_rate", 1.0)
            self.all_stddev = sampled_stddev(self.all_users, counted["noise_stddev"], rate)

    def table(self, name: str) -> pa.Table:
        """Returns a published table, without the columns of cells that no page shows: indexes and shapes."""
        return self._release.table(name, _NOT_SHOWN)

    def stddev_of(self, users: float) -> float:
        """Returns the standard deviation of an estimated user count."""
        rate = self.rounds[0]["sampling_rate"]
        return math.sqrt(max(users, 0.0) * (1 - rate) / rate)

    def ends(self, table: pa.Table, level: int | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Returns the ends of 95% intervals of counts: pointwise, or for all cells of a `level`, or all zones, at once.

        level: 0 for zones.
        """
        count, stddev, sampled = (np.asarray(table[name]).astype(float) for name in ("count", "stddev", "sampled"))
        margin = (Z if level is None else simultaneous_z(self._places(level))) * stddev
        return np.maximum(count - margin, sampled), count + margin

    def _places(self, level: int) -> int:
        """Returns how many cells a level has, or how many zones there are. level: 0 for zones."""
        return 4**level if level else int(self._manifest["zones"]["levels"][0]["zones"])

    @staticmethod
    def total(table: pa.Table) -> str:
        """Returns the sum of the rows' counts, rounded by its standard deviation."""
        return about(float(np.asarray(table["count"]).sum()), float(np.linalg.norm(np.asarray(table["stddev"]))))

    def scale(self, level: int, density: np.ndarray, low: np.ndarray) -> Scale:
        """Returns the colours of a level's cells, by their densities and the lower bounds of their users."""
        return published_scale(density)

    def held(self, table: pa.Table) -> str:
        """Returns the number of the rows' users as text, followed by that of all users if it is larger."""
        if self.all_users <= float(np.asarray(table["count"]).sum()):  # the rows' noise added up
            return f"about {self.all_users_text} users"
        return f"about {self.total(table)} of {self.all_users_text} users"

    @property
    def all_users_text(self) -> str:
        """Returns the number of all users, rounded by its standard deviation, with a large error."""
        digits = 10 ** max(math.floor(math.log10(max(self.all_users, 1))) - 2, 0)
        margin = NOISE_Z * self.all_stddev
        error = f" (±\u00a0{significant(margin, 1)})" if margin > _LARGE_ERROR * self.all_users else ""
        return about(self.all_users, self.all_stddev or digits) + error

    def own_chip(self) -> Fact:
        """Returns the fact next to the title that other jobs do not have."""
        return Fact(term="May be hidden", text=f"up to {self.hidden:,} users")

    def missing(self, one: str) -> str:
        """Describes the bound on unpublished counts."""
        top = self.parameters.get("top")
        kept = f" Of the last level, only the {top:,} with the most users are published." if top else ""
        return (
            f"{one} that is not shown has at most {self.hidden:,} users at 99% confidence, possibly none.{kept} For "
            "users with many records, their rare records count less."
        )

    def content(self) -> tuple[Body, str, list[Section]]:
        """Returns the page's body, its headline, and the sections before "How it was made"."""
        return {"cell": self.cells, "item": self.items}.get(self.noun, self.zones)()

    # ---------------------------------------------------------------- cells of a map

    def cells(self) -> tuple[Body, str, list[Section]]:
        table, region = self.table(CELLS_FILE), self._release.region
        grid = Grid(region, self._manifest["grid"]["depth"])
        levels = np.asarray(table["depth"]).astype(np.int64)
        present = np.unique(levels).tolist() or [grid.depth]
        layers = [self._layer(table.filter(pa.array(levels == level)), level, len(present)) for level in present]
        shown = layers[-1]
        finest = table.filter(pa.array(levels == present[-1]))
        wide, tall = ground_metres(region)
        size = f"{length(wide / (1 << present[-1]))} × {length(tall / (1 << present[-1]))}"
        hold = "no cell has enough users to be published"
        if shown.level:
            many = len(shown.level)
            cells = f"the {many:,} busiest cells" if self.parameters.get("top") else plural(many, "cell")
            hold = f"{cells} of {size} hold{'s'[: many == 1]} {self.held(finest)}"
        headline = f"{self.HEADLINE}: {hold}"
        body = MapBody(
            region=self._release.bounds,
            depth=grid.depth,
            layers=layers,
            missing=self._unpublished(),
            finest_metres=(wide / grid.side, tall / grid.side),
            start=around_cells(shown, region) if self._manifest["job"] == "hotspots" else None,
        )
        order = np.argsort(-np.asarray(finest["count"]), kind="stable")[:_TABLE_ROWS]
        estimates = self.estimates(finest.take(pa.array(order)))
        west, south, east, north = (np.asarray(finest[name]) for name in ("west", "south", "east", "north"))
        rows, names = [], self._release.place_names
        for i, texts in zip(order.tolist(), estimates, strict=True):
            size = min(east[i] - west[i], north[i] - south[i])
            centre = names.of((south[i] + north[i]) / 2, (west[i] + east[i]) / 2, size)
            rows.append([shown.cell_id[i], centre, *texts])
        title = f"Cells with the most {self.UNIT}"
        return body, headline, [self._map_reading(), self._item_table(title, ["Cell", "Centre"], rows)]

    def _unpublished(self) -> str:
        """Describes a place on the map that has no row."""
        if self.hidden:
            where = "Not published" if self.noun == "cell" else f"{no_zone_here(self._manifest)}, or not published"
            return f"{where}: at most {self.hidden:,} {self.UNIT}, possibly none"
        return "All cells are published" if self.noun == "cell" else no_zone_here(self._manifest)

    def _map_reading(self, *first: str) -> Section:
        one = f"A {self.noun}"
        hidden = [self.missing(one)]
        if self.hidden:
            hidden[0] += " On the map it has no colour, which does not mean a count of zero."
            hidden.append(f"{one} {self.NEAR_THRESHOLD}")
        paragraphs = [
            *first,
            f"{self.ONE_RECORD} A {self.noun}'s number {self.COUNTED}",
            f"Relative errors are small in crowded {self.noun}s and large in quiet ones.",
            *around_points(self._manifest, self.UNIT),
            *hidden,
        ]
        return Section(title=READING, paragraphs=paragraphs)

    def _layer(self, table: pa.Table, level: int, levels: int) -> Layer:
        """Returns the cells of one level, listed by their lower bounds."""
        title = f"Level {level}" if levels > 1 else "Published cells"
        nodes = nodes_from_names(table["cell_id"].to_pylist(), level)
        boxes = cell_boxes(nodes, self._release.region)
        return cell_layer(title, self._note(table, level), nodes, [self._measure(table, level, boxes)])

    def _note(self, table: pa.Table, level: int) -> str:
        round_ = next((one for one in self.rounds if (one["level"] or level) == level), self.rounds[-1])
        rows = plural(table.num_rows, self.noun)
        held = f" with {self.held(table)}" if table.num_rows else ""
        return f"{rows}{held}. {self.round_text(round_)}"

    def _measure(self, table: pa.Table, level: int, boxes: NDArray[np.float64] | None = None) -> Measure:
        """Returns the counts of the cells of one level, or of zones, level 0. boxes: see `distinct_places`."""
        count, density = (np.asarray(table[name]).astype(np.float64) for name in ("count", "density"))
        low, high = self.ends(table)
        least, most = self.ends(table, level)
        if radius_of(self._manifest) is not None:
            scale = count_scale(np.maximum(count, 0), np.maximum(low, 0), least > 0, self.UNIT)
        else:
            scale = self.scale(level, density, low).model_copy(update={"unit": f"{self.UNIT} per km²"})
        order = np.argsort(-least, kind="stable")
        rows, left_out = distinct_places(order[least[order] > 0], boxes)
        note = listed_note(bool(len(rows)), self.noun, " of the grid" if level else "") if len(least) else ""
        return Measure(
            name=self.UNIT.capitalize(),
            kind="count",
            unit=self.UNIT,
            value=shown_values(count),
            low=shown_values(low),
            high=shown_values(high),
            uncertain=(least <= 0).tolist(),
            scale=scale,
            listed=[(i, float(count[i]), float(least[i]), float(most[i])) for i in rows.tolist()],
            listed_note=note + left_out,
        )

    # ---------------------------------------------------------------- zones of a map

    def zones(self) -> tuple[Body, str, list[Section]]:
        table = self._release.table(ZONES_FILE)
        shapes, areas = shapely.from_wkb(table["geometry"].to_numpy(zero_copy_only=False)), np.asarray(table["area"])
        level = self._manifest["zones"]["levels"][0]["name"]
        measures = [self._measure(table, 0)]
        region = self._release.region
        title, note, named = INDEXES.get(level, f"Published {self.noun}s"), self._note(table, 0), level not in INDEXES
        radius = radius_of(self._manifest)
        layer = zone_layer(title, note, table, shapes, areas, region, measures, named, self.noun, radius)
        body = MapBody(
            region=self._release.bounds,
            depth=0,
            layers=[layer],
            missing=self._unpublished(),
            finest_metres=finest_metres(areas, region),
        )
        order = np.argsort(-np.asarray(table["count"]), kind="stable")[:_TABLE_ROWS]
        heads = {self.noun.capitalize(): "zone", **({"Name": "name"} if "name" in table.column_names else {})}
        named_rows = list(zip(*(table[column].to_pylist() for column in heads.values()), strict=True))
        estimates = self.estimates(table.take(pa.array(order)))
        rows = [
            [*(readable(one or "") for one in named_rows[i]), *texts]
            for i, texts in zip(order.tolist(), estimates, strict=True)
        ]
        title = f"{self.noun.capitalize()}s with the most {self.UNIT}"
        all_users = self.zones_headline(table)
        count = np.asarray(table["count"]).astype(np.float64)
        ends = self.ends(table, 0)
        busiest = busiest_text(layer.cell_id, count, *ends, self.UNIT, self.hidden, self.noun) if named else None
        reading = self._map_reading(*([] if busiest is None else [f"{all_users}."]))
        return body, busiest or all_users, [reading, self._item_table(title, [*heads], rows)]

    def zones_headline(self, table: pa.Table) -> str:
        """Returns the headline of a page of zones. table: of the published ones."""
        if not table.num_rows:
            return f"{self.HEADLINE}: no {self.noun} has enough users to be published"
        zones = plural(table.num_rows, self.noun)
        return f"{self.HEADLINE}: {zones} hold{'s'[: table.num_rows == 1]} {self.held(table)}"

    # ---------------------------------------------------------------- items and prefixes

    def items(self) -> tuple[Body, str, list[Section]]:
        table = self.table(ITEMS_FILE)
        names = [str(item) for item in table["item"].to_pylist()]
        level = table["level"].to_pylist()
        count = np.asarray(table["count"]).astype(np.float64)
        low, high = self.ends(table)
        present = sorted(set(level), key=lambda one: one or math.inf)
        finest = present[-1] if present else 0
        last = self.rounds[-1]["level"]
        parents, cut = _parents(names, level, present), _cut(names, level, [one["level"] for one in self.rounds])
        bars = [
            Bar(
                name=readable(names[i]),
                value=value,
                low=least,
                high=most,
                share=float(value / self.all_users) if self.all_users > 0 and self.UNIT == "users" else None,
                parent=parents[i],
                level=level[i],
                cut=cut[i],
            )
            for i in range(len(names))
            for value, least, most in [not_negative(float(count[i]), float(low[i]), float(high[i]))]
        ]
        shown = [i for i in range(len(names)) if level[i] == finest]
        noun, many = ("item", "items") if finest == last else ("prefix", "prefixes")
        hold = "no item has enough users to be published"
        if shown:
            held = self.held(table.take(pa.array(shown)))
            hold = f"{plural(len(shown), noun, many)} of {self.column} represent{'s'[: len(shown) == 1]} {held}"
        body = BarsBody(
            unit=self.UNIT,
            noun=noun,
            explanation=self.ONE_RECORD
            + (f" Shares are of all {self.all_users_text} users." if self.UNIT == "users" else ""),
            bars=bars,
        )
        estimates, shares = self.estimates(table), ["Share of all users"] if self.UNIT == "users" else []
        rows = [
            [bars[i].name + ("…" if cut[i] else ""), *estimates[i], *(percent(bars[i].share or 0) for _ in shares)]
            for i in sorted(shown, key=lambda i: -count[i])[:_TABLE_ROWS]
        ]
        reading = [
            f"{self.ONE_RECORD} The estimate {self.COUNTED}",
            "Relative errors are small for common items and large for rare ones.",
            self.missing("An item"),
            f"An item {self.NEAR_THRESHOLD}",
        ]
        listed = self._item_table(f"The {many} with the most {self.UNIT}", [noun.capitalize()], rows, *shares)
        return body, f"{self.HEADLINE}: {hold}", [Section(title=READING, paragraphs=reading), listed]

    def estimates(self, table: pa.Table) -> list[tuple[str, str]]:
        """Returns the count and the interval of each row as text."""
        pairs = zip(table["count"].to_pylist(), table["stddev"].to_pylist(), strict=True)
        return [(figures(count, stddev), f"± {significant(Z * stddev, 2)}") for count, stddev in pairs]

    def _item_table(self, title: str, names: list[str], rows: list[list[str]], *more: str) -> Section:
        values = [self.UNIT.capitalize(), "95%, for each separately", *more]
        numeric = [False] * len(names) + [True] * len(values)
        table = Table(title=title, heads=[*names, *values], rows=rows, numeric=numeric)
        return Section(title=title, table=table, folded=True)

    # ---------------------------------------------------------------- how it was made

    def round_text(self, round_: dict[str, Any]) -> str:
        """Describes how a round protects its counts."""
        return (
            f"Each user was sampled with probability {percent(round_['sampling_rate'])}. Whatever had fewer than "
            f"{round_['threshold']:,} sampled users was dropped. No noise was added."
        )

    def made(self) -> Section:
        first = self.rounds[0]
        contact = self._manifest["privacy"]["contact"]
        rounds = len(self.rounds)
        paragraphs = [
            self.round_text(first),
            "Everything shown occurs in the data; what is rare is missing. Each estimate is the number of sampled "
            f"users times {1 / first['sampling_rate']:.3g}.",
        ]
        if rounds > 1:
            inside = {
                "hotspots": " Each round counted only inside the cells that the previous round published.",
                "quantiles": " Each round counted where earlier rounds left the quantiles uncertain.",
            }.get(self._manifest["job"], "")
            paragraphs.append(f"There were {rounds} rounds, each with a separate sample.{inside}")
        if self._manifest["parameters"].get("parameters") == "paper":
            paragraphs.append(
                "The sampling rate and the threshold are those of Bharadwaj and Cormode's paper. The exact guarantee "
                "would allow a larger sample at the same epsilon and delta."
            )
        if contact["kind"] == "limited":
            each = "Each round" if rounds > 1 else "The round"
            paragraphs.append(f"{each} queried about {contact['contacted_users']:,} users, chosen at random.")
        return Section(title="How it was made", paragraphs=paragraphs, table=self.rounds_table())

    def rounds_table(self) -> Table | None:
        """Returns the table of rounds."""
        rows = [[str(one["index"] + 1), str(one["level"] or "whole"), f"{one['published']:,}"] for one in self.rounds]
        heads = ["Round", "Level", "Published"]
        return Table(title="Round by round", heads=heads, rows=rows, numeric=[True] * 3) if len(rows) > 1 else None


def _parents(names: Sequence[str], level: Sequence[int], present: Sequence[int]) -> list[int]:
    """Returns the row of the published prefix that each row extends, or -1."""
    rows = {(level[i], name): i for i, name in enumerate(names)}
    above = dict(zip(present[1:], present, strict=False))
    return [
        rows.get((above[level[i]], name[: above[level[i]]]), -1) if level[i] in above else -1
        for i, name in enumerate(names)
    ]


def _cut(names: Sequence[str], level: Sequence[int], rounds: Sequence[int]) -> list[bool]:
    """Returns whether each name may be the beginning of longer ones."""
    greatest = math.inf if 0 in rounds else max(rounds)
    return [
        0 < one == len(name) and (one < greatest or not _COMPLETE.fullmatch(name))
        for name, one in zip(names, level, strict=True)
    ]
