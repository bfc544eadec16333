"""Writing releases to a folder on disk or in a bucket: all files or none."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path

from apache_beam.io.filesystem import BeamIOError, CompressionTypes
from apache_beam.io.filesystems import FileSystems

from sfumato.schemas.errors import RequestError
from sfumato.schemas.release import (
    CHANGES_FILES,
    CHANGES_FORMAT,
    MANIFEST_FILE,
    MANIFEST_FORMAT,
    REFUSAL_FORMAT,
    RELEASE_FILES,
    REMOVAL_FORMAT,
)
from sfumato.transforms.io.files import check_creatable, content_type, is_remote, naming_file, sync_folder
from sfumato.transforms.io.storage import matching, storage_errors
from sfumato.transforms.release.metadata import manifest_bytes
from sfumato.transforms.release.published_release import read_part

_NOUNS = {MANIFEST_FORMAT: "release", CHANGES_FORMAT: "folder of changes"}
_KNOWN_FILES = RELEASE_FILES | CHANGES_FILES


def check_output(output: str, overwrite: bool, kind: str = MANIFEST_FORMAT) -> None:
    """Raises RequestError if a release, or a folder of changes, must not be written to `output`.

    Args:
        output: the folder, local or in a bucket.
        overwrite: whether an existing release may be replaced.
        kind: format of the new manifest. A release only replaces a release, and changes only changes.
    """
    if not output:
        raise RequestError("output: must name a folder for the release")
    if not _exists(output):
        check_creatable(output)
        return
    replaceable = _kind_of(manifest_at(output)) == kind if is_remote(output) else _is_replaceable(Path(output), kind)
    _check_kind(output, overwrite, replaceable, kind)


def _check_kind(output: str, overwrite: bool, replaceable: bool, kind: str) -> None:
    """Raises RequestError if the content of `output` must not be overwritten."""
    if not replaceable:
        raise RequestError(
            f"output: {output} already exists: it contains other files or is not a {_NOUNS[kind]}, so --overwrite does "
            "not replace it; name another folder"
        )
    manifest = manifest_at(output)
    if not overwrite and not is_refusal(manifest):
        holds = "is empty"
        if manifest is not None:
            holds = f"contains a {_NOUNS[kind]} of sfumato {json.loads(manifest).get('job')}"
        raise RequestError(f"output: {output} already exists and {holds}; name another, or add --overwrite")


def publish(output: str, files: Mapping[str, bytes], release_id: str, overwrite: bool, restores: bool = False) -> None:
    """Writes all files of a release, or none.

    On a disk, the release is written to a folder next to `output` and moved there in one step. A bucket has no such
    step. There, all files are uploaded to a folder inside `output` and then moved, the manifest last; a folder without
    a manifest is no release. If the same release is already there (equal manifests), the call does nothing, so a
    retried bundle does no harm. Leftover files of a lost worker do no harm either.

    Args:
        output: the folder, local or in a bucket.
        files: content by name. The manifest is written with the digest of every other file (see `with_digests`).
        release_id: the release.
        overwrite: whether to replace an existing release.
        restores: whether a ledger charged this very release, whose bytes are the same each time. Then it also replaces
            what is left of a release whose manifest is gone or cannot be read, and its own damaged files.

    Raises RequestError if `output` must not be overwritten, and OSError if writing failed.
    """
    files = with_digests(files)
    existing = manifest_at(output)
    if existing == files[MANIFEST_FILE] and not (restores and _is_damaged(output, files)):
        return
    kind = str(_kind_of(files[MANIFEST_FILE]))
    if is_remote(output):
        if existing is not None and not (restores and _is_damaged(output, files)):
            _check_kind(output, overwrite, _kind_of(existing) == kind, kind)
        _publish_remote(output, files, release_id, overwrite, restores)
        return
    if not (restores and _is_damaged(output, files)):
        try:
            check_output(output, overwrite, kind)
        except RequestError:
            # Another attempt at this release may have finished, or be about to.
            if manifest_at(output) == files[MANIFEST_FILE]:
                return
            check_output(output, overwrite, kind)
    elif foreign := {path.name for path in Path(output).iterdir()} - RELEASE_FILES:
        raise RequestError(
            f"output: {output} contains {min(foreign)}, which belongs to no release; move it away and run again"
        )
    _publish_local(Path(output), files, release_id, overwrite, restores)


def _is_damaged(output: str, files: Mapping[str, bytes]) -> bool:
    """Returns whether a folder holds what is left of a release: no manifest that can be read, or changed files."""
    existing = manifest_at(output)
    if existing != files[MANIFEST_FILE]:
        return format_of(existing) is None and (is_remote(output) or os.path.isdir(output))
    try:
        return any(read_part(output, name) != content for name, content in files.items())
    except FileNotFoundError:
        return True


def with_digests(files: Mapping[str, bytes]) -> dict[str, bytes]:
    """Returns the files, with a manifest that lists SHA-256 and size in bytes of every other file."""
    listed = {
        name: {"sha256": hashlib.sha256(files[name]).hexdigest(), "bytes": len(files[name])}
        for name in sorted(files)
        if name != MANIFEST_FILE
    }
    manifest = {**json.loads(files[MANIFEST_FILE]), "files": listed}
    return {**files, MANIFEST_FILE: manifest_bytes(manifest)}


def _publish_local(output: Path, files: Mapping[str, bytes], release_id: str, overwrite: bool, restores: bool) -> None:
    output = output.absolute()
    output.parent.mkdir(parents=True, exist_ok=True)
    attempt = f"{release_id}-{uuid.uuid4().hex}"  # unique, because another process may write the same release
    partial = output.with_name(f".{output.name}.partial-{attempt}")
    replaced = output.with_name(f".{output.name}.replaced-{attempt}")
    try:
        with naming_file(str(output)):
            partial.mkdir()
            for name in sorted(files, key=MANIFEST_FILE.__eq__):  # the manifest last
                with (partial / name).open("wb") as file:
                    file.write(files[name])
                    file.flush()
                    os.fsync(file.fileno())
        existing = manifest_at(str(output))
        is_other = existing not in (None, files[MANIFEST_FILE])
        if (is_other and (overwrite or is_refusal(existing))) or (restores and _is_damaged(str(output), files)):
            output.rename(replaced)
        try:
            partial.rename(output)
        except OSError:
            if replaced.exists() and not output.exists():
                replaced.rename(output)
            raise
    except OSError:
        # Another attempt may have finished first and removed this one's files.
        if manifest_at(str(output)) != files[MANIFEST_FILE]:
            raise
    finally:
        _remove(partial)
        _remove(replaced)
    clear_lost(str(output), release_id)


def sync_release(output: str) -> None:
    """Returns once a disk holds a published release: the names of its files, and of its folder. Raises OSError.

    Their content was there before the release had its name. A bucket's objects are there once they are written.
    """
    if not is_remote(output):
        folder = Path(output).absolute()
        for one in (folder, *folder.parents[:3]):  # `releases` and the output may be new too
            sync_folder(one)


def clear_lost(output: str, release_id: str) -> None:
    """Removes leftover files of killed attempts at a published release, next to it or in its bucket.

    An attempt that still runs is too late. It will find the published release.
    """
    if is_remote(output):
        lost = matching(FileSystems.join(output, f".partial-{release_id}-*", "*"))
        _delete_remote([file.path for file in lost])
        return
    place = Path(output).absolute()
    left = re.compile(rf"\.{re.escape(place.name)}\.(partial|replaced)-{re.escape(release_id)}-[0-9a-f]{{32}}")
    for path in [path for path in place.parent.iterdir() if left.fullmatch(path.name)]:
        # Renamed first, so that its owner cannot publish a half-removed folder.
        moved = path.with_name(f".lost-{uuid.uuid4().hex}")
        with contextlib.suppress(OSError):  # its owner was faster
            path.rename(moved)
    for path in [path for path in place.parent.iterdir() if re.fullmatch(r"\.lost-[0-9a-f]{32}", path.name)]:
        _remove(path)


def _remove(folder: Path) -> None:
    """Removes a release's folder, the manifest first, so that no folder with a manifest ever lacks a file."""
    with contextlib.suppress(OSError):
        (folder / MANIFEST_FILE).unlink()
    shutil.rmtree(folder, ignore_errors=True)


