"""The common part of all jobs that publish a release: input and output, checks, key, ledger, run."""

from __future__ import annotations

import json
import logging
import math
import os
import sys
import uuid
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from decimal import ROUND_CEILING, Context, Decimal
from functools import cached_property
from typing import Any, ClassVar, Self, get_args

import apache_beam as beam
from apache_beam.io.filesystems import FileSystems
from apache_beam.options.pipeline_options import GoogleCloudOptions, TestOptions
from apache_beam.runners.runner import PipelineState

from sfumato.pipelines.accounting import Accounting, accounting, rho_amount
from sfumato.pipelines.console import identify, log_metrics, show_progress
from sfumato.pipelines.dry_run import Forecast, dry_run_text
from sfumato.pipelines.failures import error_of, message_of
from sfumato.pipelines.geography import geography_of
from sfumato.pipelines.inputs import (
    ICEBERG,
    InputFile,
    content_digests,
    filters_of,
    inspect,
    layout_of,
    match_files,
    with_rows,
)
from sfumato.pipelines.runner_settings import RunnerSettings
from sfumato.pipelines.scratch import BYTES_PER_ROW, PLAIN_BYTES, RunBytes, memory_lines, plan_memory, scratch
from sfumato.schemas import guarantee
from sfumato.schemas.errors import DataError, NotAdmittedError, RefusedError, RequestError
from sfumato.schemas.ledger import (
    ADD_OR_REMOVE,
    ZERO_OUT,
    Charge,
    Cost,
    Disclosure,
    Reservation,
    format_amount,
    parse_amount,
)
from sfumato.schemas.locations import Columns
from sfumato.schemas.region import ground_metres
from sfumato.schemas.release import MANIFEST_FORMAT, PAGE_FILE
from sfumato.schemas.requests.publish_request import PublishRequest, ReleaseRequest
from sfumato.schemas.trust import SEES, Trust
from sfumato.transforms.files import is_remote
from sfumato.transforms.inputs.bigquery_table import BIGQUERY
from sfumato.transforms.inputs.log_file import LogFile
from sfumato.transforms.inputs.log_reader import bundled
from sfumato.transforms.locations.spill import Spill
from sfumato.transforms.logs import LATE_ROWS, log_event
from sfumato.transforms.privacy.admission import AdmissionRule, Admit, ChargeGate
from sfumato.transforms.privacy.keys import RunKey, Secret
from sfumato.transforms.privacy.ledger.input_files import file_digest, select_files
from sfumato.transforms.privacy.ledger.ledger import check_disclosure
from sfumato.transforms.privacy.mechanism import epsilon_for_delta, gaussian_delta
from sfumato.transforms.privacy.secrets import FileSecret, SecretManagerSecret, entropy_secret, seed_secret
from sfumato.transforms.release.metadata import ReleaseMetadata, code_digest, package_versions
from sfumato.transforms.release.notices import refusal_files
from sfumato.transforms.release.publishing import CommitRelease, WriteRelease, is_published, with_charge
from sfumato.transforms.release.release_folder import check_output, is_refusal, manifest_at, publish


