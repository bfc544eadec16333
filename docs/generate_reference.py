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
from typing import Any, Literal, NamedTuple, get_args, get_origin

import pyarrow as pa
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from sfumato.pipelines.command_line import cli
from sfumato.pipelines.command_line.cli import default_text
from sfumato.pipelines.command_line.run import JOBS, request_class
from sfumato.schemas import moments, ranges, release
from sfumato.schemas.errors import SfumatoError
from sfumato.schemas.refresh import RefreshConfig
from sfumato.schemas.requests.request_base import HELP_GROUPS, extra_of, metavar_of, option_type, range_text
from sfumato.transforms.synth.people import record_schema

REFERENCE = Path(__file__).parent / "reference"
COMMANDS = sorted(JOBS, key=lambda name: not JOBS[name].publishes)  # those that publish come first
REGION = "3.00,1.00,3.13,1.13"
RELEASES = (
    ("heatmap", ["--region", REGION, "--depth", "4", "--shard_size", "500", "--title", "A city"]),
    ("histogram", ["--region", REGION, "--cells", "2"]),
    ("hotspots", ["--region", REGION, "--depth", "4", "--top", "5"]),
    ("histogram", ["--trust", "central", "--region", REGION, "--cells", "2"]),
    ("hotspots", ["--trust", "central", "--region", REGION, "--depth", "7"]),
    ("quantiles", ["--column", "km_from_home", "--range", "-1,15", "--ranges", "0:1"]),
    ("moments", ["--column", "km_from_home", "--bits", "8", "--fraction_bits", "4", "--epsilon", "2"]),
    ("moments", ["--trust", "central", "--column", "km_from_home", "--range", "0,15", "--epsilon", "2"]),
    ("flows", ["--region", REGION, "--time_column", "timestamp"]),
    ("ranges build", ["--region", REGION, "--method", "grid", "--epsilon", "1"]),
)
"""Small releases that show which fields a manifest has."""

