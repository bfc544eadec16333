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
from sfumato.schemas.requests.request_base import (
    HELP_GROUPS,
    extra_of,
    has_several,
    metavar_of,
    option_type,
    range_text,
)
from sfumato.transforms.synth.people import RECORD_SCHEMA

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
    "format": "name and version of the manifest's format; a refusal has another name",
    "release_id": "identity of the release: one charge in the ledger, one draw of noise",
    "job": "the command that made the release",
    "created": "time of the run, in ISO 8601, UTC",
    "title": "the page's title, as the operator wrote it",
    "region": "bounds of the map, in degrees",
    "region.west": "western border: longitude in degrees, -180 to 180",
    "region.south": "southern border: latitude in degrees, -90 to 90",
    "region.east": "eastern border: longitude in degrees, -180 to 180",
    "region.north": "northern border: latitude in degrees, -90 to 90",
    "grid": "the finest cells of the map",
    "grid.depth": "levels of the quadtree below the region",
    "grid.side": "cells along one side, 2^depth",
    "column": "the column whose values were collected",
    "fixed_point": "representation of values: bits, bits after the point, treatment of signs",
    "range": "the range that values are clamped to, with `--trust central`",
    "range.source": "`given`, or `noisy counts` if the job found it",
    "range.low": "lower end, in the column's unit; smaller values are clamped to it",
    "range.high": "upper end, in the column's unit; larger values are clamped to it",
    "fixed_point.step": "distance between two representable values, in the column's unit",
    "fixed_point.low": "smallest representable value; smaller values are clamped to it",
    "fixed_point.high": "largest representable value; larger values are clamped to it",
    "fixed_point.bits": "bits of a value's magnitude, 1 to 52",
    "fixed_point.fraction_bits": "number of these bits after the binary point; negative for steps above 1",
    "fixed_point.signed": "`no`: values are not negative; `shift`: `offset` is added first; `split`: bits of both "
    "signs",
    "fixed_point.offset": "number that is added before encoding, in the column's unit",
    "method": "the method that was used, also if the request left the choice to the job",
    "sizes_metres": "smallest and largest side of the squares for which the model was made, in metres",
    "cell_metres": "width and height of the finest cell, in metres",
    "privacy": "the guarantee",
    "privacy.unit": "the privacy unit: the records that the guarantee covers together",
    "privacy.contribution_bound": "the most that one unit adds to the counts",
    "privacy.adjacency": "how two neighbouring data sets differ",
    "privacy.epsilon": "the stated budget ε of the complete release",
    "privacy.epsilon_spent": "ε that the release cost, at most `privacy.epsilon`",
    "privacy.delta": "δ of the guarantee; 0 for pure differential privacy",
    "privacy.delta_spent": "δ of what was published, at most `privacy.delta`",
    "privacy.noise": "`laplace`, or `gaussian` with `privacy.rho` and a `rho` instead of each part's `epsilon`",
    "privacy.mechanism": "the mechanism that makes the release private",
    "privacy.randomness": "source of the key",
    "privacy.randomness.safe": "false if the key can be guessed",
    "privacy.randomness.source": "`key file`, `operating system`, or `seed`, which anyone can guess",
    "privacy.population": "the number of users that the run was planned for: public or a noisy user count",
    "privacy.population.source": "`noisy` for a noisy user count, otherwise the source of the figure",
    "privacy.population.epsilon": "what the noisy user count cost",
    "privacy.population.noise_stddev": "standard deviation of the noisy user count, in users",
    "privacy.population.counted": "the noisy user count",
    "privacy.population.users": "the planned number of users; null if the run was not planned for one",
    "privacy.cohort": "all users of the run, and their shards; `privacy.rotation` names a rotating cohort",
    "privacy.cohort.users": "estimated users of the run",
    "privacy.cohort.sampling_rate": "probability that a user is counted",
    "privacy.cohort.shards": "secure-aggregation shards of the run",
    "privacy.cohort.required_survivors": "clients that a shard needs in a real protocol",
    "privacy.composition": "how the epsilons of the sub-queries add up",
    "privacy.composition_rule": "the rule of composition as a sentence",
    "privacy.sub_queries": "the rounds in which shards report, one entry for each",
    "privacy.sub_queries[].vector_length": "entries of the vector that a client sends",
    "privacy.sub_queries[].noise_stddev": "standard deviation of an entry's noise, summed over the shards, in users",
    "privacy.sub_queries[].shards_lost": "shards that were discarded because too few clients answered",
    "privacy.sub_queries[].modulus": "secure sums are exact below this number and wrap around at it",
    "privacy.sub_queries[].bits_per_client": "bits that a client sends in the sub-query",
    "privacy.sub_queries[].index": "number of the sub-query, from 1",
    "privacy.sub_queries[].epsilon": "ε that the sub-query costs each user in it",
    "privacy.sub_queries[].shards": "shards that report in the sub-query",
    "privacy.participation": "whether noise and lost shards reveal which users take part",
    "privacy.participation.model": "`planned` or `paper`",
    "privacy.participation.protected": "whether taking part is covered by the guarantee",
    "privacy.participation.epsilon": "additional ε for taking part",
    "privacy.participation.delta": "additional δ for taking part",
    "privacy.participation.description": "the participation model as a sentence",
    "privacy.assumptions": "what the guarantee is based on",
    "privacy.rounds": "the samples, or with `--trust central` the noisy counts: one for each level",
    "privacy.rounds[].sampling_rate": "probability that a user is sampled",
    "privacy.rounds[].threshold": "sampled users that an item needs; with `--trust central` its smallest noisy "
    "count, null where all items are public and published",
    "privacy.rounds[].noise": "`laplace`, `truncated` or `gaussian`",
    "privacy.rounds[].noise_stddev": "standard deviation of the noise of every count, in users; in trips for flows; "
    "with --average_day before the division by the days",
    "privacy.rounds[].pairs": "pairs of cells of this level that the job considered",
    "privacy.rounds[].split": "pairs of these that were replaced by pairs of their parts, at the next level",
    "privacy.rounds[].sigma": "parameter σ of Gaussian noise, in users; null for other noise",
    "privacy.rounds[].limit": "largest absolute value of truncated noise, in users; null for other noise",
    "privacy.rounds[].hidden_count": "largest true count that an unpublished item of the round can have (99%)",
    "privacy.rounds[].margin_at_once": "half the width of 95% intervals that hold for all cells of the level at "
    "once, in users; with --average_day before the division by the days",
    "privacy.rounds[].published": "items, cells or bins that the round published",
    "privacy.rounds[].index": "number of the round, from 0",
    "privacy.rounds[].level": "level of the round: length of a prefix, depth of cells, or leading bits of a value; 0 "
    "for complete items",
    "privacy.rounds[].epsilon": "ε of the round",
    "privacy.rounds[].delta": "δ of the round; 0 for pure differential privacy",
    "privacy.rounds_guarantee": "ε and δ of all rounds together",
    "privacy.rounds_guarantee.epsilon": "ε of all rounds together, without the admission",
    "privacy.rounds_guarantee.delta": "δ of all rounds together",
    "privacy.round_guarantee": "ε and δ of one round",
    "privacy.round_guarantee.epsilon": "ε of one round",
    "privacy.round_guarantee.delta": "δ of one round",
    "privacy.admission": "the noisy counts that admit the run",
    "privacy.admission.unusable": "noisy number of users without a usable record; may be negative",
    "privacy.admission.users": "noisy number of users with a usable record",
    "privacy.admission.epsilon": "ε that the two counts cost together",
    "privacy.admission.noise_stddev": "standard deviation of the noise of each count, in users, scaled up "
    "with the count if only a sample is counted",
    "privacy.admission.sampling_rate": "probability that a user is in the sample that the two counts use",
    "privacy.contact": "which users are contacted",
    "privacy.contact.kind": "`everybody` or `limited`, as in `--contact`",
    "privacy.collector": "the guarantee towards the collector of reports",
    "privacy.collector.epsilon": "ε towards the collector, for everything that a user sends",
    "privacy.collector.adjacency": "how two neighbouring data sets differ, towards the collector",
    "privacy.shares": "parts of ε that the noisy counts cost",
    "privacy.shares.admission": "ε of the noisy counts that admit the run",
    "privacy.shares.tallies": "ε of the noisy counts of reports",
    "privacy.shares.outside": "ε of the noisy counts of clipped users",
    "privacy.shares.sums": "ε of the noisy sums",
    "privacy.noise_stddev": "standard deviation of the noise on a count, in users",
    "privacy.groups": "how groups of users are counted; null without groups",
    "privacy.meter": "what the reports disclose about one user",
    "privacy.meter.bits_per_client": "bits that a user sends",
    "privacy.meter.cap": "the largest number of bits per user that the job accepts; reports above it end the run",
    "privacy.meter.expected_private_bits": "bits disclosed per user; a bit that is true with probability p counts as "
    "2p - 1",
    "privacy.meter.truth_probability": "probability that a reported bit is true; null without differential privacy",
    "privacy.meter.highest_read_probability": "largest probability, over all bits, that a user's bit is collected",
    "privacy.meter.bits_per_value": "bits of one value that a user sends",
    "privacy.meter.epsilon_per_bit": "ε of each bit; null without differential privacy",
    "privacy.meter.epsilon_per_client": "ε of all bits of a user; null without differential privacy",
    "privacy.trust": "trust model: `central`, `split`, `secagg`, `local` or `none` (unprotected)",
    "results": "the release's figures, made only from noisy counts",
    "results.users": "estimated users",
    "results.users_stddev": "standard deviation of `results.users`",
    "results.published": "published items, cells or bins",
    "results.hidden_count": "largest true count, in users, that an unpublished item can have (99%)",
    "results.trips": "estimated trips of all users, listed or not; noise can make it negative",
    "results.trips_stddev": "standard deviation of `results.trips`",
    "privacy.sums": "number of noisy sums in each group, with `--trust central`",
    "results.trips_listed": "trips of the flows that are listed",
    "results.clients": "estimated users who reported",
    "results.rounds": "reports by quantity and round",
    "results.rounds[].quantity": "`value`, `square`, `power:K`, `log2`, or a quantity of the second column",
    "results.rounds[].round": "number of the round, from 1",
    "results.rounds[].clients": "estimated users who reported in the round",
    "results.rounds[].reports": "estimated reports of the round; a user can send several",
    "results.stated_error": "what the column `stddev` of answers is: `estimate` or `lower bound` of the error",
    "results.estimated_users": "estimated users with a usable record",
    "results.clients_stddev": "standard deviation of `results.clients`",
    "results.groups_published": "number of groups in the published tables; null without groups",
    "results.clipped": "estimated users whose values are outside the range, with `--trust central`",
    "results.clipped.below": "share of the users with a value below the range, 0 to 1",
    "results.clipped.above": "share of the users with a value above the range, 0 to 1",
    "results.clipped.stddev": "standard deviation of the noise on each of the two shares",
    "results.kind": "kind of the model: `grid`, `tree`, `network` or `paper_networks`",
    "results.parts": "disjoint parts of the region with a noisy count",
    "communication": "what a client sends over the whole run",
    "communication.vector_entries": "entries of the largest vector that a client sends",
    "communication.bits_per_client": "bits that a client sends in total",
    "errors": "how to read the columns of errors",
    "errors.stddev": "what the column `stddev` means",
    "errors.intervals": "what the columns `users_low` and `users_high` mean",
    "errors.sums": "how to get a sum over cells and its standard deviation",
    "parameters": "every option of the request ([options](options.md)), with its value",
    "code": "SHA-256 of sfumato's sources and of the versions of packages that draw noise",
    "versions": "versions of Python and of the packages on which results depend",
    "warnings": "what you must know before you use the release",
    "files": "SHA-256 and size of every other file of the release",
    "timeline": "relative address of the page of all releases, with `--timeline`",
    "ledger": "the entry that charged the release, with `--ledger`",
}
"""Meaning of every field of a manifest, with its unit and range."""

