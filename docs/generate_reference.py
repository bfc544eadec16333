"""Writes the pages of docs/reference/ that follow from the code: options, files and columns, manifest, exit statuses.

    python docs/generate_reference.py [--check]

`--check` writes nothing and ends with status 1 if a page differs from what is there.
"""

from __future__ import annotations

import argparse
import io
import json
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import pyarrow as pa

from sfumato.pipelines import cli
from sfumato.schemas import moments, ranges, release
from sfumato.schemas.errors import SfumatoError
from sfumato.transforms.synth.people import record_schema

REFERENCE = Path(__file__).parent / "reference"
COMMANDS = [
    *("heatmap", "histogram", "hotspots", "quantiles", "moments", "ranges build", "ranges answer", "ranges tune"),
    *("plan", "compare", "refresh", "ledger", "key", "synth"),
]
REGION = "3.00,1.00,3.13,1.13"
RELEASES = {
    "heatmap": ["--region", REGION, "--depth", "4", "--shard_size", "500"],
    "histogram": ["--region", REGION, "--cells", "2"],
    "hotspots": ["--region", REGION, "--depth", "4", "--top", "5"],
    "quantiles": ["--column", "km_from_home", "--range", "-1,15", "--ranges", "0:1"],
    "moments": ["--column", "km_from_home", "--bits", "8", "--fraction_bits", "4", "--epsilon", "2"],
    "ranges build": ["--region", REGION, "--method", "grid", "--epsilon", "1"],
}
"""Small releases that show which fields a manifest has."""

MANIFEST = {
    "format": "name and version of the manifest's form; a refused release has another name",
    "release_id": "identity of the release: one charge in the ledger, one draw of noise",
    "job": "the command that made the release",
    "created": "time of the run, ISO 8601, UTC",
    "privacy": "the guarantee: privacy unit, adjacency, budget, mechanism, assumptions",
    "privacy.unit": "whose records the guarantee covers",
    "privacy.adjacency": "how two neighbouring data sets differ",
    "privacy.epsilon": "the stated budget",
    "privacy.epsilon_spent": "what the release cost",
    "privacy.delta": "δ of the guarantee, 0 for pure differential privacy",
    "privacy.mechanism": "what makes the release private",
    "privacy.assumptions": "what the guarantee rests on",
    "parameters": "every option of the request ([options](options.md)), with its value",
    "versions": "versions of Python and of the packages on which results depend",
    "warnings": "what a reader must know before they use the release",
    "files": "SHA-256 and size of every other file of the release",
    "region": "bounds of the map, in degrees",
    "communication": "what a client sends",
    "results": "the release's numbers of users, with standard deviations",
    "ledger": "the entry that charged the release, with a ledger",
}
"""What a field of the manifest says, for fields that need more than their name."""

TABLES: dict[str, tuple[str, Mapping[str, pa.Schema]]] = {
    "Input: the logs": (
        "The columns that `sfumato synth` writes. A job reads the columns that its options name.",
        {"*.parquet": record_schema()},
    ),
    "heatmap": (
        "GeoParquet, a row a node of the quadtree that owns a count. Columns of categories and rates occur with "
        "`--auxiliary`.",
        {
            release.CELLS_FILE: release.cells_schema(("true", "false"), ("true",), unbiased=True),
            release.TOTALS_FILE: release.TOTALS_SCHEMA,
        },
    ),
    "histogram, hotspots": (
        "`cells.parquet` for places, `items.parquet` for a column's values: a row a published cell, item or prefix.",
        {release.CELLS_FILE: release.HOT_CELLS_SCHEMA, release.ITEMS_FILE: release.items_schema(pa.string())},
    ),
    "quantiles": (
        "`ranges.parquet` occurs with `--ranges`.",
        {
            release.QUANTILES_FILE: release.QUANTILES_SCHEMA,
            release.RANGES_FILE: release.RANGES_SCHEMA,
            release.CURVE_FILE: release.CURVE_SCHEMA,
            release.BINS_FILE: release.BINS_SCHEMA,
        },
    ),
    "moments": (
        "`cells.parquet` occurs with `--cells`; it has columns for each statistic, here for `mean`.",
        {
            release.MOMENTS_FILE: moments.MOMENTS_SCHEMA,
            release.BITS_FILE: moments.BITS_SCHEMA,
            release.CELLS_FILE: moments.moment_cells_schema(("mean",)),
        },
    ),
    "ranges answer": ("A row a query, with the query's columns before these.", {"answers": ranges.ANSWERS_SCHEMA}),
}

