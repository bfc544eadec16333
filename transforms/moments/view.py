"""What the page of means and moments shows, made of a release's published files only. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import shapely

from sfumato.schemas.charts import readable
from sfumato.schemas.guarantee import Trust
from sfumato.schemas.known_digits import Z, about, between, figures, not_negative, raised, with_interval
from sfumato.schemas.moments import EVERYBODY, OTHER, PAIRS, SUMS, FixedPoint, MomentEstimate, Statistic, ValueRange
from sfumato.schemas.region import ground_metres
from sfumato.schemas.release import BITS_FILE, CELLS_FILE, MANIFEST_FILE, MOMENTS_FILE, MOMENTS_PICTURE, ZONES_FILE
from sfumato.schemas.tree import nodes_from_names
from sfumato.schemas.views import PageView
from sfumato.schemas.views.chart_views import Bar, BarsBody, BitRow, BitTexts, MomentsBody, StatisticRow
from sfumato.schemas.views.map_views import MapBody, Measure
from sfumato.schemas.views.view_parts import Fact, Section, Table
from sfumato.transforms.geo.zone_file import areas_km2
from sfumato.transforms.moments.central.view import PROMISE, made, measured, reading, values_chip
from sfumato.transforms.moments.statistic_kinds import Forms, shrunk, value_range
from sfumato.transforms.report.layers import cell_layer, finest_metres, zone_layer
from sfumato.transforms.report.numbers import length, percent, plural, shown_values
from sfumato.transforms.report.released import Files, Released
from sfumato.transforms.report.scales import uncertain, value_scale
from sfumato.transforms.report.sections import facts, get, guarantee, table_section

_VAGUE = 0.45  # a share whose standard deviation is this large may be any in 0..1
_LISTED = 50
_THRESHOLD_TEXTS = BitTexts(
    title="Thresholds behind the estimate",
    about="A mean is a sum of shares of users, one share for each threshold. Each user reported whether their value "
    "reaches one or a few thresholds. A bar is the mean share over the thresholds from one power of two to the next.",
    share="Share of users who reach the thresholds",
    place="lowest threshold of an octave, in",
)
_FILES = {
    MOMENTS_FILE: "one row for each statistic of all users and of each group, with its 95% interval",
    BITS_FILE: "one row for each bit: its share, reports, and whether it is treated as empty",
    CELLS_FILE: "one row for each published cell: bounds, statistics, shape",
    ZONES_FILE: "one row for each published zone: statistics, polygon",
    MOMENTS_PICTURE: "the same as a picture",
    MANIFEST_FILE: "the guarantee, what each user sent, every parameter, every version",
}


def moments_view(files: Files) -> PageView:
    """Returns the page of a release of `sfumato moments`. files: by name."""
    return _Page(Released(files)).view()


class _Page:
    """The page of a release, from its tables and its manifest."""

    def __init__(self, release: Released):
        self._release, self._files, self._manifest = release, release.files, release.manifest
        manifest, self._privacy = release.manifest, release.manifest["privacy"]
        self._is_private = self._privacy["epsilon"] is not None
        self._is_central = self._privacy["trust"] == Trust.CENTRAL
        # What a group is.
        self._noun = "cell" if CELLS_FILE in self._files else "zone" if ZONES_FILE in self._files else "group"
        self._column = readable(str(manifest["column"]))
        self._second = readable(str(get(manifest, "second.column", "")))
        self._forms = _forms(manifest)
        measured = [MomentEstimate(**row) for row in release.table(MOMENTS_FILE).to_pylist()]
        self._estimates = shrunk(measured, self._forms)  # those of groups drawn towards those of all users
        self._overall = [one for one in measured if one.group == EVERYBODY]
        results, bits = manifest["results"], get(manifest, "privacy.meter.bits_per_client")
        self._of = "values" if self._second else "value"
        self._clients = about(results["clients"], max(results["clients_stddev"], results["clients"] / 1000))
        self._sent = "one record" if bits is None else "one bit" if bits == 1 else f"{bits} bits"

    def view(self) -> PageView:
        answer = self._overall[0]
        value, low, high = _shown(answer)
        headline = (
            f"{statistic_title(answer.statistic)} of {self._columns(answer)}: {value} (between {low} and {high}), from "
            f"{self._sent} of each of about {self._clients} users"
        )
        bits, groups, on_map = self._bits(), self._groups(), self._noun != "group"
        variance = next((one.value for one in self._overall if one.statistic == "variance"), None)
        limits = self._forms[0].low, self._forms[0].high
        if answer.statistic in SUMS:
            limits = min(answer.low, 0.0), answer.high
        elif answer.statistic in PAIRS:
            limits = value_range(Statistic(answer.statistic), self._forms)
        causes = "" if self._is_central else "which users were queried for which bit, and for "
        body = MomentsBody(
            column=self._columns(answer),
            limits=limits,
            deviation=None if variance is None or answer.statistic in PAIRS else math.sqrt(max(variance, 0.0)),
            statistics=[_statistic(one) for one in self._overall],
            reading=f"The interval contains the true value about 95 times in 100. It allows for {causes}the noise.",
            groups=[] if on_map else groups,
            map=self._map() if on_map else None,
            bits=bits,
            bit_texts=_THRESHOLD_TEXTS if get(self._manifest, "method") == "threshold" else BitTexts(),
        )
        how = [made(self._manifest), measured(self._manifest)] if self._is_central else [self._made(), self._sending()]
        return self._release.page(
            body,
            [self._statistic_table(), *self._group_tables(groups), self._reading(bits), *how],
            self._chips(),
            _FILES,
            [MOMENTS_PICTURE],
            "The noise" if self._is_central else "The randomisation of the reports",
            title="Private moments",
            headline=headline,
            description=f"{headline}. {self._promise()}",
            guarantee=f"{self._promise()} {guarantee(self._manifest)}" if self._is_private else self._promise(),
        )

    def _promise(self) -> str:
        if self._is_central:
            return PROMISE
        if not self._is_private:
            return f"Each user sent {self._sent} of their {self._of} unchanged: no differential privacy."
        return f"Each user sent {self._sent} of their {self._of}, flipped with a known probability."

    def _chips(self) -> list[Fact]:
        if self._is_central:
            return facts(("Values", values_chip(self._manifest)))
        form, collector = self._manifest["fixed_point"], self._privacy["collector"]
        values = f"{form['bits']} bits{' and a sign' if form['signed'] == 'split' else ''}"
        sent: str | None = "sent unchanged"
        if collector is not None:
            sent = None if collector["epsilon"] == self._privacy["epsilon"] else f"ε = {collector['epsilon']:g}"
        return facts(("Each report", sent), ("Values", values))

    def _rows(self, statistic: str) -> list[MomentEstimate]:
        return [one for one in self._estimates if one.statistic == statistic and one.group != EVERYBODY]

    def _groups(self) -> list[BarsBody]:
        """Returns the groups of each statistic, ordered by the lower end of the interval; `other` is the last."""
        found = []
        for overall in self._overall:
            name = overall.statistic
            explanation = "Ordered by the lower end of the 95% interval."
            bars = []
            for one in sorted(self._rows(name), key=lambda one: (one.group == OTHER, -one.low)):
                value, low, high = _row(one)
                users = max(one.clients, 0.0)
                bars.append(Bar(name=readable(one.group), value=value, low=low, high=high, users=users))
            reference = None if name in SUMS else overall.value
            if reference is not None:
                explanation += " The line is the value for all users."
            unit, noun = self._unit(name), self._noun
            if bars:
                found.append(BarsBody(unit=unit, noun=noun, explanation=explanation, bars=bars, reference=reference))
        return found

    def _unit(self, statistic: str) -> str:
        if statistic in PAIRS:
            return statistic
        return "users" if statistic == "count" else self._column

    def _columns(self, one: MomentEstimate) -> str:
        """Returns the column or both columns of a statistic."""
        return f"{self._column} and {self._second}" if one.statistic in PAIRS else self._column

    def _map(self) -> MapBody:
        """Returns the cells or zones."""
        region, is_zones = self._release.region, self._noun == "zone"
        rows = self._release.table(ZONES_FILE if is_zones else CELLS_FILE)
        names = rows["zone" if is_zones else "cell_id"].to_pylist()
        measures = [self._measure(one, names, rows if place == 0 else None) for place, one in enumerate(self._overall)]
        if is_zones:
            shapes = shapely.from_wkb(rows["geometry"].to_numpy(zero_copy_only=False))
            areas, depth = areas_km2(shapes), 0
            note = f"{plural(len(names), 'zone')} of {get(self._manifest, 'zones.levels', [])[0]['zones']:,}."
            layer = zone_layer("Published zones", note, rows, shapes, areas, region, measures)
            finest = finest_metres(areas, region)
        else:
            depth = self._manifest["grid"]["depth"]
            wide, tall = (side / (1 << depth) for side in ground_metres(region))
            note, finest = f"{plural(len(names), 'cell')} of {length(wide)} × {length(tall)}.", (wide, tall)
            layer = cell_layer("Published cells", note, nodes_from_names(names, depth), measures)
        return MapBody(
            region=self._release.bounds,
            depth=depth,
            layers=[layer],
            missing=f"Not published: fewer than about {self._privacy['groups']['min_group']:,} users, possibly none",
            finest_metres=finest,
        )

    def _measure(self, overall: MomentEstimate, names: Sequence[str], cells: pa.Table | None) -> Measure:
        """Returns a statistic of the cells or zones.

        cells: the table whose simultaneous intervals choose those that are listed; None for no list.
        """
        rows = {one.group: one for one in self._rows(overall.statistic)}
        value, low, high = (
            np.array([getattr(rows[name], field) for name in names], np.float64) for field in ("value", "low", "high")
        )
        unit = self._unit(overall.statistic)
        scale = value_scale(value, unit)
        listed: list[tuple[int, float, float, float]] = []
        note = ""
        if cells is not None and overall.statistic not in SUMS:
            differs, least, most = (
                cells[f"{overall.statistic}_{name}"].to_numpy(zero_copy_only=False)
                for name in ("differs", "simultaneous_low", "simultaneous_high")
            )
            above = np.flatnonzero(differs > 0)
            listed = [
                (int(i), float(value[i]), float(least[i]), float(most[i])) for i in above[np.argsort(-least[above])]
            ][:_LISTED]
            note = (
                f"{plural(len(above), self._noun)} significantly above the {figures(overall.value, overall.stddev)} of "
                f"all users, {int((differs < 0).sum()):,} below. The intervals hold for all {self._noun}s at once "
                "(95%)."
            )
        return Measure(
            name=statistic_title(overall.statistic),
            kind="value",
            unit=unit,
            value=shown_values(value),
            low=shown_values(low),
            high=shown_values(high),
            uncertain=uncertain(scale, low, high).tolist(),
            scale=scale,
            listed=listed,
            listed_note=note,
        )

    def _bits(self) -> list[BitRow]:
        """Returns bits of each quantity in the order of their place values, those of negative values first."""
        if BITS_FILE not in self._files:
            return []
        rows = self._release.table(BITS_FILE).to_pylist()
        order = {name: place for place, name in enumerate(dict.fromkeys(row["quantity"] for row in rows))}
        found = []
        for row in sorted(rows, key=lambda row: (order[row["quantity"]], row["weight"])):
            share, margin = row["mean"], Z * row["stddev"]
            known = {"share": share, "low": share - margin, "high": share + margin}
            found.append(
                BitRow(
                    quantity=quantity_title(row["quantity"], self._column, self._second),
                    place=place_value(row["weight"]),
                    **(known if row["stddev"] < _VAGUE else dict.fromkeys(known)),
                    reports=max(row["reports"], 0.0),
                    dropped=row["squashed"],
                )
            )
        return found

    def _statistic_table(self) -> Section:
        rows = [[statistic_title(one.statistic), *_shown(one)] for one in self._overall]
        heads = ["Statistic", "Value", "At 95%, from", "to"]
        return table_section("The statistics", heads, rows, names=1)

    def _group_tables(self, groups: Sequence[BarsBody]) -> list[Section]:
        found = []
        for overall, group in zip(self._overall, groups, strict=False):
            title = f"{statistic_title(overall.statistic)} by {group.noun}"
            rows = [
                [bar.name, with_interval(bar.value, bar.low, bar.high)[0], between(bar.low, bar.high), users]
                for bar in group.bars
                for users in [f"{bar.users or 0:,.0f}"]
            ]
            heads = [group.noun.capitalize(), statistic_title(overall.statistic), "At 95%", "Users, about"]
            found.append(table_section(title, heads, rows, names=1).model_copy(update={"folded": True}))
        return found

    def _reading(self, bits: Sequence[BitRow]) -> Section:
        groups = self._privacy["groups"]
        if self._is_central:
            return Section(title="How to read it", paragraphs=[*reading(self._manifest), *self._drawn(groups)])
        form, local = self._manifest["fixed_point"], self._privacy["collector"]
        offset = f", minus {form['offset']:.15g}, which was added to every value first" if form["offset"] else ""
        coins = ", the randomisation of every report, and the noise of every count" if local else ""
        by_thresholds = self._manifest["method"] == "threshold"
        sums = (
            "A mean is a sum of shares of users, one share for each threshold. An octave adds its share times its "
            f"place value. All octaves together make the mean{offset}."
            if by_thresholds
            else "A value is the sum of the place values of its set bits. A bit adds to the mean the share of users "
            f"whose bit is set, times its place value. All bits together make the mean{offset}."
        )
        paragraphs = [
            sums,
            "A 95% interval contains the true value about 95 times in 100. It allows for which users were queried for "
            f"which bit{coins}. Where high bits are not significant, the interval includes the most that they may add "
            "if values become rarer from bit to bit. It does not allow for a few values far above all others.",
        ]
        paragraphs += self._drawn(groups)
        if local and not by_thresholds:
            paragraphs.append(
                "Because reports are randomised, the estimated share of a bit can be below 0% or above 100%. This is "
                "noise, and is published unchanged so that sums are unbiased."
            )
        if any(one.dropped for one in bits):
            paragraphs.append(
                "Grey bits are not significant. They are probably empty and have almost no weight. If such a bit is "
                "set in a few values, the result misses what it would add."
            )
        values = f"Values of {self._column}" if self._second else "Values"
        for name, one in ((values, form), (f"Those of {self._second}", get(self._manifest, "second.fixed_point"))):
            if one is not None:
                paragraphs.append(
                    f"{name} have steps of {one['step']:.15g} and lie between {one['low']:.15g} and "
                    f"{one['high']:.15g}; others were moved to the nearest end."
                )
        return Section(title="How to read it", paragraphs=paragraphs)

    def _drawn(self, groups: Mapping[str, Any] | None) -> list[str]:
        """Describes the shrinkage and the selection of groups. groups: the manifest's entry."""
        if groups is None:
            return []
        what = f"{self._noun.capitalize()}s"
        found = []
        if any(one.statistic not in SUMS for one in self._overall):
            found.append(
                f"{what} are shrunk towards the value of all users, more so where errors are large: the highest of "
                f"many noisy numbers is high mostly because of noise. {MOMENTS_FILE} has the measured values."
            )
        return [*found, f"{what} with a noisy count below {groups['min_group']:,} users are not shown."]

    def _made(self) -> Section:
        name, rounds = self._manifest["method"], self._manifest["results"]["rounds"]
        method = {
            "adaptive": "Bits were queried in two rounds: in the first by their place value; in the second, mostly the "
            "bits that the first round found set in some values and not in others.",
            "threshold": "Users reported whether their value reaches a threshold, in two rounds. In the first, "
            "thresholds were spread over the powers of two. In the second, most lay where some users report yes and "
            "others no.",
            "weighted": "Bits were queried in one round: the greater a bit's place value, the more users sent it.",
        }[name]
        if name == "adaptive" and rounds and all(one["round"] != 1 for one in rounds):
            method = (
                "An earlier release of the same column showed which bits are set in some values and not in others. "
                "Those were queried most."
            )
        flipped = " Each report was then flipped with a known probability, which the estimate allows for."
        rows = [
            [title, str(one["round"]), f"{one['clients']:,.0f}", f"{one['reports']:,.0f}"]
            for one in rounds
            for title in [quantity_title(one["quantity"], self._column, self._second)]
        ]
        heads = ["Bits of", "Round", "Users", "Reports"]
        table = Table(title="Round by round", heads=heads, rows=rows, numeric=[False, True, True, True])
        return Section(
            title="How it was made",
            paragraphs=[
                method,
                "The run's key selects the bit that a user sends, so users cannot choose which bit to report."
                + (flipped if self._privacy["collector"] else ""),
            ],
            table=table if rows else None,
        )

    def _sending(self) -> Section:
        """Returns what each user disclosed."""
        meter = self._privacy["meter"]
        expected, most, truth = (
            math.ceil((meter[name] or 0.0) * 1000) / 1000
            for name in ("expected_private_bits", "highest_read_probability", "truth_probability")
        )
        is_random = meter["expected_private_bits"] < meter["bits_per_client"]
        found = facts(
            ("Each user sent", f"{self._sent}, never more than {meter['cap']:,}"),
            ("Effective truthful reports", f"{expected:g} per user" if is_random else None),
            ("A given bit was sent", f"with probability {percent(most)} at most"),
            ("It was sent truthfully", f"with probability {percent(truth)}" if truth else "always"),
        )
        return Section(title="What each user sent", facts=found)


