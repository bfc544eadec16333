"""Nights that are published once."""

from tests.refreshes import backfilled, days  # noqa: F401  (fixtures of this folder)
