"""Prio3 (VDAF draft 20, Section 7): shares of a measurement for two aggregators, their check, and the sums.

A leader (0) holds shares of the measurement and of the proof; a helper (1) holds a seed that expands to its shares. All
functions take batches: a row of every array is a report, and what is wrong with a report is a False in a mask, so that
one report ends no batch.

    public, (leader, helper) = prio3.shard(measurements, nonces, randomness)  # a client
    mine = prio3.verify_init(0, verify_key, nonces, public, leader)           # each aggregator, with its own share
    messages, is_valid = prio3.combine([mine.verifier_shares, theirs])        # the two exchange verifier shares
    is_valid &= mine.is_valid & mine.accepts(messages)
    sums = add_shares(mine.out_shares[is_valid])
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sfumato.schemas.errors import RequestError
from sfumato.transforms.split.circuits import Circuit, best_chunk_length, proof_length
from sfumato.transforms.split.field128 import (
    ENCODED_SIZE,
    MODULUS,
    Elements,
    Words,
    from_words,
    is_canonical,
    settle,
    to_words,
    total,
)

LEADER, HELPER = 0, 1
SEED_SIZE, NONCE_SIZE = 32, 16
HELPER_SIZE = 2 * SEED_SIZE  # bytes of a helper's input share
_VERSION = 18  # of the format of derived values, which draft 20 keeps
_PROOFS = b"\x01"
_MEASUREMENT, _PROOF, _JOINT, _PROVE, _QUERY, _JOINT_SEED, _JOINT_PART = range(1, 8)  # uses of derived values

Bytes = NDArray[np.uint8]


class Xof:
    """XofTurboShake128 of one seed (VDAF draft, Section 6.2.1): a stream of bytes or field elements.

    Raises RequestError: the library for TurboSHAKE128 is not installed.
    """

    def __init__(self, seed: bytes, tag: bytes, binder: bytes) -> None:
        head = len(tag).to_bytes(2, "little") + tag + len(seed).to_bytes(1, "little") + seed
        self._stream = _turboshake128().new(domain=1, data=head)
        self._stream.update(binder)

    def read(self, length: int) -> bytes:
        """Returns the next bytes."""
        return bytes(self._stream.read(length))

    def elements(self, length: int) -> Words:
        """Returns the next field elements, encoded in uint64[length, 2]; 16 bytes that encode none are skipped."""
        words = np.frombuffer(self.read(ENCODED_SIZE * length), dtype="<u8").reshape(-1, 2)
        if (kept := is_canonical(words)).all():
            return words
        return np.concatenate([words[kept], self.elements(int(length - kept.sum()))])


def _turboshake128() -> Any:
    try:
        from Cryptodome.Hash import TurboSHAKE128
    except ImportError:
        raise RequestError("split: requires pycryptodomex; run: pip install '.[split]'") from None
    return TurboSHAKE128


@dataclass(frozen=True)
class Verification:
    """What an aggregator has after it looked at its shares of R reports.

    Attributes:
        verifier_shares: uint8[R, verifier_size], for the other aggregator.
        joint_seeds: uint8[R, 32]: the joint randomness as the client stated it.
        out_shares: uint64[R, length, 2]: shares of what is summed. Only those of accepted reports may be used.
        is_valid: bool[R]: whether the shares can be checked.
    """

    verifier_shares: Bytes
    joint_seeds: Bytes
    out_shares: Words
    is_valid: NDArray[np.bool_]

    def accepts(self, messages: Bytes) -> NDArray[np.bool_]:
        """Returns for which reports both used the joint randomness that the client stated: bool[R].

        messages: uint8[R, 32], of `Prio3.combine`.
        """
        return np.asarray((messages == self.joint_seeds).all(axis=1))


@dataclass(frozen=True)
class Prio3:
    """A circuit with its proofs in an application's context: equal only where both are.

    Attributes:
        circuit: what a measurement must be.
        context: binds reports to what they are for. A report made in another context is refused.
        aggregators: number of shares: a leader's, and those of helpers.
    """

    circuit: Circuit
    context: bytes = b""
    aggregators: int = 2

    @property
    def randomness_size(self) -> int:
        """Bytes of a client's randomness."""
        return 2 * SEED_SIZE * self.aggregators

    @property
    def public_size(self) -> int:
        """Bytes of a public share."""
        return SEED_SIZE * self.aggregators

    @property
    def leader_size(self) -> int:
        """Bytes of a leader's input share."""
        return ENCODED_SIZE * (self.circuit.measurement_length + self.circuit.proof_length) + SEED_SIZE

    @property
    def verifier_size(self) -> int:
        """Bytes of a verifier share."""
        return ENCODED_SIZE * self.circuit.verifier_length + SEED_SIZE

    def shard(
        self, measurements: Iterable[int | Sequence[int]], nonces: Bytes, randomness: Bytes
    ) -> tuple[Bytes, list[Bytes]]:
        """Returns public shares uint8[R, public_size] and the aggregators' input shares, the leader's first.

        A leader's are uint8[R, leader_size], and a helper's uint8[R, 64].

        Args:
            measurements: of R clients, see `Circuit.encode`.
            nonces: uint8[R, 16].
            randomness: uint8[R, randomness_size], secret, and never used twice.
        """
        encoded = np.stack([self.circuit.encode(one) for one in measurements])
        return self.shard_encoded(encoded, nonces, randomness)

    def shard_encoded(self, encoded: NDArray[np.int64], nonces: Bytes, randomness: Bytes) -> tuple[Bytes, list[Bytes]]:
        """Returns the same as `shard` for encoded measurements int64[R, measurement_length], valid or not."""
        *helpers, last = np.split(randomness, self.aggregators, axis=1)
        leader_blinds, prove_seeds = last[:, :SEED_SIZE], last[:, SEED_SIZE:]
        words = np.zeros((*encoded.shape, 2), dtype=np.uint64)
        words[..., 0] = encoded
        measurement = rest = from_words(words)
        parts, proofs = [], []
        for number, helper in enumerate(helpers, 1):
            share, proof = self._expand_helper(number, helper[:, :SEED_SIZE])
            parts.append(self._joint_parts(number, helper[:, SEED_SIZE:], _rows(share), nonces))
            proofs.append(proof)
            rest = settle(rest - from_words(share))
        leader_words = to_words(rest)
        parts.insert(LEADER, self._joint_parts(LEADER, leader_blinds, _rows(leader_words), nonces))
        public = np.concatenate(parts, axis=1)
        joint = self._joint(self._joint_seeds(public))
        prove = from_words(self._expand(prove_seeds, _PROVE, [_PROOFS] * len(encoded), self.circuit.wires))
        rest = self.circuit.prove(measurement, prove, joint)
        for proof in proofs:
            rest = settle(rest - from_words(proof))
        leader = np.concatenate([_rows(leader_words), _rows(to_words(rest)), leader_blinds], axis=1)
        return public, [leader, *helpers]

    def verify_init(
        self, aggregator: int, verify_key: bytes, nonces: Bytes, public_shares: Bytes, input_shares: Bytes
    ) -> Verification:
        """Returns an aggregator's verification of R reports.

        Args:
            aggregator: LEADER, or a helper's number from 1.
            verify_key: 32 bytes that all aggregators know and no client does.
            nonces: uint8[R, 16].
            public_shares: uint8[R, public_size].
            input_shares: uint8[R, leader_size], or uint8[R, 64] for the helper.
        """
        measurement, proof, is_valid = self._opened(aggregator, input_shares)
        seeds, part = self._own_joint_seeds(aggregator, nonces, public_shares, measurement, input_shares)
        binders = [_PROOFS + nonce.tobytes() for nonce in nonces]
        keys = np.broadcast_to(np.frombuffer(verify_key, dtype=np.uint8), (len(nonces), SEED_SIZE))
        query = from_words(self._expand(keys, _QUERY, binders, self.circuit.query_randomness))
        verifier, may_check = self.circuit.query(
            from_words(measurement), from_words(proof), query, self._joint(seeds), self.aggregators
        )
        shares = np.concatenate([_rows(to_words(verifier)), part], axis=1)
        return Verification(shares, seeds, self.circuit.truncate(measurement), is_valid & may_check)

    def finish(
        self, aggregator: int, nonces: Bytes, public_shares: Bytes, input_shares: Bytes, messages: Bytes
    ) -> tuple[Words, NDArray[np.bool_]]:
        """Returns shares of what is summed, uint64[R, length, 2], and for which reports they may be used, bool[R].

        It repeats the part of `verify_init` that an aggregator which kept nothing needs, once proofs are found valid.
        messages: uint8[R, 32], of `combine`. Other arguments are those of `verify_init`.
        """
        measurement, _, is_valid = self._opened(aggregator, input_shares)
        seeds, _ = self._own_joint_seeds(aggregator, nonces, public_shares, measurement, input_shares)
        return self.circuit.truncate(measurement), is_valid & (seeds == messages).all(axis=1)

    def _opened(self, aggregator: int, input_shares: Bytes) -> tuple[Words, Words, NDArray[np.bool_]]:
        """Returns shares of measurements and of proofs, and whether they are elements of the field."""
        entries = self.circuit.measurement_length
        is_valid: NDArray[np.bool_] = np.ones(len(input_shares), dtype=np.bool_)
        if aggregator != LEADER:
            measurement, proof = self._expand_helper(aggregator, input_shares[:, :SEED_SIZE])
        else:
            words = _words(input_shares[:, :-SEED_SIZE])
            is_valid = np.asarray(is_canonical(words).all(axis=1))
            words = np.where(is_valid[:, None, None], words, np.uint64(0))
            measurement, proof = words[:, :entries], words[:, entries:]
        return measurement, proof, is_valid

    def _own_joint_seeds(
        self, aggregator: int, nonces: Bytes, public_shares: Bytes, measurement: Words, input_shares: Bytes
    ) -> tuple[Bytes, Bytes]:
        """Returns the joint randomness as the client stated it but for an aggregator's own part, and that part."""
        part = self._joint_parts(aggregator, input_shares[:, -SEED_SIZE:], _rows(measurement), nonces)
        parts = public_shares.copy()
        parts[:, SEED_SIZE * aggregator : SEED_SIZE * (aggregator + 1)] = part
        return self._joint_seeds(parts), part

    def combine(self, verifier_shares: Sequence[Bytes]) -> tuple[Bytes, NDArray[np.bool_]]:
        """Returns verifier messages uint8[R, 32] and which reports have valid proofs, bool[R].

        verifier_shares: uint8[R, verifier_size] of each aggregator, the leader's first. Each of them can call this.
        """
        words = np.stack([_words(shares[:, :-SEED_SIZE]) for shares in verifier_shares], axis=-2)
        is_valid = is_canonical(words).all(axis=(1, 2))
        parts = np.concatenate([shares[:, -SEED_SIZE:] for shares in verifier_shares], axis=1)
        return self._joint_seeds(parts), is_valid & self.circuit.decide(total(from_words(words)))

    def _tag(self, use: int) -> bytes:
        return bytes([_VERSION, 0]) + self.circuit.ID.to_bytes(4, "big") + use.to_bytes(2, "big") + self.context

    def _expand(self, seeds: Bytes, use: int, binders: Sequence[bytes], length: int) -> Words:
        """Returns uint64[R, length, 2] of seeds uint8[R, 32]."""
        tag = self._tag(use)
        rows = [Xof(seed.tobytes(), tag, binder).elements(length) for seed, binder in zip(seeds, binders, strict=True)]
        return np.stack(rows)

    def _expand_helper(self, helper: int, seeds: Bytes) -> tuple[Words, Words]:
        """Returns a helper's shares of measurements and of proofs."""
        number = bytes([helper])
        measurement = self._expand(seeds, _MEASUREMENT, [number] * len(seeds), self.circuit.measurement_length)
        return measurement, self._expand(seeds, _PROOF, [_PROOFS + number] * len(seeds), self.circuit.proof_length)

    def _joint_parts(self, aggregator: int, blinds: Bytes, shares: Bytes, nonces: Bytes) -> Bytes:
        tag, number = self._tag(_JOINT_PART), bytes([aggregator])
        return _seeds(
            Xof(blind.tobytes(), tag, number + nonce.tobytes() + share.tobytes())
            for blind, nonce, share in zip(blinds, nonces, shares, strict=True)
        )

    def _joint_seeds(self, parts: Bytes) -> Bytes:
        tag = self._tag(_JOINT_SEED)
        return _seeds(Xof(bytes(SEED_SIZE), tag, row.tobytes()) for row in parts)

    def _joint(self, seeds: Bytes) -> Elements:
        return from_words(self._expand(seeds, _JOINT, [_PROOFS] * len(seeds), self.circuit.calls))


