"""What every job that publishes a release shares: where it comes from and goes to, its checks, its key, its run."""

from __future__ import annotations

import json
import logging
import os
import sys
import uuid
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from decimal import ROUND_CEILING, Context
from functools import cached_property
from typing import Any, ClassVar

import apache_beam as beam
from apache_beam.io.filesystems import FileSystems
from apache_beam.options.pipeline_options import GoogleCloudOptions, TestOptions
from apache_beam.runners.runner import PipelineState

from sfumato.pipelines.accounting import Accounting, accounting
from sfumato.pipelines.cli import message_of, worker_error
from sfumato.pipelines.console import identify
from sfumato.pipelines.dry_run import Forecast, dry_run_text
from sfumato.pipelines.inputs import InputFile, content_digests, inspect, match_files, with_rows
from sfumato.pipelines.progress import log_metrics, show_progress
from sfumato.pipelines.runner_settings import RunnerSettings
from sfumato.pipelines.scratch import BYTES_PER_ROW, scratch
from sfumato.schemas import guarantee
from sfumato.schemas.errors import DataError, NotAdmittedError, RefusedError, RequestError
from sfumato.schemas.ledger import ADD_OR_REMOVE, ZERO_OUT, Charge, Cost, Reservation, parse_amount
from sfumato.schemas.locations import Columns
from sfumato.schemas.release import MANIFEST_FORMAT
from sfumato.schemas.requests.publish_request import PublishRequest, ReleaseRequest
from sfumato.transforms.files import is_remote
from sfumato.transforms.locations.read import LogFile
from sfumato.transforms.logs import LATE_ROWS, log_event
from sfumato.transforms.privacy.admission import AdmissionRule, Admit
from sfumato.transforms.privacy.keys import RunKey, Secret
from sfumato.transforms.privacy.ledger.input_files import file_digest, select_files
from sfumato.transforms.privacy.secrets import FileSecret, SecretManagerSecret, entropy_secret, seed_secret
from sfumato.transforms.release.metadata import ReleaseMetadata, code_digest, package_versions
from sfumato.transforms.release.publishing import CommitRelease, published_digest, with_charge
from sfumato.transforms.release.refusal import refusal_files
from sfumato.transforms.release.release_folder import check_output, is_refusal, manifest_at, publish


@dataclass(frozen=True)
class ReleaseJob(ABC):
    """A request and what its job makes of it: the graph, what it reads, costs and states. Jobs add their own fields.

    Attributes:
        FORMAT: of the manifest that the job writes.
        STATED_AS: options of the request that the manifest states as a part of another parameter.
    """

    FORMAT: ClassVar[str] = MANIFEST_FORMAT
    STATED_AS: ClassVar[Mapping[str, str]] = {}

    request: PublishRequest

    @abstractmethod
    def columns(self) -> Columns:
        """The columns that the job reads, which know what types they may have."""

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
        """What the complete release costs: what a ledger is charged with."""

    @abstractmethod
    def admission(self) -> AdmissionRule:
        """What the run needs to go on, and pays for finding out."""

    @abstractmethod
    def build(self, root: beam.Pipeline, inputs: Inputs, key: RunKey, metadata: ReleaseMetadata) -> beam.PCollection:
        """Adds the job's graph to a pipeline. Returns the published folder's path."""

    def plan_text(self) -> str:
        """What the release will cost a client and show, in lines for a terminal, from public figures alone."""
        return ""

    def stored_bytes(self, rows: int) -> int:
        """How much bulky data between stages to expect of so many rows."""
        return rows * BYTES_PER_ROW

    @property
    def min_users(self) -> int:
        """The fewest users, by a noisy count, of which a release is made."""
        return self.request.min_users if isinstance(self.request, ReleaseRequest) else 0

    @property
    def timeline(self) -> str | None:
        """The folder of the page of all releases."""
        return self.request.timeline if isinstance(self.request, ReleaseRequest) else None

    @cached_property
    def accounting(self) -> Accounting | None:
        """The ledger that is charged, None without one."""
        return accounting(self.request) if isinstance(self.request, ReleaseRequest) else None

    @cached_property
    def kept_secret(self) -> Secret | None:
        """The secret that is kept somewhere, so that what is tried again has its key again. Raises RequestError."""
        if self.request.key_secret is not None:
            return SecretManagerSecret(self.request.key_secret)
        return None if self.request.key_file is None else FileSecret(self.request.key_file)


@dataclass(frozen=True)
class Inputs:
    """What a job's graph is given.

    files: what is read. kinds: of values that columns hold (see Columns.check). spill: a place for Spill, or None.
    admit: charges the ledger once all input is read, and decides whether the run goes on.
    """

    files: list[LogFile]
    kinds: dict[str, str]
    spill: str | None
    admit: Admit


