"""The page of a folder of nightly releases, and the scripts with one night's map each. Pure post-processing.

A page that is opened from a disk may load scripts and nothing else, so each night's map is a script. `timeline.json`
holds all else that the page shows.
"""

from __future__ import annotations

import base64
import datetime
import gzip
import json
import re
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import asdict

import numpy as np
from numpy.typing import NDArray

from sfumato.schemas.errors import FormatError, RequestError
from sfumato.schemas.known_digits import Z, about
from sfumato.schemas.ledger import Period
from sfumato.schemas.ranges import Field
from sfumato.schemas.region import area_km2
from sfumato.schemas.release import ANSWERS_FILE, CELLS_FILE, MANIFEST_FILE, PAGE_FILE
from sfumato.schemas.timeline import DatedRelease, Spending
from sfumato.schemas.tree import Tree, node_levels, node_paths, node_positions, nodes_from_names
from sfumato.schemas.views import PageView
from sfumato.schemas.views.chart_views import MomentsBody
from sfumato.schemas.views.flow_views import Night, NightMap, TimelineBody
from sfumato.schemas.views.map_views import Geography, MapBody, Measure
from sfumato.schemas.views.view_parts import Bounds, Fact, FileLink, Section, Table
from sfumato.transforms.release.published_release import Release
from sfumato.transforms.report.layers import cell_layer
from sfumato.transforms.report.numbers import CHANGES, night_sentences, spoken, times, tiny
from sfumato.transforms.report.report import view_in_page
from sfumato.transforms.report.scales import density_scale
from sfumato.transforms.report.sections import get, tail_sums

MAP_FORMAT = 2  # of the scripts with maps; a page shows those of its own format only
TIMELINE_FILE = "timeline.json"
LATEST_FILE = "latest.json"
MAX_CELLS = 1 << 15  # of a night's map; finer cells are added up
_ALARM = "The noise of {} came from a known source, so anyone with that source can remove the noise."
_REVEAL = "Together, their cost for any one user is at most"
_CHANGE = (
    "The change map compares shares of all users of each day, so a busier day is not a change. Where one of the "
    "two maps has larger cells, the cells of the other are added up to match.",
    "The difference of each cell is divided by its standard deviation if nothing changed: the noise of both releases, "
    "and the sampling error of who is out on a day. Cells are reported as changed by the Benjamini-Hochberg "
    "procedure: at most 5% of them are expected to be false positives. All other cells are hatched.",
    "The page treats the errors of cells as independent and tests cells individually. The command sfumato changes also "
    "tests the regions that cells form, and so finds changes that are spread out.",
)
_ZONE_CHANGE = (
    "The command sfumato changes tests which zones differ between two days by more than noise and sampling error "
    "explain, where both publish all zones. It reads only the two releases and costs nothing."
)


def timeline_bytes(title: str, nights: Sequence[DatedRelease], spending: Sequence[Spending]) -> bytes:
    """Returns the file that the page is made of. Raises ValueError without a night, or where a date occurs twice.

    title: the subject of the releases, such as the dataset's name; may be empty. nights: in any order. spending: the
    ledger's limits and what had been spent of each; empty without a ledger.
    """
    nights = sorted(nights, key=lambda night: night.date)
    if not nights:
        raise ValueError("nights: must contain at least one, got none")
    if len({night.date for night in nights}) < len(nights):
        raise ValueError("nights: must contain each date only once")
    content = {"title": title, "nights": list(map(asdict, nights)), "spending": list(map(asdict, spending))}
    return (json.dumps(content, indent=1, allow_nan=False) + "\n").encode()


