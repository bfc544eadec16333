"""The run of a job that publishes a release: checks, key, ledger, graph, and what is published where it is refused."""

from __future__ import annotations

import json
import logging
import math
import os
import sys
import textwrap
import uuid
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, get_args

import apache_beam as beam
from apache_beam.io.filesystems import FileSystems
from apache_beam.options.pipeline_options import GoogleCloudOptions, TestOptions
from apache_beam.runners.runner import PipelineResult, PipelineState

from sfumato.pipelines.frame.accounting import LedgerGate, admission_cost, rho_amount
from sfumato.pipelines.frame.console import identify, log_metrics, show_progress
from sfumato.pipelines.frame.inputs import (
    ICEBERG,
    InputFile,
    content_fingerprint,
    inspect,
    layout_of,
    log_late_files,
    match_files,
    named_by_content,
    select_input,
    with_rows,
)
from sfumato.pipelines.frame.job import Inputs, ReleaseJob
from sfumato.pipelines.frame.scratch import memory_lines, plan_memory, scratch
from sfumato.pipelines.runners.failures import error_of
from sfumato.pipelines.runners.runner_settings import RunnerSettings
from sfumato.schemas import guarantee
from sfumato.schemas.errors import DataError, NotAdmittedError, RefusedError, RequestError
from sfumato.schemas.known_digits import byte_text
from sfumato.schemas.ledger import ADD_OR_REMOVE, ZERO_OUT, Cost, Reservation, format_amount, parse_amount
from sfumato.schemas.region import ground_metres
from sfumato.schemas.release import PAGE_FILE
from sfumato.schemas.requests.log_columns import PlaceColumns
from sfumato.schemas.requests.publish_request import MapGeography, ReleaseRequest
from sfumato.schemas.trust import SEES, Trust
from sfumato.transforms.inputs.bigquery_table import BIGQUERY
from sfumato.transforms.inputs.log_reader import bundled
from sfumato.transforms.io.files import is_remote
from sfumato.transforms.observability.logs import log_event
from sfumato.transforms.privacy.admission import AdmissionRule, Admit
from sfumato.transforms.privacy.keys import RunKey, Secret
from sfumato.transforms.privacy.secrets import FileSecret, entropy_secret, seed_secret
from sfumato.transforms.release.catalog import check_not_lost
from sfumato.transforms.release.metadata import ReleaseMetadata, code_digest, package_versions
from sfumato.transforms.release.notices import refusal_files
from sfumato.transforms.release.publishing import CommitRelease, WriteRelease, is_published, with_charge
from sfumato.transforms.release.release_folder import check_output, is_refusal, manifest_at, publish


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
    request, launched = job.request, flex_launch(settings)
    identify(job=request.JOB, release_id=request.release_id)
    _check_locations(job, settings, launched)
    resumed = _check_output(job)
    _ = job.geography  # a file that cannot be used is a bad request
    files = match_files(request.input, layout_of(request, job.columns()), request.where)
    if request.dry_run:
        sys.stdout.write(dry_run_text(job, files, settings))
        return
    files, digests = _select_files(job, files, resumed)
    rows, column_types = inspect(files, job.columns())
    warn_of_cells(job)
    key, metadata = key_and_metadata(job, files, settings)
    identify(release_id=metadata.release_id)
    gate, metadata = _gate(job, key, metadata, digests)
    commit = CommitRelease(metadata.release_id, job.request.timeline, metadata.ledger_location)
    if gate is not None and _is_published(gate, request.output):
        commit.commit(request.output)
        launch_nothing(settings)
        _print_page(request.output)
        return
    settings = settings.sized(rows)
    memory = plan_memory(settings, rows, job.run_bytes(rows), request.memory)
    settings = settings.with_workers(memory.workers) if settings.local else settings
    log_event("files", f"{len(files)} file{'s'[: len(files) != 1]} to read", files=len(files))
    logs = named_by_content(files) if _is_repeatable(job) else [file.log for file in files]
    rule = job.admission()
    try:
        with (
            scratch(memory) as spill,
            show_progress(len(files), settings.verbose, settings.log_format),
            settings.pipeline() as root,
        ):
            inputs = Inputs(column_types, spill, Admit(rule, gate))
            bundles = root | "Files" >> beam.Create(bundled(logs))  # PCollection[tuple[LogFile, ...]]
            _ = (
                job.build(bundles, inputs, key, metadata)  # PCollection[dict[file name, bytes]]
                | "Write" >> WriteRelease(request.output, metadata, request.overwrite)  # PCollection[path]
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
        text = f"handed to Dataflow, which publishes {request.output} when it is done"
        log_event("launched", text, output=request.output)
    else:
        _report(root.result, settings, request.output)


def _check_output(job: ReleaseJob) -> Reservation | None:
    """The charge that an earlier run made under this release id. Without one the output must be free."""
    resumed, release_id = None, job.request.release_id
    if job.accounting is not None and not job.discloses and release_id is not None:
        resumed = job.accounting.open().history().reservations.get(release_id)
    if resumed is None:
        check_output(job.request.output, job.request.overwrite, job.FORMAT)
    return resumed


def _select_files(
    job: ReleaseJob, files: list[InputFile], resumed: Reservation | None
) -> tuple[list[InputFile], list[str]]:
    """The files that the run reads and their keyed digests, see `select_input`."""
    if job.accounting is None:
        return files, []
    if not job.discloses:
        history, dataset = job.accounting.open().history(), job.accounting.dataset
        check_not_lost(history, dataset, job.request.output, job.request.timeline)
    files, late, digests = select_input(job.kept_secret, files, resumed, job.columns())
    log_late_files(late, str(job.request.release_id))
    return files, digests


def _gate(
    job: ReleaseJob, key: RunKey, metadata: ReleaseMetadata, digests: Sequence[str]
) -> tuple[LedgerGate | None, ReleaseMetadata]:
    """What charges the ledger, which allows it now, and the metadata, which name a ledger that is charged."""
    ledger = job.accounting
    if ledger is None:
        return None, metadata
    gate = LedgerGate(ledger, ledger.planned(job.cost(), key, metadata, digests))
    return gate, metadata if job.discloses else replace(metadata, ledger_location=ledger.ledger)


def _is_published(gate: LedgerGate, output: str) -> bool:
    """Whether the release is published already, under a charge that the ledger has. Raises the errors of a charge."""
    reservation = gate.check()
    if reservation is None:
        return False
    release_id = gate.planned.release_id
    if reservation.refusal is None and is_published(output, reservation):
        log_event("already_published", f"{release_id} is published already; nothing is charged")
        return True
    if reservation.manifest is not None:
        text = f"{release_id} was published, and is gone or damaged at {output}"
        log_event("made_again", f"{text}: it is made again, and nothing is charged", logging.WARNING)
    return False


def _is_repeatable(job: ReleaseJob) -> bool:
    """Whether another run has the same key, over the same data only: it is bound to their content, not their names."""
    return job.kept_secret is not None and job.request.release_id is not None


def _report(result: PipelineResult, settings: RunnerSettings, output: str) -> None:
    """Logs metrics and warnings of a graph that has run, and prints the page. Raises DataError."""
    log_metrics(result)
    if result.state != PipelineState.DONE:
        raise DataError(f"the runner ended the job as {result.state}; a published release is complete")
    if settings.options.view_as(TestOptions).dry_run:  # Beam's option: the graph is built and not run
        return
    manifest = manifest_at(output)
    if manifest is None:
        raise DataError(f"the runner reports success, but there is no release at {output}")
    for warning in json.loads(manifest).get("warnings", ()):
        log_event("warning", warning, logging.WARNING)
    _print_page(output)


def _print_page(output: str) -> None:
    sys.stdout.write(f"{FileSystems.join(output, PAGE_FILE)}\n")


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


def warn_of_cells(job: ReleaseJob) -> None:
    """Logs a warning if the map's cells are finer than the cells of the logs, whose records lie at their centres."""
    request = job.request
    cells = request.cells_of_records if isinstance(request, PlaceColumns) else None
    region = request.region if isinstance(request, MapGeography) else None
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


def flex_launch(settings: RunnerSettings) -> bool:
    """Whether Google's launcher of Flex templates runs this process. It takes the graph and starts the job itself."""
    location = settings.options.view_as(GoogleCloudOptions).template_location or ""
    launcher = "FLEX_TEMPLATE_PYTHON_PY_FILE" in os.environ
    return launcher and "/template_launches/" in location and location.endswith("/job_object")


def launch_nothing(settings: RunnerSettings) -> None:
    """Gives the launcher of a Flex template, if one waits, an empty graph: a program without one counts as failed."""
    if flex_launch(settings):
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
    places = [("output", job.request.output), ("key_file", job.request.key_file)]
    inputs = [("input", pattern) for pattern in job.request.input if not pattern.startswith((ICEBERG, BIGQUERY))]
    nights = [("warm_start", path) for path in job.read_by_workers]
    for name, path in [*inputs, *places, *nights, ("timeline", job.request.timeline), ("ledger", ledger)]:
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
    if _is_repeatable(job):
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
        timeline=timeline_link(request.output, job.request.timeline),
        geography=job.geography,
        corrects=request.corrects,
    )
    return key, metadata