@dataclass(frozen=True)
class LedgerGate:
    """Charges a ledger from inside a job's graph: once all input is read, before any noise is drawn. A ChargeGate."""

    accounting: Accounting
    planned: Charge

    def charge(self) -> str | None:
        """See ChargeGate.charge."""
        return self.accounting.reserve(self.planned).refusal

    def settle(self, epsilon: float, reason: str) -> None:
        """See ChargeGate.settle."""
        self.accounting.open().settle(
            self.planned.release_id, rounded_up(epsilon), 0, message_of(reason), binding=self.planned.binding
        )


def run_release(job: ReleaseJob, settings: RunnerSettings) -> None:
    """Checks a job against the world, then runs the graph to the end, which charges the ledger on its way.

    Prints the path of the release's page. A release that was charged before under the same release id is resumed and
    not charged again. A release that is published already stays as it is. A refused run publishes its reason.

    Raises:
        RequestError, NotReadyError, BudgetError or LedgerError: the run cannot start, or the ledger refuses its charge.
        DataError: the input cannot be read, or the runner failed.
        RefusedError: the noisy counts refused the run, and the reason was published. A Flex launch does not wait for
            its job: there the ledger alone holds the reason.
    """
    request, ledger = job.request, job.accounting
    identify(job=request.JOB, release_id=request.release_id)
    launched = flex_launch(settings)
    _check_locations(job, settings, launched)
    resumed = None if ledger is None else ledger.reservation(request.release_id)
    if resumed is None:
        check_output(request.output, request.overwrite, job.FORMAT)
    files = match_files(request.input)
    if isinstance(request, ReleaseRequest) and request.dry_run:
        charge = None if ledger is None else ledger.forecast(job.cost(), request.release_id)
        forecast = Forecast(job.columns().names(), files, job.cost(), charge, job.plan_text())
        sys.stdout.write(dry_run_text(request, forecast))
        return
    if ledger is not None:
        ledger.check_not_lost(request.output, job.timeline)
    files, late, file_digests = select_input(None if ledger is None else job.kept_secret, files, resumed)
    log_late_files(late, str(request.release_id))
    rows, kinds = inspect(files, job.columns())
    key, metadata = key_and_metadata(job, files, settings)
    identify(release_id=metadata.release_id)
    commit = CommitRelease(metadata.release_id, job.timeline, None if ledger is None else ledger.ledger)
    gate = None
    if ledger is not None:
        gate = LedgerGate(ledger, ledger.make_charge(job.cost(), key, metadata, file_digests))
        metadata = replace(metadata, ledger_location=ledger.ledger)
        reservation = ledger.check(gate.planned)
        is_reserved = reservation is not None and reservation.refusal is None
        if reservation is not None and is_reserved and published_digest(request.output, reservation) is not None:
            log_event("already_published", f"{metadata.release_id} is published already; nothing is charged")
            commit.commit(request.output)
            if launched:
                launch_nothing(settings)
            sys.stdout.write(f"{FileSystems.join(request.output, 'index.html')}\n")
            return
    settings = settings.sized(rows)
    log_event("files", f"{len(files)} file{'s'[: len(files) != 1]} to read", files=len(files))
    rule, logs = job.admission(), [file.log for file in files]
    if job.kept_secret is not None and request.release_id is not None:
        logs = named_by_content(files)
    try:
        with (
            scratch(settings, job.stored_bytes(rows)) as spill,
            show_progress(len(files), settings.verbose, settings.log_format),
            settings.pipeline() as root,
        ):
            inputs = Inputs(logs, kinds, spill, Admit(rule, gate))
            _ = job.build(root, inputs, key, metadata) | "CommitRelease" >> commit
    except Exception as error:
        # Beam adds the failing step to a message; the published reason goes without it.
        refusal = type(error)(message_of(error)) if isinstance(error, RefusedError) else worker_error(error)
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
        raise DataError(f"the runner ended the job as {root.result.state}; what it published, if anything, is whole")
    if settings.options.view_as(TestOptions).dry_run:  # Beam's own: the graph is made, and not run
        return
    manifest = manifest_at(request.output)
    if manifest is None:
        raise DataError(f"the runner says that the job is done, but nothing stands at {request.output}")
    for warning in json.loads(manifest).get("warnings", ()):
        log_event("warning", warning, logging.WARNING)
    sys.stdout.write(f"{FileSystems.join(request.output, 'index.html')}\n")


def named_by_content(files: Sequence[InputFile]) -> list[LogFile]:
    """What a pipeline reads, under names that follow from the content: they do not change when files are moved."""
    copies: Counter[str] = Counter()
    logs = []
    for file, digest in zip(files, content_digests(files), strict=True):
        logs.append(replace(file.log, name=f"{digest} {copies[digest]}"))
        copies[digest] += 1
    return logs


def log_late_files(late: Sequence[InputFile], release_id: str) -> None:
    """Tells the operator what came after a release was charged; nothing where nothing did."""
    if late:
        text = f"{len(late)} file{'s'[: len(late) != 1]} came after {release_id} was charged, and are not in it"
        log_event("late_files", f"{text} (--verbose shows their rows)", logging.WARNING, files=len(late))
        LATE_ROWS.emit(rows=sum(file.rows for file in late))


