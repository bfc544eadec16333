"""Publishing as the last stages of a job, so that a job that nobody waits for still publishes and keeps its books."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import apache_beam as beam

from sfumato.schemas.errors import LedgerError
from sfumato.schemas.ledger import Reservation
from sfumato.schemas.release import MANIFEST_FILE
from sfumato.transforms.metrics import RELEASE_BYTES, RELEASE_TIME
from sfumato.transforms.privacy.ledger.places import open_ledger
from sfumato.transforms.release.metadata import ReleaseMetadata
from sfumato.transforms.release.reading import open_release
from sfumato.transforms.release.store import clear_lost, is_refusal, publish, standing_manifest, with_digests


def charged(metadata: ReleaseMetadata) -> ReleaseMetadata:
    """The facts of a release with the entry of the ledger that charged it, once the run has passed its gate.

    Without a ledger the facts as they are. Raises LedgerError where the ledger does not know the release.
    """
    if metadata.ledger_place is None:
        return metadata
    reservation = open_ledger(metadata.ledger_place).history().reservations.get(metadata.release_id)
    if reservation is None:
        raise LedgerError(f"ledger: {metadata.ledger_place} does not hold the charge of {metadata.release_id} any more")
    return replace(
        metadata, created=reservation.time, ledger=ledger_metadata(reservation), published=reservation.manifest
    )


class WriteRelease(beam.PTransform):
    """A singleton {file name: content} -> the published folder's path. Safe to retry.

    Raises LedgerError, and publishes nothing, where another result was published under the same charge before.
    """

    def __init__(self, output: str, metadata: ReleaseMetadata, overwrite: bool):
        super().__init__()
        self._output = output
        self._metadata = metadata
        self._overwrite = overwrite

    def expand(self, files: beam.PCollection) -> beam.PCollection:
        def write(content: dict[str, bytes], output: str, metadata: ReleaseMetadata, overwrite: bool) -> str:
            content = with_digests(content)
            check_same_result(content, charged(metadata))
            with RELEASE_TIME.timed():
                publish(output, content, metadata.release_id, overwrite)
            RELEASE_BYTES.record(sum(map(len, content.values())))
            return output

        return files | "Publish" >> beam.Map(write, self._output, self._metadata, self._overwrite)


def check_same_result(files: Mapping[str, bytes], metadata: ReleaseMetadata) -> None:
    """Raises LedgerError where another result than this one was published under the same charge before."""
    if metadata.published not in (None, hashlib.sha256(files[MANIFEST_FILE]).hexdigest()):
        raise LedgerError(
            f"ledger: release {metadata.release_id} has been published before, and this run differs from it"
        )


def ledger_metadata(reservation: Reservation) -> dict[str, Any]:
    """What a release's manifest says of the entry that charged it: by the hash it vouches for the ledger."""
    charge = reservation.charge
    return {
        "entry": reservation.index,
        "hash": reservation.hash,
        "dataset": charge.dataset,
        "first_day": str(charge.period.first),
        "last_day": str(charge.period.last),
    }


def published_digest(output: str, reservation: Reservation) -> str | None:
    """The SHA-256 of the manifest at `output` if it is of the release that was reserved, else None. Raises OSError.

    A refusal is no release.
    """
    manifest = standing_manifest(output)
    if manifest is None or is_refusal(manifest):
        return None
    try:
        ours = json.loads(manifest)["ledger"]["hash"] == reservation.hash
    except (ValueError, TypeError, KeyError):
        return None
    return hashlib.sha256(manifest).hexdigest() if ours else None


class CommitRelease(beam.PTransform):
    """The published folder's path -> the same, once what is kept beside releases says so too. Safe to retry.

    timeline: the folder whose page of all releases is brought up to date. ledger: a ledger's place, in which the
    release is noted as published, if it charged it.
    """

    def __init__(self, release_id: str, timeline: str | None = None, ledger: str | None = None):
        super().__init__()
        self._books = release_id, timeline, ledger

    def expand(self, published: beam.PCollection) -> beam.PCollection:
        return published | "Note" >> beam.Map(close_books, *self._books)

    def close(self, output: str) -> str:
        """The same at once, without a pipeline."""
        return close_books(output, *self._books)


def close_books(output: str, release_id: str, timeline: str | None, ledger: str | None) -> str:
    """Notes in the ledger that the reserved release stands at `output`, then updates the timeline. Returns `output`.

    Raises LedgerError where a file of the release is not the one that its manifest lists.
    """
    reservation = None if ledger is None else open_ledger(ledger).history().reservations.get(release_id)
    if ledger is not None and reservation is not None:
        digest = published_digest(output, reservation)
        if digest is not None:
            if damage := open_release(output).damage():
                raise LedgerError(
                    f"ledger: {'; '.join(damage)}; put it back from a copy, or move the folder away and run again"
                )
            open_ledger(ledger).commit(reservation.charge.release_id, digest)
            clear_lost(output, reservation.charge.release_id)
    if timeline is not None:
        from sfumato.transforms.release.timeline import update_timeline  # which most runs do without

        update_timeline(timeline, ledger)
    return output
