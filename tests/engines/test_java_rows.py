"""A Java pipeline with a private step of `sfumato.beam`, by Beam's expansion service for Python."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests import ROOT
from tests.keys import write_key

pytestmark = pytest.mark.engines
CLASSES = ROOT / "build" / "java" / "classes"
# Beam's services listen on all interfaces, so they have a network of their own.
NETWORK = ["unshare", "--map-root-user", "--net", "bash", "-c"]
COMMANDS = """
set -e
ip link set lo up
trap 'kill $(jobs -p)' EXIT
{python} -m apache_beam.runners.portability.expansion_service_main -p 8097 \
    --fully_qualified_name_glob='sfumato.beam.*' --serve_loopback_worker &
{python} -m apache_beam.runners.portability.local_job_service_main --port 8099 &
for port in 8097 8099; do
    for second in $(seq 60); do (: </dev/tcp/localhost/$port) 2>/dev/null && break; sleep 1; done
done
java -cp '{classes}:{classes}/../lib/*' ZonesOfRides localhost:8097 key zones --runner=PortableRunner \
    --jobEndpoint=localhost:8099 --defaultEnvironmentType=LOOPBACK --defaultEnvironmentConfig=localhost:8098
"""


def lack() -> str | None:
    """Why a Java pipeline cannot run here, None if it can."""
    for program in ("java", "unshare", "ip"):
        if shutil.which(program) is None:
            return f"{program} is not installed"
    if not (CLASSES / "ZonesOfRides.class").exists():
        return "build/java is missing: make java-rows, with Maven and a JDK"
    done = subprocess.run([*NETWORK, "ip link set lo up"], capture_output=True, check=False)
    return None if done.returncode == 0 else "this machine allows no network namespace"


def test_a_java_pipeline_counts_users_of_zones(tmp_path: Path) -> None:
    if (reason := lack()) is not None:
        pytest.skip(reason)
    write_key(tmp_path / "key")
    commands = COMMANDS.format(python=sys.executable, classes=CLASSES)
    with (tmp_path / "log").open("w") as log:
        done = subprocess.run([*NETWORK, commands], cwd=tmp_path, stdout=log, stderr=log, timeout=300, check=False)
    assert done.returncode == 0, (tmp_path / "log").read_text()[-4000:]
    lines = [line.split(",") for line in (tmp_path / "zones.csv").read_text().splitlines()]
    users = {zone: float(number) for zone, number in lines}
    assert len(users) > 50  # also zones without a rider
    # The noise of all zones together has a standard deviation of 12, and cutting it off at 0 adds less than 2 a zone.
    assert sum(users.values()) == pytest.approx(10_000, abs=500)
