"""`sfumato inspect`: what logs hold, for the person who holds them, and the command that fits them."""

from __future__ import annotations

import math
import shlex
import sys
from collections.abc import Mapping
from dataclasses import astuple, replace

from sfumato.pipelines.frame.inputs import layout_of, match_files
from sfumato.pipelines.operations.log_causes import causes, date_order, suggested_form
from sfumato.pipelines.operations.log_facts import HOUR, MOST, OTHER_ORDER, Facts, inspect_logs
from sfumato.pipelines.operations.log_places import bound_of, shares_text
from sfumato.pipelines.operations.starting import ZonesFile, file_of_zones, min_users
from sfumato.schemas.guarantee import Trust
from sfumato.schemas.log_roles import ROLES, ids_among, people_among, trips_title
from sfumato.schemas.rectangle import Region
from sfumato.schemas.region import CLOSE
from sfumato.schemas.requests.commands import InspectRequest
from sfumato.schemas.requests.publish_request import LogOptions, ReleaseRequest
from sfumato.schemas.requests.request_base import Request
from sfumato.schemas.slots import UTC, times_text
from sfumato.transforms.counting.plan import Plan, make_plan
from sfumato.transforms.geo.zone_raster import ZoneLocator
from sfumato.transforms.heatmap.request import PlanRequest
from sfumato.transforms.inputs.log_reader import format_of
from sfumato.transforms.observability.text_tables import markdown_table
from sfumato.transforms.release.basemap_file import NAMED, distance_text

_SECRET = "For your eyes only: these figures are exact and not private. Nothing was published or charged."
_FEW_USERS = 1000
_MOST_IN_ZONES = 0.7  # a share of the users
# Of the users, at most: many are never near a stop, but beyond this a column is probably wrong.
_OUT_OF_ZONES = ("0.9", "0.5")
_MUCH_LARGER = 3
_WORTH_SAYING = 0.005  # of the rows, lost
_MAPPED = (".geojson", ".parquet", ".gpkg", ".shp")  # files of zones that a map can draw, with their names
_ZONE_WORDS = ("--zones", "FILE", "--id_column", "NAME", "--label_column", "NAME")
_ZONES_HINT = " (of points, such as stops, with --radius METRES; inspect --zones FILE finds these options)"
_DEFAULTS = {"user_id_column": "user_id", "latitude_column": "latitude", "longitude_column": "longitude"}


def run(request: InspectRequest) -> None:
    """Runs the command. Raises RequestError or DataError."""
    zones = None if request.zones is None else file_of_zones(request.zones)
    locator = None if zones is None else ZoneLocator(zones.zones)
    logs = [file.log for file in match_files(request.input, layout_of(request))]
    given, time_zone = request.given(ROLES), request.time_zone
    facts, form = inspect_logs(logs, given, request.region, time_zone, locator), request.given(("decimal", "dates"))
    fitting = suggested_form(facts) if format_of(logs[0]) == "csv" else {}
    if fitting:  # read them as the next command will
        form |= fitting
        logs = [replace(log, layout=replace(log.layout, **form)) for log in logs]
        facts = inspect_logs(logs, given, request.region, time_zone, locator)
    if time_zone is not None and facts.signs.get("naive"):
        facts = inspect_logs(logs, given, request.region, None, locator)
    if facts.states_zones and time_zone is None and facts.time_zone is not None:
        time_zone = facts.time_zone
        facts = inspect_logs(logs, given, request.region, time_zone, locator)
    number = f"{len(logs):,} file{'s'[: len(logs) != 1]}"
    if form:
        number += f" read with {' '.join(f'--{name} {value}' for name, value in form.items())}"
    lines = report_lines(facts, number, given, time_zone)
    if fitting:
        lines.append(f"options: a job leaves rows out without {shlex.join(_options(fitting))}")
    order, open_dates = date_order(facts)
    if open_dates and "dates" in fitting:
        lines.append(
            f"CHECK the period: either number of {open_dates[0]} may be the month; it was read with --dates {order}; "
            f"if that is wrong, give --dates {OTHER_ORDER[order]}"
        )
    elif open_dates and form.get("dates", order) != order:
        lines.append(f"CHECK --dates {form['dates']}: by --dates {order} the days are nearer to each other")
    if zones is not None:
        lines += zone_lines(facts, zones)
    commands = next_lines(request, facts, form, time_zone, zones)
    sys.stdout.write("\n".join([_SECRET, "", *lines, "", *commands]) + "\n")


