"""Commands that read only published releases: `export`, `changes` and `zones --release`. None charges."""

from __future__ import annotations

import json
import os
import sys

from sfumato.pipelines.command_line.run import view_of
from sfumato.schemas.errors import RequestError
from sfumato.schemas.release import CHANGES_FORMAT, MANIFEST_FILE
from sfumato.schemas.requests.commands import ChangesRequest, ExportRequest
from sfumato.schemas.views import PageView
from sfumato.transforms.changes.release import changes_files, compare_releases, report
from sfumato.transforms.export.formats import export_release
from sfumato.transforms.export.vectors import ZONES_SUFFIXES, zones_bytes
from sfumato.transforms.io.files import check_new_file, write_output
from sfumato.transforms.release.published_release import Release, open_release
from sfumato.transforms.zones.release_zones import check_heatmap, zones_of_release
from sfumato.transforms.zones.request import ReleaseZonesRequest


def release_view(release: Release) -> PageView:
    """Returns the view of a release from its published files. Raises RequestError if it has no page."""
    job = str(release.manifest.get("job"))
    view = view_of(job)
    if view is None:
        raise RequestError(
            f"folder: {release.path} is a release of `sfumato {job}`, whose page cannot be rendered again"
        )
    made_of = [name for name in release.listed or () if not name.endswith((".html", ".png"))]
    files = {name: release.read(name) for name in made_of}
    return view({**files, MANIFEST_FILE: json.dumps(release.manifest).encode()})


def run_changes(request: ChangesRequest) -> None:
    """Finds where two published releases differ. Raises RequestError."""
    from sfumato.transforms.release.release_folder import check_output, publish  # Beam takes seconds to import

    if request.output is not None:
        check_output(request.output, request.overwrite, CHANGES_FORMAT)
    before, after = open_release(request.before), open_release(request.after)
    changes = compare_releases(before, after, request.rate, shares=request.shares)
    if request.output is not None:
        files = changes_files(changes, before, after, request.rate, shares=request.shares)
        identity = json.loads(files[MANIFEST_FILE])["release_id"]
        publish(request.output, files, identity, request.overwrite)
    sys.stdout.write(report(changes, request.rate))
    if request.output is not None:
        sys.stdout.write(f"Written to {request.output}\n")


def run_export(request: ExportRequest) -> None:
    """Writes a published release as a file of another tool. Raises RequestError."""
    release = open_release(request.folder, changes=True)
    written = export_release(
        release,
        request.output,
        request.format,
        licence=request.licence,
        table=request.table,
        overwrite=request.overwrite,
    )
    sys.stdout.write("".join(f"{path}\n" for path in written))


def run_zones(request: ReleaseZonesRequest) -> None:
    """Estimates the users of zones from a published heatmap. Raises RequestError."""
    suffix = os.path.splitext(request.output)[1]
    if suffix not in ZONES_SUFFIXES:
        raise RequestError(f"output: must end in {', '.join(ZONES_SUFFIXES)}, got {request.output}")
    check_new_file(request.output, request.overwrite)
    release = open_release(request.release)
    region = check_heatmap(release).region
    table = zones_of_release(release, request.public_zones(region))
    write_output(request.output, zones_bytes(table, suffix))
    outside = table["users"].null_count
    left = f"; {outside:,} zones outside the map omitted" if outside else ""
    sys.stdout.write(f"{request.output}: users of {table.num_rows - outside:,} zones, 95% intervals{left}\n")
