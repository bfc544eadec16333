"""Hybrid public key encryption (RFC 9180), in the one suite that DAP requires: X25519, HKDF-SHA256 and AES-128-GCM."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey

from sfumato.schemas.errors import RequestError

if TYPE_CHECKING:
    from pyhpke import CipherSuite, KEMKeyInterface

KEY_SIZE = ENC_SIZE = 32
OVERHEAD = 16  # bytes by which a payload is longer than its plaintext
_PRIME = (1 << 255) - 19
KEM_ID, KDF_ID, AEAD_ID = 0x0020, 0x0001, 0x0001


@lru_cache(maxsize=1)
def suite() -> CipherSuite:
    """Returns the cipher suite. Raises RequestError: the library is not installed."""
    try:
        from pyhpke import AEADId, CipherSuite, KDFId, KEMId
    except ImportError:
        raise RequestError("split: requires pyhpke; run: pip install '.[split]'") from None
    return CipherSuite.new(KEMId(KEM_ID), KDFId(KDF_ID), AEADId(AEAD_ID))


def public_key(private: bytes) -> bytes:
    """Returns the public key of a private key, 32 bytes each."""
    return X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()


def is_public_key(key: bytes) -> bool:
    """Returns whether bytes are a public key, in its one encoding: no point of small order, which gives no secret."""
    if len(key) != KEY_SIZE or int.from_bytes(key, "little") >= _PRIME:
        return False
    try:
        X25519PrivateKey.from_private_bytes(bytes(KEY_SIZE)).exchange(X25519PublicKey.from_public_bytes(key))
    except ValueError:
        return False
    return True


def seal(
    public: bytes,
    info: bytes,
    associated: bytes,
    plaintext: bytes,
    secret: bytes | None = None,
    sender: bytes | None = None,
) -> tuple[bytes, bytes]:
    """Returns the encapsulated key, 32 bytes, and the encrypted plaintext.

    Args:
        public: key of the receiver.
        info: what the message is for; who opens it states the same.
        associated: data that the message is bound to.
        plaintext: of any length.
        secret: 32 secret bytes that no other message has, so that a repeated run seals the same bytes; None for new
            ones of the operating system.
        sender: private key by which the receiver knows who sealed it; None for an anonymous sender.
    """
    ephemeral = None if secret is None else suite().kem.derive_key_pair(secret)
    own = None if sender is None else suite().kem.deserialize_private_key(sender)
    receiver = suite().kem.deserialize_public_key(public)
    enc, context = suite().create_sender_context(receiver, info, sks=own, eks=ephemeral)
    return enc, context.seal(plaintext, associated)


class Opener:
    """Opens what was sealed for one private key, 32 bytes, and one purpose.

    sender: public key of the one who sealed it; None opens what is sealed without a sender's key.
    """

    def __init__(self, private: bytes, info: bytes, sender: bytes | None = None) -> None:
        self._key: KEMKeyInterface = suite().kem.deserialize_private_key(private)
        self._info = info
        self._sender = None if sender is None else suite().kem.deserialize_public_key(sender)

    def open(self, enc: bytes, associated: bytes, payload: bytes) -> bytes | None:
        """Returns the plaintext; None where keys, purpose, associated data or payload are not those of `seal`."""
        from pyhpke import PyHPKEError

        try:
            return suite().create_recipient_context(enc, self._key, self._info, self._sender).open(payload, associated)
        except (PyHPKEError, ValueError):  # ValueError: not a point, or one of small order
            return None
