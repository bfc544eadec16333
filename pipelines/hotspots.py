"""`sfumato hotspots`: popular places, words or codes, found level by level by TrieHH++ (sample and threshold)."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import apache_beam as beam

from sfumato.pipelines.job import Inputs, add_release_arguments, release_options
from sfumato.pipelines.options import JobParser
from sfumato.pipelines.sampled import (
    SampledRequest,
    add_item_arguments,
    add_plan_arguments,
    cell_items,
    column_or_cells,
    columns,
    limits,
    plan_of,
    run_sampled,
)
from sfumato.schemas.errors import RequestError
from sfumato.schemas.items import PREFIXES
from sfumato.transforms.histogram.item_encoding import ColumnItems, Items
from sfumato.transforms.histogram.prefixes import NumberPrefixes, Prefixes, TextPrefixes, spread_levels
from sfumato.transforms.histogram.sample_and_threshold import TrieHeavyHitters
from sfumato.transforms.histogram.sampled_release import trie_files
from sfumato.transforms.privacy.keys import RunKey

# What --depth is where it is not given: levels of the quadtree, digits of integers, characters.
_CELL_DEPTH, _DIGITS, _CHARACTERS = 12, 9, 16


@dataclass(frozen=True, kw_only=True)
class HotspotsRequest(SampledRequest):
    """One run of the job. depth: longest prefix, None for what suits the items; top: see `grow_trie`."""

    JOB: ClassVar[str] = "hotspots"

    depth: int | None
    top: int | None

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("depth", "top"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise RequestError(f"{name}: must be a whole number >= 1, got {value}")

    def prefixes(self, kind: str | None) -> Prefixes:
        """The prefix code of map cells, or of a column that holds values of this kind."""
        if kind is None:
            return NumberPrefixes(4, self.depth or _CELL_DEPTH)
        if kind == "integers":
            return NumberPrefixes(10, self.depth or _DIGITS)
        return TextPrefixes(self.depth or (10 if kind == "dates" else _CHARACTERS))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the job's options."""
    add_release_arguments(parser)
    add_item_arguments(parser, "find popular values of this column and their prefixes: text, integers or dates")
    parser.add_argument(
        "--depth",
        type=int,
        help=f"longest prefix: level of the region's quadtree (default {_CELL_DEPTH}), characters of text "
        f"({_CHARACTERS}), digits of integers ({_DIGITS})",
    )
    parser.add_argument(
        "--levels", type=int, default=3, help="levels of the trie, spread evenly up to the depth; each costs a round"
    )
    parser.add_argument("--top", type=int, metavar="N", help="publish so many of the last level, the most frequent")
    add_plan_arguments(parser)


def run(arguments: Sequence[str]) -> int:
    """Runs the job for a command line. Raises RequestError or DataError."""
    parser = JobParser("hotspots", __doc__)
    add_arguments(parser)
    options, settings = parser.parse_job(arguments)
    items: Items
    of_cells = column_or_cells(options, "--region W,S,E,N [--depth DEPTH]")
    spread_levels(options.depth or _CHARACTERS, options.levels)  # too many levels are a bad request, before any search
    if of_cells:
        depth = _CELL_DEPTH if options.depth is None else options.depth
        items = cell_items(options, depth)
        plan = plan_of(options, options.levels, 4**depth)
    else:
        items = ColumnItems(columns(options, PREFIXES), digits=options.depth or _DIGITS)
        plan = plan_of(options, options.levels)
    title = "Private hot spots" + ("" if of_cells else f" of {options.column}")
    request = HotspotsRequest(
        **release_options(options),
        plan=plan,
        counted=items,
        depth=options.depth,
        top=options.top,
    )

    def publish(inputs: Inputs, key: RunKey) -> beam.PTransform:
        prefixes = request.prefixes(None if of_cells else inputs.kinds[options.column])
        levels = spread_levels(prefixes.depth, plan.rounds)
        return TrieHeavyHitters(items, plan.sampling, key, prefixes, levels, request.top, **limits(inputs))

    run_sampled(request, settings, publish, trie_files, title)
    return 0


if __name__ == "__main__":
    from sfumato.pipelines.cli import command

    sys.exit(command(["hotspots", *sys.argv[1:]]))
