"""Benchmarks of the papers' tables: rates, attacks, parameters, public data."""

from __future__ import annotations

import gzip
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
from scipy import stats

from benchmarks import few_users, public_data, range_queries, several_locations, snh_paper
from benchmarks.accountant import published
from benchmarks.bit_errors import NORMAL, Bench, Data, Task
from benchmarks.bit_pairs import DATA
from benchmarks.bit_poisoning import Attack, least, pushed
from benchmarks.comparison import draw_cohort
from benchmarks.emd_rate import FORMS, distance
from benchmarks.histograms import absolute_error, top_recall
from benchmarks.kendall import estimated
from benchmarks.noiseless_tree import run_without_noise
from benchmarks.param_select import PublishedWidths, paper_features, paper_split
from benchmarks.range_queries import SCALED, UNIT
from sfumato.schemas.ranges import Sizes
from sfumato.schemas.region import Region
from sfumato.schemas.tree import node_levels
from sfumato.transforms.ranges.field_counts import CollectionSpec, ExactCounts
from sfumato.transforms.ranges.methods import PlainGrid
from sfumato.transforms.ranges.networks.paper import paper_training
from tests.seeds import seeded_rng
from tests.unit.histogram.test_sampling_plan import contacted

# Public data in the forms in which they are distributed, and the benchmarks that use them where they are.

# As in the files of snap.stanford.edu: user, time, latitude, longitude, place; here with a row without a place, one
# beyond the pole, one that is torn, and one where the network knew no place.
_SNAP = (
    "0\t2010-01-19T23:55:27Z\t30.2359091167\t-97.7951395833\t22847\n"
    "7\t2008-12-03T21:09:14Z\t39.633321\t-105.317215\tee8b88dea22411\n"
    "7\t2008-12-04T21:09:14Z\t\t\t\n"
    "8\t2008-12-04T21:09:14Z\t405.2\t-97.7\t1\n"
    "8\t2008-12-04\n"
    "9\t2008-12-04T21:09:14Z\t0.0\t0.0\t00000000000000000000000000000000\n"
)
# As in dataset_TSMC2014_TKY.txt, which is in Latin-1 and has quotes that quote nothing.
_TSMC = (
    "1541\t4f0fd5a8e4b03856eeb6c8cb\t4bf58dd8d48988d10c951735\tCosmetics Shop\t35.705101088587135\t"
    "139.61959010362625\t540\tTue Apr 03 18:17:18 +0000 2012\n"
    '868\t4b7b884ff964a5207d662fe3\t4bf58dd8d48988d1d1941735\tCaf\xe9 "Noodle House\t35.715581\t'
    "139.800317\t540\tSat Feb 16 02:34:35 +0000 2013\n"
)


def convert(monkeypatch: pytest.MonkeyPatch, name: str, downloaded: Path, folder: Path) -> None:
    monkeypatch.setattr(sys, "argv", ["public_data", name, str(downloaded), "--output", str(folder)])
    public_data.main()


