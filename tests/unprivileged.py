"""Runs as root without root's power over files, so that permissions count; a no-op for other users."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager

_VERSION_3 = 0x20080522
_OVERRIDES = 0b1110  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH, CAP_FOWNER


@contextmanager
def unprivileged() -> Iterator[None]:
    """Permissions of files hold for this thread, and for those that it starts, while the block runs."""
    libc = ctypes.CDLL(None, use_errno=True)
    header = (ctypes.c_uint32 * 2)(_VERSION_3, 0)
    before, without = (ctypes.c_uint32 * 6)(), (ctypes.c_uint32 * 6)()  # effective, permitted, inheritable; twice
    assert libc.capget(header, before) == 0
    without[:] = before
    without[0] &= ~_OVERRIDES
    assert libc.capset(header, without) == 0
    try:
        yield
    finally:
        assert libc.capset(header, before) == 0
