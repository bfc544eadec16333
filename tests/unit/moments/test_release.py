"""The files of releases that ran in memory, of reports and of a curator's sums: what is in them, and what is not."""

from __future__ import annotations

import io
import json
from dataclasses import asdict, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import shapely
from numpy.typing import NDArray

from benchmarks.evaluation.moments_in_memory import run_centrally
from sfumato.schemas.moments import BITS_SCHEMA, EVERYBODY, MOMENTS_SCHEMA, OTHER, FixedPoint, Statistic, ValueRange
from sfumato.schemas.region import Grid
from sfumato.schemas.views.chart_views import MomentsBody
from sfumato.transforms.moments.central.central_moments import CentralSums
from sfumato.transforms.moments.central.plan import CentralMomentsPlan
from sfumato.transforms.moments.central.release import central_files, groups_margin
from sfumato.transforms.moments.groups import CellGroups, ColumnGroups, Grouping
from sfumato.transforms.moments.local.protocol import MomentsState
from sfumato.transforms.moments.local.tally import Tally
from sfumato.transforms.moments.release import MomentsMetadata
from sfumato.transforms.moments.statistic_kinds import shrunk
from sfumato.transforms.moments.view import moments_view
from sfumato.transforms.privacy.keys import FixedSecret, RunKey
from tests.conftest import REGION
from tests.seeds import seeded_rng
from tests.statistics import FLAKE_RATE
from tests.unit.moments.releases import (
    BY_PLACE,
    FACTS,
    SPREAD,
    ages,
    assembled,
    by_size,
    of_everybody,
    on_a_map,
    plan,
    ran,
)

PLAIN_FILES = {"moments.parquet", "bits.parquet", "moments.png", "index.html", "manifest.json"}


