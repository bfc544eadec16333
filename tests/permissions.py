"""Permissions of files that apply to root too, so that a test of an unreadable folder is the same for every user."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager

_VERSION_3 = 0x20080522
_OVERRIDES = 0b1110  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH, CAP_FOWNER


@contextmanager
def permissions_hold() -> Iterator[None]:
    """Gives up this thread's right to ignore permissions, and takes it back at the end."""
    if os.geteuid() != 0:
        yield
        return
    libc = ctypes.CDLL(None, use_errno=True)
    header, held = (ctypes.c_uint32 * 2)(_VERSION_3, 0), (ctypes.c_uint32 * 6)()
    assert libc.capget(header, held) == 0
    less = (ctypes.c_uint32 * 6)(held[0] & ~_OVERRIDES, *held[1:])  # the first is the effective set
    assert libc.capset(header, less) == 0
    try:
        yield
    finally:
        assert libc.capset(header, held) == 0
