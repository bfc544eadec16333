"""What one aggregator does with the reports of a task, on Beam over files of reports.

    leader:  reports                     -> exchange/requests/NUMBER.bin     `Requests`
    helper:  exchange/requests           -> its share of the counts, and exchange/responses/NUMBER.bin   `Responses`
    leader:  reports, exchange/responses -> its share of the counts          `Answered`

Reports are divided into blocks of one size, numbered in the order of the files; the exchange has a file for each
block. The helper answers after it has charged and closed the batch: before, the leader learns of no report whether its
proof is right, and afterwards it can try no other batch. All that is written is a function of the reports, the task and
the keys, so a run that was killed is repeated with the same bytes, and charged once. Nothing of a report is kept: the
leader reads the reports again.

The share leaves with the aggregator's own noise. Its charge is bound to the accepted reports: the ledger refuses a
second, other batch of the task.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import hmac
import json
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from typing import Any

import apache_beam as beam
import numpy as np
from numpy.typing import NDArray

from sfumato.schemas.errors import DataError, RefusedError
from sfumato.schemas.guarantee import Trust
from sfumato.schemas.ledger import Charge, Period, parse_amount
from sfumato.transforms.io.files import join, write_file
from sfumato.transforms.privacy.additive_noise import LAPLACE
from sfumato.transforms.privacy.ledger.ledger import open_ledger
from sfumato.transforms.split.blocks import ANSWERS, OverBlocks
from sfumato.transforms.split.field128 import MODULUS, Words
from sfumato.transforms.split.hpke import seal
from sfumato.transforms.split.parties import REQUESTS, RESPONSES, Aggregator, exchange_file, private_key
from sfumato.transforms.split.prio3 import HELPER, LEADER, add_shares, encode_share, reduced
from sfumato.transforms.split.reports import (
    CONTINUE,
    INVALID,
    REJECT,
    ROLES,
    UNPROVEN,
    Opened,
    Records,
)
from sfumato.transforms.split.task import Task

_INFO = {LEADER: b"dap-18 aggregate share\x02\x00", HELPER: b"dap-18 aggregate share\x03\x00"}
SHARE_FORMAT = "sfumato split share 1"


@dataclass(frozen=True)
class Partial:
    """Sums over accepted reports: of shares, of the reports' number, and of keyed digests of their ids.

    Attributes:
        sums: uint64[length, 4], see `add_shares`.
        reports: number of accepted reports.
        checksum: 32 bytes.
        rejected: reports that were left out, by reason.
    """

    sums: Words
    reports: int = 0
    checksum: bytes = bytes(32)
    rejected: Counter[int] = field(default_factory=Counter)

    @classmethod
    def nothing(cls, length: int, errors: NDArray[np.uint8] | None = None) -> Partial:
        """Returns the sums of no report. errors: of those that were left out."""
        rejected = Counter[int]() if errors is None else Counter(errors[errors > 0].tolist())
        return cls(np.zeros((length, 4), dtype=np.uint64), rejected=rejected)

    @classmethod
    def of(cls, out_shares: Words, ids: NDArray[np.uint8], verify_key: bytes, errors: NDArray[np.uint8]) -> Partial:
        """Returns the sums over accepted reports, of uint64[R, length, 2] and uint8[R, 16]. errors: of all reports."""
        digests = [hmac.digest(verify_key, one.tobytes(), hashlib.sha256) for one in ids]
        rejected = Counter(errors[errors > 0].tolist())
        return cls(add_shares(out_shares), len(ids), functools.reduce(_xor, digests, bytes(32)), rejected)

    def __add__(self, other: Partial) -> Partial:
        checksum = _xor(self.checksum, other.checksum)
        return Partial(self.sums + other.sums, self.reports + other.reports, checksum, self.rejected + other.rejected)


def _xor(left: bytes, right: bytes) -> bytes:
    return bytes(a ^ b for a, b in zip(left, right, strict=True))


class _AddPartials(beam.CombineFn):
    def __init__(self, length: int) -> None:
        self._length = length

    def create_accumulator(self, *args: Any, **kwargs: Any) -> Partial:
        return Partial.nothing(self._length)

    def add_input(self, accumulator: Partial, element: Partial, *args: Any, **kwargs: Any) -> Partial:
        return accumulator + element

    def merge_accumulators(self, accumulators: Iterable[Partial], *args: Any, **kwargs: Any) -> Partial:
        return functools.reduce(Partial.__add__, accumulators, self.create_accumulator())

    def extract_output(self, accumulator: Partial, *args: Any, **kwargs: Any) -> Partial:
        return accumulator


class Requests(beam.PTransform):
    """Blocks of reports -> files of requests to the helper, and a Counter of rejections. Nothing is charged."""

    def __init__(self, leader: Aggregator, exchange: str) -> None:
        super().__init__()
        self._leader, self._exchange = leader, exchange

    def expand(self, blocks: beam.PCollection) -> beam.PCollection:
        return (blocks | OverBlocks(self._leader, partial(_request, self._leader, self._exchange))).sums


def _request(
    leader: Aggregator, exchange: str, number: int, records: Records, opened: Opened
) -> Iterator[Counter[int]]:
    formats, prio3, errors = leader.formats, leader.task.prio3, opened.errors
    rows = np.flatnonzero(errors == 0)
    found, kept = records[rows], np.zeros(0, dtype=np.int64)
    requests = formats.filled(0, formats.verify_init)
    if len(rows):
        seen = prio3.verify_init(LEADER, leader.verify_key, found["id"], found["public"], opened.shares[rows])
        errors[rows[~seen.is_valid]] = INVALID
        kept = np.flatnonzero(seen.is_valid)
        requests = formats.filled(len(kept), formats.verify_init)
        requests["verifier"] = seen.verifier_shares[kept]
    for name in ("id", "time", "public", "helper_enc", "helper_payload"):
        requests[name] = found[name][kept]
    leader.write_exchange(exchange, REQUESTS, number, requests.tobytes())
    yield Counter(errors[errors > 0].tolist())


class Responses(beam.PTransform):
    """Blocks of requests -> one Partial: the helper's sums. Writes its share, and then the files of responses."""

    def __init__(self, helper: Aggregator, exchange: str, output: str) -> None:
        super().__init__()
        self._helper, self._exchange, self._output = helper, exchange, output

    def expand(self, blocks: beam.PCollection) -> beam.PCollection:
        found = blocks | OverBlocks(self._helper, partial(_respond, self._helper))
        total, closed = _closed(found.sums, self._helper, self._output)
        answer, after = partial(_answer, self._helper, self._exchange), beam.pvalue.AsSingleton(closed)
        _ = found[ANSWERS] | "Answer" >> beam.Map(answer, after)  # PCollection[tuple[number, responses]]
        return total


