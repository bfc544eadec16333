"""What comes before a first run: the plan of a heatmap, a key, and the configuration of a refresh. No data are read."""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
from collections.abc import Mapping
from dataclasses import dataclass

import shapely

from sfumato.schemas.errors import RequestError, reason_of
from sfumato.schemas.known_digits import NOISE_Z
from sfumato.schemas.ledger import rounded_down
from sfumato.schemas.log_roles import AXES, trips_title
from sfumato.schemas.region import close_points
from sfumato.schemas.requests.commands import KeyRequest, RefreshInitRequest
from sfumato.transforms.counting.plan import make_plan, plan_details
from sfumato.transforms.geo.feature_files import feature_bytes, read_features
from sfumato.transforms.geo.zone_file import MAX_FILE_BYTES, Zones, read_zones
from sfumato.transforms.heatmap.plan import summary, trust_table
from sfumato.transforms.heatmap.request import PlanRequest
from sfumato.transforms.nights.plan import make_rotation_plan, rotation_table
from sfumato.transforms.observability.text_tables import significant
from sfumato.transforms.privacy.additive_noise import LAPLACE
from sfumato.transforms.privacy.admission import ADMISSION_SHARE
from sfumato.transforms.privacy.secrets import SECRET_BYTES, create_key_file

_DAYS = 30  # of the budget
_FEWEST = 4  # a night with fewer than a quarter of the users is refused
_CONFIGURATION = """\
# Configuration of `sfumato refresh` for about {users} users a night.
# All paths, in options too, are relative to this file.
dataset: city                 # its name in the ledger and in the ids of releases
input: logs                   # with a folder dt=YYYY-MM-DD of log files for every day
output: published             # releases/DATE/, latest.json, index.html
ledger: ledger.db             # an SQLite file, or gs://BUCKET/FOLDER
key_file: key                 # made by sfumato key new
budget:                       # the largest epsilon for the data of any DAYS consecutive days
  - {{epsilon: {epsilon}, days: {days}}}
{rotation}\
{rows:<29} # days by the rows' times; `hours: 8-9` requires it
min_users: {least:<18} # a quarter of these users, 0 where noise is larger; with fewer, by a noisy count,
                              # as when dates are misread, the day is refused; lower it if you set `hours`
{job}  epsilon: {night}
  trust: central              # you hold the logs; noise is added once
{decimal:<29} # of CSV files with 52,52
{dates:<29} # of CSV files with 06.10.2026; mdy for 10/06/2026
{title}  user_id_column: {user_id_column:<11} # the names of your columns
  latitude_column: {latitude_column}
  longitude_column: {longitude_column}
"""
_ROTATION = """\
rotation: {cohorts:<19} # each night queries one of N cohorts of users; the best number for these users
"""
_HEATMAP = """\
job: heatmap                  # with rotation: 1 also zones, histogram, flows,
                              # hotspots, quantiles, moments, ranges build
options:
  region: [{region}]
"""
_ZONES = """\
job: histogram                # users by zone
options:
{zones}
  # hours: 8-9                # of each day; requires rows_of_day
  max_items_per_user: {items:<7} # the largest number of zones in which a user counts
  max_bad_fraction: 0.9       # admits users who are in no zone
"""
_EXAMPLES = {"decimal": ",", "dates": "dmy"}
_ITEMS = 3  # zones of a user
_RADIUS = 300.0  # metres, around points
_PAIRS = 4  # of close points that are named


def run_plan(request: PlanRequest) -> None:
    """Prints the cost and the accuracy of a heatmap, from public figures only. Raises RequestError."""
    settings = request.settings()
    if request.nights is not None:
        sys.stdout.write(rotation_table(make_rotation_plan(settings[0], request.nights)))
        return
    plans = list(map(make_plan, settings))
    if len(plans) == 1:
        sys.stdout.write(f"{plan_details(plans[0])}\nEach trust model (--trust):\n\n{trust_table(plans[0].parameters)}")
    else:
        sys.stdout.write(summary(plans, request.values()))


