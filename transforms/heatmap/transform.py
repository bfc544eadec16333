"""A private heatmap as one transform, and the key that is bound to all that shapes it."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from sfumato.schemas.errors import RequestError
from sfumato.schemas.locations import LocationColumns
from sfumato.schemas.region import Grid, Region
from sfumato.transforms.counting.parameters import CountParameters, check_prior, digest
from sfumato.transforms.counting.state import Estimate
from sfumato.transforms.counting.transform import CountLocations
from sfumato.transforms.locations.spill import Spill
from sfumato.transforms.privacy.admission import ChargeAndAdmit
from sfumato.transforms.privacy.keys import RunKey
from sfumato.transforms.privacy.user_hashes import ActiveCohort


class CountHeatmap(CountLocations):
    """Bundles of log files -> a singleton CountState, differentially private as a whole.

    The state holds the noisy counts of every sub-query. The method's `decode` makes the map of it, and
    `release.release_files` the files of a release.

    Args:
        region, parameters: of the heatmap.
        key: of the run. It is bound to the region, the parameters, the columns and the prior, but not to the input.
            Use it for one input, once: two inputs under one key would get the same noise, which their difference
            cancels.
        columns, spill, prior, admit, active_cohort: see `CountLocations`. The prior has the same region and depth.

    Raises:
        RequestError: categories, slots or rotation differ from the parameters', or the prior does not fit.
    """

    def __init__(
        self,
        region: Region,
        parameters: CountParameters,
        key: RunKey,
        columns: LocationColumns | None = None,
        spill: Spill | str | None = None,
        prior: Estimate | None = None,
        admit: ChargeAndAdmit | None = None,
        active_cohort: ActiveCohort | None = None,
    ):
        columns = columns or LocationColumns()
        for name, given in (
            ("categories", columns.categories),
            ("slots", len(columns.slots) if columns.slots else 1),
            ("records_per_user", columns.records_per_user),
        ):
            if given != (expected := getattr(parameters, name)):
                raise RequestError(f"{name}: the columns have {given}, the heatmap's parameters {expected}")
        if (1 if active_cohort is None else active_cohort.rotation.cohorts) != parameters.rotation:
            raise RequestError(
                f"rotation: the heatmap's parameters have {parameters.rotation} cohorts, the rows others"
            )
        check_prior(prior, parameters)
        bound = bind_key(key, region, parameters, columns, prior, active_cohort)
        super().__init__(Grid(region, parameters.depth), parameters, bound, columns, spill, prior, admit, active_cohort)


def bind_key(
    key: RunKey,
    region: Region,
    parameters: CountParameters,
    columns: LocationColumns,
    prior: Estimate | None = None,
    active_cohort: ActiveCohort | None = None,
) -> RunKey:
    """Returns the key for one heatmap's region, parameters, columns, earlier map and cohort."""
    metadata: dict[str, Any] = {"region": asdict(region), **parameters.metadata(), "columns": columns.metadata()}
    if prior is not None:
        metadata["prior"] = digest(prior)
    if active_cohort is not None:
        metadata["active_cohort"] = asdict(active_cohort.rotation)
    return key.narrowed(metadata)