def _closed(sums: beam.PCollection, aggregator: Aggregator, output: str) -> tuple[beam.PCollection, beam.PCollection]:
    """Returns the sum of Partials, and the path of the share that it makes."""
    total = sums | "Sum" >> beam.CombineGlobally(_AddPartials(aggregator.task.circuit.length))
    return total, total | "Close" >> beam.Map(close_batch, aggregator, output)


def _answer(helper: Aggregator, exchange: str, responses: tuple[int, bytes], _share: str) -> None:
    number, content = responses
    helper.write_exchange(exchange, RESPONSES, number, content)


def _respond(helper: Aggregator, number: int, records: Records, opened: Opened) -> Iterator[Any]:
    formats, prio3, errors = helper.formats, helper.task.prio3, opened.errors
    if not len(records):
        yield beam.pvalue.TaggedOutput(ANSWERS, (number, b""))
        return
    seen = prio3.verify_init(HELPER, helper.verify_key, records["id"], records["public"], opened.shares)
    messages, is_proven = prio3.combine([records["verifier"], seen.verifier_shares])
    errors[(errors == 0) & ~(is_proven & seen.is_valid & seen.accepts(messages))] = UNPROVEN
    accepted = errors == 0
    responses = formats.filled(len(records), formats.verify_resp)
    responses["id"], responses["error"] = records["id"], errors
    responses["type"] = np.where(accepted, CONTINUE, REJECT)
    responses["message"] = np.where(accepted[:, None], messages, 0)
    yield Partial.of(seen.out_shares[accepted], records["id"][accepted], helper.verify_key, errors)
    yield beam.pvalue.TaggedOutput(ANSWERS, (number, responses.tobytes()))


class Answered(beam.PTransform):
    """Blocks of reports -> one Partial: the leader's sums of reports that the helper accepted. Writes its share."""

    def __init__(self, leader: Aggregator, exchange: str, output: str) -> None:
        super().__init__()
        self._leader, self._exchange, self._output = leader, exchange, output

    def expand(self, blocks: beam.PCollection) -> beam.PCollection:
        found = blocks | OverBlocks(self._leader, partial(_finish, self._leader, self._exchange))
        return _closed(found.sums, self._leader, self._output)[0]


