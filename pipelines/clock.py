"""The clock next to the times that a ledger states. Releases and the ledger's entries state the clock's time."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from sfumato.transforms.privacy.ledger.history import History

_MAX_SKEW = timedelta(seconds=60)
_LONGEST_PAUSE = timedelta(days=31)  # between two charges of a series that runs


def _newest_time(history: History) -> datetime | None:
    """Returns the newest time that the ledger states; None without entries."""
    stated = [one.time for one in (*history.refusals, *history.reservations.values())]
    times = [datetime.fromisoformat(text) for text in (*stated, *(change.time for change in history.changes))]
    return max((one if one.tzinfo else one.replace(tzinfo=UTC) for one in times), default=None)


def slow_clock(history: History) -> str | None:
    """Returns what is wrong with a clock that is earlier than the ledger's newest entry; None for any other."""
    now, newest = datetime.now(UTC), _newest_time(history)
    if newest is None or newest - now <= _MAX_SKEW:
        return None
    return f"it says {now:%F %T}, and the ledger's newest entry is of {newest:%F %T} (UTC); set the clock"


def fast_clock(history: History) -> str | None:
    """Returns the doubt about a clock that is long after the ledger's newest entry; None for any other."""
    now, newest = datetime.now(UTC), _newest_time(history)
    if newest is None or now - newest <= _LONGEST_PAUSE:
        return None
    return (
        f"it says {now:%F %T} (UTC), {(now - newest).days} days after the ledger's newest entry; unless nothing was "
        "published in between, set the clock"
    )
