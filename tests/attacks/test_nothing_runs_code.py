"""Attack 11: a file that runs code when it is opened, under `--dry_run` ("touch nothing") and under every reader.

A tuner was a pickle, and `sfumato ranges build --tuner FILE --dry_run` ran what stood in it. Every option that names a
file gets traps in every packing that some loader would have opened; a trap that is sprung leaves a file behind.
"""

from __future__ import annotations

import ast
import io
import os
import pickle
import zipfile
import zlib
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import shapely

from sfumato.pipelines.command_line import cli
from sfumato.schemas.errors import SfumatoError
from sfumato.transforms.geo.zone_file import read_zones
from sfumato.transforms.ranges import open_model
from sfumato.transforms.ranges.model_file import archive_bytes, read_archive
from sfumato.transforms.ranges.tuner import FORMAT, TREE_DEPTH, Forest, Tuner, open_tuner, save_tuner
from sfumato.transforms.release.published_release import open_release
from tests.attacks.jobs import JOBS, city
from tests.rejections import rejects
from tests.seeds import seeded_rng
from tests.unit.zones.polygons import write_geojson

ROOT = Path(__file__).parent.parent.parent
FILES = ["key_file", "runner_config", "ledger"]
OWN_FILES = {
    "heatmap": ["warm_start"],
    "moments": ["warm_start", "groups_file", "zones"],
    "ranges": ["tuner", "workload"],
    "zones": ["zones"],
}
OPTIONS = [(job, one) for job in JOBS if "central" not in job for one in [*FILES, *OWN_FILES.get(job, [])]]


class Trap:
    """What makes a folder when it is unpickled."""

    def __init__(self, sprung: Path):
        self.sprung = sprung

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.makedirs, (str(self.sprung),)


def zipped(name: str, content: bytes) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr(name, content)
    return file.getvalue()


def traps(sprung: Path) -> dict[str, bytes]:
    """The trap as a pickle, as joblib and NumPy pack pickles, and as YAML."""
    packed = pickle.dumps(Trap(sprung))
    held = io.BytesIO()
    np.save(held, np.array([Trap(sprung)], dtype=object), allow_pickle=True)
    return {
        "pickle": packed,
        "joblib": zlib.compress(packed),
        "npy": held.getvalue(),
        "metadata": zipped("metadata.npy", held.getvalue()),
        "digest": zipped("digest.npy", held.getvalue()),
        "yaml": f"!!python/object/apply:os.makedirs ['{sprung}']\n".encode(),
    }


@pytest.fixture
def sprung(tmp_path: Path) -> Path:
    return tmp_path / "sprung"


PACKINGS = sorted(traps(Path("x")))


def test_the_traps_work(sprung: Path) -> None:
    planted = traps(sprung)
    for loaded in (planted["pickle"], zlib.decompress(planted["joblib"])):
        pickle.loads(loaded)
        sprung.rmdir()
    for name in ("metadata", "digest"):
        with np.load(io.BytesIO(planted[name]), allow_pickle=True) as archive:
            assert name in archive
            assert archive[name].size == 1  # which has run it
        sprung.rmdir()


@pytest.mark.parametrize(("job", "option"), OPTIONS)
def test_no_file_of_a_dry_run_runs_code(job: str, option: str, tmp_path: Path, sprung: Path) -> None:
    logs = tmp_path / "logs.parquet"
    pq.write_table(city(1), logs)
    words = "zones" if job == option else JOBS[job]
    more = {"zones": ["--id_column=tract"], "ledger": ["--dataset=d", "--period=2026-11-20", "--budget=9/1d"]}
    for number, (packing, content) in enumerate(traps(sprung).items()):
        planted = tmp_path / f"{packing}.npz"
        planted.write_bytes(content)
        folder = tmp_path / f"{packing} folder"
        folder.mkdir()
        for name in ("manifest.json", "model.npz", "cells.parquet", "density.npy", "local-0.npz"):
            (folder / name).write_bytes(content)
        place = folder if option == "warm_start" else planted
        given = [f"--input={logs}", f"--output={tmp_path / f'out{number}'}", f"--{option}={place}", "--epsilon=1"]
        cli.main([*words.split(), *given, *more.get(option, []), "--dry_run"])
        assert not sprung.exists(), packing


