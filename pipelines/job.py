"""What every job that publishes a release shares: where it comes from and goes to, its checks, its key, its run."""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import os
import sys
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from importlib import metadata
from typing import Any, ClassVar

import apache_beam as beam
from apache_beam.io.filesystem import BeamIOError
from apache_beam.io.filesystems import FileSystems
from apache_beam.options.pipeline_options import GoogleCloudOptions

from sfumato.pipelines.options import RunnerSettings, add_runner_arguments
from sfumato.pipelines.progress import show_progress
from sfumato.pipelines.scratch import BYTES_PER_ROW, scratch
from sfumato.schemas.errors import RequestError
from sfumato.schemas.locations import Columns
from sfumato.schemas.release import MANIFEST_FORMAT
from sfumato.transforms.files import is_remote
from sfumato.transforms.locations.read import inspect_file
from sfumato.transforms.privacy.keys import RunKey, Secret
from sfumato.transforms.privacy.secrets import FileSecret, entropy_secret, seed_secret
from sfumato.transforms.release.facts import ReleaseFacts
from sfumato.transforms.release.store import check_output, open_release


@dataclass(frozen=True, kw_only=True)
class ReleaseRequest(ABC):
    """One run of a job, checked as far as it can be before any work. Jobs add their own fields.

    Raises RequestError where two options contradict each other.
    """

    JOB: ClassVar[str]
    FORMAT: ClassVar[str] = MANIFEST_FORMAT  # of the manifest that the job writes

    input: str
    output: str
    key_file: str | None = None
    seed: int | None = None
    release_id: str | None = None
    overwrite: bool = False

    def __post_init__(self) -> None:
        if self.key_file is not None and self.seed is not None:
            raise RequestError("key_file and seed: give one of them, not both")
        if self.release_id is not None and not self.release_id.replace("-", "").replace("_", "").isalnum():
            raise RequestError(f"release_id: letters, digits, - and _ only, got {self.release_id!r}")

    @abstractmethod
    def source(self) -> Columns:
        """The columns that the job reads, which know what types they may have."""

    @abstractmethod
    def parameters(self) -> dict[str, Any]:
        """Everything that the result depends on, in JSON's types: the manifest states it, the key is bound to it."""

    def stored_bytes(self, rows: int) -> int:
        """How much bulky data between stages to expect of so many rows."""
        return rows * BYTES_PER_ROW

    def check_rows(self, rows: int) -> None:  # noqa: B027  (a job may support any number)
        """Raises DataError where so many rows, a bound on the users, cannot support a release."""


@dataclass(frozen=True)
class Inputs:
    """What is read: files, the kinds of values that columns hold (see Columns.check), and a place for Spill or None."""

    paths: list[str]
    kinds: dict[str, str]
    spill: str | None


# (pipeline, inputs, key, facts) -> the published folder's path
Build = Callable[[beam.Pipeline, Inputs, RunKey, ReleaseFacts], beam.PCollection]


def add_release_arguments(parser: argparse.ArgumentParser, noun: str = "release") -> None:
    """Adds the options of ReleaseRequest, and those that say where a job runs. noun: what it writes."""
    parser.add_argument("--input", required=True, metavar="PATTERN", help="Parquet files, local or gs://")
    parser.add_argument("--output", required=True, metavar="FOLDER", help=f"where the {noun} goes, local or gs://")
    parser.add_argument("--key_file", metavar="FILE", help="secret of 16 bytes or more; default: fresh entropy")
    parser.add_argument("--seed", type=int, help="UNSAFE: a key that anybody can guess, for tests and demos")
    parser.add_argument("--release_id", metavar="ID", help=f"name of the {noun}; default: a random one")
    parser.add_argument("--overwrite", action="store_true", help=f"replace the {noun} that stands at the output")
    parser.add_argument("--verbose", action="store_true", help="show operations data (rows read and dropped)")
    add_runner_arguments(parser)


def release_options(options: argparse.Namespace) -> dict[str, Any]:
    """The fields of ReleaseRequest that the command line gave."""
    return {field.name: getattr(options, field.name) for field in fields(ReleaseRequest)}


