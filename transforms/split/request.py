"""The options of the commands that devices, the two aggregators and the collector run."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal, Self

from pydantic import BeforeValidator, model_validator

from sfumato.schemas.errors import RequestError
from sfumato.schemas.requests.publish_request import BudgetOption, DatasetOption, LogOptions, RunnerOptions
from sfumato.schemas.requests.request_base import INPUT, KEY, LEDGER, OUTPUT, Pair, option

_TASK = "public JSON file of the task, see docs/tutorials/two_servers.md"
_KEY_FILE = "your secret, made by `sfumato key new FILE`"


class PublicKeyRequest(LogOptions):
    """Shows the public key of a key file, as a task file states it. The file stays secret."""

    JOB: ClassVar[str] = "split key"
    EXAMPLE: ClassVar[str] = "leader.key"

    file: str = option(..., _KEY_FILE, INPUT, metavar="FILE", style="positional")


class ReportRequest(LogOptions):
    """Makes a device's report for a task: a location, or weights of several, as shares that only the two aggregators
    together could read. All reports of a task have the same size.
    """

    JOB: ClassVar[str] = "client report"
    EXAMPLE: ClassVar[str] = "--task task.json --location 3.05,1.07 --output reports/1.bin"

    task: str = option(..., _TASK, INPUT, metavar="FILE")
    location: Pair | None = option(None, "longitude and latitude in degrees", INPUT, metavar="LON,LAT", common=True)
    weights: str | None = option(
        None,
        "JSON file: a list of [longitude, latitude, weight] with whole weights, for a task with a max_value",
        INPUT,
        metavar="FILE",
    )
    output: str = option(..., "new file of the report", OUTPUT, metavar="FILE")

    @model_validator(mode="after")
    def _one_measurement(self) -> Self:
        if (self.location is None) == (self.weights is None):
            raise RequestError("location, weights: one is required; give --location LON,LAT")
        return self


class AggregateRequest(RunnerOptions):
    """Checks the reports of a task as one of the two aggregators, and writes its share of the counts with its noise.

    The leader runs it twice: first it reads the reports and writes requests to the exchange folder; once the helper has
    run and answered there, it writes its share. A run that was killed is repeated with the same bytes and one charge.
    """

    JOB: ClassVar[str] = "split aggregate"
    EXAMPLE: ClassVar[str] = (
        "--role leader --task task.json --input 'reports/*' --exchange exchange --output leader --key_file leader.key "
        "--verify_key verify.key --ledger leader.db --dataset city --budget 10/365d"
    )

    role: Literal["leader", "helper"] = option(..., "which of the two aggregators you are", INPUT)
    task: str = option(..., _TASK, INPUT, metavar="FILE")
    input: Annotated[tuple[str, ...], BeforeValidator(lambda value: (value,) if isinstance(value, str) else value)] = (
        option((), "files of reports, for the leader", INPUT, metavar="PATTERN", style="several", common=True)
    )
    exchange: str = option(..., "folder that both aggregators read and write", INPUT, metavar="FOLDER")
    output: str = option(..., "folder for the share of the counts, for the collector", OUTPUT, metavar="FOLDER")
    key_file: str = option(..., _KEY_FILE, KEY, metavar="FILE")
    verify_key: str = option(..., "a secret of both aggregators, made by `sfumato key new FILE`", KEY, metavar="FILE")
    ledger: str = option(..., "your privacy ledger: an SQLite file, or gs://bucket/folder", LEDGER, metavar="LOCATION")
    dataset: DatasetOption = option(..., "name of the reports in the ledger", LEDGER)
    budget: BudgetOption | None = option(
        None, "the dataset's limits, such as 10/365d; the first charge sets them", LEDGER, metavar="E/Nd,..."
    )

    @model_validator(mode="after")
    def _input_of_the_leader(self) -> Self:
        if (self.role == "leader") != bool(self.input):
            raise RequestError(
                "input: required with --role leader, which receives the reports"
                if self.role == "leader"
                else "input: applies only with --role leader; the helper reads the exchange folder"
            )
        return self


class CollectRequest(LogOptions):
    """Adds the shares of both aggregators up to noisy counts, and publishes them as a release with a page."""

    JOB: ClassVar[str] = "split collect"
    EXAMPLE: ClassVar[str] = (
        "--task task.json --leader leader/leader.share.json --helper helper/helper.share.json "
        "--key_file collector.key --output release"
    )

    task: str = option(..., _TASK, INPUT, metavar="FILE")
    leader: str = option(..., "the leader's share", INPUT, metavar="FILE")
    helper: str = option(..., "the helper's share", INPUT, metavar="FILE")
    key_file: str = option(..., _KEY_FILE, KEY, metavar="FILE")
    output: str = option(..., "folder for the release", OUTPUT, metavar="FOLDER")
    overwrite: bool = option(False, "replace an existing release", OUTPUT)