def report_lines(facts: Facts, files: str, given: Mapping[str, str], time_zone: str | None = None) -> list[str]:
    """Returns what logs hold, in lines for a terminal.

    given: columns by the option that named them. time_zone: the one given, or found.
    """
    used = {name: option for option, name in facts.roles.items()}
    table = [("column", "type", "read as")]
    table += [(name, kind, f"--{used[name]}" if name in used else "") for name, kind in facts.columns.items()]
    lines = [f"{files}, {facts.rows:,} rows", "", *markdown_table(table, left=range(3)).splitlines(), ""]
    user, others = facts.roles.get("user_id_column"), ids_among(facts.others)
    if user is not None and user != given.get("user_id_column") and others:
        lines.append(
            f"user id: {user}, rather than {', '.join(others)}, by its name; if another column identifies a person, "
            "name it with --user_id_column"
        )
    if facts.fewer and not facts.is_of_rows:
        fewer = " or ".join(f"{name} ({number:,})" for name, number in facts.fewer.items())
        lines.append(
            f"user id: {fewer} has fewer values than {user} ({facts.first_users:,}, all in the first rows); if {user} "
            "identifies trips and another column identifies people, name that with --user_id_column: otherwise a "
            "release protects single trips"
        )
    if facts.users:
        middle, high, most = facts.rows_a_user
        lines.append(f"users: {facts.users:,}; rows per user: {middle:,} (median), {high:,} (99%), {most:,} (most)")
        if facts.users < _FEW_USERS:
            plan = _plan(facts)
            lines.append(
                f"few users: at epsilon 1 a place with {math.ceil(plan.min_visible_users or 0):,} users or more is "
                f"visible, so at most {plan.most_visible} places are; choose few and large places, or a longer time"
            )
    for reason, rows in facts.unusable.items():
        lines.append(f"unusable: {rows:,} rows ({rows / facts.rows:.1%}) {reason}")
    if (at_zero := facts.signs.get("at 0, 0", 0)) > 0:
        lines.append(f"places: {at_zero:,} rows are at 0, 0, where devices without a position report themselves")
    if facts.timeless is not None:
        lines.append(facts.timeless)
    if _WORTH_SAYING < facts.lost < MOST:
        lines.append(
            f"unusable: {facts.lost:.1%} of the rows, for all reasons; numbers of users are too low by about that "
            "share, which no interval includes"
        )
    for shares, visits in (
        (facts.shares_then, f"visits from {HOUR}:00 to {HOUR + 1}:00"),
        (facts.shares_all_day, "visits of whole days, without --hours"),
    ):
        if facts.in_zones and shares:
            lines.append(f"{visits}: counted are at most {shares_text(shares)}; noise is proportional to the number")
    if "time_column" not in facts.roles:
        lines.append("times: no column was recognised; if there is one, name it with --time_column")
    if facts.states_zones:
        lines.append(
            f"times: {facts.roles['time_column']} states time zones; days and hours are by the clocks of "
            f"{time_zone or UTC}: if these are not those of the place, give --time_zone NAME"
        )
    if facts.signs.get("naive"):
        text, remedy = times_text(time_zone)
        lines.append(f"times: {facts.roles['time_column']} states no time zone; {text}; {remedy}")
    if facts.period is not None:
        lines.append(f"period: {facts.period.first} to {facts.period.last} contain nearly all times")
    if facts.region is not None and facts.near is not None:
        lines.append(
            f"region: {facts.region} contains most users, {distance_text(facts.near)}. Borders, period and "
            "numbers of options are published: replace them by those that you would choose without the data"
        )
        within = "the region given" if facts.given else "it"
        lines.append(f"region: {facts.rows_outside:.1%} of the rows with a place are outside of {within}")
    return [*lines, *(f"probable cause of trouble: {cause}" for cause in causes(facts))]


