"""Releases on disk or in a bucket: written whole or not at all, opened in one line."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import re
import shutil
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from apache_beam.io.filesystem import BeamIOError, CompressionTypes
from apache_beam.io.filesystems import FileSystems
from numpy.typing import NDArray

from sfumato.schemas.errors import RequestError
from sfumato.schemas.region import Grid, Region
from sfumato.schemas.release import (
    BINS_FILE,
    BITS_FILE,
    CELLS_FILE,
    CURVE_FILE,
    DENSITY_FILE,
    EVALUATION_FILES,
    EVALUATION_FORMAT,
    ITEMS_FILE,
    MANIFEST_FILE,
    MANIFEST_FORMAT,
    MOMENTS_FILE,
    QUANTILES_FILE,
    RANGES_FILE,
    REFUSAL_FORMAT,
    RELEASE_FILES,
    TOTALS_FILE,
)
from sfumato.transforms.files import content_type, is_remote, matching, read_file, storage_errors
from sfumato.transforms.release.metadata import manifest_bytes

if TYPE_CHECKING:
    import pandas as pd

_NOUNS = {MANIFEST_FORMAT: "release", EVALUATION_FORMAT: "evaluation"}
_LEFT = RELEASE_FILES | EVALUATION_FILES
_TAKEN = "output: {} exists already; name another, or give --overwrite"


def check_output(output: str, overwrite: bool, kind: str = MANIFEST_FORMAT) -> None:
    """Raises RequestError where something of this kind, a manifest's format, may not be written to `output`.

    A release replaces a release, and an evaluation an evaluation, never one the other.
    """
    if not output:
        raise RequestError("output: name a folder for the release")
    if not _exists(output):
        if not is_remote(output):
            _check_parent(Path(output).absolute())
        return
    if is_remote(output):
        replaceable = _kind_of(standing_manifest(output)) == kind
    else:
        replaceable = _is_replaceable(Path(output), kind)
    _check_kind(output, overwrite, replaceable, kind)


def _check_kind(output: str, overwrite: bool, replaceable: bool, kind: str) -> None:
    """Raises RequestError where what stands at `output` is not to be, or must not be, overwritten."""
    if not overwrite and not is_refusal(standing_manifest(output)):
        raise RequestError(_TAKEN.format(output))
    if not replaceable:
        raise RequestError(f"output: {output} exists and is no {_NOUNS[kind]}, so --overwrite will not replace it")


def publish(output: str, files: Mapping[str, bytes], release_id: str, overwrite: bool) -> None:
    """Writes all files of a release, or none.

    On a disk the release is written beside its place and moved there in one step. A bucket has no such step: there
    all files are uploaded to a folder inside the output and then moved, the manifest last, and a folder without a
    manifest is no release. A repeated call for a release that stands already (the same manifest, byte for byte) does
    nothing, so a retried bundle does no harm; nor does what a lost worker left behind in a bucket. The manifest is
    written with the digest of every other file (see `with_digests`).
    """
    files = with_digests(files)
    standing = standing_manifest(output)
    if standing == files[MANIFEST_FILE]:
        return
    kind = str(_kind_of(files[MANIFEST_FILE]))
    if is_remote(output):
        if standing is not None:
            _check_kind(output, overwrite, _kind_of(standing) == kind, kind)
        _publish_remote(output, files, release_id, overwrite)
    else:
        try:
            check_output(output, overwrite, kind)
        except RequestError:
            # Another attempt at this release may have moved it into its place, or be about to.
            if standing_manifest(output) == files[MANIFEST_FILE]:
                return
            check_output(output, overwrite, kind)
        _publish_local(Path(output), files, release_id, overwrite)


def with_digests(files: Mapping[str, bytes]) -> dict[str, bytes]:
    """The files of a release, its manifest listing the SHA-256 and the size in bytes of every other one."""
    listed = {
        name: {"sha256": hashlib.sha256(files[name]).hexdigest(), "bytes": len(files[name])}
        for name in sorted(files)
        if name != MANIFEST_FILE
    }
    manifest = {**json.loads(files[MANIFEST_FILE]), "files": listed}
    return {**files, MANIFEST_FILE: manifest_bytes(manifest)}


def _publish_local(output: Path, files: Mapping[str, bytes], release_id: str, overwrite: bool) -> None:
    output = output.absolute()
    output.parent.mkdir(parents=True, exist_ok=True)
    mark = f"{release_id}-{uuid.uuid4().hex}"  # of this attempt alone: another process may write the same release
    partial = output.with_name(f".{output.name}.partial-{mark}")
    replaced = output.with_name(f".{output.name}.replaced-{mark}")
    try:
        partial.mkdir()
        for name in sorted(files, key=MANIFEST_FILE.__eq__):  # the manifest last
            with (partial / name).open("wb") as file:
                file.write(files[name])
                file.flush()
                os.fsync(file.fileno())
        standing = standing_manifest(str(output))
        if (overwrite or is_refusal(standing)) and standing not in (None, files[MANIFEST_FILE]):
            output.rename(replaced)
        try:
            partial.rename(output)
        except OSError:
            if replaced.exists() and not output.exists():
                replaced.rename(output)
            raise
    except OSError:
        # Another attempt may have been faster, and have cleared this one's files away.
        if standing_manifest(str(output)) != files[MANIFEST_FILE]:
            raise
    finally:
        _remove(partial)
        _remove(replaced)
    clear_lost(str(output), release_id)


def clear_lost(output: str, release_id: str) -> None:
    """Removes what killed attempts at a release that stands by now left behind, beside it or in its bucket.

    An attempt still under way has come too late, and finds this release in its place.
    """
    if is_remote(output):
        lost = matching(FileSystems.join(output, f".partial-{release_id}-*", "*"))
        _delete_remote([one.path for one in lost])
        return
    place = Path(output).absolute()
    left = re.compile(rf"\.{re.escape(place.name)}\.(partial|replaced)-{re.escape(release_id)}-[0-9a-f]{{32}}")
    for path in [path for path in place.parent.iterdir() if left.fullmatch(path.name)]:
        # Moved away first, so that its owner does not put what is left of it into the place.
        moved = path.with_name(f".lost-{uuid.uuid4().hex}")
        with contextlib.suppress(OSError):  # its owner was faster
            path.rename(moved)
    for path in [path for path in place.parent.iterdir() if re.fullmatch(r"\.lost-[0-9a-f]{32}", path.name)]:
        _remove(path)


def _remove(folder: Path) -> None:
    """Removes a release's folder, its manifest first: no folder with a manifest ever lacks a file."""
    with contextlib.suppress(OSError):
        (folder / MANIFEST_FILE).unlink()
    shutil.rmtree(folder, ignore_errors=True)


