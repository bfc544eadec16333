"""Chunks of one batch of records by user group, as the stage of the readers makes them of many."""

from __future__ import annotations

from collections.abc import Iterator

from sfumato.transforms.locations.encode import EncodedLocations
from sfumato.transforms.locations.spill import Spill
from sfumato.transforms.locations.users import UserGroups


def split_by_user_group(batch: EncodedLocations, spill: Spill) -> Iterator[tuple[int, bytes]]:
    """Splits a batch by user group; see `UserGroups.chunks`."""
    groups = UserGroups(spill)
    groups.add(batch)
    yield from groups.chunks()
