"""The request of `sfumato synth`, and the layout of its files."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import date
from typing import Annotated, Any, ClassVar, Self

from pydantic import PlainValidator, model_validator

from sfumato.schemas.errors import RequestError
from sfumato.schemas.ledger import Period
from sfumato.schemas.rectangle import PENUMBRA
from sfumato.schemas.requests.publish_request import REGION_HELP, REGION_METAVAR, RegionOption, RunnerOptions
from sfumato.schemas.requests.request_base import INPUT, MAP, OUTPUT, option

ROW_GROUP_ROWS = 500_000
MAX_DAYS = 3_660
MAX_FILES = 99_999
FIRST_DAY, LAST_DAY = date(1970, 1, 1), date(2199, 12, 31)


def parse_days(value: Any) -> Period:
    """Returns the days of `FROM:TO` or of one date. Raises RequestError."""
    try:
        days = value if isinstance(value, Period) else Period.parse(str(value), "days")
    except RequestError as error:
        raise RequestError(re.sub("^period", "days", str(error))) from None
    if days.length > MAX_DAYS or not FIRST_DAY <= days.first <= days.last <= LAST_DAY:
        raise RequestError(f"days: must be at most {MAX_DAYS} days between {FIRST_DAY} and {LAST_DAY}, got {days}")
    return days


class SynthRequest(RunnerOptions):
    """Makes deterministic location logs of any size, for the people of an invented city.

    Either all files appear, complete, or none. With --days, each date has a folder dt=YYYY-MM-DD: the same people of
    the same city, some of them active, with weather, a season and events.
    """

    JOB: ClassVar[str] = "synth"
    EXAMPLE: ClassVar[str] = "--users 100000 --records_per_user 5 --output logs"

    output: str = option(..., "folder for the files, local or gs://", INPUT, metavar="FOLDER")
    overwrite: bool = option(False, "replace existing files", INPUT, common=True)
    users: int = option(..., "number of users", MAP, ge=1, le=1 << 40)
    records_per_user: int = option(
        1, "records of each user, on each day", MAP, common=True, metavar="K", ge=1, le=100_000
    )
    days: Annotated[Period, PlainValidator(parse_days)] | None = option(
        None,
        "dates (UTC), each with its own folder dt=YYYY-MM-DD; default: one folder of one week",
        MAP,
        common=True,
        metavar="FROM[:TO]",
    )
    region: RegionOption = option(
        PENUMBRA, f"{REGION_HELP}; the city is stretched over it", MAP, common=True, metavar=REGION_METAVAR
    )
    trips: bool = option(
        False, "write K trips of each user between two places, instead of records, for `sfumato flows`", MAP
    )
    seed: int = option(
        0, "a different seed gives different people of the same city", MAP, common=True, ge=0, le=(1 << 64) - 1
    )
    users_per_file: int = option(1_000_000, "number of users whose records are in a file", OUTPUT, ge=1, le=100_000_000)
    basemap: str | None = option(
        None,
        "also write the city's geography, as GeoJSON for --basemap of the other jobs: shores, districts, roads, names",
        OUTPUT,
        metavar="FILE.geojson",
    )

    @model_validator(mode="after")
    def _checked(self) -> Self:
        if self.files > MAX_FILES:
            least = -(-self.users // MAX_FILES)
            raise RequestError(
                f"users_per_file: must be {least} or more for at most {MAX_FILES} files, got {self.users_per_file}"
            )
        if self.trips:
            self.refuse(("days",), "cannot be combined with --trips")
        return self

    # There are as many blocks of `users_per_file` users as files, F. File f holds record j of the users of block
    # (f - j) mod F, for every j. So a user's records are in different files, as in real logs.

    @property
    def files(self) -> int:
        """Returns the number of files, of each day."""
        return -(-self.users // self.users_per_file)

    def file_name(self, index: int) -> str:
        """Returns the name of a file."""
        return f"part-{index:05d}-of-{self.files:05d}.parquet"

    def pieces(self, index: int) -> Iterator[tuple[int, int, int]]:
        """Yields (first user, last user + 1, record number) of the pieces of a file, each at most a row group."""
        for record in range(self.records_per_user):
            block = (index - record) % self.files
            end = min((block + 1) * self.users_per_file, self.users)
            for first in range(block * self.users_per_file, end, ROW_GROUP_ROWS):
                yield first, min(first + ROW_GROUP_ROWS, end), record
