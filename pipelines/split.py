"""The commands of two servers: `sfumato client report`, `split key`, `split aggregate` and `split collect`."""

from __future__ import annotations

import hashlib
import json
import logging
import sys
from collections import Counter
from datetime import UTC, datetime

import apache_beam as beam
from apache_beam.runners.runner import PipelineState

from sfumato.pipelines.runners.runner_settings import RunnerSettings
from sfumato.schemas.errors import DataError, NotReadyError, RequestError
from sfumato.schemas.release import MANIFEST_FILE
from sfumato.transforms.heatmap.device_rounds import first_task, map_files, map_state, next_task
from sfumato.transforms.io.files import check_new_file, join, read_file, read_option, write_file, write_output
from sfumato.transforms.io.storage import listed
from sfumato.transforms.observability.logs import log_event
from sfumato.transforms.privacy.ledger.ledger import open_ledger
from sfumato.transforms.privacy.ledger.stores import absolute_location
from sfumato.transforms.privacy.secrets import FileSecret
from sfumato.transforms.release.metadata import code_digest
from sfumato.transforms.release.release_folder import publish
from sfumato.transforms.report.numbers import plural
from sfumato.transforms.split.aggregate import (
    Answered,
    Partial,
    Requests,
    Responses,
    charge_of,
)
from sfumato.transforms.split.answered import device_report
from sfumato.transforms.split.blocks import Block, Part, block_rows, blocks_of
from sfumato.transforms.split.collect import collect, collected_files, release_id_of
from sfumato.transforms.split.hpke import public_key
from sfumato.transforms.split.parties import (
    EXCHANGE_OVERHEAD,
    REQUESTS,
    RESPONSES,
    Aggregator,
    exchange_file,
    party_key,
    private_key,
)
from sfumato.transforms.split.prio3 import LEADER
from sfumato.transforms.split.reports import REASONS, ROLES
from sfumato.transforms.split.request import (
    AggregateRequest,
    CollectRequest,
    PublicKeyRequest,
    ReportRequest,
    TaskRequest,
)
from sfumato.transforms.split.task import Task

_COMPLETE = "complete.json"


def run_key(request: PublicKeyRequest) -> None:
    """Runs `sfumato split key`. Raises RequestError."""
    FileSecret(request.file).check()
    sys.stdout.write(public_key(private_key(party_key(request.file))).hex() + "\n")


def run_report(request: ReportRequest) -> None:
    """Runs `sfumato client report`. Raises RequestError."""
    task = Task.read(request.task)
    check_new_file(request.output, overwrite=False)
    weights = None if request.weights is None else _json("weights", request.weights)
    write_output(request.output, device_report(task, request.location, weights, request.answered))


def run_task(request: TaskRequest) -> None:
    """Runs `sfumato split task`. Raises RequestError."""
    check_new_file(request.output, overwrite=False)
    try:
        plan = read_option("plan", request.plan).decode()
    except UnicodeDecodeError as error:
        raise RequestError(f"plan: {request.plan} is not text ({error})") from None
    write_output(request.output, first_task(plan, request.users).text.encode())


def run_aggregate(request: AggregateRequest, settings: RunnerSettings) -> None:
    """Runs `sfumato split aggregate`. Raises SfumatoErrors, see `close_batch`."""
    places = (request.exchange, request.output, *request.input, request.key_file, request.verify_key, request.ledger)
    settings.check_reach("input, exchange, output, key_file, verify_key, ledger", *places)
    task = Task.read(request.task)
    for path in (request.key_file, request.verify_key):
        FileSecret(path).check()
    aggregator = Aggregator(
        ROLES.index(request.role),
        task,
        request.key_file,
        request.verify_key,
        absolute_location(request.ledger),
        request.dataset,
        request.budget or (),
    )
    _ = aggregator.key, aggregator.verify_key  # which raise RequestError, before anything is read
    if aggregator.role == LEADER:
        _lead(request, settings, aggregator)
    else:
        _help(request, settings, aggregator)


def _lead(request: AggregateRequest, settings: RunnerSettings, leader: Aggregator) -> None:
    files = sorted({(file.path, file.size) for pattern in request.input for file in listed(pattern)})
    if not files:
        raise RequestError(f"input: no file matches {', '.join(request.input)}")
    blocks = blocks_of(files, leader.formats.report.itemsize)
    if _marked(request.exchange, RESPONSES, leader.task) is None:
        _run(blocks, Requests(leader, request.exchange), settings)
        _mark(request.exchange, REQUESTS, leader.task, len(blocks))
        sys.stdout.write(f"{request.exchange}: the requests are complete. Run the helper, then this command again.\n")
        return
    if _marked(request.exchange, RESPONSES, leader.task) != len(blocks):
        raise DataError(
            "input: files of reports were added or removed since the requests; restore them, or start again with an "
            "empty exchange folder"
        )
    _run(blocks, Answered(leader, request.exchange, request.output), settings)
    sys.stdout.write(f"{request.output}: the leader's share, for the collector\n")


