"""Options that requests share: logging, the runner, input and output, the key, the privacy ledger, the map."""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import AfterValidator, PlainValidator, model_validator

from sfumato.schemas.errors import RequestError, shown
from sfumato.schemas.known_digits import parse_memory
from sfumato.schemas.ledger import Limit, Period, dataset_name, ordered
from sfumato.schemas.log_layout import DayRows, PartitionFilter, hours_of
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
    option,
)
from sfumato.schemas.slots import UTC, check_time_zone
from sfumato.schemas.views.view_parts import tile_host


def region_of(value: Any) -> Region:
    """Returns a region from `W,S,E,N`, four numbers or a region. Raises RequestError."""
    if isinstance(value, Region):
        return value
    if isinstance(value, Sequence) and not isinstance(value, str):
        value = ",".join(map(str, value))
    return Region.parse(value if isinstance(value, str) else shown(value))


def _period(value: Any) -> Period:
    if isinstance(value, Period):
        return value
    ends = value if isinstance(value, list | tuple) else [value]
    # pandas' Timestamp is a datetime, which would be written with its time
    return Period.parse(":".join(str(end.date() if isinstance(end, datetime) else end) for end in ends))


def _limits(value: Any) -> tuple[Limit, ...]:
    if isinstance(value, str):
        return Limit.parse_all(value)
    limits = [one for part in value for one in ([part] if isinstance(part, Limit) else Limit.parse_all(str(part)))]
    return ordered(limits)


def check_release_id(release_id: str) -> str:
    """Returns the release id. Raises RequestError unless it consists of letters, digits, - and _."""
    if not release_id.replace("-", "").replace("_", "").isalnum():
        raise RequestError(f"release_id: must contain only letters, digits, - and _, got {shown(release_id)}")
    return release_id


def _inputs(value: Any) -> tuple[str, ...]:
    """Returns patterns from a text with commas, a path, or several of both."""
    several = [value] if isinstance(value, str | os.PathLike) or not isinstance(value, Sequence) else value
    if not all(isinstance(one, str | os.PathLike) for one in several):
        raise RequestError(f"input: must be a file, a pattern, or several, got {shown(value)}")
    patterns = [part.strip() for one in several for part in str(os.fspath(one)).split(",")]
    if not patterns or not all(patterns):
        raise RequestError("input: contains an empty pattern; remove the extra comma")
    return tuple(patterns)


def _where(value: Any) -> str:
    return str(PartitionFilter.parse(str(value)))


def _hours(value: Any) -> str:
    value = "-".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
    return "{}-{}".format(*hours_of(value))


def _title(value: Any) -> str:
    text = str(value).strip()
    if not 0 < len(text) <= _LONGEST_TITLE or not text.isprintable():
        raise RequestError(f"title: must have 1 to {_LONGEST_TITLE} characters on one line, got {shown(text)}")
    return text


InputOption = Annotated[tuple[str, ...], PlainValidator(_inputs)]
WhereOption = Annotated[str, PlainValidator(_where)]
DecimalOption = Literal[".", ","]
DatesOption = Literal["dmy", "mdy"]
HoursOption = Annotated[str, PlainValidator(_hours)]
RegionOption = Annotated[Region, PlainValidator(region_of)]
PeriodOption = Annotated[Period, PlainValidator(_period)]
BudgetOption = Annotated[tuple[Limit, ...], PlainValidator(_limits)]
MemoryOption = Annotated[int, PlainValidator(parse_memory)]
ReleaseId = Annotated[str, AfterValidator(check_release_id)]
TitleOption = Annotated[str, PlainValidator(_title)]
DatasetOption = Annotated[str, AfterValidator(lambda name: dataset_name(name) and name)]
INPUT_HELP = "logs: files, patterns, folders or tables"
REGION_HELP = "borders of the map, in degrees"
REGION_METAVAR = "W,S,E,N"
MAX_BAD_FRACTION = 0.1
_LONGEST_TITLE = 100
# Options of every release that shape its numbers: they select the records, or refuse a run.
_SHAPING = (
    *("input_format", "decimal", "dates", "where", "min_users", "max_bad_fraction", "day_column", "hours", "time_zone"),
)
MAX_BAD_FRACTION_HELP = "refuse the run if a larger share of users has no usable record, by noisy counts"


def decimal_option() -> Any:
    """Declares the option of the decimal mark of text: no value decides it."""
    text = "decimal mark of numbers written as text: a point, or a comma as in 52,52 (default: a point)"
    return option(None, text, INPUT, metavar="MARK", common=True)


def dates_option() -> Any:
    """Declares the option of the order of dates of text: no value decides it."""
    text = "order of dates written as text: dmy for 27.11.2026 08:30, mdy for 11/27/2026 8:30 AM (default: ISO 8601)"
    return option(None, text, INPUT, common=True)


