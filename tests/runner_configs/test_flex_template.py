"""The Flex template's files fit the program: Dockerfile, parameters, the commands of their README."""

from __future__ import annotations

import json
import re
import shlex
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from sfumato.pipelines.command_line import parse_command
from sfumato.pipelines.refresh import read_config
from sfumato.schemas.requests.refresh_days import RefreshRequest

ROOT = Path(__file__).parents[2]
TEMPLATE = ROOT / "runner_configs" / "dataflow"
PARAMETERS = {one["name"]: one for one in json.loads((TEMPLATE / "metadata.json").read_text())["parameters"]}
README = (TEMPLATE / "README.md").read_text()
BEAM = {"sdk_container_image"}  # parameters that go on to Beam
EXAMPLES = {
    "config": (
        ["gs://my-bucket/refresh.yaml", "gs://my.bucket_2/folder/refresh.yaml"],
        ["refresh.yaml", "/etc/refresh.yaml", "gs://my-bucket", "gs://my-bucket/", "s3://my-bucket/refresh.yaml"],
    ),
    "sdk_container_image": (
        ["us-central1-docker.pkg.dev/my-project/sfumato/refresh:0.1.0", "localhost:5000/refresh",
         f"gcr.io/my-project/refresh@sha256:{'0a' * 32}"],
        ["", "refresh", "https://gcr.io/my-project/refresh", "gcr.io/my-project/refresh:", "gcr.io/Project/a b"],
    ),
    "date": (["2026-11-20", "2024-02-29"], ["", "20261120", "2026-11-31x", "2026-13-01", "2026-11-00", "yesterday"]),
}  # fmt: skip


def parse(arguments: list[str]) -> tuple[dict[str, Any], list[str]]:
    """What `sfumato refresh` takes of a command line, and what it leaves to Beam."""
    request, rest = parse_command(RefreshRequest, arguments)
    return {name: None if value is None else str(value) for name, value in vars(request).items()}, rest


def test_every_parameter_is_an_option() -> None:
    arguments = [f"--{name}={EXAMPLES[name][0][0]}" for name in PARAMETERS]
    options, rest = parse(arguments)
    for name in PARAMETERS.keys() - BEAM:
        assert options[name] == EXAMPLES[name][0][0]
    assert [one.partition("=")[0] for one in rest] == [f"--{name}" for name in sorted(BEAM)]
    required = {name for name, one in PARAMETERS.items() if not one.get("isOptional")}
    assert required == {"config"} | BEAM  # without their image workers lack the program


def test_the_parameters_are_as_google_describes_them() -> None:
    for one in PARAMETERS.values():
        assert one.keys() - {"isOptional"} == {"name", "label", "helpText", "regexes"}


@pytest.mark.parametrize("name", sorted(PARAMETERS))
def test_the_patterns_match_what_they_should(name: str) -> None:
    good, bad = EXAMPLES[name]
    patterns = [re.compile(one) for one in PARAMETERS[name]["regexes"]]
    for value in good:
        assert all(one.search(value) for one in patterns), value
    for value in bad:
        assert not all(one.search(value) for one in patterns), value
    (example,) = re.findall(r"such as ([^\s;]+)", PARAMETERS[name]["helpText"])
    assert all(one.search(example) for one in patterns)


# --- the image ---


def instructions() -> list[list[str]]:
    text = re.sub(r"\\\n", "", re.sub(r"^#.*\n", "", (TEMPLATE / "Dockerfile").read_text(), flags=re.MULTILINE))
    return [line.split(None, 1) for line in text.splitlines() if line]


def test_what_the_image_copies_is_in_the_repository() -> None:
    copied = []
    for name, rest in instructions():
        if name == "COPY" and not rest.startswith("--from="):
            *sources, _ = rest.split()
            copied += sources
    for source in copied:
        assert (ROOT / source).exists(), source
    # All that the package is built from, and the program.
    build = {"pyproject.toml", "setup.py", "MANIFEST.in", "README.md", "LICENSE"}
    assert build | {"api", "schemas", "transforms", "pipelines", "runner_configs"} <= set(copied)
    (program,) = [rest.partition("=")[2] for name, rest in instructions() if name == "ENV"]
    assert program == "/template/launch.py"
    assert ["WORKDIR", "/template"] in instructions()
    assert "runner_configs/dataflow/launch.py" in copied


def test_the_versions_are_those_of_the_package() -> None:
    (beam,) = {rest.partition("=")[2] for name, rest in instructions() if name == "ARG" and "=" in rest}
    needed = [Requirement(one) for one in metadata.requires("sfumato") or ()]
    (specifier,) = {one.specifier for one in needed if one.name == "apache-beam"}
    assert specifier.contains(beam)
    oldest = min(one.version for one in specifier if one.operator == ">=")
    assert beam.startswith(oldest)
    bases = [rest for name, rest in instructions() if name == "FROM"]
    pythons = set(re.findall(r"python_?(\d)\.?(\d+)", " ".join(bases)))
    assert len(bases) == 2
    assert len(pythons) == 1  # of the launcher and of the workers
    (python,) = pythons
    assert SpecifierSet(metadata.metadata("sfumato")["Requires-Python"]).contains(".".join(python))
    install = next(rest for name, rest in instructions() if name == "RUN")
    assert "apache-beam[gcp]==${BEAM}" in install
    extras = metadata.metadata("sfumato").get_all("Provides-Extra") or []
    assert set(re.findall(r"sfumato\[(\w+)\]", install)) <= set(extras)


# --- its README ---


def commands() -> list[list[str]]:
    code = re.findall(r"^ {4}(.*)$", README.replace("\\\n", " "), flags=re.MULTILINE)
    return [shlex.split(one) for one in code]


def test_the_readme_gives_the_parameters_that_there_are() -> None:
    (given,) = [one[one.index("--parameters") + 1] for one in commands() if "--parameters" in one]
    names = {one.partition("=")[0] for one in given.split(",")}
    assert names <= PARAMETERS.keys()
    assert {name for name, one in PARAMETERS.items() if not one.get("isOptional")} <= names
    for one in commands():
        for path in re.findall(r"runner_configs/\S+", " ".join(one)):
            assert (ROOT / path).exists()


def test_the_readmes_refresh_is_one() -> None:
    key, command = [one for one in commands() if one[0] == "sfumato"]
    assert key[:5] == ["sfumato", "key", "new", "key", "&&"]
    assert key[-1] == "--data-file=key"  # the same file
    assert command[1] == "refresh"
    options, rest = parse(command[2:])
    assert options["config"] == "gs://MY-BUCKET/refresh.yaml"
    assert rest[rest.index("--region") + 1] == "us-central1"  # Beam's own: a refresh has no map
    assert len(rest) == 10


def test_the_readmes_configuration_is_one(tmp_path: Path) -> None:
    (text,) = re.findall(r"```yaml\n(.*?)```", README, flags=re.DOTALL)
    (tmp_path / "refresh.yaml").write_text(text)
    config = read_config(str(tmp_path / "refresh.yaml"))
    assert config.ledger == "gs://MY-BUCKET-ledger/taxis"
    assert config.input == str(tmp_path / "logs")
    assert yaml.safe_load(text)["key_secret"] == config.key_secret
    assert [str(limit) for limit in config.budget]
