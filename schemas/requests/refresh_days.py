"""The request of `sfumato refresh`: which days are published."""

from __future__ import annotations

import datetime
from typing import Annotated, Any, ClassVar, Self

from pydantic import PlainValidator, model_validator

from sfumato.schemas.errors import RequestError
from sfumato.schemas.ledger import Period, parse_day
from sfumato.schemas.requests.publish_request import RunnerOptions
from sfumato.schemas.requests.request_base import INPUT, RUN, option


def _day(value: Any) -> datetime.date:
    return value if isinstance(value, datetime.date) else parse_day("date", str(value))


def _days(value: Any) -> Period:
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
    backfill: Annotated[Period, PlainValidator(_days)] | None = option(
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
