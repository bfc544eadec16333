"""What the documents show is run."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from sfumato.pipelines import cli
from tests.pipelines.test_heatmap import published  # noqa: F401  (a fixture)

ROOT = Path(__file__).parent.parent


def blocks(path: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (ROOT / path).read_text(), flags=re.DOTALL)


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("docs") / "logs"
    assert cli.main(["synth", "--users", "30000", "--output", str(folder)]) == 0
    return folder


def test_the_pipeline_of_a_readers_own(logs: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (code,) = blocks("docs/pipelines.md")
    assert len([line for line in code.splitlines() if line.strip()]) <= 15
    exec(code.replace("demo/logs/", f"{logs}/"), {})
    shown = capfd.readouterr().out
    assert re.search(r"\[\[[\d.e+-]+ ", shown), shown


def test_reading_a_release(published: Path) -> None:  # noqa: F811
    (code,) = blocks("README.md")
    names: dict = {}
    exec(code.replace("demo/release", str(published)), names)
    release = names["release"]
    assert isinstance(release.density, np.ndarray)
    assert release.manifest["privacy"]["epsilon_spent"] == release.manifest["privacy"]["epsilon"]


def test_the_readme_lists_only_options_that_exist() -> None:
    import argparse

    from sfumato.pipelines import heatmap

    parser = argparse.ArgumentParser()
    heatmap.add_arguments(parser)
    options = set(parser._option_string_actions)
    table = (ROOT / "README.md").read_text().split("## Your own logs")[1].split("### On Dataflow")[0]
    assert set(re.findall(r"--\w+", table)) <= options
