"""What two aggregators accept: honest clients, exactly, and no others."""

from __future__ import annotations

import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from sfumato.schemas.errors import RequestError
from sfumato.transforms.split import prio3 as prio3_module
from sfumato.transforms.split.circuits import Circuit, Histogram, L1BoundSum
from sfumato.transforms.split.field128 import MODULUS
from sfumato.transforms.split.prio3 import (
    Bytes,
    Prio3,
    Verification,
    Xof,
    add_shares,
    decode_share,
    encode_share,
    reduced,
    unshard,
)
from tests.seeds import seeded_rng

KEY = bytes(range(32))
CONTEXT = b"a task"


def drawn(rows: int, prio3: Prio3, seed: int) -> tuple[Bytes, Bytes]:
    """Returns nonces and randomness of some clients."""
    rng = seeded_rng(seed)
    both = rng.integers(0, 256, (rows, 16 + prio3.randomness_size), dtype=np.uint8)
    return both[:, :16], both[:, 16:]


def verify(
    prio3: Prio3, nonces: Bytes, public: Bytes, shares: list[Bytes]
) -> tuple[NDArray[np.bool_], list[Verification]]:
    seen = [prio3.verify_init(number, KEY, nonces, public, share) for number, share in enumerate(shares)]
    messages, is_valid = prio3.combine([one.verifier_shares for one in seen])
    for one in seen:
        is_valid &= one.is_valid & one.accepts(messages)
    return is_valid, seen


def sums(is_valid: NDArray[np.bool_], seen: list[Verification]) -> list[int]:
    shares = [reduced(add_shares(one.out_shares[is_valid])) for one in seen]
    return unshard([decode_share(encode_share(share), len(share)) for share in shares])


def accepted(prio3: Prio3, encoded: NDArray[np.int64], seed: int = 1) -> NDArray[np.bool_]:
    nonces, randomness = drawn(len(encoded), prio3, seed)
    return verify(prio3, nonces, *prio3.shard_encoded(encoded, nonces, randomness))[0]


@given(st.data())
@settings(max_examples=30)
def test_honest_histograms_are_counted_exactly(data: st.DataObject) -> None:
    length = data.draw(st.integers(1, 300))
    chunk = data.draw(st.none() | st.integers(1, length))
    cells = data.draw(st.lists(st.integers(0, length - 1), min_size=1, max_size=8))
    prio3 = Prio3(Histogram(length, chunk_length=chunk), CONTEXT)
    nonces, randomness = drawn(len(cells), prio3, 3)
    is_valid, seen = verify(prio3, nonces, *prio3.shard(cells, nonces, randomness))
    assert is_valid.all()
    assert sums(is_valid, seen) == np.bincount(cells, minlength=length).tolist()


@given(st.data())
@settings(max_examples=30)
def test_honest_weights_are_added_exactly(data: st.DataObject) -> None:
    length, bound = data.draw(st.integers(1, 20)), data.draw(st.integers(1, 300))
    rows = []
    for _ in range(data.draw(st.integers(1, 5))):
        left, row = bound, []
        for _ in range(length):
            row.append(data.draw(st.integers(0, left)))
            left -= row[-1]
        rows.append(row)
    prio3 = Prio3(L1BoundSum(length, bound), CONTEXT)
    nonces, randomness = drawn(len(rows), prio3, 4)
    is_valid, seen = verify(prio3, nonces, *prio3.shard(rows, nonces, randomness))
    assert is_valid.all()
    assert sums(is_valid, seen) == np.sum(rows, axis=0).tolist()


@pytest.mark.parametrize("length", [7, 340, 1000])
def test_clients_that_are_not_one_hot_are_refused(length: int) -> None:
    hot = np.eye(length, dtype=np.int64)
    cheats = np.stack([
        hot[1] + hot[5],  # two cells
        np.zeros(length, dtype=np.int64),  # none
        2 * hot[3],  # one cell twice
        2 * hot[3] - hot[4],  # a sum of one
        hot[2] * (1 << 40),
        np.ones(length, dtype=np.int64),
        hot[0],  # honest
    ])  # fmt: skip
    assert accepted(Prio3(Histogram(length), CONTEXT), cheats).tolist() == [False] * 6 + [True]


def test_weights_beyond_the_bound_are_refused() -> None:
    circuit = L1BoundSum(4, 5)  # 3 bits a number, with weights 1, 2 and 2
    honest = circuit.encode([1, 0, 3, 1])
    over = np.concatenate([circuit.encode([5, 0, 0, 0])[:3], circuit.encode([0, 5, 0, 0])[3:]])  # adds up to 10
    wrong_sum = np.concatenate([honest[:-3], [0, 0, 0]])
    no_bit = honest.copy()
    no_bit[0] = 3
    rows = np.stack([honest, circuit.encode([0, 0, 0, 0]), circuit.encode([0, 0, 0, 5]), over, wrong_sum, no_bit])
    assert accepted(Prio3(circuit, CONTEXT), rows).tolist() == [True, True, True, False, False, False]


@pytest.mark.parametrize("circuit", [Histogram(50), L1BoundSum(10, 6)], ids=["histogram", "weights"])
def test_random_clients_are_refused(circuit: Circuit) -> None:
    prio3, rows = Prio3(circuit, CONTEXT), 20
    nonces, randomness = drawn(rows, prio3, 5)
    rng = seeded_rng(6)
    public = rng.integers(0, 256, (rows, prio3.public_size), dtype=np.uint8)
    leader = rng.integers(0, 256, (rows, prio3.leader_size), dtype=np.uint8)
    assert not verify(prio3, nonces, public, [leader, randomness[:, :64]])[0].any()


