"""A model of range queries as it is requested: the job's options and those of each method, side by side."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar, Self

from pydantic import create_model, model_validator

from sfumato.schemas.errors import RequestError
from sfumato.schemas.requests.log_columns import LogColumns
from sfumato.schemas.requests.publish_request import (
    INPUT_HELP,
    REGION_HELP,
    REGION_METAVAR,
    InputOption,
    MapGeography,
    RegionOption,
    ReleaseRequest,
)  # fmt: skip
from sfumato.schemas.requests.range_queries import SIZE_RANGE, SIZE_RANGE_HELP, SizeRangeOption
from sfumato.schemas.requests.request_base import INPUT, MAP, METHOD, PRIVACY, option
from sfumato.schemas.trust import CentralOrSecagg, Trust
from sfumato.transforms.heatmap.heatmap_options import heatmap_options
from sfumato.transforms.heatmap.heatmap_request import request_fields
from sfumato.transforms.ranges.ranges_plan import ADAPTIVE, method_options, method_texts

COUNTING = ("epsilon", "delta", "noise", "population", "population_share", "max_bad_fraction")
SHARDS = ("shard_size", "dropout")
_OF_RELEASE = {
    "release", "output", "method", "sizes", "release_id", "overwrite", "log_format", "verbose", "dry_run",
    "basemap", "tiles",
}  # fmt: skip
_METHODS = ", ".join(method_texts())


class RangesOptions(LogColumns, MapGeography, ReleaseRequest):
    """The options of the job, without those of how users are counted and of the methods."""

    JOB: ClassVar[str] = "ranges"
    COMMAND: ClassVar[str] = "ranges build"
    ABOUT: ClassVar[str] = "Publishes a private model of location logs that answers how many users are in any square."
    EXAMPLE: ClassVar[str] = "--input 'logs/*.parquet' --region 3.00,1.00,3.13,1.13 --epsilon 1 --output model"

    input: InputOption = option((), f"{INPUT_HELP} (required)", INPUT, common=True, metavar="PATTERN", style="several")
    region: RegionOption | None = option(None, f"{REGION_HELP} (required)", MAP, common=True, metavar=REGION_METAVAR)
    method: str = option(
        "auto", f"how ranges are answered: {_METHODS} (a heatmap's tree)", METHOD, common=True, metavar="NAME"
    )
    sizes: SizeRangeOption = option(SIZE_RANGE, SIZE_RANGE_HELP, MAP, common=True, metavar="LOW,HIGH")
    trust: CentralOrSecagg = option(
        Trust.CENTRAL,
        "central: the operator adds noise once; secagg: noise in the sum of each shard",
        PRIVACY,
        common=True,
        metavar="HOW",
    )
    release: str | None = option(
        None,
        "in place of --input, --region and --epsilon: a heatmap that is published already, from which method adaptive "
        "makes a model without any logs, and at no cost",
        INPUT,
        metavar="FOLDER",
    )

    @model_validator(mode="after")
    def _logs_or_release(self) -> Self:
        if self.release is not None:
            if others := [name for name in self.model_fields_set if name not in _OF_RELEASE]:
                name = min(others)
                raise RequestError(f"{name}: has no effect with --release: a published heatmap says all but --sizes")
            if "method" in self.model_fields_set and self.method != ADAPTIVE:
                raise RequestError(f"method: must be {ADAPTIVE} with --release, got {self.method!r}")
            return self
        if missing := [name for name in ("input", "region") if not getattr(self, name)]:
            raise RequestError(f"{', '.join(missing)}: required, as in sfumato {self.COMMAND} {self.EXAMPLE}")
        if self.trust != Trust.SECAGG and (shards := self.given(SHARDS)):
            raise RequestError(f"{next(iter(shards))}: is of shards, which need --trust secagg")
        if self.given(["depth"]) and self.method != ADAPTIVE:
            raise RequestError(f"depth: is of the heatmap's tree; use it with --method {ADAPTIVE}")
        return self


def _fields() -> dict[str, Any]:
    """Of the heatmap's options those that say how users are counted, and all of the methods'."""
    counting = heatmap_options()
    shards = {name: replace(counting[name], help=f"{counting[name].help} (trust secagg)") for name in SHARDS}
    adaptive = replace(counting["depth"], methods=(ADAPTIVE,))
    chosen = {name: counting[name] for name in COUNTING}
    return request_fields({**chosen, **shards, **method_options(), "depth": adaptive})


RangesRequest: type[RangesOptions] = create_model("RangesRequest", __base__=RangesOptions, **_fields())