def run_key(request: KeyRequest) -> None:
    """Makes the secret behind the noise of releases. Raises RequestError."""
    create_key_file(request.file)
    sys.stdout.write(
        f"{request.file}: a new key of {SECRET_BYTES} random bytes, readable only by you\n"
        f"Use it with: --key_file {shlex.quote(request.file)} --release_id ID, or as key_file of `sfumato refresh`.\n"
        "Keep a copy in a safe place: an interrupted run resumes only with the same key.\n"
        "Keep it secret: the key removes the noise of its releases.\n"
    )


def run_refresh_init(request: RefreshInitRequest) -> None:
    """Writes the configuration, and prints what its releases will show. Raises RequestError."""
    file = os.path.join(request.folder, "refresh.yaml")
    content, shown = starting_configuration(request)
    try:
        os.makedirs(request.folder, exist_ok=True)
        with open(file, "x", encoding="utf-8") as config:
            config.write(content)
    except FileExistsError:
        raise RequestError(f"folder: {file} already exists; name another folder") from None
    except OSError as error:
        raise RequestError(f"folder: cannot write {file} ({reason_of(error)})") from None
    sys.stdout.write(
        f"{file}: for about {request.users:,} users a night, epsilon {request.epsilon:g} in {_DAYS} days\n"
        f"{shown}\n"
        f"Next: put each day's logs into {request.folder}/logs/dt=YYYY-MM-DD, and check the columns in the file; then\n"
        f"    sfumato key new {shlex.quote(os.path.join(request.folder, 'key'))}\n"
        f"    sfumato refresh --config {shlex.quote(file)} --dry_run\n"
    )


def starting_configuration(request: RefreshInitRequest) -> tuple[str, str]:
    """Returns the content of the file, and a sentence on what a night's release will show. Raises RequestError."""
    rotation = ""  # of heatmaps only
    if request.zones is not None:
        night = request.epsilon / _DAYS
        least = min_users(request.users, night, parts=_FEWEST)
        file = file_of_zones(request.zones)
        found = {**file.options}
        if "://" not in request.zones:
            found["zones"] = os.path.relpath(request.zones, request.folder)
        lines = [f"  {name}: {json.dumps(value, ensure_ascii=False)}" for name, value in found.items()]
        if "radius" in found:
            lines[-1] += "               # metres around each point"
        job = _ZONES.format(zones="\n".join(lines), items=_ITEMS)
        error = NOISE_Z * LAPLACE.stddev((1 - ADMISSION_SHARE) * night, _ITEMS)
        noise = f"The number of each zone has noise of about ± {significant(error, 2)} users (95%) on one night"
        if error > request.users * _ITEMS / len(file.zones):  # the mean number of a zone's users is less
            noise += ", more than most zones have"
        fewer = f"max_items_per_user: 1 in the file divides it by {_ITEMS}"
        shown = f"{noise}; {fewer}, and --epsilon {2 * request.epsilon:g} halves it."
    else:
        planned = PlanRequest.of({"users": request.users, "epsilon": request.epsilon, "trust": "central"})
        choice = make_rotation_plan(planned.settings()[0], _DAYS).best
        night = choice.epsilon
        least = min_users(request.users, night, choice.cohorts, _FEWEST)
        rotation = _ROTATION.format(cohorts=choice.cohorts)
        job = _HEATMAP.format(region=request.region)
        one, month = (significant(choice.min_visible_users(nights)) for nights in (1, _DAYS))
        shown = f"Cells with at least {one} users are visible on one night, and with {month} after {_DAYS} nights."
    days = {"time_column": request.day_column, "time_zone": request.time_zone}
    rows = ", ".join(f"{name}: {_quoted(value)}" for name, value in days.items() if value is not None)
    content = _CONFIGURATION.format(
        users=f"{request.users:,}",
        epsilon=f"{request.epsilon:g}",
        days=_DAYS,
        rotation=rotation,
        least=least,
        job=job,
        night=rounded_down(night),
        rows=f"rows_of_day: {{{rows}}}" if rows else "# rows_of_day: {time_column: time}",
        **{name: _line(name, getattr(request, name), example) for name, example in _EXAMPLES.items()},
        **{name: _quoted(getattr(request, name)) for name in ("user_id_column", *AXES)},
        title=f"  title: {title}\n" if (title := trips_title(request.user_id_column)) else "",
    )
    return content, shown


