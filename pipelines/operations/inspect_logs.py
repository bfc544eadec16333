"""`sfumato inspect`: what logs hold, for the person who holds them, and the command that fits them."""

from __future__ import annotations

import shlex
import sys

from sfumato.pipelines.frame.inputs import match_files
from sfumato.pipelines.operations.log_facts import ROLES, Facts, causes, inspect_logs
from sfumato.schemas.log_layout import LogLayout
from sfumato.schemas.rectangle import Region
from sfumato.schemas.requests.commands import InspectRequest
from sfumato.transforms.observability.text_tables import markdown_table

_SECRET = "For your eyes only: these figures are exact and not private. Nothing was published or charged."
_DEFAULTS = {"user_id_column": "user_id", "latitude_column": "latitude", "longitude_column": "longitude"}


def run(request: InspectRequest) -> None:
    """Runs the command. Raises RequestError or DataError."""
    files = match_files(request.input, LogLayout(request.input_format))
    given = request.given(ROLES)
    facts = inspect_logs([file.log for file in files], given)
    number = f"{len(files):,} file{'s'[: len(files) != 1]}"
    sys.stdout.write("\n".join([_SECRET, "", *report_lines(facts, number), "", *next_lines(request, facts)]) + "\n")


def report_lines(facts: Facts, files: str) -> list[str]:
    """Returns what logs hold, in lines for a terminal."""
    used = {name: option for option, name in facts.roles.items()}
    table = [("column", "type", "read as")]
    table += [(name, kind, f"--{used[name]}" if name in used else "") for name, kind in facts.columns.items()]
    lines = [f"{files}, {facts.rows:,} rows", "", *markdown_table(table, left=range(3)).splitlines(), ""]
    if facts.users:
        middle, high, most = facts.rows_a_user
        lines.append(f"users: {facts.users:,}; rows a user: {middle:,} (median), {high:,} (99%), {most:,} (most)")
    for reason, rows in facts.unusable.items():
        lines.append(f"unusable: {rows:,} rows ({rows / facts.rows:.1%}) {reason}")
    if (lost := facts.signs.get("at 0, 0", 0)) > 0:
        lines.append(f"places: {lost:,} rows are at 0, 0, where devices without a position report themselves")
    if facts.signs.get("naive"):
        lines.append(
            f"times: {facts.roles['time_column']} states no time zone. With --slots or --day_column, give --time_zone, "
            "such as Europe/Berlin, if these times are in UTC; if they are local times, give no --time_zone"
        )
    if facts.region is not None:
        lines.append(
            f"region: {_borders(facts.region)} contains most users. Borders are published: replace them by those of a "
            "public place, such as a city, that you would map without the data"
        )
    return [*lines, *(f"probable cause of trouble: {cause}" for cause in causes(facts))]


def next_lines(request: InspectRequest, facts: Facts) -> list[str]:
    """Returns the command that fits logs, or what it lacks."""
    missing = [option for option in _DEFAULTS if option not in facts.roles]
    if missing:
        return [f"Next: name the columns that were not recognised: {', '.join(f'--{option}' for option in missing)}"]
    if facts.region is None:
        return ["Next: no row has a place in degrees, so there is no map to make; see the probable causes above"]
    words = ["sfumato", "heatmap", "--input", *request.input, f"--region={_borders(facts.region)}"]
    words += ["--trust", "central", "--epsilon", "1", "--output", "map"]
    for option, default in _DEFAULTS.items():
        if facts.roles[option] != default:
            words += [f"--{option}", facts.roles[option]]
    words += ["--coordinates", "e7"] if facts.is_e7 else []
    if request.input_format is not None:
        words += ["--input_format", request.input_format]
    return ["Next:", f"    {shlex.join(words)}"]


def _borders(region: Region) -> str:
    return ",".join(f"{border:g}" for border in (region.west, region.south, region.east, region.north))
