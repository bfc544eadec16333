"""What every job that publishes a release shares: where it comes from and goes to, its checks, its key, its run."""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
import uuid
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime
from decimal import ROUND_CEILING, Context
from typing import Any, ClassVar

import apache_beam as beam
from apache_beam.io.filesystems import FileSystems
from apache_beam.options.pipeline_options import GoogleCloudOptions, TestOptions
from apache_beam.runners.runner import PipelineState

from sfumato.pipelines.accounting import Accounting, accounting, add_accounting_arguments
from sfumato.pipelines.cli import message_of, worker_error
from sfumato.pipelines.console import add_log_arguments, identify
from sfumato.pipelines.inputs import InputFile, content_digests, inspect, match_files, with_rows
from sfumato.pipelines.options import RunnerSettings, add_runner_arguments
from sfumato.pipelines.progress import log_metrics, show_progress
from sfumato.pipelines.scratch import BYTES_PER_ROW, scratch
from sfumato.schemas import guarantee
from sfumato.schemas.errors import DataError, NotAdmittedError, RefusedError, RequestError
from sfumato.schemas.ledger import ADD_OR_REMOVE, ZERO_OUT, Charge, Cost, Reservation, parse_amount
from sfumato.schemas.locations import Columns
from sfumato.schemas.release import MANIFEST_FORMAT
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


@dataclass(frozen=True, kw_only=True)
class ReleaseRequest(ABC):
    """One run of a job, checked as far as it can be before any work. Jobs add their own fields.

    Raises RequestError where two options contradict each other.
    """

    JOB: ClassVar[str]
    FORMAT: ClassVar[str] = MANIFEST_FORMAT  # of the manifest that the job writes

    input: str
    output: str
    key_file: str | None = None
    key_secret: str | None = None
    seed: int | None = None
    release_id: str | None = None
    overwrite: bool = False
    min_users: int = 0
    accounting: Accounting | None = None
    timeline: str | None = None

    def __post_init__(self) -> None:
        keys = [name for name in ("key_file", "key_secret", "seed") if getattr(self, name) is not None]
        if len(keys) > 1:
            raise RequestError(f"{' and '.join(keys)}: give one of them, not {'both' if len(keys) == 2 else 'all'}")
        if self.min_users < 0:
            raise RequestError(f"min_users: 0 or more, got {self.min_users}")
        if self.accounting is not None and self.seed is not None:
            raise RequestError(
                "seed: anybody can take this noise away, so there is nothing to account for; give --key_file"
            )
        if self.accounting is not None and not keys:
            raise RequestError(
                "key_file: a ledger needs a kept key, by which a run is resumed and a file that was charged before is "
                "known again; make one with `sfumato key new FILE`, and give --key_file FILE"
            )
        if self.release_id is not None and not self.release_id.replace("-", "").replace("_", "").isalnum():
            raise RequestError(f"release_id: letters, digits, - and _ only, got {self.release_id!r}")

    def kept_secret(self) -> Secret | None:
        """The secret that is kept somewhere, so that what is tried again has its key again. Raises RequestError."""
        if self.key_secret is not None:
            return SecretManagerSecret(self.key_secret)
        return None if self.key_file is None else FileSecret(self.key_file)

    @abstractmethod
    def source(self) -> Columns:
        """The columns that the job reads, which know what types they may have."""

    @abstractmethod
    def parameters(self) -> dict[str, Any]:
        """Everything that the result depends on, in JSON's types: the manifest states it, the key is bound to it."""

    def plan_text(self) -> str:
        """What the release will cost a client and show, in lines for a terminal, from public figures alone."""
        return ""

    @abstractmethod
    def cost(self) -> Cost:
        """What the whole release costs: what a ledger is charged with."""

    @abstractmethod
    def admission(self) -> AdmissionRule:
        """What the run needs to go on, and pays for finding out."""

    def stored_bytes(self, rows: int) -> int:
        """How much bulky data between stages to expect of so many rows."""
        return rows * BYTES_PER_ROW


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
    bound: Charge

    def charge(self) -> str | None:
        """See ChargeGate.charge."""
        return self.accounting.reserve(self.bound).refusal

    def settle(self, epsilon: float, reason: str) -> None:
        """See ChargeGate.settle."""
        self.accounting.open().settle(
            self.bound.release_id, rounded_up(epsilon), 0, message_of(reason), binding=self.bound.binding
        )


