"""Requests of commands that publish no release: keys, ledger, nights, squares, and readers of a release."""

from __future__ import annotations

import datetime
import re
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import PlainValidator, model_validator

from sfumato.schemas.errors import RequestError
from sfumato.schemas.ledger import Period, parse_day
from sfumato.schemas.requests.publish_request import (
    INPUT_HELP,
    BudgetOption,
    DatasetOption,
    InputOption,
    KeyOptions,
    LogOptions,
    RunnerOptions,
)
from sfumato.schemas.requests.request_base import (
    COLUMNS,
    INPUT,
    LEDGER,
    METHOD,
    OUTPUT,
    PRIVACY,
    RUN,
    common_option,
    option,
)

MAX_REASON = 300


class KeyRequest(LogOptions):
    """Makes a key: the secret behind the noise of a release."""

    JOB: ClassVar[str] = "key"
    EXAMPLE: ClassVar[str] = "new release.key"

    action: Literal["new"] = common_option(..., "new: make a key", INPUT, metavar="new", style="positional")
    file: str = common_option(
        ..., "a new local file; what exists is not overwritten", INPUT, metavar="FILE", style="positional"
    )


def _days(value: Any) -> datetime.timedelta:
    if isinstance(value, datetime.timedelta):
        return value
    found = re.fullmatch(r"([1-9][0-9]{0,4})d", str(value).strip())
    if not found:
        raise RequestError(f"keep: write a number of days, such as 90d; got {str(value)[:40]!r}")
    return datetime.timedelta(days=int(found[1]))


def removal_reason(value: Any) -> str:
    """Returns why a release is taken down, as one line. Raises RequestError."""
    text = str(value).strip()
    if not text or len(text) > MAX_REASON or not text.isprintable():
        raise RequestError(f"reason: one line of 1 to {MAX_REASON} characters, which everybody may read")
    return text


class ReleasesRequest(LogOptions):
    """prune removes the files of old releases but their manifests, so that the ledger still proves what was published.

    remove takes one release down: it removes its files, its map and its catalogue entry, and leaves a notice. What
    it cost stays charged. It names the later releases that are based on it.
    """

    JOB: ClassVar[str] = "releases"
    EXAMPLE: ClassVar[str] = "prune --timeline published --ledger ledger.db --keep 90d"
    REMOVE_EXAMPLE: ClassVar[str] = (
        "remove city-2026-11-20 --timeline published --ledger ledger.db --reason 'a wrong file was published'"
    )

    action: Literal["prune", "remove"] = common_option(
        ...,
        "prune: remove the files of old releases; remove: take RELEASE down",
        INPUT,
        metavar="ACTION",
        style="positional",
    )
    release: str | None = common_option(
        None,
        "its release id; without --timeline its folder, local or gs:// (remove)",
        INPUT,
        metavar="RELEASE",
        style="positional",
    )
    timeline: str | None = common_option(
        None,
        "the folder whose releases/ are pruned, or hold the one to remove: `output` of a refresh",
        INPUT,
        metavar="FOLDER",
    )
    ledger: str = common_option(
        ..., "the ledger that they were charged to: an SQLite file, or gs://bucket/folder", INPUT,
        metavar="LOCATION",
    )  # fmt: skip
    keep: Annotated[datetime.timedelta, PlainValidator(_days)] | None = common_option(
        None,
        "keep releases of data that are at most N days old, and whatever their age the newest one of each job, region "
        "and depth, and those that a charged run starts from (prune)",
        INPUT,
        metavar="Nd",
    )
    reason: Annotated[str, PlainValidator(removal_reason)] | None = common_option(
        None, "why, in one line: it stands in the notice and in the ledger (remove)", INPUT, metavar="TEXT"
    )
    dry_run: bool = common_option(False, "show what would be removed, and remove nothing", INPUT)

    @model_validator(mode="after")
    def _of_action(self) -> Self:
        pruning, removing = (
            {"timeline": self.timeline, "keep": self.keep},
            {"release": self.release, "reason": self.reason},
        )
        needed, example = (pruning, self.EXAMPLE) if self.action == "prune" else (removing, self.REMOVE_EXAMPLE)
        for other, names in (("prune", ("keep",)), ("remove", tuple(removing))):
            if self.action != other and (given := self.given(names)):
                raise RequestError(f"{next(iter(given))}: applies only with `sfumato releases {other}`")
        if missing := [name for name, value in needed.items() if value is None]:
            raise RequestError(f"{', '.join(missing)}: required, as in sfumato {self.COMMAND} {example}")
        return self


def _day(value: Any) -> datetime.date:
    return value if isinstance(value, datetime.date) else parse_day("date", str(value))


def _backfill(value: Any) -> Period:
    return value if isinstance(value, Period) else Period.parse(str(value), "backfill")


