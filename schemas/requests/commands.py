"""Requests of commands that publish no release: keys, the ledger, refreshes, and readers of a release."""

from __future__ import annotations

import datetime
import re
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import AfterValidator, PlainValidator, model_validator

from sfumato.schemas.errors import RequestError, shown
from sfumato.schemas.ledger import Period, parse_day
from sfumato.schemas.requests.publish_request import (
    INPUT_HELP,
    REGION_HELP,
    REGION_METAVAR,
    BudgetOption,
    DatasetOption,
    DatesOption,
    DecimalOption,
    InputOption,
    KeyOptions,
    LogOptions,
    RegionOption,
    RunnerOptions,
    dates_option,
    decimal_option,
)
from sfumato.schemas.requests.request_base import COLUMNS, INPUT, KEY, MAP, METHOD, OUTPUT, PRIVACY, RUN, option
from sfumato.schemas.slots import check_time_zone

MAX_REASON = 300
TimeZoneOption = Annotated[str, AfterValidator(lambda name: check_time_zone("time_zone", name))]


class KeyRequest(LogOptions):
    """Makes a key: the secret from which a release's noise is drawn."""

    JOB: ClassVar[str] = "key"
    EXAMPLE: ClassVar[str] = "new release.key"

    action: Literal["new"] = option(..., "new: make a key", INPUT, metavar="new", style="positional")
    file: str = option(
        ..., "a new local file; existing files are not overwritten", INPUT, metavar="FILE", style="positional"
    )


def _days(value: Any) -> datetime.timedelta:
    if isinstance(value, datetime.timedelta):
        return value
    found = re.fullmatch(r"([1-9][0-9]{0,4})d", str(value).strip())
    if not found:
        raise RequestError(f"keep: must be a number of days, such as 90d, got {shown(str(value))}")
    return datetime.timedelta(days=int(found[1]))


def removal_reason(value: Any) -> str:
    """Returns the reason for taking a release down, as one line. Raises RequestError."""
    text = str(value).strip()
    if not text or len(text) > MAX_REASON or not text.isprintable():
        raise RequestError(f"reason: must be one line of 1 to {MAX_REASON} characters; it is published")
    return text


class ReleasesRequest(LogOptions):
    """Removes releases. prune removes the files of old releases except their manifests, so that the ledger still
    proves what was published. remove takes one release down: it removes the release's files, map and catalogue entry,
    leaves a notice, and names later releases that are based on it. The epsilon spent stays charged.
    """

    JOB: ClassVar[str] = "releases"
    EXAMPLE: ClassVar[str] = "prune --timeline published --ledger ledger.db --keep 90d"
    REMOVE_EXAMPLE: ClassVar[str] = (
        "remove city-2026-11-20 --timeline published --ledger ledger.db --reason 'a wrong file was published'"
    )

    action: Literal["prune", "remove"] = option(
        ...,
        "prune: remove the files of old releases; remove: take RELEASE down",
        INPUT,
        metavar="ACTION",
        style="positional",
    )
    release: str | None = option(
        None,
        "the release's id; without --timeline, its folder, local or gs:// (remove)",
        INPUT,
        metavar="RELEASE",
        style="positional",
        common=True,
    )
    timeline: str | None = option(
        None, "the folder that contains releases/: the `output` of a refresh", INPUT, metavar="FOLDER", common=True
    )
    ledger: str = option(
        ...,
        "the ledger that the releases were charged to: an SQLite file, or gs://bucket/folder",
        INPUT,
        metavar="LOCATION",
    )
    keep: Annotated[datetime.timedelta, PlainValidator(_days)] | None = option(
        None,
        "keep releases whose data is at most N days old. The newest release of each job, region and depth is always "
        "kept, as are releases that a charged run starts from (prune)",
        INPUT,
        metavar="Nd",
        common=True,
    )
    reason: Annotated[str, PlainValidator(removal_reason)] | None = option(
        None, "the reason in one line, for the notice and the ledger (remove)", INPUT, metavar="TEXT", common=True
    )
    dry_run: bool = option(False, "show what would be removed, without removing it", INPUT, common=True)

    @model_validator(mode="after")
    def _of_action(self) -> Self:
        if self.action == "prune":
            self.refuse(("release", "reason"), "applies only with `sfumato releases remove`")
            needed, example = {"timeline": self.timeline, "keep": self.keep}, self.EXAMPLE
        else:
            self.refuse(("keep",), "applies only with `sfumato releases prune`")
            needed, example = {"release": self.release, "reason": self.reason}, self.REMOVE_EXAMPLE
        if missing := [name for name, value in needed.items() if value is None]:
            raise RequestError(f"{', '.join(missing)}: required; for example: sfumato {self.COMMAND} {example}")
        return self


