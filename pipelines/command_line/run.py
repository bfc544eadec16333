"""The registry of jobs. Makes and runs requests for the command line, refreshes and Python calls."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sfumato.schemas.errors import RequestError, did_you_mean
from sfumato.schemas.requests.publish_request import ReleaseRequest, RunnerOptions
from sfumato.schemas.requests.request_base import Request
from sfumato.transforms.observability.logs import log_event

if TYPE_CHECKING:  # Beam is imported only for a valid request
    from sfumato.pipelines.frame.job import ReleaseJob
    from sfumato.pipelines.runners.runner_settings import RunnerSettings
    from sfumato.schemas.locations import Columns
    from sfumato.schemas.views import PageView


@dataclass(frozen=True)
class Command:
    """A command of `sfumato`, most often a job."""

    summary: str  # one line of help
    request: str  # the request class, as MODULE:NAME within the package, like the next three
    # The function that runs it. None: `run_release` publishes `release`. A `run` beside a `release` calls it itself.
    # Its arguments are the request, for a RunnerOptions request the RunnerSettings (or Beam's options, see
    # beam_arguments), and for a ReleaseRequest the result of `resolve`. It returns an exit status other than 0, if any.
    run: str | None = None
    release: str | None = None  # the ReleaseJob of a job that publishes a release; None for other jobs
    view: str | None = None  # makes the page of its release's files; None for a job that publishes no release
    beam_arguments: bool = False  # whether `run` makes its own runners, and takes Beam's options

    @property
    def publishes(self) -> bool:
        """Whether the job publishes a release, so that a refresh can run it."""
        return self.release is not None


JOBS = {
    "synth": Command(
        "make location logs of a synthetic city", "transforms.synth.request:SynthRequest", "pipelines.synth:run"
    ),
    "inspect": Command(
        "show the operator what the logs contain, what is wrong with them, and the command to run",
        "schemas.requests.commands:InspectRequest",
        "pipelines.operations.inspect_logs:run",
    ),
    "plan": Command(
        "show the cost and the noise of a heatmap; no data are read",
        "transforms.heatmap.request:PlanRequest",
        "pipelines.operations.starting:run_plan",
    ),
    "heatmap": Command(
        "publish a differentially private heatmap of location logs",
        "transforms.heatmap.request:HeatmapRequest",
        release="pipelines.heatmap:HeatmapJob",
        view="transforms.heatmap.view:heatmap_view",
    ),
    "zones": Command(
        "publish how many users are in each of a list of public zones, such as census tracts",
        "transforms.zones.request:ZonesRequest",
        release="pipelines.zones:ZonesJob",
        view="transforms.zones.view:zones_view",
    ),
    "zones --release": Command(
        "estimate the users of zones from a published heatmap, at no cost",
        "transforms.zones.request:ReleaseZonesRequest",
        "pipelines.operations.readers:run_zones",
    ),
    "histogram": Command(
        "publish how many users are in each category or visit each zone or cell, from a random sample or with noise",
        "transforms.histogram.request:HistogramRequest",
        release="pipelines.counts:HistogramJob",
        view="transforms.histogram.central_counts_view:counts_view",
    ),
    "hotspots": Command(
        "publish popular places, words or codes, level by level, from a random sample or with noise",
        "transforms.histogram.request:HotspotsRequest",
        release="pipelines.counts:HotspotsJob",
        view="transforms.histogram.central_counts_view:counts_view",
    ),
    "quantiles": Command(
        "publish the distribution of a number over users: quantiles and range counts",
        "transforms.quantiles.request:QuantilesRequest",
        release="pipelines.counts:QuantilesJob",
        view="transforms.quantiles.view:quantiles_view",
    ),
    "moments": Command(
        "publish means, variances and moments of a number, from one bit per user or by a trusted curator",
        "transforms.moments.request:MomentsRequest",
        release="pipelines.moments:MomentsJob",
        view="transforms.moments.view:moments_view",
    ),
    "flows": Command(
        "publish origin-destination flows: how many trips lead from one place to another",
        "transforms.flows.request:FlowsRequest",
        release="pipelines.flows:FlowsJob",
        view="transforms.flows.view:flows_view",
    ),
    "ranges build": Command(
        "publish a private model that estimates how many users are in any square",
        "transforms.ranges.request:RangesRequest",
        "pipelines.ranges_build:run",
        release="pipelines.ranges_build:RangesJob",
        view="transforms.ranges.view:ranges_view",
    ),
    "ranges answer": Command(
        "estimate the users in squares that a file lists, from a published model",
        "transforms.ranges.request:AnswerRequest",
        "pipelines.ranges_answer:run",
    ),
    "ranges tune": Command(
        "learn on public data which cell width is best",
        "transforms.ranges.request:TuneRequest",
        "pipelines.ranges_tune:run",
    ),
    "client report": Command(
        "make a device's report for two servers, neither of which can read it",
        "transforms.split.request:ReportRequest",
        "pipelines.split:run_report",
    ),
    "split aggregate": Command(
        "check the devices' reports as one of the two servers, and write this server's noisy share of the counts",
        "transforms.split.request:AggregateRequest",
        "pipelines.split:run_aggregate",
    ),
    "split collect": Command(
        "combine both servers' shares and publish the counts",
        "transforms.split.request:CollectRequest",
        "pipelines.split:run_collect",
    ),
    "split task": Command(
        "make the first task of an adaptive map, for two servers",
        "transforms.split.request:TaskRequest",
        "pipelines.split:run_task",
    ),
    "split key": Command(
        "show the public key of a key file, for the task file that two servers share",
        "transforms.split.request:PublicKeyRequest",
        "pipelines.split:run_key",
    ),
    "changes": Command(
        "find where two published maps or zones differ, with a stated false discovery rate",
        "schemas.requests.commands:ChangesRequest",
        "pipelines.operations.readers:run_changes",
    ),
    "refresh": Command(
        "publish one day's release as a configuration file describes, for example every night",
        "schemas.requests.commands:RefreshRequest",
        "pipelines.operations.refresh:run",
        beam_arguments=True,
    ),
    "refresh --init": Command(
        "write a starting configuration for refresh, for a given number of users",
        "schemas.requests.commands:RefreshInitRequest",
        "pipelines.operations.starting:run_refresh_init",
    ),
    "export": Command(
        "write a published release as a file for a GIS, a notebook or a web map",
        "schemas.requests.commands:ExportRequest",
        "pipelines.operations.readers:run_export",
    ),
    "audit": Command(
        "check a published release without its data: files, ledger, epsilon and delta, answers",
        "transforms.audit.request:AuditRequest",
        "pipelines.operations.audit:run",
    ),
    "audit --job": Command(
        "run a job on logs and on their neighbours, and check everything that leaves it",
        "transforms.audit.request:JobAuditRequest",
        "pipelines.operations.audit_job:run",
        beam_arguments=True,
    ),
    "audit --self_test": Command(
        "plant bugs in copies of sfumato, and check that an audit finds each",
        "transforms.audit.request:SelfTestRequest",
        "pipelines.operations.audit_self_test:run",
    ),
    "statement": Command(
        "write what a release guarantees, for the Differential Privacy Deployments Registry, a web page or a reader",
        "transforms.statement.request:StatementRequest",
        "pipelines.operations.statement:run",
    ),
    "releases": Command(
        "remove the files of old releases, or take a release down; charges stay in the ledger",
        "schemas.requests.commands:ReleasesRequest",
        "pipelines.operations.releases:run",
    ),
    "key": Command(
        "make a key: the secret from which a release's noise is drawn",
        "schemas.requests.commands:KeyRequest",
        "pipelines.operations.starting:run_key",
    ),
    "ledger": Command(
        "show and verify the charges of releases, set limits, copy and restore the ledger",
        "schemas.requests.commands:LedgerRequest",
        "pipelines.operations.ledger:run",
    ),
}


def request_class(job: str) -> type[Request]:
    """Returns the class of a job's requests. Raises RequestError, with the nearest name, if there is no such job."""
    if job not in JOBS:
        hint = did_you_mean(job, JOBS) or "; sfumato --help lists all jobs"
        raise RequestError(f"no job named {job!r}{hint}")
    found: type[Request] = _load(JOBS[job].request)
    return found