def _publish_remote(output: str, files: Mapping[str, bytes], release_id: str, overwrite: bool) -> None:
    partial = FileSystems.join(output, f".partial-{release_id}-{uuid.uuid4().hex}")  # of this attempt alone
    staged = {name: FileSystems.join(partial, name) for name in files}
    placed = {name: FileSystems.join(output, name) for name in files}
    data = [name for name in files if name != MANIFEST_FILE]
    try:
        for name, content in files.items():
            with FileSystems.create(staged[name], content_type(name), CompressionTypes.UNCOMPRESSED) as file:
                file.write(content)
        standing = standing_manifest(output)  # once more: uploads take their time
        if standing not in (None, files[MANIFEST_FILE]):
            kind = str(_kind_of(files[MANIFEST_FILE]))
            _check_kind(output, overwrite, _kind_of(standing) == kind, kind)
            # From here on the older release is no release any more.
            _delete_remote([placed[MANIFEST_FILE]])
            left = [name for name in _LEFT if name not in files]
            _delete_remote([FileSystems.join(output, name) for name in left])
        # What another attempt at the same release has moved here already is the same, byte for byte. Data that a
        # failure leaves here without a manifest are no release.
        FileSystems.rename([staged[name] for name in data], [placed[name] for name in data])
        _check_placed(output, files, data)
        FileSystems.rename([staged[MANIFEST_FILE]], [placed[MANIFEST_FILE]])
        try:
            _check_placed(output, files, data)
        except OSError:
            if standing_manifest(output) == files[MANIFEST_FILE]:
                _delete_remote([placed[MANIFEST_FILE]])
            raise
        clear_lost(output, release_id)
    except Exception:
        # Whatever it was: another attempt may have published this very release, and have cleared this one's files away.
        if standing_manifest(output) != files[MANIFEST_FILE]:
            raise
    finally:
        _delete_remote(list(staged.values()))


