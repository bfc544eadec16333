"""The files of a release by a trusted curator: tables, manifest, warnings and page, from noisy sums alone."""

from __future__ import annotations

import io
import json
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from numpy.typing import NDArray

from benchmarks.evaluation.moments_in_memory import run_centrally
from sfumato.schemas.moments import EVERYBODY, MOMENTS_SCHEMA, OTHER, Statistic, ValueRange
from sfumato.schemas.region import Grid
from sfumato.schemas.views import MomentsBody
from sfumato.transforms.moments.central.central_moments import CentralMomentsPlan, CentralSums
from sfumato.transforms.moments.groups import CellGroups, ColumnGroups, Grouping
from sfumato.transforms.moments.release import MomentsMetadata, central_files, groups_margin
from sfumato.transforms.moments.view import moments_view
from sfumato.transforms.privacy.keys import FixedSecret, RunKey
from sfumato.transforms.release.metadata import ReleaseMetadata
from tests.conftest import REGION
from tests.seeds import seeded_rng

KEY = RunKey.derive(FixedSecret(b"central releases" * 2), {"job": "moments"})
RELEASE = ReleaseMetadata("moments", "monday", "2026-11-22T00:00:00+00:00", "key file", True, {"column": "age"})
SPAN = ValueRange(0.0, 120.0)
BY_PLACE = Grouping(ColumnGroups("place", ("north", "tiny", "south", "empty")))


def ran(
    values: NDArray[np.float64],
    names: tuple[str, ...] = ("mean", "variance"),
    groups: Any = None,
    rows: int = 1,
    span: ValueRange | None = SPAN,
    epsilon: float = 4.0,
) -> CentralSums:
    plan = CentralMomentsPlan(statistics=tuple(map(Statistic, names)), epsilon=epsilon, span=span)
    return run_centrally(values, plan, KEY, groups, rows)


def made(state: CentralSums, grouping: Grouping | None = None, bounded: bool = True) -> dict[str, bytes]:
    return central_files(state, MomentsMetadata(RELEASE, grouping, "age", bounded))


def table(files: dict[str, bytes], name: str) -> pa.Table:
    return pq.read_table(io.BytesIO(files[name]))