def timeline_link(output: str, timeline: str | None) -> str | None:
    """The relative address of the timeline's page, seen from a release's page; None where there is none."""
    if timeline is None or is_remote(output) != is_remote(timeline):
        return None
    return os.path.relpath(f"{timeline}/{PAGE_FILE}", output).replace(os.sep, "/")


_WIDTH, _MARGIN = 100, 11  # columns of a terminal, and of its left margin for the headings


def dry_run_text(job: ReleaseJob, files: Sequence[InputFile], settings: RunnerSettings) -> str:
    """What a job would read, charge and publish, in lines for a terminal.

    files: that match the input. settings: where the run would take place.
    """
    request, cost = job.request, job.cost()
    number = f"{len(files):,} file{'s'[: len(files) != 1]}"
    reads = [", ".join(request.input), f"{number}, {byte_text(sum(file.size for file in files))}B"]
    reads.append(f"columns {', '.join(job.columns().names())}")
    if request.min_users:
        reads.append(f"fewer than {request.min_users:,} users, by a noisy count, would be refused")
    sections = {
        "reads": reads,
        "charges": job.accounting.forecast(cost, request.release_id) if job.accounting else _no_ledger(cost),
        "publishes": _publishes(request),
        "memory": memory_lines(settings, max(job.run_bytes(1).held, 1), request.memory),
        "trust": trust_lines(job),
        "plan": job.plan_text().splitlines(),
    }
    text = [f"sfumato {request.COMMAND}, a dry run: no data file was opened, and nothing was charged or written"]
    for heading, lines in sections.items():
        text += ["", heading, *lines] if heading == "plan" else ["", *_with_margin(heading, lines)]
    return "\n".join(text).rstrip() + "\n"


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


