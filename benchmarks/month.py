"""A month of maps on one epsilon: each night's error, events, intervals and cost, by ways to spend the month's epsilon.

    python -m benchmarks.month [--only city,events,large,year] [--seeds 2] [--plot docs/images] [--quick]

Any 30 nights spend epsilon 1 (Gaussian noise: epsilon 1 and delta 1e-6). Data: 60 nights of the synthetic city, with
300,000 people, of whom about 225,000 are active on a night; depth 10, the default method, shards of 10,000.

- city: mean squared error on 128 x 128 cells, over that of the same night with all users at epsilon 1; intervals.
- events: nights published again with crowds of several sizes, after the nights before them; and again without.
- large: 54.6 million users, on paper and drawn as counts.
- year: 365 nights, seconds and memory of each update.
"""

from __future__ import annotations

import argparse
import itertools
import os
import platform
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import date, timedelta
from pathlib import Path

import numpy as np
import scipy
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.dates import DateFormatter, WeekdayLocator
from matplotlib.figure import Figure
from numpy.typing import NDArray

from benchmarks.city_nights import DEPTH, SIDE, Crowd, Night, exact_counts, make_nights
from benchmarks.month_counts import PaperVariances, draw_nights
from benchmarks.month_ways import (
    CLASSES,
    GAUSSIAN_WAYS,
    LEVEL,
    REFERENCE,
    WAYS,
    WINDOW,
    Array,
    Published,
    Publisher,
    SimulatedNight,
    Way,
    publish_all,
)
from benchmarks.month_year import year_table
from sfumato.schemas.guarantee import CentralOrSecagg, Trust
from sfumato.schemas.region import deinterleave
from sfumato.schemas.tree import node_positions, nodes_from_names
from sfumato.transforms.observability.text_tables import markdown_table, significant
from sfumato.transforms.synth.city import EVENTS, event_of
from sfumato.transforms.synth.landscape import SIZE_KM

FIRST = date(2026, 10, 1)
CROWD_USERS = 2_000
CROWDS = {
    date(2026, 10, 21): Crowd(EVENTS[0], CROWD_USERS),
    date(2026, 11, 14): Crowd(EVENTS[1], CROWD_USERS),
    date(2026, 11, 22): Crowd((4.2, 9.4), CROWD_USERS),
}
"""On a Wednesday at the stadium, a Saturday at the university, a Sunday between houses."""
_COVERAGE_TITLE = (
    "Share of cells whose 95% interval holds the exact number of users, in per cent, and the number of cells a night:"
)
_ACTIVE_USERS = 225_000  # of the city of 300,000 people on a working day, about
SIZES = (500, 1_000, 2_000, 4_000)
STADIUM = f"{CROWD_USERS:,} users, at the places of the city's own events"
GOALS = {"secagg": 2.5, "central": 1.5}
TRUSTS: tuple[CentralOrSecagg, ...] = (Trust.SECAGG, Trust.CENTRAL)
_MIN_CHANGE_LEVEL = 3  # a change of a larger place (above 1.75 km) does not say where the crowd is
_COLOURS = {
    "all users, 1/30, cold": "#9ca3af",
    "all users, 1/30, warm start": "#6b7280",
    "1 of 30 cohorts, alone": "#60a5fa",
    "1 of 30 cohorts, posterior": "#c2410c",
}


@dataclass(frozen=True)
class Size:
    """How much is computed.

    Attributes:
        people: of the city.
        nights: of the month.
        learned: nights before those that the main figures are of.
        again: nights that are published again, with and without crowds.
        draws: of each of them and each size of crowd.
        users: of the large map.
        year: nights of the year.
    """

    people: int = 300_000
    nights: int = 60
    learned: int = 30
    again: int = 12
    draws: int = 4
    users: int = 54_600_000
    year: int = 365

    @property
    def days(self) -> list[date]:
        """The nights' dates."""
        return [FIRST + timedelta(days=number) for number in range(self.nights)]


QUICK = Size(people=20_000, nights=6, learned=3, again=1, draws=1, users=100_000, year=8)


def is_event(day: date) -> bool:
    """Whether a crowd gathers, the city's own or an added one."""
    return day in CROWDS or event_of(day) is not None


def ways_of(trust: CentralOrSecagg) -> tuple[Way, ...]:
    """The ways of a trust model."""
    return WAYS if trust == "secagg" else (*WAYS, *GAUSSIAN_WAYS)