class LogOptions(Request):
    """Options of what a command writes to standard error."""

    verbose: bool = option(False, "show operations data: rows read and dropped, metrics", RUN)
    log_format: Literal["text", "json"] = option(
        "text", "text: lines for people; json: one JSON object per line, as in Cloud Logging", RUN
    )


class RunnerOptions(LogOptions):
    """Options of the runner. Options that no request knows go to Apache Beam."""

    runner_config: str | None = option(
        None,
        "YAML file of Beam options, or one of direct, direct_threads, flink, spark, prism, dataflow",
        RUN,
        metavar="FILE",
        common=True,
    )


class KeyOptions(Request):
    """Options that name the key of releases."""

    key_file: str | None = option(
        None,
        "a key made by `sfumato key new FILE`; default for a new release: randomness of the operating system",
        KEY,
        metavar="FILE",
        common=True,
    )
    key_secret: str | None = option(None, "a key in Secret Manager: projects/P/secrets/S/versions/N", KEY)

    @property
    def key_options(self) -> list[str]:
        """Returns the given options that name a key."""
        return self.changed(("key_file", "key_secret"))

    @model_validator(mode="after")
    def _one_key(self) -> Self:
        if len(keys := self.key_options) > 1:
            raise RequestError(f"{' and '.join(keys)}: cannot be combined; give one of them")
        return self


class ReleaseRequest(RunnerOptions, KeyOptions):
    """Options of a job that publishes a differentially private release of location logs."""

    input: InputOption = option(..., INPUT_HELP, INPUT, metavar="PATTERN", style="several")
    output: str = option(..., "folder for the result, local or gs://", INPUT, metavar="FOLDER")
    overwrite: bool = option(False, "replace an existing release at the output", INPUT, common=True)
    input_format: Literal["parquet", "csv", "ndjson"] | None = option(
        None,
        "format of the files (default: by their names, otherwise Parquet). --input names tables as delta:FOLDER, "
        "iceberg:CATALOG.TABLE or bigquery:PROJECT.DATASET.TABLE",
        INPUT,
    )
    decimal: DecimalOption | None = decimal_option()
    dates: DatesOption | None = dates_option()
    where: Several[WhereOption] | None = option(
        None,
        "read only folders, or partitions of a Delta table, with this value, or with a value from LOW to HIGH, such as "
        "date=2026-11-01:2026-11-07",
        INPUT,
        metavar="NAME=VALUE,...",
    )
    memory: MemoryOption | None = option(
        None,
        "memory that the run may use, such as 1.5G; records that do not fit are written to a temporary folder (default:"
        " the free memory of the machine and its container). With remote workers, the memory of one worker",
        RUN,
        metavar="SIZE",
    )
    release_id: ReleaseId | None = option(None, "name of the release; default: a random name", KEY, metavar="ID")
    seed: int | None = option(None, "UNSAFE: a key that anyone can guess, only for tests and demos", KEY, common=True)

    min_users: int = option(
        0,
        "refuse the run, with exit status 75, if a noisy count finds fewer users; only the count is charged",
        PRIVACY,
        ge=0,
        common=True,
    )
    max_bad_fraction: float = option(MAX_BAD_FRACTION, MAX_BAD_FRACTION_HELP, PRIVACY, ge=0, le=1)
    day_column: str | None = option(
        None,
        "column of timestamps, or of seconds since 1970: read only the rows of the --period, the --hours, or both "
        "(default: all rows)",
        INPUT,
        metavar="NAME",
        common=True,
    )
    hours: HoursOption | None = option(
        None,
        "read only the rows of these hours of the day, by --day_column, such as 8-9, or 8, for 08:00 to before 09:00, "
        "or 22-5",
        INPUT,
        metavar="FROM-TO",
        common=True,
    )
    time_zone: str | None = option(
        None,
        "time zone for --day_column and --slots, such as Europe/Berlin. Times without a zone are read as UTC and "
        "converted to it: omit the option if they are local times already (default: UTC)",
        INPUT,
    )
    title: TitleOption | None = option(
        None, "title of the page, which everyone can read; default: what it shows", OUTPUT, metavar="TEXT"
    )
    timeline: str | None = option(
        None, "update this folder's page of all releases in FOLDER/releases/", OUTPUT, metavar="FOLDER"
    )
    ledger: str | None = option(
        None,
        "privacy ledger, charged before noise is drawn: an SQLite file, or gs://bucket/folder",
        LEDGER,
        metavar="LOCATION",
        common=True,
    )
    dataset: DatasetOption | None = option(None, "name of the logs in the ledger, with --ledger", LEDGER, common=True)
    period: PeriodOption | None = option(
        None,
        "days of the logs, such as 2026-11-20: to read with --day_column, to charge with --ledger",
        LEDGER,
        metavar="DATE[:DATE]",
        common=True,
    )
    budget: BudgetOption | None = option(
        None,
        "the dataset's limits: epsilon, or epsilon:delta, for the data of any N consecutive days, such as "
        "10/365d,1/1d. The first charge sets them; `sfumato ledger limit` changes them",
        LEDGER,
        metavar="E/Nd,...",
    )
    allow_reuse: bool = option(
        False, "allow input files that were charged to another dataset or other days, and charge both", LEDGER
    )
    corrects: ReleaseId | None = option(
        None,
        "release that this one replaces, because logs arrived after it; the manifest names it",
        LEDGER,
        metavar="ID",
    )
    dry_run: bool = option(False, "show what would be read, charged and published, without doing it", RUN, common=True)

    @property
    def key_options(self) -> list[str]:
        """See KeyOptions.key_options."""
        return [*super().key_options, *self.changed(("seed",))]

    def resolve(self) -> Any:
        """Returns what the options name, opened once, before Beam is imported.

        Raises RequestError if options contradict each other, or a file cannot be used.
        """
        return None

    def shaping(self) -> dict[str, Any]:
        """Returns the options that shape the numbers of the result, if given or with a default, by name.

        They are all options that a job adds to those of every release, and of the latter those in _SHAPING.
        """
        names = [
            name for name in type(self).model_fields if name not in ReleaseRequest.model_fields or name in _SHAPING
        ]
        values = {name: value for name in names if (value := getattr(self, name)) is not None and value is not False}
        return {**values, "days_read": str(self.period)} if self.day_column and self.period else values

    @property
    def day_rows(self) -> DayRows | None:
        """Returns the days and hours whose rows are read; None for all rows."""
        if self.day_column is None:
            return None
        first, last = (None, None) if self.period is None else (self.period.first, self.period.last)
        hours = None if self.hours is None else hours_of(self.hours)
        return DayRows(self.day_column, self.time_zone, first, last, hours)

    def reads_local_times(self) -> bool:
        """Returns whether an option of the request needs a time zone."""
        return self.day_column is not None

    @model_validator(mode="after")
    def _accounted(self) -> Self:
        if not self.reads_local_times():
            self.refuse(("time_zone",), "requires --day_column, or --slots of a heatmap")
        if self.day_column is None:
            self.refuse(("hours",), "requires --day_column NAME, the column of times")
        elif self.period is None and self.hours is None:
            raise RequestError("day_column: requires --period or --hours, the days or hours whose rows to read")
        check_time_zone("time_zone", self.time_zone or UTC)
        if self.ledger is None:
            self.refuse(("dataset", "budget", "allow_reuse", "corrects"), "requires --ledger LOCATION")
            if self.day_column is None:
                self.refuse(
                    ("period",), "requires --day_column NAME, to read only these days, or --ledger, to charge them"
                )
            return self
        for name, value in (("dataset", self.dataset), ("period", self.period)):
            if value is None:
                raise RequestError(f"{name}: required with --ledger")
        if self.seed is not None:
            raise RequestError(
                "seed: cannot be combined with --ledger: anyone can remove the noise of a seed; give --key_file FILE"
            )
        if not self.key_options:
            raise RequestError(
                "key_file: required with --ledger, to resume a run and to recognise charged files; make a key with "
                "`sfumato key new FILE`, then give --key_file FILE"
            )
        return self