@pytest.mark.parametrize("packing", PACKINGS)
def test_no_reader_runs_code(packing: str, tmp_path: Path, sprung: Path) -> None:
    """The readers of tuners, models and releases, as the jobs call them when it is no dry run."""
    content = traps(sprung)[packing]
    planted = tmp_path / "planted.npz"
    for name in ("manifest.json", "model.npz", "density.npy", planted.name):
        (tmp_path / name).write_bytes(content)
    for read in (
        lambda: open_tuner(str(planted)),
        lambda: open_model(planted),
        lambda: open_release(tmp_path).density,
    ):
        with pytest.raises(SfumatoError):
            read()
    assert not sprung.exists()


# --- the source: no loader that runs code ---

_LOADERS = {"pickle", "joblib", "dill", "cloudpickle", "marshal", "shelve", "skops", "torch", "orbax", "msgpack"}
_CALLS = {"eval", "exec", "__import__", "yaml.load", "yaml.unsafe_load", "yaml.full_load"}


@pytest.mark.parametrize("name", ["zones.shp", "../zones.shp", "zones.vrt"])
def test_a_zip_of_zones_reads_no_other_file(name: str, tmp_path: Path) -> None:
    """GDAL chooses a reader by content, and a VRT names further files: it would publish what they hold."""
    secret = write_geojson(tmp_path / "secret.geojson", [(shapely.box(0, 0, 1, 1), {"id": "secret"})])
    vrt = f'<OGRVRTDataSource><OGRVRTLayer name="secret"><SrcDataSource>{secret}</SrcDataSource></OGRVRTLayer>'
    for content in (vrt + "</OGRVRTDataSource>", Path(secret).read_text()):
        with zipfile.ZipFile(tmp_path / "zones.zip", "w") as packed:
            packed.writestr(name, content)
        with rejects("zones"):
            read_zones(str(tmp_path / "zones.zip"), "id")
    (tmp_path / "zones.gpkg").write_bytes(b"SQLite format 3\0" + vrt.encode())
    with rejects("zones"):
        read_zones(str(tmp_path / "zones.gpkg"), "id")
    assert not (tmp_path.parent / "zones.shp").exists()


