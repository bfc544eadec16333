"""A second person's approval of looser limits: a signature by the key that the ledger names as its approver's. Pure.

Whoever may write to a ledger can append entries. A signature decides which of them count: everybody who reads the
ledger checks it by the approver's public key, and nobody can make one without the approver's secret. It is bound to
the entry before it, so it cannot be used again, later or in another ledger.

Source: Ed25519, RFC 8032.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from sfumato.schemas.ledger import ADD_OR_REMOVE, REPLACE, ZERO_OUT, Limit
from sfumato.transforms.privacy.keys import Secret

APPROVAL = "approval"
KEY_DIGITS = 16  # of a public key that messages show
_LABEL = b"sfumato ledger approver"
# The adjacencies of the charges that a limit bounds, by the limit's own (see windows.convert_adjacency).
_BOUNDED = {
    ADD_OR_REMOVE: {ADD_OR_REMOVE},
    ZERO_OUT: {ADD_OR_REMOVE, ZERO_OUT},
    REPLACE: {ADD_OR_REMOVE, ZERO_OUT, REPLACE},
}


@dataclass(frozen=True)
class ApproverKey:
    """The key of the person who approves looser limits.

    Attributes:
        secret: the content of their key file, from which the signing key is derived.
    """

    secret: Secret

    @cached_property
    def _signing_key(self) -> Ed25519PrivateKey:
        return Ed25519PrivateKey.from_private_bytes(hmac.digest(self.secret.read(), _LABEL, hashlib.sha256))

    @property
    def public_key(self) -> str:
        """The public key: 64 hexadecimal digits. Raises what reading the secret raises."""
        return self._signing_key.public_key().public_bytes_raw().hex()

    def approval(self, previous: str, content: Mapping[str, Any]) -> str:
        """Returns the signature of an entry's content: 128 hexadecimal digits.

        Args:
            previous: hash of the entry before it.
            content: of the entry, in JSON's types, without the approval.
        """
        return self._signing_key.sign(_signed_bytes(previous, content)).hex()


def is_public_key(text: object) -> bool:
    """Returns whether a text is the public key of an approver."""
    if not isinstance(text, str) or len(text) != 64:
        return False
    try:
        Ed25519PublicKey.from_public_bytes(bytes.fromhex(text))
    except ValueError:
        return False
    return text == text.lower()


def is_approved(public_key: str, previous: str, content: Mapping[str, Any]) -> bool:
    """Returns whether an entry's content holds an approval by the holder of a key.

    Args:
        public_key: of the approver.
        previous: hash of the entry before it.
        content: of the entry, perhaps with an approval.
    """
    signed = {name: value for name, value in content.items() if name != APPROVAL}
    try:
        signature = bytes.fromhex(content[APPROVAL])
        Ed25519PublicKey.from_public_bytes(bytes.fromhex(public_key)).verify(signature, _signed_bytes(previous, signed))
    except (KeyError, TypeError, ValueError, InvalidSignature):
        return False
    return True


def is_looser(before: Sequence[Limit], after: Sequence[Limit]) -> bool:
    """Returns whether new limits of a dataset may allow a charge that the limits before them refuse.

    They may not if every limit before is implied by one of the new limits, of the same adjacency, at most its epsilon
    and delta, and at least its days; and if they bound no charges of another adjacency than before. A charge that no
    limit bounds is refused.

    Args:
        before: the limits in force; empty for a new dataset, which may spend nothing.
        after: the limits to come.
    """
    bounded, were_bounded = (
        {adjacency for limit in limits for adjacency in _BOUNDED[limit.adjacency]} for limits in (after, before)
    )
    return not bounded <= were_bounded or not all(any(_implies(one, old) for one in after) for old in before)


def _implies(new: Limit, old: Limit) -> bool:
    """Whether every choice of charges that keeps the new limit keeps the old one."""
    same = new.adjacency == old.adjacency
    return same and new.epsilon <= old.epsilon and new.delta <= old.delta and new.days >= old.days


def _signed_bytes(previous: str, content: Mapping[str, Any]) -> bytes:
    body = {"purpose": _LABEL.decode(), "previous": previous, "content": content}
    return json.dumps(body, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()
