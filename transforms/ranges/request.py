"""The requests of range queries: to build a model, to answer queries from it, and to tune on public data."""

from __future__ import annotations

import importlib.util
from typing import Annotated, ClassVar, Self

from pydantic import BeforeValidator, model_validator

from sfumato.schemas.errors import RequestError
from sfumato.schemas.guarantee import CentralOrSecagg, Trust
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
from sfumato.schemas.requests.request_base import INPUT, MAP, METHOD, PRIVACY, RUN, Several, option, parts_of
from sfumato.transforms.counting.parameters import CountParameters
from sfumato.transforms.ranges.methods import METHODS, Models, Network
from sfumato.transforms.ranges.plan import ADAPTIVE, RangesPlan, method_texts
from sfumato.transforms.ranges.tuner import open_tuner

SIZE_RANGE = (25.0, 100.0)  # the smallest and the largest side of a queried square, in metres
EPSILONS = (0.05, 0.1, 0.2, 0.4, 0.8)  # paper 003, Section 6.1
SizeRangeOption = Annotated[tuple[float, float], BeforeValidator(parts_of)]
SIZE_RANGE_HELP = "smallest and largest side of queried squares, in metres"
SHARDS = ("shard_size", "dropout")
_OF_RELEASE = {
    "release",
    "output",
    "method",
    "sizes",
    "release_id",
    "overwrite",
    "log_format",
    "verbose",
    "dry_run",
    "basemap",
    "tiles",
}


class RangesRequest(LogColumns, MapGeography, CountingOptions):
    """Publishes a private model of location logs that estimates how many users are in any square."""

    JOB: ClassVar[str] = "ranges"
    COMMAND: ClassVar[str] = "ranges build"
    EXAMPLE: ClassVar[str] = "--input 'logs/*.parquet' --region 3.00,1.00,3.13,1.13 --epsilon 1 --output model"

    input: InputOption = option((), f"{INPUT_HELP} (required)", INPUT, common=True, metavar="PATTERN", style="several")
    region: RegionOption | None = option(None, f"{REGION_HELP} (required)", MAP, common=True, metavar=REGION_METAVAR)
    trust: CentralOrSecagg = option(
        Trust.CENTRAL,
        "central: the operator holds the logs and adds noise once; secagg: noise is added to the sum of each shard, "
        "which is more noise in total",
        PRIVACY,
        common=True,
    )
    method: str = option(
        "auto",
        f"method of the answers: {', '.join(method_texts())} (a heatmap's tree)",
        METHOD,
        common=True,
        metavar="NAME",
    )
    sizes: SizeRangeOption = option(SIZE_RANGE, SIZE_RANGE_HELP, MAP, common=True, metavar="LOW,HIGH")
    release: str | None = option(
        None,
        "a published heatmap, from which method adaptive makes a model without logs and at no cost, instead of "
        "--input, --region and --epsilon",
        INPUT,
        metavar="FOLDER",
    )
    depth: Depth | None = option(None, "levels of the heatmap's quadtree (method adaptive; default: 10)", METHOD)
    cell_width: float | None = option(
        None,
        "width of the grid's cells, in metres; auto: by the number of users and epsilon (methods auto, snh, grid)",
        METHOD,
        auto=True,
    )
    tuner: str | None = option(
        None,
        "file of `sfumato ranges tune`, which chooses the cell width (method auto)",
        METHOD,
        metavar="FILE",
    )
    network: Network | None = option(
        None,
        "local: one network for all sizes, which maps the counts around a square to an answer; paper: spatial neural "
        "histograms as published, one network of 20 layers for each size, which maps a place to a count and takes "
        "hours to train without a GPU (method snh; default: local)",
        METHOD,
    )
    models: Models | None = option(
        None,
        "number of networks (methods auto, snh). Local networks are averaged (default: 1; more take longer and are "
        "hardly better). A network of the paper is for one size (default: 8)",
        METHOD,
    )
    workload: str | None = option(
        None,
        "public Parquet file of typical queried squares, with columns x, y (degrees) and size (metres); the training "
        "weights places by the number of squares (methods auto, snh)",
        METHOD,
        metavar="FILE",
    )

    def resolve(self) -> RangesPlan | None:
        """Returns the plan, with its workload's path; None for a model of a published heatmap. Raises RequestError."""
        if self.release is not None:
            return None
        assert self.region is not None
        given = self.given(owners_of(METHODS))
        if "tuner" in given:
            given["tuner"] = open_tuner(given["tuner"])
        parameters = CountParameters(**self.parameter_values(), **self.given(("depth",)))
        plan = RangesPlan(self.region, Sizes(*self.sizes), self.method, given, parameters)
        if plan.trains and not all(map(importlib.util.find_spec, ("jax", "optax", "tqdm"))):
            raise RequestError(
                f"method: {plan.method} requires JAX and optax; run pip install '.[neural]', or use --method grid"
            )
        return plan

    @model_validator(mode="after")
    def _logs_or_release(self) -> Self:
        if self.release is not None:
            if others := [name for name in self.model_fields_set if name not in _OF_RELEASE]:
                name = min(others)
                raise RequestError(f"{name}: cannot be combined with --release")
            if "method" in self.model_fields_set and self.method != ADAPTIVE:
                raise RequestError(f"method: must be {ADAPTIVE} with --release, got {self.method!r}")
            return self
        if missing := [name for name, value in (("input", self.input), ("region", self.region)) if not value]:
            raise RequestError(self._missing(missing))
        if self.trust != Trust.SECAGG:
            self.refuse(SHARDS, "applies only with --trust secagg")
        if self.method != ADAPTIVE:
            self.refuse(("depth",), f"applies only with --method {ADAPTIVE}")
        return self


