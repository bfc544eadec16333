"""Districts and their street grids.

A district is the part of the city that is nearest to the district's centre. Its wavy border is a road. Each district
has its own axes, block size and densities. Streets are drawn by distance to the nearest grid line.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from sfumato.transforms.synth.shapes import CellIndex, Field, bump, lattice_hash, ramp


class District(NamedTuple):
    """A district of the city.

    Attributes:
        name: for readers of this file.
        x, y: its centre, in km.
        degrees: rotation of its street grid.
        block_u, block_v: sides of a block along the grid's axes, in km.
        home, work: relative densities.
        winding: amplitude of the curves of its streets, in km.
    """

    name: str
    x: float
    y: float
    degrees: float
    block_u: float
    block_v: float
    home: float
    work: float
    winding: float = 0.0


DISTRICTS = (
    District("downtown", 8.6, 4.6, 9, 0.135, 0.088, 3.0, 5.0),
    District("south of the avenue", 9.3, 6.4, 43, 0.25, 0.16, 1.8, 3.0),
    District("north beach", 6.5, 2.6, 9, 0.125, 0.09, 3.2, 0.8),
    District("west addition", 6.5, 4.9, 9, 0.13, 0.105, 2.6, 0.8),
    District("avenues north", 3.5, 4.3, 3, 0.075, 0.19, 1.4, 0.3),
    District("avenues south", 3.1, 8.6, 3, 0.075, 0.20, 1.2, 0.25),
    District("mission", 7.3, 8.2, -4, 0.095, 0.165, 3.0, 0.9),
    District("hills", 5.2, 10.0, 20, 0.11, 0.17, 0.7, 0.1, 0.16),
    District("south", 6.4, 12.7, -19, 0.085, 0.19, 1.3, 0.3),
    District("south-east", 8.7, 11.0, 27, 0.085, 0.18, 1.5, 0.4),
    District("lake", 2.2, 12.6, 12, 0.10, 0.18, 0.8, 0.2, 0.10),
    District("port", 12.5, 7.0, 61, 0.33, 0.21, 0.08, 2.2),
    District("east", 12.9, 10.6, -9, 0.09, 0.17, 1.7, 0.4),
    District("south-east shore", 12.6, 13.6, 15, 0.10, 0.17, 1.0, 0.5, 0.06),
    District("yards", 9.9, 8.7, 75, 0.30, 0.18, 0.25, 2.0),
)


class Fabric(NamedTuple):
    """Fields of some rows: weights of buildings, of streets and of shops, and the district's two densities."""

    built: Field
    street: Field
    shops: Field
    home: Field
    work: Field


def lay_streets(x: Field, y: Field, noise: Field) -> Fabric:
    """Draws streets, blocks and lots of all districts. noise: makes the borders wavy."""
    label, border_km = _nearest_district(x + 0.10 * noise, y - 0.08 * noise)
    columns = np.array([district[1:] for district in DISTRICTS], dtype=np.float32).T
    middle_x, middle_y, _, block_u, block_v, home, work, winding = (column[label] for column in columns)
    cosine, sine = np.cos(np.radians(columns[2]))[label], np.sin(np.radians(columns[2]))[label]
    east, south = x - middle_x, y - middle_y
    u, v = east * cosine + south * sine, south * cosine - east * sine
    u, v = u + winding * np.sin(3.1 * v + 1), v + winding * np.sin(3.7 * u)

    cross_u, cross_v = np.rint(u / block_u), np.rint(v / block_v)  # number of the nearest street on each axis
    off_u, off_v = np.abs(u - cross_u * block_u), np.abs(v - cross_v * block_v)
    block_i, block_j = np.floor(u / block_u).astype(np.int32), np.floor(v / block_v).astype(np.int32)
    street_u, shops_u = _street(cross_u.astype(np.int32), block_j, off_u, label, 0)
    street_v, shops_v = _street(cross_v.astype(np.int32), block_i, off_v, label, 1)
    border = bump(border_km, 0.012)
    street = np.maximum(np.maximum(street_u, street_v), 2.4 * border)

    edge = np.minimum(np.minimum(off_u, off_v), border_km)
    lots = lattice_hash(np.floor(u / 0.017).astype(np.int32), np.floor(v / 0.017).astype(np.int32), label)
    blocks = lattice_hash(block_i, block_j, label + 100)
    # Houses are along the streets around a courtyard. One block in thirty is a square or a yard.
    built = ramp(edge - 0.008, 0.006) * (0.45 + 0.55 * bump(edge - 0.022, 0.02))
    built *= (0.35 + 1.3 * lots) * (0.5 + blocks) * np.where(blocks > 0.035, np.float32(1), np.float32(0.06))
    shops = np.maximum(np.maximum(shops_u, shops_v), bump(border_km, 0.035))
    return Fabric(built, street, shops, home, work)


def _nearest_district(x: Field, y: Field) -> tuple[CellIndex, Field]:
    """The index of the district, and the distance in km to its border."""
    best = np.full(x.shape, np.inf, dtype=np.float32)
    second = best.copy()
    label = np.zeros(x.shape, dtype=np.int32)
    for index, district in enumerate(DISTRICTS):
        squared = (x - np.float32(district.x)) ** 2 + (y - np.float32(district.y)) ** 2
        nearer = squared < best
        second = np.where(nearer, best, np.minimum(second, squared))
        best = np.where(nearer, squared, best)
        label[nearer] = index
    return label, (np.sqrt(second) - np.sqrt(best)) * np.float32(0.5)


def _street(number: CellIndex, along: CellIndex, off: Field, label: CellIndex, way: int) -> tuple[Field, Field]:
    """Weights of the street and of its shops.

    Args:
        number: of the nearest street.
        along: number of the block along that street.
        off: distance to it, in km.
        label: index of the district.
        way: axis of the street, 0 or 1.
    """
    traffic = lattice_hash(number, number, label * 2 + way)
    main = (number % 5) == 0
    weight = np.where(main, np.float32(1.3) + traffic, np.float32(0.25) + np.float32(0.5) * traffic)
    closed = (lattice_hash(number, along, label * 2 + way + 1000) < 0.12) & ~main
    width = np.where(main, np.float32(0.010), np.float32(0.0065))
    weight = weight * bump(off, width) * np.where(closed, np.float32(0.3), np.float32(1))
    return weight, bump(off, 0.035) * (main & (traffic > 0.6))