def manifest_of(files: dict[str, bytes]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(files["manifest.json"])
    return found


def table(files: dict[str, bytes], name: str) -> pa.Table:
    return pq.read_table(io.BytesIO(files[name]))


@pytest.mark.false_alarm(2 * FLAKE_RATE)
def test_a_release_of_everybody_is_the_protocols_answer() -> None:
    state, files = of_everybody()
    assert set(files) == PLAIN_FILES
    assert list(files)[-1] == "manifest.json"
    moments, bits = table(files, "moments.parquet"), table(files, "bits.parquet")
    assert moments.schema.equals(MOMENTS_SCHEMA, check_metadata=False)
    assert bits.schema.equals(BITS_SCHEMA, check_metadata=False)
    assert moments.to_pylist() == [asdict(one) for one in state.estimates()]
    charts = state.bit_charts()
    assert [one.quantity for one in charts] == ["value", "square"]
    for name in ("weight", "mean", "stddev", "reports", "squashed", "read_probability"):
        assert bits[name].to_pylist() == np.concatenate([getattr(one, name) for one in charts]).tolist()
    assert bits["quantity"].to_pylist() == [one.quantity for one in charts for _ in one.weight]
    mean, variance = moments.to_pylist()
    for one, truth in ((mean, ages().mean()), (variance, ages().var())):
        assert one["group"] == EVERYBODY
        assert abs(one["value"] - truth) < 6.2 * one["stddev"]
        assert one["low"] < one["value"] < one["high"]
        assert one["high"] - one["low"] == pytest.approx(2 * 1.959964 * one["stddev"], rel=1e-6)


@pytest.mark.false_alarm(2 * FLAKE_RATE)
def test_the_manifest_is_the_contract() -> None:
    planned = plan(bits_per_client=2)
    state = ran(ages(), planned)
    files = assembled(state, planned)
    manifest = manifest_of(files)
    assert (manifest["column"], manifest["method"]) == ("age", "adaptive")
    assert len(manifest["warnings"]) <= 1  # the noise may leave the variance unknown
    assert manifest["fixed_point"] == {
        "bits": 8, "fraction_bits": 0, "signed": "no", "offset": 0.0, "step": 1.0, "low": 0.0, "high": 255.0,
    }  # fmt: skip
    privacy = manifest["privacy"]
    truth = np.exp(2.0) / (1 + np.exp(2.0))  # half of epsilon a bit
    assert {**privacy, "mechanism": "", "assumptions": [], "meter": {}} == {
        "unit": "user",
        "contribution_bound": "one record a user, chosen uniformly at random among their records",
        "adjacency": privacy["adjacency"],
        "trust": "local",
        "epsilon": 4.0,
        "delta": 0.0,
        "mechanism": "",
        "randomness": {"source": "key file", "safe": True},
        "collector": {"epsilon": 4.0, "adjacency": privacy["collector"]["adjacency"]},
        "shares": {"admission": pytest.approx(0.04), "tallies": pytest.approx(3.96)},
        "noise_stddev": planned.noise_stddev,
        "groups": None,
        "meter": {},
        "assumptions": [],
    }
    probabilities = [one.read_probability.max() for one in state.bit_charts()]
    assert privacy["meter"] == {
        "bits_per_client": 2,
        "bits_per_value": 2,
        "cap": 2,
        "expected_private_bits": pytest.approx(2 * (2 * truth - 1)),
        "epsilon_per_bit": 2.0,
        "epsilon_per_client": 4.0,
        "truth_probability": pytest.approx(truth),
        "highest_read_probability": max(probabilities),
    }
    results = manifest["results"]
    assert results["groups_published"] is None
    assert abs(results["clients"] - 5000) < 6.2 * results["clients_stddev"] < 500
    assert [(one["quantity"], one["round"]) for one in results["rounds"]] == [
        ("value", 1), ("value", 2), ("square", 1), ("square", 2),
    ]  # fmt: skip
    assert sum(one["clients"] for one in results["rounds"]) == pytest.approx(results["clients"])
    assert sum(one["reports"] for one in results["rounds"]) == pytest.approx(2 * results["clients"])


# --- groups ---


@pytest.mark.false_alarm(8 * FLAKE_RATE)
def test_small_groups_are_merged_into_other() -> None:
    planned, groups = plan(), by_size()
    state = ran(ages(), planned, BY_PLACE, groups)
    files = assembled(state, planned, BY_PLACE)
    assert set(files) == PLAIN_FILES
    moments = table(files, "moments.parquet").to_pylist()
    assert [(one["group"], one["statistic"]) for one in moments] == [
        (EVERYBODY, "mean"), (EVERYBODY, "variance"), ("north", "mean"), ("south", "mean"), (OTHER, "mean"),
        ("north", "variance"), ("south", "variance"), (OTHER, "variance"),
    ]  # fmt: skip
    # `other` is what told none of the published groups: the sums of the noisy tallies of three.
    noisy = state.clients()
    assert noisy[1] < 100 > noisy[3]
    places = {"north": [0], "south": [2], OTHER: [1, 3, 4], EVERYBODY: [0, 1, 2, 3, 4]}
    truth = ages()
    for one in moments:
        members = np.isin(groups, places[one["group"]])
        expected = truth[members].mean() if one["statistic"] == "mean" else truth[members].var()
        assert abs(one["value"] - expected) < 6.2 * one["stddev"], one
        if one["statistic"] == "mean":
            value = sum(
                counted.reports.sum(axis=1)[places[one["group"]]].sum() for _, counted in state.tallies_of("value")
            )
            assert one["clients"] == value
    manifest = manifest_of(files)
    assert manifest["results"]["groups_published"] == 3
    assert manifest["results"]["clients"] == noisy.sum()
    privacy = manifest["privacy"]
    assert privacy["groups"] == {"epsilon": 4.0, "min_group": 100, "noise_stddev": planned.noise_stddev}


@pytest.mark.parametrize(
    ("groups", "least", "shown"),
    [(np.repeat([0, 2], 2500), 100, ["north", "south"]), (by_size(), 100_000, [])],
    ids=["other is too small", "all are too small"],
)
def test_groups_that_are_too_small_are_left_out(groups: NDArray[np.int64], least: int, shown: list[str]) -> None:
    planned, grouping = plan(statistics=SPREAD[:1]), replace(BY_PLACE, min_group=least)
    files = assembled(ran(ages(), planned, grouping, groups), planned, grouping)
    assert [one["group"] for one in table(files, "moments.parquet").to_pylist()] == [EVERYBODY, *shown]
    assert manifest_of(files)["results"]["groups_published"] == len(shown)


# --- cells ---


@pytest.mark.false_alarm(3 * FLAKE_RATE)
def test_cells_are_where_their_names_say() -> None:
    grouping, groups, files = on_a_map()
    assert set(files) == PLAIN_FILES | {"cells.parquet"}
    manifest = manifest_of(files)
    assert manifest["region"] == asdict(REGION)
    assert manifest["grid"] == {"depth": 2, "side": 4}
    assert manifest["results"]["groups_published"] == 4
    cells = table(files, "cells.parquet")
    geo = json.loads(cells.schema.metadata[b"geo"])
    assert geo["primary_column"] == "geometry"
    rows = cells.to_pylist()
    # Two bits a level, east before south: 00 is the north-west.
    assert [row["cell_id"] for row in rows] == ["r00", "r13", "r33"]
    assert [(row["west"], row["south"]) for row in rows] == [(-1.0, 50.75), (-0.5, 50.0), (0.5, 50.0)]
    estimates = {(one["group"], one["statistic"]): one for one in table(files, "moments.parquet").to_pylist()}
    for row in rows:
        assert row["depth"] == 2
        assert shapely.from_wkb(row["geometry"]).bounds == (row["west"], row["south"], row["east"], row["north"])
        for statistic in ("mean", "variance"):
            for name in ("value", "stddev", "low", "high", "clients"):
                assert row[f"{statistic}_{name}"] == estimates[row["cell_id"], statistic][name]
        x, y = (row["west"] + row["east"]) / 2, (row["south"] + row["north"]) / 2
        code = int(grouping.groups.grid.codes(np.array([x]), np.array([y]))[0])  # type: ignore[attr-defined]
        assert grouping.groups.names()[code] == row["cell_id"]
        members = groups == code
        assert members.any()
        assert abs(row["mean_value"] - (ages(6000) + 30.0 * (groups == 7))[members].mean()) < 6.2 * row["mean_stddev"]
    page = files["index.html"].decode()
    assert all(row["cell_id"] in page for row in rows)


# --- what cannot be published, and what must not differ ---


def test_noise_beyond_the_range_is_published_as_its_end() -> None:
    """No run fails by luck: what noise leads beyond all values lies at their end, and the page says that it is not
    known."""
    planned = plan(FixedPoint(bits=52), statistics=(Statistic("geometric_mean"),), epsilon=0.01)
    noise = Tally(np.full((1, 18), 10**6), np.zeros((1, 18), np.int64))  # "all bits are set", debiased at 0.01
    state = MomentsState(planned)
    for _ in planned.stages:
        state = state.advance(state.next_queries(), [noise])
    files = assembled(state, planned)
    (one,) = table(files, "moments.parquet").to_pylist()
    assert one["value"] == one["high"] == planned.form.high
    assert one["stddev"] > 0  # not that of an exact value, to which groups would be drawn
    wide = ran(ages(50), plan(statistics=SPREAD[:1], epsilon=0.2))
    warnings = manifest_of(assembled(wide, plan(statistics=SPREAD[:1], epsilon=0.2)))["warnings"]
    assert any("The mean is not known" in one for one in warnings)


def test_shrunk_draws_groups_towards_everybody() -> None:
    planned, groups = plan(statistics=SPREAD[:1], epsilon=1.0), by_size()
    state = ran(ages(), planned, BY_PLACE, groups)
    raw = [*state.estimates(), *state.estimates(["a", "b"], np.array([0, 1, 1, 1, 1]))]
    drawn = shrunk(raw, planned.forms)
    everybody = raw[0].value
    assert drawn[0] == raw[0]
    for one, before in zip(drawn[1:], raw[1:], strict=True):
        assert (one.group, one.clients) == (before.group, before.clients)
        assert abs(one.value - everybody) <= abs(before.value - everybody)
        assert one.stddev <= before.stddev
    products = [replace(one, statistic="log_product") for one in raw]
    assert shrunk(products, planned.forms) == products
    wide = [replace(raw[1], group=str(i), value=everybody + 40 * (-1) ** i, stddev=0.01) for i in range(20)]
    assert shrunk([raw[0], *wide], planned.forms)[3].value == pytest.approx(wide[2].value, abs=0.01)


# --- a trusted curator ---


CURATED = replace(FACTS, created="2026-11-22T00:00:00+00:00")
SPAN = ValueRange(0.0, 120.0)


def curated(
    values: NDArray[np.float64],
    names: tuple[str, ...] = ("mean", "variance"),
    groups: Any = None,
    rows: int = 1,
    span: ValueRange | None = SPAN,
    epsilon: float = 4.0,
) -> CentralSums:
    plan = CentralMomentsPlan(statistics=tuple(map(Statistic, names)), epsilon=epsilon, span=span)
    key = RunKey.derive(FixedSecret(b"central releases" * 2), {"job": "moments"})
    return run_centrally(values, plan, key, groups, rows)


def made(state: CentralSums, grouping: Grouping | None = None, bounded: bool = True) -> dict[str, bytes]:
    return central_files(state, MomentsMetadata(CURATED, grouping, "age", bounded))


def test_everybody_alone_has_one_table_and_states_the_guarantee() -> None:
    state = curated(ages())
    files = made(state)
    assert set(files) == {"moments.parquet", "moments.png", "index.html", "manifest.json"}
    moments = table(files, "moments.parquet")
    assert moments.schema.equals(MOMENTS_SCHEMA)
    assert moments["statistic"].to_pylist() == ["mean", "variance"]
    assert moments.to_pylist() == [vars(one) for one in state.estimates()]
    stated = manifest_of(files)
    privacy = stated["privacy"]
    assert (privacy["trust"], privacy["epsilon"], privacy["delta"]) == ("central", 4.0, 0.0)
    assert privacy["shares"] == state.plan.shares
    assert stated["range"] == {"low": 0.0, "high": 120.0, "source": "given"}
    assert stated["warnings"] == []


def test_small_groups_are_merged_and_totals_agree() -> None:
    values = ages()
    files = made(curated(values, ("mean", "count", "sum"), by_size(), 5), BY_PLACE)
    rows = {(row["group"], row["statistic"]): row["value"] for row in table(files, "moments.parquet").to_pylist()}
    groups = {group for group, _ in rows}
    assert groups == {EVERYBODY, "north", "south", OTHER}
    for statistic in ("count", "sum"):
        parts = sum(rows[group, statistic] for group in groups - {EVERYBODY})
        assert parts == pytest.approx(rows[EVERYBODY, statistic], rel=1e-9)
    assert rows["north", "mean"] == pytest.approx(values[by_size() == 0].mean(), abs=1.0)
    assert manifest_of(files)["results"]["groups_published"] == 3


@pytest.mark.false_alarm(1e-9)
def test_many_empty_groups_are_seldom_shown() -> None:
    """Laplace noise has heavier tails than a normal one: of 100 runs at most 5% show any of 400 empty groups."""
    grouping = Grouping(ColumnGroups("g", tuple(map(str, range(400)))), 1)
    plan = CentralMomentsPlan(statistics=(Statistic("count"),), epsilon=0.5)
    shown = 0
    for number in range(100):
        key = RunKey.derive(FixedSecret(b"empty groups" * 3), {"number": number})
        state = run_centrally(np.zeros(0), plan, key, np.zeros(0, np.int64), 401)
        names, _ = grouping.published_groups(state.clients, groups_margin(plan, grouping))
        shown += len(names) > 1
    assert shown <= 23  # P < 1e-9 at 5%


@pytest.mark.false_alarm(1e-9)
def test_cells_have_a_map_and_intervals_that_hold_together() -> None:
    """One cell's mean is 60 above the others', and so everybody's 3.75: eight deviations of a mean of 500 users."""
    grid = Grid(REGION, 2)
    grouping = Grouping(CellGroups(grid), 50)
    rng = seeded_rng(3)
    groups = rng.integers(0, 16, 8000)
    values = np.clip(rng.normal(30 + 60 * (groups == 5), 10), 0, 120)
    files = made(curated(values, ("mean", "count"), groups, 17), grouping)
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
    counted = made(curated(values, ("count",), groups, 17, None), grouping)
    assert table(counted, "cells.parquet")["count_differs"].to_pylist() == [0] * 16
    body = moments_view(counted).body
    assert isinstance(body, MomentsBody)
    assert body.map is not None
    assert body.map.layers[0].measures[0].listed == []
