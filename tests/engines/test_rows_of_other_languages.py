"""Java and Go pipelines with a private step of `sfumato.beam`, by Beam's expansion service for Python."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests import ROOT
from tests.keys import write_key

pytestmark = pytest.mark.engines
BUILD = ROOT / "build"
CLASSES, FLINK, GO = BUILD / "java" / "classes", BUILD / "flink" / "job-server.jar", BUILD / "go" / "zones_of_rides"
LOCAL_SERVER = f"{sys.executable} -m apache_beam.runners.portability.local_job_service_main --port 8099"
FLINK_SERVER = (
    f"java -jar {FLINK} --job-host=localhost --job-port=8099 --artifact-port=0 --expansion-port=0 "
    "--flink-master=[local] --artifacts-dir=artifacts"
)
# Flink would end the workers of Java between two stages, and these start once.
JAVA = (
    f"java -cp '{CLASSES}:{CLASSES}/../lib/*' ZonesOfRides localhost:8097 key zones --runner=PortableRunner "
    "--jobEndpoint=localhost:8099 --environmentCacheMillis=60000 "
    "--defaultEnvironmentType=LOOPBACK --defaultEnvironmentConfig=localhost:8098"
)
GO_PROGRAM = f"{GO} --runner=universal --endpoint=localhost:8099 --environment_type=LOOPBACK"
# Language and engine: its program, the job server, the files that they need, and how to make these.
CASES = {
    "java": (JAVA, LOCAL_SERVER, (CLASSES / "ZonesOfRides.class",), "java-rows"),
    "java on flink": (JAVA, FLINK_SERVER, (CLASSES / "ZonesOfRides.class", FLINK), "java-rows flink-jar"),
    "go": (GO_PROGRAM, LOCAL_SERVER, (GO,), "go-rows"),
}
# Beam's services listen on all interfaces, so they have a network of their own.
NETWORK = ["unshare", "--map-root-user", "--net", "bash", "-c"]
COMMANDS = """
set -e
ip link set lo up
trap 'kill $(jobs -p)' EXIT
{python} -m apache_beam.runners.portability.expansion_service_main -p 8097 \
    --fully_qualified_name_glob='sfumato.beam.*' --serve_loopback_worker \
    --environment_type=EXTERNAL --environment_config=localhost:8097 &
{server} &
for port in 8097 8099; do
    for second in $(seq 60); do (: </dev/tcp/localhost/$port) 2>/dev/null && break; sleep 1; done
done
{program}
"""


def lack(files: tuple[Path, ...], targets: str) -> str | None:
    """Why a pipeline cannot run here, None if it can."""
    for program in ("unshare", "ip", *(["java"] if "java" in targets else [])):
        if shutil.which(program) is None:
            return f"{program} is not installed"
    if not all(file.exists() for file in files):
        return f"a program is missing: make {targets}"
    done = subprocess.run([*NETWORK, "ip link set lo up"], capture_output=True, check=False)
    return None if done.returncode == 0 else "this machine allows no network namespace"


@pytest.mark.parametrize("case", CASES)
def test_a_pipeline_counts_users_of_zones(case: str, tmp_path: Path) -> None:
    program, server, files, targets = CASES[case]
    if (reason := lack(files, targets)) is not None:
        pytest.skip(reason)
    write_key(tmp_path / "key")
    commands = COMMANDS.format(python=sys.executable, server=server, program=program)
    with (tmp_path / "log").open("w") as log:
        done = subprocess.run([*NETWORK, commands], cwd=tmp_path, stdout=log, stderr=log, timeout=300, check=False)
    assert done.returncode == 0, (tmp_path / "log").read_text()[-4000:]
    lines = [line.split(",") for line in (tmp_path / "zones.csv").read_text().splitlines()]
    users = {zone: float(number) for zone, number in lines}
    assert len(users) > 50  # also zones without a rider
    # The noise of all zones together has a standard deviation of 12, and cutting it off at 0 adds less than 2 a zone.
    assert sum(users.values()) == pytest.approx(10_000, abs=500)