TABLES: dict[str, tuple[str, Mapping[str, pa.Schema]]] = {
    "Input: the logs": (
        "The columns that `sfumato synth` writes. A job reads the columns that its options name.",
        {"*.parquet": RECORD_SCHEMA},
    ),
    "heatmap": (
        "GeoParquet, one row for each node of the quadtree with a count. The columns of categories and rates need "
        "`--auxiliary`, the table of slots `--slots`.",
        {
            release.CELLS_FILE: release.cells_schema(("true", "false"), ("true",), unbiased=True),
            release.TOTALS_FILE: release.TOTALS_SCHEMA,
            release.SLOTS_FILE: release.SLOTS_SCHEMA,
        },
    ),
    "zones": (
        "GeoParquet, one row for each zone of each level. The columns of categories and rates need `--auxiliary`.",
        {release.ZONES_FILE: release.zones_schema(("true", "false"), ("true",))},
    ),
    "histogram, hotspots": (
        "`cells.parquet` for the cells of a map, `zones.parquet` for zones, `items.parquet` for a column's values: one "
        "row for each published cell, zone, item or prefix.",
        {release.CELLS_FILE: release.hot_cells_schema(), release.ITEMS_FILE: release.items_schema(pa.string())},
    ),
    "histogram, hotspots with `--trust central`": (
        "The same with noise instead of sampling.",
        {
            release.CELLS_FILE: release.hot_cells_schema(noisy=True),
            release.ITEMS_FILE: release.items_schema(pa.string(), noisy=True),
            release.ZONES_FILE: release.counted_zones_schema(noisy=True),
        },
    ),
    "quantiles": (
        "`ranges.parquet` needs `--ranges`.",
        {
            release.QUANTILES_FILE: release.QUANTILES_SCHEMA,
            release.RANGES_FILE: release.RANGES_SCHEMA,
            release.CURVE_FILE: release.CURVE_SCHEMA,
            release.BINS_FILE: release.BINS_SCHEMA,
        },
    ),
    "moments": (
        "`cells.parquet` needs `--cells`. It has columns for each statistic, here for `mean`.",
        {
            release.MOMENTS_FILE: moments.MOMENTS_SCHEMA,
            release.BITS_FILE: moments.BITS_SCHEMA,
            release.CELLS_FILE: moments.moment_cells_schema(("mean",)),
        },
    ),
    "flows": (
        "GeoParquet, one row for each flow and for each rest. `flows.csv` has the same columns except the last. With "
        "zones `flow_zones.parquet` has the zones, and flows have `origin_zone` and `destination_zone` (null for a "
        "rest) instead of the cells and their depth.",
        {release.FLOWS_FILE: release.flows_schema(), release.FLOW_ZONES_FILE: release.flow_zones_schema(named=True)},
    ),
    "ranges answer": (
        "One row for each query, with the query's columns before these.",
        {"answers": ranges.RANGE_ANSWERS_SCHEMA},
    ),
}

