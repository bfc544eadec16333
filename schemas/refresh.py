"""The configuration of a scheduled refresh: a YAML file with the settings of all nightly runs."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Self

from pydantic import (
    AfterValidator,
    PlainValidator,
    StrictBool,
    StrictInt,
    StrictStr,
    ValidationError,
    ValidationInfo,
    model_validator,
)

from sfumato.schemas.errors import RequestError, did_you_mean
from sfumato.schemas.guarantee import ADD_OR_REMOVE
from sfumato.schemas.ledger import Limit, dataset_name, ordered, parse_amount
from sfumato.schemas.requests.request_base import INPUT, KEY, LEDGER, METHOD, PRIVACY, RUN, Request, option
from sfumato.schemas.rotation import MAX_COHORTS
from sfumato.schemas.slots import UTC, check_time_zone

MAX_LATE_DAYS = 60


def _limits(value: Any) -> tuple[Limit, ...]:
    if not isinstance(value, list) or not value or not all(isinstance(one, dict) for one in value):
        raise RequestError(f"budget: must be a list of limits, such as `- {{epsilon: 10, days: 365}}`, got {value!r}")
    return ordered(list(map(_limit, value)))


def _limit(value: dict[str, Any]) -> Limit:
    check_known(value, ("epsilon", "delta", "days", "adjacency"), "budget")
    if not {"epsilon", "days"} <= set(value):
        raise RequestError(f"budget: a limit requires epsilon and days, got {value!r}")
    if isinstance(value["days"], bool) or not isinstance(value["days"], int):
        raise RequestError(f"budget: days must be a whole number, got {value['days']!r}")
    return Limit.from_numbers(**{"delta": 0, "adjacency": ADD_OR_REMOVE, **value})


def resolved_place(name: str, place: str, folder: str) -> str:
    """Returns the path of a place in the configuration, which is relative to the configuration's folder.

    name: of the setting, for messages. Raises RequestError: the place is neither local nor gs://.
    """
    if "://" in place and not place.startswith("gs://"):
        raise RequestError(f"{name}: must be a local path or gs://BUCKET/..., got {place!r}")
    if "://" in place or os.path.isabs(place):
        return place
    place = re.sub(r"^(\./)+", "", place)
    return f"{folder.rstrip('/')}/{place}" if "://" in folder else os.path.normpath(os.path.join(folder, place))


def _resolved(place: str, info: ValidationInfo) -> str:
    return resolved_place(str(info.field_name), place, (info.context or {})["folder"])


def _plain_folder(place: str, info: ValidationInfo) -> str:
    if re.search(r"[*?\[]", place):
        raise RequestError(f"{info.field_name}: must be a folder without * ? or [ in its name, got {place!r}")
    return place


def _resolved_file(name: str, info: ValidationInfo) -> str:
    return _resolved(name, info) if name.endswith((".yaml", ".yml")) else name


@dataclass(frozen=True)
class Late:
    """The handling of files that arrive after a day was charged: the day is published again from all its files."""

    days: int  # days after its day in which a release is corrected
    epsilon: float  # of a correction, charged in addition to the release


def _late(value: Any) -> Late | None:
    if value == "ignore" or isinstance(value, Late):
        return None if value == "ignore" else value
    if not isinstance(value, dict) or set(value) != {"days", "epsilon"}:
        raise RequestError(f"late: must be ignore, or such as {{days: 3, epsilon: 0.2}}, got {value!r}")
    days = value["days"]
    if isinstance(days, bool) or not isinstance(days, int) or not 1 <= days <= MAX_LATE_DAYS:
        raise RequestError(f"late: days must be a whole number between 1 and {MAX_LATE_DAYS}, got {days!r}")
    return Late(days, float(parse_amount("late: epsilon", value["epsilon"])))


@dataclass(frozen=True)
class RowsOfDay:
    """Selection of a day's rows by their time."""

    time_column: str  # of timestamps, or of seconds since 1970
    time_zone: str | None  # of the days, which may have 23, 24 or 25 hours there; None for the logs' own local times
    folders: tuple[int, ...] = (0,)  # read for a day, relative to it: -1 is the folder of the day before


def _rows_of_day(value: Any) -> RowsOfDay | None:
    if value is None or isinstance(value, RowsOfDay):
        return value
    if not isinstance(value, dict) or "time_column" not in value:
        raise RequestError(
            f"rows_of_day: must be such as {{time_column: time, time_zone: Europe/Berlin}}, got {value!r}"
        )
    check_known(value, ("time_column", "time_zone", "folders"), "rows_of_day")
    column, zone, folders = value["time_column"], value.get("time_zone"), value.get("folders", [0])
    texts = [column] if zone is None else [column, zone]
    if not all(isinstance(text, str) and text for text in texts):
        raise RequestError(f"rows_of_day: time_column and time_zone must be names, got {value!r}")
    if folders not in _FOLDERS:
        raise RequestError(f"rows_of_day: folders must be one of {', '.join(map(str, _FOLDERS))}, got {folders!r}")
    zone = None if zone is None else check_time_zone("rows_of_day: time_zone", zone)
    return RowsOfDay(column, zone, tuple(folders))


