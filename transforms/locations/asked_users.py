"""The rows of the users of one rotating cohort. Pure."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from sfumato.schemas.locations import LocationColumns
from sfumato.schemas.rotation import Rotation
from sfumato.transforms.locations.record_values import nulls, without_views
from sfumato.transforms.privacy.keys import RunKey, random_bits
from sfumato.transforms.privacy.rotation import cohort_of


@dataclass(frozen=True)
class AskedUsers:
    """The cohort that a run asks. All other users' rows are left out where they are read.

    A row without a user id counts as a user of its own (`RowCounts.without_id`). Its coordinates choose its cohort, so
    that it is asked as rarely as any user.

    Attributes:
        rotation: the cohort.
        key: from `rotation_key`.
    """

    rotation: Rotation
    key: RunKey

    def only(self, batch: pa.RecordBatch, columns: LocationColumns) -> pa.RecordBatch:
        """The rows of the asked users.

        Args:
            batch: of a log.
            columns: the names of its columns of ids, latitudes and longitudes. Ids are integers, strings or bytes.
        """
        names = batch.schema.names
        batch = pa.RecordBatch.from_arrays([without_views(column) for column in batch.columns], names)
        ids = batch.column(columns.user_id)
        missing = nulls(ids)
        cohorts = np.empty(len(ids), dtype=np.int64)
        cohorts[~missing] = cohort_of(ids.drop_null(), self.key, self.rotation.cohorts)
        if missing.any():
            rows = batch.filter(pa.array(missing))
            cohorts[missing] = self._cohorts_by_place(rows.column(columns.latitude), rows.column(columns.longitude))
        return batch.filter(pa.array(cohorts == self.rotation.cohort))

    def _cohorts_by_place(self, latitude: pa.Array, longitude: pa.Array) -> NDArray[np.int64]:
        """The cohort of each place, int64[n]. Missing coordinates are a place too."""
        north, east = (
            np.nan_to_num(np.asarray(one.to_numpy(zero_copy_only=False), dtype=np.float64)).view(np.uint64)
            for one in (latitude, longitude)
        )
        places = random_bits(self.key.subkey("places"), north, east)[:, 0]
        return cohort_of(pa.array(places.view(np.int64)), self.key, self.rotation.cohorts)
