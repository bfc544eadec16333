"""The requests of range queries: to build a model, to answer queries from it, and to tune on public data."""

from __future__ import annotations

import importlib.util
from typing import Annotated, ClassVar, Literal, Self

from pydantic import BeforeValidator, model_validator

from sfumato.schemas.errors import RequestError
from sfumato.schemas.ranges import Sizes
from sfumato.schemas.requests.checks import owners_of
from sfumato.schemas.requests.counting_options import CountingOptions, Depth
from sfumato.schemas.requests.log_columns import LogColumns, PlaceColumns, UserColumn
from sfumato.schemas.requests.publish_request import (
    INPUT_HELP,
    REGION_HELP,
    REGION_METAVAR,
    InputOption,
    MapGeography,
    RegionOption,
    RunnerOptions,
)
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
from sfumato.schemas.trust import Trust
from sfumato.transforms.counting.parameters import HeatmapParameters
from sfumato.transforms.ranges.methods import METHODS, Models, Network
from sfumato.transforms.ranges.plan import ADAPTIVE, RangesPlan, method_texts
from sfumato.transforms.ranges.tuner import open_tuner

SIZE_RANGE = (25.0, 100.0)  # the smallest and the largest side of a queried square, in metres
EPSILONS = (0.05, 0.1, 0.2, 0.4, 0.8)  # paper 003, Section 6.1
SizeRangeOption = Annotated[tuple[float, float], BeforeValidator(parts_of)]
SIZE_RANGE_HELP = "smallest and largest side of the squares to be queried, in metres"
SHARDS = ("shard_size", "dropout")
_OF_RELEASE = {
    "release", "output", "method", "sizes", "release_id", "overwrite", "log_format", "verbose", "dry_run",
    "basemap", "tiles",
}  # fmt: skip


class RangesRequest(LogColumns, MapGeography, CountingOptions):
    """A model of range queries."""

    JOB: ClassVar[str] = "ranges"
    COMMAND: ClassVar[str] = "ranges build"
    ABOUT: ClassVar[str] = "Publishes a private model of location logs that answers how many users are in any square."
    EXAMPLE: ClassVar[str] = "--input 'logs/*.parquet' --region 3.00,1.00,3.13,1.13 --epsilon 1 --output model"

    input: InputOption = option((), f"{INPUT_HELP} (required)", INPUT, common=True, metavar="PATTERN", style="several")
    region: RegionOption | None = option(None, f"{REGION_HELP} (required)", MAP, common=True, metavar=REGION_METAVAR)
    method: str = option(
        "auto",
        f"how ranges are answered: {', '.join(method_texts())} (a heatmap's tree)",
        METHOD,
        common=True,
        metavar="NAME",
    )
    sizes: SizeRangeOption = option(SIZE_RANGE, SIZE_RANGE_HELP, MAP, common=True, metavar="LOW,HIGH")
    release: str | None = option(
        None,
        "a published heatmap, from which method adaptive makes a model without any logs and at no cost; replaces "
        "--input, --region and --epsilon",
        INPUT,
        metavar="FOLDER",
    )
    depth: Depth | None = option(None, "levels of the heatmap's quadtree (method adaptive; default: 10)", METHOD)
    cell_width: float | None = option(
        None,
        "width of the cells of the grid, in metres; auto: by the number of users and epsilon (methods auto, snh, grid)",
        METHOD,
        auto=True,
    )
    tuner: str | None = option(
        None,
        "file of `sfumato ranges tune`, which chooses the width of cells and the method (method auto)",
        METHOD,
        metavar="FILE",
    )
    network: Network | None = option(
        None,
        "local: one network for all sizes, from the counts around a square to an answer; paper: spatial neural "
        "histograms as published, a network of 20 x 80 for each of several sizes, from a place to a count, which "
        "takes hours without a GPU (method snh; default: local)",
        METHOD,
    )
    models: Models | None = option(
        None,
        "number of networks: local ones are averaged (default 3), the paper's have one size each (default 8) (methods "
        "auto, snh)",
        METHOD,
    )
    workload: str | None = option(
        None,
        "public Parquet file of squares like those to be queried, with columns x, y (degrees) and size (metres): the "
        "training weights places by their number (methods auto, snh)",
        METHOD,
        metavar="FILE",
    )
    checkpoints: str | None = option(
        None,
        "local folder for checkpoints of the training: the same command with the same key file and release id "
        "continues from them (methods auto, snh)",
        METHOD,
        metavar="FOLDER",
    )

    def resolve(self) -> RangesPlan | None:
        """The plan, with the path of its workload; None for a model of a published heatmap. Raises RequestError."""
        if self.release is not None:
            return None
        assert self.region is not None
        given = self.given(owners_of(METHODS))
        if "tuner" in given:
            given["tuner"] = open_tuner(given["tuner"])
        counting = HeatmapParameters(**self.counting(), **self.given(("depth",)))
        plan = RangesPlan(self.region, Sizes(*self.sizes), self.method, given, counting)
        if plan.trains and not all(map(importlib.util.find_spec, ("jax", "optax", "tqdm"))):
            raise RequestError(
                f"method: {plan.method} trains networks, which need JAX and optax: "
                "pip install 'sfumato[neural]', or use --method grid"
            )
        return plan

    @model_validator(mode="after")
    def _logs_or_release(self) -> Self:
        if self.release is not None:
            if others := [name for name in self.model_fields_set if name not in _OF_RELEASE]:
                name = min(others)
                raise RequestError(f"{name}: has no effect with --release: a published heatmap states all but --sizes")
            if "method" in self.model_fields_set and self.method != ADAPTIVE:
                raise RequestError(f"method: must be {ADAPTIVE} with --release, got {self.method!r}")
            return self
        if missing := [name for name in ("input", "region") if not getattr(self, name)]:
            raise RequestError(f"{', '.join(missing)}: required, as in sfumato {self.COMMAND} {self.EXAMPLE}")
        if self.trust != Trust.SECAGG and (shards := self.given(SHARDS)):
            raise RequestError(f"{next(iter(shards))}: applies only with --trust secagg")
        if self.depth is not None and self.method != ADAPTIVE:
            raise RequestError(f"depth: applies only with --method {ADAPTIVE}")
        return self


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