def _day(value: Any) -> datetime.date:
    return value if isinstance(value, datetime.date) else parse_day("date", str(value))


def _backfill(value: Any) -> Period:
    return value if isinstance(value, Period) else Period.parse(str(value), "backfill")


class RefreshRequest(RunnerOptions):
    """Publishes the release of a day, once, and updates the ledger and the page of all releases.

    If you run it again, it returns the published release and spends nothing. Exit status: 0 published, now or earlier;
    1 the data cannot support a release; 2 the configuration is wrong; 3 the budget does not allow it; 4 the ledger or
    an earlier release is damaged; 75 try again later: no data yet, too few users, or a service or the ledger is
    unavailable; 70 a crash: run it again.
    """

    JOB: ClassVar[str] = "refresh"
    EXAMPLE: ClassVar[str] = "--config refresh.yaml --date 2026-11-20"

    config: str = option(
        ...,
        "the refresh's YAML file, local or gs:// (`sfumato refresh --init FOLDER` writes one)",
        INPUT,
        metavar="FILE",
    )
    date: Annotated[datetime.date, PlainValidator(_day)] | None = option(
        None,
        "the day to publish, such as 2026-11-20; default: yesterday, in UTC or the time zone of `rows_of_day`",
        INPUT,
        metavar="DATE",
        common=True,
    )
    backfill: Annotated[Period, PlainValidator(_backfill)] | None = option(
        None,
        "publish each of these days that has data, in order; exit status 75 if a day has none",
        INPUT,
        metavar="FROM:TO",
        common=True,
    )
    attempt: int = option(1, "2 or more: publish the day again, and charge it again", INPUT, ge=1, common=True)
    dry_run: bool = option(False, "show what would be read, charged and published, without doing it", RUN, common=True)

    @model_validator(mode="after")
    def _one_of(self) -> Self:
        if self.date is not None:
            self.refuse(("backfill",), "cannot be combined with --date")
        return self


class RefreshInitRequest(LogOptions):
    """Writes FOLDER/refresh.yaml, a configuration of `sfumato refresh` to start from: the number of cohorts, the
    epsilon of a night and the least number of users fit the number of users that you state. It is for a heatmap of
    --region, or for counts by the zones of --zones.
    """

    JOB: ClassVar[str] = "refresh"
    COMMAND: ClassVar[str] = "refresh --init"
    EXAMPLE: ClassVar[str] = "nightly --users 100000 --region 3.00,1.00,3.13,1.13"

    folder: str = option(..., "a local folder for the file", INPUT, metavar="FOLDER", style="positional")
    users: int = option(..., "about how many users a night's logs have", INPUT, metavar="N", ge=1)
    region: RegionOption | None = option(None, f"{REGION_HELP}, of a heatmap", MAP, common=True, metavar=REGION_METAVAR)
    zones: str | None = option(None, "count users by the zones of this file instead", MAP, common=True, metavar="FILE")
    epsilon: float = option(1.0, "privacy budget for the data of any 30 consecutive days", PRIVACY, common=True, gt=0)
    decimal: DecimalOption | None = decimal_option()
    dates: DatesOption | None = dates_option()
    day_column: str | None = option(
        None, "column of times, which assign rows to days (default: the day of a row's folder)", INPUT, metavar="NAME"
    )
    time_zone: TimeZoneOption | None = option(
        None, "time zone of the days, with --day_column (default: local times, as in the logs)", INPUT
    )
    user_id_column: str = option("user_id", "column of the user ids", COLUMNS, common=True)
    latitude_column: str = option("latitude", "column of the latitude", COLUMNS, common=True)
    longitude_column: str = option("longitude", "column of the longitude", COLUMNS, common=True)

    @model_validator(mode="after")
    def _one_of(self) -> Self:
        if self.zones is not None:
            self.refuse(("region",), "cannot be combined with --zones")
        elif self.region is None:
            raise RequestError(f"region: required, as {REGION_METAVAR}, or --zones FILE to count users by zone")
        if self.day_column is None:
            self.refuse(("time_zone",), "requires --day_column NAME")
        return self


