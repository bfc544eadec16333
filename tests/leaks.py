"""Whether a secret is in some bytes, in any form in which Beam packs it."""

from __future__ import annotations

import base64
import bz2
import re
import zlib
from collections.abc import Iterator


def layers(data: bytes) -> Iterator[bytes]:
    """The bytes, and all that is packed in them: Beam pickles functions, compresses and base64-encodes them, nested."""
    yield data
    for packed in re.findall(rb"(?:Qlpo|eN)[A-Za-z0-9+/]{16,}={0,2}", data):  # how bz2 and zlib data begin in base64
        raw = base64.b64decode(packed[: len(packed) // 4 * 4])
        unpack = bz2.BZ2Decompressor() if raw.startswith(b"BZh") else zlib.decompressobj()
        try:
            inner = unpack.decompress(raw)
        except (OSError, zlib.error):  # it only looked like it
            continue
        yield from layers(inner)


def forms(secret: bytes) -> list[bytes]:
    """A secret as it is, in hexadecimal, as a Python literal, and in base64 at any offset."""
    found = [secret, secret.hex().encode(), secret.hex().upper().encode(), repr(secret)[2:-1].encode()]
    for offset in range(3):
        inner = secret[offset:]
        inner = inner[: len(inner) // 3 * 3]
        found += [base64.b64encode(inner), base64.urlsafe_b64encode(inner)]
    return found


def holds(data: bytes, secret: bytes) -> bool:
    return any(form in layer for layer in layers(data) for form in forms(secret))