def run_release(request: ReleaseRequest, settings: RunnerSettings, build: Build, *, verbose: bool = False) -> None:
    """Checks the request against the world, then builds the graph, runs it to the end, and repeats its warnings.

    Prints the path of the release's page. Raises RequestError or DataError.
    """
    job = f"sfumato {request.JOB}"
    if settings.in_cloud:
        _check_reach(request)
    if settings.options.view_as(GoogleCloudOptions).template_location:
        raise RequestError(
            "template_location: a template would draw the same noise at every launch, whatever the data, and the "
            "differences would expose users; start the job itself instead"
        )
    check_output(request.output, request.overwrite, request.FORMAT)
    files = match_files(request.input)
    paths = [path for path, _, _ in files]
    source = request.source()
    with ThreadPoolExecutor(16) as pool:
        facts_of_files = list(pool.map(lambda path: inspect_file(path, source), paths))
    _check_kinds(paths, [one.kinds for one in facts_of_files])
    rows = sum(one.rows for one in facts_of_files)
    request.check_rows(rows)
    key, facts = key_and_facts(request, files, settings)
    settings = settings.sized(rows)
    sys.stderr.write(f"{job}: {len(paths)} file{'s'[: len(paths) != 1]} to read\n")
    with (
        scratch(settings, request.stored_bytes(rows)) as spill,
        show_progress(len(paths), verbose),
        settings.pipeline() as root,
    ):
        build(root, Inputs(paths, facts_of_files[0].kinds, spill), key, facts)
    with contextlib.suppress(RequestError):  # a dry run publishes nothing
        for warning in open_release(request.output).manifest["warnings"]:
            sys.stderr.write(f"{job}: warning: {warning}\n")
    sys.stdout.write(f"{FileSystems.join(request.output, 'index.html')}\n")


def _check_kinds(paths: list[str], kinds: list[dict[str, str]]) -> None:
    """Raises RequestError where a column holds one kind of values in some files and another in others."""
    for path, found in zip(paths, kinds, strict=True):
        for column, kind in found.items():
            if kind != kinds[0][column]:
                raise RequestError(
                    f"column {column!r} holds {kinds[0][column]} in {paths[0]} and {kind} in {path}; what is in both "
                    "would count twice, so convert one kind to the other"
                )


def _check_reach(request: ReleaseRequest) -> None:
    """Raises RequestError for a place on this machine's disk, which workers in the cloud cannot reach."""
    for field in ("input", "output", "key_file"):
        path = getattr(request, field)
        if path is not None and not is_remote(path):
            raise RequestError(f"{field}: Dataflow's workers cannot reach {path!r}; name a place in a bucket, gs://...")


def match_files(pattern: str) -> list[tuple[str, int, float]]:
    """Path, bytes and time of change of every file that matches, sorted. Raises RequestError where none does."""
    try:
        matches = FileSystems.match([pattern])
    except (BeamIOError, ValueError) as error:
        raise RequestError(f"input: {pattern!r} cannot be listed ({error})") from None
    found = [one for match in matches for one in match.metadata_list]
    for one in found:
        if os.path.isdir(one.path):
            raise RequestError(f"input: {one.path} is a folder; give '{one.path}/*.parquet'")
    if not found:
        raise RequestError(f"input: no file matches {pattern!r}")
    return sorted((one.path, one.size_in_bytes, one.last_updated_in_seconds or 0.0) for one in found)


def content_digest(path: str) -> str:
    """A digest of a file's content: SHA-256 of a local file, the store's own checksum in a bucket."""
    if is_remote(path):
        return str(FileSystems.checksum(path))
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def key_and_facts(
    request: ReleaseRequest, files: list[tuple[str, int, float]], settings: RunnerSettings
) -> tuple[RunKey, ReleaseFacts]:
    """The run's key, bound to the secret and the whole request, and what the release says of itself."""
    parameters = {"input": request.input, **request.parameters()}
    secret: Secret
    if request.seed is not None:
        secret, source = seed_secret(request.seed), "seed"
        release_id = request.release_id or f"seed-{request.seed}"
    elif request.key_file is not None:
        secret, source = FileSecret(request.key_file), "key file"
        secret.read()  # a bad key file is a bad request
        release_id = request.release_id or uuid.uuid4().hex
    else:
        secret, source = entropy_secret(), "operating system"
        release_id = request.release_id or uuid.uuid4().hex
        if not settings.local:
            raise RequestError(
                "key_file: a remote runner would carry the key in the job's graph, where others can read it; "
                "put a secret in a file that only the workers can read and name it with --key_file"
            )
    # The fingerprint stays out of the release: sizes and times of files are facts about the data.
    fingerprint: list[Any] = [list(file) for file in files]
    if request.key_file is not None and request.release_id is not None:
        # Only here does nothing random tell two runs apart, so the fingerprint must see every change of the data.
        fingerprint = [[*file, content_digest(file[0])] for file in files]
    scheme = {"job": request.JOB, "sfumato": metadata.version("sfumato")}
    key = RunKey.derive(secret, {**scheme, "release_id": release_id, "files": fingerprint, **parameters})
    facts = ReleaseFacts(
        job=request.JOB,
        release_id=release_id,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        randomness=source,
        safe=request.seed is None,
        parameters=parameters,
    )
    return key, facts
