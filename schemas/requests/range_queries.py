"""Requests of `sfumato ranges`: the users in squares by a published model, and a tuner learned on public data.

A tuner predicts the best cell width for `sfumato ranges build`.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import BeforeValidator

from sfumato.schemas.requests.log_columns import PlaceColumns, UserColumn
from sfumato.schemas.requests.publish_request import REGION_HELP, REGION_METAVAR, RegionOption, RunnerOptions
from sfumato.schemas.requests.request_base import (
    INPUT,
    MAP,
    METHOD,
    PRIVACY,
    RUN,
    Several,
    common_option,
    option,
    parts_of,
)

SIZE_RANGE = (25.0, 100.0)  # the smallest and the largest side of a queried square, in metres
EPSILONS = (0.05, 0.1, 0.2, 0.4, 0.8)  # paper 003, Section 6.1
SizeRangeOption = Annotated[tuple[float, float], BeforeValidator(parts_of)]
SIZE_RANGE_HELP = "smallest and largest side of the squares to be queried, in metres"


class AnswerRequest(RunnerOptions):
    """Answers how many users are in each of many squares, from a published model.

    Answers to one file of queries are one Parquet file; answers to several are a folder of files with the names of
    the queries' files. No privacy budget is spent: a release may be queried for ever.
    """

    JOB: ClassVar[str] = "ranges answer"
    EXAMPLE: ClassVar[str] = "--model model --queries squares.parquet --output answers.parquet"

    model: str = common_option(
        ..., "a release of `ranges build`, or its model.npz, local or gs://", INPUT, metavar="MODEL"
    )
    queries: tuple[str, ...] = common_option(
        ...,
        "Parquet files with columns x, y (degrees, of the square's centre) and size (its side in metres)",
        INPUT,
        metavar="PATTERN",
        style="several",
    )
    output: str = common_option(
        ..., "a file that ends in .parquet, or a folder for several", INPUT, metavar="FILE|FOLDER"
    )
    additive: bool = common_option(
        False,
        "answers that add up, for squares anywhere, such as tiles of a region; without it, answers are for squares "
        "around users",
        METHOD,
    )
    overwrite: bool = common_option(False, "replace answers that are there", INPUT)


class TuneRequest(PlaceColumns, UserColumn):
    """Learns on public data which cell width is best, and whether networks are worth it, for `sfumato ranges build
    --tuner FILE`. The data must be public: exact values of it are used, nothing protects the people in it, and no
    privacy budget is spent.
    """

    JOB: ClassVar[str] = "ranges tune"
    EXAMPLE: ClassVar[str] = "--public 'checkins/*.parquet' --sizes 25,100 --output tuner.npz"

    public: tuple[str, ...] = common_option(
        ...,
        "public location logs (Parquet), one data set each; of each user one record counts",
        INPUT,
        metavar="PATTERN",
        style="several",
    )
    output: str = common_option(..., "the tuner's file, for example tuner.npz", INPUT, metavar="FILE")
    overwrite: bool = common_option(False, "replace a file that is there", INPUT)
    region: tuple[RegionOption, ...] = common_option(
        (),
        f"{REGION_HELP}; once for all data sets, or once for each in their order; default: of the middle 99.8% of each",
        MAP,
        metavar=REGION_METAVAR,
        style="repeated",
    )
    sizes: tuple[SizeRangeOption, ...] = common_option(
        (SIZE_RANGE,), SIZE_RANGE_HELP, MAP, metavar="LOW,HIGH", style="several"
    )
    epsilons: Several[float] = option(EPSILONS, "epsilons at which widths are tried", PRIVACY, metavar="E,...")
    users: Several[float] | None = option(
        None,
        "numbers of users to draw from each data set; default: all, a quarter and a sixteenth",
        METHOD,
        metavar="N,...",
    )
    method: Literal["grid", "snh"] = common_option(
        "grid",
        "grid: seconds; snh: also trains three local networks for every epsilon, size and number of users, of about a "
        "minute each, and learns where they are better than the grid",
        METHOD,
    )
    seed: int = option(0, "the same seed and data give the same tuner", RUN, ge=0, le=2**63 - 1)
