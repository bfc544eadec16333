"""`sfumato page FOLDER`: makes a release's page and pictures again, from its published files alone."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from sfumato.schemas.errors import DataError, RequestError
from sfumato.schemas.release import MANIFEST_FILE, PAGE_FILE
from sfumato.schemas.requests.release_readers import PageRequest
from sfumato.schemas.views import PageView
from sfumato.transforms.flows.flow_view import flows_view
from sfumato.transforms.heatmap.view import heatmap_view
from sfumato.transforms.histogram.central_counts_view import counts_view
from sfumato.transforms.moments.moments_view import moments_view
from sfumato.transforms.quantiles.quantiles_view import quantiles_view
from sfumato.transforms.ranges.ranges_view import ranges_view
from sfumato.transforms.release.builder import page_files
from sfumato.transforms.release.published_release import Release, open_release
from sfumato.transforms.zones.zones_view import zones_view

View = Callable[[Mapping[str, bytes]], PageView]
VIEWS: dict[str, View] = {
    "heatmap": heatmap_view,
    "histogram": counts_view,
    "hotspots": counts_view,
    "quantiles": quantiles_view,
    "moments": moments_view,
    "flows": flows_view,
    "ranges": ranges_view,
    "zones": zones_view,
}


def release_view(release: Release) -> PageView:
    """What a release's page shows, from its published files. Raises RequestError if there is no page to make again."""
    job = str(release.manifest.get("job"))
    if job not in VIEWS:
        raise RequestError(f"folder: {release.path} is a release of `sfumato {job}`, which has no page to make again")
    made_of = [name for name in release.listed or () if not name.endswith((".html", ".png"))]
    files = {name: release.read(name) for name in made_of}
    return VIEWS[job]({**files, MANIFEST_FILE: json.dumps(release.manifest).encode()})


def run(request: PageRequest) -> int:
    """Runs the command. Raises RequestError, or DataError where the page that was published is another."""
    release = open_release(request.folder)
    made = page_files(release_view(release))
    if request.output is not None:
        folder = Path(request.output)
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in made.items():
            (folder / name).write_bytes(content)
        sys.stdout.write(f"{folder / PAGE_FILE}\n")
        return 0
    if other := [name for name, content in made.items() if release.read(name) != content]:
        raise DataError(
            f"{request.folder}: {', '.join(other)}: this version of sfumato makes another from the same release; "
            "--output FOLDER writes it"
        )
    sys.stdout.write(f"{request.folder}: the page follows from the published files, byte for byte\n")
    return 0
