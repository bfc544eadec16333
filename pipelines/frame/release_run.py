"""The run of a job that publishes a release, in ten steps: see `run_release`."""

from __future__ import annotations

import importlib.util
import json
import logging
import math
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

import apache_beam as beam
from apache_beam.io.filesystems import FileSystems
from apache_beam.options.pipeline_options import GoogleCloudOptions, TestOptions
from apache_beam.runners.runner import PipelineResult, PipelineState

from sfumato.pipelines.frame.accounting import LedgerGate, admission_cost, rho_amount
from sfumato.pipelines.frame.console import identify, log_metrics, show_progress
from sfumato.pipelines.frame.dry_run import dry_run_text, unrecorded, with_trust
from sfumato.pipelines.frame.inputs import (
    ICEBERG,
    InputFile,
    inspect,
    layout_of,
    log_late_files,
    match_files,
    named_by_content,
    select_input,
    times_notice,
)
from sfumato.pipelines.frame.job import Inputs, ReleaseJob
from sfumato.pipelines.frame.run_key import key_and_metadata, secret_of
from sfumato.pipelines.frame.scratch import plan_memory, scratch
from sfumato.pipelines.runners.failures import error_of
from sfumato.pipelines.runners.runner_settings import RunnerSettings, flex_launch, launch_nothing
from sfumato.schemas.errors import DataError, NotAdmittedError, RefusedError, RequestError
from sfumato.schemas.guarantee import ADD_OR_REMOVE, ADJACENCY_TEXTS, Trust
from sfumato.schemas.ledger import Reservation, parse_amount
from sfumato.schemas.locations import Columns
from sfumato.schemas.log_roles import check_unit
from sfumato.schemas.region import ground_metres
from sfumato.schemas.release import PAGE_FILE
from sfumato.schemas.requests.log_columns import PlaceColumns, UserColumn
from sfumato.schemas.requests.publish_request import MapGeography, ReleaseRequest
from sfumato.schemas.views.map_views import Geography
from sfumato.transforms.inputs.bigquery_table import BIGQUERY
from sfumato.transforms.inputs.local_time import zone_warning
from sfumato.transforms.inputs.log_reader import bundled
from sfumato.transforms.io.files import is_remote
from sfumato.transforms.observability.logs import log_event
from sfumato.transforms.privacy.admission import AdmissionRule
from sfumato.transforms.privacy.keys import RunKey
from sfumato.transforms.release.basemap_file import CITIES_SOURCE, COAST, order_warning
from sfumato.transforms.release.catalog import check_not_lost
from sfumato.transforms.release.metadata import ReleaseMetadata
from sfumato.transforms.release.notices import refusal_files
from sfumato.transforms.release.publishing import commit_release, is_published, with_charge_statement, write_release
from sfumato.transforms.release.release_folder import check_output, is_refusal, manifest_at, publish


