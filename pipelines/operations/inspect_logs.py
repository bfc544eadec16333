"""`sfumato inspect`: what logs hold, for the person who holds them, and the command that fits them."""

from __future__ import annotations

import math
import shlex
import sys
from collections.abc import Mapping
from dataclasses import replace

from sfumato.pipelines.frame.inputs import layout_of, match_files
from sfumato.pipelines.operations.log_facts import (
    ROLES,
    Facts,
    causes,
    inspect_logs,
    other_ids,
    suggested_form,
)
from sfumato.schemas.guarantee import Trust
from sfumato.schemas.rectangle import Region
from sfumato.schemas.requests.commands import InspectRequest
from sfumato.schemas.requests.publish_request import LogOptions, ReleaseRequest
from sfumato.schemas.requests.request_base import Request
from sfumato.transforms.counting.plan import Plan, make_plan
from sfumato.transforms.geo.zone_file import Zones
from sfumato.transforms.heatmap.request import PlanRequest
from sfumato.transforms.inputs.log_reader import format_of
from sfumato.transforms.observability.text_tables import markdown_table
from sfumato.transforms.release.basemap_file import distance_text

_SECRET = "For your eyes only: these figures are exact and not private. Nothing was published or charged."
_FEW_USERS = 1000
_DEFAULTS = {"user_id_column": "user_id", "latitude_column": "latitude", "longitude_column": "longitude"}


def run(request: InspectRequest) -> None:
    """Runs the command. Raises RequestError or DataError."""
    logs = [file.log for file in match_files(request.input, layout_of(request))]
    given = request.given(ROLES)
    facts, form = inspect_logs(logs, given, request.region), request.given(("decimal", "dates"))
    more = {**suggested_form(facts), **form} if format_of(logs[0]) == "csv" else form
    if more != form:  # read them as the next command will
        form = more
        logs = [replace(log, layout=replace(log.layout, **form)) for log in logs]
        facts = inspect_logs(logs, given, request.region)
    number = f"{len(logs):,} file{'s'[: len(logs) != 1]}"
    if form:
        number += f" read with {' '.join(f'--{name} {value}' for name, value in form.items())}"
    lines = report_lines(facts, number, given)
    sys.stdout.write("\n".join([_SECRET, "", *lines, "", *next_lines(request, facts, form)]) + "\n")


def report_lines(facts: Facts, files: str, given: Mapping[str, str]) -> list[str]:
    """Returns what logs hold, in lines for a terminal. given: columns by the option that named them."""
    used = {name: option for option, name in facts.roles.items()}
    table = [("column", "type", "read as")]
    table += [(name, kind, f"--{used[name]}" if name in used else "") for name, kind in facts.columns.items()]
    lines = [f"{files}, {facts.rows:,} rows", "", *markdown_table(table, left=range(3)).splitlines(), ""]
    user, others = facts.roles.get("user_id_column"), other_ids(facts)
    if user is not None and user != given.get("user_id_column") and others:
        lines.append(
            f"user id: {user}, rather than {', '.join(others)}, by its name; if another column identifies a person, "
            "name it with --user_id_column"
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
    if (lost := facts.signs.get("at 0, 0", 0)) > 0:
        lines.append(f"places: {lost:,} rows are at 0, 0, where devices without a position report themselves")
    if facts.timeless is not None:
        lines.append(facts.timeless)
    if "time_column" not in facts.roles:
        lines.append("times: no column was recognised; if there is one, name it with --time_column")
    if facts.signs.get("naive"):
        lines.append(
            f"times: {facts.roles['time_column']} states no time zone, so jobs read local times; if they are in UTC, "
            "give the jobs --time_zone, such as Europe/Berlin"
        )
    if facts.period is not None:
        lines.append(f"period: {facts.period.first} to {facts.period.last} contain nearly all times")
    if facts.region is not None and facts.near is not None:
        lines.append(
            f"region: {facts.region} contains most users, {distance_text(facts.near)}. Borders and period are "
            "published: replace them by those of a public place and of days that you would map without the data"
        )
        within = "the region given" if facts.given else "it"
        lines.append(f"region: {facts.rows_outside:.1%} of the rows with a place are outside of {within}")
    return [*lines, *(f"probable cause of trouble: {cause}" for cause in causes(facts))]


def next_lines(request: InspectRequest, facts: Facts, form: Mapping[str, str]) -> list[str]:
    """Returns the commands that fit logs, or what they lack. form: options of CSV that the logs were read with."""
    logs = ["--input", *request.input]
    if request.input_format is not None:
        logs += ["--input_format", request.input_format]
    for name, value in form.items():
        logs += [f"--{name}", value]

    def again(title: str, roles: Mapping[str, str]) -> list[str]:
        region = [] if request.region is None else [f"--region={request.region}"]
        named = (word for option, name in roles.items() for word in (f"--{option}", name))
        return [title, f"    sfumato {shlex.join(['inspect', *logs, *region, *named])}"]

    missing = [option for option in _DEFAULTS if option not in facts.roles]
    if missing:
        return again(
            "Next: name the columns that were not recognised:", {**facts.roles, **dict.fromkeys(missing, "NAME")}
        )
    exchanged = {
        **facts.roles,
        "latitude_column": facts.roles["longitude_column"],
        "longitude_column": facts.roles["latitude_column"],
    }
    if facts.are_columns_swapped:
        return again("Next: look again with the two columns exchanged:", exchanged)
    if facts.region is None:
        return ["Next: no row has a place in degrees, so there is no map to make; see the probable causes above"]
    for option, default in _DEFAULTS.items():
        if facts.roles[option] != default:
            logs += [f"--{option}", facts.roles[option]]
    logs += ["--coordinates", "e7"] if facts.is_e7 else []
    region = request.region if request.region and not facts.is_outside else facts.region
    time = facts.roles.get("time_column", "") if facts.period is not None else ""
    logs += ["--day_column", time, "--period", str(facts.period)] if time else []
    depth = (_plan(facts).visible_level or 0) + 1  # places with more users than others fill finer cells
    heatmap = ["heatmap", *logs, f"--region={region}", "--trust", "central", "--epsilon", "1", "--depth"]
    commands = {"Next, a map:": [*heatmap, str(depth), "--output", "map"]}
    swapped = facts.may_be_swapped and facts.given is None
    first = again("Next, if the two columns are swapped, look again; if not, see below:", exchanged) if swapped else []
    if time:
        slots = [str(max(depth - 2, 1)), "--time_column", time, "--slots", "hour", "--output", "hours"]
        commands["Or a map of every hour of the day:"] = [*heatmap, *slots]
        zones = ["--zones", "FILE", "--id_column", "NAME", "--label_column", "NAME", "--hours", "8-9"]
        title = "Or the users of zones in a file (of points, such as stops, with --radius METRES), from eight to nine:"
        commands[title] = ["zones", *logs, *zones, "--output", "at_eight"]
    return [
        *first,
        *(line for title, words in commands.items() for line in (title, f"    sfumato {shlex.join(words)}")),
    ]


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
    if isinstance(zones := request.resolve(), Zones):
        own.setdefault("region", zones.region)
    words = ["sfumato", "inspect", "--input", *own.pop("input")]
    for name, value in own.items():
        words += [f"--{name}={value}"] if isinstance(value, Region) else [f"--{name}", str(value)]
    return shlex.join(words)
