"""Publishing as the last steps of a job. A job that nobody waits for still publishes and updates its ledger.

A *charge* is what a release costs: its epsilon and delta for a period of a dataset. A *reservation* is the ledger's
entry of a charge, written before noise is drawn. To *commit* a release is to record the digest of its manifest in the
ledger, after it was published. From then on the charge can publish nothing else.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from sfumato.schemas.errors import LedgerError
from sfumato.schemas.ledger import Reservation
from sfumato.schemas.release import MANIFEST_FILE
from sfumato.transforms.observability.metrics import RELEASE_BYTES, RELEASE_TIME
from sfumato.transforms.privacy.ledger.ledger import open_ledger
from sfumato.transforms.release.metadata import ReleaseMetadata
from sfumato.transforms.release.published_release import open_release
from sfumato.transforms.release.release_folder import (
    clear_lost,
    is_notice,
    manifest_at,
    publish,
    sync_release,
    with_digests,
)


def with_charge_statement(metadata: ReleaseMetadata) -> ReleaseMetadata:
    """Returns the metadata with a statement of the charge that `ChargeAndAdmit` made. It charges nothing.

    The statement has the ledger's entry, the time of the charge, and the digest of the manifest published under it, if
    any. Without a ledger the metadata are unchanged.

    Raises LedgerError if the ledger does not hold the charge, or the release was taken down.
    """
    if metadata.ledger_location is None:
        return metadata
    reservation = open_ledger(metadata.ledger_location).history().reservations.get(metadata.release_id)
    if reservation is None:
        raise LedgerError(
            f"ledger: {metadata.ledger_location} no longer contains the charge of release {metadata.release_id}"
        )
    if reservation.removal is not None:  # a repeated bundle of the run, or a run that was slower
        raise LedgerError(f"ledger: release {metadata.release_id} was taken down and cannot be published again")
    return replace(
        metadata,
        created=reservation.time,
        ledger=ledger_metadata(reservation),
        published_manifest_digest=reservation.manifest,
    )


def write_release(files: Mapping[str, bytes], output: str, metadata: ReleaseMetadata, overwrite: bool) -> str:
    """Publishes a release, and the map's geography. Returns the folder's path.

    A retry is safe: one key gives the same files, and `publish` does nothing where the same release is already there.

    Args:
        files: content by name.
        output: the release's folder.
        metadata: the release's identity.
        overwrite: whether to replace a release that exists at `output`.

    Raises LedgerError if another result was published under the same charge before. Nothing is published then.
    """
    content = with_digests({**metadata.geography_files, **files})
    check_same_result(content, with_charge_statement(metadata))
    is_charged = metadata.ledger_location is not None
    with RELEASE_TIME.timed():
        publish(output, content, metadata.release_id, overwrite, is_charged)
    RELEASE_BYTES.record(sum(map(len, content.values())))
    return output


def check_same_result(files: Mapping[str, bytes], metadata: ReleaseMetadata) -> None:
    """Raises LedgerError if another result was published under the same charge before."""
    if metadata.published_manifest_digest not in (None, hashlib.sha256(files[MANIFEST_FILE]).hexdigest()):
        raise LedgerError(f"ledger: release {metadata.release_id} has been published before with a different result")


def ledger_metadata(reservation: Reservation) -> dict[str, Any]:
    """Returns the manifest's entry `ledger`. Its hash makes a rewritten or truncated ledger visible."""
    charge = reservation.charge
    return {
        "entry": reservation.index,
        "hash": reservation.hash,
        "dataset": charge.dataset,
        "first_day": str(charge.period.first),
        "last_day": str(charge.period.last),
        **({} if charge.rotation is None else {"partition": charge.rotation.partition}),
        **({"also_charged": [[name, str(days)] for name, days in charge.also_charged]} if charge.also_charged else {}),
    }


def published_digest(output: str, reservation: Reservation) -> str | None:
    """Returns the SHA-256 of the manifest at `output` if it is the reserved release's, no notice. Raises OSError."""
    manifest = manifest_at(output)
    if manifest is None or is_notice(manifest):
        return None
    try:
        ours = json.loads(manifest)["ledger"]["hash"] in reservation.hashes
    except (ValueError, TypeError, KeyError):
        return None
    return hashlib.sha256(manifest).hexdigest() if ours else None


def is_published(output: str, reservation: Reservation) -> bool:
    """Returns whether the reserved release is at `output`, complete and unchanged. Raises OSError."""
    if published_digest(output, reservation) is None:
        return False
    return reservation.pruned is not None or not open_release(output).damage()


def commit_release(output: str, release_id: str, timeline: str | None, ledger: str | None) -> str:
    """Commits the release at `output` to the ledger if the ledger charged it, then updates the timeline.

    Nothing is committed where `output` holds no release of this charge, but a refusal or the release of another run.
    A charge that the ledger lacks is no error here: `write_release` has raised it before anything was published. A
    retry is safe: it commits the same digest again and writes the same page.

    Args:
        output: the release's folder.
        release_id: the release.
        timeline: folder whose page of all releases is updated; None without one.
        ledger: location of the ledger that charged the release; None without one.

    Returns `output`. Raises LedgerError if a file of the release is not the one that its manifest lists.
    """
    reservation = None if ledger is None else open_ledger(ledger).history().reservations.get(release_id)
    if ledger is not None and reservation is not None:
        digest = published_digest(output, reservation)
        if digest is not None:
            damage = [] if reservation.pruned is not None else open_release(output).damage()
            if damage:
                raise LedgerError(
                    f"ledger: {'; '.join(damage)}; run the job again: the release is restored under its charge"
                )
            sync_release(output)  # a loss of power must not take back what the ledger calls published
            open_ledger(ledger).commit(reservation.charge.release_id, digest)
            clear_lost(output, reservation.charge.release_id)
    if timeline is not None:
        # Imported here because it loads matplotlib, which most runs and both nightly commands do without.
        from sfumato.transforms.release.release_index import update_timeline

        update_timeline(timeline, ledger)
    return output
