"""What the documents show is run."""

from __future__ import annotations

import argparse
import importlib
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from sfumato.pipelines import cli
from sfumato.transforms.heatmap.methods import METHODS
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
    heatmap, histogram, moments = blocks("docs/how_to/beam_pipelines.md")
    for code in (heatmap, histogram, moments):
        assert len([line for line in code.splitlines() if line.strip()]) <= 15
        exec(code.replace("demo/logs/", f"{logs}/"), {})
    shown = capfd.readouterr().out
    assert re.search(r"\[\[[\d.e+-]+ ", shown), shown
    assert re.search(r"'(true|false)'.*\[[\d. ]+\]", shown), shown
    assert re.search(r"MomentEstimate\(group='everybody', statistic='mean', value=[123]\.", shown), shown


def test_reading_a_release(published: Path) -> None:  # noqa: F811
    (code,) = blocks("README.md")
    names: dict = {}
    exec(code.replace("demo/release", str(published)), names)
    release = names["release"]
    assert isinstance(release.density, np.ndarray)
    assert release.manifest["privacy"]["epsilon_spent"] == release.manifest["privacy"]["epsilon"]


@pytest.mark.parametrize(
    ("jobs", "start", "end"),
    [
        (["heatmap"], "## Your own logs", "### Choose a method"),
        (["compare", "plan"], "### Choose a method", "### Counts without noise"),
        (["histogram", "hotspots", "quantiles"], "### Counts without noise", "### Means and moments"),
        (["moments"], "### Means and moments", "### How many people"),
        (["ranges_build", "ranges_answer"], "### How many people", "## Run it every night"),
    ],
)
def test_the_readme_lists_only_options_that_exist(jobs: list[str], start: str, end: str) -> None:
    options: set[str] = set()
    for job in jobs:
        parser = argparse.ArgumentParser()
        importlib.import_module(f"sfumato.pipelines.{job}").add_arguments(parser)
        options |= set(parser._option_string_actions)
    part = (ROOT / "README.md").read_text().split(start)[1].split(end)[0]
    assert set(re.findall(r"--\w+", part)) <= options


def test_the_readmes_plan_is_what_the_command_prints(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["plan", "--users", "100000", "--epsilon", "1"]) == 0
    lines = [f"    {line}" if line else "" for line in capsys.readouterr().out.rstrip().splitlines()]
    assert "\n".join(lines) in (ROOT / "README.md").read_text()


def test_a_method_of_a_readers_own(logs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The document's method, put into the registry as it says, runs through compare, plan and the heatmap itself."""
    (code,) = blocks("docs/explanation/methods.md")
    (tmp_path / "even_method.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(METHODS, "even", importlib.import_module("even_method").Even)
    region = ["--region", "-122.51,37.70,-122.35,37.82"]
    files = ["--input", f"{logs}/*.parquet", "--seed", "1"]
    assert cli.main(["plan", "--users", "30000", "--method", "even"]) == 0
    assert cli.main(["heatmap", *files, *region, "--method", "even", "--output", str(tmp_path / "map")]) == 0
    compare = ["--methods", "even,flat", "--users", "20000", "--metrics", "mse", "--keys", "2", "--depth", "8"]
    assert cli.main(["compare", *files, *region, *compare, "--output", str(tmp_path / "compare")]) == 0
    table = pd.read_csv(tmp_path / "compare" / "table.csv").set_index("method")
    assert table.mse["even"] < table.mse["flat"]


def test_the_readmes_configuration_is_the_one_that_its_commands_copy() -> None:
    (shown,) = re.findall(r"```yaml\n(.*?)```", (ROOT / "README.md").read_text(), flags=re.DOTALL)
    assert shown == (ROOT / "runner_configs" / "schedules" / "refresh.yaml").read_text()


def commands(path: str) -> set[str]:
    """The `sfumato` commands over the demonstration's logs that a file shows, each in one line."""
    text = (ROOT / path).read_text().replace("\\\n", " ").replace("$(REGION)", "-122.51,37.70,-122.35,37.82")
    lines = [" ".join(line.split()).replace(" --overwrite", "") for line in text.splitlines()]
    found = [re.fullmatch(r"(?:\$\(BIN\)/)?sfumato (.*demo/(?:logs|nightly).*)", line) for line in lines]
    return {one[1] for one in found if one}


def test_the_readmes_commands_are_those_that_make_demo_runs() -> None:
    """CI runs them as `make demo`, so the two must not drift apart."""
    assert len(commands("README.md")) == 17
    assert commands("README.md") == commands("Makefile")
