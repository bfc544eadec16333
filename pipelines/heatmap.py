"""`sfumato heatmap`: an adaptive, differentially private heatmap of Parquet location logs, as one Beam job."""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import os
import sys
import uuid
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime
from importlib import metadata
from typing import Any

import apache_beam as beam
from apache_beam.io.filesystem import BeamIOError
from apache_beam.io.filesystems import FileSystems
from apache_beam.options.pipeline_options import GoogleCloudOptions

from sfumato.pipelines.options import (
    JobParser,
    RunnerSettings,
    add_runner_arguments,
    runner_settings,
)
from sfumato.pipelines.progress import show_progress
from sfumato.pipelines.scratch import scratch
from sfumato.schemas.errors import RequestError
from sfumato.schemas.locations import LocationColumns
from sfumato.schemas.region import Grid, Region
from sfumato.transforms.files import is_remote
from sfumato.transforms.heatmap.adaptive import AdaptiveHeatmap
from sfumato.transforms.heatmap.assemble import ReleaseFacts, release_files
from sfumato.transforms.heatmap.parameters import HeatmapParameters
from sfumato.transforms.heatmap.schedule import check_modulus
from sfumato.transforms.locations.read import inspect_file
from sfumato.transforms.privacy.keys import RunKey, Secret
from sfumato.transforms.privacy.secrets import FileSecret, entropy_secret, seed_secret
from sfumato.transforms.release.store import check_output, open_release
from sfumato.transforms.release.write import WriteRelease

_HELP = {
    "depth": "levels of the quadtree: the finest grid has 2^depth x 2^depth cells",
    "epsilon": "privacy budget of the whole release",
    "shard_size": "expected users a secure-aggregation shard (S)",
    "dropout": "largest share of a shard's users that may fail to answer; below that the shard is lost",
    "users": "size of the cohort that takes part; everybody where it is not given",
    "population": "number of users in the logs, where that is known from elsewhere; else it is counted privately",
    "population_share": "share of epsilon that the private count of users costs",
    "calibration": "c: noise aimed at, as a share of the users an entry has on average",
    "expansion": "b: a sub-query leaves at least (b - 1) times its own epsilon, or takes all",
    "split_threshold": "k: a node is split above k standard deviations of the noise to come",
    "start_level": "level of the uniform tree that is asked first",
    "max_sub_queries": "at most so many sub-queries; the last spends what is left",
    "overflow_chance": "chance that any shard's sum wraps around the modulus, in the whole run",
    "modulus": "auto, or the modulus m of the secure sums",
    "allow_overflow": "run with a modulus that is too small",
    "noise": "shard: a shard's noise in closed form; client: every client's share (slow)",
    "simulated_dropout": "chance that a client vanishes once the noise is decided",
    "max_bad_fraction": "fail where a larger share of the rows has no usable user or place",
}


@dataclass(frozen=True)
class HeatmapRequest:
    """One run of the job, checked as far as it can be before any work."""

    input: str
    output: str
    region: Region
    parameters: HeatmapParameters
    columns: LocationColumns
    key_file: str | None = None
    seed: int | None = None
    release_id: str | None = None
    overwrite: bool = False

    def __post_init__(self) -> None:
        if self.key_file is not None and self.seed is not None:
            raise RequestError("key_file and seed: give one of them, not both")
        if self.release_id is not None and not self.release_id.replace("-", "").replace("_", "").isalnum():
            raise RequestError(f"release_id: letters, digits, - and _ only, got {self.release_id!r}")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the job's options, one for each field of HeatmapParameters among them."""
    parser.add_argument("--input", required=True, metavar="PATTERN", help="Parquet files, local or gs://")
    parser.add_argument("--output", required=True, metavar="FOLDER", help="where the release goes, local or gs://")
    parser.add_argument("--region", required=True, metavar="W,S,E,N", help="the map's borders in degrees")
    for field in fields(HeatmapParameters):
        name, help_text = f"--{field.name}", _HELP[field.name]
        if field.name == "modulus":
            parser.add_argument(name, type=_modulus, default="auto", metavar="M", help=help_text)
        elif isinstance(field.default, bool):
            parser.add_argument(name, action="store_true", help=help_text)
        elif field.name == "noise":
            parser.add_argument(name, choices=("shard", "client"), default=field.default, help=help_text)
        else:
            kind = float if isinstance(field.default, float) else int
            parser.add_argument(name, type=kind, default=field.default, help=help_text)
    for field in fields(LocationColumns):
        parser.add_argument(f"--{field.name}_column", default=field.default, help=f"column of the {field.name}")
    parser.add_argument("--key_file", metavar="FILE", help="secret of 16 bytes or more; default: fresh entropy")
    parser.add_argument("--seed", type=int, help="UNSAFE: a key that anybody can guess, for tests and demos")
    parser.add_argument("--release_id", metavar="ID", help="name of the release; default: a random one")
    parser.add_argument("--overwrite", action="store_true", help="replace the release that stands at the output")
    parser.add_argument("--verbose", action="store_true", help="show operations data (rows read and dropped)")
    add_runner_arguments(parser)