_FOLDERS = ([0], [-1, 0], [0, 1], [-1, 0, 1])


Place = Annotated[StrictStr, AfterValidator(_resolved)]
Folder = Annotated[Place, AfterValidator(_plain_folder)]


class RefreshConfig(Request):
    """Settings of all runs of a refresh. Relative paths are relative to the configuration file."""

    JOB: ClassVar[str] = "refresh"

    dataset: Annotated[StrictStr, AfterValidator(lambda name: dataset_name(name) and name)] = option(
        ..., "name of the logs in the ledger and in release ids", LEDGER
    )
    input: Folder = option(..., "folder that contains a folder `dt=YYYY-MM-DD` of log files for each day", INPUT)
    output: Folder = option(..., "folder of the releases, `latest.json` and the page", INPUT)
    ledger: Place = option(..., "privacy ledger: an SQLite file, or gs://bucket/folder", LEDGER)
    budget: Annotated[tuple[Limit, ...], PlainValidator(_limits)] = option(..., "the dataset's limits", LEDGER)
    options: dict[str, Any] = option(..., "options of the job by name", METHOD)
    key_file: Place | None = option(None, "a key made by `sfumato key new FILE`", KEY)
    key_secret: StrictStr | None = option(None, "a key in Secret Manager: projects/P/secrets/S/versions/N", KEY)
    job: StrictStr = option("heatmap", "the job to run", METHOD)
    warm_start: StrictBool = option(
        True,
        "whether a heatmap starts from the previous release, and is estimated from the answers of its nights too",
        METHOD,
    )
    rotation: StrictInt = option(
        1,
        "number of cohorts of users; each night queries one cohort; 1 queries all users (heatmap)",
        PRIVACY,
        ge=1,
        le=MAX_COHORTS,
    )
    late: Annotated[Late | None, PlainValidator(_late)] = option(
        None, "files that arrive after the charge: ignore, or {days: N, epsilon: E} for corrections", PRIVACY
    )
    rows_of_day: Annotated[RowsOfDay | None, PlainValidator(_rows_of_day)] = option(
        None, "select a day's rows by their time: {time_column: T, time_zone: Z, folders: [-1, 0]}", INPUT
    )
    min_users: StrictInt = option(0, "smallest number of users, by a noisy count", PRIVACY, ge=0)
    runner_config: Annotated[StrictStr, AfterValidator(_resolved_file)] | None = option(
        None, "YAML file of Beam options, or the name of an included one", RUN
    )
    beam: dict[str, Any] = option({}, "Beam options by name", RUN)

    @model_validator(mode="after")
    def _one_key(self) -> Self:
        if (self.key_file is None) == (self.key_secret is None):
            raise RequestError("key_file, key_secret: one of them is required, so that a run can be resumed")
        return self

    @property
    def time_zone(self) -> str:
        """Returns the time zone of the days."""
        return (self.rows_of_day and self.rows_of_day.time_zone) or UTC

    @property
    def folders(self) -> tuple[int, ...]:
        """Returns the folders with a day's files, relative to the day, in order."""
        return (0,) if self.rows_of_day is None else self.rows_of_day.folders

    @classmethod
    def read(cls, settings: Any, folder: str) -> RefreshConfig:
        """Returns the configuration of a YAML file in a folder, local or gs://.

        Raises RequestError if a key is unknown, missing or out of its range.
        """
        if not isinstance(settings, dict):
            raise RequestError("config: must map names to values, such as `dataset: taxis`")
        check_known(settings, cls.model_fields, "config")
        try:
            return cls.model_validate(settings, context={"folder": folder})
        except ValidationError as error:
            raise RequestError(f"config: {cls._explained(error)}") from None

    @classmethod
    def _missing(cls, names: list[str]) -> str:
        return f"{', '.join(names)}: required"


def check_known(found: Iterable[Any], known: Iterable[str], where: str) -> None:
    """Raises RequestError for an unknown key, with the nearest known key. where: begins the message."""
    names = list(known)
    for key in found:
        if key not in names:
            hint = did_you_mean(str(key), names, 0.5) or f"; there are: {', '.join(sorted(names))}"
            raise RequestError(f"{where}: unknown key {key!r}{hint}")
