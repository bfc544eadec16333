"""Small releases that a ledger charged, without a run: what the attacks on ledger and releases start from."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sfumato.schemas.ledger import Limit, Reservation, format_amount
from sfumato.transforms.privacy.ledger.history import entry_bytes, read_entries
from sfumato.transforms.privacy.ledger.ledger import Ledger
from sfumato.transforms.privacy.ledger.stores import SqliteStore
from sfumato.transforms.release.publishing import commit_release, ledger_metadata
from sfumato.transforms.release.release_folder import publish
from tests.unit.privacy.ledger.helpers import charge, ledger

LIMITS = Limit.parse_all("1/1d,10/365d")


def chained(entries: Sequence[bytes], *more: tuple[str, dict[str, Any]]) -> list[bytes]:
    """Entries of a ledger and more of these kinds and contents, as somebody who may write to it can chain them."""
    made = list(entries)
    for kind, content in more:
        head = read_entries(made)[-1]["hash"] if made else "0" * 64
        made.append(entry_bytes(len(made), head, "2026-11-21T03:00:00+00:00", "nonce", kind, content))
    return made


def entries_of(folder: Path) -> list[bytes]:
    """The entries of the ledger in a folder."""
    return SqliteStore(str(folder / "ledger.db")).read()


def manifest_of(reservation: Reservation) -> dict[str, Any]:
    """The least that a manifest says."""
    one = reservation.charge
    return {
        "format": "sfumato-release/2",
        "release_id": one.release_id,
        "job": one.job,
        "created": reservation.time,
        "privacy": {"epsilon": float(format_amount(one.epsilon)), "delta": float(format_amount(one.delta))},
        "ledger": ledger_metadata(reservation),
    }


def publish_release(
    folder: Path, release_id: str, day: str, place: str | None = None, limits: Sequence[Limit] = LIMITS, **more: Any
) -> Path:
    """Charges the ledger in the folder, publishes two files beside the manifest, and notes it in the ledger."""
    book: Ledger = ledger(folder)
    reservation = book.reserve(charge(release_id, day, **more), limits)
    output = folder / (place or f"out/releases/{day}")
    manifest = manifest_of(reservation)
    files = {
        "density.npy": f"density {release_id}".encode(),
        "cells.parquet": f"cells {release_id}".encode(),
        "index.html": b"<!doctype html>",
        "manifest.json": (json.dumps(manifest, indent=2) + "\n").encode(),
    }
    publish(str(output), files, release_id, overwrite=True)
    commit_release(str(output), release_id, None, str(folder / "ledger.db"))
    return output
