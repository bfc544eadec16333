"""The parties that hold keys: the two operators, who share a secret for verification, and the collector."""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass

import numpy as np

from sfumato.schemas.errors import RequestError
from sfumato.schemas.ledger import Limit
from sfumato.transforms.privacy.keys import RunKey
from sfumato.transforms.privacy.secrets import FileSecret
from sfumato.transforms.split.hpke import public_key
from sfumato.transforms.split.prio3 import LEADER
from sfumato.transforms.split.reports import ROLES, Formats
from sfumato.transforms.split.task import Task


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
        self._pinned("verify_key", self.verify_key_file, "verify")
        shared = RunKey.derive(FileSecret(self.verify_key_file), {"split": "verify"})
        return hmac.digest(shared.subkey("task"), self.task.id, hashlib.sha256)

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
