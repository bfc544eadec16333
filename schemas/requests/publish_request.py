"""What requests share: the log, the runner, input and output, the key, the privacy ledger."""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import date, datetime
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, PlainValidator, model_validator

from sfumato.schemas.errors import RequestError, shown
from sfumato.schemas.known_digits import parse_bytes
from sfumato.schemas.ledger import Limit, Period, dataset_name, ordered
from sfumato.schemas.log_layout import DayRows, PartitionFilter
from sfumato.schemas.rectangle import Region
from sfumato.schemas.requests.request_base import (
    INPUT,
    KEY,
    LEDGER,
    MAP,
    OUTPUT,
    PRIVACY,
    RUN,
    Request,
    Several,
    common_option,
    option,
)
from sfumato.schemas.slots import UTC, check_time_zone
from sfumato.schemas.tile_server import tile_host


def region_of(value: Any) -> Region:
    """A region from `W,S,E,N`, from four numbers or from a region. Raises RequestError."""
    if isinstance(value, Region):
        return value
    if isinstance(value, Sequence) and not isinstance(value, str):
        value = ",".join(map(str, value))
    return Region.parse(str(value))


def _period(value: Any) -> Period:
    if isinstance(value, Period):
        return value
    if isinstance(value, datetime):  # pandas' Timestamp is one; it would be written with its time
        value = value.date()
    return Period(value, value) if isinstance(value, date) else Period.parse(str(value))


def _limits(value: Any) -> tuple[Limit, ...]:
    if isinstance(value, str):
        return Limit.parse_all(value)
    limits = [one for part in value for one in ([part] if isinstance(part, Limit) else Limit.parse_all(str(part)))]
    return ordered(limits)


def check_release_id(release_id: str) -> str:
    """Raises RequestError for what is no release id."""
    if not release_id.replace("-", "").replace("_", "").isalnum():
        raise RequestError(f"release_id: letters, digits, - and _ only, got {release_id!r}")
    return release_id


def _inputs(value: Any) -> tuple[str, ...]:
    """Patterns from text that separates them by commas, from a path, or from several of both."""
    several = [value] if isinstance(value, str | os.PathLike) or not isinstance(value, Sequence) else value
    if not all(isinstance(one, str | os.PathLike) for one in several):
        raise RequestError(f"input: must be files, a pattern or several, got {shown(value)}")
    patterns = [part.strip() for one in several for part in str(os.fspath(one)).split(",")]
    if not patterns or not all(patterns):
        raise RequestError("input: a pattern of files is empty")
    return tuple(patterns)


def _where(value: Any) -> str:
    return str(PartitionFilter.parse(str(value)))


InputOption = Annotated[tuple[str, ...], PlainValidator(_inputs)]
WhereOption = Annotated[str, PlainValidator(_where)]
RegionOption = Annotated[Region, PlainValidator(region_of)]
PeriodOption = Annotated[Period, PlainValidator(_period)]
BudgetOption = Annotated[tuple[Limit, ...], PlainValidator(_limits)]
MemoryOption = Annotated[int, PlainValidator(lambda size: parse_bytes("memory", size))]
ReleaseId = Annotated[str, AfterValidator(check_release_id)]
DatasetOption = Annotated[str, AfterValidator(lambda name: dataset_name(name) and name)]
INPUT_HELP = "logs: files, patterns, folders, tables"
REGION_HELP = "borders of the map, in degrees"
REGION_METAVAR = "W,S,E,N"
MAX_BAD_FRACTION = 0.1
# Besides what each job adds: which records are read, how, and when a run is refused.
_SHAPING = ("input_format", "where", "min_users", "max_bad_fraction", "day_column", "time_zone")
MAX_BAD_FRACTION_HELP = "refuse where a larger share of the users has no usable record, by noisy counts"


class LogOptions(Request):
    """What a command writes to standard error."""

    verbose: bool = option(False, "show operations data: rows read and dropped, metrics", RUN)
    log_format: Literal["text", "json"] = option(
        "text", "text: lines for people; json: a JSON object a line, as Cloud Logging and others read it", RUN
    )


