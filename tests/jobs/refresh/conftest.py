"""Places to refresh, and series of nights that are published once."""

from tests.refreshes import backfilled, days, month, nights, place  # noqa: F401  (fixtures of this folder)
