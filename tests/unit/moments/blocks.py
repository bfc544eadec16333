"""Blocks of clients for tests: a word of each client's own, from the key."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from sfumato.transforms.moments.client_values import Block
from sfumato.transforms.privacy.keys import RunKey, random_bits


def block_of(codes: NDArray[Any], groups: NDArray[Any] | None, key: RunKey, name: str = "block") -> Block:
    """Clients with these codes and groups, in the order of their places; other names give other words."""
    numbers = np.arange(len(codes), dtype=np.uint64)
    return Block.from_clients(
        codes, random_bits(key.subkey("rows", name), np.zeros_like(numbers), numbers)[:, 0], groups
    )


def without(block: Block, gone: int) -> Block:
    """The block with one client less, by rank."""
    assert block.groups is not None
    return Block(*(np.delete(column, gone) for column in (block.codes, block.random_bits, block.groups)))
