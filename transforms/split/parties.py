"""The parties that hold keys: the two operators, who share a secret for verification, and the collector.

What the operators exchange is sealed with a key of their secret (AES-SIV, RFC 5297: equal content has equal bytes).
A device that read how its report is checked would learn the point at which proofs are checked; if it could also write,
it could have any report accepted.
"""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass

import numpy as np
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESSIV

from sfumato.schemas.errors import DataError, RequestError
from sfumato.schemas.ledger import Limit
from sfumato.transforms.io.files import join, read_file, write_file
from sfumato.transforms.privacy.keys import RunKey
from sfumato.transforms.privacy.secrets import FileSecret
from sfumato.transforms.split.hpke import public_key
from sfumato.transforms.split.prio3 import LEADER
from sfumato.transforms.split.reports import ROLES, Formats
from sfumato.transforms.split.task import Task

REQUESTS, RESPONSES = "requests", "responses"  # folders of the exchange
_START = b"\x01"  # of a content, so that none is empty
EXCHANGE_OVERHEAD = 17  # bytes by which a sealed file is longer


def exchange_file(exchange: str, kind: str, number: int) -> str:
    """Returns the file of a block. kind: REQUESTS or RESPONSES."""
    return join(exchange, kind, f"{number:08d}.bin")


@dataclass(frozen=True)
class Aggregator:
    """One of the two operators.

    Attributes:
        role: LEADER or HELPER.
        task: of the batch.
        key_file: its own secret: of its private key and its noise.
        verify_key_file: a secret that the two operators share, and no device has.
        ledger: where it charges.
        dataset: of the ledger.
        budget: the dataset's limits; empty to accept the ledger's.
    """

    role: int
    task: Task
    key_file: str
    verify_key_file: str
    ledger: str
    dataset: str
    budget: tuple[Limit, ...] = ()

    @property
    def key(self) -> RunKey:
        """The operator's key. Raises RequestError: it is not the one that the task names."""
        return self._pinned("key_file", self.key_file, ROLES[self.role])

    @property
    def verify_key(self) -> bytes:
        """The verification key of the task. Raises RequestError: its secret is not the one that the task names.

        A report that is verified under two keys discloses its cell to either operator.
        """
        return self._shared("task")

    def write_exchange(self, exchange: str, kind: str, number: int, content: bytes) -> None:
        """Writes the file of a block, which only an operator can read or write."""
        sealed = AESSIV(self._shared("exchange")).encrypt(_START + content, [f"{kind} {number}".encode()])
        write_file(exchange_file(exchange, kind, number), sealed)

    def read_exchange(self, path: str, kind: str, number: int) -> bytes:
        """Returns the content of a block's file. Raises DataError: no operator wrote it for this task and block."""
        try:
            opened = AESSIV(self._shared("exchange")).decrypt(read_file(path), [f"{kind} {number}".encode()])
        except (InvalidTag, ValueError):
            raise DataError(f"exchange: {path} is not what an operator of this task wrote, or was changed") from None
        return opened[len(_START) :]

    def _shared(self, use: str) -> bytes:
        """Returns a key of the task that both operators have, 32 bytes. Raises RequestError."""
        self._pinned("verify_key", self.verify_key_file, "verify")
        shared = RunKey.derive(FileSecret(self.verify_key_file), {"split": "verify"})
        return hmac.digest(shared.subkey(use), self.task.id, hashlib.sha256)

    def _pinned(self, option: str, key_file: str, entry: str) -> RunKey:
        key = party_key(key_file)
        if public_key(private_key(key)).hex() != getattr(self.task, entry):
            raise RequestError(f"{option}: is not the key that the task names in {entry}; see `sfumato split key`")
        return key

    @property
    def formats(self) -> Formats:
        """The records of the task."""
        return Formats(self.task)

    @property
    def record(self) -> np.dtype[np.void]:
        """What the operator reads: reports, or the leader's requests."""
        return self.formats.report if self.role == LEADER else self.formats.verify_init


def party_key(key_file: str) -> RunKey:
    """Returns the key of an operator or a collector."""
    return RunKey.derive(FileSecret(key_file), {"split": "party"})


def private_key(key: RunKey) -> bytes:
    """Returns the private key of an operator or a collector, 32 bytes."""
    return key.subkey("hpke")