COLUMNS = {
    "user_id": "identity of the user: all rows with one id are one user",
    "latitude": "of the record; degrees, WGS 84",
    "longitude": "of the record; degrees, WGS 84",
    "timestamp": "time of the record, in UTC",
    "infected": "whether the user is infected: an example of a category for `--auxiliary`",
    "km_from_home": "kilometres from the user's home (the centre of its cell): an example of a number for `moments` "
    "and `quantiles`",
    "x": "longitude of the square's centre; degrees",
    "y": "latitude of the square's centre; degrees",
    "size": "side of the square; metres",
    "users": "estimated users in the part of the square inside the region, 0 or more",
    "stddev": "estimated root mean square error of users, or a lower bound of it: see `results.stated_error`",
    "inside": "share of the square's area inside the region, 0 to 1",
}
"""Meaning of the columns of logs and of answers, whose schemas state none."""

OTHER_FILES = {
    release.MANIFEST_FILE: "[the manifest](manifest.md)",
    release.PAGE_FILE: "the page: opens in a browser, needs no network",
    release.DENSITY_FILE: "share of the users in each finest cell: float64, 2^depth square (4096 at most), row 0 in "
    "the north, never negative, sums to 1 (heatmap)",
    release.ZONES_PICTURE: "the map of zones as a picture (zones)",
    release.PICTURE_FILE: "the map as a picture (heatmap)",
    release.RATES_PICTURE: "the map of rates as a picture (heatmap with `--auxiliary`)",
    release.SLOT_MAPS_FILE: "users of every slot of time: float32[slots, 2^d, 2^d], row 0 in the north, not negative "
    "(heatmap with `--slots`)",
    release.HISTOGRAM_PICTURE: "the histogram as a picture",
    release.HOTSPOTS_PICTURE: "the hot spots as a picture",
    release.QUANTILES_PICTURE: "the distribution as a picture",
    release.MOMENTS_PICTURE: "the moments as a picture",
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
    return (
        f"{text}; {range_text(field)}"
        if kind in (int, float) and field.metadata and not has_several(field.annotation)
        else text
    )


def options_page() -> str:
    """reference/options.md."""
    lines = [
        "# Options",
        "",
        "`sfumato COMMAND --help` prints the common options, `--help-all` all of them. Python functions",
    ]
    lines += ["and the `options` of a refresh use the same names. Other options go to Apache Beam.", ""]
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
        *_head("key", "default", "meaning"),
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
    lines += ["manifest is written last; a folder without it is not a release.", "", *_head("file", "what it is")]
    lines += [_row(f"`{name}`", text) for name, text in OTHER_FILES.items()]
    lines += ["", "Tables follow, by job. Read them with `open_release(FOLDER)`, pandas, or any reader of Parquet.", ""]
    for job, (text, tables) in TABLES.items():
        lines += [f"## {job}", "", text, ""]
        for name, schema in tables.items():
            lines += [f"### `{name}`", "", *_head("column", "type", "meaning")]
            lines += [_row(f"`{one.name}`", f"{one.type}", _field_text(one)) for one in schema]
            lines.append("")
    return _page(lines)


def _field_text(field: pa.Field) -> str:
    stated = {key.decode(): value.decode() for key, value in (field.metadata or {}).items()}
    default = "" if "unit" in stated else COLUMNS.get(field.name, "")
    parts = [stated.get("description", default), stated.get("unit", ""), "may be null" if field.nullable else ""]
    return "; ".join(part for part in parts if part)


def statuses_page() -> str:
    """reference/exit_codes.md."""
    lines = ["# Exit statuses", "", *_head("status", "error in Python", "what happened")]
    rows = [(0, "", "Done: the release was published, by this run or an earlier one.")]
    for kind in (kind for kind in _below(SfumatoError) if kind.__module__ == SfumatoError.__module__):
        rows.append((kind.exit_code, f"`{kind.__name__}`", " ".join((kind.__doc__ or "").split())))
    rows.append((cli.CRASHED, "", "A crash. Run the command again: it resumes the charge."))
    rows += [(130, "", "Interrupted by Ctrl-C (SIGINT)."), (143, "", "Ended by SIGTERM.")]
    lines += [_row(str(status), *texts) for status, *texts in sorted(rows)]
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
        *_head("field", "jobs", "meaning"),
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
