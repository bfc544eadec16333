"""`sfumato synth`: deterministic location logs of any size, of a synthetic city.

It writes files such as `part-00000-of-00055.parquet` into a folder, all or none: into a staging folder first, which
is renamed at the end. With --days, each date has a folder `dt=YYYY-MM-DD`. All days have the same city and the same
users. Each day some of them are active, and weather, season and events change their places and hours.
"""

from __future__ import annotations

import os
import re
import sys
import time
import uuid
from collections.abc import Sequence
from datetime import date

import apache_beam as beam
from apache_beam.io.filesystems import FileSystems

from sfumato.pipelines.runners.folders import make_folders, remove_tree
from sfumato.pipelines.runners.runner_settings import RunnerSettings
from sfumato.schemas.errors import RequestError
from sfumato.transforms.io.files import write_file
from sfumato.transforms.io.storage import matching
from sfumato.transforms.synth.city_map import city_geojson
from sfumato.transforms.synth.request import SynthRequest
from sfumato.transforms.synth.transform import GeneratePeople

_OWN_FILE = re.compile(r"part-\d{5}-of-\d{5}\.parquet")


def run(request: SynthRequest, settings: RunnerSettings) -> None:
    """Runs the job to the end, one day after the other. Raises RequestError.

    After a failure the earlier days remain, and no part of the failed day.
    """
    output = request.output.rstrip("/")
    settings.check_reach("output, basemap", output, request.basemap or output)
    if request.basemap is not None:
        _check_basemap(request.basemap, request.overwrite)
    if not output:
        raise RequestError("output: name a folder for the files")
    if os.path.isfile(output):
        raise RequestError(f"output: {output!r} is a file; name a folder")
    folders: dict[str, date | None] = {output: None}
    if request.days is not None:
        folders = {FileSystems.join(output, f"dt={day}"): day for day in request.days.days()}
    old_files = {folder: _old_files(folder, request.overwrite) for folder in folders}
    started, total = time.monotonic(), 0
    created = bool(make_folders(output))
    try:
        for folder, day in folders.items():
            records = generate(request, day, settings, folder, old_files[folder])
            created = False
            if day is not None:
                sys.stdout.write(f"{day}: {records:,} records\n")
            total += records
    finally:
        if created:
            remove_tree(output)
    files, seconds = request.files * len(folders), time.monotonic() - started
    sys.stdout.write(
        f"{total:,} records of {request.users:,} users in {files} file{'s'[: files != 1]} "
        f"at {output} ({seconds:.1f} s, {total / seconds / 1e6:.2f} million a second)\n"
    )
    if request.basemap is not None:
        try:
            write_file(request.basemap, city_geojson(request.region))
        except OSError as error:
            raise RequestError(f"basemap: cannot write {request.basemap!r} ({error.strerror or error})") from None


def generate(
    request: SynthRequest, day: date | None, settings: RunnerSettings, output: str, old_files: Sequence[str]
) -> int:
    """Runs the pipeline and replaces `old_files` by its files. Returns the number of records."""
    staging = FileSystems.join(output, f".staging-{uuid.uuid4().hex}")
    staged_total = FileSystems.join(staging, "records")
    created = bool(make_folders(output))
    try:
        make_folders(staging)
        with settings.pipeline() as root:
            records = root | GeneratePeople(request, day, staging)  # PCollection[int]
            _ = records | "WriteTotal" >> beam.Map(_write_number, path=staged_total)
        with FileSystems.open(staged_total) as source:
            total = int(source.read())
        names = [request.file_name(index) for index in range(request.files)]
        new_files = [FileSystems.join(output, name) for name in names]
        FileSystems.rename([FileSystems.join(staging, name) for name in names], new_files)
        if stale := sorted(set(old_files) - set(new_files)):
            FileSystems.delete(stale)
        created = False
        return total
    finally:
        remove_tree(staging)
        if created:
            remove_tree(output)


def _old_files(folder: str, overwrite: bool) -> list[str]:
    """Returns the files of an earlier run, to be replaced. Raises RequestError if there are files and no overwrite."""
    present = [file.path for file in matching(FileSystems.join(folder, "*"))]
    if present and not overwrite:
        raise RequestError(f"output: {folder!r} exists and is not empty; name another, or give --overwrite")
    # Other files in the folder are not deleted.
    return [path for path in present if _OWN_FILE.fullmatch(path.rsplit("/", 1)[-1])]


def _check_basemap(path: str, overwrite: bool) -> None:
    """Raises RequestError for a place that is taken, or another type of file."""
    if not path.endswith((".geojson", ".json")):
        raise RequestError(f"basemap: must name a file that ends in .geojson, got {path!r}")
    if os.path.isdir(path):
        raise RequestError(f"basemap: {path!r} is a folder; name a file")
    if matching(path) and not overwrite:
        raise RequestError(f"basemap: {path!r} already exists; name another, or give --overwrite")


def _write_number(number: int, path: str) -> None:
    with FileSystems.create(path) as sink:
        sink.write(str(number).encode())