class RefreshRequest(RunnerOptions):
    """Publishes the release of a day, once, and keeps the ledger and the page of all releases.

    Run again it returns the published release and spends nothing. Exit status: 0 published, now or before; 1 the
    data cannot support a release; 2 the configuration is wrong; 3 the budget does not allow it; 4 the ledger or an
    earlier release is damaged; 75 not now: no data yet, too few, or a service or ledger out of reach, so try again
    later; 70 a crash: run it again.
    """

    JOB: ClassVar[str] = "refresh"
    EXAMPLE: ClassVar[str] = "--config refresh.yaml --date 2026-11-20"

    config: str = common_option(..., "the refresh's YAML file, local or gs://", INPUT, metavar="FILE")
    date: Annotated[datetime.date, PlainValidator(_day)] | None = common_option(
        None,
        "day to publish, as 2026-11-20; default: yesterday, in UTC or the time zone of `rows_of_day`",
        INPUT,
        metavar="DATE",
    )
    backfill: Annotated[Period, PlainValidator(_backfill)] | None = common_option(
        None,
        "publish every day of these that has data, in order; exit status 75 if one has none",
        INPUT,
        metavar="FROM:TO",
    )
    attempt: int = common_option(1, "2 or more: publish the day anew, and charge it again", INPUT, ge=1)
    dry_run: bool = common_option(False, "show what would be read, charged and published, and do nothing", RUN)

    @model_validator(mode="after")
    def _one_of(self) -> Self:
        if self.date is not None and self.backfill is not None:
            raise RequestError("backfill: not allowed with --date; give one of them")
        return self


class DoctorRequest(RunnerOptions, KeyOptions):
    """Makes the checks of a run in advance: runner, temporary folder, ports, key, ledger and clock.

    Exit status: 0 all in order, or warnings; 1 a check failed.
    """

    JOB: ClassVar[str] = "doctor"
    EXAMPLE: ClassVar[str] = "--config refresh.yaml"

    config: str | None = common_option(None, "a refresh's YAML file, which names the rest", INPUT, metavar="FILE")
    ledger: str | None = common_option(None, "an SQLite file, or gs://bucket/folder", LEDGER, metavar="LOCATION")
    format: Literal["text", "json"] = common_option("text", "format of what is printed", OUTPUT)

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if self.config is not None and (given := self.given(("key_file", "key_secret", "ledger"))):
            raise RequestError(f"{next(iter(given))}: the configuration names it; leave it or --config out")
        return self


class LedgerRequest(LogOptions, KeyOptions):
    """Shows what every release was charged with and what is left, verifies the ledger, sets its limits, copies or
    restores it.
    """

    JOB: ClassVar[str] = "ledger"
    EXAMPLE: ClassVar[str] = "show --ledger ledger.db"

    action: Literal["show", "account", "verify", "limit", "backup", "restore"] = common_option(
        ...,
        "show: charges, and what is left; account: the charges of one user, whom a rotation asks by the releases' key; "
        "verify: the chain of entries, the limits and the releases; limit: set a dataset's limits from here on; "
        "backup: copy all entries to FILE; restore: append the entries of FILE that the ledger lacks, and charge what "
        "the releases state and both lack",
        INPUT,
        metavar="ACTION",
        style="positional",
    )
    file: str | None = common_option(
        None, "the copy, local or gs:// (backup, restore)", INPUT, metavar="FILE", style="positional"
    )
    ledger: str = common_option(..., "an SQLite file, or gs://bucket/folder", INPUT, metavar="LOCATION")
    dataset: DatasetOption | None = common_option(
        None, "only this dataset (show, account, verify); the dataset whose limits to set (limit)", INPUT
    )
    format: Literal["text", "json"] = common_option("text", "format of what `show` and `account` print", OUTPUT)
    user_id: str | None = common_option(None, "the user's id, as the logs have it (account)", INPUT, metavar="ID")
    user_id_column: str = option("user_id", "column of the logs that holds the id (account)", INPUT)
    releases: tuple[str, ...] = common_option(
        (),
        "a release, or what `sfumato refresh` wrote: compare with the ledger (verify), or charge again from their "
        "manifests what the ledger lost (restore); may be repeated",
        INPUT,
        metavar="FOLDER",
        style="repeated",
    )
    budget: BudgetOption | None = common_option(
        None, "the limits, as 10/365d,1/1d (limit)", PRIVACY, metavar="E/Nd,..."
    )

    @model_validator(mode="after")
    def _of_action(self) -> Self:
        if self.action in ("backup", "restore"):
            if self.file is None and not (self.action == "restore" and self.releases):
                raise RequestError(f"file: name the copy, as `sfumato ledger {self.action} FILE --ledger LOCATION`")
        elif self.file is not None:
            raise RequestError("file: only `sfumato ledger backup` and `restore` take one")
        if self.action == "limit":
            if self.dataset is None or self.budget is None:
                raise RequestError("dataset, budget: give both, as --dataset taxis --budget 10/365d,1/1d")
        elif self.budget is not None:
            raise RequestError("budget: only `sfumato ledger limit` takes it")
        if self.releases and self.action not in ("verify", "restore"):
            raise RequestError("releases: only `sfumato ledger verify` and `restore` take it")
        if self.action == "account":
            if self.user_id is None or self.dataset is None:
                raise RequestError("user_id, dataset: give both, as --user_id 4711 --dataset taxis")
            if any("\ud800" <= letter <= "\udfff" for letter in self.user_id):  # bytes of the command line
                raise RequestError("user_id: must be text in UTF-8")
        elif given := self.given(("user_id", "user_id_column", "key_file", "key_secret")):
            raise RequestError(f"{next(iter(given))}: only `sfumato ledger account` takes it")
        return self


