"""Prio3 byte for byte: the drafts' vectors, where SFUMATO_DATA names them, and digests of the draft's reference."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sfumato.transforms.split.circuits import Circuit, Histogram, L1BoundSum
from sfumato.transforms.split.prio3 import (
    Bytes,
    Prio3,
    Xof,
    add_shares,
    decode_share,
    encode_share,
    reduced,
    unshard,
)

GOOD = ("Prio3Histogram_0", "Prio3Histogram_1", "Prio3Histogram_2", "Prio3L1BoundSum_0")
BAD = (
    "Prio3Histogram_bad_helper_jr_blind",
    "Prio3Histogram_bad_leader_jr_blind",
    "Prio3Histogram_bad_public_share",
    "Prio3Histogram_bad_verifier_message",
)
# SHA-256 of public share, input shares, verifier shares and message, computed by the reference implementation of VDAF
# draft 20 (Python 3.12) for context "sfumato", measurement length / 2, and nonce, key and randomness 0, 1, 2, ...
REFERENCE = {
    (340, 23): "0aa9bb01dbb7312df503ae0ee43e534704e4d549df4754cd05b4b12460c673fa",
    (1024, 34): "a2b5c7b4454fea970aa897343089b46bd2e60a0153b0158961de4a11c51ae175",
    (3034, 49): "361deace073cc071b83a0f31cc90280a80702d0d9c8cd450c67b349a1af32f66",
    (6418, 102): "3afc15c8c697fc64470a2ed1db15cf670cca859a8028edd50ad1c56dedc6993b",
    (
        6418,
        51,
    ): "64f01b2407704441e7d01ef3df4a2cdd3376741556c175cef1476518c2b8aaf7",  # 128 points
}


def vector(name: str) -> dict[str, Any]:
    if "SFUMATO_DATA" not in os.environ:
        pytest.skip("SFUMATO_DATA is unset: the drafts' vectors were not tried")
    found: dict[str, Any] = json.loads((Path(os.environ["SFUMATO_DATA"]) / "vdaf" / f"{name}.json").read_text())
    return found


def row(text: str | bytes) -> Bytes:
    """Returns a batch of one report."""
    return np.frombuffer(bytes.fromhex(text) if isinstance(text, str) else text, dtype=np.uint8)[None]


def prio3_of(given: dict[str, Any]) -> Prio3:
    length, chunk = given["length"], given["chunk_length"]
    bound = given.get("max_value")
    circuit: Circuit = Histogram(length, chunk_length=chunk)
    if bound is not None:
        circuit = L1BoundSum(length, bound, chunk_length=chunk)
    return Prio3(circuit, bytes.fromhex(given["ctx"]), given["shares"])


@pytest.mark.parametrize("name", GOOD)
def test_every_byte_of_a_vector_is_reproduced(name: str) -> None:
    given = vector(name)
    prio3, key = prio3_of(given), bytes.fromhex(given["verify_key"])
    sums = [np.zeros((given["length"], 4), dtype=np.uint64) for _ in range(given["shares"])]
    for report in given["reports"]:
        nonce = row(report["nonce"])
        public, shares = prio3.shard([report["measurement"]], nonce, row(report["rand"]))
        assert public.tobytes().hex() == report["public_share"]
        assert [share.tobytes().hex() for share in shares] == report["input_shares"]
        seen = [prio3.verify_init(number, key, nonce, public, share) for number, share in enumerate(shares)]
        assert [[one.verifier_shares.tobytes().hex() for one in seen]] == report["verifier_shares"]
        assert [one.out_shares.tobytes().hex() for one in seen] == report["out_shares"]
        messages, is_valid = prio3.combine([one.verifier_shares for one in seen])
        assert [messages.tobytes().hex()] == report["verifier_messages"]
        assert is_valid.all()
        assert all(one.is_valid.all() and one.accepts(messages).all() for one in seen)
        sums = [before + add_shares(one.out_shares) for before, one in zip(sums, seen, strict=True)]
    shares_of_sums = [reduced(one) for one in sums]
    assert [encode_share(share).hex() for share in shares_of_sums] == given["agg_shares"]
    assert [decode_share(encode_share(share), given["length"]) for share in shares_of_sums] == shares_of_sums
    assert unshard(shares_of_sums) == given["agg_result"]


@pytest.mark.parametrize("name", BAD)
def test_every_bad_vector_is_refused(name: str) -> None:
    given = vector(name)
    prio3, key = prio3_of(given), bytes.fromhex(given["verify_key"])
    report = given["reports"][0]
    public, shares = row(report["public_share"]), [row(share) for share in report["input_shares"]]
    seen = [prio3.verify_init(number, key, row(report["nonce"]), public, share) for number, share in enumerate(shares)]
    made = [one.verifier_shares.tobytes().hex() for one in seen]
    assert made[: len(report["verifier_shares"][0])] == report["verifier_shares"][0]
    if report["verifier_messages"]:
        assert not seen[0].accepts(row(report["verifier_messages"][0])).any()
    else:
        messages, is_valid = prio3.combine([one.verifier_shares for one in seen])
        assert not (is_valid & seen[0].accepts(messages) & seen[1].accepts(messages)).any()


def test_vector_of_the_stream_is_reproduced() -> None:
    given = vector("XofTurboShake128")
    seed, tag, binder = (bytes.fromhex(given[name]) for name in ("seed", "dst", "binder"))
    assert Xof(seed, tag, binder).read(32).hex() == given["derived_seed"]
    assert Xof(seed, tag, binder).elements(given["length"]).tobytes().hex() == given["expanded_vec_field128"]


@pytest.mark.parametrize(("length", "chunk_length"), REFERENCE)
def test_reference_agrees_at_real_lengths(length: int, chunk_length: int) -> None:
    prio3, nonce = Prio3(Histogram(length, chunk_length=chunk_length), b"sfumato"), row(bytes(range(16)))
    public, shares = prio3.shard([length // 2], nonce, row(bytes(range(128))))
    seen = [prio3.verify_init(number, bytes(range(32)), nonce, public, share) for number, share in enumerate(shares)]
    messages, _ = prio3.combine([one.verifier_shares for one in seen])
    parts = [public, *shares, *(one.verifier_shares for one in seen), messages]
    assert hashlib.sha256(b"".join(part.tobytes() for part in parts)).hexdigest() == REFERENCE[length, chunk_length]