def _modulus(text: str) -> int | str:
    return text if text == "auto" else int(text)


def run(arguments: Sequence[str]) -> int:
    """Runs the job for a command line. Raises RequestError or DataError."""
    parser = JobParser("heatmap", __doc__)
    add_arguments(parser)
    options, beam_arguments = parser.parse_known_args(arguments)
    values = vars(options)
    settings = runner_settings(options.runner_config, options.dataflow_region, beam_arguments)
    parameters = {field.name: values[field.name] for field in fields(HeatmapParameters)}
    if parameters["modulus"] == "auto":
        parameters["modulus"] = None
    request = HeatmapRequest(
        input=options.input,
        output=options.output,
        region=Region.parse(options.region),
        parameters=HeatmapParameters(**parameters),
        columns=LocationColumns(**{f.name: values[f"{f.name}_column"] for f in fields(LocationColumns)}),
        key_file=options.key_file,
        seed=options.seed,
        release_id=options.release_id,
        overwrite=options.overwrite,
    )
    run_heatmap(request, settings, verbose=options.verbose)
    sys.stdout.write(f"{FileSystems.join(request.output, 'index.html')}\n")
    return 0


def run_heatmap(request: HeatmapRequest, settings: RunnerSettings, *, verbose: bool = False) -> None:
    """Checks the request against the world, then builds the graph and runs it to the end."""
    if settings.in_cloud:
        _check_reach(request)
    if settings.options.view_as(GoogleCloudOptions).template_location:
        raise RequestError(
            "template_location: a template would draw the same noise at every launch, whatever the data, and the "
            "differences would expose users; start the job itself instead"
        )
    check_output(request.output, request.overwrite)
    check_modulus(request.parameters)
    files = match_files(request.input)
    paths = [path for path, _, _ in files]
    with ThreadPoolExecutor(16) as pool:
        facts_of_files = list(pool.map(lambda path: inspect_file(path, request.columns), paths))
    _check_id_types(request.columns.user_id, paths, [one.text_ids for one in facts_of_files])
    key, facts = key_and_facts(request, files, settings)
    rows = sum(one.rows for one in facts_of_files)
    settings = settings.sized(rows)
    sys.stderr.write(f"sfumato heatmap: {len(paths)} file{'s'[: len(paths) != 1]} to read\n")
    with (
        scratch(settings, rows) as spill,
        show_progress(len(paths), verbose),
        settings.pipeline() as root,
    ):
        build(root, request, paths, key, facts, spill)
    with contextlib.suppress(RequestError):  # a dry run publishes nothing
        for warning in open_release(request.output).manifest["warnings"]:
            sys.stderr.write(f"sfumato heatmap: warning: {warning}\n")


def _check_id_types(column: str, paths: list[str], texts: list[bool]) -> None:
    if any(texts) and not all(texts):
        raise RequestError(
            f"user_id_column: {column!r} holds integers in {paths[texts.index(False)]} and text in "
            f"{paths[texts.index(True)]}; a user in both would count twice, so convert one kind to the other"
        )


def _check_reach(request: HeatmapRequest) -> None:
    """Raises RequestError for a place on this machine's disk, which workers in the cloud cannot reach."""
    for field in ("input", "output", "key_file"):
        path = getattr(request, field)
        if path is not None and not is_remote(path):
            raise RequestError(f"{field}: Dataflow's workers cannot reach {path!r}; name a place in a bucket, gs://...")


def build(
    root: beam.Pipeline, request: HeatmapRequest, paths: list[str], key: RunKey, facts: ReleaseFacts, spill: str | None
) -> beam.PCollection:
    """The job's graph: paths -> the published folder's path."""
    return (
        root
        | "Paths" >> beam.Create(paths)
        | "Heatmap" >> AdaptiveHeatmap(request.region, request.parameters, key, request.columns, spill)  # HeatmapState
        | "Assemble" >> beam.Map(release_files, facts)  # {file name: content}
        | "Write" >> WriteRelease(request.output, facts.release_id, request.overwrite)
    )


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
    request: HeatmapRequest, files: list[tuple[str, int, float]], settings: RunnerSettings
) -> tuple[RunKey, ReleaseFacts]:
    """The run's key, bound to the secret and the whole request, and what the release says of itself."""
    parameters: dict[str, Any] = {
        "input": request.input,
        "region": asdict(request.region),
        **asdict(request.parameters),
        "columns": asdict(request.columns),
    }
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
    scheme = {"job": "heatmap", "sfumato": metadata.version("sfumato")}
    key = RunKey.derive(secret, {**scheme, "release_id": release_id, "files": fingerprint, **parameters})
    facts = ReleaseFacts(
        release_id=release_id,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        grid=Grid(request.region, request.parameters.depth),
        randomness=source,
        safe=request.seed is None,
        parameters=parameters,
    )
    return key, facts


if __name__ == "__main__":
    from sfumato.pipelines.cli import main

    sys.exit(main(["heatmap", *sys.argv[1:]]))
