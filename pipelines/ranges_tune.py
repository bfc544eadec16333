"""`sfumato ranges tune`: learns on public data which cell width is best, and whether networks are worth it.

The file it writes is for `sfumato ranges build --tuner FILE`. It holds plain arrays, and opening it runs no code. The
data that it learns from must be public: exact values of it are used, nothing protects the people in it, and nothing is
charged.
"""

from __future__ import annotations

import argparse
import hashlib
import math
import os
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.random import Generator, default_rng
from numpy.typing import NDArray

from sfumato.pipelines.inputs import InputFile, inspect, match_files
from sfumato.pipelines.options import JobParser
from sfumato.schemas.errors import DataError, RequestError
from sfumato.schemas.locations import LocationColumns
from sfumato.schemas.ranges import BASE_DEPTH, Field, Sizes
from sfumato.schemas.region import Grid, Region
from sfumato.transforms.heatmap.checks import check_between, check_whole
from sfumato.transforms.locations.encode import encode_locations
from sfumato.transforms.locations.read import open_parquet
from sfumato.transforms.ranges.collection_spec import CollectionSpec
from sfumato.transforms.ranges.exact_counts import ExactCounts
from sfumato.transforms.ranges.methods import METHODS
from sfumato.transforms.ranges.methods.grid import PlainGrid
from sfumato.transforms.ranges.methods.neural import SpatialNeural
from sfumato.transforms.ranges.tuner import Label, Tuner, save_tuner, train
from sfumato.transforms.ranges.width_search import MethodFactory, entropy, find_label, sample_users

EPSILONS = "0.05,0.1,0.2,0.4,0.8"  # paper 003, Section 6.1
SHARES = (1, 4, 16)  # of a data set all, a quarter and a sixteenth of the users
_NAMES = ("user_id", "latitude", "longitude")
_MIDDLE = (0.001, 0.999)  # of the coordinates; what lies beyond is not taken for a part of the city
_KEY = hashlib.sha256(b"public data").digest()


@dataclass(frozen=True)
class PublicData:
    """The people of a public data set, one record a user, and where they are."""

    people: ExactCounts
    field: Field


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's options."""
    parser.add_argument(
        "--public",
        required=True,
        nargs="+",
        metavar="PATTERN",
        help="public location logs (Parquet), one data set each; of each user one record counts",
    )
    parser.add_argument("--output", required=True, metavar="FILE", help="the tuner's file, for example tuner.npz")
    parser.add_argument(
        "--region",
        action="append",
        metavar="W,S,E,N",
        help="borders in degrees, given once for all data sets, or once for each in their order; default: of the "
        "middle 99.8%% of each",
    )
    parser.add_argument(
        "--sizes", nargs="+", default=["25,100"], metavar="LOW,HIGH", help="sides of the squares to come, in metres"
    )
    parser.add_argument("--epsilons", default=EPSILONS, metavar="E,...", help="at which widths are tried")
    parser.add_argument(
        "--users",
        metavar="N,...",
        help="numbers of users to draw from each data set; default: all, a quarter and a sixteenth",
    )
    parser.add_argument(
        "--method",
        choices=(PlainGrid.NAME, SpatialNeural.NAME),
        default=PlainGrid.NAME,
        help="grid: seconds; snh: also trains three networks for every epsilon, size and number of users, of about a "
        "minute each, and learns where they are better than the grid",
    )
    parser.add_argument("--seed", type=int, default=0, help="the same seed and data give the same tuner")
    parser.add_argument("--overwrite", action="store_true", help="replace a file that is there")
    for name in _NAMES:
        parser.add_argument(f"--{name}_column", default=name, help=f"column of the {name}")


def run(arguments: Sequence[str]) -> int:
    """Runs the command. Returns the exit status 0, or raises RequestError or DataError."""
    parser = JobParser("ranges tune", __doc__)
    parser.epilog = None
    add_arguments(parser)
    options = parser.parse_args(arguments)
    epsilons = _numbers("epsilons", options.epsilons)
    users = None if options.users is None else [round(number) for number in _numbers("users", options.users)]
    sizes = [Sizes.parse(text) for text in options.sizes]
    check_whole("seed", options.seed, 0, 2**63 - 1)
    regions = _regions(options.region or [], len(options.public))
    folder = os.path.dirname(options.output) or "."
    if not os.path.isdir(folder):
        raise RequestError(f"output: there is no folder {folder!r}")
    if os.path.exists(options.output) and not options.overwrite:
        raise RequestError(f"output: {options.output!r} exists; name another, or give --overwrite")
    columns = LocationColumns(*(getattr(options, f"{name}_column") for name in _NAMES))
    others: dict[str, MethodFactory] = {}
    if options.method == SpatialNeural.NAME:
        others[SpatialNeural.NAME] = partial(METHODS[SpatialNeural.NAME], models=1)  # type: ignore[call-arg]

    begun, labels = time.monotonic(), list[Label]()
    for number, (pattern, region) in enumerate(zip(options.public, regions, strict=True)):
        generator = default_rng([options.seed, number])
        data = read_public(pattern, region, columns, generator)
        for one in sizes:
            one.check(data.field)
        found = labels_of(data, sizes, epsilons, users, others, generator)
        sys.stdout.write(f"{pattern}: {len(found)} searches, {time.monotonic() - begun:.0f} s\n")
        labels += found
    tuner = train(labels, options.seed)
    save_tuner(tuner, options.output)
    sys.stdout.write(_report(labels, tuner))
    sys.stdout.write(f"{options.output}\n")
    return 0


