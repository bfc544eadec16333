"""What a format of exported files is, and the check of what it needs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from sfumato.schemas.errors import RequestError
from sfumato.transforms.export.export_source import ExportSource


@dataclass(frozen=True)
class ExportFormat:
    """A format.

    Attributes:
        name: as `--format` has it.
        suffixes: of file names, the usual one first.
        needs: the part of a release that it is made of, one of `export_source.PARTS`.
        write: makes the content of the file, by what is added to the file's name: "" for the file itself.
    """

    name: str
    suffixes: tuple[str, ...]
    needs: str
    write: Callable[[ExportSource], dict[str, bytes]]


@contextmanager
def needs_extra(what: str) -> Iterator[None]:
    """Turns a missing library into a RequestError that names the extra to install. what: begins the message."""
    try:
        yield
    except ImportError as error:
        raise RequestError(f"{what}: requires {error.name}; run: pip install 'sfumato[export]'") from None
