"""`sfumato changes`: where two published heatmaps differ. It runs no pipeline and charges nothing."""

from __future__ import annotations

import json
import sys

from sfumato.schemas.release import CHANGES_FORMAT, MANIFEST_FILE
from sfumato.schemas.requests.release_readers import ChangesRequest
from sfumato.transforms.heatmap.changes_release import changes_files, report
from sfumato.transforms.heatmap.map_changes import compare_releases, finer_grid
from sfumato.transforms.release.published_release import open_release
from sfumato.transforms.release.release_folder import check_output, publish


def run(request: ChangesRequest) -> int:
    """Runs the command. Returns the exit status 0, or raises RequestError."""
    if request.output is not None:
        check_output(request.output, request.overwrite, CHANGES_FORMAT)
    before, after = open_release(request.before), open_release(request.after)
    changes = compare_releases(before, after, request.rate, shares=request.shares)
    if request.output is not None:
        files = changes_files(changes, before, after, request.rate, shares=request.shares)
        identity = json.loads(files[MANIFEST_FILE])["release_id"]
        publish(request.output, files, identity, request.overwrite)
    sys.stdout.write(report(changes, finer_grid(before, after), request.rate))
    if request.output is not None:
        sys.stdout.write(f"Written to {request.output}\n")
    return 0
