"""The geography that a request names for its map, read and ready to be published."""

from __future__ import annotations

from typing import Any

from sfumato.schemas.errors import RequestError
from sfumato.schemas.rectangle import Region
from sfumato.schemas.requests.publish_request import MapGeography
from sfumato.transforms.files import read_file
from sfumato.transforms.release.basemap_file import MAX_FILE_BYTES, file_basemap, geography_bytes
from sfumato.transforms.storage import matching


def geography_of(request: Any, region: Region | None = None) -> bytes | None:
    """The content of `basemap.json` for a request; None without a map or geography.

    Args:
        request: of any job.
        region: of the map; None takes the request's.

    Raises:
        RequestError: the file cannot be read or used.
    """
    region = getattr(request, "region", None) if region is None else region
    if not isinstance(request, MapGeography) or region is None:
        return None
    basemap = None if request.basemap is None else file_basemap(request.basemap, _content(request.basemap), region)
    return geography_bytes(region, basemap, request.tiles)


def _content(path: str) -> bytes:
    try:
        found = matching(path, 1)
    except RequestError as error:
        raise RequestError(f"basemap: {error}") from None
    try:
        if found and found[0].size_in_bytes > MAX_FILE_BYTES:
            raise RequestError(
                f"basemap: {path} has {found[0].size_in_bytes >> 20:,} MiB, and {MAX_FILE_BYTES >> 20} MiB are the "
                "most; cut out the region first"
            )
        return read_file(path)
    except OSError as error:
        raise RequestError(f"basemap: {path} cannot be read ({error.strerror or error})") from None
