"""`sfumato synth`: deterministic location logs of any size, of the people of a city that does not exist.

Writes `part-00000-of-00055.parquet` and so on into a folder, whole or not at all: the files are written into
a staging folder within it and renamed when all are done. With --days, each date's go into a folder
`dt=YYYY-MM-DD` of its own: the same people of the same city, not all of them active, elsewhere at other hours,
with weather, a season and events.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import time
import uuid
from collections.abc import Sequence
from dataclasses import replace
from datetime import date

import apache_beam as beam
import numpy as np
from apache_beam.io.filesystems import FileSystems
from numpy.typing import NDArray

from sfumato.pipelines.options import (
    JobParser,
    RunnerSettings,
    add_runner_arguments,
)
from sfumato.schemas.errors import RequestError
from sfumato.schemas.ledger import Period
from sfumato.schemas.region import Region
from sfumato.transforms.files import is_remote, matching
from sfumato.transforms.synth.generate import GeneratePeople, density_raster
from sfumato.transforms.synth.people import DEFAULT_REGION, USER_ID_KINDS
from sfumato.transforms.synth.request import MAX_DENSITY_DEPTH, SynthRequest

MAX_DAYS = 3_660
FIRST_DAY, LAST_DAY = date(1970, 1, 1), date(2199, 12, 31)
_OWN_FILE = re.compile(r"part-\d{5}-of-\d{5}\.parquet")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the job's options. Values are checked later, where a message can name the remedy."""
    parser.add_argument("--output", required=True, metavar="FOLDER", help="where to write, local or gs://")
    parser.add_argument("--users", required=True, metavar="N", help="number of users")
    parser.add_argument("--records_per_user", default="1", metavar="K", help="records of each user (of a day)")
    parser.add_argument(
        "--days",
        metavar="FROM[:TO]",
        help="dates (UTC), each written into a folder dt=YYYY-MM-DD of its own; without it, one folder of one week",
    )
    parser.add_argument(
        "--region",
        default=str(DEFAULT_REGION),
        metavar="WEST,SOUTH,EAST,NORTH",
        help="degrees; the city is stretched over it",
    )
    parser.add_argument("--seed", default="0", help="another seed gives other people of the same city")
    parser.add_argument(
        "--users_per_file", default="1000000", metavar="N", help="a file has the records of so many users"
    )
    parser.add_argument("--user_id", default="int", help=f"type of the user id: {' or '.join(USER_ID_KINDS)}")
    parser.add_argument(
        "--density",
        metavar="FILE.npy",
        help="also write the true density of all records: float64, 2^depth square, row 0 in the north, sum 1",
    )
    parser.add_argument("--density_depth", default="10", help=f"its depth, 1..{MAX_DENSITY_DEPTH}")
    parser.add_argument("--overwrite", action="store_true", help="replace what is there")
    add_runner_arguments(parser)


def run(argv: Sequence[str]) -> int:
    """Runs the job for a command line. Returns the exit status 0, or raises RequestError."""
    parser = JobParser("synth", __doc__)
    add_arguments(parser)
    options, settings = parser.parse_job(argv)
    request = SynthRequest(
        users=_whole(options, "users"),
        records_per_user=_whole(options, "records_per_user"),
        region=Region.parse(options.region),
        seed=_whole(options, "seed"),
        users_per_file=_whole(options, "users_per_file"),
        user_id=options.user_id,
        density_depth=_whole(options, "density_depth"),
    )
    output: str = options.output.rstrip("/")
    if options.days is not None:
        if options.density is not None:
            raise RequestError("density and days: the density is that of one folder of logs; leave one of them out")
        return _run_days(request, settings, output, parse_days(options.days), options.overwrite)
    _check_reach(settings, output, options.density or output)
    old_files = _check_places(output, options.density, options.overwrite)

    started = time.monotonic()
    records = generate(request, settings, output, options.density, old_files)
    _report(records, request.users, request.files, output, time.monotonic() - started)
    return 0


def parse_days(text: str) -> Period:
    """Dates from `FROM:TO` or one date. Raises RequestError."""
    try:
        days = Period.parse(text, "days")
    except RequestError as error:
        raise RequestError(re.sub("^period", "days", str(error))) from None
    if days.length > MAX_DAYS or not FIRST_DAY <= days.first <= days.last <= LAST_DAY:
        raise RequestError(f"days: must be {MAX_DAYS} or fewer, from {FIRST_DAY} to {LAST_DAY}, got {days}")
    return days


def _run_days(request: SynthRequest, settings: RunnerSettings, output: str, days: Period, overwrite: bool) -> int:
    """Makes each day's folder, one after the other. A failure leaves the days before it, and nothing of its own."""
    _check_reach(settings, output)
    if not output:
        raise RequestError("output: name a folder for the days' folders")
    if os.path.isfile(output):
        raise RequestError(f"output: {output!r} is a file; name a folder")
    folders = {day: FileSystems.join(output, f"dt={day}") for day in days.days()}
    old_files = {day: _check_places(folder, None, overwrite) for day, folder in folders.items()}
    started, total = time.monotonic(), 0
    created = _make_folder(output)
    try:
        for day, folder in folders.items():
            records = generate(replace(request, day=day), settings, folder, old_files=old_files[day])
            created = False
            sys.stdout.write(f"{day}: {records:,} records\n")
            total += records
    finally:
        if created:
            _remove(output)
    _report(total, request.users, request.files * days.length, output, time.monotonic() - started)
    return 0


