"""Charges for the tests of the ledger."""

from __future__ import annotations

import multiprocessing
import sys
from datetime import UTC, datetime
from multiprocessing.context import ForkServerContext
from pathlib import Path

from sfumato.schemas.ledger import Charge, Period, parse_amount
from sfumato.transforms.privacy.ledger.ledger import Ledger
from sfumato.transforms.privacy.ledger.stores import SqliteStore


def charge(
    release_id: str,
    period: str = "2026-11-20",
    epsilon: str = "1",
    delta: str = "0",
    dataset: str = "taxis",
    **more: str,
) -> Charge:
    metadata = {"job": "heatmap", "request": "request", "binding": "binding", **more}
    return Charge(
        release_id=release_id,
        dataset=dataset,
        period=Period.parse(period),
        epsilon=parse_amount("epsilon", epsilon),
        delta=parse_amount("delta", delta),
        **metadata,
    )


def ledger(folder: Path) -> Ledger:
    """A ledger in a file, at whose place the clock stands still."""
    return Ledger(SqliteStore(str(folder / "ledger.db")), lambda: datetime(2026, 11, 21, 3, tzinfo=UTC))


def forks() -> ForkServerContext:
    """Processes that one without threads forks: a fork of this one may hang where a library has started some."""
    context = multiprocessing.get_context("forkserver")
    folder = __name__.rpartition(".")[0]
    context.set_forkserver_preload([name for name in sys.modules if name.startswith(f"{folder}.test_")])
    return context