def _finish(leader: Aggregator, exchange: str, number: int, records: Records, opened: Opened) -> Iterator[Partial]:
    formats, errors = leader.formats, opened.errors
    answers = leader.read_exchange(exchange_file(exchange, RESPONSES, number), RESPONSES, number)
    responses, rest = formats.parse(answers, formats.verify_resp)
    # Each response must be about one readable report. So the leader counts a report once, whatever the helper answers.
    rows = {records["id"][row].tobytes(): int(row) for row in np.flatnonzero(errors == 0)}
    found = [rows.pop(one.tobytes(), -1) for one in responses["id"]]
    if rest or -1 in found:
        raise DataError(
            f"exchange: the responses of block {number} are not about these reports; run the leader and the "
            "helper again with an empty exchange folder"
        )
    errors[list(rows.values())] = INVALID
    if not found:
        yield Partial.nothing(leader.task.circuit.length, errors)
        return
    answered = np.array(found, dtype=np.int64)
    ids, public, shares = records["id"][answered], records["public"][answered], opened.shares[answered]
    out_shares, agrees = leader.task.prio3.finish(LEADER, ids, public, shares, responses["message"])
    agrees &= responses["type"] == CONTINUE
    errors[answered[~agrees]] = UNPROVEN
    yield Partial.of(out_shares[agrees], ids[agrees], leader.verify_key, errors)


def close_batch(accepted: Partial, aggregator: Aggregator, output: str) -> str:
    """Charges the ledger, adds the aggregator's noise, and writes its share of the counts for the collector.

    Returns the file of the share.

    Raises:
        ReusedError: the task was opened before, with other reports.
        BudgetError: the charge would exceed a limit.
        RefusedError: the noisy number of reports is below the task's minimum.
    """
    task, role = aggregator.task, aggregator.role
    # The batch's name, the same of both operators. No one else can check a guess at it.
    named = accepted.checksum + accepted.reports.to_bytes(8, "big")
    batch = hmac.digest(aggregator.verify_key, named, hashlib.sha256).hex()
    # Ids say nothing of what reports hold: with the same noise on other sums, the difference would show a report.
    sums = hashlib.sha256(encode_share(reduced(accepted.sums))).hexdigest()
    key = aggregator.key.narrowed({"split": task.id.hex(), "batch": batch, "sums": sums})
    release_id = f"split-{ROLES[role]}-{task.id.hex()[:32]}"
    charge = charge_of(task, release_id, "split aggregate", aggregator.dataset, key.binding)
    ledger = open_ledger(aggregator.ledger)
    earlier = ledger.reserve(charge, aggregator.budget).refusal
    stream = np.array([role], dtype=np.uint64)
    reports = accepted.reports + int(LAPLACE.draw(key, "number of reports", stream, 1, task.count_epsilon)[0, 0])
    if earlier is not None or reports < task.min_batch:
        reason = f"fewer than {task.min_batch:,} reports, by a noisy count"
        ledger.settle(charge.release_id, task.count_epsilon, 0, reason, binding=charge.binding)
        raise RefusedError(f"min_batch: {reason}; no share was written")
    noise = LAPLACE.draw(key, "split noise", stream, task.circuit.length, task.sums_epsilon, task.max_value)[0]
    share = [(own + added) % MODULUS for own, added in zip(reduced(accepted.sums), noise.tolist(), strict=True)]
    associated, plain = share_associated(task, role, batch, reports), encode_share(share)
    # Of the content too, so that other noise, such as of another version, is never sealed with the same key stream.
    secret = hmac.digest(key.subkey("seal"), associated + plain, hashlib.sha256)
    to, own = bytes.fromhex(task.collector), private_key(aggregator.key)
    enc, payload = seal(to, _INFO[role], associated, plain, secret, own)
    content = {
        "format": SHARE_FORMAT,
        "task": task.id.hex(),
        "role": ROLES[role],
        "batch": batch,
        "reports": reports,
        "enc": enc.hex(),
        "payload": base64.b64encode(payload).decode(),
    }
    path = join(output, f"{ROLES[role]}.share.json")
    write_file(path, json.dumps(content, indent=1).encode())
    return path


def share_associated(task: Task, role: int, batch: str, reports: int) -> bytes:
    """Returns the data that a share is bound to."""
    return json.dumps([SHARE_FORMAT, task.text, ROLES[role], batch, reports]).encode()


def share_info(role: int) -> bytes:
    """Returns what an aggregator's encrypted share is for."""
    return _INFO[role]


def charge_of(task: Task, release_id: str, job: str, dataset: str, binding: str) -> Charge:
    """Returns what a task costs a dataset. binding: of all that may be opened under the charge."""
    days = [datetime.fromtimestamp(second, UTC).date() for second in (task.start, task.end - 1)]
    return Charge(
        release_id=release_id,
        job=job,
        dataset=dataset,
        period=Period(*days),
        request=task.id.hex(),
        binding=binding,
        epsilon=parse_amount("epsilon", task.epsilon),
        delta=parse_amount("delta", 0),
        trust=Trust.SPLIT,
    )