@dataclass(frozen=True)
class ReleaseJob(ABC):
    """A request with its graph, columns, cost and parameters. Jobs add their own fields.

    Attributes:
        FORMAT: of the manifest that the job writes.
        STATED_AS: options of the request that the manifest states as a part of another parameter.
        HELD_SHARE: of the stored bytes, the share that is in memory at one time.
        RELEASE_MEMORY: expected bytes of the process while it makes the release.
    """

    FORMAT: ClassVar[str] = MANIFEST_FORMAT
    STATED_AS: ClassVar[Mapping[str, str]] = {}
    HELD_SHARE: ClassVar[float] = 1.0
    RELEASE_MEMORY: ClassVar[int] = PLAIN_BYTES

    request: PublishRequest

    @classmethod
    def of(cls, request: Any, *resolved: Any) -> Self:
        """The job of a request. Raises RequestError.

        resolved: what `request.resolve` returned; it is called where that is left out.
        """
        found = resolved or (request.resolve(),)
        return cls(request, *(one for one in found if one is not None))

    @abstractmethod
    def columns(self) -> Columns:
        """The columns that the job reads. They check their own types."""

    @abstractmethod
    def resolved(self) -> dict[str, Any]:
        """What the job makes of its options, in JSON's types: values that it chooses, columns, groups, plans."""

    def parameters(self) -> dict[str, Any]:
        """Everything that the result depends on, in JSON's types: the manifest states it, the key is bound to it.

        An option of the request is stated as it is, unless `resolved` states it. So no option is forgotten: two
        requests for different numbers under one key would share their noise, and the difference would have none.
        """
        resolved = self.resolved()
        given = {name: value for name, value in self.request.shaping().items() if name not in self.STATED_AS}
        return {"min_users": self.min_users, **given, **resolved}

    @abstractmethod
    def cost(self) -> Cost:
        """The cost of the complete release, which the ledger charges."""

    @abstractmethod
    def admission(self) -> AdmissionRule:
        """The rule by which noisy counts of users admit or refuse the run."""

    @abstractmethod
    def build(self, root: beam.Pipeline, inputs: Inputs, key: RunKey, metadata: ReleaseMetadata) -> beam.PCollection:
        """Adds the job's graph to a pipeline. Returns the release's files: one dict, {name: content}."""

    def plan_text(self) -> str:
        """Text for a terminal: the cost of the release for a client, and its accuracy, from public figures only."""
        return ""

    def accuracy(self) -> str:
        """The error to expect in one phrase, from public figures only, to compare trust models by."""
        return ""

    def stored_bytes(self, rows: int) -> int:
        """Expected bytes of bulky data between stages, for this number of input rows."""
        return rows * BYTES_PER_ROW

    def run_bytes(self, rows: int) -> RunBytes:
        """Expected bytes of the run, for this number of input rows."""
        stored = self.stored_bytes(rows)
        return RunBytes(stored, int(self.HELD_SHARE * stored), self.RELEASE_MEMORY)

    @property
    def read_by_workers(self) -> tuple[str, ...]:
        """Folders of earlier releases that the graph reads when it runs."""
        return ()

    @property
    def min_users(self) -> int:
        """The fewest users, by a noisy count, of a release."""
        return self.request.min_users if isinstance(self.request, ReleaseRequest) else 0

    @property
    def timeline(self) -> str | None:
        """The folder of the page of all releases."""
        return self.request.timeline if isinstance(self.request, ReleaseRequest) else None

    @cached_property
    def geography(self) -> bytes | None:
        """What the release publishes of the map's geography, None without any. Raises RequestError."""
        return geography_of(self.request)

    @cached_property
    def accounting(self) -> Accounting | None:
        """The ledger that is charged; None without one."""
        return accounting(self.request) if isinstance(self.request, ReleaseRequest) else None

    @cached_property
    def kept_secret(self) -> Secret | None:
        """The stored secret (key file or Secret Manager), so that a retry has the same key; None without one.

        Raises RequestError if it cannot be used.
        """
        if self.request.key_secret is not None:
            return SecretManagerSecret(self.request.key_secret)
        return None if self.request.key_file is None else FileSecret(self.request.key_file)


@dataclass(frozen=True)
class Inputs:
    """Inputs of a job's graph.

    Attributes:
        files: to read, in bundles: the elements of the job's first step.
        column_types: the type of each column's values (see Columns.check).
        spill: the place for bulky data between stages.
        admit: charges the ledger once all input is read, and decides whether the run goes on.
    """

    files: list[tuple[LogFile, ...]]
    column_types: dict[str, str]
    spill: Spill
    admit: Admit


@dataclass(frozen=True)
class LedgerGate:
    """A ChargeGate: charges a ledger from inside a job's graph, after all input is read and before noise is drawn."""

    accounting: Accounting
    planned: Charge

    def charge(self) -> str | None:
        """See ChargeGate.charge."""
        return self.accounting.reserve(self.planned).refusal

    def settle(self, epsilon: float, reason: str) -> None:
        """See ChargeGate.settle."""
        planned = self.planned
        spent, delta, rho = admission_cost(epsilon, planned.epsilon, planned.delta, planned.rho)
        self.accounting.open().settle(
            planned.release_id, spent, delta, message_of(reason), rho=rho, binding=planned.binding
        )


