"""The key of a run and all that it is bound to (`key_binding`), and the metadata of the run's release."""

from __future__ import annotations

import os
import uuid
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from sfumato.pipelines.frame.inputs import InputFile, content_fingerprint, times_notice, with_rows
from sfumato.pipelines.frame.job import ReleaseJob
from sfumato.schemas.errors import RequestError
from sfumato.schemas.release import PAGE_FILE
from sfumato.transforms.io.files import is_remote
from sfumato.transforms.privacy.keys import RunKey, Secret
from sfumato.transforms.privacy.secrets import FileSecret, entropy_secret, seed_secret
from sfumato.transforms.release.metadata import ReleaseMetadata, code_digest, package_versions


def key_and_metadata(
    job: ReleaseJob, files: Sequence[InputFile], *, local: bool, audit: bool = False
) -> tuple[RunKey, ReleaseMetadata]:
    """Returns the run's key, bound to the secret and to `key_binding`, and the release's metadata.

    Args:
        job: the job.
        files: the input; none for the elements of a pipeline, which are known only when it runs.
        local: whether the graph stays in this process, so that it may hold a secret.
        audit: whether the key is not bound to the files, so that runs on neighbouring logs have equal noise. Their
            releases state that they protect nobody.

    Raises RequestError: the secret cannot be used, or a remote runner has none.
    """
    request = job.request
    secret = secret_of(job, local)
    release_id = request.release_id or (uuid.uuid4().hex if request.seed is None else f"seed-{request.seed}")
    key = RunKey.derive(secret, key_binding(job, [] if audit else files, release_id))
    notice = times_notice(request, files, job.columns())
    metadata = ReleaseMetadata(
        job=request.JOB,
        release_id=release_id,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        randomness=secret.source,
        safe=request.seed is None and not audit,
        parameters=job.parameters(),
        timeline=timeline_link(request.output, job.request.timeline),
        geography=job.geography,
        corrects=request.corrects,
        title=request.title,
        times=notice and notice[0],
        code=code_digest(),
    )
    return key, metadata


def key_binding(job: ReleaseJob, files: Sequence[InputFile], release_id: str) -> dict[str, Any]:
    """Returns all that a run's key is bound to but the secret, in JSON's types. This is the one list of it.

    Two runs that differ in any of it have independent noise. Two runs that differ in nothing draw the same noise, so
    their exact sums must be the same too: otherwise the difference of the releases would have no noise.

    - `job`, and the parameters by name: the options that shape the numbers (`ReleaseRequest.shaping`, which takes every
      option that a job adds, so that none is forgotten), `min_users`, and what the job makes of them
      (`ReleaseJob.stated`: columns, gamma, groups, the digests of an earlier map, of zones and of a tuner).
    - `release_id`: random unless it is given or there is a seed.
    - `files`: their content where the run `is_repeatable`; otherwise names, sizes and times, because then the secret or
      the release id is random (but for a seed, which protects nobody). For the elements of a pipeline see `LogsOfKey`.
    - `versions` of Python and of packages, and `code`, the digest of sfumato's sources; with a seed only the versions.

    Not bound, because no number depends on it: where a run takes place and writes, the ledger, and what a page shows
    around the numbers (title, basemap, tiles, timeline).

    Keys for one use are derived from the run's (`RunKey.narrowed`, `RunKey.subkey`). They are bound to more where noisy
    counts decide what is queried (`ShardQuery.bind`), or where a transform is also used without a job (`bind_key` of
    heatmaps, `stated` of moments, `metadata` of ranges).
    """
    # The fingerprint stays out of the release: sizes and times of files are facts about the data.
    fingerprint: list[Any] = [[file.path, file.size, file.changed] for file in files]
    if job.is_repeatable:
        # This key has no random part, so two runs on different data must differ in their fingerprint. And a copy of the
        # same data, with other names or times, must have the same fingerprint, so that it resumes a crashed run.
        fingerprint = content_fingerprint(with_rows(files, job.columns()), job.columns())
    return {
        "job": job.request.JOB,
        "versions": package_versions(),
        # Other code may add the same noise to other numbers. A seed protects nobody: it is for equal results for ever.
        "code": None if job.request.seed is not None else code_digest(),
        "release_id": release_id,
        "files": fingerprint,
        **job.parameters(),
    }


def secret_of(job: ReleaseJob, local: bool) -> Secret:
    """Returns the secret of a run. Raises RequestError for a bad one."""
    if job.request.seed is not None:
        return seed_secret(job.request.seed)
    if job.kept_secret is not None:
        if isinstance(job.kept_secret, FileSecret):
            job.kept_secret.check_private()
        job.kept_secret.read()  # raises RequestError for a bad key
        return job.kept_secret
    if local:
        return entropy_secret()
    raise RequestError(
        "key_file: a remote runner would carry the key in the job's graph, where others can read it; put a "
        "secret where only the workers can read it, and name it with --key_file or --key_secret"
    )


def timeline_link(output: str, timeline: str | None) -> str | None:
    """Returns the relative address of the timeline's page, seen from a release's page; None where there is none."""
    if timeline is None or is_remote(output) != is_remote(timeline):
        return None
    return os.path.relpath(f"{timeline}/{PAGE_FILE}", output).replace(os.sep, "/")
