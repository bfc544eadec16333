"""The people of the synthetic city for benchmarks: all their records as one table, and the density of a day."""

from __future__ import annotations

from datetime import date
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from sfumato.schemas.region import by_row
from sfumato.transforms.synth.city import build_city_on, plan_day
from sfumato.transforms.synth.landscape import SIDE
from sfumato.transforms.synth.people import make_records
from sfumato.transforms.synth.random_streams import alias_probabilities


def make_people(first: int, last: int, *, records_per_user: int = 1, **options: Any) -> pa.Table:
    """All records of users first .. last - 1: record 0 of every user, then record 1, and so on.

    options: of `make_records`.
    """
    parts = [make_records(first, last, record, **options) for record in range(records_per_user)]
    return pa.concat_tables(parts).combine_chunks()


def density_on(day: date, seed: int, longitude: float, side: int = SIDE) -> NDArray[np.float64]:
    """The density from which a day's records are drawn: float64[side, side], row 0 in the north, sum 1."""
    city, plan = build_city_on(day, side), plan_day(day, seed, longitude)
    home, work, elsewhere = np.bincount(plan.rhythm & 3, minlength=3) / len(plan.rhythm)
    shares = [home * (1 - plan.away), work, elsewhere * (1 - plan.crowd), home * plan.away, elsewhere * plan.crowd]
    tables = city.tables.reshape(-1, side**2)
    density = sum(share * alias_probabilities(table) for share, table in zip(shares, tables, strict=False))
    return np.asarray(density).reshape(side, side)


def density_raster(counts: NDArray[np.int64]) -> NDArray[np.float64]:
    """The density of counts by code, int64[4^depth]: float64[2^depth, 2^depth], row 0 in the north, sum 1."""
    return np.asarray(by_row(counts / counts.sum()))
