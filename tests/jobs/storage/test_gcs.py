"""Buckets: logs, key file and release on gs://, against an emulator of Google's storage on a local socket."""

from __future__ import annotations

import base64
import hashlib
import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.io.filesystem import BeamIOError
from apache_beam.io.filesystems import FileSystems
from apache_beam.runners.portability.fn_api_runner import FnApiRunner

from sfumato.pipelines.command_line import cli
from sfumato.pipelines.frame.inputs import match_files
from sfumato.schemas.errors import RequestError
from sfumato.transforms.counting.parameters import CountParameters
from sfumato.transforms.heatmap.transform import CountHeatmap
from sfumato.transforms.io.files import content_digest, write_file
from sfumato.transforms.io.storage import content_version
from sfumato.transforms.privacy.keys import FixedSecret, RunKey
from sfumato.transforms.privacy.secrets import FileSecret
from sfumato.transforms.release.published_release import open_release
from sfumato.transforms.release.release_folder import check_output, clear_lost, publish, with_digests
from tests.conftest import REGION, make_logs, write_files
from tests.jobs.inputs.test_log_reader import encoded
from tests.keys import SECRET, write_key
from tests.log_forms import write_csv, write_ndjson
from tests.storage import BUCKET, Emulator, names, put, storage_emulator, upload

Forbidden = pytest.importorskip("google.api_core.exceptions", reason="needs apache-beam[gcp]").Forbidden

RELEASE = [
    "answers.parquet",
    "basemap.json",
    "cells.parquet",
    "density.npy",
    "heatmap.png",
    "index.html",
    "manifest.json",
    "totals.parquet",
]


@pytest.fixture(scope="module", autouse=True)
def bucket() -> Iterator[Emulator]:
    with storage_emulator() as running:
        put(f"{BUCKET}/key", SECRET)
        yield running


@pytest.fixture(scope="module")
def local_logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(write_files(make_logs(1500, 2, seed=0), tmp_path_factory.mktemp("logs"), 3)).parent


@pytest.fixture(scope="module")
def logs(local_logs: Path) -> str:
    return upload(local_logs, f"{BUCKET}/logs")


def command(pattern: str, output: str | Path, *more: str) -> list[str]:
    return [
        "heatmap", "--input", pattern, "--output", str(output), "--region", "-1,50,1,51", "--depth", "6",
        "--epsilon", "4", "--shard_size", "300", "--dropout", "0.4", *more,
    ]  # fmt: skip


@pytest.fixture(scope="module")
def published(logs: str) -> str:
    """A release made of logs in the bucket, with a key in the bucket, published to the bucket."""
    output = f"{BUCKET}/published"
    assert cli.main(command(logs, output, "--key_file", f"{BUCKET}/key", "--release_id", "monday")) == 0
    return output


# --- reading ---


@pytest.mark.slow
def test_logs_in_a_bucket_give_what_local_logs_give(logs: str, local_logs: Path, tmp_path: Path) -> None:
    """A run's key depends on the files' paths, so both get the same key; one reads its secret from the bucket."""
    parameters = CountParameters(depth=6, shard_size=300, dropout=0.4, epsilon=4.0)
    local = _state(str(local_logs / "*.parquet"), parameters, FixedSecret(SECRET), tmp_path / "local")
    remote = _state(logs, parameters, FileSecret(f"{BUCKET}/key"), tmp_path / "remote")
    assert len(local.results) >= 2
    assert (remote.population, remote.shard_plan, remote.budget) == (local.population, local.shard_plan, local.budget)
    assert [one.encoding for one in remote.results] == [one.encoding for one in local.results]
    assert [one.counts.tolist() for one in remote.results] == [one.counts.tolist() for one in local.results]


