"""Writing a release as a file of another tool."""

from __future__ import annotations

import os
from pathlib import Path

from sfumato.schemas.errors import RequestError
from sfumato.transforms.export.export_source import ExportSource
from sfumato.transforms.export.formats import exported_files, find_format
from sfumato.transforms.files import file_version, is_remote, write_file
from sfumato.transforms.release.published_release import Release


def export_release(
    release: Release,
    output: str,
    format_name: str | None = None,
    *,
    licence: str | None = None,
    table: str | None = None,
    resolution: int | None = None,
    overwrite: bool = False,
) -> list[str]:
    """Writes a release as a file.

    Args:
        release: a release, or changes between two.
        output: the file, local or gs://.
        format_name: one of `formats.FORMATS`; None for that of the file's suffix.
        licence: that the file states; None for none.
        table: of the release; None for the one with the map.
        resolution: of H3's cells, for the format h3.
        overwrite: whether to replace a file that is there.

    Returns:
        The files that were written, the named one first.

    Raises:
        RequestError: the format does not fit the release, an option is wrong, a library is missing, or the file cannot
            be written.
    """
    kind = find_format(format_name, output)
    _check_output(output, overwrite)
    source = ExportSource(release, licence, table, resolution)
    files = exported_files(source, kind)
    for suffix, content in files.items():
        try:
            write_file(output + suffix, content)
        except OSError as error:
            raise RequestError(f"output: {output}{suffix} cannot be written ({error.strerror or error})") from None
    return [output + suffix for suffix in files]


def _check_output(output: str, overwrite: bool) -> None:
    """Raises RequestError if the output names no file, or one that must not be replaced."""
    if not os.path.basename(output) or (not is_remote(output) and Path(output).is_dir()):
        raise RequestError(f"output: name a file, got {output!r}")
    if overwrite:
        return
    try:
        file_version(output)
    except OSError:
        return
    raise RequestError(f"output: {output} exists already; name another, or give --overwrite")
