"""The key of a run, bound to the secret, the complete request and the data, and the metadata of its release."""

from __future__ import annotations

import os
import uuid
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from sfumato.pipelines.frame.inputs import InputFile, content_fingerprint, with_rows
from sfumato.pipelines.frame.job import ReleaseJob
from sfumato.pipelines.runners.runner_settings import RunnerSettings
from sfumato.schemas.errors import RequestError
from sfumato.schemas.release import PAGE_FILE
from sfumato.transforms.io.files import is_remote
from sfumato.transforms.privacy.keys import RunKey, Secret
from sfumato.transforms.privacy.secrets import FileSecret, entropy_secret, seed_secret
from sfumato.transforms.release.metadata import ReleaseMetadata, code_digest, package_versions


def key_and_metadata(
    job: ReleaseJob, files: Sequence[InputFile], settings: RunnerSettings
) -> tuple[RunKey, ReleaseMetadata]:
    """The run's key, bound to the secret and the complete request, and the release's metadata."""
    request = job.request
    parameters = job.parameters()
    secret: Secret
    if request.seed is not None:
        secret, source = seed_secret(request.seed), "seed"
        release_id = request.release_id or f"seed-{request.seed}"
    else:
        release_id = request.release_id or uuid.uuid4().hex
        if job.kept_secret is not None:
            secret, source = job.kept_secret, "key file" if request.key_secret is None else "Secret Manager"
            if isinstance(secret, FileSecret):
                secret.check_private()
            secret.read()  # raises RequestError for a bad key
        elif settings.local:
            secret, source = entropy_secret(), "operating system"
        else:
            raise RequestError(
                "key_file: a remote runner would carry the key in the job's graph, where others can read it; put a "
                "secret where only the workers can read it, and name it with --key_file or --key_secret"
            )
    # The fingerprint stays out of the release: sizes and times of files are facts about the data.
    fingerprint: list[Any] = [[file.path, file.size, file.changed] for file in files]
    if job.is_repeatable:
        # This key has no random part, so two runs on different data must differ in their fingerprint. And a copy of the
        # same data, with other names or times, must have the same fingerprint, so that it resumes a crashed run.
        fingerprint = content_fingerprint(with_rows(files, job.columns()), job.columns())
    # Other code may add the same noise to other numbers. A seed protects nobody, and gives the same result for ever.
    code = None if request.seed is not None else code_digest()
    scheme = {"job": request.JOB, "versions": package_versions(), "code": code}
    key = RunKey.derive(secret, {**scheme, "release_id": release_id, "files": fingerprint, **parameters})
    metadata = ReleaseMetadata(
        job=request.JOB,
        release_id=release_id,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        randomness=source,
        safe=request.seed is None,
        parameters=parameters,
        timeline=timeline_link(request.output, job.request.timeline),
        geography=job.geography,
        corrects=request.corrects,
        code=code_digest(),
    )
    return key, metadata


def timeline_link(output: str, timeline: str | None) -> str | None:
    """The relative address of the timeline's page, seen from a release's page; None where there is none."""
    if timeline is None or is_remote(output) != is_remote(timeline):
        return None
    return os.path.relpath(f"{timeline}/{PAGE_FILE}", output).replace(os.sep, "/")