MANIFEST = {
    "format": "name and version of the manifest's form; a refused release has another name",
    "release_id": "identity of the release: one charge in the ledger, one draw of noise",
    "job": "the command that made the release",
    "created": "time of the run: ISO 8601, UTC",
    "title": "the page's title, as the operator wrote it",
    "region": "bounds of the map, in degrees",
    "grid": "the finest cells of the map",
    "grid.depth": "levels of the quadtree",
    "grid.side": "cells along one side, 2^depth",
    "column": "the column whose values were collected",
    "fixed_point": "how values are represented: bits, bits below the point, treatment of signs",
    "range": "the range that values are clipped to, with `--trust central`",
    "range.source": "`given`, or `noisy counts` by powers of two",
    "fixed_point.step": "distance between two representable values",
    "fixed_point.low": "smallest representable value; smaller values count as it",
    "fixed_point.high": "largest representable value; larger values count as it",
    "method": "the method that was used",
    "sizes_metres": "sides of the squares for which the model was made",
    "cell_metres": "width and height of a cell",
    "privacy": "the guarantee",
    "privacy.unit": "whose records the guarantee covers",
    "privacy.contribution_bound": "what one unit adds to the counts at most",
    "privacy.adjacency": "how two neighbouring data sets differ",
    "privacy.epsilon": "the stated budget",
    "privacy.epsilon_spent": "what the release cost",
    "privacy.delta": "δ of the guarantee; 0 for pure differential privacy",
    "privacy.delta_spent": "δ of what was published",
    "privacy.noise": "`laplace`, or `gaussian` with `privacy.rho` and a `rho` in place of each part's `epsilon`",
    "privacy.mechanism": "what makes the release private",
    "privacy.randomness": "where the key came from",
    "privacy.randomness.safe": "false if anybody can guess the key",
    "privacy.population": "the number of users that the run was planned for: public or a noisy user count",
    "privacy.population.source": "`noisy` for a noisy user count, else where the figure came from",
    "privacy.population.epsilon": "what the noisy user count cost",
    "privacy.population.noise_stddev": "standard deviation of the noisy user count, in users",
    "privacy.population.counted": "the noisy user count",
    "privacy.cohort": "the users who take part",
    "privacy.cohort.users": "their estimated number",
    "privacy.cohort.sampling_rate": "probability that a user is in the cohort",
    "privacy.cohort.shards": "secure-aggregation shards",
    "privacy.cohort.required_survivors": "clients that a shard needs in a real protocol",
    "privacy.composition": "how the epsilons of the sub-queries add up",
    "privacy.composition_rule": "the same as a sentence",
    "privacy.sub_queries": "the rounds in which all shards of a part answer",
    "privacy.sub_queries[].vector_length": "entries of the vector that a client sends",
    "privacy.sub_queries[].noise_stddev": "standard deviation of an entry's noise, summed over the shards, in users",
    "privacy.sub_queries[].shards_lost": "shards with too few survivors",
    "privacy.sub_queries[].modulus": "modulus of the secure sums",
    "privacy.sub_queries[].bits_per_client": "bits that a client sends",
    "privacy.participation": "whether noise and lost shards show who takes part",
    "privacy.participation.model": "`planned` or `paper`",
    "privacy.participation.protected": "whether taking part is covered by the guarantee",
    "privacy.participation.epsilon": "additional ε for taking part",
    "privacy.participation.delta": "additional δ for taking part",
    "privacy.assumptions": "what the guarantee rests on",
    "privacy.rounds": "the samples, or with `--trust central` the noisy counts: one a level",
    "privacy.rounds[].sampling_rate": "probability that a user is drawn",
    "privacy.rounds[].threshold": "sampled users that an item needs; with `--trust central` its smallest noisy count, "
    "null where all items are public and published",
    "privacy.rounds[].noise": "`laplace`, `truncated` or `gaussian`",
    "privacy.rounds[].noise_stddev": "standard deviation of the noise of every count",
    "privacy.rounds[].pairs": "pairs of cells of the level that were considered (flows)",
    "privacy.rounds[].split": "of these, pairs whose parts were counted in their place (flows)",
    "privacy.rounds[].sigma": "parameter of Gaussian noise",
    "privacy.rounds[].limit": "largest absolute value of truncated noise",
    "privacy.rounds[].hidden_count": "largest count that an absent item of the round can have, at 99%",
    "privacy.rounds[].margin_at_once": "half the width of 95% intervals that hold for all cells of a level at once",
    "privacy.rounds[].published": "published items",
    "privacy.rounds_guarantee": "ε and δ of all rounds together",
    "privacy.round_guarantee": "ε and δ of one round",
    "privacy.admission": "the noisy counts that admit the run",
    "privacy.admission.unusable": "users without a usable record",
    "privacy.contact": "who is asked to take part",
    "privacy.collector": "the guarantee towards the collector of reports",
    "privacy.shares": "parts of ε that the noisy counts cost",
    "privacy.noise_stddev": "standard deviation of the noise on a count, in users",
    "privacy.groups": "whether and how users are in groups",
    "privacy.meter": "what the reports disclose about one user",
    "privacy.meter.bits_per_client": "bits that a user sends",
    "privacy.meter.cap": "the largest number of bits that the job allows",
    "privacy.meter.expected_private_bits": "expected number of bits that are known for certain",
    "privacy.meter.truth_probability": "probability that a reported bit is the true one",
    "privacy.meter.highest_read_probability": "largest probability that a given bit is collected",
    "privacy.trust": "who sees unprotected data: `central`, `secagg`, `local` (nobody) or `none` (unprotected)",
    "results": "numbers of the release, from noisy counts alone",
    "results.users": "estimated users",
    "results.users_stddev": "standard deviation of that",
    "results.published": "published items, cells or bins",
    "results.hidden_count": "largest count that an absent item can have, at 99%",
    "results.trips": "estimated trips (flows)",
    "results.trips_stddev": "standard deviation of that",
    "privacy.sums": "sums that noise was added to, in every group, with `--trust central`",
    "results.trips_listed": "trips of the flows that are listed",
    "results.clients": "estimated users who reported",
    "results.rounds": "reports by quantity and round",
    "results.stated_error": "how the model states its errors",
    "communication": "what a client sends over the whole run",
    "communication.vector_entries": "entries of its largest vector",
    "errors": "what the columns of errors say",
    "parameters": "every option of the request ([options](options.md)), with its value",
    "code": "SHA-256 of sfumato's sources and of the versions of packages that draw noise",
    "versions": "versions of Python and of the packages on which results depend",
    "warnings": "what a reader must know before they use the release",
    "files": "SHA-256 and size of every other file of the release",
    "timeline": "relative address of the page of all releases, with `--timeline`",
    "ledger": "the entry that charged the release, with `--ledger`",
}
"""What a field of the manifest says, for fields whose name does not."""