def report_size(length: int, bound: int) -> int:
    """Returns the bytes of a client's shares for two aggregators, without encryption.

    Args:
        length: entries of the aggregate.
        bound: the largest sum of a client's entries; 1 for one cell.

    >>> report_size(3034, bound=1)
    52304
    """
    entries = length if bound == 1 else (length + 1) * bound.bit_length()
    elements = entries + proof_length(entries, best_chunk_length(entries))
    return ENCODED_SIZE * elements + SEED_SIZE + 2 * HELPER_SIZE


def add_shares(out_shares: Words) -> Words:
    """Returns the sums of shares as uint64[length, 4], sums of 32-bit words, of uint64[R, length, 2].

    Such sums add up exactly, in any order, for up to 2^32 reports; `unshard` reduces them.
    """
    return np.asarray(np.ascontiguousarray(out_shares).view("<u4").sum(axis=0, dtype=np.uint64))


def reduced(sums: Words) -> list[int]:
    """Returns sums of words, uint64[length, 4], as integers modulo p: an aggregate share."""
    return [sum(word << 32 * place for place, word in enumerate(row)) % MODULUS for row in sums.tolist()]


def encode_share(share: Sequence[int]) -> bytes:
    """Returns an aggregate share as bytes, 16 for each entry."""
    return b"".join(entry.to_bytes(ENCODED_SIZE, "little") for entry in share)


