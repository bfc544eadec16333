"""Keys for tests: files that jobs accept, and keys as earlier versions derived them, for results pinned with them."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from sfumato.transforms.privacy.keys import FixedSecret, RunKey

SECRET = hashlib.sha256(b"a key of the tests").digest()


def write_key(path: Path, secret: bytes = SECRET) -> None:
    """Writes a key file that its owner alone may read."""
    path.touch(0o600)
    path.write_bytes(secret)


def earlier_key(secret: bytes, request: dict[str, Any]) -> RunKey:
    """The key of earlier versions for a request."""
    text = json.dumps(request, sort_keys=True, separators=(",", ":"))
    now = RunKey.derive(FixedSecret(secret), request)
    return RunKey(now.secret, hashlib.sha256(text.encode()).digest(), now.secret_check)
