"""A user who asks to be deleted: no file that a job leaves, and no log, holds their id or a hash of it."""

from __future__ import annotations

import hashlib
import io
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sfumato.transforms.privacy import keys, user_hashes
from tests.conftest import make_logs, write_files
from tests.refreshes import Place

DAYS = ("2026-11-19", "2026-11-20")
USER = "rider-7f3c9a5577"  # not to be met by chance
NUMBER = 4_611_686_018_427_387_847
OPTIONS = {"region": [-1, 50, 1, 51], "depth": 4, "epsilon": 4, "trust": "central"}


def write_nights(folder: Path, kind: str) -> None:
    """Two nights in which the user has a fifth of all records, with text or integers as ids."""
    for number, day in enumerate(DAYS):
        logs = make_logs(400, 2, seed=number, kind="string" if kind == "text" else "int")
        own = make_logs(200, 1, seed=9 + number)
        value = USER if kind == "text" else NUMBER
        own = own.set_column(0, "user_id", pa.array([value] * len(own), logs["user_id"].type))
        write_files(pa.concat_tables([logs, own]), folder / f"dt={day}", 2)


def hashes_of_runs(monkeypatch: pytest.MonkeyPatch) -> list[tuple[bytes, np.ndarray]]:
    """Keeps every key under which a run hashes ids, and all the hashes."""
    kept: list[tuple[bytes, np.ndarray]] = []
    original = user_hashes.keyed_hash

    def keeping(key: bytes, values: np.ndarray) -> np.ndarray:
        found = original(key, values)
        kept.append((key, found))
        return found

    monkeypatch.setattr(user_hashes, "keyed_hash", keeping)
    return kept


def unpacked(path: Path) -> list[bytes]:
    """A file's bytes, and of a Parquet file, which is compressed, all values of every column too."""
    content = path.read_bytes()
    if path.suffix != ".parquet":
        return [content]
    columns = pq.read_table(io.BytesIO(content)).columns
    texts = [repr(column.to_pylist()).encode() for column in columns]
    numbers = [column.combine_chunks() for column in columns if pa.types.is_primitive(column.type)]
    return [content, *texts, *(one.to_numpy(zero_copy_only=False).tobytes() for one in numbers)]


def forms(values: list[bytes | int]) -> set[bytes]:
    """What a file might hold of an id or a hash: digits, hexadecimal digits, and bytes in either order."""
    found = set()
    for value in values:
        if isinstance(value, int):
            signed = value - 2**64 if value >= 2**63 else value
            found |= {str(value).encode(), str(signed).encode(), b"%x" % value}
            found |= {value.to_bytes(8, "little"), value.to_bytes(8, "big")}
        else:
            found |= {value, value.hex().encode()}
    return found


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["text", "integers"])
@pytest.mark.parametrize("rotation", [1, 2])
def test_no_file_and_no_log_holds_an_id_or_its_hash(
    tmp_path: Path,
    kind: str,
    rotation: int,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    kept = hashes_of_runs(monkeypatch)
    write_nights(tmp_path / "logs", kind)
    place = Place(tmp_path / "place", tmp_path / "logs", options=OPTIONS, rotation=rotation)
    for day in DAYS:
        assert place.refresh("--date", day) == 0
    said = capfd.readouterr()
    assert kept, "ids are hashed by this function"
    user = np.array([USER.encode()], dtype=object) if kind == "text" else np.array([NUMBER], dtype=np.int64)
    own = {int(keys.keyed_hash(key, user)[0]) for key, _ in kept}
    assert any(np.isin(list(own), found.astype(np.uint64)).any() for _, found in kept)  # the user was hashed
    name: bytes | int = USER.encode() if kind == "text" else NUMBER
    raw = USER.encode() if kind == "text" else str(NUMBER).encode()
    plain = [hashlib.new(method, raw).digest() for method in ("md5", "sha1", "sha256")]
    sought = forms([name, *own, *plain])
    left = [path for path in place.folder.rglob("*") if path.is_file() and "logs" not in path.parts]
    assert {"nights.parquet", "answers.parquet", "ledger.db", "timeline.json"} <= {path.name for path in left}
    for path in left:
        for content in unpacked(path):
            assert not [one for one in sought if one in content], path
    for text in (said.out, said.err):
        assert not [one for one in sought if one in text.encode()]
