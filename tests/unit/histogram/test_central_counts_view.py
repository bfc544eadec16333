"""The pages of noisy counts: what they say beside the numbers of the tables."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from sfumato.schemas.locations import ItemColumns
from sfumato.transforms.histogram.central_counts import CentralCountPlan, noisy_levels
from sfumato.transforms.histogram.central_counts_view import counts_view
from sfumato.transforms.histogram.counts_release import CountMetadata, central_files
from sfumato.transforms.histogram.item_encoding import ColumnItems
from sfumato.transforms.histogram.user_sample import ItemCounts
from sfumato.transforms.privacy.admission import NoisyUserCounts
from sfumato.transforms.privacy.keys import FixedSecret, RunKey
from sfumato.transforms.release.metadata import ReleaseMetadata

pytestmark = pytest.mark.usefixtures("blank_pictures")
KEY = RunKey.derive(FixedSecret(b"pages of noisy counts, 32 bytes."), {"job": "test"})


@pytest.mark.parametrize(("users", "stddev", "known"), [(9012.0, 50.0, " of 9,000 users"), (2367.0, 1414.2, None)])
def test_headline_states_all_users_where_more_are_known(users: float, stddev: float, known: str | None) -> None:
    """A noisy count of all users that is below the counts of the items said `about 5,001 of 2,370 users`."""
    plan = CentralCountPlan(epsilon=1.0, delta=1e-6)
    parameters = {"column": "kind", "bound": {"max_items": 1, "max_records": 1}}
    metadata = CountMetadata(
        ReleaseMetadata("histogram", "monday", "2026-11-22T00:00:00", "test", True, parameters),
        plan,
        ColumnItems(ItemColumns("kind")),
    )
    counts = noisy_levels([ItemCounts(np.arange(5, dtype=np.uint64), np.full(5, 1000))], plan, KEY, (0,))
    admitted = replace(counts, admission=NoisyUserCounts(users, unusable=0.0, epsilon=0.01, noise_stddev=stddev))
    view = counts_view(central_files(admitted, metadata))
    if known is None:
        assert " of " not in view.headline.partition("about")[2]
        assert "2,370" not in view.model_dump_json()  # it is known to 1,000
    else:
        assert view.headline.endswith(known)
