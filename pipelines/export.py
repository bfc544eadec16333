"""`sfumato export FOLDER --output FILE`: a published release as a file of another tool. It reads the release alone."""

from __future__ import annotations

import sys

from sfumato.schemas.requests.release_readers import ExportRequest
from sfumato.transforms.export.formats import export_release
from sfumato.transforms.release.published_release import open_release


def run(request: ExportRequest) -> int:
    """Runs the command. Returns the exit status 0, or raises RequestError."""
    release = open_release(request.folder, changes=True)
    written = export_release(
        release,
        request.output,
        request.format,
        licence=request.licence,
        table=request.table,
        resolution=request.resolution,
        overwrite=request.overwrite,
    )
    sys.stdout.write("".join(f"{path}\n" for path in written))
    return 0