# (pipeline, inputs, key, facts) -> the published folder's path
Build = Callable[[beam.Pipeline, Inputs, RunKey, ReleaseMetadata], beam.PCollection]


def add_release_arguments(parser: argparse.ArgumentParser, noun: str = "release") -> None:
    """Adds the options of ReleaseRequest, and those that say where a job runs. noun: what it writes."""
    parser.add_argument("--input", required=True, metavar="PATTERN", help="Parquet files, local or gs://")
    parser.add_argument("--output", required=True, metavar="FOLDER", help=f"where the {noun} goes, local or gs://")
    parser.add_argument(
        "--key_file", metavar="FILE", help="a key that `sfumato key new FILE` made; default: fresh entropy"
    )
    parser.add_argument(
        "--key_secret", metavar="NAME", help="the same from Secret Manager: projects/P/secrets/S/versions/N"
    )
    parser.add_argument("--seed", type=int, help="UNSAFE: a key that anybody can guess, for tests and demos")
    parser.add_argument("--release_id", metavar="ID", help=f"name of the {noun}; default: a random one")
    parser.add_argument("--overwrite", action="store_true", help=f"replace the {noun} that stands at the output")
    add_log_arguments(parser)
    if noun == "release":
        parser.add_argument(
            "--min_users",
            type=int,
            default=0,
            metavar="N",
            help="refuse, with exit status 75, where a noisy count finds fewer users; only the count is paid for",
        )
        parser.add_argument(
            "--timeline", metavar="FOLDER", help="update this folder's page of all releases in FOLDER/releases/"
        )
        add_accounting_arguments(parser)
        parser.add_argument("--dry_run", action="store_true", help="tell what would be done and charged; touch nothing")
    add_runner_arguments(parser)


def release_options(options: argparse.Namespace) -> dict[str, Any]:
    """The fields of ReleaseRequest that the command line gave. Raises RequestError."""
    given = {
        field.name: getattr(options, field.name) for field in fields(ReleaseRequest) if hasattr(options, field.name)
    }
    return {**given, "accounting": accounting(options) if "ledger" in options else None}


def run_release(request: ReleaseRequest, settings: RunnerSettings, build: Build) -> None:
    """Checks the request against the world, then runs the graph to the end, which charges the ledger on its way.

    Prints the path of the release's page. A release that was charged before, under the same release id, is resumed and
    not charged again; one that stands already is left as it is. In place of a refused one its reason is published.
    Raises RequestError, DataError, NotReadyError, BudgetError or LedgerError.
    """
    books = request.accounting
    identify(job=request.JOB, release_id=request.release_id)
    launched = flex_launch(settings)
    _check_place(request, settings, launched)
    resumed = None if books is None else books.reservation(request.release_id)
    if resumed is None:
        check_output(request.output, request.overwrite, request.FORMAT)
    files = match_files(request.input)
    if settings.dry_run:
        from sfumato.pipelines.dry_run import dry_run_text  # which brings the plans of all jobs

        charge = None if books is None else books.forecast(request.cost(), request.release_id)
        sys.stdout.write(dry_run_text(request, files, charge))
        return
    if books is not None:
        books.check_not_lost(request.output, request.timeline)
    files, late, marks = select_input(None if books is None else request.kept_secret(), files, resumed)
    log_late_files(late, str(request.release_id))
    rows, kinds = inspect(files, request.source())
    key, metadata = key_and_metadata(request, files, settings)
    identify(release_id=metadata.release_id)
    keep = CommitRelease(metadata.release_id, request.timeline, None if books is None else books.ledger)
    gate = None
    if books is not None:
        gate = LedgerGate(books, books.charge(request.cost(), key, metadata, marks))
        metadata = replace(metadata, ledger_location=books.ledger)
        reservation = books.check(gate.bound)
        standing = reservation is not None and reservation.refusal is None
        if reservation is not None and standing and published_digest(request.output, reservation) is not None:
            log_event("already_published", f"{metadata.release_id} is published already; nothing is charged")
            keep.commit(request.output)
            if launched:
                launch_nothing(settings)
            sys.stdout.write(f"{FileSystems.join(request.output, 'index.html')}\n")
            return
    settings = settings.sized(rows)
    log_event("files", f"{len(files)} file{'s'[: len(files) != 1]} to read", files=len(files))
    rule, logs = request.admission(), [file.log for file in files]
    if request.kept_secret() is not None and request.release_id is not None:
        logs = named_by_content(files)
    try:
        with (
            scratch(settings, request.stored_bytes(rows)) as spill,
            show_progress(len(files), settings.verbose, settings.log_format),
            settings.pipeline() as root,
        ):
            _ = build(root, Inputs(logs, kinds, spill, Admit(rule, gate)), key, metadata) | "CommitRelease" >> keep
    except Exception as error:
        refusal = type(error)(message_of(error)) if isinstance(error, RefusedError) else worker_error(error)
        if isinstance(refusal, RefusedError):
            _publish_refusal(request, with_charge(metadata), rule, refusal)
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
        text = f"{len(late)} file{'s'[: len(late) != 1]} came after {release_id} was and are not in it"
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