@dataclass(frozen=True)
class DisclosureGate:
    """A ChargeGate: records in a ledger what users send without differential privacy. There is no charge."""

    accounting: Accounting
    disclosure: Disclosure

    def charge(self) -> str | None:
        """See ChargeGate.charge."""
        self.accounting.open().disclose(self.disclosure, allow_reuse=self.accounting.allow_reuse)
        return None

    def settle(self, epsilon: float, reason: str) -> None:
        """See ChargeGate.settle. The record stays: an upper bound."""


def run_release(job: ReleaseJob, settings: RunnerSettings) -> None:
    """Checks a job's files, output and ledger, then runs its graph, which charges the ledger.

    Prints the path of the release's page. If the ledger holds a charge for the release id, the run resumes that release
    without a new charge. A published release is not changed. A refused run publishes the reason.

    Raises:
        RequestError, NotReadyError, BudgetError or LedgerError: the run cannot start, or the ledger refuses its charge.
        DataError: the input cannot be read, or the runner failed.
        RefusedError: the noisy counts refused the run, and the reason was published. A Flex launch does not wait for
            its job: there the ledger alone holds the reason.
    """
    request, cost = job.request, job.cost()
    # Without an epsilon a ledger is not charged: it records the bits that users send.
    recording = job.accounting if math.isinf(cost.epsilon) else None
    ledger = None if recording else job.accounting
    identify(job=request.JOB, release_id=request.release_id)
    launched = flex_launch(settings)
    _check_locations(job, settings, launched)
    resumed = None if ledger is None else ledger.reservation(request.release_id)
    if resumed is None:
        check_output(request.output, request.overwrite, job.FORMAT)
    _ = job.geography  # a file that cannot be used is a bad request
    files = match_files(request.input, layout_of(request, job.columns()), filters_of(request))
    if isinstance(request, ReleaseRequest) and request.dry_run:
        charge = None if job.accounting is None else job.accounting.forecast(cost, request.release_id)
        memory = memory_lines(settings, max(job.run_bytes(1).held, 1), request.memory)
        forecast = Forecast(job.columns().names(), files, cost, charge, memory, trust_lines(job), job.plan_text())
        sys.stdout.write(dry_run_text(request, forecast))
        return
    if ledger is not None:
        ledger.check_not_lost(request.output, job.timeline)
    secret = None if job.accounting is None else job.kept_secret
    files, late, file_digests = select_input(secret, files, resumed, job.columns())
    log_late_files(late, str(request.release_id))
    rows, column_types = inspect(files, job.columns())
    warn_of_cells(job)
    key, metadata = key_and_metadata(job, files, settings)
    identify(release_id=metadata.release_id)
    commit = CommitRelease(metadata.release_id, job.timeline, None if ledger is None else ledger.ledger)
    gate: ChargeGate | None = None
    if recording is not None:
        assert cost.bits is not None
        disclosure = recording.make_disclosure(cost.bits, key, metadata, file_digests)
        check_disclosure(recording.open().history(), disclosure, allow_reuse=recording.allow_reuse)
        gate = DisclosureGate(recording, disclosure)
    if ledger is not None:
        planned = ledger.make_charge(cost, key, metadata, file_digests)
        gate = LedgerGate(ledger, planned)
        metadata = replace(metadata, ledger_location=ledger.ledger)
        reservation = ledger.check(planned)
        is_reserved = reservation is not None and reservation.refusal is None
        if reservation is not None and is_reserved and is_published(request.output, reservation):
            log_event("already_published", f"{metadata.release_id} is published already; nothing is charged")
            commit.commit(request.output)
            if launched:
                launch_nothing(settings)
            sys.stdout.write(f"{FileSystems.join(request.output, 'index.html')}\n")
            return
        if reservation is not None and reservation.manifest is not None:
            text = f"{metadata.release_id} was published, and is gone or damaged at {request.output}"
            log_event("made_again", f"{text}: it is made again, and nothing is charged", logging.WARNING)
    settings = settings.sized(rows)
    memory_plan = plan_memory(settings, rows, job.run_bytes(rows), request.memory)
    settings = settings.with_workers(memory_plan.workers) if settings.local else settings
    log_event("files", f"{len(files)} file{'s'[: len(files) != 1]} to read", files=len(files))
    rule, logs = job.admission(), [file.log for file in files]
    if job.kept_secret is not None and request.release_id is not None:
        logs = named_by_content(files)
    try:
        with (
            scratch(memory_plan) as spill,
            show_progress(len(files), settings.verbose, settings.log_format),
            settings.pipeline() as root,
        ):
            inputs = Inputs(bundled(logs), column_types, spill, Admit(rule, gate))
            _ = (
                job.build(root, inputs, key, metadata)  # {name: content}
                | "Write" >> WriteRelease(request.output, metadata, request.overwrite)  # the published folder's path
                | "CommitRelease" >> commit
            )
    except Exception as error:
        # Beam adds the failing step to a message; the published reason goes without it.
        refusal = error_of(error)
        if isinstance(refusal, RefusedError):
            _publish_refusal(job, with_charge(metadata), rule, refusal)
            raise refusal from error
        raise
    if launched:
        log_event(
            "launched", f"handed to Dataflow, which publishes {request.output} when it is done", output=request.output
        )
        return
    log_metrics(root.result)
    if root.result.state != PipelineState.DONE:
        raise DataError(f"the runner ended the job as {root.result.state}; a published release is complete")
    if settings.options.view_as(TestOptions).dry_run:  # Beam's option: the graph is built and not run
        return
    manifest = manifest_at(request.output)
    if manifest is None:
        raise DataError(f"the runner reports success, but there is no release at {request.output}")
    for warning in json.loads(manifest).get("warnings", ()):
        log_event("warning", warning, logging.WARNING)
    sys.stdout.write(f"{FileSystems.join(request.output, 'index.html')}\n")