def timeline_view(files: Mapping[str, bytes]) -> PageView:
    """Returns the page of `timeline.json` and, for its maps, `basemap.json`; equal files give equal pages."""
    content = json.loads(files[TIMELINE_FILE])
    nights = [DatedRelease.from_json(night) for night in content["nights"]]
    spending = [
        Spending(**{**one, "spent": [(day, spent) for day, spent in one["spent"]]}) for one in content["spending"]
    ]
    of, geography = f" of {content['title']}" if content["title"] else "", Geography.of(files)
    first, last = nights[0].date, nights[-1].date
    count = f"{len(nights):,} {'day' if len(nights) == 1 else 'days'}"
    unsafe = sum(not night.safe for night in nights)
    some = "all of these releases" if unsafe == len(nights) else f"{unsafe:,} of these releases"
    some = "this release" if len(nights) == 1 else "one of them" if unsafe == 1 else some
    scopes = {night.scope for night in nights if not night.damaged}
    worst = max(nights, key=lambda night: night.epsilon)
    has_maps = any(night.map is not None for night in nights)
    drawn = {night.job for night in nights if night.map is not None}
    change = list(_CHANGE) if "heatmap" in drawn else []
    change += [_ZONE_CHANGE] if drawn & {"zones", "histogram"} else []
    return PageView(
        title=f"Daily releases{of}",
        headline=f"{count}, {spoken(first)}" + (f" to {spoken(last)}" if first != last else ""),
        description=f"{count} of private releases{of}" + (": each day's map and what changed." if has_maps else "."),
        place=geography.place,
        period=scopes.pop() if len(scopes) == 1 else None,
        file_name=re.sub(r"[\W_]+", "-", f"daily {content['title']}".lower()).strip("-"),
        job="refresh",
        release_id="",
        created=max(night.created for night in nights),
        chips=_chips(nights, spending),
        guarantee=_guarantee(worst, nights, spending),
        alarm=_ALARM.format(some) if unsafe else None,
        files=[
            FileLink(name=LATEST_FILE, description="date and folder of the newest release, for programs"),
            FileLink(name=TIMELINE_FILE, description="all content of this page except the maps"),
        ],
        sections=[
            *([Section(title="How to read the change", paragraphs=change)] if change else []),
            *_dependence(nights),
            Section(title="Budget spent", paragraphs=_spending_texts(nights, spending)),
            Section(title="All releases", lead="Newest first.", table=_table(nights)),
        ],
        manifest={},
        basemap=geography.basemap,
        tiles=geography.tiles,
        body=TimelineBody(map_format=MAP_FORMAT, nights=list(map(_night, nights))),
    )


def _night(night: DatedRelease) -> Night:
    """Returns the page's entry of a night."""
    values = {name: value for name, value in asdict(night).items() if name in Night.model_fields}
    periods = [Period.parse(text) for text in night.rests_on or ()]
    values["rests_on"] = [(str(period.first), str(period.last)) for period in periods]
    notes = ["The files of this day are damaged and not shown. Its cost comes from the ledger."]
    if not night.damaged:
        notes = night_sentences(night.rotation, night.rests_on, night.started_anew)
    return Night(**values | {"changes": values["changes"] or [], "job": _job(night)}, notes=notes)


def _one_user(nights: Iterable[DatedRelease]) -> tuple[int, float, float]:
    """Returns the most that releases cost any one user: times queried, and the sums of epsilon and delta.

    A user is in one cohort of each division of the users. A night whose division is not known counts as a division of
    its own, which gives an upper bound.
    """
    divisions: dict[Hashable, dict[int, list[DatedRelease]]] = {}
    for night in nights:
        division: Hashable = night.release_id
        if night.rotation is not None and night.rotation.partition:
            division = (night.rotation.cohorts, night.rotation.partition)
        cohort = 0 if night.rotation is None else night.rotation.cohort
        divisions.setdefault(division, {}).setdefault(cohort, []).append(night)
    times_queried, epsilon, delta = 0, 0.0, 0.0
    for cohorts in divisions.values():
        times_queried += max(map(len, cohorts.values()))
        epsilon += max(sum(night.epsilon for night in several) for several in cohorts.values())
        delta += max(sum(night.delta for night in several) for several in cohorts.values())
    return times_queried, epsilon, delta


def _is_rotated(nights: Iterable[DatedRelease]) -> bool:
    return any(night.rotation is not None and night.rotation.cohorts > 1 for night in nights)