def _help(request: AggregateRequest, settings: RunnerSettings, helper: Aggregator) -> None:
    if (number := _marked(request.exchange, REQUESTS, helper.task)) is None:
        raise NotReadyError("exchange: holds no complete requests for this task; run the leader first")
    sizes = {file.path.rsplit("/", 1)[-1]: file.size for file in listed(join(request.exchange, REQUESTS, "*.bin"))}
    record, most = helper.formats.verify_init.itemsize, block_rows(helper.formats.report.itemsize)
    blocks = list[Block]()
    for one in range(number):
        path = exchange_file(request.exchange, REQUESTS, one)
        size = sizes.get(path.rsplit("/", 1)[-1], 0) - EXCHANGE_OVERHEAD
        if size % record or not 0 <= size // record <= most:
            raise DataError(f"exchange: {path} is missing, incomplete or too long; run the leader again")
        blocks.append(Block(one, (Part(path, 0, size // record),)))
    _run(blocks, Responses(helper, request.exchange, request.output), settings)
    _mark(request.exchange, RESPONSES, helper.task, number)
    sys.stdout.write(f"{request.output}: the helper's share, for the collector. The leader can run again.\n")


def _run(blocks: list[Block], work: beam.PTransform, settings: RunnerSettings) -> None:
    with settings.sized(sum(block.rows for block in blocks) * 100).pipeline() as root:
        found = root | "Blocks" >> beam.Create(blocks) | work
        if settings.verbose:
            _ = found | "Rejected" >> beam.Map(_show_rejected)
    if root.result.state != PipelineState.DONE:
        raise DataError(f"the runner ended the job as {root.result.state}; run the command again to resume it")


def _show_rejected(found: Partial | Counter[int]) -> None:
    for reason, number in sorted((found.rejected if isinstance(found, Partial) else found).items()):
        log_event("rejected", f"{plural(number, 'report')} left out: {REASONS[reason]}", logging.INFO)


def run_collect(request: CollectRequest) -> None:
    """Runs `sfumato split collect`. Raises SfumatoErrors."""
    tasks = [Task.read(path) for path in request.task]
    FileSecret(request.key_file).check()
    private = private_key(party_key(request.key_file))
    if {public_key(private).hex()} != {task.collector for task in tasks}:
        raise RequestError("key_file: is not the key that the task names in collector; see `sfumato split key`")
    shares = [
        [read_option(*one) for one in zip(ROLES, paths, strict=True)]
        for paths in zip(request.leader, request.helper, strict=True)
    ]
    rounds = [collect(task, both, private) for task, both in zip(tasks, shares, strict=True)]
    created = [_charged(request, task, both) for task, both in zip(tasks, shares, strict=True)][-1]
    made = created, code_digest()
    if tasks[0].map is not None:
        state = map_state(tasks, rounds)
        if state.query is not None:
            _publish_next(request, next_task(tasks[-1], state))
            return
        files = map_files(tasks, state, *made)
    elif len(tasks) == 1:
        files = collected_files(rounds[0], tasks[0], *made)
    else:
        raise RequestError("task: several tasks must be the rounds of one map; collect each of these separately")
    release_id = release_id_of(tasks[0])
    publish(request.output, files, release_id, request.overwrite)
    if request.ledger is not None:
        open_ledger(absolute_location(request.ledger)).commit(
            release_id, hashlib.sha256(files[MANIFEST_FILE]).hexdigest()
        )
    sys.stdout.write(f"{join(request.output, 'index.html')}\n")


def _charged(request: CollectRequest, task: Task, shares: list[bytes]) -> str:
    """Returns when the counts of a task were first charged, in ISO 8601, so that a repeated run makes the same release.

    Without a ledger it is the present. Raises ReusedError: the task was collected before, from other shares.
    """
    if request.ledger is None:
        return datetime.now(UTC).isoformat(timespec="seconds")
    assert request.dataset is not None
    binding = hashlib.sha256(b"".join(hashlib.sha256(one).digest() for one in shares)).hexdigest()
    charge = charge_of(task, release_id_of(task), "split collect", request.dataset, binding)
    return open_ledger(absolute_location(request.ledger)).reserve(charge, request.budget or ()).time


def _publish_next(request: CollectRequest, task: Task) -> None:
    if request.next is None:
        raise RequestError("next: the map needs another round; name a file for its task with --next FILE")
    check_new_file(request.next, request.overwrite)
    write_output(request.next, task.text.encode())
    sys.stdout.write(f"{request.next}: the task of the map's next round, for devices and both operators\n")


def _json(option: str, path: str) -> object:
    try:
        found: object = json.loads(read_option(option, path))
    except (ValueError, RecursionError) as error:
        raise RequestError(f"{option}: {path} is not JSON ({error})") from None
    return found


def _marked(exchange: str, kind: str, task: Task) -> int | None:
    """Returns the number of blocks of complete requests or responses; None where there are none yet.

    Raises DataError: they are of another task.
    """
    try:
        content = json.loads(read_file(join(exchange, kind, _COMPLETE)))
        if content["task"] == task.id.hex() and type(content["blocks"]) is int and 0 <= content["blocks"] < 1 << 32:
            return int(content["blocks"])
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise DataError(f"exchange: {kind}/{_COMPLETE} cannot be read ({error})") from None
    raise DataError(f"exchange: the {kind} are of another task; use an exchange folder for each task")


def _mark(exchange: str, kind: str, task: Task, blocks: int) -> None:
    write_file(join(exchange, kind, _COMPLETE), json.dumps({"task": task.id.hex(), "blocks": blocks}).encode())
