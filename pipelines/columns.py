"""The columns of location logs on a command line: whose, where, and what a record weighs or says besides."""

from __future__ import annotations

import argparse

from sfumato.schemas.errors import RequestError
from sfumato.schemas.locations import Auxiliary, LocationColumns

_DEFAULTS = LocationColumns()


def add_column_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options that name columns of a location log, without auxiliary data."""
    for name in ("user_id", "latitude", "longitude"):
        parser.add_argument(f"--{name}_column", default=getattr(_DEFAULTS, name), help=f"column of the {name}")
    parser.add_argument(
        "--weight_column", metavar="NAME", help="column of the records' weights, numbers >= 0; default: all weigh alike"
    )
    parser.add_argument(
        "--time_column",
        metavar="NAME",
        help="weigh records by dwell time: the time until the same user's next record, by this column of timestamps or "
        "seconds",
    )
    parser.add_argument(
        "--max_dwell",
        type=float,
        metavar="SECONDS",
        help="the longest dwell time of a record, and that of a user's last one, with --time_column "
        f"(default: {_DEFAULTS.max_dwell:g})",
    )


def add_auxiliary_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of auxiliary data."""
    parser.add_argument(
        "--auxiliary",
        metavar="NAME",
        help="column of a boolean or of a few categories, whose share at each place counts",
    )
    parser.add_argument(
        "--categories",
        metavar="NAMES",
        help="values of the --auxiliary column, separated by commas; they are published, so they must be known from "
        "elsewhere (default: false,true, or 0 and 1)",
    )


def location_columns(options: argparse.Namespace) -> LocationColumns:
    """The columns that a command line names. Raises RequestError for options that do not go together."""
    auxiliary, categories = getattr(options, "auxiliary", None), getattr(options, "categories", None)
    if options.max_dwell is not None and options.time_column is None:
        raise RequestError("max_dwell: is of dwell times, which need --time_column NAME")
    if categories is not None and auxiliary is None:
        raise RequestError("categories: are of a column, which needs --auxiliary NAME")
    return LocationColumns(
        user_id=options.user_id_column,
        latitude=options.latitude_column,
        longitude=options.longitude_column,
        weight=options.weight_column,
        time=options.time_column,
        max_dwell=_DEFAULTS.max_dwell if options.max_dwell is None else options.max_dwell,
        auxiliary=None if auxiliary is None else Auxiliary.parse(auxiliary, categories),
    )