def _chips(nights: Sequence[DatedRelease], spending: Sequence[Spending]) -> list[Fact]:
    days = (datetime.date.fromisoformat(nights[-1].date) - datetime.date.fromisoformat(nights[0].date)).days + 1
    spent_term = "Most spent on one user" if _is_rotated(nights) else "Spent"
    chips = [Fact(term=f"{spent_term} by these releases", text=f"ε {_one_user(nights)[1]:.4g}")]
    if days > len(nights):
        chips.append(Fact(term="Dates without a release", text=f"{days - len(nights):,}"))
    if damaged := sum(night.damaged for night in nights):
        chips.append(Fact(term="Damaged releases", text=f"{damaged:,}"))
    for one in spending[-1:]:
        if one.spent:
            last = "on the last day" if one.days == 1 else f"in the last {one.days} days"
            term = f"{spent_term} {last}, with refused runs"  # a refused run costs its admission
            spent = one.spent[-1][1]
            text = f"ε {spent:.4g} of {one.epsilon:.4g}"
            if _is_rotated(nights):  # what is left differs between cohorts
                chips.append(Fact(term=term, text=text))
            else:
                chips.append(Fact(term=term, text=f"{text}, {one.left(spent):.4g} left"))
    return chips


def _guarantee(worst: DatedRelease, nights: Sequence[DatedRelease], spending: Sequence[Spending]) -> str:
    also = f" and δ = {tiny(worst.delta)}" if worst.delta else ""
    text = f"Each release protects every user with differential privacy, at ε = {worst.epsilon:g}{also} or less."
    if len(nights) == 1:
        return text
    windows = [one for one in spending if one.days > 1 and one.spent]
    if windows:
        longest = windows[-1]
        delta = f" and δ {tiny(longest.delta)}" if longest.delta else ""
        most = max(spent for _, spent in longest.spent)
        return f"{text} {_REVEAL} ε {most:.4g}{delta} in {longest.days} days."
    if _is_rotated(nights):
        return f"{text} {_REVEAL} ε {_one_user(nights)[1]:.4g}."
    return f"{text} What several releases reveal about one user adds up."


def _table(nights: Sequence[DatedRelease]) -> Table:
    rows = []
    for night in reversed(nights):
        job = _job(night) + ("" if night.safe else " (not private)") + (" (pruned)" if night.pruned else "")
        users = "" if night.users is None else f"{night.users:,.0f}"
        if night.users is not None and night.users_stddev is not None:
            users = about(night.users, night.users_stddev)
        rows.append([night.date, job, users, f"{night.epsilon:g}", tiny(night.delta), night.release_id])
    heads = ["Date", "Job", "Users", "ε", "δ", "Release"]
    links = [f"{night.folder}/{MANIFEST_FILE if night.pruned else PAGE_FILE}" for night in reversed(nights)]
    numeric = [False, False, True, True, True, False]
    return Table(title="All releases", heads=heads, rows=rows, numeric=numeric, links=links)


def _job(night: DatedRelease) -> str:
    return f"{night.job} (damaged)" if night.damaged else night.job


def _dependence(nights: Sequence[DatedRelease]) -> list[Section]:
    """Returns who was queried on each night, and the nights its estimate uses; nothing if no map uses another's."""
    if not any(night.rotation or night.rests_on or night.started_anew for night in nights):
        return []
    rows = []
    for night in reversed(nights):
        periods = [Period.parse(text) for text in night.rests_on or ()]
        number = sum(period.length for period in periods)
        rests = f"{number:,} days since {periods[0].first}" if number > 1 else "this day"
        if periods and (missing := Period(periods[0].first, periods[-1].last).length - number):
            rests += f", {missing:,} missing"
        if night.started_anew:
            rests += f". Restarted. {night.started_anew}"
        if night.damaged:
            rests = "unknown: the release is damaged"
        changed = "" if night.changes is None else f"{len(night.changes):,}"
        rows.append([night.date, "all" if night.rotation is None else f"{night.rotation}", rests, changed])
    heads = ["Date", "Cohort", "Based on", "Changes"]
    texts = []
    if _is_rotated(nights):
        texts.append(
            "A secret key divides the users into cohorts, independently of their data. Each day queries the next "
            "cohort. So each user is queried on few days, with the whole budget of a day each time."
        )
    if any(night.rests_on for night in nights):
        texts.append(
            "A day's map is estimated from its own noisy answers and those of earlier days. The noise of an "
            "earlier day is in the maps of later days, so the change map compares only the two days' own "
            f"answers. {CHANGES}"
        )
    table = Table(title="Days used for each map", heads=heads, rows=rows, numeric=[False] * 3 + [True])
    return [
        Section(title="How the days are combined", paragraphs=texts),
        Section(title="Cohort of each day, and the days used for its map", table=table, folded=True),
    ]


