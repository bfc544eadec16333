"""Dataflow up to Google's door: jobs submitted to a stub, and Flex templates, which fit the program."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import re
import runpy
import shlex
import shutil
import subprocess
import sys
import tarfile
import textwrap
import tomllib
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import yaml
from apache_beam.io.filesystems import FileSystems
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.portability.api import beam_runner_api_pb2
from apache_beam.runners.portability.stager import Stager
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

from sfumato.pipelines.command_line import cli
from sfumato.pipelines.command_line.cli import parse_command
from sfumato.schemas.requests.commands import RefreshRequest
from sfumato.transforms.io.files import read_file
from sfumato.transforms.privacy.keys import RunKey
from sfumato.transforms.privacy.ledger.ledger import open_ledger
from sfumato.transforms.privacy.secrets import FileSecret
from sfumato.transforms.release.published_release import open_release
from tests import ROOT
from tests.conftest import make_logs, write_files
from tests.dataflow import Dataflow, dataflow, run_graph
from tests.jobs.runners.test_dataflow import dofns, run_key
from tests.keys import SECRET
from tests.leaks import holds
from tests.storage import BUCKET, names, put, storage_emulator, upload

# Dataflow up to Google's door: jobs staged in an emulated bucket and submitted to a stub, Flex templates launched.
# The stub runs the graph that was staged, on this machine.

DAY = "2026-11-20"
DONE = ("JOB_STATE_PENDING", "JOB_STATE_RUNNING", "JOB_STATE_DONE")
FAILED = (*DONE[:2], "JOB_STATE_FAILED")
FOLDERS = ("api", "schemas", "transforms", "pipelines", "runner_configs")
FILES = ("setup.py", "pyproject.toml", "MANIFEST.in", "README.md", "CHANGELOG.md", "LICENSE")


@pytest.fixture(scope="module", autouse=True)
def bucket(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A bucket with a key and a day's logs."""
    folder = tmp_path_factory.mktemp("logs")
    write_files(make_logs(900, 1, seed=0), folder, 2)
    with storage_emulator():
        put(f"{BUCKET}/key", SECRET)
        upload(folder, f"{BUCKET}/logs/dt={DAY}")
        yield


@pytest.fixture(scope="module")
def running() -> Iterator[Dataflow]:
    with dataflow() as stub:
        yield stub


def renew(running: Dataflow) -> None:
    """Makes a stub as it was: a job will be done, and none was made yet."""
    running.states, running.errors, running.polls, running.runs = DONE, (), 0, True
    running.created.clear()


@pytest.fixture
def stub(running: Dataflow) -> Dataflow:
    renew(running)
    return running


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of what a checkout holds, since to build a package leaves traces beside setup.py."""
    folder = tmp_path_factory.mktemp("checkout")
    for name in FOLDERS:
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in FILES:
        shutil.copy(ROOT / name, folder / name)
    return folder


def command(stub: Dataflow, output: str, *more: str) -> list[str]:
    return [
        "heatmap", "--input", f"{BUCKET}/logs/dt={DAY}/*.parquet", "--output", f"{BUCKET}/{output}",
        "--region", "-1,50,1,51", "--depth", "6", "--shard_size", "300", "--key_file", f"{BUCKET}/key",
        "--runner_config", "dataflow", "--project", "test-project", "--temp_location", f"{BUCKET}/{output}-temp",
        *stub.arguments, *more,
    ]  # fmt: skip


def small(stub: Dataflow, output: str) -> list[str]:
    """A job whose graph is quickly built."""
    start = ["quantiles", "--column", "latitude", "--range", "50,51", "--method", "interactive", "--bits", "4"]
    heatmap = command(stub, output)
    cut = heatmap.index("--region")
    return [*start, *heatmap[1:cut], *heatmap[heatmap.index("--key_file") :]]


def books(name: str) -> list[str]:
    """Options that charge a ledger of this name."""
    return ["--ledger", f"{BUCKET}/{name}-ledger", "--dataset", "taxis", "--period", DAY, "--budget", "10/365d"]


def run(arguments: list[str]) -> int:
    """The exit status of the command's process: an error that nobody has caught ends it with 1."""
    try:
        return cli.main(arguments)
    except Exception:  # noqa: BLE001
        sys.excepthook(*sys.exc_info())
        return 1


