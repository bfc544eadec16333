"""`sfumato histogram`: how many users hold each category or visit each map cell, by sample and threshold."""

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
from sfumato.schemas.items import CATEGORIES
from sfumato.transforms.histogram.item_encoding import ColumnItems, Items
from sfumato.transforms.histogram.sample_and_threshold import TrieHeavyHitters
from sfumato.transforms.histogram.sampled_release import trie_files
from sfumato.transforms.privacy.keys import RunKey


@dataclass(frozen=True, kw_only=True)
class HistogramRequest(SampledRequest):
    """One run of the job."""

    JOB: ClassVar[str] = "histogram"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the job's options."""
    add_release_arguments(parser)
    add_item_arguments(parser, "count the values of this column: text, integers, booleans or dates")
    parser.add_argument("--cells", type=int, metavar="DEPTH", help="count the 2^DEPTH x 2^DEPTH cells of the region")
    add_plan_arguments(parser)


def run(arguments: Sequence[str]) -> int:
    """Runs the job for a command line. Raises RequestError or DataError."""
    parser = JobParser("histogram", __doc__)
    add_arguments(parser)
    options, settings = parser.parse_job(arguments)
    items: Items
    if column_or_cells(options, "--cells DEPTH --region W,S,E,N"):
        if options.cells is None:
            raise RequestError("cells: a region needs --cells DEPTH, the depth of its grid")
        items = cell_items(options, options.cells)
        plan = plan_of(options, 1, 4**options.cells)
        title = f"Private histogram of {1 << options.cells} x {1 << options.cells} cells"
    else:
        if options.cells is not None:
            raise RequestError("cells: a grid of cells needs --region W,S,E,N")
        items = ColumnItems(columns(options, CATEGORIES))
        plan = plan_of(options, 1)
        title = f"Private histogram of {options.column}"
    request = HistogramRequest(**release_options(options), plan=plan, counted=items)

    def publish(inputs: Inputs, key: RunKey) -> beam.PTransform:
        return TrieHeavyHitters(items, plan.sampling, key, **limits(inputs))

    run_sampled(request, settings, publish, trie_files, title)
    return 0


if __name__ == "__main__":
    from sfumato.pipelines.cli import command

    sys.exit(command(["histogram", *sys.argv[1:]]))
