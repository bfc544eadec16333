"""`sfumato synth`: deterministic location logs of any size, of the people of a city that does not exist.

Writes `part-00000-of-00055.parquet` and so on into a folder, whole or not at all: the files are written into a
staging folder within it and renamed when all of them are done.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
import uuid
from collections.abc import Sequence

import apache_beam as beam
import numpy as np
from apache_beam.io.filesystem import BeamIOError, CompressionTypes
from apache_beam.io.filesystems import FileSystems
from apache_beam.options.pipeline_options import PipelineOptions
from numpy.typing import NDArray

from sfumato.schemas.errors import RequestError
from sfumato.schemas.region import Region
from sfumato.transforms.synth.generate import MAX_DENSITY_DEPTH, GeneratePeople, SynthRequest, density_raster
from sfumato.transforms.synth.people import DEFAULT_REGION, USER_ID_KINDS

IN_MEMORY = ["--runner=FnApiRunner", "--direct_running_mode=in_memory"]
"""Beam's in-process runner by its own name: plain DirectRunner would first try to fetch Prism."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the job's options. Values are checked later, where a message can name the remedy."""
    parser.add_argument("--output", required=True, help="folder to write to (local or gs://)")
    parser.add_argument("--users", required=True, help="number of users")
    parser.add_argument("--records_per_user", default="1", help="records of each user (default 1)")
    parser.add_argument(
        "--region",
        default=str(DEFAULT_REGION),
        help=f"WEST,SOUTH,EAST,NORTH in degrees; the city is stretched over it (default {DEFAULT_REGION})",
    )
    parser.add_argument("--seed", default="0", help="another seed gives other people of the same city (default 0)")
    parser.add_argument(
        "--users_per_file", default="1000000", help="a file holds so many users' records (default 1000000)"
    )
    parser.add_argument(
        "--user_id", default="int", help=f"type of the user id: {' or '.join(USER_ID_KINDS)} (default int)"
    )
    parser.add_argument(
        "--density",
        metavar="FILE.npy",
        help="also write the true density of all records: float64, 2^depth square, row 0 in the north, sum 1",
    )
    parser.add_argument(
        "--density_depth", default="10", help=f"its depth, 1..{MAX_DENSITY_DEPTH} (default 10)"
    )
    parser.add_argument("--overwrite", action="store_true", help="replace what is there")


def run(argv: list[str]) -> int:
    """Runs the job; options it does not know go to Beam. Returns the exit status 0, or raises RequestError."""
    parser = argparse.ArgumentParser(prog="sfumato synth", description=__doc__, allow_abbrev=False)
    add_arguments(parser)
    options, beam_arguments = parser.parse_known_args(argv)
    request = SynthRequest(
        users=_whole(options, "users"),
        records_per_user=_whole(options, "records_per_user"),
        region=Region.parse(options.region),
        seed=_whole(options, "seed"),
        users_per_file=_whole(options, "users_per_file"),
        user_id=options.user_id,
        density_depth=_whole(options, "density_depth"),
    )
    output: str = options.output.rstrip("/") or options.output
    old_files = _check_places(output, options.density, options.overwrite)
    if not any(argument.startswith("--runner") for argument in beam_arguments):
        beam_arguments = [*IN_MEMORY, *beam_arguments]

    started = time.monotonic()
    records = generate(request, output, options.density, beam_arguments, old_files)
    seconds = time.monotonic() - started
    sys.stdout.write(
        f"{records:,} records of {request.users:,} users in {request.files} file(s) at {output} "
        f"({seconds:.1f} s, {records / seconds / 1e6:.2f} million a second)\n"
    )
    return 0


def generate(
    request: SynthRequest,
    output: str,
    density: str | None,
    beam_arguments: list[str],
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
        with beam.Pipeline(options=PipelineOptions(beam_arguments)) as pipeline:
            counts = pipeline | GeneratePeople(request, staging, with_density=density is not None)
            # int64[4^depth] or int64[1]
            _ = counts | "WriteCounts" >> beam.Map(_write_array, path=staged_totals)
        with FileSystems.open(staged_totals, compression_type=CompressionTypes.UNCOMPRESSED) as source:
            total: NDArray[np.int64] = np.load(source)
        names = [request.file_name(index) for index in range(request.files)]
        new_files = [FileSystems.join(output, name) for name in names]
        staged, places = [FileSystems.join(staging, name) for name in names], list(new_files)
        if density is not None:
            _write_array(density_raster(total, request.grid), staged_density)
            staged.append(staged_density)
            places.append(density)
        FileSystems.rename(staged, places)
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
        raise RequestError("output: must name a folder, got an empty text")
    if os.path.isfile(output):
        raise RequestError(f"output: {output!r} is a file; give a folder")
    present = _match(FileSystems.join(output, "*"))
    if present and not overwrite:
        raise RequestError(f"output: {output!r} exists and is not empty; give another folder, or --overwrite")
    if density is not None:
        if not density.endswith(".npy"):
            raise RequestError(f"density: must name a file that ends in .npy, got {density!r}")
        if os.path.isdir(density):
            raise RequestError(f"density: {density!r} is a folder; give a file")
        if _match(density) and not overwrite:
            raise RequestError(f"density: {density!r} exists; give another file, or --overwrite")
    # Only what an earlier run wrote: whatever else lies in the folder is not ours to delete.
    return [path for path in present if path.rsplit("/", 1)[-1].startswith("part-") and path.endswith(".parquet")]


def _match(pattern: str) -> list[str]:
    try:
        return [found.path for found in FileSystems.match([pattern])[0].metadata_list]
    except BeamIOError:
        return []


def _write_array(values: NDArray[np.generic], path: str) -> None:
    with FileSystems.create(path, compression_type=CompressionTypes.UNCOMPRESSED) as sink:
        np.save(sink, values)


def _make_folder(path: str) -> bool:
    """Makes a local folder (a bucket has none to make). Returns whether it was not there before."""
    if "://" in path or os.path.isdir(path):
        return False
    try:
        os.makedirs(path)
    except OSError as error:
        raise RequestError(f"output: cannot make the folder {path!r} ({error.strerror}); give another") from error
    return True


def _remove(path: str) -> None:
    """Removes a file or a folder with all that is in it, if it is there."""
    if "://" in path:
        found = _match(path) + _match(FileSystems.join(path, "*"))
        if found:
            FileSystems.delete(found)
    elif os.path.exists(path):
        FileSystems.delete([path])


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
