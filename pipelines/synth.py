"""`sfumato synth`: deterministic location logs of any size, of a synthetic city.

It writes `part-00000-of-00055.parquet` and so on into a folder, all files or none: into a staging folder first, which
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
from dataclasses import replace

import apache_beam as beam
import numpy as np
from apache_beam.io.filesystems import FileSystems
from numpy.typing import NDArray

from sfumato.pipelines.runners.folders import make_folders, remove_tree
from sfumato.pipelines.runners.runner_settings import RunnerSettings
from sfumato.schemas.errors import RequestError
from sfumato.schemas.ledger import Period
from sfumato.transforms.io.files import write_file
from sfumato.transforms.io.storage import matching
from sfumato.transforms.synth.city_map import city_geojson
from sfumato.transforms.synth.request import SynthRequest, SynthSpec
from sfumato.transforms.synth.transform import GeneratePeople, density_raster

_OWN_FILE = re.compile(r"part-\d{5}-of-\d{5}\.parquet")


def run(request: SynthRequest, settings: RunnerSettings) -> None:
    """Runs the job to the end. Raises RequestError."""
    spec, output = request.spec, request.output.rstrip("/")
    settings.check_reach("output, density", output, request.density or output, request.basemap or output)
    if request.basemap is not None:
        _check_file("basemap", request.basemap, (".geojson", ".json"), request.overwrite)
    if request.days is not None:
        _run_days(spec, settings, output, request.days, request.overwrite)
    else:
        old_files = _check_paths(output, request.density, request.overwrite)
        started = time.monotonic()
        records = generate(spec, settings, output, request.density, old_files)
        _report(records, spec.users, spec.files, output, time.monotonic() - started)
    if request.basemap is not None:
        try:
            write_file(request.basemap, city_geojson(spec.region))
        except OSError as error:
            raise RequestError(f"basemap: cannot write {request.basemap!r} ({error.strerror or error})") from None


def _run_days(request: SynthSpec, settings: RunnerSettings, output: str, days: Period, overwrite: bool) -> None:
    """Writes each day's folder in turn. After a failure the earlier days remain, and no part of the failed day."""
    _check_folder(output)
    folders = {day: FileSystems.join(output, f"dt={day}") for day in days.days()}
    old_files = {day: _check_paths(folder, None, overwrite) for day, folder in folders.items()}
    started, total = time.monotonic(), 0
    created = bool(make_folders(output))
    try:
        for day, folder in folders.items():
            records = generate(replace(request, day=day), settings, folder, old_files=old_files[day])
            created = False
            sys.stdout.write(f"{day}: {records:,} records\n")
            total += records
    finally:
        if created:
            remove_tree(output)
    _report(total, request.users, request.files * days.length, output, time.monotonic() - started)


def _report(records: int, users: int, files: int, output: str, seconds: float) -> None:
    sys.stdout.write(
        f"{records:,} records of {users:,} users in {files} file{'s'[: files != 1]} "
        f"at {output} ({seconds:.1f} s, {records / seconds / 1e6:.2f} million a second)\n"
    )


def generate(
    request: SynthSpec, settings: RunnerSettings, output: str, density: str | None = None, old_files: Sequence[str] = ()
) -> int:
    """Runs the pipeline and replaces `old_files` by its files. Returns the number of records."""
    mark = uuid.uuid4().hex
    staging = FileSystems.join(output, f".staging-{mark}")
    staged_totals = FileSystems.join(staging, "counts.npy")
    staged_density = f"{density}.staging-{mark}"
    created = bool(make_folders(output))
    try:
        make_folders(staging)
        with settings.pipeline() as root:
            counts = root | GeneratePeople(request, staging, with_density=density is not None)
            # PCollection[int64[4^depth] or int64[1]]
            _ = counts | "WriteCounts" >> beam.Map(_write_array, path=staged_totals)
        with FileSystems.open(staged_totals) as source:
            total: NDArray[np.int64] = np.load(source, allow_pickle=False)
        names = [request.file_name(index) for index in range(request.files)]
        staged = [FileSystems.join(staging, name) for name in names]
        new_files = [FileSystems.join(output, name) for name in names]
        if density is not None:
            # Staged next to its target, because a rename cannot move a file to another disk.
            _write_array(density_raster(total), staged_density)
            FileSystems.rename([*staged, staged_density], [*new_files, density])
        else:
            FileSystems.rename(staged, new_files)
        if stale := sorted(set(old_files) - set(new_files)):
            FileSystems.delete(stale)
        created = False
        return int(total.sum())
    finally:
        remove_tree(staging)
        if density is not None:
            remove_tree(staged_density)
        if created:
            remove_tree(output)


def _check_paths(output: str, density: str | None, overwrite: bool) -> list[str]:
    """Raises RequestError if a path is taken. Returns the files of an earlier run that are to be replaced."""
    _check_folder(output)
    present = [file.path for file in matching(FileSystems.join(output, "*"))]
    if present and not overwrite:
        raise RequestError(f"output: {output!r} exists and is not empty; name another, or give --overwrite")
    if density is not None:
        _check_file("density", density, (".npy",), overwrite)
    # Only files of an earlier run. Other files in the folder are not deleted.
    return [path for path in present if _OWN_FILE.fullmatch(path.rsplit("/", 1)[-1])]


def _check_folder(output: str) -> None:
    if not output:
        raise RequestError("output: name a folder for the files")
    if os.path.isfile(output):
        raise RequestError(f"output: {output!r} is a file; name a folder")


def _check_file(option: str, path: str, suffixes: tuple[str, ...], overwrite: bool) -> None:
    """Raises RequestError for a place that is taken, or that does not end in one of the suffixes."""
    if not path.endswith(suffixes):
        raise RequestError(f"{option}: must name a file that ends in {suffixes[0]}, got {path!r}")
    if os.path.isdir(path):
        raise RequestError(f"{option}: {path!r} is a folder; name a file")
    if matching(path) and not overwrite:
        raise RequestError(f"{option}: {path!r} already exists; name another, or add --overwrite")


def _write_array(values: NDArray[np.generic], path: str) -> None:
    with FileSystems.create(path) as sink:
        np.save(sink, values)
