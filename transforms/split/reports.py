"""Reports and what the two aggregators exchange about them, as records of one size for a task (DAP 18's messages).

A device writes a `Report`. The leader sends the helper a `VerifyInit` for each report that it can read, and gets a
`VerifyResp` back. All records of a kind have the same size, whatever they hold, so files are arrays of records.
Ciphertexts are bound to the task, the time and the public share: a report that is changed, or sent to another task, is
not opened.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sfumato.transforms.split.hpke import ENC_SIZE, OVERHEAD, Opener, seal
from sfumato.transforms.split.prio3 import HELPER, HELPER_SIZE, LEADER, NONCE_SIZE, SEED_SIZE, Bytes
from sfumato.transforms.split.task import PRECISION, Task

ROLES = ("leader", "helper")
_CHUNK_BYTES = 1 << 21  # of reports that are made at once: 30 MB of memory
_HEAD = 6  # bytes before the share in a plaintext: no extensions, and the share's length
_INFO = {LEADER: b"dap-18 input share\x01\x02", HELPER: b"dap-18 input share\x01\x03"}
CONTINUE, REJECT = 0, 2  # types of a VerifyResp
# Why a report is left out, by the number of a DAP ReportError.
REPLAYED, UNREADABLE, UNPROVEN, INVALID, NOT_STARTED, EXPIRED = 2, 5, 6, 8, 10, 7
REASONS = {
    REPLAYED: "replayed: another report has the same id",
    UNREADABLE: "not encrypted to this aggregator, or for another task",
    UNPROVEN: "the proof is wrong",
    INVALID: "malformed",
    NOT_STARTED: "made before the task's window",
    EXPIRED: "made after the task's window",
}
Records = NDArray[np.void]


@dataclass(frozen=True)
class Formats:
    """The records of a task."""

    task: Task

    @cached_property
    def _bound(self) -> bytes:
        """What ciphertexts of the task are bound to: its id and content."""
        text = self.task.text.encode()
        return self.task.id + len(text).to_bytes(4, "big") + text

    @cached_property
    def _metadata(self) -> list[tuple[Any, ...]]:
        public = self.task.prio3.public_size
        return [
            ("id", "u1", NONCE_SIZE), ("time", ">u8"), ("extensions", ">u2"),
            ("public_length", ">u4"), ("public", "u1", public),
        ]  # fmt: skip

    def _ciphertext(self, role: int) -> list[tuple[Any, ...]]:
        size = _HEAD + (self.task.prio3.leader_size if role == LEADER else HELPER_SIZE) + OVERHEAD
        name = ROLES[role]
        return [
            (f"{name}_key", "u1"), (f"{name}_enc_length", ">u2"), (f"{name}_enc", "u1", ENC_SIZE),
            (f"{name}_length", ">u4"), (f"{name}_payload", "u1", size),
        ]  # fmt: skip

    @cached_property
    def report(self) -> np.dtype[np.void]:
        """What a device sends."""
        return np.dtype([*self._metadata, *self._ciphertext(LEADER), *self._ciphertext(HELPER)])

    @cached_property
    def verify_init(self) -> np.dtype[np.void]:
        """What the leader sends the helper for a report."""
        size = self.task.prio3.verifier_size
        verifier = [("verifier_length", ">u4"), ("verifier", "u1", size)]
        return np.dtype([*self._metadata, *self._ciphertext(HELPER), *verifier])

    @cached_property
    def verify_resp(self) -> np.dtype[np.void]:
        """What the helper answers: the verifier message, or the reason of a rejection and zeros."""
        return np.dtype([("id", "u1", NONCE_SIZE), ("type", "u1"), ("error", "u1"), ("message", "u1", SEED_SIZE)])

    @property
    def randomness_size(self) -> int:
        """Bytes of a device's randomness: the report's id, the shares', and a secret of each encryption."""
        return NONCE_SIZE + self.task.prio3.randomness_size + len(ROLES) * SEED_SIZE

    def parse(self, content: bytes, kind: np.dtype[np.void]) -> tuple[Records, int]:
        """Returns the complete records in a file's content, and the number of bytes after them."""
        rest = len(content) % kind.itemsize
        return np.frombuffer(content[: len(content) - rest], dtype=kind), rest

    def filled(self, rows: int, kind: np.dtype[np.void]) -> Records:
        """Returns records with all lengths and key ids in place, and zeros otherwise."""
        records = np.zeros(rows, dtype=kind)
        for name, value in self._constants(kind).items():
            records[name] = value
        return records

    def well_formed(self, records: Records) -> NDArray[np.bool_]:
        """Returns which records have the lengths and key ids of this task: bool[R]."""
        found = np.ones(len(records), dtype=np.bool_)
        for name, value in self._constants(records.dtype).items():
            found &= records[name] == value
        return found

    def _constants(self, kind: np.dtype[np.void]) -> dict[str, int]:
        assert kind.names is not None
        found = {"extensions": 0, "public_length": self.task.prio3.public_size}
        found["verifier_length"] = self.task.prio3.verifier_size
        for role in ROLES:
            found[f"{role}_key"] = key_id(getattr(self.task, role))
            found[f"{role}_enc_length"] = ENC_SIZE
            if f"{role}_payload" in kind.names:
                found[f"{role}_length"] = kind[f"{role}_payload"].itemsize
        return {name: value for name, value in found.items() if name in kind.names}

    def associated(self, record: np.void) -> bytes:
        """Returns the data that a record's ciphertexts are bound to."""
        head = sum(np.dtype(one[1:] if len(one) == 3 else one[1]).itemsize for one in self._metadata)
        return self._bound + record.tobytes()[:head]


