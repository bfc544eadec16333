"""A private step in a Beam YAML pipeline, from the built wheel in an environment of its own: CSV to Parquet."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import yaml

from tests import ROOT

INSTALL_SECONDS = 600  # Beam and its parts
STEPS = {
    "PrivateHeatmap": {"region": [3.0, 1.0, 3.13, 1.13], "depth": 4, "epsilon": 1},
    "PrivateZones": {"region": "3.00,1.00,3.13,1.13", "h3": 7, "epsilon": 1},
    "PrivateFlows": {"region": [3.0, 1.0, 3.13, 1.13], "depth": 3, "time_column": "time", "epsilon": 4},
    "PrivateHistogram": {"column": "kind", "trust": "central", "epsilon": 2},
    "PrivateHotspots": {"column": "kind", "depth": 1, "levels": 1, "trust": "central", "epsilon": 2},
    "PrivateQuantiles": {"column": "km", "range": [0, 10], "trust": "central", "quantiles": [0.5], "epsilon": 2},
    "PrivateMoments": {"column": "km", "trust": "central", "range": [0, 10], "statistics": ["mean"], "epsilon": 2},
}
COLUMNS = {"user_id_column": "rider", "latitude_column": "lat", "longitude_column": "lon"}


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of an environment with the wheel and its extra `yaml`."""
    uv = shutil.which("uv", path=str(Path(sys.executable).parent)) or shutil.which("uv")
    if uv is None:
        pytest.skip("uv is not installed: the extra `dev`")
    folder = tmp_path_factory.mktemp("yaml")
    source = folder / "source"
    tracked = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False)
    if tracked.returncode:
        pytest.skip("no checkout: the wheel is built from the files that git knows")
    for name in tracked.stdout.split("\0"):
        if name and not name.startswith(("docs/", "tests/", "web/")) and (ROOT / name).is_file():
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, source / name)
    build = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--quiet",
        "--no-deps",
        "--no-build-isolation",
        "--wheel-dir",
        folder,
    ]
    subprocess.run([*build, source], check=True)
    subprocess.run([uv, "venv", "--quiet", "--python", sys.executable, folder / "venv"], check=True)
    wheel, made = next(folder.glob("*.whl")), folder / "venv" / "bin" / "python"
    install = [uv, "pip", "install", "--quiet", "--python", made, f"{wheel}[yaml]"]
    done = subprocess.run(install, capture_output=True, text=True, timeout=INSTALL_SECONDS, check=False)
    if done.returncode:
        pytest.skip(f"the packages of the extra `yaml` cannot be had here: {done.stderr[-300:]}")
    return made


def test_yaml_pipelines_run_from_the_wheel(python: Path, tmp_path: Path) -> None:
    """One pipeline with every transform of the shipped listing; the test of the listing has the same names."""
    rows = [f"r{n},{1 + n / 3e4},3.05,{'ab'[n % 2]},{n % 10},2026-11-20T08:{n % 60:02}:00Z" for n in range(3000)]
    (tmp_path / "rides.csv").write_text("\n".join(["rider,lat,lon,kind,km,time", *rows, "x,70,3,a,1,", ""]))
    code = "from importlib.resources import files; print(files('sfumato') / 'beam_providers.yaml')"
    listing = subprocess.run([python, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    transforms = [{"type": "ReadFromCsv", "name": "Rides", "config": {"path": str(tmp_path / "rides.csv")}}]
    for name, options in STEPS.items():
        own = {**options, **(COLUMNS if "region" in options else {"user_id_column": "rider"})}
        config = {**own, **({"error_handling": {"output": "unusable"}} if name == "PrivateZones" else {})}
        written = {"path": str(tmp_path / f"{name}.parquet")}
        transforms += [
            {"type": name, "name": name, "input": "Rides", "config": config},
            {"type": "WriteToParquet", "name": f"Write{name}", "input": name, "config": written},
        ]
    unusable = {"path": str(tmp_path / "unusable.json")}
    transforms.append({"type": "WriteToJson", "input": "PrivateZones.unusable", "config": unusable})
    pipeline = {"pipeline": {"transforms": transforms}, "providers": [{"include": listing.strip()}]}
    (tmp_path / "rides.yaml").write_text(yaml.safe_dump(pipeline))
    command = [python, "-m", "apache_beam.yaml.main", f"--yaml_pipeline_file={tmp_path / 'rides.yaml'}"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    tables = {name: pq.read_table(next(tmp_path.glob(f"{name}.parquet*"))) for name in STEPS}
    assert all(table.num_rows for table in tables.values()), {name: one.num_rows for name, one in tables.items()}
    assert tables["PrivateHeatmap"].num_rows <= 4**4
    assert {"zone", "users", "low", "high"} <= set(tables["PrivateZones"].column_names)
    assert [json.loads(line) for line in next(tmp_path.glob("unusable.json*")).read_text().splitlines()] == [
        {"reason": "out_of_region", "count": 1}
    ]