def zone_lines(facts: Facts, file: ZonesFile) -> list[str]:
    """Returns how many records are in the zones, and what is odd about these, in lines for a terminal."""
    if facts.in_zones is None:
        return []
    zones = file.zones
    lines = [f"zones: {len(zones):,} zones hold {facts.in_zones:.1%} of the rows with a place"]
    if file.close is not None:
        number, two = file.close
        lines.append(
            f"zones: {number:,} points are within {CLOSE:g} m of another: {two}. Errors of position move users "
            "between such zones, and no interval includes them; if a column names a record's point, count its values "
            "(--column)"
        )
    if facts.are_zones_elsewhere:
        turned, near = zones.region.with_axes_swapped(), facts.region
        remedy = "check the coordinate system that their file states (of a shapefile, its .prj)"
        if (
            turned is not None
            and near is not None
            and min(turned.east, near.east) > max(turned.west, near.west)
            and min(turned.north, near.north) > max(turned.south, near.south)
        ):
            remedy = "their latitude and longitude are probably swapped in the file"
        lines.append(f"probable cause of trouble: the zones span {zones.span}; if they lie elsewhere, {remedy}")
    return lines


def next_lines(
    request: InspectRequest,
    facts: Facts,
    form: Mapping[str, str],
    time_zone: str | None = None,
    zones: ZonesFile | None = None,
) -> list[str]:
    """Returns the commands that fit logs, or what they lack.

    form: options of CSV that the logs were read with. time_zone: the one given, or found.
    zones: whose visitors are counted, and all of which a map then shows; None without zones.
    """
    logs = ["--input", *request.input, *_options(request.given(("input_format",))), *_options(form)]

    def again(title: str, roles: Mapping[str, str], region: Region | None = request.region) -> list[str]:
        words = [*logs, *_options(request.given(("time_zone", "zones"))), *_options(roles)]
        borders = [] if region is None else [f"--region={region}"]
        return [title, f"    sfumato {shlex.join(['inspect', *words, *borders])}"]

    missing = [option for option in _DEFAULTS if option not in facts.roles]
    if missing:
        named = {**facts.roles, **dict.fromkeys(missing, "NAME")}
        others = ", ".join(facts.others)
        return again(f"Next: name the columns that were not recognised{others and f' (of {others})'}:", named)
    exchanged = {
        **facts.roles,
        "latitude_column": facts.roles["longitude_column"],
        "longitude_column": facts.roles["latitude_column"],
    }
    if facts.are_columns_swapped:
        return again("Next: look again with the two columns exchanged:", exchanged)
    people = people_among(facts.others)
    if facts.is_of_rows and people and "user_id_column" not in request.given(ROLES):
        person = {**facts.roles, "user_id_column": people[0]}
        return [
            *again("Next: look again with the column that identifies a person:", person),
            *again("Or, if the ids are those of people:", facts.roles),
        ]
    if facts.region is None:
        return ["Next: no row has a place in degrees, so there is no map to make; see the probable causes above"]
    if facts.may_be_swapped and facts.given is None:
        return [
            *again("Next: look again with the two columns exchanged:", exchanged),
            *again("Or, if they are right as they are, with the borders of your place:", facts.roles, facts.region),
        ]
    renamed = {option: facts.roles[option] for option, name in _DEFAULTS.items() if facts.roles[option] != name}
    title = trips_title(facts.roles["user_id_column"])
    job = [
        *logs,
        *_options(renamed),
        *(["--title", title] if title else []),
        *(["--coordinates", "e7"] if facts.is_e7 else []),
    ]
    own = facts.region
    if zones is not None and not facts.are_zones_elsewhere:
        own = around_zones(facts.region, zones.zones.region)
    region = request.region if request.region and not facts.is_outside else own
    time = facts.roles.get("time_column", "") if facts.period is not None else ""
    if time:
        zone = {"time_zone": time_zone or "NAME"} if facts.states_zones else {}
        job += ["--day_column", time, "--period", str(facts.period), *_options(zone)]
    depth = (_plan(facts).visible_level or 0) + 1  # places with more users than others fill finer cells
    private = ["--trust", "central", "--epsilon", "1"]
    heatmap = ["heatmap", *job, f"--region={region}", *private, *_least(facts.users), "--depth"]
    label = "" if zones is None else str(zones.options.get("label_column", ""))
    is_drawn = request.zones and request.zones.endswith(_MAPPED) and NAMED.search(label.lower())
    drawn = ["--basemap", str(request.zones)] if is_drawn else []
    commands = {"a map:": [*heatmap, str(depth), *drawn, "--output", "map"]}
    if time and not facts.are_zones_elsewhere:
        most_out = _OUT_OF_ZONES[facts.in_zones_then > _MOST_IN_ZONES]
        words = _ZONE_WORDS if zones is None else _options(zones.options)
        counting = [
            "histogram",
            *job,
            *words,
            "--hours",
            f"{HOUR}-{HOUR + 1}",
            "--max_bad_fraction",
            most_out,
            *private,
        ]
        counting += _least(facts.users_then if request.zones else 0)
        counting += ["--max_items_per_user", str(max(facts.places_a_user, 1))]
        when = "from eight to nine"
        if facts.period is not None and facts.period.length > 1:
            when += (
                f" on an average day (for one day, such as --period {facts.period.last}, without --average_day, with "
                "a smaller --min_users, and perhaps with --max_items_per_user 1; for whole days without --hours, with "
                f"--max_items_per_user {bound_of(facts.shares_all_day)})"
            )
            counting.append("--average_day")
        file = "" if request.zones else f" in a file{_ZONES_HINT}"
        counted = {f"the visitors of each zone{file}, {when}:": [*counting, "--output", "at_eight"]}
        commands = counted | commands if request.zones else commands | counted  # what was asked for comes first
    titles = (f"{'Or' if number else 'Next,'} {title}" for number, title in enumerate(commands))
    shown = (f"    sfumato {shlex.join(words)}" for words in commands.values())
    return [line for pair in zip(titles, shown, strict=True) for line in pair]