def _publish_remote(output: str, files: Mapping[str, bytes], release_id: str, overwrite: bool, restores: bool) -> None:
    partial = FileSystems.join(output, f".partial-{release_id}-{uuid.uuid4().hex}")  # unique to this attempt
    staged = {name: FileSystems.join(partial, name) for name in files}
    placed = {name: FileSystems.join(output, name) for name in files}
    data = [name for name in files if name != MANIFEST_FILE]
    try:
        for name, content in files.items():
            with FileSystems.create(staged[name], content_type(name), CompressionTypes.UNCOMPRESSED) as file:
                file.write(content)
        existing = manifest_at(output)  # checked again, because the uploads took time
        if existing not in (None, files[MANIFEST_FILE]):
            kind = str(_kind_of(files[MANIFEST_FILE]))
            if not (restores and _is_damaged(output, files)):
                _check_kind(output, overwrite, _kind_of(existing) == kind, kind)
            # Without its manifest the older release is no longer a release.
            _delete_remote([placed[MANIFEST_FILE]])
            left = [name for name in _KNOWN_FILES if name not in files]
            _delete_remote([FileSystems.join(output, name) for name in left])
        # Another attempt at the same release may have moved the same bytes here already. If this fails, the files
        # without a manifest are no release.
        FileSystems.rename([staged[name] for name in data], [placed[name] for name in data])
        _check_placed(output, files, data)
        FileSystems.rename([staged[MANIFEST_FILE]], [placed[MANIFEST_FILE]])
        try:
            _check_placed(output, files, data)
        except OSError:
            if manifest_at(output) == files[MANIFEST_FILE]:
                _delete_remote([placed[MANIFEST_FILE]])
            raise
        clear_lost(output, release_id)
    except Exception:
        # Another attempt may have published this very release and removed this one's files.
        if manifest_at(output) != files[MANIFEST_FILE]:
            raise
    finally:
        _delete_remote(list(staged.values()))