@pytest.mark.parametrize("name", ["gowalla", "brightkite"])
def test_check_ins_of_snap_keep_what_has_a_place(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    downloaded = tmp_path / public_data.SOURCES[name].download
    downloaded.write_bytes(gzip.compress(_SNAP.encode()))
    convert(monkeypatch, name, downloaded, tmp_path / "data")
    monkeypatch.setenv("SFUMATO_DATA", str(tmp_path / "data"))
    path = public_data.dataset(name)
    assert path is not None
    table = pq.read_table(path).to_pandas()
    assert table["user_id"].tolist() == [0, 7]
    assert table["latitude"].tolist() == [30.2359091167, 39.633321]
    assert table["longitude"].tolist() == [-97.7951395833, -105.317215]
    assert table["timestamp"].tolist() == [pd.Timestamp("2010-01-19T23:55:27Z"), pd.Timestamp("2008-12-03T21:09:14Z")]


def test_check_ins_of_tokyo_are_latin_and_in_utc(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    downloaded = tmp_path / "dataset_TSMC2014_TKY.txt"
    downloaded.write_bytes(_TSMC.encode("latin-1"))
    convert(monkeypatch, "tokyo", downloaded, tmp_path)
    monkeypatch.setenv("SFUMATO_DATA", str(tmp_path))
    table = pq.read_table(public_data.dataset("tokyo")).to_pandas()
    assert table["venue_category"].tolist() == ["Cosmetics Shop", 'Caf\xe9 "Noodle House']
    assert table["timestamp"][1] == pd.Timestamp("2013-02-16T02:34:35Z")
    assert several_locations.logs_of("tokyo_paper", tmp_path) == str(public_data.dataset("tokyo"))


@pytest.fixture
def networks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Check-ins of both networks: 31 crowded cells of 300 users each, Gowalla's and Brightkite's in turn."""
    monkeypatch.setenv("SFUMATO_DATA", str(tmp_path))
    generator = seeded_rng(0)
    for at, (name, month) in enumerate((("gowalla", "2010-01"), ("brightkite", "2008-12"))):
        frames = []
        for cell in range(at, 31, 2):
            users = np.repeat(np.arange(300) + 1000 * cell, 1 + (cell > 1))  # the first two cells have half as many
            x = -135 + few_users.WIDTH * (40 + 5 * cell + generator.uniform(0, 1, len(users)))
            y = few_users.HEIGHT * (150 + generator.uniform(0, 1, len(users)))
            frames.append(pd.DataFrame({"user_id": users, "longitude": x, "latitude": y}))
        table = pd.concat(frames)
        table["timestamp"] = pd.Timestamp(f"{month}-15", tz="UTC")
        later = table.assign(timestamp=pd.Timestamp("2010-02-01", tz="UTC"), user_id=table["user_id"] + 10**6)
        pd.concat([table, later]).to_parquet(tmp_path / public_data.SOURCES[name].file)
    return tmp_path


def test_cells_of_few_users_match_the_paper(networks: Path) -> None:
    """The most visited cells of both networks together, in their months: all but one of the two least."""
    cells = few_users.city_cells()
    assert len(cells) == 30
    assert all(cell.name.startswith("US") for cell in cells)
    assert [cell.population for cell in cells] == [300] * 30
    assert [len(cell.users) for cell in cells] == [600] * 29 + [300]
    assert cells[0].rows(200, 8, few_users.KEY).users.size >= 200


def test_a_city_of_gowalla_is_20_km_wide(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SFUMATO_DATA", str(tmp_path))
    with pytest.raises(SystemExit, match="loc-gowalla_totalCheckins"):
        range_queries.city("Miami")
    latitude, longitude = range_queries.CITIES["Miami"]
    wide = 10 / 111.195 / np.cos(np.radians(latitude))
    x = longitude + wide * np.array([-1.01, -0.99, 0.0, 0.99, 1.01])
    check_ins = {"user_id": range(5), "longitude": x, "latitude": latitude}
    pd.DataFrame(check_ins).to_parquet(tmp_path / public_data.SOURCES["gowalla"].file)
    exact, field = range_queries.city("Miami")
    assert exact.users.sum() == 3
    assert field.metres == pytest.approx((20_000, 20_000), rel=1e-3)


def test_the_papers_workload_is_gowallas_in_the_cabs_region(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SFUMATO_DATA", str(tmp_path))
    cabs = {"user_id": range(2), "longitude": [-122.5, -122.4], "latitude": [37.7, 37.8]}
    pd.DataFrame(cabs).to_parquet(tmp_path / "sf_cabs_starts.parquet")
    check_ins = {"user_id": range(3), "longitude": [-122.45, -122.45, -121], "latitude": [37.775, 37.775, 37.75]}
    pd.DataFrame(check_ins).to_parquet(tmp_path / public_data.SOURCES["gowalla"].file)
    exact, _ = range_queries.cabs(True)
    boxes = snh_paper.workload("gowalla", exact)
    assert boxes is not None
    assert len(boxes) == 2
    assert boxes.x0[0] == pytest.approx(exact.side / 2, abs=1)
    assert boxes.y0[0] == pytest.approx(exact.side / 4, abs=1)
    assert Region(-122.5, 37.7, -122.4, 37.8) == range_queries.cabs(False)[1].grid.region


# The rate of Theorem 1.1 of paper 001: its sparse maps, and that the error falls as it says.


@pytest.mark.parametrize("form", FORMS)
def test_error_falls_with_the_number_of_users(form: str) -> None:
    """The mean of 3 runs at 100 times the users: a hundredth by the theorem, and within 5 times of that here."""
    few, many = ([distance(form, users, 4, seed) for seed in range(3)] for users in (1000, 100_000))
    assert 1 / 500 < np.mean(many) / np.mean(few) < 1 / 20


# The error that the tables of bit pushing print, and the signs of its contenders.


@dataclass(frozen=True)
class Off:
    """Is off by 1, 2, 3, ... in turn."""

    name: str = "off"

    def estimate(self, values: np.ndarray, task: Task, seed: tuple[int, ...]) -> float:
        return float(values.mean()) + seed[0] + 1


def test_an_error_is_the_root_of_the_mean_square_over_the_mean() -> None:
    data = Data("as many of each", 4, lambda count, generator: np.arange(count) % 16)
    found = Bench(3).score(Off(), Task(data, 4, 160))
    assert found.error == pytest.approx(100 * np.sqrt((1 + 4 + 9) / 3) / 7.5)


# The attack on bits: what colluders can add where the server picks the bit, and that picking it adds more.


def shifts(method: str, picks: bool, attack: Attack, runs: int) -> np.ndarray:
    return np.array([np.subtract(*pushed(method, picks, attack, run)) for run in range(runs)])


@pytest.mark.parametrize("epsilon", [None, 2.0])
def test_colluders_add_the_largest_reports_if_server_picks_bits(epsilon: float | None) -> None:
    """Of an unbiased estimate: their share times (the largest report minus the mean), within six standard errors."""
    attack = Attack(NORMAL, 10, epsilon, 0.05)
    found = shifts("weighted", False, attack, 30)
    # A report of 1 counts as 1 / gain - (1 - p) / gain: more than the bit where it may be flipped.
    largest = 1.0 if epsilon is None else 1 / (1 - np.exp(-epsilon))
    expected = 0.05 * (largest * 1023 - 600)
    assert abs(found.mean() - expected) < 6 * found.std() / np.sqrt(30)


def test_colluders_who_pick_the_bit_add_more() -> None:
    attack = Attack(NORMAL, 16, None, 0.05)
    least_shift = np.subtract(*least(attack, 0))
    server, client = (shifts("adaptive", picks, attack, 4).mean() for picks in (False, True))
    assert server == pytest.approx(least_shift, rel=0.1)
    assert client > 1.5 * server


# Kendall's tau from classes, against SciPy's, and from one bit of each client.


@pytest.mark.false_alarm(1e-9)  # 6.2 deviations
def test_one_bit_of_each_client_shows_tau() -> None:
    """By docs/results/bit_pairs.md the classes err by 0.03, and the noise of 200,000 clients by 0.024."""
    values = DATA[0].clients(200_000, seeded_rng(1))
    exact = stats.kendalltau(values.real, values.imag).statistic
    found, of_classes = estimated(values, DATA[0], 8, 4.0, 0)
    assert abs(of_classes - exact) < 0.05
    assert abs(found - of_classes) < 0.15


# The tree without noise: exact counts, and every node of more than 10 users split, level by level.


def test_counts_are_exact_and_large_nodes_are_split() -> None:
    truth = seeded_rng(2).poisson(np.linspace(0, 4, 32**2)).reshape(32, 32)
    rows, _ = draw_cohort(truth, 1500, 1)
    state = run_without_noise(rows, int(truth.sum()), 1)
    assert len(state.results) > 3
    for result in state.results:
        tree = result.tree
        exact = np.bincount(tree.index.owners(rows.codes), minlength=len(tree.entries))
        assert result.counts.tolist() == exact.tolist()
    last = state.results[-1]
    deepest = node_levels(last.tree.entries) == 5
    assert (last.counts[~deepest] <= 10).all()


# The published labels of paper 003's ParamSelect: the authors' split, their features, and errors in metres.

_CITIES = ("Tulsa", "Boston", "Milwaukee")


@pytest.fixture
def labels(tmp_path: Path) -> PublishedWidths:
    """Labels in the authors' files: two cities of Gowalla, one of Veraset, and one without a label."""
    rows = [(f"gowalla_{city}", 20_000, 0.05 * 2**power) for city in _CITIES[:2] for power in range(5)]
    rows += [("Milwaukee", 100_000, epsilon) for epsilon in (0.05, 0.2)]
    widths = [",".join(map(str, (at, *row, 0.02 if row[0] != "Milwaukee" else 0.03))) for at, row in enumerate(rows)]
    text = "\n".join([",city,n,eps,best", *widths, "99,CABS_SFS,217438,0.05,"])
    (tmp_path / "snh_best_cell_width_gowalla.csv").write_text(text)
    names = [*_CITIES, *(f"gowalla_{city}" for city in _CITIES)]
    entropies = [f"{at},{name},1,{5 + at % 3}" for at, name in enumerate(names)]
    (tmp_path / "snh_city_features_gowalla.csv").write_text("\n".join([",city,hot10,entropy_512", *entropies]))
    return PublishedWidths.read(tmp_path)


def test_features_are_those_of_the_paper() -> None:
    assert paper_features(100, 0.25, 7.5) == (100, 0.25, 1 / 25, 1 / 5, 7.5)


def test_errors_are_in_metres_of_20_km(labels: PublishedWidths) -> None:
    """All cities of the training have cells of 0.02 tenths of 20 km, Milwaukee 0.03: 20 m off."""
    rows = {line.split("|")[1].strip(): line.split("|")[2:4] for line in paper_split(labels).splitlines()[2:]}
    assert [float(one) for one in rows["ParamSelect (ExtraTrees)"]] == [20.0, 20.0]
    ug = [2000 * (10 / np.sqrt(100_000 * epsilon / 10) - 0.03) for epsilon in (0.05, 0.2)]
    assert float(rows["the rule of ug"][0]) == pytest.approx(np.mean(ug), abs=0.05)


# The counts of points that the histograms' figures print.


def test_error_is_the_mean_over_buckets_by_population() -> None:
    counts = np.array([500, 300, 200, 0])
    assert absolute_error(np.array([510.0, 300, 170, 4]), counts) == pytest.approx((10 + 0 + 30 + 4) / 4 / 1000 * 1e6)
    assert absolute_error(np.zeros(4), counts) == pytest.approx(1e6 / 4)


def test_recall_is_of_the_tenth_with_the_most() -> None:
    counts = np.arange(100, 140)
    found = np.where(counts >= 136, counts * 2.0, 0)  # the top 4, as they are
    assert top_recall(found, counts) == 1
    found[-1] = 0  # one of them is not found, and 0 is no place in the list
    assert top_recall(found, counts) == 3 / 4
    found[0] = 1e6  # another one takes a place
    assert top_recall(found, counts) == 3 / 4
    found[1] = 1e6
    assert top_recall(found, counts) == 2 / 4


# The table of a fixed number of contacts is that of an independent enumeration.


@pytest.mark.parametrize(("users", "holders", "contacts"), [(40, 40, 12), (40, 17, 30), (40, 3, 12)])
def test_published_is_the_enumerated_distribution(users: int, holders: int, contacts: int) -> None:
    shares = published(users, holders, contacts, 0.4, 4)
    expected = contacted(users, holders, contacts, 0.4, 4)
    assert shares == pytest.approx(expected[: len(shares)], abs=1e-15)
    assert not expected[len(shares) :].any()
    assert shares.sum() == pytest.approx(1)


# The benchmark of the paper's networks: widths by their ways, and networks that also see the size (SNH+QS).


def spec_of(epsilon: float = 0.05, users: float = 200_000.0) -> CollectionSpec:
    return CollectionSpec(SCALED, users, epsilon, Sizes(0.02 * UNIT, 0.0275 * UNIT))


def test_networks_with_size_input_learn_two_sizes() -> None:
    """Section 6.3.2: the sizes of a network's range, here its quarters, with the labels of squares of that size."""
    pytest.importorskip("optax")
    generator = seeded_rng(0)
    exact = ExactCounts.from_codes(12, generator.integers(0, 4**12, 5000).astype(np.uint64))
    spec = spec_of(users=5000.0)
    grid = PlainGrid(0.5 * UNIT).collect(exact, spec, snh_paper.KEY)
    [one] = paper_training(grid, spec, 1, snh_paper.workload("starts", exact))
    found = snh_paper.sized(one, grid, spec, 1, exact)
    assert np.unique(found.places[:, 2]).tolist() == [-0.5, 0.5]
    for own, size in ((-0.5, 0.021875), (0.5, 0.025625)):
        narrow = replace(spec, sizes=Sizes(size * UNIT * (1 - 1e-9), size * UNIT * (1 + 1e-9)))
        [single] = paper_training(grid, narrow, 1, snh_paper.workload("starts", exact))
        chosen = found.places[:, 2] == own
        np.testing.assert_allclose(found.labels[chosen], single.labels, rtol=1e-5)
        np.testing.assert_allclose(found.places[chosen, :2], single.places, rtol=1e-5)