def test_a_folder_of_csv_in_a_bucket_gives_what_local_files_give(tmp_path: Path) -> None:
    """Plain files in slices, and gzip through a stream that only goes forward."""
    table = make_logs(900, 2, seed=3, kind="string")
    for name in ("plain.csv", "packed.csv.gz", "lines.ndjson"):
        write = write_ndjson if name.endswith("ndjson") else write_csv
        content = write(table, tmp_path / name).read_bytes()
        write_file(
            f"{BUCKET}/texts/{name.partition('.')[0]}/day=2026-11-20/{name}", content
        )  # `put` would pack it again
        put(f"{BUCKET}/texts/{name.partition('.')[0]}/_SUCCESS", b"")
        assert encoded(f"{BUCKET}/texts/{name.partition('.')[0]}", {}) == encoded(tmp_path / name, {})


def _state(pattern: str, parameters: CountParameters, secret: Any, out: Path) -> Any:
    paths = [file.path for file in match_files(pattern)]
    assert len(paths) == 3
    with beam.Pipeline(runner=FnApiRunner()) as root:
        state = root | beam.Create(paths) | CountHeatmap(REGION, parameters, RunKey.derive(secret, {"job": "bucket"}))
        _ = state | beam.Map(lambda found: out.write_bytes(beam.coders.registry.get_coder(object).encode(found)))
    return beam.coders.registry.get_coder(object).decode(out.read_bytes())


