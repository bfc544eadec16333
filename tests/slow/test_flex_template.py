"""The Flex template's files fit the program: Dockerfile, parameters, the commands of their README."""

from __future__ import annotations

import json
import re
import shlex
import tomllib
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import yaml
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.portability.api import beam_runner_api_pb2
from apache_beam.runners.portability.stager import Stager
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

from sfumato.pipelines.cli import parse_command
from sfumato.pipelines.refresh import read_config
from sfumato.schemas.requests.commands import RefreshRequest
from tests import ROOT

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
    assert locked()["apache-beam"] == (Version(beam), locked()["apache-beam"][1])


def locked() -> dict[str, tuple[Version, int]]:
    """The packages of the lock: version and number of hashes."""
    found = {}
    for block in re.split(r"\n(?=\S)", (TEMPLATE / "requirements.txt").read_text()):
        if not block.startswith("#"):
            name, version = re.fullmatch(r"([A-Za-z0-9._-]+)(?:\[[^\]]*\])?==(\S+)", block.split()[0]).groups()  # type: ignore[union-attr]
            hashes = re.findall(r"--hash=sha256:[0-9a-f]{64}(?=\s|$)", block)
            assert len(hashes) == block.count("--hash"), name
            found[canonicalize_name(name)] = Version(version), len(hashes)
    return found


def test_the_lock_pins_all_that_the_package_needs_by_hash() -> None:
    packages = locked()
    assert len(packages) > 100
    assert all(hashes for _, hashes in packages.values())
    stated = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = stated["optional-dependencies"]
    needed = [Requirement(one) for one in [*stated["dependencies"], *extras["gcp"], *extras["neural"]]]
    for one in needed:
        version, _ = packages[canonicalize_name(one.name)]
        assert one.specifier.contains(version), one


def test_the_image_installs_the_lock_and_nothing_else() -> None:
    installs = [rest for name, rest in instructions() if name == "RUN" and "pip install" in rest]
    lock, package = installs
    assert "--require-hashes -r requirements.txt" in lock
    assert "--no-deps --no-build-isolation ./sfumato" in package
    assert "pip check" in package
    assert "setuptools" in locked()  # which builds the package


def test_beam_stages_the_lock_as_it_is(tmp_path: Path) -> None:
    """It would fetch each line of the lock as a package of its own, unless it is told to leave that to the workers."""
    lock = TEMPLATE / "requirements.txt"
    options = PipelineOptions(["--requirements_file", str(lock), "--requirements_cache", "skip"])
    staged = {name: file for file, name in resources_of(options, tmp_path)}
    assert Path(staged["requirements.txt"]).read_bytes() == lock.read_bytes()
    assert "--requirements_cache skip" in (ROOT / "runner_configs" / "dataflow.yaml").read_text()


def resources_of(options: PipelineOptions, folder: Path) -> list[tuple[str, str]]:
    """What Beam stages for a job, as (file, name on the workers)."""
    return [
        (
            beam_runner_api_pb2.ArtifactFilePayload.FromString(one.type_payload).path,
            beam_runner_api_pb2.ArtifactStagingToRolePayload.FromString(one.role_payload).staged_name,
        )
        for one in Stager.create_job_resources(options, str(folder))
    ]


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