def warn_of_cells(job: ReleaseJob) -> None:
    """Logs a warning if the map's cells are finer than the cells of the logs, whose records lie at their centres."""
    cells, region = layout_of(job.request).cells, getattr(job.request, "region", None)
    parameters = job.parameters()
    depth = parameters.get("depth") or parameters.get("cells")
    if cells is None or region is None or not isinstance(depth, int):
        return
    across = min(ground_metres(region)) / 2**depth
    if cells.metres((region.south + region.north) / 2) > across:
        text = (
            f"the map's cells of {across:,.0f} m are finer than the logs' {cells.index} cells: each of these counts in "
            "the one cell at its centre, and the cells around it look empty"
        )
        log_event("cells", text, logging.WARNING)


def trust_lines(job: ReleaseJob) -> list[str]:
    """One line for each trust model, this run's first: who sees what, and the error to expect.

    None for a job that has no option --trust.
    """
    kind = type(job.request)
    if "trust" not in kind.model_fields:
        return []
    own = job.parameters()["trust"]
    offered = get_args(kind.model_fields["trust"].annotation)
    given = job.request.given(kind.model_fields)
    lines = []
    for trust in sorted(Trust, key=lambda one: one != own):
        if trust not in offered:
            lines.append(f"{trust}: not offered")
            continue
        try:
            other = job if trust == own else job.of(kind.of({**given, "trust": trust}))
            text = "; ".join(filter(None, (SEES[trust], other.accuracy())))
        except RequestError as error:
            text = f"not with these options ({error})"
        lines.append(f"{trust}{', this run' if trust == own else ''}: {text}")
    return lines


def named_by_content(files: Sequence[InputFile]) -> list[LogFile]:
    """The files as a pipeline reads them, named by their content. So names do not change when files are moved."""
    copies: Counter[str] = Counter()
    logs = []
    for file, digest in zip(files, content_digests(files), strict=True):
        logs.append(replace(file.log, name=f"{digest} {copies[digest]}"))
        copies[digest] += 1
    return logs


def log_late_files(late: Sequence[InputFile], release_id: str) -> None:
    """Logs a warning about files that came after a release was charged, if there are any."""
    if late:
        files, are = ("1 file", "is") if len(late) == 1 else (f"{len(late)} files", "are")
        text = f"{files} came after {release_id} was charged and {are} not in it"
        log_event("late_files", f"{text} (--verbose shows their rows)", logging.WARNING, files=len(late))
        LATE_ROWS.emit(rows=sum(file.rows for file in late))