# --- what is submitted ---


@pytest.fixture(scope="module")
def submitted(running: Dataflow, checkout: Path) -> tuple[str, dict[str, Any], dict[str, bytes]]:
    """Path and content of the request that made the job, and the staged files by name."""
    renew(running)  # another test may have come first
    setup = ["--setup_file", str(checkout / "setup.py"), "--release_id", "monday"]
    shipped = (ROOT / "runner_configs" / "dataflow.yaml").read_text()
    (checkout / "europe.yaml").write_text(f"{shipped}region: europe-west1\n")
    arguments = command(running, "submitted", *books("submitted"), *setup)
    arguments[arguments.index("dataflow")] = str(checkout / "europe.yaml")
    assert run(arguments) == 0
    ((path, job),) = running.created
    prefix = f"{BUCKET}/submitted-temp"
    staged = {name.rpartition("/")[2]: read_file(f"{prefix}/{name}") for name in names(prefix)}
    return path, job, staged


def test_the_graph_is_staged_where_the_job_says(submitted: Any) -> None:
    _, job, staged = submitted
    assert job["environment"]["sdkPipelineOptions"]["options"]["pipelineUrl"].endswith("/pipeline.pb")
    graph = beam_runner_api_pb2.Pipeline.FromString(staged["pipeline.pb"])
    assert run_key(graph).secret == FileSecret(f"{BUCKET}/key")
    assert any(name.startswith("CommitRelease") for name in dofns(graph))  # the job itself closes its books


def test_the_staged_package_is_whole(submitted: Any) -> None:
    _, job, staged = submitted
    packages = {one["name"] for one in job["environment"]["workerPools"][0]["packages"]}
    assert "workflow.tar.gz" in packages <= staged.keys()
    with tarfile.open(fileobj=io.BytesIO(staged["workflow.tar.gz"])) as archive:
        found = {name.partition("/")[2] for name in archive.getnames()}
    code = {str(path.relative_to(ROOT)) for name in FOLDERS[:4] for path in (ROOT / name).rglob("*.py")}
    assert len(code) > 100
    assert code <= found
    needed = {
        str(path.relative_to(ROOT)) for end in ("html", "css", "js") for path in (ROOT / "transforms").rglob(f"*.{end}")
    }
    needed |= {str(path.relative_to(ROOT)) for path in (ROOT / "runner_configs").glob("*.yaml")}
    assert needed <= found
    assert not [name for name in found if name.startswith(("tests/", "benchmarks/", "runner_configs/dataflow/"))]


def test_no_secret_leaves_the_bucket_it_lies_in(submitted: Any) -> None:
    _, job, staged = submitted
    key: RunKey = run_key(beam_runner_api_pb2.Pipeline.FromString(staged["pipeline.pb"]))
    sent = [json.dumps(job).encode(), *staged.values(), gzip.decompress(staged["workflow.tar.gz"])]
    for secret in (SECRET, key._key, key.subkey("users"), key.subkey("ledger")):
        assert not any(holds(data, secret) for data in sent)
    assert any(holds(data, f"{BUCKET}/key".encode()) for data in sent)  # so the search looks where it stands


def test_the_graph_publishes_and_keeps_the_books_itself(submitted: Any) -> None:
    """Its last stages do, on workers, whether or not anybody waits for the job."""
    standing = open_ledger(f"{BUCKET}/submitted-ledger").history().reservations["monday"]
    release = open_release(f"{BUCKET}/submitted")
    assert release.manifest["ledger"]["hash"] == standing.hash
    assert standing.manifest == hashlib.sha256(read_file(f"{BUCKET}/submitted/manifest.json")).hexdigest()
    assert release.density.sum() == pytest.approx(1)