def _line(name: str, value: str | None, example: str) -> str:
    """Returns an option's line of the file; without a value, a comment with an example."""
    return f"  # {name}: {_quoted(example)}" if value is None else f"  {name}: {_quoted(value)}"


def _quoted(text: str) -> str:
    """Returns a text as YAML reads it back: in quotes, unless it is a plain word."""
    is_word = re.fullmatch(r"(?!(?:yes|no|on|off|true|false|null)$)[a-z_]+", text)
    return text if is_word else json.dumps(text, ensure_ascii=not text.isprintable()).replace("\x7f", r"\x7f")


@dataclass(frozen=True)
class ZonesFile:
    """A file of zones as jobs read it: the options that name it and its columns, and its zones."""

    options: Mapping[str, str | float]
    zones: Zones
    close: tuple[int, str] | None = None  # points that are close to another, and the closest pairs; None if none are


def file_of_zones(path: str) -> ZonesFile:
    """Returns a file of zones with the columns that fit.

    The text with the most letters is the name. Ids are the first other text, or else number, that no two zones share.

    Raises RequestError: the file cannot be read, or its zones cannot be used.
    """
    _, features = read_features("zones", path, feature_bytes("zones", path, MAX_FILE_BYTES), lambda _: True)
    found = list(features)
    names = dict.fromkeys(name for properties, _ in found for name in properties)
    columns = {name: [properties.get(name) for properties, _ in found] for name in names}
    texts = [name for name, values in columns.items() if all(isinstance(one, str) for one in values)]
    integers = [name for name, values in columns.items() if all(type(one) is int for one in values)]
    ids = [name for name in (*texts, *integers) if len(set(columns[name]) - {""}) == len(found)]
    if not ids:
        raise RequestError(f"zones: {path} has no column with a text or an integer of its own for each zone; add one")
    named = [name for name in texts if 2 * len(set(columns[name])) > len(found)]
    label = max(named, key=lambda name: sum(map(str.isalpha, "".join(map(str, columns[name])))), default=None)
    id_column = next((name for name in ids if name != label), ids[0])
    if label == id_column:  # the only column that tells zones apart
        label = None
    radius = _RADIUS if any(shape is not None and shape.geom_type == "Point" for _, shape in found) else None
    options: dict[str, str | float] = {"zones": path, "id_column": id_column}
    options |= {} if label is None else {"label_column": label}
    options |= {} if radius is None else {"radius": radius}
    zones, close = read_zones(path, id_column, (), label, radius), None
    if zones.given is not None:
        called = [str(one) for one in columns[label or id_column]]
        close = close_points(shapely.get_x(zones.given), shapely.get_y(zones.given), called, _PAIRS)
    return ZonesFile(options, zones, close)


def min_users(users: int, epsilon: float, cohorts: int = 1, parts: int = 2) -> int:
    """Returns a part of the usual users, below which a run is refused; 0 where noise would refuse runs.

    By default a half, because a week whose dates are misread may still keep one of its days.
    Of usual runs noise refuses fewer than 1 in 9,000, if they are 6 standard deviations above it.
    """
    least, stddev = users // parts, cohorts * LAPLACE.stddev(ADMISSION_SHARE * epsilon)
    return least if least > stddev and users - least > 6 * stddev else 0