def select_input(
    secret: Secret | None, files: Sequence[InputFile], resumed: Reservation | None
) -> tuple[list[InputFile], list[InputFile], list[str]]:
    """The files that a run reads, those that came after its charge, and the keyed digests of the former.

    A charge remembers its files by their content, so what it began is resumed wherever they lie now.

    Args:
        secret: the kept secret of a run with a ledger; None without either, and then there are no digests.
        files: those that match the input now.
        resumed: the reservation under which the run began before, if it did.
    """
    if secret is None:
        return list(files), [], []
    kept = secret.read()  # a bad key is a bad request
    # Empty files are alike on all days: to refuse them as used before would tell that nobody is in them.
    filled = with_rows(files)
    empty = [file for file in files if not file.rows]
    marks = [file_digest(kept, digest) for digest in content_digests(filled)]
    if resumed is None or resumed.refusal is not None:  # what was refused may have been mended
        return list(files), [], marks
    selection = select_files(resumed.charge.files, marks)
    chosen = [*(filled[place] for place in selection.charged), *empty]
    if selection.missing or not chosen:
        return list(files), [], marks  # other input, which the ledger refuses
    return chosen, [filled[place] for place in selection.late], [marks[place] for place in selection.charged]


def rounded_up(epsilon: float) -> str:
    """An amount of six digits that is at least epsilon: what people read and a ledger adds up."""
    return f"{Context(prec=6, rounding=ROUND_CEILING).create_decimal_from_float(epsilon):f}"


def _publish_refusal(job: ReleaseJob, metadata: ReleaseMetadata, rule: AdmissionRule, refusal: RefusedError) -> None:
    """Publishes why a release was refused, in its place; a result that stands there is left as it is."""
    standing = manifest_at(job.request.output)
    if standing is not None and not is_refusal(standing):
        return
    cost = job.cost()
    epsilon = parse_amount("epsilon", cost.epsilon)
    if isinstance(refusal, NotAdmittedError):  # the counts alone, whatever the method protects
        spent, delta, adjacency = (
            parse_amount("epsilon", rounded_up(rule.epsilon)),
            parse_amount("delta", 0),
            ADD_OR_REMOVE,
        )
    else:
        spent, delta, adjacency = epsilon, parse_amount("delta", cost.delta), cost.adjacency
    words = guarantee.ZERO_OUT if adjacency == ZERO_OUT else guarantee.ADD_OR_REMOVE
    files = refusal_files(metadata, str(refusal), epsilon, spent, delta, words)
    publish(job.request.output, files, metadata.release_id, job.request.overwrite)


def flex_launch(settings: RunnerSettings) -> bool:
    """Whether Google's launcher of Flex templates runs us: it wants the graph alone, built anew at each launch."""
    location = settings.options.view_as(GoogleCloudOptions).template_location or ""
    launcher = "FLEX_TEMPLATE_PYTHON_PY_FILE" in os.environ
    return launcher and "/template_launches/" in location and location.endswith("/job_object")


def launch_nothing(settings: RunnerSettings) -> None:
    """Gives the launcher of a Flex template, which takes a program without a graph for a failed one, an empty graph."""
    with settings.pipeline() as root:
        _ = root | "Nothing" >> beam.Create([None])


def _check_locations(job: ReleaseJob, settings: RunnerSettings, launched: bool) -> None:
    """Raises RequestError for what the runner cannot reach, or must not be given."""
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
    places = {name: getattr(job.request, name) for name in ("input", "output", "key_file")}
    for name, path in {**places, "timeline": job.timeline, "ledger": ledger}.items():
        if path is not None and not is_remote(path):
            raise RequestError(f"{name}: Dataflow's workers cannot reach {path!r}; name a place in a bucket, gs://...")


def key_and_metadata(
    job: ReleaseJob, files: Sequence[InputFile], settings: RunnerSettings
) -> tuple[RunKey, ReleaseMetadata]:
    """The run's key, bound to the secret and the complete request, and what the release states of itself."""
    request = job.request
    parameters = job.parameters()
    secret: Secret
    if request.seed is not None:
        secret, source = seed_secret(request.seed), "seed"
        release_id = request.release_id or f"seed-{request.seed}"
    else:
        release_id = request.release_id or uuid.uuid4().hex
        if kept := job.kept_secret:
            secret, source = kept, "key file" if request.key_secret is None else "Secret Manager"
            if isinstance(secret, FileSecret):
                secret.check_private()
            secret.read()  # a bad key is a bad request
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
        # Only here does nothing random tell two runs apart, so the fingerprint must see every change of the data; and
        # a copy of the same data, under other names or with other times, must resume what a crashed run began.
        fingerprint = sorted(content_digests(with_rows(files)))
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
    )
    return key, metadata
