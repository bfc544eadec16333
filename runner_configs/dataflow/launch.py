"""The program of the Flex template: runs `sfumato refresh` with the template's parameters."""

import sys

from sfumato.pipelines.command_line.cli import command

if __name__ == "__main__":
    sys.exit(command(["refresh", *sys.argv[1:]]))