def _forms(manifest: Mapping[str, Any]) -> Forms:
    """Returns the forms of the values of one or two columns that a manifest states; any where no value was used."""
    columns = [manifest, *([manifest["second"]] if "second" in manifest else [])]
    if "fixed_point" in manifest:
        names = ("bits", "fraction_bits", "signed", "offset")
        return [FixedPoint(*(one["fixed_point"][name] for name in names)) for one in columns]
    return [ValueRange(get(one, "range.low", 0.0), get(one, "range.high", 1.0)) for one in columns]


def statistic_title(name: str) -> str:
    """Returns a statistic as the beginning of a sentence: `Mean`, `Variance`, `3rd moment`."""
    kind, _, power = name.partition(":")
    if kind == "moment" and power.isdecimal():
        ordinal = {2: "2nd", 3: "3rd"}.get(int(power), f"{power}th")
        return f"{ordinal} moment"
    named = {"geometric_mean": "Geometric mean", "log_product": "Logarithm of the product"}
    return named.get(name, readable(name[:1].upper() + name[1:]))


def quantity_title(quantity: str, column: str, second: str = "") -> str:
    """Describes which column or function the bits encode; `column` and `second` are readable text."""
    kind, _, power = quantity.partition(":")
    if kind == "power" and power.isdecimal():
        return f"{column} to the power {power}"
    named = {
        "value": column,
        "square": f"the squared distance of {column} from its mean",
        "log2": f"the binary logarithm of {column}",
        "second_value": second,
        "second_square": f"the squared distance of {second} from its mean",
        "product": f"the product of the distances of {column} and {second} from their means",
    }
    return named.get(quantity, readable(quantity))


def place_value(weight: float) -> str:
    """Returns the place value of a bit, short enough for an axis: 0.25, 32,768 or 2²⁰; negative for negative bits."""
    size, sign = abs(weight), "−" if weight < 0 else ""
    mantissa, power = math.frexp(size)
    if mantissa == 0.5 and not 0.01 < size < 1e5:
        return f"{sign}2{raised(power - 1)[2:]}"
    return sign + (f"{size:,.4g}" if size < 1e4 else f"{size:,.0f}" if size < 1e5 else figures(size, size / 100))


def _statistic(one: MomentEstimate) -> StatisticRow:
    text, least, most = _shown(one)
    name, ends = statistic_title(one.statistic), f"{least} to {most}"
    return StatisticRow(name=name, value=one.value, low=one.low, high=one.high, text=text, range=ends)


def _shown(one: MomentEstimate) -> tuple[str, str, str]:
    """Returns the value and the ends of its interval with the digits that are known."""
    return with_interval(*_row(one))


def _row(one: MomentEstimate) -> tuple[float, float, float]:
    """Returns the value and the ends of its interval; a number of users is 0 or more."""
    row = one.value, one.low, one.high
    return not_negative(*row) if one.statistic == "count" else row
