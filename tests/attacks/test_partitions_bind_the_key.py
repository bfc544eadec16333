"""A column that folders state is a part of the data: another value is other data, and draws other noise.

The key of a named release is bound to its files' content, whatever their names. A folder `kind=a` that is renamed to
`kind=b` has the same files. Were its noise the same too, the difference of both releases would have none.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from sfumato.pipelines.heatmap import HeatmapJob
from sfumato.pipelines.inputs import layout_of, match_files
from sfumato.pipelines.release_run import key_and_metadata
from sfumato.pipelines.runner_settings import runner_settings
from sfumato.transforms.heatmap.request import HeatmapRequest
from tests.conftest import make_logs, write_files
from tests.keys import write_key


def subkey(folder: Path, place: Path, column: str) -> bytes:
    own = {"input": str(place), "output": "out", "region": "-1,50,1,51", "release_id": "monday"}
    request = HeatmapRequest.of(
        {**own, "key_file": str(folder / "key"), "auxiliary": column, "categories": "a,b"},
    )
    job = HeatmapJob.of(request)
    files = match_files(request.input, layout_of(request, job.columns()))
    return key_and_metadata(job, files, runner_settings(None, []))[0].subkey("x")


def test_a_renamed_folder_is_other_data_where_its_column_is_read(tmp_path: Path) -> None:
    write_key(tmp_path / "key")
    write_files(make_logs(200, 1, seed=1), tmp_path / "logs" / "kind=a", 2)
    first, unread = (subkey(tmp_path, tmp_path / "logs", column) for column in ("kind", "other"))
    shutil.copytree(tmp_path / "logs", tmp_path / "copy")
    assert subkey(tmp_path, tmp_path / "copy", "kind") == first  # a copy resumes a crashed run
    (tmp_path / "logs" / "kind=a").rename(tmp_path / "logs" / "kind=b")
    assert subkey(tmp_path, tmp_path / "logs", "kind") != first
    assert subkey(tmp_path, tmp_path / "logs", "other") == unread