TABLES: dict[str, tuple[str, Mapping[str, pa.Schema]]] = {
    "Input: the logs": (
        "The columns that `sfumato synth` writes. A job reads the columns that its options name.",
        {"*.parquet": record_schema()},
    ),
    "heatmap": (
        "GeoParquet, a row a node of the quadtree that owns a count. Columns of categories and rates occur with "
        "`--auxiliary`, the table of slots with `--slots`.",
        {
            release.CELLS_FILE: release.cells_schema(("true", "false"), ("true",), unbiased=True),
            release.TOTALS_FILE: release.TOTALS_SCHEMA,
            release.SLOTS_FILE: release.SLOTS_SCHEMA,
        },
    ),
    "zones": (
        "GeoParquet, a row a zone of each level. Columns of categories and rates occur with `--auxiliary`.",
        {release.ZONES_FILE: release.zones_schema(("true", "false"), ("true",))},
    ),
    "histogram, hotspots": (
        "`cells.parquet` for places, `items.parquet` for a column's values: a row a published cell, item or prefix.",
        {release.CELLS_FILE: release.hot_cells_schema(), release.ITEMS_FILE: release.items_schema(pa.string())},
    ),
    "histogram, hotspots with `--trust central`": (
        "The same with noise in place of sampling.",
        {
            release.CELLS_FILE: release.hot_cells_schema(noisy=True),
            release.ITEMS_FILE: release.items_schema(pa.string(), noisy=True),
        },
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
    "flows": (
        "GeoParquet, a row a flow and a row a rest. `flows.csv` has the same columns but the last. With zones "
        "`flow_zones.parquet` has the zones, and flows have `origin_zone` and `destination_zone` (null for a rest) in "
        "place of the cells and their depth.",
        {release.FLOWS_FILE: release.flows_schema(), release.FLOW_ZONES_FILE: release.FLOW_ZONES_SCHEMA},
    ),
    "ranges answer": ("A row a query, with the query's columns before these.", {"answers": ranges.ANSWERS_SCHEMA}),
}

OTHER_FILES = {
    release.MANIFEST_FILE: "[the manifest](manifest.md)",
    release.PAGE_FILE: "the page: opens in a browser, needs no network",
    release.DENSITY_FILE: "share of the users in each finest cell: float64, 2^depth square (4096 at most), row 0 in "
    "the north, never negative, sums to 1 (heatmap)",
    release.ZONES_PICTURE: "the map of zones as a picture (zones)",
    release.PICTURE_FILE: "the map as a picture (heatmap)",
    release.RATES_PICTURE: "the map of rates (heatmap with `--auxiliary`)",
    release.SLOT_MAPS_FILE: "users of every slot of time: float32[slots, 2^d, 2^d], row 0 in the north, not negative "
    "(heatmap with `--slots`)",
    release.HISTOGRAM_PICTURE: "picture of a histogram",
    release.HOTSPOTS_PICTURE: "picture of hot spots",
    release.QUANTILES_PICTURE: "picture of a distribution",
    release.MOMENTS_PICTURE: "picture of moments",
    release.RANGES_PICTURE: "the model's answer for each cell (ranges)",
    release.FLOWS_CSV: "the table of flows as text (flows)",
    release.FLOWS_PICTURE: "arcs of the largest flows (flows)",
    release.BASEMAP_FILE: "geography of the map: water, land, lines, zones, places, and the tile server that `--tiles` "
    "names; in JSON",
    release.MODEL_FILE: "the model: plain arrays, no pickles (ranges)",
}


class Option(NamedTuple):
    """One option of a command. group: heading of the help under which it is listed."""

    group: str
    name: str
    value: str
    default: str
    help: str


def command_options(command: str) -> list[Option]:
    """All options of a command, group by group, from its request class."""
    fields = request_class(command).model_fields
    found = [_option(name, field) for name, field in fields.items()]
    return sorted(found, key=lambda one: HELP_GROUPS.index(one.group))


def _option(name: str, field: FieldInfo) -> Option:
    extra = extra_of(field)
    kind, positional, value = option_type(field.annotation), extra["style"] == "positional", metavar_of(field)
    if get_origin(kind) is Literal:
        value = "|".join(map(str, get_args(kind)))
    default = "" if field.default in (None, False, (), PydanticUndefined) else default_text(field.default)
    if field.is_required():
        default = "required"
    elif default:
        default = f"`{default}`"
    shown = "" if positional or kind is bool else value
    return Option(extra["group"], name.upper() if positional else f"--{name}", shown, default, _help(field, kind))


def _help(field: FieldInfo, kind: Any) -> str:
    text = field.description or ""
    return f"{text}; {range_text(field)}" if kind in (int, float) and field.metadata else text


def options_page() -> str:
    """reference/options.md."""
    lines = [
        "# Options",
        "",
        "`sfumato COMMAND --help` prints the common options, `--help-all` all of them. Python calls",
    ]
    lines += ["and the `options` of a refresh take the same names. Other options go to Apache Beam.", ""]
    lines += [", ".join(f"[{command}](#sfumato-{command.replace(' ', '-')})" for command in COMMANDS), ""]
    for command in COMMANDS:
        kind = request_class(command)
        lines += [f"## sfumato {command}", "", kind.ABOUT, "", f"    sfumato {command} {kind.EXAMPLE}"]
        group = None
        for one in command_options(command):
            if one.group != group:
                group = one.group
                lines += ["", f"**{group[0].upper()}{group[1:]}**", "", *_head("option", "default", "what it does")]
            lines.append(_row(f"`{f'{one.name} {one.value}'.rstrip()}`", one.default, one.help))
        lines.append("")
    lines += [
        "## The YAML file of a refresh",
        "",
        RefreshConfig.__doc__ or "",
        "",
        *_head("key", "default", "what it says"),
    ]
    for one in (_option(name, field) for name, field in RefreshConfig.model_fields.items()):
        lines.append(_row(f"`{one.name.removeprefix('--')}`", one.default, one.help))
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
    jobs: dict[str, dict[str, None]] = {}  # the commands of each field, in their order
    for command, manifest in _manifests():
        for path in _paths(manifest):
            jobs.setdefault(path, {})[command] = None
    seen = {path: number for number, path in enumerate(jobs)}
    parts = {path: path.split(".") for path in jobs}
    # A field follows the object that holds it.
    order = sorted(
        jobs,
        key=lambda path: [seen[".".join(parts[path][: n + 1]).removesuffix("[]")] for n in range(len(parts[path]))],
    )
    if stale := sorted({path for path in MANIFEST if path not in jobs} - {"ledger", "timeline"}):
        sys.stderr.write(f"MANIFEST describes fields that no manifest has: {', '.join(stale)}\n")
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
    for path in order:
        mine = jobs[path]
        lines.append(
            _row(
                f"`{path}`",
                "all" if len(mine) == len({command for command, _ in RELEASES}) else ", ".join(mine),
                MANIFEST.get(path, ""),
            )
        )
    return _page(lines)


def _manifests() -> list[tuple[str, dict[str, Any]]]:
    found, shown = [], io.StringIO()
    with tempfile.TemporaryDirectory() as folder, redirect_stdout(shown), redirect_stderr(shown):
        logs = f"{folder}/logs"
        _run(["synth", "--users", "5000", "--output", logs], shown)
        for number, (command, options) in enumerate(RELEASES):
            output = f"{folder}/{number}"
            _run([*command.split(), "--input", f"{logs}/*.parquet", "--seed", "1", "--output", output, *options], shown)
            found.append((command.split()[0], json.loads(Path(output, release.MANIFEST_FILE).read_text())))
    return found


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