def _spending_texts(nights: Sequence[DatedRelease], spending: Sequence[Spending]) -> list[str]:
    """Describes the budget spent, in paragraphs."""
    (times_queried, epsilon, delta), is_rotated = _one_user(nights), _is_rotated(nights)
    cost = f"ε {epsilon:.6g}" + (f" and δ {tiny(delta)}" if delta else "")
    releases = "release" if len(nights) == 1 else f"{len(nights):,} releases"
    texts = [
        f"The {releases} of this page queried no user more than {times(times_queried)}. A user who was queried that "
        f"often loses at most {cost}."
        if is_rotated
        else f"The {releases} of this page spent {cost} in total. A user who is in the data of all of them loses at "
        "most this."
    ]
    if not spending:
        texts.append("No ledger was kept, so more may have been spent on the same data.")
    for one in spending:
        limit = f"ε {one.epsilon:g}" + (f" and δ {tiny(one.delta)}" if one.delta else "")
        window = "on one day" if one.days == 1 else f"in any {one.days} days"
        text = f"The ledger allows {limit} {window} for any one user."
        if not one.spent:
            texts.append(f"{text} Nothing has been spent.")
            continue
        day, now = one.spent[-1]
        span = f"on {spoken(day)}" if one.days == 1 else f"in the {one.days} days up to {spoken(day)}"
        peak = max(value for _, value in one.spent)
        text += (
            f" ε {now:.6g} of {one.epsilon:g} was spent {span}, and {one.left(now):.6g} is left. The most spent in any "
            f"window that ends on a day shown here is {peak:.6g}."
        )
        if is_rotated:
            last = datetime.date.fromisoformat(day)
            first = str(last - datetime.timedelta(days=one.days - 1))
            within = [night for night in nights if first <= night.date <= day]
            text += (
                f" These figures are for a user who was queried most often: {times(_one_user(within)[0])} in these "
                "days. Users who were not queried in these days have the whole limit left."
            )
        texts.append(text)
    return texts


def night_map(date: str, release: Release) -> bytes:
    """Returns one night's map as a script that hands it to the page; equal arguments give equal bytes.

    date: YYYY-MM-DD. release: a heatmap, or numbers by zone.

    Raises RequestError if its files are damaged; FormatError if another version of Sfumato made its page of zones.
    """
    night = _cells(date, release) if release.manifest.get("job") == "heatmap" else _zones(date, release)
    packed = base64.b64encode(gzip.compress(night.model_dump_json().encode(), 9, mtime=0)).decode()
    return f"sfumatoMap({json.dumps(date)},{json.dumps(packed)});\n".encode()


def _zones(date: str, release: Release) -> NightMap:
    """Returns the zones that a release's own page shows first, as they are there."""
    page = release.read(PAGE_FILE).decode()
    try:
        body = view_in_page(page).body
    except ValueError:
        raise FormatError(f"{release.path}: {PAGE_FILE} was made by another version of Sfumato") from None
    shown = body.map if isinstance(body, MomentsBody) else body
    assert isinstance(shown, MapBody)  # as of every release with zones
    return NightMap(
        format=MAP_FORMAT,
        date=date,
        region=shown.region,
        depth=shown.depth,
        finest_metres=shown.finest_metres,
        layer=shown.layers[-1],
        missing=shown.missing,
        lower_bound=False,
        noisy_sums=tail_sums(release.manifest),
        users=[],
        stddev=[],
        measured=[],
    )