class LedgerRequest(LogOptions, KeyOptions):
    """Shows the charges of all releases and the budget left, verifies the ledger, sets its limits, copies or restores
    it.
    """

    JOB: ClassVar[str] = "ledger"
    EXAMPLE: ClassVar[str] = "show --ledger ledger.db"

    action: Literal["show", "account", "verify", "limit", "backup", "restore"] = option(
        ...,
        "show: charges, and the budget left; account: the charges of one user in rotating cohorts, found with the "
        "releases' key; verify: check the chain of entries, the limits and the releases; limit: set a dataset's limits "
        "from now on; backup: copy all entries to FILE; restore: append the entries of FILE that the ledger lacks, and "
        "charge releases that are in neither",
        INPUT,
        metavar="ACTION",
        style="positional",
    )
    file: str | None = option(
        None, "the copy, local or gs:// (backup, restore)", INPUT, metavar="FILE", style="positional", common=True
    )
    ledger: str = option(..., "an SQLite file, or gs://bucket/folder", INPUT, metavar="LOCATION")
    dataset: DatasetOption | None = option(
        None, "only this dataset (show, account, verify); the dataset whose limits to set (limit)", INPUT, common=True
    )
    format: Literal["text", "json"] = option("text", "output format (show, account)", OUTPUT, common=True)
    key_file: str | None = option(
        None, "the releases' key, which finds the user's cohorts (account)", KEY, metavar="FILE", common=True
    )
    user_id: str | None = option(None, "the user's id, as in the logs (account)", INPUT, metavar="ID", common=True)
    user_id_column: str = option("user_id", "the id's column in the logs (account)", INPUT)
    releases: tuple[str, ...] = option(
        (),
        "a release, or the output of `sfumato refresh`: compare with the ledger (verify), or restore lost charges from "
        "the manifests (restore); may be repeated",
        INPUT,
        metavar="FOLDER",
        style="repeated",
        common=True,
    )
    budget: BudgetOption | None = option(
        None, "the limits, such as 10/365d,1/1d (limit)", PRIVACY, metavar="E/Nd,...", common=True
    )

    @model_validator(mode="after")
    def _of_action(self) -> Self:
        if self.action not in ("backup", "restore"):
            self.refuse(("file",), "applies only with `sfumato ledger backup` and `restore`")
        elif self.file is None and not (self.action == "restore" and self.releases):
            raise RequestError(f"file: required, as in `sfumato ledger {self.action} FILE --ledger LOCATION`")
        if self.action != "limit":
            self.refuse(("budget",), "applies only with `sfumato ledger limit`")
        elif self.dataset is None or self.budget is None:
            raise RequestError("dataset, budget: both required, as in --dataset taxis --budget 10/365d,1/1d")
        if self.action not in ("verify", "restore"):
            self.refuse(("releases",), "applies only with `sfumato ledger verify` and `restore`")
        if self.action != "account":
            names = ("user_id", "user_id_column", "key_file", "key_secret")
            self.refuse(names, "applies only with `sfumato ledger account`")
        elif self.user_id is None or self.dataset is None:
            raise RequestError("user_id, dataset: both required, as in --user_id 4711 --dataset taxis")
        elif any("\ud800" <= letter <= "\udfff" for letter in self.user_id):  # bytes of the command line
            raise RequestError("user_id: must be text in UTF-8")
        return self