def select_input(
    secret: Secret | None, files: Sequence[InputFile], resumed: Reservation | None, columns: Columns | None = None
) -> tuple[list[InputFile], list[InputFile], list[str]]:
    """The files that a run reads, those that came after its charge, and the keyed digests of the former.

    A charge holds digests of its files' content, so a run can be resumed after files were moved.

    Args:
        secret: the stored secret of a run with a ledger. Without both it is None, and there are no digests.
        files: all that match the input now.
        resumed: the reservation of an earlier attempt; None without one.
        columns: that the job reads, see `with_rows`.
    """
    if secret is None:
        return list(files), [], []
    secret_bytes = secret.read()  # raises RequestError for a bad key
    # Empty files of all days are equal. If they were refused as used before, that would reveal that they are empty.
    filled = with_rows(files, columns)
    not_empty = {file.path for file in filled}
    empty = [file for file in files if file.path not in not_empty]
    digests = [file_digest(secret_bytes, digest) for digest in content_digests(filled)]
    if resumed is None or resumed.refusal is not None:  # refused input may have been corrected
        return list(files), [], digests
    selection = select_files(resumed.charge.files, digests)
    chosen = [*(filled[index] for index in selection.charged), *empty]
    if selection.missing or not chosen:
        return list(files), [], digests  # other input, which the ledger refuses
    return chosen, [filled[index] for index in selection.late], [digests[index] for index in selection.charged]


def rounded_up(amount: float) -> str:
    """An amount rounded up to six digits, as the ledger adds it up."""
    return format_amount(Context(prec=6, rounding=ROUND_CEILING).create_decimal_from_float(amount))


def admission_cost(
    cost: float, epsilon: Decimal, delta: Decimal, rho: Decimal | None
) -> tuple[Decimal, Decimal, Decimal | None]:
    """Returns epsilon, delta and rho that the admission of a release spends.

    Args:
        cost: of the noisy counts of users, an epsilon or a rho.
        epsilon: of the complete release.
        delta: of the complete release. With Gaussian noise the admission has the share of it that it has of rho, unless
            it would need a larger epsilon than the release. Then it has the release's epsilon.
        rho: of the complete release; None unless its noise is Gaussian.
    """
    spent = parse_amount("epsilon", rounded_up(cost))
    if rho is None:
        return spent, Decimal(0), None
    share = parse_amount("delta", rounded_up(float(delta) * cost / float(rho)))
    own = parse_amount("epsilon", rounded_up(epsilon_for_delta(float(spent), float(share))))
    if own > epsilon:
        own, share = epsilon, parse_amount("delta", rounded_up(gaussian_delta(float(spent), float(epsilon))))
    return own, share, spent


def _publish_refusal(job: ReleaseJob, metadata: ReleaseMetadata, rule: AdmissionRule, refusal: RefusedError) -> None:
    """Publishes the reason of a refusal at the release's place, unless a release is published there."""
    existing = manifest_at(job.request.output)
    if existing is not None and not is_refusal(existing):
        return
    cost = job.cost()
    if math.isinf(cost.epsilon):  # a notice states what was spent of an epsilon, and there is none
        return
    epsilon = parse_amount("epsilon", cost.epsilon)
    if isinstance(refusal, NotAdmittedError):  # only the noisy counts of users were drawn
        spent, delta, _ = admission_cost(rule.epsilon, epsilon, parse_amount("delta", cost.delta), rho_amount(cost))
        adjacency, bits = ADD_OR_REMOVE, None
    else:
        spent, delta, adjacency, bits = epsilon, parse_amount("delta", cost.delta), cost.adjacency, cost.bits
    adjacency_text = guarantee.ZERO_OUT if adjacency == ZERO_OUT else guarantee.ADD_OR_REMOVE
    files = refusal_files(metadata, str(refusal), epsilon, spent, delta, adjacency_text, bits)
    publish(job.request.output, files, metadata.release_id, job.request.overwrite)


def flex_launch(settings: RunnerSettings) -> bool:
    """Whether Google's launcher of Flex templates runs this process. It takes the graph and starts the job itself."""
    location = settings.options.view_as(GoogleCloudOptions).template_location or ""
    launcher = "FLEX_TEMPLATE_PYTHON_PY_FILE" in os.environ
    return launcher and "/template_launches/" in location and location.endswith("/job_object")


def launch_nothing(settings: RunnerSettings) -> None:
    """Gives the launcher of a Flex template an empty graph. It treats a program without a graph as failed."""
    with settings.pipeline() as root:
        _ = root | "Nothing" >> beam.Create([None])