def _check_placed(output: str, files: Mapping[str, bytes], names: list[str]) -> None:
    """Raises OSError if another release's files were written to the same folder meanwhile."""
    for name in names:
        if read_part(output, name) != files[name]:
            raise OSError(f"{output}: another release is being written to this folder")


def _delete_remote(paths: list[str]) -> None:
    """Deletes the objects that exist, while others may be deleting them too."""
    present = [path for path in paths if FileSystems.exists(path)]
    if not present:
        return
    try:
        FileSystems.delete(present)
    except BeamIOError:
        # Beam stops at an object that another attempt has deleted meanwhile.
        if all(FileSystems.exists(path) for path in present):
            raise
        _delete_remote(present)


def remove_files(paths: Sequence[str]) -> None:
    """Removes files, local or in a bucket. One that is gone already is no error. Raises OSError."""
    _delete_remote([path for path in paths if is_remote(path)])
    for path in paths:
        if not is_remote(path):
            Path(path).unlink(missing_ok=True)


def format_at(path: str) -> str | None:
    """Returns the format of the manifest in a folder; None without a manifest or a format."""
    return format_of(manifest_at(path))


def manifest_at(output: str) -> bytes | None:
    """Returns the bytes of the manifest in a folder; None without one.

    Raises OSError if it cannot be read. The caller must not overwrite what may be a release.
    """
    try:
        return read_part(output, MANIFEST_FILE)
    except (FileNotFoundError, NotADirectoryError):
        return None


def _exists(output: str) -> bool:
    """Returns whether `output` has content. A failed attempt's files in a bucket, without a manifest, do not count."""
    if not is_remote(output):
        return os.path.lexists(output)
    folder = output.rstrip("/") + "/"
    try:
        with storage_errors(output):
            if FileSystems.exists(folder + MANIFEST_FILE):
                return True
            found = [
                file.path for match in FileSystems.match([f"{folder}**"], limits=[100]) for file in match.metadata_list
            ]
    except (OSError, ValueError) as error:
        raise RequestError(f"output: {output} cannot be reached ({error})") from None
    return any(
        path not in _KNOWN_FILES and not path.startswith(".partial-")
        for path in (p.removeprefix(folder) for p in found)
    )


def _is_replaceable(output: Path, kind: str) -> bool:
    """Returns whether a folder is empty, or holds a release of this kind and nothing else."""
    if not output.is_dir():
        return False
    names = {path.name for path in output.iterdir()}
    known = CHANGES_FILES if kind == CHANGES_FORMAT else RELEASE_FILES
    return not names or (names <= known and _kind_of(manifest_at(str(output))) == kind)


def _kind_of(manifest: bytes | None) -> str | None:
    """Returns the format of a manifest, that of a release for a notice in its place; None without one."""
    return MANIFEST_FORMAT if is_notice(manifest) else format_of(manifest)


def is_notice(manifest: bytes | None) -> bool:
    """Returns whether a manifest replaces a release that was refused or taken down."""
    return format_of(manifest) in (REFUSAL_FORMAT, REMOVAL_FORMAT)


def is_refusal(manifest: bytes | None) -> bool:
    """Returns whether a manifest belongs to a refused release. The next attempt at the release replaces it."""
    return format_of(manifest) == REFUSAL_FORMAT


def format_of(manifest: bytes | None) -> str | None:
    """Returns the format that a manifest states; None without one, and where it cannot be read."""
    try:
        return None if manifest is None else json.loads(manifest).get("format")
    except (ValueError, AttributeError, RecursionError):
        return None