def key_id(public: str) -> int:
    """Returns the id of a public key in hexadecimal: a number that tells an aggregator which of its keys to use."""
    return int(public[:2], 16)


def make_reports(
    task: Task,
    measurements: Sequence[int | Sequence[int]],
    made_at: float | None = None,
    randomness: bytes | None = None,
) -> bytes:
    """Returns the reports of some devices for a task, as bytes of one length each.

    Args:
        task: which the devices trust, and answer once each.
        measurements: a cell each, or whole weights of all cells with a sum of at most `task.max_value`.
        made_at: seconds since 1970; None for now. Rounded down to PRECISION.
        randomness: `Formats.randomness_size` bytes for each device, for tests only; None for the operating system's.

    Raises:
        RequestError: a measurement is out of range.
    """
    formats, rows = Formats(task), len(measurements)
    each, at_once = formats.randomness_size, max(1, _CHUNK_BYTES // formats.report.itemsize)
    drawn = np.frombuffer(randomness or os.urandom(rows * each), dtype=np.uint8).reshape(rows, each)
    now = int(time.time() if made_at is None else made_at) // PRECISION * PRECISION
    parts = (slice(first, first + at_once) for first in range(0, rows, at_once))
    return b"".join(_made(formats, measurements[part], now, drawn[part]) for part in parts)


def _made(formats: Formats, measurements: Sequence[int | Sequence[int]], now: int, drawn: Bytes) -> bytes:
    """Returns reports that are in memory at once. drawn: uint8[R, randomness_size]."""
    task, prio3, rows = formats.task, formats.task.prio3, len(measurements)
    ids, rest, secrets = np.split(drawn, [NONCE_SIZE, NONCE_SIZE + prio3.randomness_size], axis=1)
    records = formats.filled(rows, formats.report)
    public, shares = prio3.shard(measurements, ids, rest)
    records["id"], records["public"], records["time"] = ids, public, now
    for row in range(rows):
        associated = formats.associated(records[row])
        for role, share, secret in zip(ROLES, shares, np.split(secrets[row], len(ROLES)), strict=True):
            plain = bytes(2) + share.shape[1].to_bytes(4, "big") + share[row].tobytes()
            key, info = bytes.fromhex(getattr(task, role)), _INFO[ROLES.index(role)]
            enc, payload = seal(key, info, associated, plain, secret.tobytes())
            records[f"{role}_enc"][row] = np.frombuffer(enc, dtype=np.uint8)
            records[f"{role}_payload"][row] = np.frombuffer(payload, dtype=np.uint8)
    return records.tobytes()


@dataclass(frozen=True)
class Opened:
    """An aggregator's shares of R records.

    Attributes:
        shares: uint8[R, size], zeros where a record cannot be used.
        errors: uint8[R]: 0, or why a record cannot be used.
    """

    shares: Bytes
    errors: NDArray[np.uint8]


def open_records(task: Task, role: int, records: Records, private: bytes) -> Opened:
    """Returns an aggregator's input shares. records: of `Formats.report` or, for the helper, `verify_init`."""
    formats, opener, name = Formats(task), Opener(private, _INFO[role]), ROLES[role]
    errors = np.where(formats.well_formed(records), 0, INVALID).astype(np.uint8)
    errors[(errors == 0) & (records["time"] < task.start)] = NOT_STARTED
    errors[(errors == 0) & (records["time"] >= task.end)] = EXPIRED
    errors[(errors == 0) & (records["time"] % PRECISION != 0)] = INVALID
    size = records.dtype[f"{name}_payload"].itemsize - OVERHEAD
    shares = np.zeros((len(records), size - _HEAD), dtype=np.uint8)
    head = bytes(2) + (size - _HEAD).to_bytes(4, "big")
    for row in np.flatnonzero(errors == 0):
        record = records[row]
        enc, payload = record[f"{name}_enc"].tobytes(), record[f"{name}_payload"].tobytes()
        plain = opener.open(enc, formats.associated(record), payload)
        if plain is None:
            errors[row] = UNREADABLE
        elif plain[:_HEAD] != head:
            errors[row] = INVALID
        else:
            shares[row] = np.frombuffer(plain, dtype=np.uint8, offset=_HEAD)
    return Opened(shares, errors)
