"""The heatmap's options on a command line, for every command that takes them: one value each, or several."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from typing import Any

from sfumato.transforms.heatmap.options import Option


def add_heatmap_arguments(parser: argparse.ArgumentParser, options: Mapping[str, Option], *, many: bool) -> None:
    """Adds the options; those of methods stand in groups of their own. many: values are separated by commas."""
    groups: dict[tuple[str, ...], Any] = {(): parser}
    for name, option in options.items():
        if option.methods not in groups:
            groups[option.methods] = parser.add_argument_group(f"options of method {', '.join(option.methods)}")
        group, text = groups[option.methods], option.text().replace("%", "%%")  # argparse fills in what follows a %
        if option.kind is bool:
            group.add_argument(f"--{name}", action="store_true", help=text)
        else:
            read, metavar = (option.read_list, f"{option.metavar},...") if many else (option.read, option.metavar)
            group.add_argument(f"--{name}", type=_explained(read), metavar=metavar, help=text)


def _explained(read: Callable[[str], Any]) -> Callable[[str], Any]:
    """The reader with errors of which argparse keeps the words."""

    def explained(text: str) -> Any:
        try:
            return read(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return explained


def lists_of(values: Mapping[str, Any], options: Mapping[str, Option]) -> dict[str, list[Any]]:
    """The values of the options that were given, of a command line on which they may have several."""
    given = {name: values[name] for name in options if values[name] is not None and values[name] is not False}
    return {name: [True] if value is True else value for name, value in given.items()}


def names_of(text: str) -> list[str]:
    """The names in a list separated by commas."""
    return [name.strip() for name in text.split(",")]