def _publish_refusal(
    request: ReleaseRequest, metadata: ReleaseMetadata, rule: AdmissionRule, refusal: RefusedError
) -> None:
    """Publishes why a release was refused, in its place; a result that stands there is left as it is."""
    standing = manifest_at(request.output)
    if standing is not None and not is_refusal(standing):
        return
    cost = request.cost()
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
    publish(request.output, files, metadata.release_id, request.overwrite)


def flex_launch(settings: RunnerSettings) -> bool:
    """Whether Google's launcher of Flex templates runs us: it wants the graph alone, built anew at each launch."""
    location = settings.options.view_as(GoogleCloudOptions).template_location or ""
    launcher = "FLEX_TEMPLATE_PYTHON_PY_FILE" in os.environ
    return launcher and "/template_launches/" in location and location.endswith("/job_object")


def launch_nothing(settings: RunnerSettings) -> None:
    """Gives the launcher of a Flex template, which takes a program without a graph for a failed one, an empty graph."""
    with settings.pipeline() as root:
        _ = root | "Nothing" >> beam.Create([None])


def _check_place(request: ReleaseRequest, settings: RunnerSettings, launched: bool) -> None:
    """Raises RequestError for what the runner cannot reach, or must not be given."""
    if settings.options.view_as(GoogleCloudOptions).template_location and not launched:
        raise RequestError(
            "template_location: a template would draw the same noise at every launch, whatever the data, and the "
            "differences would expose users; start the job itself, or a Flex template, instead"
        )
    if launched and request.overwrite:
        raise RequestError(
            "overwrite: a launched graph can be started again by hand, and would publish the same noise over other data"
        )
    if not settings.in_cloud:
        return
    ledger = None if request.accounting is None else request.accounting.ledger
    places = {name: getattr(request, name) for name in ("input", "output", "key_file", "timeline")}
    for name, path in {**places, "ledger": ledger}.items():
        if path is not None and not is_remote(path):
            raise RequestError(f"{name}: Dataflow's workers cannot reach {path!r}; name a place in a bucket, gs://...")


def key_and_metadata(
    request: ReleaseRequest, files: Sequence[InputFile], settings: RunnerSettings
) -> tuple[RunKey, ReleaseMetadata]:
    """The run's key, bound to the secret and the whole request, and what the release says of itself."""
    parameters = {**request.parameters(), "min_users": request.min_users}
    secret: Secret
    if request.seed is not None:
        secret, source = seed_secret(request.seed), "seed"
        release_id = request.release_id or f"seed-{request.seed}"
    else:
        release_id = request.release_id or uuid.uuid4().hex
        if kept := request.kept_secret():
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
    if request.kept_secret() is not None and request.release_id is not None:
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
