"""Areas of public points, such as stops: what is nearer to each than to any other, up to a distance. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import shapely
from numpy.typing import NDArray

from sfumato.schemas.charts import readable
from sfumato.schemas.errors import RequestError
from sfumato.schemas.region import EARTH_RADIUS_KM

_POLAR = 85.0  # degrees of latitude; Mercator's projection stretches what lies beyond
_QUARTER = 8  # edges of a quarter of a circle


def areas_of_points(points: NDArray[np.object_], radius: float, ids: Sequence[str]) -> NDArray[np.object_]:
    """Returns a polygon around each point: the places that are nearer to it than to any other, up to the radius.

    Distances are compared in Mercator's projection, which is true to shape, so that a circle stays one.

    Args:
        points: object[n], shapely Points in degrees of longitude and latitude.
        radius: in metres.
        ids: of the points, for messages.

    Raises:
        RequestError: two points are at one place, or one is near a pole.
    """
    places = shapely.get_coordinates(points)
    if (np.abs(places[:, 1]) > _POLAR).any():
        raise RequestError(f"radius: points must lie between {_POLAR:g} degrees south and north")
    _, first, number = np.unique(places, axis=0, return_index=True, return_counts=True)
    if (number > 1).any():
        place = places[first[np.argmax(number)]]
        both = " and ".join(readable(ids[i]) for i in np.flatnonzero((places == place).all(axis=1))[:2])
        raise RequestError(f"radius: {both} are at one place, so no record is nearer to one of them; leave one out")
    north = np.radians(places[:, 1])
    projected = np.stack([np.radians(places[:, 0]), np.arctanh(np.sin(north))], axis=1)
    circles = shapely.buffer(
        shapely.points(projected), radius / (1000 * EARTH_RADIUS_KM * np.cos(north)), quad_segs=_QUARTER
    )
    if len(points) > 1:
        cells = shapely.voronoi_polygons(
            shapely.multipoints(projected), extend_to=shapely.box(*shapely.total_bounds(circles)), ordered=True
        )
        circles = shapely.intersection(circles, shapely.get_parts(cells))
    areas: NDArray[np.object_] = shapely.transform(
        circles, lambda x, y: (np.degrees(x), np.degrees(np.arcsin(np.tanh(y)))), interleaved=False
    )
    return areas
