"""Unit tests import no Beam: they start in a second, and say where the mathematics is."""

from __future__ import annotations

import subprocess
import sys

from tests import ROOT

COLLECT = """
import sys

class NoBeam:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "apache_beam":
            raise ImportError(f"a unit test imports {name}: move it to tests/jobs")

sys.meta_path.insert(0, NoBeam())

import pytest

sys.exit(pytest.main(["tests/unit", "--collect-only", "-q", "-p", "no:cacheprovider"]))
"""


def test_unit_tests_are_collected_where_there_is_no_beam() -> None:
    done = subprocess.run([sys.executable, "-c", COLLECT], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-2000:]
