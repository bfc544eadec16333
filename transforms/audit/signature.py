"""Signatures of an audit's report: Ed25519 (RFC 8032) over the bytes of the file, in a file of their own. Pure.

A reader needs no sfumato to verify one: openssl reads the same keys and the same 64 bytes.
"""

from __future__ import annotations

import json
from typing import Any

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import load_pem_private_key, load_pem_public_key

from sfumato.schemas.errors import RequestError

SUFFIX = ".sig"  # of the signature's file, after the report's name


def sign(report: bytes, private_key: bytes) -> bytes:
    """Returns the signature of a report, 64 bytes. private_key: PEM. Raises RequestError for any other key."""
    try:
        key = load_pem_private_key(private_key, password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm):  # TypeError: it is encrypted
        key = None
    if not isinstance(key, Ed25519PrivateKey):
        raise RequestError("sign: must be an Ed25519 private key in PEM without a password; see docs/how_to/audit.md")
    return key.sign(report)


def verified(report: bytes, signature: bytes, public_key: bytes) -> dict[str, Any] | None:
    """Returns the content of a report; None if the owner of the key did not sign it, or it is no JSON object.

    public_key: PEM. Raises RequestError for any other key.
    """
    try:
        key = load_pem_public_key(public_key)
    except (ValueError, UnsupportedAlgorithm):
        key = None
    if not isinstance(key, Ed25519PublicKey):
        raise RequestError("auditor: must be an Ed25519 public key in PEM; see docs/how_to/audit.md")
    try:
        key.verify(signature, report)
        content = json.loads(report)
    except (InvalidSignature, ValueError):
        return None
    return content if isinstance(content, dict) else None
