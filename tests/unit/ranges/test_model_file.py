"""Released models are opened without data, Beam or trust."""

from __future__ import annotations

import io
import json
import os
import pickle
import subprocess
import sys
import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks.baselines.range_methods.partitions import Partition, PartitionModel
from sfumato.schemas.errors import FormatError, RequestError
from sfumato.schemas.release import MODEL_FILE
from sfumato.transforms.ranges import open_model
from sfumato.transforms.ranges.model_file import model_bytes
from tests.rejections import rejects
from tests.seeds import seeded_rng
from tests.unit.ranges.models import grid_model, some_squares


def test_a_release_or_its_model_is_opened_and_answers_the_same(tmp_path: Path) -> None:
    model = grid_model()
    (tmp_path / MODEL_FILE).write_bytes(model_bytes(model))
    (tmp_path / "another name").write_bytes(model_bytes(model))
    x, y, size = some_squares(200)
    expected, share = model.answer(x, y, size)
    assert 0 < np.count_nonzero(share < 1) < 200
    for path in (tmp_path, str(tmp_path) + "/", tmp_path / MODEL_FILE, str(tmp_path / "another name")):
        answers, inside = open_model(path).answer(x, y, size)
        np.testing.assert_allclose(answers.users, expected.users, rtol=1e-12)
        np.testing.assert_allclose(answers.stddev, expected.stddev, rtol=1e-12)
        np.testing.assert_array_equal(inside, share)


def test_open_model_states_which_version_reads_a_partition(tmp_path: Path) -> None:
    made = PartitionModel(Partition(4096, *np.array([[0], [0], [4096], [4096]]), np.array([5.0]), np.array([1.0])))
    (tmp_path / MODEL_FILE).write_bytes(model_bytes(replace(grid_model(), model=made, method="privtree")))
    with pytest.raises(FormatError, match=r"method privtree, .* sfumato 0\.1 of November 2026 or earlier"):
        open_model(tmp_path)


@pytest.mark.slow
def test_answers_need_neither_beam_nor_what_draws(tmp_path: Path) -> None:
    (tmp_path / MODEL_FILE).write_bytes(model_bytes(grid_model()))
    code = f"""import sys
import numpy as np
from sfumato.transforms.ranges import open_model
from tests.rejections import rejects
from tests.seeds import seeded_rng
answers, inside = open_model({str(tmp_path)!r}).answer(np.array([-122.44]), np.array([37.77]), np.array([500.0]))
assert answers.users[0] > 0 and inside[0] == 1
heavy = {{'apache_beam', 'matplotlib', 'jax', 'sklearn'}} & set(sys.modules)
assert not heavy, heavy"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_what_is_not_there_is_told_so(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match=r"no file .*nothing; name a release of `sfumato ranges build`"):
        open_model(tmp_path / "nothing")
    with pytest.raises(RequestError, match=f"no file .*/{MODEL_FILE}; name a release"):
        open_model(tmp_path)  # a folder without a model
    assert RequestError.exit_code == 2


def test_damaged_files_are_no_models(tmp_path: Path) -> None:
    whole = model_bytes(grid_model(400))
    path = tmp_path / MODEL_FILE
    for length in range(0, len(whole), 97):
        path.write_bytes(whole[:length])
        with rejects("model"):
            open_model(path)
    rng = seeded_rng(2)
    for _ in range(300):  # a flipped byte is found out, or changes nothing that counts
        content = bytearray(whole)
        content[rng.integers(len(whole))] ^= int(rng.integers(1, 256))
        path.write_bytes(content)
        try:
            model = open_model(path)
        except RequestError:
            continue
        assert model_bytes(model) == whole


def test_models_of_another_format_are_told_so(tmp_path: Path) -> None:
    whole = zipfile.ZipFile(io.BytesIO(model_bytes(grid_model())))
    metadata = json.loads(np.load(io.BytesIO(whole.read("metadata.npy"))).tobytes())
    metadata["format"] = "sfumato-ranges/9"
    np.savez(tmp_path / MODEL_FILE, metadata=np.frombuffer(json.dumps(metadata).encode(), np.uint8))
    with pytest.raises(FormatError, match=r"newer version of sfumato \(format 9; this one reads up to 1\): upgrade"):
        open_model(tmp_path)


class Trap:
    """What makes a folder when it is unpickled."""

    def __init__(self, folder: Path):
        self.folder = str(folder)

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, (self.folder,)


def test_nothing_in_a_file_is_run(tmp_path: Path) -> None:
    trap, path = tmp_path / "sprung", tmp_path / MODEL_FILE
    packed = pickle.dumps(Trap(trap))
    pickle.loads(packed)  # the trap works
    trap.rmdir()
    whole = zipfile.ZipFile(io.BytesIO(model_bytes(grid_model())))
    arrays = {name: whole.read(name) for name in whole.namelist()}
    held = io.BytesIO()
    np.save(held, np.array([Trap(trap)], dtype=object), allow_pickle=True)

    def archive(name: str, content: bytes) -> bytes:
        file = io.BytesIO()
        with zipfile.ZipFile(file, "w") as made:
            for one, was in arrays.items():
                made.writestr(one, content if one == name else was)
        return file.getvalue()

    contents = [packed, held.getvalue(), *(archive(name, held.getvalue()) for name in arrays)]
    contents += [archive(name, packed) for name in arrays]
    assert len(contents) >= 10
    for content in contents:
        path.write_bytes(content)
        with rejects("model"):
            open_model(path)
        assert not trap.exists()


def test_a_header_that_asks_for_all_the_memory_is_refused(tmp_path: Path) -> None:
    whole = zipfile.ZipFile(io.BytesIO(model_bytes(grid_model())))
    with zipfile.ZipFile(tmp_path / MODEL_FILE, "w") as file:
        for name in whole.namelist():
            content = whole.read(name)
            if name == "users.npy":
                start = content.index(b"'shape': (")
                end = content.index(b")", start)
                content = content[:start] + b"'shape': (9999999999999,)".ljust(end + 1 - start) + content[end + 1 :]
            file.writestr(name, content)
    with pytest.raises(RequestError, match="damaged"):
        open_model(tmp_path)