def manifest(files: dict[str, bytes]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(files["manifest.json"])
    return found


def ages(n: int = 5000, seed: int = 0) -> NDArray[np.float64]:
    return np.clip(seeded_rng(seed).normal(40, 12, n), 0, 120)


def by_size(n: int = 5000) -> NDArray[np.int64]:
    return seeded_rng(1).choice(5, n, p=[0.6, 0.004, 0.3, 0.0, 0.096])


def test_everybody_alone_has_one_table_and_states_the_guarantee() -> None:
    state = ran(ages())
    files = made(state)
    assert set(files) == {"moments.parquet", "moments.png", "index.html", "manifest.json"}
    moments = table(files, "moments.parquet")
    assert moments.schema.equals(MOMENTS_SCHEMA)
    assert moments["statistic"].to_pylist() == ["mean", "variance"]
    assert moments.to_pylist() == [vars(one) for one in state.estimates()]
    stated = manifest(files)
    privacy = stated["privacy"]
    assert (privacy["trust"], privacy["epsilon"], privacy["delta"]) == ("central", 4.0, 0.0)
    assert privacy["shares"] == state.plan.shares
    assert stated["range"] == {"low": 0.0, "high": 120.0, "source": "given"}
    assert "trusted curator" in privacy["assumptions"][0]
    assert not any("secure aggregation" in one or "Randomised response" in one for one in privacy["assumptions"])
    assert stated["warnings"] == []
    assert files["moments.png"] != made(ran(ages() + 9))["moments.png"]  # the picture shows the value
    assert "k times epsilon" in " ".join(manifest(made(state, bounded=False))["privacy"]["assumptions"])


def test_small_groups_are_merged_and_totals_agree() -> None:
    values = ages()
    files = made(ran(values, ("mean", "count", "sum"), by_size(), 5), BY_PLACE)
    rows = {(row["group"], row["statistic"]): row["value"] for row in table(files, "moments.parquet").to_pylist()}
    groups = {group for group, _ in rows}
    assert groups == {EVERYBODY, "north", "south", OTHER}
    for statistic in ("count", "sum"):
        parts = sum(rows[group, statistic] for group in groups - {EVERYBODY})
        assert parts == pytest.approx(rows[EVERYBODY, statistic], rel=1e-9)
    assert rows["north", "mean"] == pytest.approx(values[by_size() == 0].mean(), abs=1.0)
    assert manifest(files)["results"]["groups_published"] == 3


def test_many_empty_groups_are_seldom_shown() -> None:
    """Laplace noise has heavier tails than a normal one: of 200 runs at most 5% show any of 400 empty groups."""
    grouping = Grouping(ColumnGroups("g", tuple(map(str, range(400)))), 1)
    plan = CentralMomentsPlan(statistics=(Statistic("count"),), epsilon=0.5)
    shown = 0
    for number in range(200):
        key = RunKey.derive(FixedSecret(b"empty groups" * 3), {"number": number})
        state = run_centrally(np.zeros(0), plan, key, np.zeros(0, np.int64), 401)
        names, _ = grouping.published_groups(state.clients, groups_margin(plan, grouping))
        shown += len(names) > 1
    assert shown <= 35  # P < 1e-9 at 5%


def test_cells_have_a_map_and_intervals_that_hold_together() -> None:
    grid = Grid(REGION, 2)
    grouping = Grouping(CellGroups(grid), 50)
    rng = seeded_rng(3)
    groups = rng.integers(0, 16, 8000)
    values = np.clip(rng.normal(40 + 30 * (groups == 5), 10), 0, 120)
    files = made(ran(values, ("mean", "count"), groups, 17), grouping)
    cells = table(files, "cells.parquet").to_pandas().set_index("cell_id")
    assert len(cells) == 16
    differs = cells["mean_differs"]
    assert differs[grouping.groups.names()[5]] == 1
    assert set(differs.drop(grouping.groups.names()[5])) <= {0, -1}
    assert (cells["mean_simultaneous_low"] <= cells["mean_low"]).all()
    view = moments_view(files)
    assert isinstance(view.body, MomentsBody)
    assert view.body.map is not None
    assert [measure.unit for measure in view.body.map.layers[0].measures] == ["age", "users"]
    counted = made(ran(values, ("count",), groups, 17, None), grouping)
    assert table(counted, "cells.parquet")["count_differs"].to_pylist() == [0] * 16
    body = moments_view(counted).body
    assert isinstance(body, MomentsBody)
    assert body.map is not None
    assert body.map.layers[0].measures[0].listed == []


def test_values_beyond_the_range_bring_a_warning() -> None:
    narrow = manifest(made(ran(ages(50_000), span=ValueRange(20.0, 45.0), epsilon=8.0)))
    assert len(narrow["warnings"]) == 2
    assert "give a wider --range" in narrow["warnings"][0]
    clipped = narrow["results"]["clipped"]
    assert clipped["above"] == pytest.approx(float((ages(50_000) > 45).mean()), abs=0.02)
    few = manifest(made(ran(ages(40), span=ValueRange(20.0, 45.0), epsilon=0.1)))
    assert not any("--range" in one for one in few["warnings"])  # noise is no reason


def test_a_range_that_is_a_guess_is_said() -> None:
    guessed = manifest(made(ran(ages(30), span=None, epsilon=0.05)))
    assert any("the range is a guess: give --range" in one for one in guessed["warnings"])
    assert guessed["range"]["source"] == "noisy counts"
    found = manifest(made(ran(ages(20_000), span=None, epsilon=1.0)))
    assert found["warnings"] == []
    assert found["range"]["high"] in (64.0, 128.0)


def test_unknown_means_and_groups_that_nobody_is_in_are_said() -> None:
    warnings = manifest(made(ran(ages(3), groups=np.zeros(3, np.int64), rows=5, epsilon=0.1), BY_PLACE))["warnings"]
    assert any("The mean is not known" in one for one in warnings)
    assert any("No group has 100 users" in one for one in warnings)


def test_the_page_says_who_was_trusted_and_shows_no_bits() -> None:
    files = made(ran(ages(), ("count", "mean"), by_size(), 5), BY_PLACE)
    view = moments_view(files)
    body = view.body
    assert isinstance(body, MomentsBody)
    assert (body.bits, body.column) == ([], "age")
    assert body.groups[0].reference is None  # everybody's number is no line for a group's
    assert body.groups[1].reference is not None
    text = " ".join([view.headline, view.guarantee, *(str(section) for section in view.sections)])
    assert "A trusted curator added up the values" in text
    assert "one bit" not in text
    assert "Fieller" in text
    assert body.limits[1] > 4000  # of the number of users, which stands first
    plain = moments_view(made(ran(ages()))).body
    assert isinstance(plain, MomentsBody)
    assert plain.limits == (0.0, 120.0)
