"""Requests of the commands around releases: key, ledger, refresh, releases, doctor."""

from __future__ import annotations

import datetime
import re
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import PlainValidator, model_validator

from sfumato.schemas.errors import RequestError
from sfumato.schemas.ledger import Period, parse_day
from sfumato.schemas.requests.publish_request import BudgetOption, DatasetOption, KeyOptions, LogOptions, RunnerOptions
from sfumato.schemas.requests.request_base import INPUT, LEDGER, OUTPUT, PRIVACY, RUN, option

MAX_REASON = 300


class KeyRequest(LogOptions):
    """A new key."""

    JOB: ClassVar[str] = "key"
    COMMAND: ClassVar[str] = "key"
    ABOUT: ClassVar[str] = "Makes a key: the secret behind the noise of a release."
    EXAMPLE: ClassVar[str] = "new release.key"

    action: Literal["new"] = option(..., "new: make a key", INPUT, common=True, metavar="new", style="positional")
    file: str = option(
        ..., "a new local file; what exists is not overwritten", INPUT, common=True, metavar="FILE", style="positional"
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
    """The removal of old releases' files, or of one release, its manifest too, for a stated reason."""

    JOB: ClassVar[str] = "releases"
    COMMAND: ClassVar[str] = "releases"
    ABOUT: ClassVar[str] = (
        "prune removes the files of old releases but their manifests, so that the ledger still proves what was "
        "published. remove takes one release down: it removes its files, its map and its catalogue entry, and leaves a "
        "notice. What it cost stays charged. It names the later releases that rest on it."
    )
    EXAMPLE: ClassVar[str] = "prune --timeline published --ledger ledger.db --keep 90d"
    REMOVE_EXAMPLE: ClassVar[str] = (
        "remove city-2026-11-20 --timeline published --ledger ledger.db --reason 'a wrong file was published'"
    )

    action: Literal["prune", "remove"] = option(
        ...,
        "prune: remove the files of old releases; remove: take RELEASE down",
        INPUT,
        common=True,
        metavar="ACTION",
        style="positional",
    )
    release: str | None = option(
        None,
        "its release id; without --timeline its folder, local or gs:// (remove)",
        INPUT,
        common=True,
        metavar="RELEASE",
        style="positional",
    )
    timeline: str | None = option(
        None,
        "the folder whose releases/ are pruned, or hold the one to remove: `output` of a refresh",
        INPUT,
        common=True,
        metavar="FOLDER",
    )
    ledger: str = option(
        ..., "the ledger that they were charged to: an SQLite file, or gs://bucket/folder", INPUT, common=True,
        metavar="LOCATION",
    )  # fmt: skip
    keep: Annotated[datetime.timedelta, PlainValidator(_days)] | None = option(
        None,
        "keep releases of data that are at most N days old, and whatever their age the newest one of each job, region "
        "and depth, and those that a charged run starts from (prune)",
        INPUT,
        common=True,
        metavar="Nd",
    )
    reason: Annotated[str, PlainValidator(removal_reason)] | None = option(
        None, "why, in one line: it stands in the notice and in the ledger (remove)", INPUT, common=True, metavar="TEXT"
    )
    dry_run: bool = option(False, "show what would be removed, and remove nothing", INPUT, common=True)

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
    """The release of a day, or of every day of a period."""

    JOB: ClassVar[str] = "refresh"
    COMMAND: ClassVar[str] = "refresh"
    ABOUT: ClassVar[str] = (
        "Publishes the release of a day, once, and keeps the ledger and the page of all releases. Run again it "
        "returns the published release and spends nothing. Exit status: 0 published, now or before; 1 the data cannot "
        "support a release; 2 the configuration is wrong; 3 the budget does not allow it; 4 the ledger or an earlier "
        "release is damaged; 75 not now: no data yet, too few, or a service or ledger out of reach, so try again "
        "later; 70 a crash: run it again."
    )
    EXAMPLE: ClassVar[str] = "--config refresh.yaml --date 2026-11-20"

    config: str = option(..., "the refresh's YAML file, local or gs://", INPUT, common=True, metavar="FILE")
    date: Annotated[datetime.date, PlainValidator(_day)] | None = option(
        None,
        "day to publish, as 2026-11-20; default: yesterday, in UTC or the time zone of `rows_of_day`",
        INPUT,
        common=True,
        metavar="DATE",
    )
    backfill: Annotated[Period, PlainValidator(_backfill)] | None = option(
        None,
        "publish every day of these that has data, in order; exit status 75 if one has none",
        INPUT,
        common=True,
        metavar="FROM:TO",
    )
    attempt: int = option(1, "2 or more: publish the day anew, and charge it again", INPUT, common=True, ge=1)
    dry_run: bool = option(False, "show what would be read, charged and published, and do nothing", RUN, common=True)

    @model_validator(mode="after")
    def _one_of(self) -> Self:
        if self.date is not None and self.backfill is not None:
            raise RequestError("backfill: not allowed with --date; give one of them")
        return self


class DoctorRequest(RunnerOptions, KeyOptions):
    """Checks of a machine and of what a run would use."""

    JOB: ClassVar[str] = "doctor"
    COMMAND: ClassVar[str] = "doctor"
    ABOUT: ClassVar[str] = (
        "Makes the checks of a run in advance: runner, temporary folder, ports, key, ledger and clock. "
        "Exit status: 0 all in order, or warnings; 1 a check failed."
    )
    EXAMPLE: ClassVar[str] = "--config refresh.yaml"

    config: str | None = option(None, "a refresh's YAML file, which names the rest", INPUT, common=True, metavar="FILE")
    ledger: str | None = option(None, "an SQLite file, or gs://bucket/folder", LEDGER, common=True, metavar="LOCATION")
    format: Literal["text", "json"] = option("text", "format of what is printed", OUTPUT, common=True)

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if self.config is not None and (given := self.given(("key_file", "key_secret", "ledger"))):
            raise RequestError(f"{next(iter(given))}: the configuration names it; leave it or --config out")
        return self


class LedgerRequest(LogOptions, KeyOptions):
    """What a ledger holds, or a change of it."""

    JOB: ClassVar[str] = "ledger"
    COMMAND: ClassVar[str] = "ledger"
    ABOUT: ClassVar[str] = (
        "Shows what every release was charged with and what is left, verifies the ledger, sets its limits, copies or "
        "restores it."
    )
    EXAMPLE: ClassVar[str] = "show --ledger ledger.db"

    action: Literal["show", "account", "verify", "limit", "backup", "restore"] = option(
        ...,
        "show: charges, and what is left; account: the charges of one user, whom a rotation asks by the releases' key; "
        "verify: the chain of entries, the limits and the releases; limit: set a dataset's limits from here on; "
        "backup: copy all entries to FILE; restore: append the entries of FILE that the ledger lacks, and charge what "
        "the releases state and both lack",
        INPUT,
        common=True,
        metavar="ACTION",
        style="positional",
    )
    file: str | None = option(
        None, "the copy, local or gs:// (backup, restore)", INPUT, common=True, metavar="FILE", style="positional"
    )
    ledger: str = option(..., "an SQLite file, or gs://bucket/folder", INPUT, common=True, metavar="LOCATION")
    dataset: DatasetOption | None = option(
        None, "only this dataset (show, account, verify); the dataset whose limits to set (limit)", INPUT, common=True
    )
    format: Literal["text", "json"] = option("text", "format of what `show` and `account` print", OUTPUT, common=True)
    user_id: str | None = option(None, "the user's id, as the logs have it (account)", INPUT, common=True, metavar="ID")
    user_id_column: str = option("user_id", "column of the logs that holds the id (account)", INPUT, metavar="NAME")
    releases: tuple[str, ...] = option(
        (),
        "a release, or what `sfumato refresh` wrote: compare with the ledger (verify), or charge again from their "
        "manifests what the ledger lost (restore); may be repeated",
        INPUT,
        common=True,
        metavar="FOLDER",
        style="repeated",
    )
    budget: BudgetOption | None = option(
        None, "the limits, as 10/365d,1/1d (limit)", PRIVACY, common=True, metavar="E/Nd,..."
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