class AnswerRequest(RunnerOptions):
    """Estimates how many users are in each of many squares, from a published model.

    Answers to one file of queries are one Parquet file; answers to several files are a folder of files with the same
    names. Queries spend no privacy budget, however many you make.
    """

    JOB: ClassVar[str] = "ranges answer"
    EXAMPLE: ClassVar[str] = "--model model --queries squares.parquet --output answers.parquet"

    model: str = option(..., "a release of `ranges build`, or its model.npz, local or gs://", INPUT, metavar="MODEL")
    queries: tuple[str, ...] = option(
        ...,
        "Parquet files with columns x, y (degrees, of the square's centre) and size (its side in metres)",
        INPUT,
        metavar="PATTERN",
        style="several",
    )
    output: str = option(..., "a .parquet file; for several files of queries, a folder", INPUT, metavar="FILE|FOLDER")
    additive: bool = option(
        False,
        "answers that add up, for squares anywhere, such as tiles of a region; default: answers for squares around "
        "users",
        METHOD,
        common=True,
    )
    overwrite: bool = option(False, "replace existing answers", INPUT, common=True)


class TuneRequest(PlaceColumns, UserColumn):
    """Learns on public data which cell width is best, for `sfumato ranges build --tuner FILE`.

    The data must be public: exact values are used, the people in it are not protected, and no privacy budget is spent.
    """

    JOB: ClassVar[str] = "ranges tune"
    EXAMPLE: ClassVar[str] = "--public 'checkins/*.parquet' --sizes 25,100 --output tuner.npz"

    public: tuple[str, ...] = option(
        ...,
        "public location logs (Parquet), one data set each; one record of each user counts",
        INPUT,
        metavar="PATTERN",
        style="several",
    )
    output: str = option(..., "the tuner's file, for example tuner.npz", INPUT, metavar="FILE")
    overwrite: bool = option(False, "replace an existing file", INPUT, common=True)
    region: tuple[RegionOption, ...] = option(
        (),
        f"{REGION_HELP}; once for all data sets, or once for each in order; default: the middle 99.8% of each",
        MAP,
        metavar=REGION_METAVAR,
        style="repeated",
        common=True,
    )
    sizes: tuple[SizeRangeOption, ...] = option(
        (SIZE_RANGE,), SIZE_RANGE_HELP, MAP, metavar="LOW,HIGH", style="several", common=True
    )
    epsilons: Several[float] = option(
        EPSILONS, "values of epsilon for which widths are tried", PRIVACY, metavar="E,..."
    )
    users: Several[float] | None = option(
        None,
        "numbers of users to sample from each data set; default: all, a quarter and a sixteenth",
        METHOD,
        metavar="N,...",
    )
    seed: int = option(0, "the same seed and data give the same tuner", RUN, ge=0, le=2**63 - 1)
