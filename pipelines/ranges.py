"""`sfumato ranges`: a model of how many people are in any square, its answers, and what chooses its cells."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence

from sfumato.schemas.errors import RequestError

COMMANDS = {
    "build": "publish a private model of location logs that answers range queries",
    "answer": "answer the squares of a file by a published model",
    "tune": "learn on public data which cell width is best",
}


def run(arguments: Sequence[str]) -> int:
    """Runs one of the commands. Raises RequestError or DataError."""
    if not arguments or arguments[0] in ("-h", "--help"):
        sys.stdout.write(_usage())
        return 0 if arguments else 2
    command, *rest = arguments
    if command not in COMMANDS:
        raise RequestError(f"no command named {command!r}; there are: {', '.join(COMMANDS)}")
    return int(importlib.import_module(f"sfumato.pipelines.ranges_{command}").run(rest))


def _usage() -> str:
    width = max(map(len, COMMANDS))
    commands = "\n".join(f"  {name:<{width}}  {text}" for name, text in COMMANDS.items())
    usage = "usage: sfumato ranges COMMAND [options]"
    return f"{usage}\n\ncommands:\n{commands}\n\nsfumato ranges COMMAND --help tells its options.\n"


if __name__ == "__main__":
    from sfumato.pipelines.cli import command

    sys.exit(command(["ranges", *sys.argv[1:]]))
