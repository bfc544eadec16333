"""`sfumato key new FILE`: makes the secret behind the noise of a release."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Sequence

from sfumato.pipelines.options import JobParser
from sfumato.transforms.privacy.secrets import SECRET_BYTES, create_key_file


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's options."""
    parser.add_argument("action", choices=("new",), help="new: make a key")
    parser.add_argument("file", metavar="FILE", help="a new local file; what exists is not overwritten")


def run(arguments: Sequence[str]) -> int:
    """Runs the command. Raises RequestError."""
    parser = JobParser("key", __doc__)
    parser.epilog = None
    add_arguments(parser)
    options = parser.parse_args(arguments)
    create_key_file(options.file)
    sys.stdout.write(
        f"{options.file}: a new key of {SECRET_BYTES} random bytes, which only you may read\n"
        f"Use it with: --key_file {shlex.quote(options.file)} --release_id ID, or as key_file of `sfumato refresh`.\n"
        "Keep a copy in a safe place: a run that stopped resumes only under the same key.\n"
        "Show it to nobody: who has the key and a release can take the noise away.\n"
    )
    return 0


if __name__ == "__main__":
    from sfumato.pipelines.cli import command

    sys.exit(command(["key", *sys.argv[1:]]))