@pytest.mark.slow
def test_no_module_of_the_product_has_a_loader_that_runs_code() -> None:
    seen = 0
    for folder in ("schemas", "transforms", "pipelines", "runner_configs"):
        for path in (ROOT / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                names = {one.name for one in node.names} if isinstance(node, ast.Import) else set()
                names |= {node.module or ""} if isinstance(node, ast.ImportFrom) else set()
                assert not {name.split(".")[0] for name in names} & _LOADERS, path
                if not isinstance(node, ast.Call):
                    continue
                called, given = ast.unparse(node.func), {one.arg: ast.unparse(one.value) for one in node.keywords}
                assert called not in _CALLS, path
                assert given.get("allow_pickle", "False") == "False", path
                if called == "np.load":
                    seen += 1
                    assert given["allow_pickle"] == "False", path
    assert seen >= 3


# --- tuners that are damaged or made to hurt ---


def forest(nodes: int = 3, **changes: np.ndarray) -> dict[str, np.ndarray]:
    """The arrays of one tree: a root and two leaves."""
    arrays = {
        "roots": np.array([0]),
        "feature": np.zeros(nodes, np.int64),
        "threshold": np.ones(nodes),
        "children": np.array([[1, 2], [1, 1], [2, 2]]),
        "value": np.array([0.0, -0.5, 0.5]),
    }
    return {**arrays, **changes}


def tuner_file(path: Path, arrays: dict[str, np.ndarray], **changes: object) -> Path:
    place = [{"west": 0.0, "south": 0.0, "east": 1.0, "north": 1.0}, 7.0]
    metadata = {"format": FORMAT, "places": [place], **changes}
    path.write_bytes(archive_bytes(metadata, arrays))
    return path


def test_a_sound_tuner_is_opened(tmp_path: Path) -> None:
    tuner = open_tuner(str(tuner_file(tmp_path / "tuner.npz", forest())))
    assert tuner.forest.predict(np.full(8, 0.9)) == -0.5
    assert tuner.forest.predict(np.full(8, 1.1)) == 0.5


CHAIN = TREE_DEPTH + 2
HOSTILE: dict[str, dict[str, np.ndarray]] = {
    "a cycle": forest(children=np.array([[1, 2], [0, 0], [2, 2]])),
    "a cycle of two": forest(children=np.array([[1, 2], [2, 2], [1, 1]])),
    "too deep": forest(
        feature=np.zeros(CHAIN, np.int64),
        threshold=np.ones(CHAIN),
        value=np.zeros(CHAIN),
        children=np.minimum(np.arange(1, CHAIN + 1), CHAIN - 1)[:, None] * np.ones(2, np.int64),
    ),
    "a child that is not there": forest(children=np.array([[1, 3], [1, 1], [2, 2]])),
    "a child before the first": forest(children=np.array([[1, -1], [1, 1], [2, 2]])),
    "a root that is not there": forest(roots=np.array([3])),
    "no root": forest(roots=np.zeros(0, np.int64)),
    "roots of two axes": forest(roots=np.zeros((1, 1), np.int64)),
    "a feature that is not there": forest(feature=np.array([8, 0, 0])),
    "features of another length": forest(feature=np.array([0, 0])),
    "children of another shape": forest(children=np.array([1, 2, 2])),
    "nodes that are no integers": forest(children=np.array([[1.0, 2.0], [1.0, 1.0], [2.0, 2.0]])),
    "values beyond what exp can take": forest(value=np.array([0.0, 1e4, 0.0])),
    "values that are no numbers": forest(value=np.array([0.0, np.nan, 0.0])),
    "a missing array": {name: one for name, one in forest().items() if name != "threshold"},
}


METADATA: list[dict[str, object]] = [
    {"format": "sfumato-tuner/1"},
    {"places": []},
    {"places": [[{"west": 1.0, "south": 0.0, "east": 0.0, "north": 1.0}, 7.0]]},
    {"places": [[{"west": 0.0, "south": 0.0, "east": 1.0, "north": 1.0}, -1.0]]},
    {"places": 7},
]


@pytest.mark.parametrize(
    ("arrays", "changes"),
    [*((arrays, {}) for arrays in HOSTILE.values()), *((forest(), changes) for changes in METADATA)],
    ids=[*HOSTILE, *map(str, METADATA)],
)
def test_hostile_tuners_are_refused(arrays: dict[str, np.ndarray], changes: dict[str, object], tmp_path: Path) -> None:
    with rejects("tuner", SfumatoError):
        open_tuner(str(tuner_file(tmp_path / "tuner.npz", arrays, **changes)))


@pytest.mark.slow
def test_cut_and_changed_files_are_refused_or_sound(tmp_path: Path) -> None:
    """2,000 files with a byte changed, and one cut at each of 200 places: no other error, no endless loop."""
    path = tmp_path / "tuner.npz"
    tree = Forest(**forest())
    save_tuner(Tuner(tree, open_tuner(str(tuner_file(path, forest()))).places, ""), str(path))
    whole, rng = path.read_bytes(), seeded_rng(1)
    changed = [whole[:end] for end in np.linspace(0, len(whole) - 1, 200).astype(int)]
    for _ in range(2000):
        bad = bytearray(whole)
        bad[rng.integers(len(bad))] ^= 1 << int(rng.integers(8))
        changed.append(bytes(bad))
    refused = 0
    for content in changed:
        path.write_bytes(content)
        try:
            assert abs(open_tuner(str(path)).forest.predict(np.ones(8))) <= 50
        except SfumatoError:
            refused += 1
    assert refused > 1000


def test_what_would_fill_the_memory_is_refused(tmp_path: Path) -> None:
    """65 kB on disk, 67 MB unpacked; and a header that promises 8 TB."""
    path = tmp_path / "tuner.npz"
    big = {**forest(), "more": np.zeros((1 << 23) + 1)}
    assert tuner_file(path, big).stat().st_size < 1 << 17
    with rejects("tuner", SfumatoError):
        open_tuner(str(path))
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "<f8", "fortran_order": False, "shape": (1 << 40,)})
    file = io.BytesIO(archive_bytes({}, {}))
    with zipfile.ZipFile(file, "a") as archive:
        archive.writestr("widths.npy", header.getvalue())
    with pytest.raises((ValueError, MemoryError)):
        read_archive(file.getvalue())