def request_of(job: str, values: Mapping[str, Any]) -> Request:
    """Returns a job's request from values by option name: text, or Python values.

    Raises RequestError if there is no such job or option, or a value is out of its range.
    """
    return request_class(job).of(values)


def columns_of(request: Request) -> Columns:
    """Returns the columns that a request for a release reads. Raises RequestError."""
    columns: Columns = _load(JOBS[request.COMMAND].release).of(request).columns()
    return columns


def release_job(job: str, values: Mapping[str, Any]) -> ReleaseJob:
    """Returns a job that publishes a release, by its name and its options. Raises RequestError."""
    found: ReleaseJob = _load(JOBS[job].release).of(request_of(job, values))
    return found


def view_of(job: str) -> Callable[[Mapping[str, bytes]], PageView] | None:
    """Returns what makes the page of a release's files, by the job that its manifest names; None without a page."""
    views = {name.split()[0]: one.view for name, one in JOBS.items() if one.view is not None}
    return _load(views[job]) if job in views else None


def run_job(request: Request, runner: RunnerSettings | None = None, beam_arguments: Sequence[str] = ()) -> int:
    """Runs a request and returns its exit status. beam_arguments: Beam's options, if `runner` is None."""
    job = JOBS[request.COMMAND]
    resolved = (request.resolve(),) if isinstance(request, ReleaseRequest) else ()
    if not isinstance(request, RunnerOptions):
        return int(_load(job.run)(request) or 0)
    if "apache_beam" not in sys.modules:  # importing it takes a second, or several on a busy machine
        log_event("start", "starting")
    if job.beam_arguments:
        return int(_load(job.run)(request, tuple(beam_arguments)) or 0)
    if runner is None:
        runner = _load("pipelines.runners.runner_settings:settings_of")(request, beam_arguments)
    if job.run is not None:
        return int(_load(job.run)(request, runner, *resolved) or 0)
    _load("pipelines.frame.release_run:run_release")(_load(job.release).of(request, *resolved), runner)
    return 0


def inspect_command(request: Request) -> str | None:
    """Returns the command that shows why a job's rows are unusable; None for a request that reads no logs."""
    command: str | None = _load("pipelines.operations.inspect_logs:inspect_command")(request)
    return command


def _load(path: str | None) -> Any:
    """Returns the object at MODULE:NAME."""
    assert path is not None
    module, _, name = path.partition(":")
    return getattr(importlib.import_module(f"sfumato.{module}"), name)