def decode_share(encoded: bytes, length: int) -> list[int]:
    """Returns an aggregate share of this length. Raises ValueError where these bytes are none."""
    share = [int.from_bytes(encoded[at : at + ENCODED_SIZE], "little") for at in range(0, len(encoded), ENCODED_SIZE)]
    if len(encoded) != ENCODED_SIZE * length or any(entry >= MODULUS for entry in share):
        raise ValueError(f"not an aggregate share of {length} entries")
    return share


def unshard(shares: Iterable[Sequence[int]]) -> list[int]:
    """Returns the sum of aggregate shares: integers around 0, because noise can make a count negative."""
    sums = (sum(entries) % MODULUS for entries in zip(*shares, strict=True))
    return [value - MODULUS if value > MODULUS // 2 else value for value in sums]


def _seeds(streams: Iterable[Xof]) -> Bytes:
    return np.frombuffer(b"".join(stream.read(SEED_SIZE) for stream in streams), np.uint8).reshape(-1, SEED_SIZE)


def _rows(words: Words) -> Bytes:
    """Returns encoded elements uint64[R, n, 2] as bytes uint8[R, 16 n]."""
    return np.ascontiguousarray(words, dtype="<u8").view(np.uint8).reshape(len(words), -1)


def _words(rows: Bytes) -> Words:
    """Returns bytes uint8[R, 16 n] as words uint64[R, n, 2]."""
    return np.ascontiguousarray(rows).view("<u8").reshape(len(rows), -1, 2)
