"""`sfumato zones --release`: users of zones from a published heatmap. It runs no pipeline and charges nothing."""

from __future__ import annotations

import os
import sys

from sfumato.schemas.errors import RequestError
from sfumato.schemas.requests.release_readers import ReleaseZonesRequest
from sfumato.transforms.files import is_remote, write_file
from sfumato.transforms.release.published_release import open_release
from sfumato.transforms.zones.release_zones import SUFFIXES, check_heatmap, table_bytes, zones_of_release
from sfumato.transforms.zones.zone_file import zones_of


def run(request: ReleaseZonesRequest) -> int:
    """Runs the command. Returns the exit status 0, or raises RequestError."""
    suffix = os.path.splitext(request.output)[1]
    if suffix not in SUFFIXES:
        raise RequestError(f"output: must end in {', '.join(SUFFIXES)}, which says its format; got {request.output}")
    if not request.overwrite and not is_remote(request.output) and os.path.lexists(request.output):
        raise RequestError(f"output: {request.output} exists already; name another, or give --overwrite")
    release = open_release(request.release)
    region = check_heatmap(release).region
    table = zones_of_release(release, zones_of(request.zones, request.id_column, request.index, region))
    try:
        write_file(request.output, table_bytes(table, suffix))
    except OSError as error:
        raise RequestError(f"output: {request.output} cannot be written ({error.strerror or error})") from None
    outside = table["users"].null_count
    left = f"; {outside:,} outside the map have none" if outside else ""
    sys.stdout.write(f"{request.output}: users of {table.num_rows - outside:,} zones, 95% intervals{left}\n")
    return 0