@dataclass(frozen=True)
class Month:
    """The maps of all nights and seeds by one way.

    Attributes:
        way: that published them.
        days: of the maps.
        learned: whether enough nights came before, bool[n].
        maps: of the way.
        reference: those of all users at epsilon 1.
    """

    way: Way
    days: list[date]
    learned: NDArray[np.bool_]
    maps: list[Published]
    reference: list[Published]

    def ratios(self, truth: str) -> Array:
        """Each night's error over the reference's: float64[n]. truth: expected or exact."""
        pairs = zip(self.maps, self.reference, strict=True)
        return np.array([getattr(one, f"{truth}_error") / getattr(best, f"{truth}_error") for one, best in pairs])

    def is_kind(self, kind: Callable[[date], bool]) -> NDArray[np.bool_]:
        """Of which nights it holds: bool[n]."""
        return np.array([kind(day) for day in self.days])


def publish_months(
    trust: CentralOrSecagg, ways: Sequence[Way], seeds: Iterable[Iterable[SimulatedNight]], size: Size
) -> list[Month]:
    """The reference's months and those of some ways, the nights of all seeds one after the other."""
    ways = (REFERENCE, *ways)
    found: list[list[Published]] = [[] for _ in ways]
    for number, nights in enumerate(seeds):
        maps, _ = publish_all(nights, [Publisher(way, trust, number) for way in ways])
        for all_maps, new in zip(found, maps, strict=True):
            all_maps.extend(new)
    learned = np.arange(len(found[0])) % size.nights >= size.learned
    days = size.days * (len(found[0]) // size.nights)
    return [Month(way, days, learned, maps, found[0]) for way, maps in zip(ways, found, strict=True)]


def nights_again(size: Size) -> list[int]:
    """Numbers of the nights that are published again: without an event on them and on the next two nights."""
    free = [
        number
        for number in range(size.learned, size.nights - 1)
        if not any(is_event(FIRST + timedelta(days=number + away)) for away in (0, 1))
    ]
    return [free[at] for at in np.linspace(0, len(free) - 1, min(size.again, len(free))).astype(int)]


def quartiles(values: Array) -> str:
    """The median and, in brackets, the quartiles."""
    if not len(values):
        return "-"
    low, middle, high = np.quantile(values, [0.25, 0.5, 0.75])
    return f"{middle:.2f} ({low:.2f}-{high:.2f})"


def error_table(months: Sequence[Month], goal: float) -> str:
    """Errors over the reference's, by way and kind of night."""
    goals = {"expected, later nights": goal, "no event": 1.5}
    kinds: dict[str, tuple[str, Callable[[Month], NDArray[np.bool_]]]] = {
        "expected, first nights": ("expected", lambda one: ~one.learned),
        "expected, later nights": ("expected", lambda one: one.learned),
        "no event": ("expected", lambda one: one.learned & ~one.is_kind(is_event)),
        "event": ("expected", lambda one: one.is_kind(is_event)),
        "working days": ("expected", lambda one: one.learned & one.is_kind(lambda day: day.weekday() < 5)),
        "weekends": ("expected", lambda one: one.learned & one.is_kind(lambda day: day.weekday() >= 5)),
        "counts, later nights": ("exact", lambda one: one.learned),
    }
    rows = [["way", *kinds, "run, s", "update, s"]]
    rows.append(["*goal, at most*", *(f"{goals[kind]:g}" if kind in goals else "" for kind in kinds), "", ""])
    for month in months[1:]:
        found = [quartiles(month.ratios(truth)[chosen(month)]) for truth, chosen in kinds.values()]
        run, update = np.median([one.seconds for one in month.maps], axis=0)
        rows.append([month.way.name, *found, f"{run:.2f}", f"{update:.2f}"])
    best = (
        np.median([one.expected_error for one in months[0].maps]),
        np.median([one.exact_error for one in months[0].maps]),
    )
    text = f"A ratio of 1 is a mean squared error of {best[0]:.2g} against the expected density"
    return f"{markdown_table(rows)}\n{text}, {best[1]:.2g} against that of the exact counts (medians).\n"


def coverage_table(months: Sequence[Month]) -> str:
    """Shares of cells whose 95% interval holds the exact users, of the later nights, all and by size."""
    sizes = [f"{least:,} to {end - 1:,} users" for least, end in itertools.pairwise(CLASSES)]
    sizes.append(f"{CLASSES[-1]:,} and more")
    rows = [["way", "cells with users", "worst night", "by user", *(f"of {size}" for size in sizes)]]
    rows.append(["*goal*", "93-97", "", "", *("" for _ in sizes)])
    for month in months:
        if month.way.memory == "mean":  # the mean of maps has no intervals
            continue
        chosen = [one.covered for one, later in zip(month.maps, month.learned, strict=True) if later]
        cells, held = (np.stack([getattr(one, name) for one in chosen]) for name in ("cells", "held"))
        by_night = held.sum(axis=1) / cells.sum(axis=1)
        worst = by_night[np.argmax(np.abs(by_night - 0.95))]
        by_user = sum(one.users_held for one in chosen) / sum(one.users for one in chosen)
        shares = [f"{100 * one:.1f}" for one in (held.sum() / cells.sum(), worst, by_user)]
        shares[0] += f" of {cells.sum(axis=1).mean():,.0f}"
        for at, of in zip(held.sum(axis=0), cells.sum(axis=0), strict=True):
            each = of / len(chosen)
            shares.append(f"{100 * at / of:.1f} of {each:,.0f}" if each >= 1 else "-")
        rows.append([month.way.name, *shares])
    return markdown_table(rows)


@dataclass(frozen=True)
class Trial:
    """A night that was published again with a crowd.

    Attributes:
        kind: the crowd's size and place.
        seen: whether a change at it, of a place of level 3 or finer, has more users than expected.
        possible: the probability that a test could see it, see `possible_power`.
        held: of the changes found, whether the exact users are in the interval, bool[n].
        shown, left: the users that the map has about the crowd's place beyond those of the map without it, tonight and
            on the next night, as a share of the users that are there because of the crowd tonight. The next night is
            None but for crowds of CROWD_USERS.
    """

    kind: str
    seen: bool
    possible: float
    held: NDArray[np.bool_]
    shown: float
    left: float | None


def possible_power(night: Night, crowd: Crowd, cohorts: int) -> float:
    """The power of a test that knows the crowd's shape and everybody's usual place, and sees cells without noise.

    One of so many cohorts is asked, so a cell of b users has the variance c b, with the chance of the night. The test
    is the likelihood ratio's, normal, of 1,000 places at a family-wise rate of 5%.
    """
    usual = night.users * night.expected
    extra = crowd.users * (crowd.density() - night.expected)
    kept = usual > 0
    signal = np.sqrt((extra[kept] ** 2 / (cohorts * np.maximum(usual + extra, usual)[kept])).sum())
    return float(scipy.special.ndtr(signal + scipy.special.ndtri(0.05 / 1_000)))


def near(crowd: Crowd) -> NDArray[np.bool_]:
    """The cells of a SIDE x SIDE map that are at most two radii from a crowd: bool[SIDE, SIDE]."""
    y, x = np.mgrid[:SIDE, :SIDE]
    return crowd.is_near(LEVEL, x, y)


def trials(nights: Sequence[Night], kept: dict[int, list[Publisher]], which: int, size: Size) -> Iterator[Trial | bool]:
    """Yields crowds on nights that are published again, and for nights without one whether there was a false alarm.

    The users who are asked are drawn anew.
    """
    for number, publishers in kept.items():
        for draw in range(1, size.draws + 1):
            tonight, tomorrow = (replace(nights[at], cohorts_draw=draw) for at in (number, number + 1))
            quiet, rng = replace(publishers[which], number=1_000 + draw), np.random.default_rng([number, draw])
            without = quiet.publish(tonight)
            yield bool(without.changes)
            after = quiet.publish(tomorrow)
            for kind, crowd in crowds_of(tonight, rng, draw):
                with_crowd, place = tonight.with_crowd(crowd, draw), near(crowd)
                publisher = replace(publishers[which], number=1_000 + draw)
                found = publisher.publish(with_crowd)
                there = float((with_crowd.exact() - tonight.exact())[place].sum()) * tonight.users
                shown, left = float((found.density - without.density)[place].sum()) * tonight.users / there, None
                if crowd.users == CROWD_USERS:
                    then = publisher.publish(tomorrow)
                    left = float((then.density - after.density)[place].sum()) * tomorrow.users / there
                seen, held = _found(found, with_crowd, crowd)
                possible = possible_power(tonight, crowd, publisher.way.cohorts)
                yield Trial(kind, seen, possible, held, shown, left)


def crowds_of(night: Night, rng: np.random.Generator, draw: int) -> Iterator[tuple[str, Crowd]]:
    """Yields the crowds of a night that is published again, each with its kind.

    Places are those of random users of the night, so crowds gather where people are.
    """
    cell = SIZE_KM / (1 << DEPTH)
    for users in SIZES:
        x, y = (int(one[0]) for one in deinterleave(rng.choice(night.codes, 1).astype(np.uint64)))
        yield f"{users:,} users, anywhere", Crowd(((x + 0.5) * cell, (y + 0.5) * cell), users)
    yield STADIUM, Crowd(EVENTS[draw % len(EVENTS)], CROWD_USERS)


def _found(published: Published, night: Night, crowd: Crowd) -> tuple[bool, NDArray[np.bool_]]:
    """Whether a crowd is seen, and which of the changes' intervals hold the exact users."""
    seen, held = False, []
    for change in published.changes:
        nodes = nodes_from_names(list(change.cell_ids), DEPTH)
        (at, *_), x, y = node_positions(nodes)
        users = sum(int(exact_counts(night, int(at))[node - (1 << 2 * int(at))]) for node in nodes.tolist())
        held.append(change.low <= users <= change.high)
        is_place = at >= _MIN_CHANGE_LEVEL and crowd.is_near(int(at), x, y).any()
        seen |= is_place and change.users > change.expected
    return bool(seen), np.array(held, dtype=bool)


def event_table(found: Sequence[Trial | bool]) -> str:
    """Power by size of the crowd, false alarms, and what is left of a crowd on the next night."""
    shares_of_crowd = ["shown, % (se)", "left on the next night, % (se)"]
    rows = [["crowd", "nights", "seen, %", "could be seen, %", *shares_of_crowd, "intervals that hold, %"]]
    rows.append([f"*goal, {CROWD_USERS:,} users*", "", "at least 90", "", "", "0", "at least 95"])
    crowds = [one for one in found if isinstance(one, Trial)]
    for kind in dict.fromkeys(one.kind for one in crowds):
        of = [one for one in crowds if one.kind == kind]
        shares = [np.array([one.shown for one in of]), np.array([one.left for one in of if one.left is not None])]
        means = [
            f"{100 * one.mean():.0f} (se {100 * one.std() / len(one) ** 0.5:.0f})" if len(one) else "" for one in shares
        ]
        held = np.concatenate([one.held for one in of])
        seen, possible = (f"{100 * np.mean([getattr(one, name) for one in of]):.0f}" for name in ("seen", "possible"))
        held_share = f"{100 * held.mean():.1f} of {len(held)}" if len(held) else "-"
        rows.append([kind, f"{len(of)}", seen, possible, *means, held_share])
    alarms = [one for one in found if isinstance(one, bool)]
    return (
        f"{markdown_table(rows)}\nWithout a crowd, {sum(alarms)} of {len(alarms)} nights report a change (goal: 5%).\n"
    )


def alarm_text(months: Sequence[Month]) -> str:
    """How many of the later nights report changes, with and without an event."""
    lines = ["Later nights that report a change, as they were published:", ""]
    for month in months:
        if month.way.memory != "posterior":
            continue
        changed, event = np.array([bool(one.changes) for one in month.maps]), month.is_kind(is_event)
        told = [f"{changed[of].sum()} of {of.sum()}" for of in (month.learned & ~event, month.learned & event)]
        lines.append(f"- {month.way.name}: {told[0]} without an event, {told[1]} with one.")
    return "\n".join([*lines, ""])


def paper_table(users: int) -> str:
    """Standard deviations of the users of a cell, from public figures."""
    cells = [("a cell of 1,000", 1_000), ("of 10,000", 10_000), ("of 100,000", 100_000)]
    rows = [["way", "queried, %", "noise, users", *(f"error, {name}" for name, _ in cells)]]
    for trust in TRUSTS:
        rows.append([f"*{trust}*", "", "", *[""] * len(cells)])
        for way in (REFERENCE, *ways_of(trust)):
            if way.memory in ("warm", "mean"):
                continue
            one = PaperVariances.of_way(way, trust, users)
            errors = [significant(one.stddev(of)) for _, of in cells]
            rows.append([way.name, f"{100 / way.cohorts:.1f}", significant(one.noise**0.5), *errors])
    return markdown_table(rows)


def print_city(size: Size, seeds: int, plot_to: Path | None) -> None:
    """The tables of the city by trust model."""
    people = [make_nights(size.days, size.people, seed, CROWDS) for seed in range(seeds)]
    for trust in TRUSTS:
        months = publish_months(trust, ways_of(trust), people, size)
        print(f"### {size.people:,} people, {trust}\n\n{error_table(months, GOALS[trust])}")
        print(f"{_COVERAGE_TITLE}\n\n{coverage_table(months)}")
        print(alarm_text(months))
        if plot_to and trust == Trust.SECAGG:
            plot(months, size, plot_to / "month.png")


def print_events(size: Size, seeds: int) -> None:
    """The tables of crowds by trust model, for the best way of each."""
    for trust in TRUSTS:
        ways = ways_of(trust)
        best = "1 of 30 cohorts, posterior" if trust == Trust.SECAGG else "all users, Gaussian, posterior"
        way = next(one for one in ways if one.name == best)
        found: list[Trial | bool] = []
        for seed in range(seeds):
            nights = make_nights(size.days, size.people, seed, CROWDS)
            _, kept = publish_all(nights, [Publisher(way, trust, seed)], nights_again(size))
            found += trials(nights, kept, 0, size)
        print(f"### Crowds, {trust}: {way.name}\n\n{event_table(found)}")


def print_large(size: Size) -> None:
    """The tables of many users, of one seed."""
    print(f"### {size.users:,} users, on paper\n\n{paper_table(size.users)}")
    share = size.users / _ACTIVE_USERS
    crowds = {day: replace(crowd, users=round(crowd.users * share)) for day, crowd in CROWDS.items()}
    for trust in TRUSTS:
        ways = [way for way in ways_of(trust) if way.memory not in ("warm", "mean")]
        nights = draw_nights(size.days, size.users, crowds=crowds)
        months = publish_months(trust, ways, [nights], size)
        print(f"### {size.users:,} users, counts drawn, {trust}\n\n{error_table(months, GOALS[trust])}")
        print(f"{_COVERAGE_TITLE}\n\n{coverage_table(months)}")


def plot(months: Sequence[Month], size: Size, path: Path) -> None:
    """Each night's error over the reference's, of the first seed; weekends shaded, crowds marked."""
    figure = Figure(figsize=(10, 4.6), layout="constrained")
    axes = figure.subplots()
    days = np.array(size.days, dtype="datetime64[D]")
    half = np.timedelta64(12, "h")
    for place, day in zip(days, size.days, strict=True):
        if day.weekday() >= 5:
            axes.axvspan(place - half, place + half, color="#f1ede4", linewidth=0)
        if is_event(day):
            axes.axvline(place, color="#888888", linewidth=0.8, linestyle=":", zorder=1.5)
            crowd = CROWDS.get(day)
            text = f"{crowd.users:,}" if crowd else "15,000"
            axes.text(place, 1.01, text, transform=axes.get_xaxis_transform(), ha="center", fontsize=9)
    for month in months:
        if month.way.name in _COLOURS:
            ratios = month.ratios("expected")[: size.nights]
            axes.plot(days, ratios, "o-", color=_COLOURS[month.way.name], markersize=3, label=month.way.name)
    axes.axhline(1, color="#bbbbbb", linewidth=0.8, linestyle="--")
    axes.axhline(GOALS[Trust.SECAGG], color="#c2410c", linewidth=0.8, linestyle="--")
    axes.set(
        yscale="log",
        ylabel="mean squared error over that of\nall users at epsilon 1",
        xlabel="night; weekends are shaded, numbers are users of a crowd, the upper dashed line is the goal",
        title=f"{size.people:,} people, epsilon 1 for any {WINDOW} nights\n",
    )
    axes.set_yticks([0.5, 1, 2, 4, 8], ["0.5", "1", "2", "4", "8"], minor=False)
    axes.minorticks_off()
    axes.spines[["top", "right"]].set_visible(False)
    axes.xaxis.set_major_locator(WeekdayLocator(byweekday=0))
    axes.xaxis.set_major_formatter(DateFormatter("%-d %b"))
    axes.legend(frameon=False, ncols=2)
    FigureCanvasAgg(figure).print_png(str(path))


def main() -> None:
    """Prints the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="city,events,large,year")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--quick", action="store_true", help="a few nights of a few people: whether it runs at all")
    parser.add_argument("--plot", type=Path, help="folder for month.png")
    options = parser.parse_args()
    size = QUICK if options.quick else Size()
    cores = len(os.sched_getaffinity(0))
    print(f"{size.nights} nights, {options.seeds} seeds; {cores} cores, {platform.machine()}\n")
    parts: dict[str, Callable[[], None]] = {
        "city": lambda: print_city(size, options.seeds, options.plot),
        "events": lambda: print_events(size, options.seeds),
        "large": lambda: print_large(size),
        "year": lambda: print(year_table(size.people * 3 // 4, size.year)),
    }
    for name in options.only.split(","):
        if name not in parts:
            parser.error(f"--only: there is no {name!r}; known are {', '.join(parts)}")
        began = time.perf_counter()
        parts[name]()
        print(f"{name}: {time.perf_counter() - began:.0f} s", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