def test_a_damaged_object_is_named_and_nothing_is_published(local_logs: Path, capsys: Any) -> None:
    pattern = upload(local_logs, f"{BUCKET}/damaged")
    whole = (local_logs / "log-1.parquet").read_bytes()
    output = f"{BUCKET}/of-damaged"
    put(f"{BUCKET}/damaged/log-1.parquet", whole[: len(whole) // 2])
    assert cli.main(command(pattern, output, "--seed", "1")) == 1
    assert "damaged/log-1.parquet: cannot be read as Parquet" in capsys.readouterr().err
    # Damage inside, with the footer intact, shows only when the data are read.
    put(f"{BUCKET}/damaged/log-1.parquet", whole[:100] + bytes(len(whole) // 3) + whole[100 + len(whole) // 3 :])
    assert cli.main(command(pattern, output, "--seed", "1")) == 1
    assert "damaged/log-1.parquet: cannot be read as Parquet" in capsys.readouterr().err
    assert names(output) == []


# --- writing ---


@pytest.mark.slow
def test_a_release_in_a_bucket_is_whole(published: str, local_logs: Path, tmp_path: Path) -> None:
    assert names(published) == RELEASE
    release = open_release(published)
    privacy = release.manifest["privacy"]
    assert release.manifest["release_id"] == "monday"
    assert privacy["randomness"] == {"source": "key file", "safe": True}
    assert privacy["epsilon_spent"] == privacy["epsilon"] == 4.0
    # The noise of many independent entries is about normal: beyond 8 standard deviations once in 1e15 runs. That of
    # the count of the users has a deviation of 1 / (sqrt(2) sinh(0.04 / 2)) = 35.
    noise = max(one["noise_stddev"] * one["vector_length"] ** 0.5 for one in privacy["sub_queries"])
    assert release.cells["count"].sum() == pytest.approx(1500, abs=8 * (noise + 35))
    assert release.density.shape == (64, 64)
    assert release.density.sum() == pytest.approx(1)
    # The same logs on a disk make a release of the same form; its noise differs, since the paths differ.
    pattern = str(local_logs / "*.parquet")
    write_key(tmp_path / "key")
    local_command = command(pattern, tmp_path / "out", "--key_file", str(tmp_path / "key"), "--release_id", "monday")
    assert cli.main(local_command) == 0
    local = open_release(tmp_path / "out")
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == RELEASE
    assert list(local.manifest) == list(release.manifest)
    assert list(local.manifest["privacy"]) == list(privacy)
    assert {**local.manifest["parameters"], "input": ""} == {**release.manifest["parameters"], "input": ""}
    assert list(local.cells.columns) == list(release.cells.columns)
    assert (local.cells.dtypes == release.cells.dtypes).all()


@pytest.mark.slow
def test_the_secret_is_in_no_object_of_the_release(published: str) -> None:
    for name in names(published):
        with FileSystems.open(f"{published}/{name}") as file:
            content = file.read()
        assert len(content) > 100
        assert SECRET not in content
        assert SECRET.hex().encode() not in content


@pytest.mark.slow
def test_an_existing_output_is_refused_and_overwrite_replaces_it(logs: str, capsys: Any) -> None:
    output = f"{BUCKET}/twice"
    publish(output, _files("old"), "old", overwrite=False)
    keyed = command(logs, output, "--key_file", f"{BUCKET}/key", "--release_id", "new")
    assert cli.main(keyed) == 2
    assert f"output: {output} already exists and contains a release of sfumato" in capsys.readouterr().err
    assert open_release(output).manifest["release_id"] == "old"
    assert cli.main([*keyed, "--overwrite"]) == 0
    assert names(output) == RELEASE
    assert open_release(output).manifest["release_id"] == "new"
    assert open_release(output).density.sum() == pytest.approx(1)


def test_a_failure_while_writing_leaves_nothing(logs: str, monkeypatch: pytest.MonkeyPatch) -> None:
    output = f"{BUCKET}/full"
    created = _fail_on_third_file(monkeypatch)
    with pytest.raises((OSError, RuntimeError), match="the bucket is full"):
        cli.main(command(logs, output, "--seed", "1"))
    assert len(created) == 3
    assert names(output) == []
    with pytest.raises(RequestError, match="no release found"):
        open_release(output)


def _fail_on_third_file(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    create, created = FileSystems.create, []

    def fail(path: str, *more: Any) -> Any:
        created.append(path)
        if len(created) == 3:
            raise OSError("the bucket is full")
        return create(path, *more)

    monkeypatch.setattr(FileSystems, "create", fail)
    return created


# --- publishing, without the job around it ---


def _files(release_id: str) -> Mapping[str, bytes]:
    manifest = json.dumps({"release_id": release_id, "format": "sfumato-release/2"}).encode()
    return {**{name: f"{name} of {release_id}".encode() for name in RELEASE}, "manifest.json": manifest}


def _content(output: str) -> dict[str, bytes]:
    found = {}
    for name in names(output):
        with FileSystems.open(f"{output}/{name}") as file:
            found[name] = file.read()
    return found


def test_the_manifest_is_placed_last(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever sees a manifest sees a whole release."""
    output, seen = f"{BUCKET}/order", []
    for step in ("create", "rename", "copy", "delete"):
        real = getattr(FileSystems, step)

        def watch(*arguments: Any, real: Any = real) -> Any:
            done = real(*arguments)
            seen.append(names(output))
            return done

        monkeypatch.setattr(FileSystems, step, watch)
    publish(output, _files("one"), "one", overwrite=False)
    assert seen
    for present in seen:
        assert "manifest.json" not in present or set(RELEASE) <= set(present)
    assert _content(output) == with_digests(_files("one"))


def test_nothing_of_what_is_replaced_is_left() -> None:
    """Neither another job's tables nor those of changes."""
    output = f"{BUCKET}/other-job"
    publish(output, {**_files("old"), "items.parquet": b"of a histogram"}, "old", overwrite=False)
    publish(output, _files("new"), "new", overwrite=True)
    assert _content(output) == with_digests(_files("new"))
    changes = {"changes.png": b"of two maps", "manifest.json": b'{"format": "sfumato-changes/1"}'}
    with pytest.raises(RequestError, match="is not a folder of changes, so --overwrite does not replace it"):
        publish(output, changes, "changes", overwrite=True)
    publish(f"{BUCKET}/changes", changes, "changes", overwrite=False)
    with pytest.raises(RequestError, match="is not a release, so --overwrite does not replace it"):
        publish(f"{BUCKET}/changes", _files("new"), "new", overwrite=True)
    assert _content(f"{BUCKET}/changes") == with_digests(changes)


def test_a_retried_bundle_does_no_harm() -> None:
    output = f"{BUCKET}/retried"
    publish(output, _files("one"), "one", overwrite=False)
    before = FileSystems.match([f"{output}/*"])[0].metadata_list
    publish(output, _files("one"), "one", overwrite=False)
    assert FileSystems.match([f"{output}/*"])[0].metadata_list == before
    with pytest.raises(RequestError, match="already exists"):
        publish(output, _files("two"), "two", overwrite=False)


def test_publish_ignores_what_a_killed_attempt_left() -> None:
    """Files without a manifest are no release, so another attempt needs no --overwrite."""
    output = f"{BUCKET}/left"
    put(f"{output}/cells.parquet", b"half")
    put(f"{output}/.partial-one-0/density.npy", b"half")
    check_output(output, overwrite=False)
    publish(output, _files("one"), "one", overwrite=False)
    assert _content(output) == with_digests(_files("one"))


def test_two_releases_at_once_never_mix(monkeypatch: pytest.MonkeyPatch) -> None:
    """While one moves its files into place another one, of another id, puts its own there: they never mix."""
    output = f"{BUCKET}/mixed"
    rename, overtaken = FileSystems.rename, []

    def overtake(sources: list[str], targets: list[str]) -> None:
        rename(sources, targets)
        if not overtaken:
            overtaken.append(True)
            put(f"{output}/density.npy", b"of another attempt")

    monkeypatch.setattr(FileSystems, "rename", overtake)
    with pytest.raises(OSError, match="another release is being written to this folder"):
        publish(output, _files("one"), "one", overwrite=False)
    with pytest.raises(RequestError, match="no release found"):
        open_release(output)
    publish(output, _files("one"), "one", overwrite=False)
    assert _content(output) == with_digests(_files("one"))


def test_slow_attempt_replaces_no_published_release(monkeypatch: pytest.MonkeyPatch) -> None:
    output = f"{BUCKET}/slow"
    create, slow = FileSystems.create, []

    def overtaken(path: str, *more: Any) -> Any:
        if not slow:
            slow.append(path)
            publish(output, _files("two"), "two", overwrite=False)
        return create(path, *more)

    monkeypatch.setattr(FileSystems, "create", overtaken)
    with pytest.raises(RequestError, match="already exists"):
        publish(output, _files("one"), "one", overwrite=False)
    assert _content(output) == with_digests(_files("two"))


def test_every_write_of_an_object_shows_in_its_version() -> None:
    put(f"{BUCKET}/version", b"content")
    first, digest = content_version(f"{BUCKET}/version"), content_digest(f"{BUCKET}/version")
    assert content_version(f"{BUCKET}/version") == first
    put(f"{BUCKET}/version", b"content")
    assert content_version(f"{BUCKET}/version") != first
    # Its digest tells the content alone: that of a copy, whatever its name, and of no other content.
    assert content_digest(f"{BUCKET}/version") == digest
    FileSystems.copy([f"{BUCKET}/version"], [f"{BUCKET}/versions/copied"])
    assert content_version(f"{BUCKET}/versions/copied") != first
    assert content_digest(f"{BUCKET}/versions/copied") == digest
    put(f"{BUCKET}/versions/copied", b"c0ntent")  # of the same size
    assert content_digest(f"{BUCKET}/versions/copied") != digest
    assert digest == f"7-{base64.b64encode(hashlib.md5(b'content').digest()).decode()}"


def test_a_lost_worker_is_in_nobodys_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """It vanished in the midst of its uploads and could not clean up; the runner tries the bundle again elsewhere."""
    output = f"{BUCKET}/lost"
    with monkeypatch.context() as patch:
        _fail_on_third_file(patch)
        patch.setattr(FileSystems, "delete", lambda paths: None)
        with pytest.raises(OSError, match="the bucket is full"):
            publish(output, _files("one"), "one", overwrite=False)
    assert names(output)
    publish(output, _files("one"), "one", overwrite=False)
    assert _content(output) == with_digests(_files("one"))


def test_what_another_attempt_deletes_meanwhile_is_deleted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two attempts clear the same leavings away: each sees an object that the other deletes before it does."""
    output = f"{BUCKET}/cleared"
    publish(output, _files("one"), "one", overwrite=False)
    left = [f"{output}/.partial-one-0/{name}" for name in ("cells.parquet", "density.npy", "index.html")]
    for path in left:
        put(path, b"left behind")
    delete, overtaken = FileSystems.delete, []

    def overtake(paths: list[str]) -> None:
        if not overtaken:
            overtaken.append(True)
            delete([left[1]])
        delete(paths)

    monkeypatch.setattr(FileSystems, "delete", overtake)
    clear_lost(output, "one")
    assert overtaken
    assert not names(f"{output}/.partial-one-0")

    def refuse(paths: list[str]) -> None:
        raise BeamIOError("Delete operation failed", {paths[0]: Forbidden("no")})

    put(left[0], b"left behind")
    monkeypatch.setattr(FileSystems, "delete", refuse)
    with pytest.raises(BeamIOError, match="Delete"):
        clear_lost(output, "one")


def test_an_unreachable_bucket_is_not_taken_for_an_empty_one(bucket: Emulator, monkeypatch: pytest.MonkeyPatch) -> None:
    output = f"{BUCKET}/unreachable"
    publish(output, _files("old"), "old", overwrite=False)

    with monkeypatch.context() as patch:
        patch.setattr(bucket, "fault", lambda method, path: 403 if path.startswith("/download/") else None)
        with pytest.raises(OSError, match="as the test wants it"):
            publish(output, _files("new"), "new", overwrite=False)
        with pytest.raises(RequestError, match="no release found"):
            open_release(output)
    assert _content(output) == with_digests(_files("old"))


# --- bad input ---


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (["--input", f"{BUCKET}/nothing/*.parquet"], f"input: no file matches '{BUCKET}/nothing/*.parquet'"),
        (["--input", f"{BUCKET}/nothing.parquet"], "input: no file matches"),
        (["--input", "gs://no-such-bucket/*.parquet"], "input: gs://no-such-bucket/*.parquet: cannot be listed"),
        (["--output", "gs://no-such-bucket/out"], "output: gs://no-such-bucket/out cannot be reached"),
        (["--output", "nowhere://bucket/out"], "output: nowhere://bucket/out cannot be reached"),
        (["--key_file", f"{BUCKET}/no-key"], f"key_file: cannot read {BUCKET}/no-key"),
        (["--key_file", f"{BUCKET}/short-key"], f"key_file: {BUCKET}/short-key contains 5 bytes"),
    ],
)
def test_bad_places_end_with_2_before_any_work(logs: str, capsys: Any, changes: list[str], message: str) -> None:
    put(f"{BUCKET}/short-key", b"short")
    output = f"{BUCKET}/of-bad-places"
    assert cli.main(command(logs, output, *changes)) == 2
    error = capsys.readouterr().err
    assert message in error
    assert "to read" not in error
    assert names(output) == []


# --- the command line, and no credentials ---

WITHOUT_ASKING = (
    "import sys\n"
    "from apache_beam.internal.gcp import auth\n"
    "auth._Credentials._credentials_init = True\n"  # the emulator wants none, and Beam would look for a minute
    "from sfumato.pipelines.command_line.cli import command\n"
    "sys.exit(command())\n"
)


@pytest.mark.slow
def test_beam_does_not_parse_the_command_line_once_more(logs: str) -> None:
    """Its parser takes `--region -1,50,1,51` for two options, and ended the README's first command on a bucket."""
    output = f"{BUCKET}/of-a-shell"
    arguments = [sys.executable, "-c", WITHOUT_ASKING, *command(logs, output, "--seed", "1")]
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert names(output) == RELEASE
