"""Releases on disk or in a bucket: written whole or not at all, opened in one line."""

from __future__ import annotations

import io
import json
import os
import shutil
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow.parquet as pq
from apache_beam.io.filesystems import FileSystems
from numpy.typing import NDArray

from sfumato.schemas.errors import RequestError
from sfumato.schemas.release import CELLS_FILE, DENSITY_FILE, MANIFEST_FILE, MANIFEST_FORMAT, RELEASE_FILES

if TYPE_CHECKING:
    import pandas as pd


def is_remote(path: str) -> bool:
    """Whether a path names something that only Beam's file systems reach."""
    return "://" in path


def check_output(output: str, overwrite: bool) -> None:
    """Raises RequestError where a release may not be written to `output`."""
    if not output:
        raise RequestError("output: name a folder for the release")
    if not _exists(output):
        return
    if not overwrite:
        raise RequestError(f"output: {output} exists already; name another, or give --overwrite")
    replaceable = _is_release(_standing_manifest(output)) if is_remote(output) else _is_replaceable(Path(output))
    if not replaceable:
        raise RequestError(f"output: {output} exists and is no release, so --overwrite will not replace it")


def publish(output: str, files: Mapping[str, bytes], release_id: str, overwrite: bool) -> None:
    """Writes all files of a release, or none.

    On a disk the release is written beside its place and moved there in one step. A bucket has no such step: there
    the manifest is written last, and a folder without a manifest is no release. A repeated call for a release that
    stands already does nothing, so a retried bundle does no harm.
    """
    if _standing_manifest(output) == files[MANIFEST_FILE]:
        return
    check_output(output, overwrite)
    if is_remote(output):
        _publish_remote(output, files, overwrite)
    else:
        _publish_local(Path(output), files, release_id)


def _publish_local(output: Path, files: Mapping[str, bytes], release_id: str) -> None:
    output = output.absolute()
    output.parent.mkdir(parents=True, exist_ok=True)
    partial = output.with_name(f".{output.name}.partial-{release_id}")
    replaced = output.with_name(f".{output.name}.replaced-{release_id}")
    try:
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir()
        for name, content in files.items():
            with (partial / name).open("wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
        if output.exists():
            output.rename(replaced)
        try:
            partial.rename(output)
        except OSError:
            if replaced.exists():
                replaced.rename(output)
            raise
        shutil.rmtree(replaced, ignore_errors=True)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _publish_remote(output: str, files: Mapping[str, bytes], overwrite: bool) -> None:
    partial = f"{output.rstrip('/')}/.partial-{uuid.uuid4().hex}"  # of this attempt alone
    manifest = FileSystems.join(output, MANIFEST_FILE)
    written = {name: FileSystems.join(partial, name) for name in files}
    try:
        for name, path in written.items():
            with FileSystems.create(path, "application/octet-stream") as file:
                file.write(files[name])
        if overwrite and FileSystems.exists(manifest):
            FileSystems.delete([manifest])  # from here on the old release is none
        data = [name for name in files if name != MANIFEST_FILE]
        FileSystems.rename([written[name] for name in data], [FileSystems.join(output, name) for name in data])
        FileSystems.rename([written[MANIFEST_FILE]], [manifest])
    finally:
        left = [path for path in written.values() if FileSystems.exists(path)]
        if left:
            FileSystems.delete(left)


@dataclass(frozen=True)
class Release:
    """A published release, read when asked for."""

    path: str
    manifest: dict[str, Any]

    @cached_property
    def cells(self) -> pd.DataFrame:
        """One row a cell, by CELLS_SCHEMA: a geopandas.GeoDataFrame where geopandas is installed, else a DataFrame."""
        frame: pd.DataFrame = pq.read_table(io.BytesIO(_read(self.path, CELLS_FILE))).to_pandas()
        try:
            import geopandas
        except ImportError:
            return frame
        import shapely

        shapes = shapely.from_wkb(frame["geometry"].to_numpy())
        located: pd.DataFrame = geopandas.GeoDataFrame(frame.drop(columns="geometry"), geometry=shapes, crs="OGC:CRS84")
        return located

    @cached_property
    def density(self) -> NDArray[np.float64]:
        """float64[2^d, 2^d], row 0 in the north; sums to 1."""
        return np.asarray(np.load(io.BytesIO(_read(self.path, DENSITY_FILE))))


def open_release(path: str | os.PathLike[str]) -> Release:
    """Opens the release in a folder, local or gs://. Raises RequestError where there is none."""
    text = os.fspath(path)
    try:
        manifest = json.loads(_read(text, MANIFEST_FILE))
    except OSError:
        raise RequestError(f"{text}: no release here (no {MANIFEST_FILE})") from None
    if manifest.get("format") != MANIFEST_FORMAT:
        raise RequestError(f"{text}: the manifest's format is {manifest.get('format')!r}, not {MANIFEST_FORMAT!r}")
    return Release(text, manifest)


def _read(folder: str, name: str) -> bytes:
    with FileSystems.open(FileSystems.join(folder, name), "application/octet-stream") as file:
        return bytes(file.read())


def _exists(output: str) -> bool:
    if not is_remote(output):
        return os.path.lexists(output)
    pattern = output.rstrip("/") + "/**"
    return FileSystems.exists(FileSystems.join(output, MANIFEST_FILE)) or any(
        match.metadata_list for match in FileSystems.match([pattern], limits=[1])
    )


def _is_replaceable(output: Path) -> bool:
    """Whether a folder is empty or holds a release and nothing else."""
    if not output.is_dir():
        return False
    names = {path.name for path in output.iterdir()}
    return not names or (names <= RELEASE_FILES and _is_release(_standing_manifest(str(output))))


def _is_release(manifest: bytes | None) -> bool:
    try:
        return manifest is not None and json.loads(manifest).get("format") == MANIFEST_FORMAT
    except (ValueError, AttributeError):
        return False


def _standing_manifest(output: str) -> bytes | None:
    """The manifest that stands at `output`, if one does."""
    try:
        return _read(output, MANIFEST_FILE)
    except OSError:
        return None
