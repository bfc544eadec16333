"""The registry of formats, and files of them. A new format is an `ExportFormat`, and its line here."""

from __future__ import annotations

import os

from sfumato.schemas.errors import RequestError, did_you_mean
from sfumato.transforms.export import csv_file, excel_file, geotiff, pmtiles_file, vectors
from sfumato.transforms.export.export_source import MAP, PARTS, TABLE, ExportFormat, ExportSource
from sfumato.transforms.io.files import check_new_file, write_output
from sfumato.transforms.release.published_release import Release

_FORMATS = (
    geotiff.FORMAT,
    vectors.GEOJSON,
    csv_file.FORMAT,
    excel_file.FORMAT,
    vectors.GEOPARQUET,
    vectors.GEOPACKAGE,
    pmtiles_file.FORMAT,
)
_OTHERS = {
    ".xls": "; use .xlsx",
    ".shp": "; use .gpkg",
    ".kml": "; use .geojson, which ogr2ogr converts to KML",
}
FORMATS: dict[str, ExportFormat] = {one.name: one for one in _FORMATS}


def find_format(name: str | None, output: str) -> ExportFormat:
    """Returns the format of a name, or without one that of a file's suffix.

    Raises:
        RequestError: the format or the suffix is unknown.
    """
    if name is not None:
        if name not in FORMATS:
            hint = _OTHERS.get(f".{name}") or did_you_mean(name, FORMATS) or f"; use one of {', '.join(FORMATS)}"
            raise RequestError(f"format: unknown format {name!r}{hint}")
        return FORMATS[name]
    for one in FORMATS.values():
        if output.lower().endswith(one.suffixes):
            return one
    suffixes = [suffix for one in FORMATS.values() for suffix in one.suffixes]
    given = os.path.splitext(output)[1].lower()
    named = FORMATS.get(given.removeprefix("."))
    hint = (
        _OTHERS.get(given) or did_you_mean(given, suffixes) if named is None else f"; did you mean {named.suffixes[0]}?"
    )
    raise RequestError(f"format: the suffix of {output} is unknown{hint or '; use one of ' + ', '.join(suffixes)}")


def exported_files(source: ExportSource, kind: ExportFormat) -> dict[str, bytes]:
    """Returns the content of a format's files, by what is added to the output's name.

    Raises:
        RequestError: the release lacks what the format needs, an option applies to another one, a library is missing,
            or a file of the release is damaged.
    """
    if source.table_name is not None and kind.needs not in (MAP, TABLE):
        raise RequestError(f"table: cannot be combined with --format {kind.name}")
    if kind.needs not in source.parts:
        possible = [one.name for one in FORMATS.values() if one.needs in source.parts]
        job = source.release.manifest.get("job")
        raise RequestError(
            f"format: {kind.name} requires {PARTS[kind.needs]}, which this `sfumato {job}` release does not contain; "
            f"use one of {', '.join(possible)}"
        )
    return kind.write(source)


def export_release(
    release: Release,
    output: str,
    format_name: str | None = None,
    *,
    licence: str | None = None,
    table: str | None = None,
    overwrite: bool = False,
) -> list[str]:
    """Writes a release, or changes between two, as a file. The arguments are the options of `sfumato export`.

    Returns:
        The files that were written, the named one first.

    Raises:
        RequestError: the format does not fit the release, an option is wrong, a library is missing, or the file cannot
            be written.
    """
    kind = find_format(format_name, output)
    check_new_file(output, overwrite)
    source = ExportSource(release, licence, table)
    files = exported_files(source, kind)
    for suffix, content in files.items():
        write_output(output + suffix, content)
    return [output + suffix for suffix in files]