def run_release(job: ReleaseJob, settings: RunnerSettings, audit: bool = False) -> None:
    """Checks a job's files, output and ledger, then runs its graph, which charges the ledger.

    Prints the path of the release's page. The ten steps:

    1. Check that the runner reaches every path, and that the output is free or belongs to a charge of this release id.
    2. List the files that match. A dry run reads the first one's columns, prints its plan here and ends.
    3. With a ledger, select the files that the charge covers.
    4. Read the files' footers: columns, types, number of rows.
    5. Derive the key, bound to the secret, the request and the data.
    6. Ask the ledger whether it allows the charge. A release that is published already ends here, without a new charge.
    7. Choose the workers and where bulky data are kept.
    8. Run the graph: read, bound, count users with noise, charge, add noise, write, commit.
    9. If the noisy counts refuse the run, publish the reason.
    10. Report metrics and warnings, and print the page.

    audit: whether the run is of an audit, see `key_and_metadata`.

    Nothing before step 8 reads a record, and nothing is drawn before the charge but the noisy counts of users, which
    the charge covers.

    Raises:
        RequestError, NotReadyError, BudgetError or LedgerError: the run cannot start, or the ledger refuses its charge.
        DataError: the input cannot be read, or the runner failed.
        RefusedError: the noisy counts refused the run, and the reason was published. A Flex launch does not wait for
            its job: there the ledger alone holds the reason.
    """
    request = job.request
    identify(job=request.JOB, release_id=request.release_id)
    # 1. Places.
    check_places(job, settings)
    warn_of_options(job)
    resumed = resumed_charge(job)
    # 2. Files.
    files = match_files(request.input, layout_of(request, job.columns()), request.where)
    if request.dry_run:
        secret_of(job, settings.local)  # a key that cannot be used is refused, as by the run,
        inspect(files[:1], job.columns())  # and so is a column that is missing
        sys.stdout.write(dry_run_text(job, files, settings))
        return
    # 3. Files of the charge.
    files, digests = _select_files(job, files, resumed)
    # 4. Footers.
    rows, column_types = inspect(files, job.columns())
    warn_of_cells(job)
    # 5. The key.
    key, metadata = key_and_metadata(job, files, local=settings.local, audit=audit)
    identify(release_id=metadata.release_id)
    # 6. Does the ledger allow the charge? It is charged in step 8, once all input is read.
    gate, metadata = gate_of(job, key, metadata, digests)
    reservation = None if gate is None else gate.check()
    charge = metadata.release_id, request.timeline, metadata.ledger_location
    if reservation is not None and _is_published(reservation, request.output):
        commit_release(request.output, *charge)
        launch_nothing(settings)
        _print_page(request.output)
        return
    # 7. Workers and memory.
    settings = settings.sized(rows)
    memory = plan_memory(settings, rows, job.run_bytes(rows), request.memory)
    settings = settings.with_workers(memory.workers) if settings.local else settings
    log_event("files", f"{len(files)} file{'s'[: len(files) != 1]} to read", files=len(files))
    log_assumptions(job)
    log_times(request, files, job.columns())
    logs = named_by_content(files) if job.is_repeatable else [file.log for file in files]
    # 8. The graph: it charges the ledger, draws all noise and publishes.
    rule = job.admission()
    try:
        with (
            scratch(memory) as spill,
            show_progress(len(files), settings.verbose, settings.log_format),
            settings.pipeline() as root,
        ):
            inputs = Inputs(column_types, spill, job.charge_and_admit(gate))
            bundles = root | "Files" >> beam.Create(bundled(logs))  # PCollection[tuple[LogFile, ...]]
            _ = (
                job.files(bundles, inputs, key, metadata)  # PCollection[dict[file name, bytes]]
                | "Write" >> beam.Map(write_release, request.output, metadata, request.overwrite)  # PCollection[path]
                | "CommitRelease" >> beam.Map(commit_release, *charge)
            )
    except Exception as error:
        # 9. A refusal. Beam adds the failing step to a message; the published reason goes without it.
        refusal = error_of(error)
        if isinstance(refusal, RefusedError):
            _publish_refusal(job, with_charge_statement(metadata), rule, refusal)
            raise refusal from error
        raise
    # 10. The report.
    if flex_launch(settings):
        text = f"handed to Dataflow, which publishes {request.output} when it is done"
        log_event("launched", text, output=request.output)
    else:
        _report(root.result, settings, request.output)


def check_places(job: ReleaseJob, settings: RunnerSettings) -> None:
    """Raises RequestError for paths that the runner cannot reach, and for templates that would repeat their noise."""
    launched = flex_launch(settings)
    _ = job.geography  # a file that cannot be used is a bad request
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


def resumed_charge(job: ReleaseJob) -> Reservation | None:
    """Returns the charge that an earlier run made under this release id. Without one the output must be free."""
    resumed, release_id = None, job.request.release_id
    if job.accounting is not None and not job.discloses and release_id is not None:
        resumed = job.accounting.open().history().reservations.get(release_id)
    if resumed is None:
        check_output(job.request.output, job.request.overwrite, job.FORMAT)
    return resumed


def _select_files(
    job: ReleaseJob, files: list[InputFile], resumed: Reservation | None
) -> tuple[list[InputFile], list[str]]:
    """Returns the files that the run reads and their keyed digests, see `select_input`."""
    if job.accounting is None:
        return files, []
    if not job.discloses:
        history, dataset = job.accounting.open().history(), job.accounting.dataset
        check_not_lost(history, dataset, job.request.output, job.request.timeline)
    files, late, digests = select_input(job.kept_secret, files, resumed, job.columns())
    log_late_files(late, str(job.request.release_id))
    return files, digests


def gate_of(
    job: ReleaseJob, key: RunKey, metadata: ReleaseMetadata, digests: Sequence[str] = ()
) -> tuple[LedgerGate | None, ReleaseMetadata]:
    """Returns what will charge the ledger, None without one, and the metadata, which name a ledger that is charged."""
    ledger = job.accounting
    if ledger is None:
        return None, metadata
    gate = LedgerGate(ledger, ledger.planned(job.cost(), key, metadata, digests))
    return gate, metadata if job.discloses else replace(metadata, ledger_location=ledger.ledger)