def _check_placed(output: str, files: Mapping[str, bytes], names: list[str]) -> None:
    """Raises OSError where an attempt at another release has put files of its own into the same place meanwhile."""
    for name in names:
        if _read(output, name) != files[name]:
            raise OSError(f"{output}: another release is being written here at the same time")


def _delete_remote(paths: list[str]) -> None:
    """Deletes those of the objects that are there, whoever else is deleting them."""
    present = [path for path in paths if FileSystems.exists(path)]
    if not present:
        return
    try:
        FileSystems.delete(present)
    except BeamIOError:
        # Beam stops at an object that another attempt has deleted since it was seen.
        if all(FileSystems.exists(path) for path in present):
            raise
        _delete_remote(present)


@dataclass(frozen=True)
class Release:
    """A published release, read when asked for. digest: the SHA-256 of its manifest's bytes."""

    path: str
    manifest: dict[str, Any]
    digest: str

    @property
    def grid(self) -> Grid | None:
        """The map's region and depth; None where the manifest states none."""
        try:
            region = Region(*(float(self.manifest["region"][side]) for side in ("west", "south", "east", "north")))
            return Grid(region, self.manifest["grid"]["depth"])
        except (KeyError, TypeError, ValueError):  # ValueError: or they are none
            return None

    @cached_property
    def cells(self) -> pd.DataFrame:
        """One row a cell, by CELLS_SCHEMA or HOT_CELLS_SCHEMA.

        A geopandas.GeoDataFrame where geopandas is installed, else a DataFrame.
        """
        frame = self._table(CELLS_FILE)
        try:
            import geopandas
        except ImportError:
            return frame
        import shapely

        shapes = shapely.from_wkb(frame["geometry"].to_numpy())
        located: pd.DataFrame = geopandas.GeoDataFrame(frame.drop(columns="geometry"), geometry=shapes, crs="OGC:CRS84")
        return located

    def total(self, cells: NDArray[Any]) -> tuple[float, float]:
        """Users of several cells together, and the standard deviation of that sum's error.

        The errors of cells go together, so that their deviations cannot be added up by themselves. The sum is unbiased:
        unlike the sum of `count` it is not shrunk. A cell that an area cuts can only be counted by a guess, such as its
        share of the area; then the deviation is a lower bound, as it is where the manifest's `errors` say so.

        Args:
            cells: bool[n] or float64[n], one for each row of `cells`: whether it counts, or which share of it.

        Returns:
            Users, which may be negative, and their standard deviation; 1.96 of them on each side are a 95% interval.

        Raises:
            RequestError: cells has another length, or the release has no cells.
        """
        table, weights = self.table(CELLS_FILE), np.asarray(cells, dtype=np.float64)
        if weights.shape != (table.num_rows,):
            raise RequestError(f"cells: must hold one value for each of {table.num_rows} cells, got {weights.shape}")
        if TOTALS_FILE not in self.manifest.get("errors", {}).get("sums", ""):
            count, stddev = (table[name].to_numpy() for name in ("count", "stddev"))
            return float(count @ weights), float(np.sqrt((stddev * weights) @ (stddev * weights)))
        from sfumato.transforms.heatmap.posterior.unbiased import UnbiasedCounts

        nodes = [self.table(TOTALS_FILE)[name].to_numpy() for name in ("node", "cell", "users", "variance")]
        unbiased = UnbiasedCounts.from_nodes(nodes[0], nodes[2], nodes[3])
        leaves = nodes[1][nodes[1] >= 0]
        return unbiased.total(weights[leaves])

    @cached_property
    def items(self) -> pd.DataFrame:
        """Counted items or prefixes, most frequent first within a level, by `items_schema`."""
        return self._table(ITEMS_FILE)

    @cached_property
    def quantiles(self) -> pd.DataFrame:
        """One row a quantile, by QUANTILES_SCHEMA."""
        return self._table(QUANTILES_FILE)

    @cached_property
    def ranges(self) -> pd.DataFrame:
        """One row a range, by RANGES_SCHEMA."""
        return self._table(RANGES_FILE)

    @cached_property
    def curve(self) -> pd.DataFrame:
        """The estimated distribution function, by CURVE_SCHEMA."""
        return self._table(CURVE_FILE)

    @cached_property
    def moments(self) -> pd.DataFrame:
        """Means and moments, a row a group and statistic, by MOMENTS_SCHEMA."""
        return self._table(MOMENTS_FILE)

    @cached_property
    def bits(self) -> pd.DataFrame:
        """Bit means of everybody, by BITS_SCHEMA."""
        return self._table(BITS_FILE)

    @cached_property
    def bins(self) -> pd.DataFrame:
        """Counted bins of a number's range, by BINS_SCHEMA."""
        return self._table(BINS_FILE)

    def table(self, name: str) -> pa.Table:
        """A Parquet file of the release. Raises RequestError where there is none or it is damaged."""
        content = self.read(name)
        try:
            return pq.read_table(io.BytesIO(content))
        except (pa.ArrowException, OSError) as error:  # OSError: damage inside, with the footer intact
            raise RequestError(f"{self.path}: {name} is damaged ({error})") from None

    def read(self, name: str) -> bytes:
        """The content of a file of the release, checked against the manifest's digest of it.

        Raises RequestError where there is none, or it is not what was published. Releases of earlier versions list no
        digests, and are read unchecked.
        """
        listed = self.listed
        try:
            if listed is not None and name not in listed:
                raise FileNotFoundError
            content = _read(self.path, name)
        except FileNotFoundError:
            if listed is not None and name in listed:
                raise RequestError(f"{self.path}: {name} is gone, which was published") from None
            job = self.manifest.get("job")
            raise RequestError(f"{self.path}: a release of `sfumato {job}` has no {name}") from None
        if listed is not None and listed[name] != hashlib.sha256(content).hexdigest():
            raise RequestError(f"{self.path}: {name} is damaged: it is not the file that was published")
        return content

    @property
    def listed(self) -> dict[str, str] | None:
        """The SHA-256 of every other file by name; None where the manifest lists none. Raises RequestError."""
        files = self.manifest.get("files")
        if files is None:
            return None
        try:
            return {str(name): str(metadata["sha256"]) for name, metadata in files.items() if _is_file_name(name)}
        except (AttributeError, KeyError, TypeError):
            raise RequestError(f"{self.path}: the manifest's list of files is damaged") from None

    def damage(self) -> list[str]:
        """What is not as it was published, in words; reads every file that the manifest lists."""
        try:
            names = list(self.listed or ())
        except RequestError as error:
            return [str(error)]
        found = []
        for name in names:
            try:
                self.read(name)
            except (RequestError, OSError) as error:
                found.append(str(error))
        return found

    def _table(self, name: str) -> pd.DataFrame:
        frame: pd.DataFrame = self.table(name).to_pandas()
        return frame

    @cached_property
    def density(self) -> NDArray[np.float64]:
        """float64[2^d, 2^d], row 0 in the north; sums to 1."""
        return np.asarray(np.load(io.BytesIO(self.read(DENSITY_FILE)), allow_pickle=False))


