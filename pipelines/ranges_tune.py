"""`sfumato ranges tune`: learns the best cell width from public data.

Its file is for `sfumato ranges build --tuner FILE`. The file holds plain arrays, and opening it runs no code. The data
must be public: the job uses exact values, does not protect the users in them, and charges nothing.
"""

from __future__ import annotations

import hashlib
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.random import Generator, default_rng

from sfumato.pipelines.frame.inputs import InputFile, inspect, layout_of, match_files
from sfumato.schemas.errors import DataError, RequestError
from sfumato.schemas.locations import LocationColumns
from sfumato.schemas.log_layout import LogLayout
from sfumato.schemas.ranges import BASE_DEPTH, Field, Sizes
from sfumato.schemas.region import Grid, Region
from sfumato.schemas.requests.checks import check_number
from sfumato.transforms.inputs.log_reader import read_batches, slice_file
from sfumato.transforms.locations.encode import encode_locations
from sfumato.transforms.ranges.field_counts import CollectionSpec, ExactCounts
from sfumato.transforms.ranges.request import TuneRequest
from sfumato.transforms.ranges.tuner import Label, save_tuner, train
from sfumato.transforms.ranges.width_search import QUERIES, QuerySample, entropy, sample_users, search_grid

SHARES = (1, 4, 16)  # searches use all, a quarter and a sixteenth of a data set's users
_MIDDLE = (0.001, 0.999)  # quantiles of the coordinates; locations beyond them are outside the region
_KEY = hashlib.sha256(b"public data").digest()


@dataclass(frozen=True)
class PublicData:
    """A public data set: the users of each cell, one record a user."""

    exact: ExactCounts
    field: Field


def run(request: TuneRequest) -> None:
    """Runs the command. Raises RequestError or DataError."""
    for name, numbers in (("epsilons", request.epsilons), ("users", request.users)):
        for number in numbers or ():
            check_number(name, number, gt=0)
    users = None if request.users is None else [round(number) for number in request.users]
    sizes = [Sizes(*ends) for ends in request.sizes]
    given, data_sets = request.region, len(request.public)
    if len(given) not in (0, 1, data_sets):
        raise RequestError(f"region: give it once, or once for each of the {data_sets} data sets, got {len(given)}")
    regions = list(given) if len(given) == data_sets else [given[0] if given else None] * data_sets
    folder = os.path.dirname(request.output) or "."
    if not os.path.isdir(folder):
        raise RequestError(f"output: there is no folder {folder!r}")
    if os.path.exists(request.output) and not request.overwrite:
        raise RequestError(f"output: {request.output!r} exists; name another, or give --overwrite")
    columns = LocationColumns(request.user_id_column, request.latitude_column, request.longitude_column)

    begun, labels = time.monotonic(), list[Label]()
    for number, (pattern, region) in enumerate(zip(request.public, regions, strict=True)):
        generator = default_rng([request.seed, number])
        data = read_public(pattern, region, columns, generator, layout_of(request))
        for size_range in sizes:
            size_range.check(data.field)
        found = labels_of(data, sizes, request.epsilons, users, generator)
        sys.stdout.write(f"{pattern}: {len(found)} searches, {time.monotonic() - begun:.0f} s\n")
        labels += found
    save_tuner(train(labels, request.seed), request.output)
    widths = [label.width for label in labels]
    sys.stdout.write(
        f"{len(labels)} searches: the best cells are {min(widths):.3g} to {max(widths):.3g} m wide\n{request.output}\n"
    )


def labels_of(
    data: PublicData,
    sizes: Sequence[Sizes],
    epsilons: Sequence[float],
    users: Sequence[int] | None,
    generator: Generator,
) -> list[Label]:
    """Searches the best width for each number of users, size range and epsilon.

    The entropy of a label is that of the whole data set: a tuner is queried about places, and the entropy of a small
    sample is lower.

    users: numbers of users to draw. Numbers above the data set's are left out. None: see SHARES.
    """
    held, place_entropy = int(data.exact.users.sum()), entropy(data.exact)
    numbers = [max(held // share, 1) for share in SHARES] if users is None else [n for n in users if n <= held]
    labels = []
    for number in numbers or [held]:
        exact = sample_users(data.exact, number, generator)
        for size_range in sizes:
            for epsilon in epsilons:
                spec = CollectionSpec(data.field, float(number), epsilon, size_range)
                queries = QuerySample.draw(exact, data.field, size_range, QUERIES, generator)
                seeds = [int(seed) for seed in generator.integers(0, 2**31, 2)]
                labels.append(Label(spec, place_entropy, search_grid(exact, spec, queries, seeds).width))
    return labels


def read_public(
    pattern: str, region: Region | None, columns: LocationColumns, generator: Generator, layout: LogLayout | None = None
) -> PublicData:
    """Reads a public data set: one record of each user, drawn at random among those in the region.

    Raises RequestError for missing files or columns, DataError if no record is in the region.
    """
    files = match_files(pattern, layout)
    inspect(files, columns)
    grid = Grid(_middle(files, columns) if region is None else region, BASE_DEPTH)
    encoded = [encode_locations(batch, columns, grid, _KEY) for batch in _batches(files, columns)]
    users, codes = (np.concatenate([getattr(part, name) for part in encoded]) for name in ("users", "codes"))
    if not len(users):
        raise DataError(f"public: no row of {pattern} has a user and a place in the region {grid.region}")
    order = generator.permutation(len(users))
    return PublicData(
        ExactCounts.from_codes(BASE_DEPTH, codes[order][np.unique(users[order], return_index=True)[1]]), Field(grid)
    )


def _batches(files: Sequence[InputFile], columns: LocationColumns) -> list[pa.RecordBatch]:
    batches = [batch for file in files for part in slice_file(file.log) for batch in read_batches(part, columns)]
    if not any(batch.num_rows for batch in batches):
        raise DataError(f"public: {files[0].path} holds no rows")
    return batches


def _middle(files: Sequence[InputFile], columns: LocationColumns) -> Region:
    """Returns the region between the quantiles _MIDDLE of all coordinates."""
    batches = _batches(files, columns)
    names = columns.longitude, columns.latitude
    cast = [[pc.cast(batch.column(name), pa.float64()) for batch in batches] for name in names]
    east, north = (np.concatenate([part.to_numpy(zero_copy_only=False) for part in parts]) for parts in cast)
    known = (np.abs(east) <= 180) & (np.abs(north) <= 90)
    if not known.any():
        raise DataError(f"public: no row of {files[0].path} has coordinates in degrees")
    (west, east_end), (south, north_end) = (np.quantile(axis[known], _MIDDLE).tolist() for axis in (east, north))
    try:
        return Region(west, south, east_end, north_end)
    except RequestError:
        raise RequestError(f"region: all of {files[0].path} is at one place; give --region W,S,E,N") from None