def _is_published(reservation: Reservation, output: str) -> bool:
    """Returns whether the reserved release is published already. One that is gone or damaged is made again."""
    release_id = reservation.charge.release_id
    if reservation.refusal is None and is_published(output, reservation):
        log_event("already_published", f"{release_id} is published already; nothing is charged")
        return True
    if reservation.manifest is not None:
        text = f"{release_id} was published, and is gone or damaged at {output}"
        log_event("made_again", f"{text}: it is made again, and nothing is charged", logging.WARNING)
    return False


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
    """Logs what a refusal spends. Publishes its reason at the release's place unless a release is published there."""
    cost = job.cost()
    if math.isinf(cost.epsilon):  # a notice states how much of the epsilon was spent, and there is none
        return
    epsilon = parse_amount("epsilon", cost.epsilon)
    if isinstance(refusal, NotAdmittedError):  # only the noisy counts of users were drawn
        spent, delta, _ = admission_cost(rule.cost, epsilon, parse_amount("delta", cost.delta), rho_amount(cost))
        adjacency, bits = ADD_OR_REMOVE, None
    else:
        spent, delta, adjacency, bits = epsilon, parse_amount("delta", cost.delta), cost.adjacency, cost.bits
    log_event("refused", f"refused: this costs epsilon {spent:.3g} of {epsilon:.3g}", epsilon=float(spent))
    existing = manifest_at(job.request.output)
    if existing is not None and not is_refusal(existing):
        return
    files = refusal_files(metadata, str(refusal), epsilon, spent, delta, ADJACENCY_TEXTS[adjacency], bits)
    publish(job.request.output, files, metadata.release_id, job.request.overwrite)


def log_assumptions(job: ReleaseJob) -> None:
    """Logs what a run takes for granted where no option says otherwise: no ledger, secagg, no geography."""
    request = job.request
    if job.accounting is None and request.seed is None and not job.discloses:
        log_event("no_ledger", unrecorded(job.cost()))
        if job.parameters().get("trust") == Trust.SECAGG and not request.given(("trust",)):
            with suppress(RequestError):  # with these options a curator is not offered
                central = with_trust(job, Trust.CENTRAL).accuracy()
                own = f"--trust secagg, the default: {job.accuracy()}"
                log_event("trust", f"{own}; for logs that you hold, --trust central: {central}")
    files = {} if job.geography is None else {"basemap.json": job.geography}
    basemap = Geography.of(files).basemap
    is_bare = basemap is None or basemap.source == CITIES_SOURCE
    if isinstance(request, MapGeography) and request.has_map and is_bare:
        install = "" if importlib.util.find_spec(COAST) else ", or pip install '.[coast]'"
        log_event("no_coast", f"the map will show no coast or streets: give --basemap FILE{install}")


def log_times(request: ReleaseRequest, files: Sequence[InputFile], columns: Columns) -> None:
    """Logs how times without a zone are read: a warning if they are converted, because that may move them by hours."""
    if (notice := times_notice(request, files, columns)) is not None:
        level = logging.INFO if request.time_zone is None else logging.WARNING
        log_event("local_times", "; ".join(notice), level)


def warn_of_options(job: ReleaseJob) -> None:
    """Logs a warning of a region or days that are probably others, by what the options say.

    Raises RequestError: the ids are probably those of trips, not of people, or the region is at sea and probably in the
        order SOUTH,WEST,NORTH,EAST.
    """
    request = job.request
    region = request.region if isinstance(request, MapGeography) else None
    if isinstance(request, UserColumn):
        check_unit(request.user_id_column, request.title)
    mean = "; --average_day publishes the mean of its days" if "average_day" in type(request).model_fields else ""
    all_days = f"--hours without --period counts all days of the logs together: give --period FIRST:LAST{mean}"
    is_of_folders = request.where or any("=" in pattern for pattern in request.input)  # dt=2026-11-20
    all_rows = "--period without --day_column counts all rows of the files, whatever their days: give --day_column NAME"
    exchanged = region and order_warning(region)
    if region and exchanged and zone_warning(region, None):
        raise RequestError(f"region: {exchanged}; as it is, it has no land: if you mean the sea, add some land to it")
    warnings = {
        "period": all_rows if request.period and not (request.day_column or is_of_folders) else None,
        "region": exchanged or (region and zone_warning(region, request.time_zone)),
        "hours": all_days if request.hours and request.period is None else None,
    }
    for event, warning in warnings.items():
        if warning:
            log_event(event, warning, logging.WARNING)


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
