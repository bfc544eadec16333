"""`sfumato refresh --init FOLDER`: a configuration to start from, for a number of users."""

from __future__ import annotations

import os
import sys

from sfumato.schemas.errors import RequestError, reason_of
from sfumato.schemas.ledger import rounded_down
from sfumato.schemas.requests.commands import RefreshInitRequest
from sfumato.transforms.heatmap.request import PlanRequest
from sfumato.transforms.nights.plan import RotationChoice, make_rotation_plan
from sfumato.transforms.observability.text_tables import significant
from sfumato.transforms.privacy.additive_noise import LAPLACE
from sfumato.transforms.privacy.admission import ADMISSION_SHARE

_DAYS = 30  # of the budget
_MIN_SHARE = 10  # a night with fewer than a tenth of the usual users is refused,
_SURE = 10  # where these are so many standard deviations of the noisy count of users
_CONFIGURATION = """\
# Configuration of `sfumato refresh` for about {users} users a night. Paths are relative to this file.
dataset: city                 # its name in the ledger and in the ids of releases
input: logs                   # with a folder dt=YYYY-MM-DD of log files for every day
output: published             # releases/DATE/, latest.json, index.html
ledger: ledger.db             # an SQLite file, or gs://BUCKET/FOLDER
key_file: key                 # made by sfumato key new
budget:                       # the largest epsilon for the data of any DAYS consecutive days
  - {{epsilon: {epsilon}, days: {days}}}
rotation: {cohorts:<19} # each night queries one of N cohorts of users; the best number for these users
# rows_of_day: {{time_column: time, time_zone: Europe/Berlin}}  # days by the rows' times, not by folders
min_users: {least:<18} # with fewer, by a noisy count, the day is refused; 0 for any
job: heatmap
options:
  region: [{region}]
  epsilon: {night}
  trust: central              # you hold the logs; noise is added once
  # user_id_column: rider     # the names of your columns
  # latitude_column: lat
  # longitude_column: lon
"""


def run(request: RefreshInitRequest) -> None:
    """Writes the configuration, and prints what its releases will show. Raises RequestError."""
    file = os.path.join(request.folder, "refresh.yaml")
    content, choice = starting_configuration(request)
    try:
        os.makedirs(request.folder, exist_ok=True)
        with open(file, "x", encoding="utf-8") as config:
            config.write(content)
    except FileExistsError:
        raise RequestError(f"folder: {file} already exists; name another folder") from None
    except OSError as error:
        raise RequestError(f"folder: cannot write {file} ({reason_of(error)})") from None
    one, month = (significant(choice.min_visible_users(nights)) for nights in (1, _DAYS))
    sys.stdout.write(
        f"{file}: for about {request.users:,} users a night, epsilon {request.epsilon:g} in {_DAYS} days\n"
        f"Cells with at least {one} users are visible on one night, and with {month} after {_DAYS} nights.\n"
        f"Next: put each day's logs into {request.folder}/logs/dt=YYYY-MM-DD, and name your columns in the file; then\n"
        f"    sfumato key new {request.folder}/key\n"
        f"    sfumato refresh --config {file} --dry_run\n"
    )


def starting_configuration(request: RefreshInitRequest) -> tuple[str, RotationChoice]:
    """Returns the content of the file, and the number of cohorts with the errors of a night. Raises RequestError."""
    planned = PlanRequest.of({"users": request.users, "epsilon": request.epsilon, "trust": "central"})
    choice = make_rotation_plan(planned.settings()[0], _DAYS).best
    count_stddev = choice.cohorts * LAPLACE.stddev(ADMISSION_SHARE * choice.epsilon)
    least = request.users // _MIN_SHARE if request.users > _SURE * count_stddev else 0  # else noise would refuse nights
    content = _CONFIGURATION.format(
        users=f"{request.users:,}",
        epsilon=f"{request.epsilon:g}",
        days=_DAYS,
        cohorts=choice.cohorts,
        least=least,
        region=request.region,
        night=rounded_down(choice.epsilon),
    )
    return content, choice