def _with_margin(heading: str, lines: Sequence[str]) -> list[str]:
    """The wrapped lines, to the right of their heading."""
    wrapper = textwrap.TextWrapper(_WIDTH - _MARGIN, break_long_words=False, break_on_hyphens=False)
    wrapped = [part for line in lines for part in wrapper.wrap(line)]
    return [f"{heading if number == 0 else '':<{_MARGIN}}{line}" for number, line in enumerate(wrapped)]


def _no_ledger(cost: Cost) -> list[str]:
    if not math.isfinite(cost.epsilon):
        return ["nothing: there is no differential privacy that a ledger could account for"]
    epsilon, delta = parse_amount("epsilon", cost.epsilon), parse_amount("delta", cost.delta)
    amounts = f"epsilon {format_amount(epsilon)}" + (f" and delta {format_amount(delta)}" if delta else "")
    return [f"no ledger (--ledger): nobody keeps account of the {amounts} that it costs"]


def _publishes(request: ReleaseRequest) -> list[str]:
    replaced = ", in place of an existing release (--overwrite)" if request.overwrite else ""
    lines = [f"{request.output}{replaced}"]
    if request.release_id is not None:
        lines.append(f"as release {request.release_id}")
    elif request.seed is None:
        lines.append("as a release of a random name (--release_id)")
    if request.seed is not None:
        lines.append("UNSAFE: with a key that anybody can guess (--seed)")
    if request.timeline is not None:
        lines.append(f"and brings the page of all releases up to date in {request.timeline}")
    return lines
