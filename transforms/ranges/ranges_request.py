"""The request of `sfumato ranges build`: a model of range queries."""

from __future__ import annotations

import importlib.util
from typing import ClassVar, Self

from pydantic import model_validator

from sfumato.schemas.errors import RequestError
from sfumato.schemas.ranges import Sizes
from sfumato.schemas.requests.commands import SIZE_RANGE, SIZE_RANGE_HELP, SizeRangeOption
from sfumato.schemas.requests.counting_options import CountingOptions, Depth
from sfumato.schemas.requests.log_columns import LogColumns
from sfumato.schemas.requests.publish_request import (
    INPUT_HELP,
    REGION_HELP,
    REGION_METAVAR,
    InputOption,
    MapGeography,
    RegionOption,
)
from sfumato.schemas.requests.request_base import INPUT, MAP, METHOD, option
from sfumato.schemas.trust import Trust
from sfumato.transforms.checks import owners_of
from sfumato.transforms.heatmap.parameters import HeatmapParameters
from sfumato.transforms.ranges.methods import METHODS, Models, Network
from sfumato.transforms.ranges.ranges_plan import ADAPTIVE, RangesPlan, method_texts
from sfumato.transforms.ranges.tuner import open_tuner

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
        needs_jax = plan.method in ("auto", "snh") and plan.trains
        if needs_jax and not all(map(importlib.util.find_spec, ("jax", "optax", "tqdm"))):
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
