"""`sfumato quantiles`: quantiles and range counts of a number over users, by sample and threshold."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import apache_beam as beam

from sfumato.pipelines.job import Inputs, add_release_arguments, release_options
from sfumato.pipelines.options import JobParser
from sfumato.pipelines.sampled import SampledRequest, add_plan_arguments, columns, limits, plan_of, run_sampled
from sfumato.schemas.errors import RequestError
from sfumato.schemas.items import NUMBERS
from sfumato.transforms.histogram.curve import check_shares
from sfumato.transforms.histogram.item_encoding import NumberItems
from sfumato.transforms.histogram.prefixes import NumberPrefixes, spread_levels
from sfumato.transforms.histogram.sample_and_threshold import InteractiveQuantiles, TrieHeavyHitters
from sfumato.transforms.histogram.sampled_release import hierarchy_files, search_files
from sfumato.transforms.privacy.keys import RunKey


@dataclass(frozen=True, kw_only=True)
class QuantilesRequest(SampledRequest):
    """One run of the job. quantiles: shares in (0, 1); ranges: (low, high) pairs within the whole range."""

    JOB: ClassVar[str] = "quantiles"

    method: str
    quantiles: tuple[float, ...]
    ranges: tuple[tuple[float, float], ...]

    def __post_init__(self) -> None:
        super().__post_init__()
        check_shares(self.quantiles)
        assert isinstance(self.counted, NumberItems)
        if self.ranges and self.method == "interactive":
            raise RequestError("ranges: the interactive method answers quantiles alone; use --method hierarchical")
        for low, high in self.ranges:
            if not self.counted.low <= low < high <= self.counted.high:
                raise RequestError(
                    f"ranges: {low:g}:{high:g} must be LOW:HIGH with LOW < HIGH within the range "
                    f"{self.counted.low:g},{self.counted.high:g}"
                )


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the job's options."""
    add_release_arguments(parser)
    parser.add_argument("--column", required=True, metavar="NAME", help="column of integers or floating-point numbers")
    parser.add_argument("--range", required=True, metavar="LOW,HIGH", help="values outside are moved to its borders")
    parser.add_argument("--quantiles", default="0.1,0.25,0.5,0.75,0.9", help="shares of the users, between 0 and 1")
    parser.add_argument("--ranges", metavar="A:B,C:D", help="count the users in these ranges as well")
    parser.add_argument(
        "--method",
        choices=("hierarchical", "interactive"),
        default="hierarchical",
        help="hierarchical: histograms at several levels; interactive: a binary search, a round a bit",
    )
    parser.add_argument("--bits", type=int, default=12, help="the range is cut into 2^bits bins")
    parser.add_argument(
        "--levels", type=int, default=3, help="levels of the hierarchical method, spread evenly up to the bits"
    )
    add_plan_arguments(parser)


def run(arguments: Sequence[str]) -> int:
    """Runs the job for a command line. Raises RequestError or DataError."""
    parser = JobParser("quantiles", __doc__)
    add_arguments(parser)
    options, settings = parser.parse_job(arguments)
    (low, high), *more = parse_pairs("range", options.range.replace(",", ":"))
    if more:
        raise RequestError(f"range: expected two numbers LOW,HIGH, got {options.range!r}")
    items = NumberItems(columns(options, NUMBERS), low, high, options.bits)
    interactive = options.method == "interactive"
    levels = () if interactive else spread_levels(options.bits, options.levels)
    shares = parse_numbers("quantiles", options.quantiles)
    # What an interactive round counts is the parts between the searches.
    counted = len(shares) + 1 if interactive else 1 << options.bits
    plan = plan_of(options, options.bits if interactive else options.levels, counted)
    request = QuantilesRequest(
        **release_options(options),
        plan=plan,
        counted=items,
        method=options.method,
        quantiles=shares,
        ranges=parse_pairs("ranges", options.ranges) if options.ranges else (),
    )

    def publish(inputs: Inputs, key: RunKey) -> beam.PTransform:
        settled = limits(inputs)
        if interactive:
            return InteractiveQuantiles(items, plan.sampling, key, request.quantiles, **settled)
        return TrieHeavyHitters(items, plan.sampling, key, NumberPrefixes(2, items.bits), levels, **settled)

    title = f"Private distribution of {options.column}"
    assemble = search_files if interactive else hierarchy_files
    asked = () if interactive else (request.quantiles, request.ranges)
    run_sampled(request, settings, publish, assemble, title, *asked)
    return 0


def parse_numbers(name: str, text: str) -> tuple[float, ...]:
    """Reads `0.1,0.5`. Raises RequestError."""
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise RequestError(f"{name}: expected numbers separated by commas, got {text!r}") from None


def parse_pairs(name: str, text: str) -> tuple[tuple[float, float], ...]:
    """Reads `0:10,5:20`. Raises RequestError."""
    pairs = []
    for part in text.split(","):
        try:
            low, high = (float(number) for number in part.split(":"))
        except ValueError:
            raise RequestError(f"{name}: expected pairs LOW:HIGH separated by commas, got {text!r}") from None
        pairs.append((low, high))
    return tuple(pairs)


if __name__ == "__main__":
    from sfumato.pipelines.cli import command

    sys.exit(command(["quantiles", *sys.argv[1:]]))
