"""Penumbra, an invented city: three density rasters (homes, work places, elsewhere) and one of infection risk.

The city fills a square of 14 x 14 km, which the job stretches over any region. It has an ocean in the west, a bay in
the north-east with the mouth of a river, districts with street grids of different angles and block sizes, a diagonal
avenue, parks and a port. Every seed has the same city with other people. Rasters have row 0 in the north. The model
follows no paper. Its only aim is that a heatmap of it looks like a city.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from sfumato.transforms.synth.landscape import (
    AVENUE,
    BRIDGES,
    ROADS,
    Field,
    SmoothNoise,
    bump,
    depth_inland,
    hill,
    lay_streets,
    line_distance,
    nearest_line,
    parks,
    ramp,
    venues,
)
from sfumato.transforms.synth.random_streams import Words, alias_table

SIZE_KM = 14.0
SIDE = 2048  # cells along one side, 6.8 m each
HOME, WORK, ELSEWHERE = 0, 1, 2  # kinds of location
RISK_SIDE = 256
_STRIP_ROWS = 64  # rows that are painted at a time: they fit the processor's cache

BASE_RISK = 0.02
HOT_SPOTS = (((7.3, 8.6), 0.9, 0.20), ((12.9, 10.9), 0.8, 0.14), ((3.6, 3.7), 0.7, 0.12))
"""Centre (km), radius (km) and the added risk of infection at the centre."""

CENTRES = (
    ((8.75, 5.0), 0.55, 60.0),
    ((8.9, 6.0), 0.9, 9.0),
    ((7.2, 8.3), 0.4, 12.0),
    ((6.1, 2.7), 0.4, 9.0),
    ((3.6, 4.4), 0.25, 7.0),
    ((3.0, 9.3), 0.3, 7.0),
    ((12.9, 10.3), 0.4, 10.0),
    ((6.4, 12.7), 0.35, 9.0),
    ((2.4, 12.3), 0.3, 8.0),
    ((6.5, 5.9), 0.35, 10.0),
)
"""Downtown and the sub-centres: centre (km), radius (km), density relative to a residential street."""


@dataclass(frozen=True)
class City:
    """The distributions from which people are drawn.

    Attributes:
        side: cells along one side, a power of two.
        tables: uint64[kinds * side^2], one alias table after the other: HOME, WORK and ELSEWHERE; of a day also SEASON
            and CROWD (`day_plan`).
        risk: uint64[RISK_SIDE^2], the probability of infection by home, times 2^32.
    """

    side: int
    tables: Words
    risk: NDArray[np.uint64]

    @property
    def bits(self) -> int:
        """Bits of a cell's number, which is its row times `side` plus its column."""
        return 2 * (self.side.bit_length() - 1)

    def positions(self, cells: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Rows, from the north, and columns, from the west, of numbered cells: int64[n] each."""
        return cells >> (self.bits // 2), cells & (self.side - 1)


@lru_cache(maxsize=2)
def build_city(side: int = SIDE) -> City:
    """The city on side x side cells, a power of two. The full size takes about 2 s and 150 MB."""
    tables = np.concatenate([alias_table(raster) for raster in city_rasters(side)])
    return City(side, tables, (risk_raster() * 2.0**32).astype(np.uint64).ravel())


def risk_raster() -> NDArray[np.float64]:
    """The probability that a person who lives in a cell is infected: float64[RISK_SIDE, RISK_SIDE]."""
    km = cell_centres(RISK_SIDE)
    risk = np.full((RISK_SIDE, RISK_SIDE), BASE_RISK)
    for centre, radius, height in HOT_SPOTS:
        risk += height * hill(km[None, :], km[:, None], centre, radius)
    return risk


def cell_centres(side: int) -> Field:
    """The centres of `side` cells along an axis of the city, in km from the west or north: float32[side]."""
    return ((np.arange(side) + 0.5) * (SIZE_KM / side)).astype(np.float32)


def city_rasters(side: int) -> tuple[Field, Field, Field]:
    """Relative densities of HOME, WORK and ELSEWHERE: float32[side, side] each. Water is 0."""
    coast = SmoothNoise(side, salt=11, knots=5, octaves=5)
    patches = SmoothNoise(side, salt=23, knots=14, octaves=3)
    km = cell_centres(side)
    rasters = tuple(np.empty((side, side), dtype=np.float32) for _ in range(3))
    for first in range(0, side, _STRIP_ROWS):
        last = min(first + _STRIP_ROWS, side)
        x = np.broadcast_to(km[None, :], (last - first, side))
        y = np.broadcast_to(km[first:last, None], (last - first, side))
        strip = _paint(x, y, coast.rows(first, last), patches.rows(first, last))
        for raster, part in zip(rasters, strip, strict=True):
            raster[first:last] = part
    return rasters[0], rasters[1], rasters[2]


def _paint(x: Field, y: Field, coast: Field, patches: Field) -> tuple[Field, Field, Field]:
    """The three densities at positions in km. coast, patches: noise for shores and for neighbourhoods."""
    land_km, piers_km = depth_inland(x, y, coast)
    land = ramp(land_km, 0.02)
    park, paths = parks(x, y, coast, patches)
    fabric = lay_streets(x, y, coast)
    avenue = line_distance(x, y, AVENUE)
    freeway = nearest_line(x, y, ROADS)
    promenade = bump(land_km - np.float32(0.06), 0.018)
    # No houses on large roads, at the shore and in parks.
    built = fabric.built * ramp(avenue - 0.018, 0.01) * ramp(freeway - 0.03, 0.015)
    built *= ramp(land_km - 0.09, 0.03) * (1 - park)

    centres = sum(height * hill(x, y, centre, radius) for centre, radius, height in CENTRES)
    corridor = 2.5 * bump(avenue, 0.16) + 1.2 * fabric.shops
    texture = np.exp(np.float32(0.40) * patches)
    # Density falls by a factor of seven over ten kilometres from the centre.
    dense = np.float32(0.25) + 1.75 * np.exp(-np.hypot(x - 8.2, (y - 5.6) * 0.85) / 3.2)
    home = fabric.home * dense * texture * (1 + 0.12 * np.minimum(centres, 10)) * built
    work = (fabric.work + centres + corridor * 0.8) * built

    # Records on streets make the blocks visible on a map.
    busy = dense * (0.35 + 0.55 * fabric.home * texture) + 0.5 * centres + 0.7 * corridor
    streets = fabric.street * busy * (1 - park) * (1 - bump(freeway, 0.04))
    roads = 9.0 * bump(avenue, 0.016) * (0.5 + dense + 0.2 * centres) + 7.0 * bump(freeway, 0.012)
    roads += promenade * (0.8 * dense + 0.4 * centres)
    elsewhere = streets + roads * (1 - 0.9 * park) + 0.10 * (0.2 + centres + corridor) * built
    elsewhere += paths + venues(x, y) + 0.8 * ramp(piers_km, 0.01)
    crossing = 6.0 * bump(nearest_line(x, y, BRIDGES), 0.011)
    over_water = np.maximum(elsewhere * land, crossing * (crossing > 0.5) * (1 - land))
    home += np.float32(0.05) * fabric.home * fabric.street * (1 - park)  # positions have errors: homes leak to streets
    return home * land, work * land, over_water