def test_any_changed_byte_refuses_its_report_only() -> None:
    prio3 = Prio3(Histogram(12), CONTEXT)
    rows = 1 + prio3.leader_size // 5
    nonces, randomness = drawn(rows, prio3, 7)
    public, (leader, helper) = prio3.shard([3] * rows, nonces, randomness)
    changed = [leader.copy(), helper.copy(), public.copy()]
    for array in changed:
        for row in range(1, rows):
            array[row, (5 * row - 1) % array.shape[1]] ^= 1
    expected = [True] + [False] * (rows - 1)
    for index in range(3):
        one = [leader, helper, public]
        one[index] = changed[index]
        is_valid, seen = verify(prio3, nonces, one[2], one[:2])
        assert is_valid.tolist() == expected
        assert sums(is_valid, seen) == [0, 0, 0, 1] + [0] * 8


def test_shares_of_another_report_task_or_aggregator_are_refused() -> None:
    prio3 = Prio3(Histogram(30), CONTEXT)
    nonces, randomness = drawn(2, prio3, 8)
    public, shares = prio3.shard([3, 4], nonces, randomness)
    assert verify(prio3, nonces, public, shares)[0].all()
    assert not verify(prio3, nonces[::-1], public, shares)[0].any()
    assert not verify(prio3, nonces, public, [shares[0][::-1], shares[1]])[0].any()
    assert not verify(Prio3(Histogram(30), b"another task"), nonces, public, shares)[0].any()


def test_elements_above_the_modulus_are_refused() -> None:
    prio3 = Prio3(Histogram(9), CONTEXT)
    nonces, randomness = drawn(3, prio3, 9)
    public, (leader, helper) = prio3.shard([1, 2, 3], nonces, randomness)
    forged = leader.copy()
    forged[1, :16] = 255
    is_valid, seen = verify(prio3, nonces, public, [forged, helper])
    assert is_valid.tolist() == [True, False, True]
    theirs = seen[1].verifier_shares.copy()
    theirs[2, :16] = 255
    assert prio3.combine([seen[0].verifier_shares, theirs])[1].tolist() == [True, False, False]
    with pytest.raises(ValueError, match="aggregate share"):
        decode_share(MODULUS.to_bytes(16, "little"), 1)
    with pytest.raises(ValueError, match="aggregate share"):
        decode_share(bytes(16), 2)


def test_stream_skips_what_encodes_no_element(monkeypatch: pytest.MonkeyPatch) -> None:
    values = [5, MODULUS, 7, (1 << 128) - 1, MODULUS - 1, MODULUS + 9, 11, 13]

    class Stream:
        rest = b"".join(value.to_bytes(16, "little") for value in values)

        def update(self, binder: bytes) -> None: ...

        def read(self, length: int) -> bytes:
            found, self.rest = self.rest[:length], self.rest[length:]
            return found

    class Hash:
        @staticmethod
        def new(domain: int, data: bytes) -> Stream:
            return Stream()

    monkeypatch.setattr(prio3_module, "_turboshake128", lambda: Hash)
    words = Xof(bytes(32), b"", b"").elements(5)
    assert [int(low) | int(high) << 64 for low, high in words] == [5, 7, MODULUS - 1, 11, 13]


@pytest.mark.parametrize(
    ("circuit", "measurement", "option"),
    [
        (Histogram(5), 5, "cell"),
        (Histogram(5), -1, "cell"),
        (L1BoundSum(2, 3), [2, 2], "weights"),
        (L1BoundSum(2, 3), [-1, 0], "weights"),
        (L1BoundSum(2, 3), [1], "weights"),
    ],
)
def test_encode_rejects_what_is_out_of_range(circuit: Circuit, measurement: int | list[int], option: str) -> None:
    with pytest.raises(RequestError) as refused:
        circuit.encode(measurement)
    assert refused.value.option == option


@pytest.mark.parametrize(("length", "chunk"), [(0, None), (1 << 21, None), (10, 0), (10, 11)])
def test_circuit_rejects_impossible_lengths(length: int, chunk: int | None) -> None:
    with pytest.raises(RequestError):
        Histogram(length, chunk_length=chunk)


def test_missing_library_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "Cryptodome.Hash", None)
    with pytest.raises(RequestError, match=r"pip install '\.\[split\]'"):
        Xof(bytes(32), b"", b"")


def test_messages_of_other_joint_randomness_are_refused() -> None:
    prio3 = Prio3(Histogram(9), CONTEXT)
    nonces, randomness = drawn(2, prio3, 10)
    public, shares = prio3.shard([1, 2], nonces, randomness)
    seen = [prio3.verify_init(number, KEY, nonces, public, share) for number, share in enumerate(shares)]
    messages = prio3.combine([one.verifier_shares for one in seen])[0].copy()
    messages[1, 0] ^= 1
    for number, one in enumerate(seen):
        assert one.accepts(messages).tolist() == [True, False]
        finished = prio3.finish(number, nonces, public, shares[number], messages)
        assert finished[1].tolist() == [True, False]
        assert np.array_equal(finished[0], one.out_shares)