def test_a_job_that_is_done_without_a_release_is_no_success(stub: Dataflow, capsys: Any) -> None:
    stub.runs = False
    assert run(command(stub, "nothing")) == 1
    assert "the runner reports success, but there is no release at" in capsys.readouterr().err


# --- the guide ---


def test_the_guides_commands_for_google_cloud(
    stub: Dataflow, checkout: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every command of the guide, with another bucket's name, against emulator and stubs."""
    from tests.secret_manager import secret_manager

    place = f"{BUCKET}/guide"
    section = (ROOT / "docs" / "how_to" / "google_cloud.md").read_text()
    text = section.replace("\\\n", " ").replace("gs://my-bucket", place)
    commands = [shlex.split(line)[1:] for line in text.splitlines() if line.startswith("    sfumato ")]
    assert [command[0] for command in commands] == ["synth", "refresh", "ledger", "ledger"]
    settings = yaml.safe_load((ROOT / "runner_configs" / "schedules" / "refresh.yaml").read_text())
    del settings["key_file"]
    name = re.search(r"`key_secret: (\S+)`", section)[1]  # type: ignore[index]
    put(f"{place}/refresh.yaml", yaml.safe_dump({**settings, "key_secret": name, "ledger": "ledger"}).encode())
    monkeypatch.chdir(checkout)
    with secret_manager({name: SECRET}):
        for arguments in commands:
            beam = stub.arguments if arguments[0] == "refresh" else []
            assert run([*arguments, *beam]) == 0, capsys.readouterr().err
    told = capsys.readouterr().out
    assert f"{place}/published/releases/2026-11-20/index.html" in told
    assert "1 release charged as stated, and unchanged" in told
    assert len(stub.created) == 1
    published = names(f"{place}/published")
    assert {"index.html", "latest.json", "releases/2026-11-20/manifest.json"} <= set(published)


# --- how it ends ---


@pytest.mark.parametrize(
    "states",
    [FAILED, (*DONE[:2], "JOB_STATE_CANCELLED"), ("JOB_STATE_DRAINED",)],
)
def test_a_job_that_is_not_done_is_no_success(stub: Dataflow, capfd: Any, states: tuple[str, ...]) -> None:
    stub.states, stub.errors = states, ("Workflow failed.",)
    assert run(small(stub, f"ended-{'-'.join(states)}")) == 1
    told = capfd.readouterr()
    assert "index.html" not in told.out
    assert states[-1].removeprefix("JOB_STATE_") in told.err


@pytest.mark.parametrize(
    ("raised", "status", "told"),
    [
        ("DataError: logs: too few users", 1, "logs: too few users"),
        ("RequestError: key_file: gs://b/key cannot be read (FileNotFoundError)", 2, "key_file: gs://b/key cannot be"),
        ("LedgerError: ledger: gs://b/ledger has later entries but no entry 3", 4, "no entry 3"),
        ("NotReadyError: ledger: gs://b/ledger cannot be reached now", 75, "cannot be reached now"),
    ],
)
def test_a_workers_error_reaches_the_user(stub: Dataflow, capsys: Any, raised: str, status: int, told: str) -> None:
    trace = (
        f'Traceback (most recent call last):\n  File "worker.py", line 1, in process\nsfumato.schemas.errors.{raised}'
    )
    stub.states = FAILED
    stub.errors = (
        f"{trace} [while running 'Heatmap/BoundUsers-ptransform-42']\n",
        "Workflow failed. Causes: S01:Paths failed., The job failed because a work item has failed 4 times.",
    )
    assert run(small(stub, "workers-error")) == status
    error = capsys.readouterr().err
    assert told in error
    assert "Traceback" not in error
    assert "ptransform" not in error


# --- Flex templates ---


class Launch:
    """What Google's launcher does: runs the image's program with the template's parameters and its own."""

    def __init__(self, stub: Dataflow, name: str, patch: pytest.MonkeyPatch):
        self.stub, self.name, self.patch = stub, name, patch
        self.job = f"{BUCKET}/{name}-staging/template_launches/2026-11-21_05_00_00-1/job_object"
        config = {
            "dataset": name,
            "input": "logs",
            "output": f"{name}-published",
            "ledger": f"{name}-ledger",
            "key_file": "key",
            "budget": [{"epsilon": 4, "days": 1}],
            "options": {"region": [-1, 50, 1, 51], "depth": 6, "epsilon": 4, "shard_size": 300, "dropout": 0.4},
            "runner_config": "dataflow",
        }
        put(f"{BUCKET}/{name}.yaml", yaml.safe_dump(config).encode())

    def __call__(self, **parameters: str) -> int:
        options = {
            "runner": "DataflowRunner", "project": "test-project", "region": "europe-west1", "job_name": "nightly",
            "staging_location": f"{BUCKET}/{self.name}-staging", "temp_location": f"{BUCKET}/{self.name}-temp",
            "template_location": self.job, "config": f"{BUCKET}/{self.name}.yaml", "sdk_container_image": "a/b:1",
            **parameters,
        }  # fmt: skip
        program = ROOT / "runner_configs" / "dataflow" / "launch.py"
        arguments = [f"--{name}={value}" for name, value in options.items()]
        with self.patch.context() as patch:
            patch.setenv("FLEX_TEMPLATE_PYTHON_PY_FILE", str(program))
            patch.setattr(sys, "argv", [str(program), *arguments, *self.stub.arguments])
            with pytest.raises(SystemExit) as ended:
                runpy.run_path(str(program), run_name="__main__")
        return int(ended.value.code or 0)

    @property
    def reservations(self) -> dict[str, Any]:
        return dict(open_ledger(f"{BUCKET}/{self.name}-ledger").history().reservations)

    def graph(self) -> Any:
        """The graph that Dataflow starts once the launcher is done."""
        job = json.loads(read_file(self.job))
        assert job["name"] == "nightly"
        assert job["environment"]["workerPools"][0]["sdkHarnessContainerImages"][0]["containerImage"] == "a/b:1"
        place = job["environment"]["sdkPipelineOptions"]["options"]["pipelineUrl"]
        return beam_runner_api_pb2.Pipeline.FromString(read_file(place))

    def run(self) -> None:
        """What Dataflow does then: runs it."""
        run_graph(json.loads(read_file(self.job)))


@pytest.fixture
def launch(stub: Dataflow, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Launch:
    return Launch(stub, request.node.name.replace("_", "-"), monkeypatch)


def test_launch_hands_over_a_graph_that_charges(launch: Launch, stub: Dataflow, capsys: Any) -> None:
    assert launch(date=DAY) == 0
    told = capsys.readouterr()
    assert "handed to Dataflow, which publishes" in told.err
    assert "index.html" not in told.out  # there is none yet
    assert stub.created == []  # Dataflow starts the job itself
    assert launch.reservations == {}
    assert names(f"{BUCKET}/{launch.name}-published") == []
    steps = dofns(launch.graph())
    assert any(name.startswith("Write") for name in steps)
    assert any(name.startswith("CommitRelease") for name in steps)
    assert not holds(read_file(launch.job), SECRET)
    launch.run()
    (published,) = launch.reservations.values()
    release = open_release(f"{BUCKET}/{launch.name}-published/releases/{DAY}")
    assert release.manifest["ledger"]["hash"] == published.hash
    assert release.digest == published.manifest


def test_launches_after_one_that_failed_resume_and_then_rest(
    launch: Launch, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert launch(date=DAY) == 0
    key = run_key(launch.graph())
    assert launch(date=DAY) == 0  # the first graph was never run: nothing is charged, and the noise is the same
    assert launch.reservations == {}
    again = run_key(launch.graph())
    assert (again.request_digest, again.secret) == (key.request_digest, key.secret)

    create = FileSystems.create

    def fail(path: str, *more: Any) -> Any:
        if f"{launch.name}-published/" in path:
            raise OSError("the bucket is full")
        return create(path, *more)

    # This job fails after it has charged.
    with monkeypatch.context() as patch:
        patch.setattr(FileSystems, "create", fail)
        with pytest.raises(Exception, match="the bucket is full"):
            launch.run()
    (first,) = launch.reservations.values()
    assert first.manifest is None
    assert launch(date=DAY) == 0  # nothing more is charged, and the noise is the same
    assert list(launch.reservations.values()) == [first]
    again = run_key(launch.graph())
    assert (again.request_digest, again.secret) == (key.request_digest, key.secret)
    # A run on this machine resumes what the job charged.
    arguments = ["refresh", "--config", f"{BUCKET}/{launch.name}.yaml", "--date", DAY, "--runner_config", "direct"]
    assert cli.main(arguments) == 0
    (published,) = launch.reservations.values()
    assert (published.index, published.hash) == (first.index, first.hash)
    assert published.manifest is not None
    release = open_release(f"{BUCKET}/{launch.name}-published/releases/{DAY}")
    assert release.manifest["ledger"]["hash"] == first.hash
    # So does the graph that was handed over, however late: it is the same release, byte for byte.
    launch.run()
    assert list(launch.reservations.values()) == [published]
    assert open_release(release.path).digest == release.digest == published.manifest
    # Another launch finds it, and hands over a graph with nothing to do.
    capsys.readouterr()
    assert launch(date=DAY) == 0
    assert "already published; nothing was charged" in capsys.readouterr().err
    assert list(launch.reservations.values()) == [published]
    assert not any(name.startswith(("Heatmap/", "Write", "CommitRelease")) for name in dofns(launch.graph()))


def test_a_launch_without_data_or_budget_hands_over_nothing(launch: Launch, capsys: Any) -> None:
    assert launch(date="2026-11-19") == 75
    assert "no data for 2026-11-19" in capsys.readouterr().err
    config = yaml.safe_load(read_file(f"{BUCKET}/{launch.name}.yaml"))
    config["budget"] = [{"epsilon": 3, "days": 1}]
    put(f"{BUCKET}/{launch.name}.yaml", yaml.safe_dump(config).encode())
    assert launch(date=DAY) == 3
    assert launch.reservations == {}
    assert not FileSystems.exists(launch.job)


def test_a_launch_of_many_days_is_refused(launch: Launch, capsys: Any) -> None:
    """Only the last one's graph would be started."""
    assert launch(backfill=f"{DAY}:2026-11-21") == 2
    assert "backfill: " in capsys.readouterr().err
    assert launch.reservations == {}


# --- what workers install ---


@pytest.mark.slow
def test_the_staged_package_works_in_a_clean_environment(submitted: Any, tmp_path: Path) -> None:
    """As on a worker: pip installs the package and all it needs, from the package index."""
    _, _, staged = submitted
    package = tmp_path / "workflow.tar.gz"
    package.write_bytes(staged["workflow.tar.gz"])
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "clean"], check=True)
    binaries = tmp_path / "clean" / "bin"

    def call(*arguments: str | Path) -> str:
        done = subprocess.run(
            [binaries / arguments[0], *arguments[1:]],
            cwd=tmp_path,
            env={"PATH": os.environ["PATH"], "HOME": os.environ["HOME"]},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-3000:]
        return done.stdout

    call("pip", "install", "--disable-pip-version-check", package)
    assert call("sfumato", "--version") == f"sfumato {metadata.version('sfumato')}\n"
    code = """
        import importlib, pkgutil, sfumato
        assert "clean" in sfumato.__path__[0]
        found = [one.name for one in pkgutil.walk_packages(sfumato.__path__, "sfumato.")]
        for name in found:
            importlib.import_module(name)
        print(len(found))
    """
    assert int(call("python", "-c", textwrap.dedent(code))) > 100
    logs = write_files(make_logs(900, 1, seed=0), tmp_path / "logs", 2)
    place = ["--input", logs, "--output", tmp_path / "out", "--region", "-1,50,1,51", "--depth", "6"]
    call("sfumato", "heatmap", *place, "--shard_size", "300", "--dropout", "0.4", "--epsilon", "4")
    assert open_release(tmp_path / "out").density.sum() == pytest.approx(1)


# The Flex template's files fit the program: Dockerfile, parameters, the commands of their README.

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