class MapGeography(ReleaseRequest):
    """Options of a map's background.

    The background is post-processing: no key is bound to it, and no number depends on it.
    """

    if TYPE_CHECKING:  # every request with a map declares this option, in its own order

        @property
        def region(self) -> Region | None:
            """Returns the region of the map."""

    basemap: str | None = option(
        None,
        "coast, streets, zones and place names to draw on the map (GeoJSON, GeoParquet, GeoPackage or shapefile). They "
        "are published with the map. Default: cities; on maps of 5 degrees or more the world's coasts and borders; on "
        "smaller ones the coast, if the extra `coast` is installed",
        OUTPUT,
        metavar="FILE",
    )
    tiles: str | None = option(
        None,
        "tile server of a street map that a reader may switch on, such as https://tile.example.org/{z}/{x}/{y}.png; "
        "the server then sees which places the reader looks at",
        OUTPUT,
        metavar="URL",
    )

    def shaping(self) -> dict[str, Any]:
        """See ReleaseRequest.shaping."""
        return {name: value for name, value in super().shaping().items() if name not in ("basemap", "tiles")}

    @property
    def has_map(self) -> bool:
        """Returns whether the release shows a map."""
        return True

    @model_validator(mode="after")
    def _of_a_map(self) -> Self:
        if self.tiles is not None:
            try:
                tile_host(self.tiles)
            except ValueError as error:
                raise RequestError(str(error)) from None
        if not self.has_map:
            self.refuse(("basemap", "tiles"), "applies only to maps")
        return self


class RegionOfMap(Request):
    """The region of a map, which is required."""

    region: RegionOption = option(..., REGION_HELP, MAP, metavar=REGION_METAVAR)