class RunnerOptions(LogOptions):
    """Where a job runs. Options that no request knows go to Apache Beam."""

    runner_config: str | None = common_option(
        None,
        "YAML file of Beam options, or a shipped one: direct, direct_threads, flink, spark, prism, dataflow",
        RUN,
        metavar="FILE",
    )


class KeyOptions(Request):
    """Where the key of releases is kept."""

    key_file: str | None = common_option(
        None,
        "a key that `sfumato key new FILE` made; for a new release default: fresh entropy of the operating system",
        KEY,
        metavar="FILE",
    )
    key_secret: str | None = option(None, "the same from Secret Manager: projects/P/secrets/S/versions/N", KEY)

    @property
    def key_options(self) -> list[str]:
        """The options that name a key."""
        return [name for name in ("key_file", "key_secret") if getattr(self, name) is not None]

    @model_validator(mode="after")
    def _one_key(self) -> Self:
        if len(keys := self.key_options) > 1:
            raise RequestError(f"{' and '.join(keys)}: give one of them, not {'both' if len(keys) == 2 else 'all'}")
        return self


class ReleaseRequest(RunnerOptions, KeyOptions):
    """A job that publishes a differentially private release of location logs, and may charge a ledger for it."""

    input: InputOption = common_option(..., INPUT_HELP, INPUT, metavar="PATTERN", style="several")
    output: str = common_option(..., "folder for the result, local or gs://", INPUT, metavar="FOLDER")
    overwrite: bool = common_option(False, "replace what is at the output", INPUT)
    input_format: Literal["parquet", "csv", "ndjson"] | None = option(
        None,
        "format of the files (default: by their names, and Parquet where these do not say). Tables are named in "
        "--input: delta:FOLDER, iceberg:CATALOG.TABLE, bigquery:PROJECT.DATASET.TABLE",
        INPUT,
    )
    where: Several[WhereOption] | None = option(
        None,
        "read only the folders, or partitions of a Delta table, with this value, or with one from LOW to HIGH, as "
        "date=2026-11-01:2026-11-07",
        INPUT,
        metavar="NAME=VALUE,...",
    )
    memory: MemoryOption | None = option(
        None,
        "memory that the run may use, such as 1.5G: users' records beyond it are written to a temporary folder "
        "(default: what the machine and its container have free); with workers elsewhere, the memory of one",
        RUN,
        metavar="SIZE",
    )
    release_id: ReleaseId | None = option(None, "name of the result; default: a random one", KEY, metavar="ID")
    seed: int | None = common_option(None, "UNSAFE: a key that anybody can guess, for tests and demos", KEY)

    min_users: int = option(
        0,
        "refuse, with exit status 75, where a noisy count finds fewer users; only the count is paid for",
        PRIVACY,
        ge=0,
    )
    max_bad_fraction: float = option(MAX_BAD_FRACTION, MAX_BAD_FRACTION_HELP, PRIVACY, ge=0, le=1)
    day_column: str | None = option(
        None,
        "column of timestamps, or of seconds since 1970: only the rows of the --period are read; default: all rows",
        INPUT,
    )
    time_zone: str | None = option(
        None,
        "time zone of the days of --day_column and of --slots, such as Europe/Berlin; times without a zone are in UTC "
        "(default: UTC)",
        INPUT,
    )
    timeline: str | None = option(
        None, "update this folder's page of all releases in FOLDER/releases/", OUTPUT, metavar="FOLDER"
    )
    ledger: str | None = common_option(
        None,
        "privacy ledger, charged before any noise is drawn: an SQLite file, or gs://bucket/folder",
        LEDGER,
        metavar="LOCATION",
    )
    dataset: DatasetOption | None = common_option(None, "name of the logs in the ledger (with --ledger)", LEDGER)
    period: PeriodOption | None = common_option(
        None, "days of the logs, as 2026-11-20 (with --ledger)", LEDGER, metavar="DATE[:DATE]"
    )
    budget: BudgetOption | None = option(
        None,
        "the dataset's limits: epsilon, or epsilon:delta, for the data of any N days in a row, such as 10/365d,1/1d; "
        "the first charge sets them, `sfumato ledger limit` changes them",
        LEDGER,
        metavar="E/Nd,...",
    )
    allow_reuse: bool = option(
        False, "allow input files that were charged to another dataset or other days before, and charge both", LEDGER
    )
    corrects: ReleaseId | None = option(
        None,
        "release that this one replaces, because logs arrived after it; the manifest names it",
        LEDGER,
        metavar="ID",
    )
    dry_run: bool = common_option(False, "show what would be read, charged and published, and do nothing", RUN)

    @property
    def key_options(self) -> list[str]:
        """See KeyOptions.key_options."""
        return [*super().key_options, *(() if self.seed is None else ("seed",))]

    def resolve(self) -> Any:
        """What the options name, opened and planned once, before Beam is imported.

        Raises RequestError if options contradict each other, or a file that they name cannot be used.
        """
        return None

    def shaping(self) -> dict[str, Any]:
        """The options that shape the numbers of the result, those that were given or have a default, by name.

        All that a job adds to those of every release do, and of these the days read and the limits of the admission.
        """
        names = [
            name for name in type(self).model_fields if name not in ReleaseRequest.model_fields or name in _SHAPING
        ]
        values = {name: value for name in names if (value := getattr(self, name)) is not None and value is not False}
        return values if self.day_column is None else {**values, "days_read": str(self.period)}

    @property
    def day_rows(self) -> DayRows | None:
        """The days whose rows are read; None for all rows."""
        if self.day_column is None or self.period is None:
            return None
        return DayRows(self.day_column, self.time_zone or UTC, self.period.first, self.period.last)

    def _reads_local_times(self) -> bool:
        """Returns whether an option of the request needs a time zone."""
        return self.day_column is not None

    @model_validator(mode="after")
    def _accounted(self) -> Self:
        if self.time_zone is not None and not self._reads_local_times():
            raise RequestError("time_zone: requires --day_column, or --slots of a heatmap")
        if self.day_column is not None and self.period is None:
            raise RequestError("day_column: requires --period, the days whose rows are read")
        check_time_zone("time_zone", self.time_zone or UTC)
        if self.ledger is None:
            for name in ("dataset", "period", "budget", "allow_reuse", "corrects"):
                if getattr(self, name) not in (None, False) and not (name == "period" and self.day_column):
                    raise RequestError(f"{name}: needs a ledger; give --ledger as well")
            return self
        for name in ("dataset", "period"):
            if getattr(self, name) is None:
                raise RequestError(f"{name}: --ledger needs it, to know what to charge")
        if self.seed is not None:
            raise RequestError(
                "seed: anybody can take this noise away, so there is nothing to account for; give --key_file"
            )
        if not self.key_options:
            raise RequestError(
                "key_file: a ledger needs a kept key, by which a run is resumed and a file that was charged before is "
                "known again; make one with `sfumato key new FILE`, and give --key_file FILE"
            )
        return self