def _check_locations(job: ReleaseJob, settings: RunnerSettings, launched: bool) -> None:
    """Raises RequestError for paths that the runner cannot reach, and for templates that would repeat their noise."""
    if settings.options.view_as(GoogleCloudOptions).template_location and not launched:
        raise RequestError(
            "template_location: a template would draw the same noise at every launch, whatever the data, and the "
            "differences would expose users; start the job itself, or a Flex template, instead"
        )
    if launched and job.request.overwrite:
        raise RequestError(
            "overwrite: a launched graph can be started again by hand, and would publish the same noise over other data"
        )
    if not settings.in_cloud:
        return
    ledger = None if job.accounting is None else job.accounting.ledger
    places = [(name, getattr(job.request, name)) for name in ("output", "key_file")]
    inputs = [("input", pattern) for pattern in job.request.input if not pattern.startswith((ICEBERG, BIGQUERY))]
    nights = [("warm_start", path) for path in job.read_by_workers]
    for name, path in [*inputs, *places, *nights, ("timeline", job.timeline), ("ledger", ledger)]:
        if path is not None and not is_remote(path):
            raise RequestError(f"{name}: Dataflow's workers cannot reach {path!r}; name a place in a bucket, gs://...")


def key_and_metadata(
    job: ReleaseJob, files: Sequence[InputFile], settings: RunnerSettings
) -> tuple[RunKey, ReleaseMetadata]:
    """The run's key, bound to the secret and the complete request, and the release's metadata."""
    request = job.request
    parameters = job.parameters()
    secret: Secret
    if request.seed is not None:
        secret, source = seed_secret(request.seed), "seed"
        release_id = request.release_id or f"seed-{request.seed}"
    else:
        release_id = request.release_id or uuid.uuid4().hex
        if job.kept_secret is not None:
            secret, source = job.kept_secret, "key file" if request.key_secret is None else "Secret Manager"
            if isinstance(secret, FileSecret):
                secret.check_private()
            secret.read()  # raises RequestError for a bad key
        elif settings.local:
            secret, source = entropy_secret(), "operating system"
        else:
            raise RequestError(
                "key_file: a remote runner would carry the key in the job's graph, where others can read it; put a "
                "secret where only the workers can read it, and name it with --key_file or --key_secret"
            )
    # The fingerprint stays out of the release: sizes and times of files are facts about the data.
    fingerprint: list[Any] = [[file.path, file.size, file.changed] for file in files]
    if job.kept_secret is not None and request.release_id is not None:
        # This key has no random part, so two runs on different data must differ in their fingerprint. And a copy of the
        # same data, with other names or times, must have the same fingerprint, so that it resumes a crashed run.
        fingerprint = content_fingerprint(with_rows(files, job.columns()), job.columns())
    # Other code may add the same noise to other numbers. A seed protects nobody, and gives the same result for ever.
    code = None if request.seed is not None else code_digest()
    scheme = {"job": request.JOB, "versions": package_versions(), "code": code}
    key = RunKey.derive(secret, {**scheme, "release_id": release_id, "files": fingerprint, **parameters})
    metadata = ReleaseMetadata(
        job=request.JOB,
        release_id=release_id,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        randomness=source,
        safe=request.seed is None,
        parameters=parameters,
        timeline=timeline_link(request.output, job.timeline),
        geography=job.geography,
        corrects=request.corrects if isinstance(request, ReleaseRequest) else None,
    )
    return key, metadata


def content_fingerprint(files: Sequence[InputFile], columns: Columns) -> list[Any]:
    """What the files hold, without their names and times: their digests, with what their folders say of columns.

    A column of a partition is no part of a file's content. So without its values a renamed folder, or another table of
    the same files, would be other data under the same noise.
    """
    names, found = set(columns.names()), list[Any]()
    for file, digest in zip(files, content_digests(files), strict=True):
        stated = [[name, value] for name, value in file.log.partition if name in names]
        found.append([digest, stated] if stated else digest)
    return sorted(found, key=json.dumps)


def timeline_link(output: str, timeline: str | None) -> str | None:
    """The relative address of the timeline's page, seen from a release's page; None where there is none."""
    if timeline is None or is_remote(output) != is_remote(timeline):
        return None
    return os.path.relpath(f"{timeline}/{PAGE_FILE}", output).replace(os.sep, "/")