OTHER_FILES = {
    release.MANIFEST_FILE: "[the manifest](manifest.md)",
    release.PAGE_FILE: "the page: opens in a browser, needs no network",
    release.DENSITY_FILE: "share of the users in each finest cell: float64, 2^depth square (4096 at most), row 0 in "
    "the north, never negative, sums to 1 (heatmap)",
    release.PICTURE_FILE: "the map as a picture (heatmap)",
    release.RATES_PICTURE: "the map of rates (heatmap with `--auxiliary`)",
    release.HISTOGRAM_PICTURE: "picture of a histogram",
    release.HOTSPOTS_PICTURE: "picture of hot spots",
    release.QUANTILES_PICTURE: "picture of a distribution",
    release.MOMENTS_PICTURE: "picture of moments",
    release.RANGES_PICTURE: "the model's answer for each cell (ranges)",
    release.MODEL_FILE: "the model: plain arrays, no pickles (ranges)",
}


class _Parsed(Exception):  # noqa: N818  (a way out, no error)
    """Carries a command's parser out of the command."""

    def __init__(self, parser: argparse.ArgumentParser):
        super().__init__()
        self.parser = parser


class Option(NamedTuple):
    """One option of a command. group: heading of the help under which it is listed."""

    group: str
    name: str
    value: str
    default: str
    help: str


def command_options(command: str) -> list[Option]:
    """All options of a command, in the order of its help."""
    parser = _parser(command)
    found = []
    for group in parser._action_groups:
        for action in group._group_actions:
            if not isinstance(action, argparse._HelpAction):
                found.append(_option(group.title or "", action))
    return found


def _parser(command: str) -> argparse.ArgumentParser:
    parse = argparse.ArgumentParser.parse_known_args

    def leave(self: argparse.ArgumentParser, *arguments: Any, **more: Any) -> Any:
        if self.prog == f"sfumato {command}" and len(self._actions) > 2:
            raise _Parsed(self)
        return parse(self, *arguments, **more)  # a command may look for single options first

    with mock.patch.object(argparse.ArgumentParser, "parse_known_args", leave), redirect_stderr(io.StringIO()):
        try:
            cli.main(command.split())
        except _Parsed as found:
            return found.parser
    raise ValueError(f"sfumato {command}: parses no command line")


def _option(group: str, action: argparse.Action) -> Option:
    name = ", ".join(action.option_strings) or action.dest
    value = "" if action.nargs == 0 else str(action.metavar or action.dest.upper())
    if action.choices is not None:
        value = "|".join(map(str, action.choices))
    default = "" if action.default in (None, False, argparse.SUPPRESS) else str(action.default)
    text = (action.help or "") % {"default": default, "prog": "sfumato"}
    return Option("" if group in ("positional arguments", "options") else group, name, value, default, text)


def options_page() -> str:
    """reference/options.md."""
    lines = [
        "# Options",
        "",
        "`sfumato COMMAND --help` prints the same. Options that are not listed go to Apache Beam.",
        "",
    ]
    lines += [", ".join(f"[{command}](#sfumato-{command.replace(' ', '-')})" for command in COMMANDS), ""]
    for command in COMMANDS:
        lines += [f"## sfumato {command}", ""]
        group = None
        for one in command_options(command):
            if one.group != group:
                group = one.group
                lines += [
                    *(["", f"{group[0].upper()}{group[1:]}:", ""] if group else []),
                    *_head("option", "default", "what it does"),
                ]
            value = f" {one.value}" if one.value else ""
            lines.append(_row(f"`{one.name}{value}`", f"`{one.default}`" if one.default else "", one.help))
        lines.append("")
    return _page(lines)


def files_page() -> str:
    """reference/release_files.md."""
    lines = [
        "# Files and columns",
        "",
        "A release is a folder that is written completely or not at all. In a bucket the",
    ]
    lines += ["manifest is written last; a folder without one is no release.", "", *_head("file", "what it is")]
    lines += [_row(f"`{name}`", text) for name, text in OTHER_FILES.items()]
    lines += ["", "Tables follow, by job. Read them with `open_release(FOLDER)`, pandas, or any reader of Parquet.", ""]
    for job, (text, tables) in TABLES.items():
        lines += [f"## {job}", "", text, ""]
        for name, schema in tables.items():
            lines += [f"### `{name}`", "", *_head("column", "type", "what it says")]
            lines += [_row(f"`{one.name}`", f"{one.type}", _field_text(one)) for one in schema]
            lines.append("")
    return _page(lines)


def _field_text(field: pa.Field) -> str:
    told = {key.decode(): value.decode() for key, value in (field.metadata or {}).items()}
    parts = [told.get("description", ""), told.get("unit", ""), "may be null" if field.nullable else ""]
    return "; ".join(part for part in parts if part)