class ExportRequest(LogOptions):
    """Writes a published release in the format of another tool, with the guarantee in the file's metadata.

    It reads only the release, and spends no privacy budget.
    """

    JOB: ClassVar[str] = "export"
    EXAMPLE: ClassVar[str] = "release --output map.tif --licence CC-BY-4.0"

    folder: str = option(
        ..., "the folder of a release, or of changes, local or gs://", INPUT, metavar="FOLDER", style="positional"
    )
    output: str = option(..., "the file, local or gs://", OUTPUT, metavar="FILE")
    format: str | None = option(
        None,
        "geotiff, geojson, csv, xlsx, geoparquet, gpkg or pmtiles; default: by the suffix of --output",
        OUTPUT,
        common=True,
    )
    licence: str | None = option(
        None,
        "licence of the file, as an SPDX identifier such as CC-BY-4.0; default: `not stated`",
        OUTPUT,
        metavar="TEXT",
        common=True,
    )
    table: str | None = option(
        None, "the release's table to export; default: the table with the map", METHOD, common=True
    )
    overwrite: bool = option(False, "replace an existing file", OUTPUT, common=True)


class ChangesRequest(LogOptions):
    """Finds where two published heatmaps, or two counts of the same zones, differ by more than noise and sampling
    error explain, at a stated false discovery rate. It reads only the releases, and spends no privacy budget.
    """

    JOB: ClassVar[str] = "changes"
    EXAMPLE: ClassVar[str] = "monday tuesday --output changes"

    before: str = option(
        ...,
        "a release of `sfumato heatmap`, `zones` or `histogram --zones`, local or gs://",
        INPUT,
        metavar="BEFORE",
        style="positional",
    )
    after: str = option(
        ..., "another release of the same region, or of the same zones", INPUT, metavar="AFTER", style="positional"
    )
    output: str | None = option(
        None,
        "folder for changes.parquet, manifest and page; default: print only a summary",
        OUTPUT,
        metavar="FOLDER",
        common=True,
    )
    overwrite: bool = option(False, "replace existing changes", OUTPUT, common=True)
    rate: float = option(
        0.05,
        "false discovery rate: the largest expected share of false changes among those found",
        METHOD,
        gt=0.0,
        lt=1.0,
        common=True,
    )
    shares: bool = option(
        False, "compare shares of all users, for releases with different numbers of users", METHOD, common=True
    )


class InspectRequest(LogOptions):
    """Shows what logs contain: columns, unusable rows, rows per user, a region, and the operator's next command.

    The figures are exact. They are only for the person who holds the logs; nothing is published or charged.
    """

    JOB: ClassVar[str] = "inspect"
    EXAMPLE: ClassVar[str] = "--input 'logs/*.csv'"

    input: InputOption = option(..., INPUT_HELP, INPUT, metavar="PATTERN", style="several")
    input_format: Literal["parquet", "csv", "ndjson"] | None = option(
        None, "format of the files (default: by their names, otherwise Parquet)", INPUT
    )
    decimal: DecimalOption | None = decimal_option()
    dates: DatesOption | None = dates_option()
    user_id_column: str | None = option(None, "column of the user ids (default: found by name)", COLUMNS, common=True)
    latitude_column: str | None = option(None, "column of the latitude (default: found by name)", COLUMNS, common=True)
    longitude_column: str | None = option(
        None, "column of the longitude (default: found by name)", COLUMNS, common=True
    )
    time_column: str | None = option(None, "column of times (default: by its name)", COLUMNS)
    time_zone: TimeZoneOption | None = option(
        None, "time zone of the jobs, such as Europe/Berlin (default: local times, as in the logs)", INPUT
    )
    zones: str | None = option(
        None,
        "file of zones whose visitors are to be counted: polygons, or points, such as stops; the next command names "
        "its columns",
        INPUT,
        metavar="FILE",
    )
    region: RegionOption | None = option(
        None, f"{REGION_HELP}: count the rows outside of it (default: suggest a region)", MAP, metavar=REGION_METAVAR
    )
