"""The rows of the users of one rotating cohort. Pure."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from sfumato.schemas.locations import LocationColumns
from sfumato.schemas.rotation import Rotation
from sfumato.transforms.inputs.text_values import without_views
from sfumato.transforms.locations.record_values import nulls
from sfumato.transforms.privacy.keys import RunKey
from sfumato.transforms.privacy.rotation import cohort_of

_NOBODY = b"\0 no user id"  # an id that no text format holds


@dataclass(frozen=True)
class AskedUsers:
    """The cohort that a run asks. All other users' rows are left out where they are read.

    All rows without a user id count as one user (`RowCounts.nobody`), with a cohort like any other's.

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
            columns: the name of its column of ids: integers, strings or bytes.
        """
        names = batch.schema.names
        batch = pa.RecordBatch.from_arrays([without_views(column) for column in batch.columns], names)
        ids = batch.column(columns.user_id)
        missing = nulls(ids)
        cohorts = np.empty(len(ids), dtype=np.int64)
        cohorts[~missing] = cohort_of(ids.drop_null(), self.key, self.rotation.cohorts)
        cohorts[missing] = cohort_of(pa.array([_NOBODY]), self.key, self.rotation.cohorts)[0]
        return batch.filter(pa.array(cohorts == self.rotation.cohort))