def around_zones(region: Region, zones: Region) -> Region:
    """Returns a region that holds the zones too, with borders in thousandths of a degree.

    It is the region itself where that would be much larger: a few zones are then far away from the users.
    """
    low = min(region.west, zones.west), min(region.south, zones.south)
    high = max(region.east, zones.east), max(region.north, zones.north)
    side, own = (max(east - west, north - south) for west, south, east, north in ((*low, *high), astuple(region)))
    if side > _MUCH_LARGER * own:
        return region
    return Region(*(math.floor(1000 * end) / 1000 for end in low), *(math.ceil(1000 * end) / 1000 for end in high))


def _options(values: Mapping[str, str | float]) -> list[str]:
    """Returns options as words of a command."""
    words = {name: f"{value:g}" if isinstance(value, float) else value for name, value in values.items()}
    return [word for name, value in words.items() for word in (f"--{name}", value)]


def _least(users: int) -> list[str]:
    """Returns the option that ends a run, at epsilon 1, with far fewer users than the logs have; none for few users."""
    least = min_users(users, epsilon=1)
    digits = len(str(least)) - 1
    return ["--min_users", str(least // 10**digits * 10**digits)] if least else []


def _plan(facts: Facts) -> Plan:
    """Returns the plan of a map of the logs' users, by a trusted curator at epsilon 1."""
    planned = PlanRequest.of({"users": max(facts.users, 1), "epsilon": 1, "trust": Trust.CENTRAL})
    return make_plan(planned.settings()[0])


def inspect_command(request: Request) -> str | None:
    """Returns the command that shows why a job's rows are unusable; None for a request that reads no logs.

    It depends on the request and its public files only.
    """
    if not isinstance(request, ReleaseRequest):
        return None
    own = request.given(name for name in InspectRequest.model_fields if name not in LogOptions.model_fields)
    if request.day_column is not None:
        own.setdefault("time_column", request.day_column)
    words = ["sfumato", "inspect", "--input", *own.pop("input")]
    for name, value in own.items():
        words += [f"--{name}={value}"] if isinstance(value, Region) else [f"--{name}", str(value)]
    return shlex.join(words)
