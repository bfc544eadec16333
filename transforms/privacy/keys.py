"""Keyed randomness: every random choice of a run is a function of the run's key and a counter.

Beam retries bundles and recomputes fused stages. A second draw for the same data would leak, so nothing here
keeps a state: AES (a pseudo-random permutation) encrypts the counter, and the same counter gives the same bits.
The run's key is derived from a secret and the whole request, so that the same noise never meets other data.
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


class Secret(Protocol):
    """Where the secret behind a run's key comes from."""

    def read(self) -> bytes: ...


@dataclass(frozen=True)
class FixedSecret:
    """A secret held in memory: from the operating system's entropy, or a test's seed."""

    secret: bytes = field(repr=False)

    def read(self) -> bytes:
        return self.secret


@dataclass(frozen=True)
class RunKey:
    """The key of one run: 32 bytes that never appear in a repr, a log line or a release.

    What travels to workers is where the secret is and the request's digest, not the key: with a key file the secret
    stays where it lies.
    """

    secret: Secret
    request_digest: bytes
    secret_check: bytes

    @classmethod
    def derive(cls, secret: Secret, request: Mapping[str, Any]) -> RunKey:
        """The key for a whole request: every parameter that matters, the release id, the input's fingerprint."""
        kept = secret.read()
        # Keyed, since it travels with the job's graph: an unkeyed digest of the input would confirm a guess at it.
        digest = hmac.digest(kept, _digest(b"", request), hashlib.sha256)
        return cls(secret, digest, _check_value(kept))

    def narrowed(self, metadata: Mapping[str, Any]) -> RunKey:
        """The key for one use among several under this key: other facts give an independent key."""
        return RunKey(self.secret, _digest(self.request_digest, metadata), self.secret_check)

    @cached_property
    def _key(self) -> bytes:
        secret = self.secret.read()
        if _check_value(secret) != self.secret_check:
            # Half the workers under another key would count users twice.
            raise DataError("key_file: the secret has changed since the job began; nothing is published")
        return hmac.digest(secret, self.request_digest, hashlib.sha256)

    def subkey(self, *label: str | int) -> bytes:
        """A 32-byte key for one purpose; different labels give independent keys."""
        return hmac.digest(self._key, json.dumps(label).encode(), hashlib.sha256)

    def __reduce__(self) -> tuple[type[RunKey], tuple[Secret, bytes, bytes]]:
        return RunKey, (self.secret, self.request_digest, self.secret_check)  # never the derived key


def _digest(context: bytes, metadata: Mapping[str, Any]) -> bytes:
    text = json.dumps(metadata, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(context + text.encode()).digest()


def _check_value(secret: bytes) -> bytes:
    return hmac.digest(secret, b"sfumato secret check", hashlib.sha256)[:8]


def random_bits(subkey: bytes, high: NDArray[np.uint64], low: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """128 pseudo-random bits for every counter (high, low): uint64[n, 2]."""
    counters = np.empty((len(low), 2), dtype="<u8")
    counters[:, 0] = high
    counters[:, 1] = low
    return _encrypt(subkey, counters)


def random_bits_16(subkey: bytes, streams: NDArray[np.uint64], words: int) -> NDArray[np.uint16]:
    """`words` pseudo-random 16-bit words for every stream: uint16[len(streams), words]."""
    blocks = -(-words // WORDS_16_PER_BLOCK)
    counters = np.empty((len(streams), blocks, 2), dtype="<u8")
    counters[:, :, 0] = streams[:, None]
    counters[:, :, 1] = np.arange(blocks, dtype=np.uint64)
    flat = _encrypt(subkey, counters.reshape(-1, 2))
    return flat.view(np.uint16).reshape(len(streams), blocks * WORDS_16_PER_BLOCK)[:, :words]


def keyed_hash(subkey: bytes, values: NDArray[Any]) -> NDArray[np.uint64]:
    """A keyed 64-bit hash, uint64[n], of integers (AES) or of an object array of str or bytes (SipHash-2-4)."""
    if values.dtype.kind in "iu":
        numbers = values.astype(np.uint64, copy=False)
        return random_bits(subkey, np.zeros_like(numbers), numbers)[:, 0]
    import pandas as pd  # slow to import, and only workers that read text need it

    # pandas wants 16 characters; hexadecimal ones carry 64 of the key's bits.
    return pd.util.hash_array(values, hash_key=subkey.hex()[:16], categorize=False)


def _encrypt(subkey: bytes, counters: NDArray[np.uint64]) -> NDArray[np.uint64]:
    # ECB over distinct counters is counter mode's keystream; the counters are explicit so that any subset
    # (one shard, one entry) can be drawn again on its own.
    if not counters.size:
        return counters
    encryptor = Cipher(algorithms.AES(subkey), modes.ECB()).encryptor()
    return np.frombuffer(encryptor.update(counters.data.cast("B")), dtype="<u8").reshape(counters.shape)
