"""Keys as earlier versions derived them, with an unkeyed digest of the request: pinned results were made with them."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from sfumato.transforms.privacy.keys import FixedSecret, RunKey


def earlier_key(secret: bytes, request: dict[str, Any]) -> RunKey:
    """The key of earlier versions for a request."""
    text = json.dumps(request, sort_keys=True, separators=(",", ":"))
    now = RunKey.derive(FixedSecret(secret), request)
    return RunKey(now.secret, hashlib.sha256(text.encode()).digest(), now.secret_check)
