import os
import pickle
import stat

import numpy as np
import pytest

from sfumato.transforms.locations.spill import Spill, load

PIECES = [b"", b"a", b"bc" * 5000, np.arange(3000, dtype=np.uint64).tobytes(), b"", b"end"]


@pytest.mark.parametrize("in_files", [False, True])
def test_what_is_stored_is_loaded(tmp_path, in_files: bool) -> None:
    spill = Spill(str(tmp_path) if in_files else None)
    stored = [spill.store(piece, piece[:3]) for piece in PIECES]
    assert [bytes(load(one)) for one in stored] == [piece + piece[:3] for piece in PIECES]
    if in_files:
        assert max(map(len, stored)) < 200
        (file,) = tmp_path.iterdir()
        assert stat.S_IMODE(os.stat(file).st_mode) == 0o600


def test_workers_write_to_files_of_their_own(tmp_path) -> None:
    spill = Spill(str(tmp_path))
    first = spill.store(b"one")
    second = pickle.loads(pickle.dumps(spill)).store(b"two")
    assert (bytes(load(first)), bytes(load(second))) == (b"one", b"two")
    assert len(list(tmp_path.iterdir())) == 2


def test_arrays_come_back_aligned() -> None:
    numbers = np.arange(1000, dtype=np.uint64)
    assert np.array_equal(np.frombuffer(load(Spill().store(numbers.data)), np.uint64), numbers)