def open_release(path: str | os.PathLike[str]) -> Release:
    """Opens the release in a folder, local or gs://. Raises RequestError where there is none."""
    text = os.fspath(path)
    try:
        content = _read(text, MANIFEST_FILE)
        manifest = json.loads(content)
        if not isinstance(manifest, dict):
            raise ValueError("no object")
    except (OSError, ValueError, RecursionError):
        raise RequestError(f"{text}: no release here (no {MANIFEST_FILE} that can be read)") from None
    if manifest.get("format") == EVALUATION_FORMAT:
        raise RequestError(f"{text}: an evaluation of methods on exact data, no release")
    if manifest.get("format") == REFUSAL_FORMAT:
        raise RequestError(f"{text}: this release was refused and holds no result: {manifest.get('reason')}")
    if manifest.get("format") != MANIFEST_FORMAT:
        raise RequestError(f"{text}: the manifest's format is {manifest.get('format')!r}, not {MANIFEST_FORMAT!r}")
    return Release(text, manifest, hashlib.sha256(content).hexdigest())


def format_at(path: str) -> str | None:
    """The format that the manifest in a folder states; None where there is none or it states none."""
    return _format_of(standing_manifest(path))


def standing_manifest(output: str) -> bytes | None:
    """The manifest, as it was written, of whatever stands at `output`; None where nothing does.

    Raises OSError where that cannot be told: what may be a release is not to be written over.
    """
    try:
        return _read(output, MANIFEST_FILE)
    except (FileNotFoundError, NotADirectoryError):
        return None