class RegionOfMap(Request):
    """A map needs its borders."""

    region: RegionOption = common_option(..., REGION_HELP, MAP, metavar=REGION_METAVAR)


class MapGeography(ReleaseRequest):
    """What a map shows besides its cells. It is post-processing: no key is bound to it, and no number depends on it."""

    basemap: str | None = option(
        None,
        "coast, streets, zones and place names to draw on the map (GeoJSON or GeoParquet); published with it; default: "
        "the world's coasts and borders, from 5 degrees on",
        OUTPUT,
        metavar="FILE",
    )
    tiles: str | None = option(
        None,
        "tile server whose street map a reader may switch on, such as https://tile.example.org/{z}/{x}/{y}.png; the "
        "server then sees what the reader looks at",
        OUTPUT,
        metavar="URL",
    )

    def shaping(self) -> dict[str, Any]:
        """See ReleaseRequest.shaping."""
        return {name: value for name, value in super().shaping().items() if name not in ("basemap", "tiles")}

    @model_validator(mode="after")
    def _of_a_map(self) -> Self:
        if self.tiles is not None:
            try:
                tile_host(self.tiles)
            except ValueError as error:
                raise RequestError(str(error)) from None
        # A model of ranges may take its region from a published heatmap, and zones have one of their own.
        if all(getattr(self, name, None) is None for name in ("region", "release", "zones")):
            for name in ("basemap", "tiles"):
                if getattr(self, name) is not None:
                    raise RequestError(f"{name}: is of a map, which needs --region W,S,E,N")
        return self
