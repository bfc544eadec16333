"""The options of the commands that devices, the two aggregators and the collector run."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal, Self

from pydantic import BeforeValidator, model_validator

from sfumato.schemas.errors import RequestError
from sfumato.schemas.requests.publish_request import BudgetOption, DatasetOption, LogOptions, RunnerOptions
from sfumato.schemas.requests.request_base import INPUT, KEY, LEDGER, OUTPUT, Pair, option

_TASK = "public JSON file of the task, see docs/tutorials/two_servers.md"
_Files = Annotated[tuple[str, ...], BeforeValidator(lambda value: (value,) if isinstance(value, str) else value)]
_KEY_FILE = "your secret, made by `sfumato key new FILE`"


class PublicKeyRequest(LogOptions):
    """Shows the public key of a key file, as a task file states it. The file stays secret."""

    JOB: ClassVar[str] = "split key"
    EXAMPLE: ClassVar[str] = "leader.key"

    file: str = option(..., _KEY_FILE, INPUT, metavar="FILE", style="positional")


class TaskRequest(LogOptions):
    """Makes the first task of an adaptive map from a plan: a task file whose depth and epsilon are those of the map.

    `split collect` makes the tasks of the later rounds.
    """

    JOB: ClassVar[str] = "split task"
    EXAMPLE: ClassVar[str] = "--plan plan.json --users 10000 --output round1.json"

    plan: str = option(..., "task file without tree and map", INPUT, metavar="FILE")
    users: int = option(..., "public number of users to plan for", INPUT, metavar="N")
    output: str = option(..., "new file of the task", OUTPUT, metavar="FILE")


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
    answered: str | None = option(
        None,
        "file that the device keeps, so that it answers each task once and the rounds of a map in order; required for "
        "the rounds of a map",
        INPUT,
        metavar="FILE",
    )
    output: str = option(..., "new file of the report", OUTPUT, metavar="FILE")


class AggregateRequest(RunnerOptions):
    """Checks a task's reports as one of the two aggregators, and writes its share of the counts, with noise.

    The leader runs it twice: first it reads the reports and writes requests to the exchange folder; once the helper has
    run and answered there, it writes its share. If a run is killed, run it again: it writes the same bytes, and is
    charged once.
    """

    JOB: ClassVar[str] = "split aggregate"
    EXAMPLE: ClassVar[str] = (
        "--role leader --task task.json --input 'reports/*' --exchange exchange --output leader --key_file leader.key "
        "--verify_key verify.key --ledger leader.db --dataset city --budget 10/365d"
    )

    role: Literal["leader", "helper"] = option(..., "which of the two aggregators you are", INPUT)
    task: str = option(..., _TASK, INPUT, metavar="FILE")
    input: _Files = option(
        (), "files of reports, for the leader", INPUT, metavar="PATTERN", style="several", common=True
    )
    exchange: str = option(..., "folder that both aggregators read and write", INPUT, metavar="FOLDER")
    output: str = option(..., "folder for the share of the counts, for the collector", OUTPUT, metavar="FOLDER")
    key_file: str = option(..., _KEY_FILE, KEY, metavar="FILE")
    verify_key: str = option(
        ..., "a secret that both aggregators share, made by `sfumato key new FILE`", KEY, metavar="FILE"
    )
    ledger: str = option(..., "your privacy ledger: an SQLite file, or gs://bucket/folder", LEDGER, metavar="LOCATION")
    dataset: DatasetOption = option(..., "name under which the ledger records the reports", LEDGER)
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
    """Adds the shares of both aggregators up to noisy counts, and publishes them as a release with a page.

    Of an adaptive map give all rounds so far, in order. It writes the task of the next round to `--next`, or the
    release after the last.
    """

    JOB: ClassVar[str] = "split collect"
    EXAMPLE: ClassVar[str] = (
        "--task task.json --leader leader/leader.share.json --helper helper/helper.share.json "
        "--key_file collector.key --output release"
    )

    task: _Files = option(..., f"{_TASK}; of a map, all rounds so far", INPUT, metavar="FILE", style="several")
    leader: _Files = option(..., "the leader's share of each task", INPUT, metavar="FILE", style="several")
    helper: _Files = option(..., "the helper's share of each task", INPUT, metavar="FILE", style="several")
    key_file: str = option(..., _KEY_FILE, KEY, metavar="FILE")
    output: str = option(..., "folder for the release", OUTPUT, metavar="FOLDER")
    ledger: str | None = option(
        None, "your privacy ledger: an SQLite file, or gs://bucket/folder", LEDGER, metavar="LOCATION"
    )
    dataset: DatasetOption | None = option(None, "name of the reports in the ledger, with --ledger", LEDGER)
    budget: BudgetOption | None = option(
        None, "the dataset's limits, such as 10/365d; the first charge sets them", LEDGER, metavar="E/Nd,..."
    )
    next: str | None = option(None, "file for the task of a map's next round", OUTPUT, metavar="FILE")
    overwrite: bool = option(False, "replace an existing release", OUTPUT)

    @model_validator(mode="after")
    def _shares_of_each_task(self) -> Self:
        if not len(self.task) == len(self.leader) == len(self.helper) > 0:
            raise RequestError("leader, helper: give one share of each for every task, in the order of the tasks")
        if (self.ledger is None) != (self.dataset is None):
            raise RequestError("ledger, dataset: the one requires the other")
        return self