def _is_file_name(name: str) -> bool:
    return "/" not in name and name not in ("", ".", "..", MANIFEST_FILE)


def _read(folder: str, name: str) -> bytes:
    return read_file(FileSystems.join(folder, name))


def _check_parent(output: Path) -> None:
    nearest = next(parent for parent in output.parents if parent.exists())
    if not (nearest.is_dir() and os.access(nearest, os.W_OK | os.X_OK)):
        raise RequestError(f"output: {output} cannot be made, {nearest} is no folder that can be written to")


def _exists(output: str) -> bool:
    """Whether something is there. In a bucket a failed attempt's files, which have no manifest, count as nothing."""
    if not is_remote(output):
        return os.path.lexists(output)
    folder = output.rstrip("/") + "/"
    try:
        with storage_errors(output):
            if FileSystems.exists(folder + MANIFEST_FILE):
                return True
            found = [
                one.path for match in FileSystems.match([f"{folder}**"], limits=[100]) for one in match.metadata_list
            ]
    except (OSError, ValueError) as error:
        raise RequestError(f"output: {output} cannot be reached ({error})") from None
    return any(
        path not in _LEFT and not path.startswith(".partial-") for path in (p.removeprefix(folder) for p in found)
    )


def _is_replaceable(output: Path, kind: str) -> bool:
    """Whether a folder is empty or holds something of this kind and nothing else."""
    if not output.is_dir():
        return False
    names = {path.name for path in output.iterdir()}
    known = EVALUATION_FILES if kind == EVALUATION_FORMAT else RELEASE_FILES
    return not names or (names <= known and _kind_of(standing_manifest(str(output))) == kind)


def _kind_of(manifest: bytes | None) -> str | None:
    """The format that a manifest states, that of a release for a refusal; None where there is none."""
    found = _format_of(manifest)
    return MANIFEST_FORMAT if found == REFUSAL_FORMAT else found


def is_refusal(manifest: bytes | None) -> bool:
    """Whether a manifest is that of a refused release, which the next attempt at it replaces."""
    return _format_of(manifest) == REFUSAL_FORMAT


def _format_of(manifest: bytes | None) -> str | None:
    try:
        return None if manifest is None else json.loads(manifest).get("format")
    except (ValueError, AttributeError, RecursionError):
        return None
