"""A promise of the threat model on `sfumato zones`, in the file that the table of promises names."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import shapely

from sfumato.pipelines import cli
from sfumato.transforms.release.published_release import open_release
from tests.conftest import make_logs, write_files
from tests.unit.zones.polygons import write_geojson

BOX = (-1.0, 50.0, 1.0, 51.0)


@pytest.mark.slow
@pytest.mark.false_alarm(5e-9)
def test_empty_zones_have_noise_too_and_nothing_raw_is_published(tmp_path: Path) -> None:
    """A zone far from all users: its count is noise. No published count is exact with its probability alone.

    Limits are 6 deviations of a share, which is binomial, and 8 of the noise's standard deviation.
    """
    logs = write_files(make_logs(1900, 1, seed=3), tmp_path / "logs", 3)
    far = [(shapely.box(10 + i / 10, 10, 10.1 + i / 10, 11), {"id": f"far{i}"}) for i in range(400)]
    here = [(shapely.box(*BOX), {"id": "here"})]
    write_geojson(tmp_path / "z.geojson", [*here, *far])
    status = cli.main([
        "zones", "--input", logs, "--zones", str(tmp_path / "z.geojson"), "--id_column",
        "id", "--seed", "4", "--output", str(tmp_path / "out"),
    ])  # fmt: skip
    assert status == 0
    users = open_release(str(tmp_path / "out")).table("zones")["users"].to_numpy()
    decay = math.exp(-0.998)
    zero = (1 - decay) / (1 + decay)  # the probability that noise is 0
    spare = 6 * math.sqrt(zero * (1 - zero) / 400)
    assert abs((users[1:] == 0).mean() - zero) < spare
    assert abs(users[1:].std() - 1.36) < 8 * 1.36 * math.sqrt(5.6 / 4 / 400)  # the kurtosis of the noise is 6.5
    content = b"".join(path.read_bytes() for path in (tmp_path / "out").iterdir() if path.suffix == ".json")
    assert b'"dropped"' not in content