def _cells(date: str, release: Release) -> NightMap:
    """Returns the cells of a heatmap."""
    grid = release.grid
    if grid is None:
        raise RequestError(f"{release.path}: the manifest lacks the map's region or depth")
    table = release.arrow_table(CELLS_FILE)
    names = table["cell_id"].to_pylist()
    try:
        nodes = nodes_from_names(names, grid.depth)
    except ValueError:
        names = []
    if not names:
        raise RequestError(f"cells: names must be r and up to {grid.depth} digits 0..3")
    tree = Tree.of(grid.depth, nodes)
    own = np.minimum(np.searchsorted(tree.entries, nodes), len(tree.entries) - 1)
    count, stddev = (table[name].to_numpy() for name in ("count", "stddev"))
    if not np.array_equal(tree.entries[own], nodes) or not (np.isfinite(count) & np.isfinite(stddev)).all():
        raise RequestError(f"{release.path}: {CELLS_FILE} is damaged")
    area = tree.areas[own].astype(np.float64)
    users, error = release.unbiased_cells()
    order = np.argsort(nodes)
    order = order[area[order] > 0]
    measured = _measured_levels(release, nodes[order], grid.depth)
    nodes, place = _folded(nodes[order], area[order], grid.depth)
    least = node_levels(nodes)
    np.minimum.at(least, place, measured)
    sums = (np.bincount(place, one[order]) for one in (count, stddev**2, area, users, error**2))
    count, variance, area, users, squares = (np.asarray(one, dtype=np.float64) for one in sums)
    stddev, error = np.sqrt(variance), np.sqrt(squares)
    level, x, y = node_positions(nodes)
    areas = area_km2(*grid.bounds(x, y, level)) * area / 4.0 ** (grid.depth - level)
    uncertain = count <= Z * stddev
    measure = Measure(
        name="Users",
        kind="count",
        unit="users",
        value=[*_rounded(count)],
        low=[*_rounded(np.maximum(count - Z * stddev, 0))],
        high=[*_rounded(np.maximum(count + Z * stddev, 0))],
        uncertain=uncertain.tolist(),
        smooth=get(release.manifest, "parameters.estimator") == "bayes",
        scale=density_scale(np.maximum(count, 0) / areas, np.where(uncertain, 0.0, count), "users per km²"),
    )
    owned = [float(f"{one:.7g}") for one in (area / 4.0 ** (grid.depth - level)).tolist()]
    return NightMap(
        format=MAP_FORMAT,
        date=date,
        region=Bounds(**asdict(grid.region)),
        depth=grid.depth,
        finest_metres=Field(grid).cell_metres,
        layer=cell_layer(spoken(date), "Estimated users of each cell.", nodes, [measure], owned),
        lower_bound="lower bound" in release.manifest.get("errors", {}).get("sums", "lower bound"),
        noisy_sums=tail_sums(release.manifest),
        users=_rounded(users),
        stddev=[float(f"{one:.4g}") for one in error.tolist()],
        measured=least.tolist(),
    )


def _measured_levels(release: Release, nodes: NDArray[np.uint64], depth: int) -> NDArray[np.int64]:
    """Returns the level of the last sub-query's entry that covers each node; its own level without answers."""
    levels = node_levels(nodes)
    if ANSWERS_FILE not in (release.listed or ()):
        return levels
    tree = release.answered_tree()
    first = node_paths(nodes) << (2 * (depth - levels)).astype(np.uint64)
    return np.minimum(node_levels(tree.entries)[tree.index.owners(first)], levels)


def _folded(
    nodes: NDArray[np.uint64], area: NDArray[np.float64], depth: int
) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
    """Returns at most MAX_CELLS ascending nodes, and the place of each of `nodes` in them; merges the finest first.

    nodes: the tree's entries that own an area, ascending. area: in finest cells. depth: of the grid.
    """
    levels, kept, place = node_levels(nodes), nodes, np.arange(len(nodes))
    for finest in range(int(levels.max()) - 1, -1, -1):
        if len(kept) <= MAX_CELLS:
            break
        above = nodes >> (2 * np.maximum(levels - finest, 0)).astype(np.uint64)
        kept, place = np.unique(above, return_inverse=True)
        # A part of some squares belongs to a larger cell, which then takes all of the square.
        torn = (node_levels(kept) == finest) & (np.bincount(place, area) < 4.0 ** (depth - finest))
        while torn.any():
            kept[torn] >>= np.uint64(2)
            torn &= ~np.isin(kept, nodes)
        kept, place = np.unique(kept[place], return_inverse=True)
    return kept, place


def _rounded(values: NDArray[np.float64]) -> list[float]:
    return [float(f"{one:.5g}") for one in values.tolist()]