def labels_of(
    data: PublicData,
    sizes: Sequence[Sizes],
    epsilons: Sequence[float],
    users: Sequence[int] | None,
    others: Mapping[str, MethodFactory],
    generator: Generator,
) -> list[Label]:
    """What searches find on a data set. users: how many to draw; those that there are not are left out."""
    held, place = int(data.people.users.sum()), entropy(data.people)
    numbers = [max(held // share, 1) for share in SHARES] if users is None else [n for n in users if n <= held]
    labels = []
    for number in numbers or [held]:
        people = sample_users(data.people, number, generator)
        for one in sizes:
            for epsilon in epsilons:
                wanted = CollectionSpec(data.field, float(number), epsilon, one)
                labels.append(find_label(people, wanted, place, others, generator))
    return labels


def read_public(pattern: str, region: Region | None, columns: LocationColumns, generator: Generator) -> PublicData:
    """A public data set: of each user one record, drawn at random among those in the region.

    Raises RequestError for files and columns that are not there, DataError where nobody is in the region.
    """
    files = match_files(pattern)
    inspect(files, columns)
    grid = Grid(_middle(files, columns) if region is None else region, BASE_DEPTH)
    encoded = [encode_locations(batch, columns, grid, _KEY) for batch in _batches(files, columns)]
    users, codes = (np.concatenate([getattr(one, name) for one in encoded]) for name in ("users", "codes"))
    if not len(users):
        raise DataError(f"public: no row of {pattern} has a user and a place in the region {grid.region}")
    order = generator.permutation(len(users))
    return PublicData(
        ExactCounts.from_codes(BASE_DEPTH, codes[order][np.unique(users[order], return_index=True)[1]]), Field(grid)
    )


def _batches(files: Sequence[InputFile], columns: LocationColumns) -> list[pa.RecordBatch]:
    names = [columns.user_id, columns.latitude, columns.longitude]
    batches = []
    for one in files:
        with open_parquet(one.path) as file:
            batches += list(file.iter_batches(columns=names))
    if not any(batch.num_rows for batch in batches):
        raise DataError(f"public: {files[0].path} holds no rows")
    return batches


def _middle(files: Sequence[InputFile], columns: LocationColumns) -> Region:
    """The borders of the middle of all coordinates."""
    batches = _batches(files, columns)
    east, north = (_degrees(batches, name) for name in (columns.longitude, columns.latitude))
    known = (np.abs(east) <= 180) & (np.abs(north) <= 90)
    if not known.any():
        raise DataError(f"public: no row of {files[0].path} has coordinates in degrees")
    (west, east_end), (south, north_end) = (np.quantile(axis[known], _MIDDLE).tolist() for axis in (east, north))
    try:
        return Region(west, south, east_end, north_end)
    except RequestError:
        raise RequestError(f"region: all of {files[0].path} is at one place; give --region W,S,E,N") from None


def _degrees(batches: Sequence[pa.RecordBatch], name: str) -> NDArray[np.float64]:
    """NaN where nothing is."""
    columns = [pc.cast(batch.column(name), pa.float64()) for batch in batches]
    return np.concatenate([column.to_numpy(zero_copy_only=False) for column in columns])


def _regions(texts: Sequence[str], data_sets: int) -> list[Region | None]:
    if len(texts) not in (0, 1, data_sets):
        raise RequestError(f"region: give it once, or once for each of the {data_sets} data sets, got {len(texts)}")
    regions: list[Region | None] = [Region.parse(text) for text in texts]
    regions = regions or [None]
    return regions if len(regions) == data_sets else regions * data_sets


def _numbers(name: str, text: str) -> list[float]:
    try:
        numbers = [float(part) for part in text.split(",")]
    except ValueError:
        raise RequestError(f"{name}: give numbers separated by commas, got {text!r}") from None
    for number in numbers:
        check_between(name, number, 0, math.inf)
    return numbers


def _report(labels: Sequence[Label], tuner: Tuner) -> str:
    """How wide the best cells were; of several methods, how often each was best."""
    widths = [one.widths[PlainGrid.NAME] for one in labels]
    lines = [f"{len(labels)} searches: the best cells are {min(widths):.3g} to {max(widths):.3g} m wide"]
    for name in tuner.gains:
        better = sum(one.errors[name] < one.errors[PlainGrid.NAME] for one in labels)
        lines.append(f"{name} has less error than the grid in {better} of them")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    from sfumato.pipelines.cli import command

    sys.exit(command(["ranges", "tune", *sys.argv[1:]]))
