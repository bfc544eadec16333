"""The request of `sfumato synth`, and the layout of its files."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date
from typing import Annotated, Any, ClassVar, Self

from annotated_types import Interval
from pydantic import PlainValidator, model_validator

from sfumato.schemas.errors import RequestError
from sfumato.schemas.ledger import Period
from sfumato.schemas.region import Grid, Region
from sfumato.schemas.requests.checks import check_declared
from sfumato.schemas.requests.publish_request import REGION_HELP, REGION_METAVAR, RegionOption, RunnerOptions
from sfumato.schemas.requests.request_base import INPUT, MAP, OUTPUT, option
from sfumato.transforms.synth.people import DEFAULT_REGION, USER_ID_KINDS, UserIdKind

ROW_GROUP_ROWS = 500_000
MAX_DENSITY_DEPTH = 12  # a raster of 128 MiB for each worker
MAX_DAYS = 3_660
FIRST_DAY, LAST_DAY = date(1970, 1, 1), date(2199, 12, 31)


@dataclass(frozen=True)
class SynthSpec:
    """The logs to generate. Raises RequestError if a value is out of range.

    There are as many blocks of `users_per_file` users as files. File f of F holds record j of the users of block
    (f - j) mod F, for every j. So a user's records are in different files, as in real logs.
    """

    users: Annotated[int, Interval(ge=1, le=1 << 40)]
    records_per_user: Annotated[int, Interval(ge=1, le=100_000)] = 1
    region: Region = DEFAULT_REGION
    seed: Annotated[int, Interval(ge=0, le=(1 << 64) - 1)] = 0
    users_per_file: Annotated[int, Interval(ge=1, le=100_000_000)] = 1_000_000
    user_id: UserIdKind = "int"
    density_depth: Annotated[int, Interval(ge=1, le=MAX_DENSITY_DEPTH)] = 10
    day: date | None = None  # UTC date. Only the users who are active on it have records. None: every user, in one week
    trips: bool = False  # whether a record is a trip between two places

    def __post_init__(self) -> None:
        check_declared(self)
        if self.files > 99_999:
            least = -(-self.users // 99_999)
            raise RequestError(
                f"users_per_file: {self.users_per_file} would make {self.files} files; at most 99999 are "
                f"allowed, so give {least} or more"
            )

    @property
    def files(self) -> int:
        """Number of files."""
        return -(-self.users // self.users_per_file)

    @property
    def grid(self) -> Grid:
        """The grid of the density raster."""
        return Grid(self.region, self.density_depth)

    def file_name(self, index: int) -> str:
        """The name of a file."""
        return f"part-{index:05d}-of-{self.files:05d}.parquet"

    def pieces(self, index: int) -> Iterator[tuple[int, int, int]]:
        """Yields (first user, last user + 1, record number) of the pieces of a file, each at most a row group."""
        for record in range(self.records_per_user):
            block = (index - record) % self.files
            end = min((block + 1) * self.users_per_file, self.users)
            for first in range(block * self.users_per_file, end, ROW_GROUP_ROWS):
                yield first, min(first + ROW_GROUP_ROWS, end), record


def parse_days(value: Any) -> Period:
    """Reads `FROM:TO` or one date. Raises RequestError."""
    try:
        days = value if isinstance(value, Period) else Period.parse(str(value), "days")
    except RequestError as error:
        raise RequestError(re.sub("^period", "days", str(error))) from None
    if days.length > MAX_DAYS or not FIRST_DAY <= days.first <= days.last <= LAST_DAY:
        raise RequestError(f"days: must be {MAX_DAYS} or fewer, from {FIRST_DAY} to {LAST_DAY}, got {days}")
    return days


class SynthRequest(RunnerOptions):
    """Synthetic logs of an invented city."""

    JOB: ClassVar[str] = "synth"
    COMMAND: ClassVar[str] = "synth"
    ABOUT: ClassVar[str] = (
        "Makes deterministic location logs of any size, of the people of an invented city. Files appear when all are "
        "complete, or not at all. With --days, each date has a folder dt=YYYY-MM-DD: the same people of the same city, "
        "of whom a part is active, with weather, a season and events."
    )
    EXAMPLE: ClassVar[str] = "--users 100000 --records_per_user 5 --output logs"

    output: str = option(..., "folder for the files, local or gs://", INPUT, common=True, metavar="FOLDER")
    overwrite: bool = option(False, "replace what is there", INPUT, common=True)
    users: int = option(..., "number of users", MAP, common=True)
    records_per_user: int = option(1, "records of each user (of a day)", MAP, common=True, metavar="K")
    days: Annotated[Period, PlainValidator(parse_days)] | None = option(
        None,
        "dates (UTC), each written into a folder dt=YYYY-MM-DD of its own; without it, one folder of one week",
        MAP,
        common=True,
        metavar="FROM[:TO]",
    )
    region: RegionOption = option(
        DEFAULT_REGION, f"{REGION_HELP}; the city is stretched over it", MAP, common=True, metavar=REGION_METAVAR
    )
    trips: bool = option(
        False, "write trips between two places in place of records, K of each user: what `sfumato flows` reads", MAP
    )
    seed: int = option(0, "another seed gives other people of the same city", MAP, common=True)
    users_per_file: int = option(1_000_000, "a file has the records of so many users", OUTPUT)
    user_id: str = option("int", f"type of the user id: {' or '.join(USER_ID_KINDS)}", OUTPUT, metavar="TYPE")
    density: str | None = option(
        None,
        "also write the true density of all records: float64, 2^depth square, row 0 in the north, sum 1",
        OUTPUT,
        metavar="FILE.npy",
    )
    basemap: str | None = option(
        None,
        "also write the city's geography, as GeoJSON for --basemap of the other jobs: shores, districts, roads, names",
        OUTPUT,
        metavar="FILE.geojson",
    )
    density_depth: int = option(10, f"depth of the density, 1..{MAX_DENSITY_DEPTH}", OUTPUT)

    @property
    def spec(self) -> SynthSpec:
        """The logs to generate, without days. Raises RequestError."""
        names = ("users", "records_per_user", "region", "seed", "users_per_file", "user_id", "density_depth", "trips")
        return SynthSpec(**{name: getattr(self, name) for name in names})

    @model_validator(mode="after")
    def _checked(self) -> Self:
        _ = self.spec
        if self.trips and (self.days is not None or self.density is not None):
            name = "days" if self.days is not None else "density"
            raise RequestError(f"{name} and trips: trips are of one week and have two places; leave one of them out")
        if self.days is not None and self.density is not None:
            raise RequestError("density and days: the density is that of one folder of logs; leave one of them out")
        return self