class PageRequest(LogOptions):
    """Makes a release's page and pictures again from its files, and compares or writes them."""

    JOB: ClassVar[str] = "page"
    EXAMPLE: ClassVar[str] = "release"

    folder: str = common_option(..., "a release's folder, local or gs://", INPUT, metavar="FOLDER", style="positional")
    output: str | None = common_option(
        None,
        "a local folder for the page and pictures; without it they are compared with those that were published",
        OUTPUT,
        metavar="FOLDER",
    )


class ExportRequest(LogOptions):
    """Writes a published release as a file of another tool, with its guarantee in the file's metadata.

    It reads the release only and costs no privacy budget.
    """

    JOB: ClassVar[str] = "export"
    EXAMPLE: ClassVar[str] = "release --output map.tif --licence CC-BY-4.0"

    folder: str = common_option(
        ..., "a release's folder, or that of changes, local or gs://", INPUT, metavar="FOLDER",
        style="positional",
    )  # fmt: skip
    output: str = common_option(..., "the file, local or gs://", OUTPUT, metavar="FILE")
    format: str | None = common_option(
        None, "geotiff, geojson, csv, gpkg, pmtiles or h3; default: by the suffix of the output", OUTPUT
    )  # fmt: skip
    licence: str | None = common_option(
        None, "licence of the file, as an SPDX identifier such as CC-BY-4.0; without it the file says `not stated`",
        OUTPUT, metavar="TEXT",
    )  # fmt: skip
    table: str | None = common_option(
        None, "table of the release, where it has several; default: the one with the map", METHOD
    )
    resolution: int | None = common_option(None, "resolution of H3's cells, for the format h3", METHOD, ge=0, le=15)
    overwrite: bool = common_option(False, "replace a file that is there", OUTPUT)


class ChangesRequest(LogOptions):
    """Finds where two published heatmaps differ by more than noise and chance explain, with a stated false
    discovery rate. It reads releases only and costs no privacy budget.
    """

    JOB: ClassVar[str] = "changes"
    EXAMPLE: ClassVar[str] = "monday tuesday --output changes"

    before: str = common_option(
        ..., "a release of `sfumato heatmap`, local or gs://", INPUT, metavar="BEFORE", style="positional"
    )
    after: str = common_option(..., "another of the same region", INPUT, metavar="AFTER", style="positional")
    output: str | None = common_option(
        None, "folder for changes.parquet, manifest and page; default: print a summary only", OUTPUT,
        metavar="FOLDER",
    )  # fmt: skip
    overwrite: bool = common_option(False, "replace changes that are there", OUTPUT)
    rate: float = common_option(
        0.05, "false discovery rate: expected share of wrong ones among the changes found, at most", METHOD,
         gt=0.0, lt=1.0,
    )  # fmt: skip
    shares: bool = common_option(False, "compare shares of all users, for maps of different numbers of users", METHOD)


class InspectRequest(LogOptions):
    """Shows the operator what logs hold: columns, unusable rows, rows a user, a region, and the command to run next.

    The figures are exact. They are for the person who holds the logs only; nothing is published or charged.
    """

    JOB: ClassVar[str] = "inspect"
    EXAMPLE: ClassVar[str] = "--input 'logs/*.csv'"

    input: InputOption = common_option(..., INPUT_HELP, INPUT, metavar="PATTERN", style="several")
    input_format: Literal["parquet", "csv", "ndjson"] | None = option(
        None, "format of the files (default: by their names, and Parquet where these do not say)", INPUT
    )
    user_id_column: str | None = common_option(None, "column of the user ids (default: by its name)", COLUMNS)
    latitude_column: str | None = common_option(None, "column of the latitude (default: by its name)", COLUMNS)
    longitude_column: str | None = common_option(None, "column of the longitude (default: by its name)", COLUMNS)
    time_column: str | None = option(None, "column of times (default: by its name)", COLUMNS)