def _report(records: int, users: int, files: int, output: str, seconds: float) -> None:
    sys.stdout.write(
        f"{records:,} records of {users:,} users in {files} file{'s'[: files != 1]} "
        f"at {output} ({seconds:.1f} s, {records / seconds / 1e6:.2f} million a second)\n"
    )


def _check_reach(settings: RunnerSettings, *places: str) -> None:
    """Raises RequestError for a place on this machine's disk, which workers in the cloud cannot reach."""
    if settings.in_cloud and not all(map(is_remote, places)):
        raise RequestError(
            "output, density: Dataflow's workers cannot reach this machine; name places in a bucket, gs://..."
        )


def generate(
    request: SynthRequest,
    settings: RunnerSettings,
    output: str,
    density: str | None = None,
    old_files: Sequence[str] = (),
) -> int:
    """Runs the pipeline and publishes its files in place of `old_files`. Returns the number of records."""
    mark = uuid.uuid4().hex
    staging = FileSystems.join(output, f".staging-{mark}")
    staged_totals = FileSystems.join(staging, "counts.npy")
    staged_density = f"{density}.staging-{mark}"
    created = _make_folder(output)
    try:
        _make_folder(staging)
        with settings.pipeline() as root:
            counts = root | GeneratePeople(request, staging, with_density=density is not None)
            # int64[4^depth] or int64[1]
            _ = counts | "WriteCounts" >> beam.Map(_write_array, path=staged_totals)
        with FileSystems.open(staged_totals) as source:
            total: NDArray[np.int64] = np.load(source, allow_pickle=False)
        names = [request.file_name(index) for index in range(request.files)]
        staged = [FileSystems.join(staging, name) for name in names]
        new_files = [FileSystems.join(output, name) for name in names]
        if density is not None:
            # Beside the file that it becomes, since a rename cannot cross from one disk to another.
            _write_array(density_raster(total, request.grid), staged_density)
            FileSystems.rename([*staged, staged_density], [*new_files, density])
        else:
            FileSystems.rename(staged, new_files)
        if stale := sorted(set(old_files) - set(new_files)):
            FileSystems.delete(stale)
        created = False
        return int(total.sum())
    finally:
        _remove(staging)
        if density is not None:
            _remove(staged_density)
        if created:
            _remove(output)


def _whole(options: argparse.Namespace, name: str) -> int:
    text = getattr(options, name)
    try:
        return int(text)
    except ValueError:
        raise RequestError(f"{name}: must be a whole number, got {text!r}") from None


def _check_places(output: str, density: str | None, overwrite: bool) -> list[str]:
    """Refuses places that are taken. Returns the files of an earlier run that are to be replaced."""
    if not output:
        raise RequestError("output: name a folder for the files")
    if os.path.isfile(output):
        raise RequestError(f"output: {output!r} is a file; name a folder")
    present = [one.path for one in matching(FileSystems.join(output, "*"))]
    if present and not overwrite:
        raise RequestError(f"output: {output!r} exists and is not empty; name another, or give --overwrite")
    if density is not None:
        if not density.endswith(".npy"):
            raise RequestError(f"density: must name a file that ends in .npy, got {density!r}")
        if os.path.isdir(density):
            raise RequestError(f"density: {density!r} is a folder; name a file")
        if matching(density) and not overwrite:
            raise RequestError(f"density: {density!r} exists already; name another, or give --overwrite")
    # Only what an earlier run wrote: whatever else lies in the folder is not ours to delete.
    return [path for path in present if _OWN_FILE.fullmatch(path.rsplit("/", 1)[-1])]


def _write_array(values: NDArray[np.generic], path: str) -> None:
    with FileSystems.create(path) as sink:
        np.save(sink, values)


def _make_folder(path: str) -> bool:
    """Makes a local folder (a bucket has none to make). Returns whether it was not there before."""
    if is_remote(path) or os.path.isdir(path):
        return False
    try:
        os.makedirs(path)
    except OSError as error:
        raise RequestError(f"output: cannot make the folder {path!r} ({error.strerror}); name another") from None
    return True


def _remove(path: str) -> None:
    """Removes a file or a folder with all that is in it, if it is there."""
    if is_remote(path):
        found = matching(path) + matching(FileSystems.join(path, "*"))
        if found:
            FileSystems.delete([one.path for one in found])
    elif os.path.exists(path):
        FileSystems.delete([path])


if __name__ == "__main__":
    from sfumato.pipelines.cli import command

    sys.exit(command(["synth", *sys.argv[1:]]))