def statuses_page() -> str:
    """reference/exit_codes.md."""
    lines = ["# Exit statuses", "", *_head("status", "what happened")]
    lines.append(_row("0", "Done: published, now or before."))
    texts: dict[int, list[str]] = {}
    kinds = [kind for kind in _below(SfumatoError) if kind.__module__ == SfumatoError.__module__]
    for kind in sorted(kinds, key=lambda kind: (kind.exit_code, kind.__name__)):
        texts.setdefault(kind.exit_code, []).append(f"{' '.join((kind.__doc__ or '').split())} (`{kind.__name__}`)")
    texts[cli.CRASHED] = ["A crash. Run it again: what was charged is resumed."]
    texts[130], texts[143] = ["Interrupted by Ctrl-C (SIGINT)."], ["Ended by SIGTERM."]
    lines += [_row(str(status), " ".join(text)) for status, text in sorted(texts.items())]
    lines += ["", "Exit statuses are public: they depend on public facts and on noisy counts that were paid for."]
    return _page(lines)


def _below(base: type[SfumatoError]) -> Iterator[type[SfumatoError]]:
    for kind in base.__subclasses__():
        yield kind
        yield from _below(kind)


def manifest_page() -> str:
    """reference/manifest.md, from the manifests of small releases."""
    jobs: dict[str, list[str]] = {}
    for command, manifest in _manifests():
        for path in _paths(manifest):
            jobs.setdefault(path, []).append(command.split()[0])
    unknown = {path for path in MANIFEST if path not in jobs} - {"ledger"}
    if unknown:
        raise ValueError(f"MANIFEST describes fields that no manifest has: {', '.join(sorted(unknown))}")
    lines = [
        "# The manifest",
        "",
        "`manifest.json` is a JSON object. A dot separates a field from the object that holds it; `[]`",
    ]
    lines += [
        "is any element of a list. `all` means every publishing job.",
        "",
        *_head("field", "jobs", "what it says"),
    ]
    for path, mine in jobs.items():
        lines.append(
            _row(f"`{path}`", "all" if len(mine) == len(RELEASES) else ", ".join(mine), MANIFEST.get(path, ""))
        )
    return _page(lines)


def _manifests() -> Iterator[tuple[str, dict[str, Any]]]:
    with tempfile.TemporaryDirectory() as folder:
        logs, quiet = f"{folder}/logs", io.StringIO()
        with redirect_stdout(quiet), redirect_stderr(quiet):
            _run(["synth", "--users", "5000", "--output", logs], quiet)
            for command, options in RELEASES.items():
                output = f"{folder}/{command}"
                _run(
                    [*command.split(), "--input", f"{logs}/*.parquet", "--seed", "1", "--output", output, *options],
                    quiet,
                )
                yield command, json.loads(Path(output, release.MANIFEST_FILE).read_text())


def _run(arguments: Sequence[str], shown: io.StringIO) -> None:
    if cli.main(arguments) != 0:
        raise ValueError(f"sfumato {' '.join(arguments)} failed:\n{shown.getvalue()}")


def _paths(value: Mapping[str, Any], before: str = "") -> Iterator[str]:
    for name, one in value.items():
        path = f"{before}{name}"
        yield path
        if path in ("parameters", "files", "versions"):
            continue
        if isinstance(one, Mapping):
            yield from _paths(one, f"{path}.")
        elif isinstance(one, list) and one and isinstance(one[0], Mapping):
            yield from _paths(one[0], f"{path}[].")


def _head(*names: str) -> list[str]:
    return [_row(*names), "|" + "---|" * len(names)]


def _row(*cells: str) -> str:
    return "| " + " | ".join(" ".join(cell.split()).replace("|", "\\|") for cell in cells) + " |"


def _page(lines: Sequence[str]) -> str:
    title, *rest = lines
    note = "<!-- Written by docs/generate_reference.py: change the code and not this page. -->"
    return "\n".join([title, "", note, *rest]).rstrip() + "\n"


PAGES = {
    "options.md": options_page,
    "release_files.md": files_page,
    "manifest.md": manifest_page,
    "exit_codes.md": statuses_page,
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Writes or checks the pages. Returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; status 1 if a page is out of date")
    check = parser.parse_args(arguments).check
    old = []
    for name, page in PAGES.items():
        path, text = REFERENCE / name, page()
        if check and not (path.exists() and path.read_text() == text):
            old.append(name)
        elif not check:
            path.write_text(text)
    if old:
        sys.stderr.write(f"out of date: {', '.join(old)}; run python docs/generate_reference.py\n")
    return 1 if old else 0


if __name__ == "__main__":
    sys.exit(main())
