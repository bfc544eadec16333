"""What is probably wrong with logs as a whole, and the options of CSV that fit them, by their exact figures."""

from __future__ import annotations

import re
from typing import Literal

from sfumato.pipelines.operations.log_facts import MOST, SOME, Facts
from sfumato.schemas.log_roles import people_among
from sfumato.transforms.inputs.text_lines import conversion
from sfumato.transforms.release.basemap_file import distance_text

_MONTHS = 12
_CORRECT = 'correct these rows, as "Correct rows" of docs/how_to/your_logs.md shows'
_STRAY = 0.001  # share of the places that may be right with their own sign
_FEW_IDS, _MANY_ROWS = 1000, 100  # ids that may be of lines or vehicles; rows that one of them then has


def causes(facts: Facts) -> list[str]:
    """Returns what is probably wrong with logs as a whole, each with what to do, the most certain first."""
    if not facts.columns:
        return [f"no line is a JSON object in UTF-8; for Windows-1252, convert it: {conversion('CP1252')}"]
    found, rows = [], max(facts.rows, 1)
    latitude, longitude = (facts.roles.get(name, "?") for name in ("latitude_column", "longitude_column"))
    exchange = f"give --latitude_column {longitude} --longitude_column {latitude}"
    signs = {name: number / rows for name, number in facts.signs.items()}
    if signs.get("comma", 0) > SOME:
        found.append(
            f"{latitude} and {longitude} hold decimal commas: give --decimal , with CSV; in other formats write numbers"
        )
    if signs.get("beyond degrees", 0) > MOST:
        found.append(
            f"{latitude} and {longitude} are not degrees but perhaps metres of a projected grid, such as UTM: "
            'convert them to longitude and latitude, as "A projected grid" of docs/how_to/your_logs.md shows'
        )
    if facts.are_columns_swapped:
        why = f"{latitude} holds values beyond 90 degrees where {longitude} does not"
        if facts.swapped > MOST:
            why = f"only if they are, {facts.swapped:.0%} of the places are in the region"
        found.append(f"{latitude} and {longitude} are probably swapped: {why}; {exchange}")
    elif signs.get("swapped", 0) > SOME:
        found.append(
            f"{latitude} holds values beyond 90 degrees in {signs['swapped']:.1%} of the rows, where {longitude} does "
            f"not: the two are probably swapped there; {_CORRECT}"
        )
    elif facts.given is not None and facts.swapped > MOST:
        turned = facts.given.with_axes_swapped()
        found.append(
            f"the region given is probably in the order SOUTH,WEST,NORTH,EAST: {facts.swapped:.0%} of the places "
            f"are in {turned}; give --region={turned}, or, if rather {latitude} and {longitude} are swapped, "
            f"{exchange.removeprefix('give ')}"
        )
    elif facts.swapped > 0:
        found.append(
            f"{facts.swapped:.1%} of the places are in the region only with {latitude} and {longitude} swapped: "
            f"{_CORRECT}"
        )
    elif facts.near and facts.near_swapped and facts.may_be_swapped:
        found.append(
            f"{latitude} and {longitude} may be swapped: the places are {distance_text(facts.near)}, and with both "
            f"swapped {distance_text(facts.near_swapped)}; if that is right, {exchange}"
        )
    if facts.signless > _STRAY:
        found.append(
            f"{facts.signless:.1%} of the places are in the region only with another sign of {latitude} or "
            f"{longitude}: {_CORRECT}"
        )
    if facts.is_outside and facts.swapped <= MOST and facts.region is not None:
        found.append(
            f"{facts.outside:.0%} of the users' places are outside of the region given: give the borders of a public "
            f"place around {facts.region}"
        )
    if signs.get("no time", 0) > SOME:
        name, number = facts.roles["time_column"], facts.signs["no time"]
        form, remedy = "no time", "write times as 2026-11-27T08:30:00"
        for order in ("dmy", "mdy"):
            if signs.get(order, 0) > SOME:
                form, remedy = f"dates in the order {order}", f"give --dates {order}"
        if signs.get("local date", 0) > SOME:
            form, remedy = "dates such as 27.11.2026 or 11/27/2026", "give --dates dmy or --dates mdy"
        found.append(f"{name} holds {form} in {number:,} rows, which jobs that read times leave out: {remedy}")
    if number := facts.signs.get("not UTF-8", 0):
        found.append(
            f"{facts.roles['user_id_column']} holds text that is not UTF-8 in {number:,} rows, probably Windows-1252. "
            "Ids are compared by their bytes, so a user whose id another file has in UTF-8 counts twice; convert the "
            f"files: {conversion('CP1252')}"
        )
    named = "".join(f", perhaps {name}," for name in people_among(facts.others)[:1])
    person = f"the column that identifies a person{named} with --user_id_column"
    if facts.is_of_rows:
        found.append(
            f"nearly each value of {facts.roles['user_id_column']} occurs once, so a release would protect rows, not "
            f"people: name {person}"
        )
    if named and facts.users < _FEW_IDS and facts.rows_a_user[0] > _MANY_ROWS:
        found.append(
            f"{facts.roles['user_id_column']} holds {facts.users:,} values, each in {facts.rows_a_user[0]:,} rows "
            f"(median), so they are perhaps no people: name {person}"
        )
    if facts.users == 1 and facts.rows > 1:
        found.append(
            f"{facts.roles['user_id_column']} holds one value, so a release would have one user: name {person}"
        )
    return found


def date_order(facts: Facts) -> tuple[Literal["dmy", "mdy"], tuple[str, ...]]:
    """Returns the more probable order of day and month in dates such as 11/10/2026, and dates that leave it open.

    A number above 12 is a day. Without one, the order is that in which the dates are nearer to each other; of one day,
    month first with AM and PM.
    """
    parts = [tuple(map(int, re.split("[./-]", text))) for text in facts.dates]
    day_first, month_first = (sum(one[place] > _MONTHS for one in parts) for place in (0, 1))
    if day_first or month_first:
        return "mdy" if month_first > day_first else "dmy", ()
    months, days = ([one[2] * _MONTHS + one[place] for one in parts] or [0] for place in (0, 1))
    spread = max(months) - min(months), max(days) - min(days)  # in months, of the first number and of the second
    is_month_first = spread[0] < spread[1] or (spread[0] == spread[1] and "AM or PM" in facts.signs)
    open_dates = (text for text, (first, second, _) in zip(facts.dates, parts, strict=True) if first != second)
    return "mdy" if is_month_first else "dmy", tuple(sorted(open_dates))


def suggested_form(facts: Facts) -> dict[str, str]:
    """Returns the options of CSV that fit logs better than those with which they were read, `decimal` and `dates`."""
    rows, found = max(facts.rows, 1), dict[str, str]()
    if facts.signs.get("comma", 0) / rows > SOME:
        found["decimal"] = ","
    if facts.signs.get("local date", 0) / rows > SOME:
        found["dates"] = date_order(facts)[0]
    for order in ("dmy", "mdy"):
        if facts.signs.get(order, 0) / rows > SOME:
            found["dates"] = order
    return found
