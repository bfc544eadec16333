"""Keyed randomness: every random choice of a run is a function of the run's key and a counter.

Beam retries bundles and recomputes fused stages. A second, different draw for the same data would leak. So nothing
here has state: AES, a pseudo-random permutation, encrypts the counter, and equal counters give equal bits. The run's
key is derived from a secret and from all that the numbers depend on, so that the same noise is never added to other
data. `key_binding` in `pipelines/frame/run_key.py` lists what that is.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from numpy.typing import NDArray

from sfumato.schemas.errors import DataError

WORDS_16_PER_BLOCK = 8
_HASHED_AT_ONCE = 1 << 16  # temporary columns stay in the processor's cache


class Secret(Protocol):
    """The secret behind a run's key."""

    @property
    def source(self) -> str:
        """Where the secret is from, as a manifest states it."""

    def read(self) -> bytes: ...


@dataclass(frozen=True)
class FixedSecret:
    """A secret in memory, from the operating system's entropy or a seed."""

    secret: bytes = field(repr=False)
    source: str = "memory"

    def read(self) -> bytes:
        return self.secret


@dataclass(frozen=True)
class RunKey:
    """The key of one run: 32 bytes that never appear in a repr, a log line or a release.

    Workers receive the secret's location and the request's digest, not the key. They read a key file themselves.

    Attributes:
        secret: the run's secret.
        request_digest: keyed digest of the request.
        secret_check: detects a changed secret.

    >>> key = RunKey.derive(FixedSecret(b"k" * 32), {"job": "heatmap", "epsilon": 1.0})
    >>> key.subkey("noise") == key.subkey("noise")
    True
    >>> key.subkey("noise", 1) == key.subkey("noise", 2)
    False
    """

    secret: Secret
    request_digest: bytes
    secret_check: bytes

    @classmethod
    def derive(cls, secret: Secret, request: Mapping[str, Any]) -> RunKey:
        """Returns the key for a request in JSON's types. A job's request is its `key_binding`."""
        kept = secret.read()
        # Keyed, because it is part of the job's graph: an unkeyed digest of the input would confirm a guess at it.
        digest = hmac.digest(kept, _digest(b"", request), hashlib.sha256)
        return cls(secret, digest, _check_value(kept))

    def narrowed(self, metadata: Mapping[str, Any]) -> RunKey:
        """Returns a key for one of several uses of this key. Different metadata give independent keys."""
        return RunKey(self.secret, _digest(self.request_digest, metadata), self.secret_check)

    @cached_property
    def _key(self) -> bytes:
        secret = self.secret.read()
        if _check_value(secret) != self.secret_check:
            # Workers with different keys would count users twice.
            raise DataError("key_file: the secret has changed since the job began; nothing is published")
        return hmac.digest(secret, self.request_digest, hashlib.sha256)

    @property
    def binding(self) -> str:
        """What a ledger recognises the key by, and all that it is bound to.

        Keyed, because an unkeyed digest of the input would confirm a guess at it.
        """
        return self.subkey("ledger").hex()

    def subkey(self, *label: str | int) -> bytes:
        """Returns a 32-byte key for one purpose. Different labels give independent keys."""
        return hmac.digest(self._key, json.dumps(label).encode(), hashlib.sha256)

    def __reduce__(self) -> tuple[type[RunKey], tuple[Secret, bytes, bytes]]:
        return RunKey, (self.secret, self.request_digest, self.secret_check)  # never the derived key


def _digest(context: bytes, metadata: Mapping[str, Any]) -> bytes:
    text = json.dumps(metadata, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(context + text.encode()).digest()


def _check_value(secret: bytes) -> bytes:
    return hmac.digest(secret, b"sfumato secret check", hashlib.sha256)[:8]


def random_bits(subkey: bytes, high: NDArray[np.uint64], low: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Returns 128 pseudo-random bits for each counter (high, low), both uint64[n]: uint64[n, 2]."""
    counters = np.empty((len(low), 2), dtype="<u8")
    counters[:, 0] = high
    counters[:, 1] = low
    return _encrypt(subkey, counters)


def random_bits_16(subkey: bytes, streams: NDArray[np.uint64], words: int) -> NDArray[np.uint16]:
    """Returns `words` pseudo-random 16-bit numbers for each stream: uint16[len(streams), words]."""
    blocks = -(-words // WORDS_16_PER_BLOCK)
    counters = np.empty((len(streams), blocks, 2), dtype="<u8")
    counters[:, :, 0] = streams[:, None]
    counters[:, :, 1] = np.arange(blocks, dtype=np.uint64)
    flat = _encrypt(subkey, counters.reshape(-1, 2))
    return flat.view(np.uint16).reshape(len(streams), blocks * WORDS_16_PER_BLOCK)[:, :words]


def keyed_hash(subkey: bytes, values: NDArray[Any]) -> NDArray[np.uint64]:
    """Returns keyed 64-bit hashes, uint64[n], of integers (AES) or of an object array of str or bytes (SipHash-2-4)."""
    if values.dtype.kind in "iu":
        return keyed_hash_of_pairs(subkey, np.uint64(0), values.astype(np.uint64, copy=False))
    import pandas as pd  # slow to import, and only workers that read text need it

    # pandas takes a key of 16 characters; as hexadecimal digits they hold 64 bits of the subkey.
    return pd.util.hash_array(values, hash_key=subkey.hex()[:16], categorize=False)


def keyed_hash_of_pairs(
    subkey: bytes, first: NDArray[np.uint64] | np.uint64, second: NDArray[np.uint64]
) -> NDArray[np.uint64]:
    """Returns keyed 64-bit hashes of pairs of numbers, uint64[n]. first: uint64[n], or one for all pairs."""
    hashes = np.empty(len(second), dtype=np.uint64)
    first = np.broadcast_to(first, len(second))
    for start in range(0, len(second), _HASHED_AT_ONCE):
        part = slice(start, start + _HASHED_AT_ONCE)
        hashes[part] = random_bits(subkey, first[part], second[part])[:, 0]
    return hashes


def _encrypt(subkey: bytes, counters: NDArray[np.uint64]) -> NDArray[np.uint64]:
    # ECB over distinct counters is the keystream of counter mode. The counters are explicit, so that any subset (one
    # shard, one entry) can be drawn again without the others.
    if not counters.size:
        return counters
    encryptor = Cipher(algorithms.AES(subkey), modes.ECB()).encryptor()
    return np.frombuffer(encryptor.update(counters.data.cast("B")), dtype="<u8").reshape(counters.shape)
