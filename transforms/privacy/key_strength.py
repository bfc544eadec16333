"""Tests that refuse weak keys. Pure.

Each test refuses random bytes with a known, small probability. For 32 random bytes, raw, in hexadecimal or in base64,
all tests together refuse with a probability below 1e-9 (see tests/attacks/test_weak_keys.py). The tests find keys that
were not drawn at random: zeros, repeated or counted bytes, words. No test can show that a key was random.
"""

from __future__ import annotations

import base64
import binascii
import itertools
import math
import string

MIN_SECRET_BYTES = 16
_LEVEL = 1e-10  # probability of refusing random symbols, of each of the two tests that count symbols
_PRINTABLE = frozenset(string.printable.encode())
_BASE64 = len(string.ascii_letters) + 12  # 10 digits, two signs


def key_weakness(secret: bytes) -> str | None:
    """Returns what is wrong with a key.

    Args:
        secret: the content of a key file. White space around text is ignored.

    Returns:
        A phrase for an error message, which reveals the key's length at most; None for a good key.
    """
    if len(secret) < MIN_SECRET_BYTES:
        return f"holds {len(secret)} bytes; a secret needs {MIN_SECRET_BYTES} or more"
    symbols, alphabet, random_bytes = _symbols(secret)
    if alphabet == 0:
        return "holds text that is neither hexadecimal nor base64 of random bytes"
    if random_bytes < MIN_SECRET_BYTES:
        return f"holds text that stands for {random_bytes} bytes; a secret needs {MIN_SECRET_BYTES} or more"
    steps = bytes((after - before) % 256 for before, after in itertools.pairwise(symbols))
    for found in (symbols, steps) if alphabet == 256 else (symbols,):
        if few_distinct_probability(len(found), len(set(found)), alphabet) <= _LEVEL:
            return "is not random: the same few bytes, or steps between bytes, again and again"
    return None


def few_distinct_probability(length: int, distinct: int, alphabet: int) -> float:
    """Bounds the probability that `length` random symbols have at most `distinct` different values.

    A union bound over all sets of `distinct` symbols: C(alphabet, distinct) (distinct / alphabet)^length.
    """
    if distinct >= alphabet:
        return 1.0
    return min(1.0, math.exp(math.log(math.comb(alphabet, distinct)) + length * math.log(distinct / alphabet)))


def _symbols(secret: bytes) -> tuple[bytes, int, int]:
    """Returns the symbols to test, the size of their alphabet (0 for other text), and the number of bytes encoded."""
    if not _PRINTABLE.issuperset(secret):
        return secret, 256, len(secret)
    text = secret.strip()
    try:
        decoded = bytes.fromhex(text.decode())
        return decoded, 256, len(decoded)
    except ValueError:
        pass
    body = text.rstrip(b"=")
    try:
        decoded = base64.b64decode(body + b"=" * (-len(body) % 4), altchars=_sign_characters(body), validate=True)
    except binascii.Error:
        return b"", 0, 0
    if body.islower() or body.isupper():  # ordinary text; base64 of random bytes has both cases
        return b"", 0, 0
    return body[: len(decoded) * 4 // 3], _BASE64, len(decoded)


def _sign_characters(body: bytes) -> bytes:
    """Returns the last two characters of this base64 alphabet: the URL-safe or the standard ones."""
    return b"-_" if set(body) & set(b"-_") else b"+/"
