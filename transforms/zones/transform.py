"""Private counts of zones as one transform: the sub-queries of a heatmap, with zones instead of cells."""

from __future__ import annotations

from sfumato.schemas.locations import LocationColumns
from sfumato.transforms.counting.parameters import CountParameters
from sfumato.transforms.counting.transform import CountLocations
from sfumato.transforms.geo.zone_raster import ZoneLocator
from sfumato.transforms.locations.spill import Spill
from sfumato.transforms.privacy.admission import ChargeAndAdmit
from sfumato.transforms.privacy.keys import RunKey
from sfumato.transforms.zones.plan import ZoneLevels


class CountZones(CountLocations):
    """Bundles of log files -> a singleton CountState, differentially private as a whole.

    `release.zone_counts` makes the estimates of all levels from it, and `release.zones_files` the files of a release.

    Args:
        parameters: with the zones as their method, see `plan.zones_parameters`.
        key: of the run, bound to all that shapes the counts; use each key for one input, once.
        columns, spill, admit: see `CountLocations`.
    """

    def __init__(
        self,
        parameters: CountParameters,
        key: RunKey,
        columns: LocationColumns,
        spill: Spill,
        admit: ChargeAndAdmit,
    ):
        assert isinstance(parameters.method, ZoneLevels)
        super().__init__(ZoneLocator(parameters.method.zones), parameters, key, columns, spill, admit=admit)
