import os
import pickle
import stat

import numpy as np
import pytest

from sfumato.transforms.locations.spill import MEMORY, Spill, forget, join, lengths_of, load, take

PIECES = [b"", b"a", b"bc" * 5000, np.arange(3000, dtype=np.uint64).tobytes(), b"", b"end"]


@pytest.mark.parametrize("kind", ["inline", "held", "files"])
def test_what_is_stored_is_loaded(tmp_path, kind: str) -> None:
    spill = Spill({"inline": None, "held": f"{MEMORY}test", "files": str(tmp_path)}[kind])
    stored = [spill.store(piece, piece[:3]) for piece in PIECES]
    assert [[bytes(part) for part in load(one)] for one in stored] == [[piece, piece[:3]] for piece in PIECES]
    if kind != "inline":
        assert max(map(len, stored)) < 200
    if kind == "files":
        (file,) = tmp_path.iterdir()
        assert stat.S_IMODE(os.stat(file).st_mode) == 0o600


def test_workers_write_to_files_of_their_own(tmp_path) -> None:
    spill = Spill(str(tmp_path))
    first = spill.store(b"one")
    second = pickle.loads(pickle.dumps(spill)).store(b"two")
    assert (bytes(load(first)[0]), bytes(load(second)[0])) == (b"one", b"two")
    assert len(list(tmp_path.iterdir())) == 2


def test_arrays_come_back_aligned() -> None:
    numbers = np.arange(1000, dtype=np.uint64)
    assert np.array_equal(np.frombuffer(load(Spill().store(numbers.data))[0], np.uint64), numbers)


def test_what_is_held_is_let_go() -> None:
    stored = Spill(f"{MEMORY}one").store(b"users")
    other = Spill(f"{MEMORY}two").store(b"others")
    forget(f"{MEMORY}one")
    with pytest.raises(KeyError):
        load(stored)
    assert bytes(load(other)[0]) == b"others"
    forget(f"{MEMORY}two")


def test_other_bytes_are_no_reference() -> None:
    with pytest.raises(ValueError, match="not a reference"):
        load(b"elsewhere:0:1:x")


@pytest.mark.parametrize("rows", [1, 2])
def test_a_column_of_another_length_is_not_joined(rows: int) -> None:
    numbers, short = np.arange(3, dtype=np.int64), np.arange(rows, dtype=np.int32)
    types = [np.dtype(np.int64), np.dtype(np.int32)]
    joined = join([Spill().store(numbers.data, numbers.astype(np.int32).data)] * 2, types)
    assert [column.tolist() for column in joined] == [[0, 1, 2, 0, 1, 2]] * 2
    with pytest.raises(ValueError, match="different lengths"):
        join([Spill().store(numbers.data, short.data)], types)


@pytest.mark.parametrize("kind", ["inline", "held", "files"])
def test_what_is_taken_is_released(tmp_path, kind: str) -> None:
    spill = Spill({"inline": None, "held": f"{MEMORY}taken", "files": str(tmp_path)}[kind])
    stored = [spill.store(np.arange(n, dtype=np.int64).data, bytes(n)) for n in (3, 0, 5)]
    assert [lengths_of(one) for one in stored] == [(24, 3), (0, 0), (40, 5)]
    numbers, rest = join(stored[:2], [np.dtype(np.int64), np.dtype(np.uint8)], last=True)
    assert (numbers.tolist(), rest.tolist()) == ([0, 1, 2], [0, 0, 0])
    assert np.frombuffer(take(stored[2])[0], np.int64).tolist() == [0, 1, 2, 3, 4]
    if kind == "held":
        with pytest.raises(KeyError):
            load(stored[2])
    forget(f"{MEMORY}taken")
