"""`sfumato key new FILE`: makes the secret behind the noise of a release."""

from __future__ import annotations

import shlex
import sys

from sfumato.schemas.requests.commands import KeyRequest
from sfumato.transforms.privacy.secrets import SECRET_BYTES, create_key_file


def run(request: KeyRequest) -> None:
    """Runs the command. Raises RequestError."""
    create_key_file(request.file)
    sys.stdout.write(
        f"{request.file}: a new key of {SECRET_BYTES} random bytes, readable only by you\n"
        f"Use it with: --key_file {shlex.quote(request.file)} --release_id ID, or as key_file of `sfumato refresh`.\n"
        "Keep a copy in a safe place: an interrupted run resumes only with the same key.\n"
        "Keep it secret: the key removes the noise of its releases.\n"
    )
