import hashlib
import math

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from scipy import stats

from benchmarks.baselines.heatmap_methods.count_min import CountMin, SketchEncoding
from sfumato.schemas.errors import RequestError
from sfumato.transforms.counting.parameters import HeatmapParameters
from sfumato.transforms.counting.state import HeatmapState
from tests.rejections import rejects
from tests.statistics import FLAKE_RATE
from tests.unit.counting.methods.oracle import check_counts, group_of, run, some_rows

DEPTH = 4
SMALL = CountMin(sketch_width=37, sketch_rows=6)


def column(level: int, row: int, cell: int, width: int) -> int:
    """The public hash function, one cell at a time: 32 bits of AES, scaled to the width."""
    key = hashlib.sha256(b"sfumato: the hash functions of count-min sketches are public").digest()
    counter = (level * 256 + row // 4).to_bytes(8, "little") + cell.to_bytes(8, "little")
    block = Cipher(algorithms.AES(key), modes.ECB()).encryptor().update(counter)
    return int.from_bytes(block[4 * (row % 4) :][:4], "little") * width >> 32


def finish(method: CountMin, rows: list[tuple[int, int, int]], noise: bool = True, **options: object) -> HeatmapState:
    shards = 1 + max(row[0] for row in rows)
    parameters = HeatmapParameters(
        depth=DEPTH, shard_size=len(rows) // shards, dropout=0.5, population=len(rows), method=method, **options
    )
    return run(parameters, group_of(rows, shards, DEPTH), noise)


@pytest.mark.parametrize("level", [1, 3, 4])
def test_each_row_counts_a_cell_at_its_hash(level: int) -> None:
    sketch = SMALL.encoding(DEPTH, level)
    assert (sketch.length, sketch.sensitivity) == (37 * 6, 6)

    def entries_of(code: int) -> list[int]:
        return [37 * row + column(level, row, code >> 2 * (DEPTH - level), 37) for row in range(6)]

    check_counts(sketch, entries_of, DEPTH)


@pytest.mark.false_alarm(0.0)  # the hashes are fixed, and no seed changes them
def test_hashes_are_uniform_and_pairwise_independent() -> None:
    columns = SketchEncoding(10, 8, 50, 8).columns(np.arange(4**8, dtype=np.uint64))
    for row in columns:
        assert stats.chisquare(np.bincount(row, minlength=50)).pvalue > FLAKE_RATE
    for row in range(7):  # of two rows, and of neighbours in one
        for one, two in ((columns[row], columns[row + 1]), (columns[row][:-1], columns[row][1:])):
            pairs = np.bincount(50 * one + two, minlength=2500)
            assert stats.chisquare(pairs).pvalue > FLAKE_RATE
    assert (columns != SketchEncoding(10, 7, 50, 8).columns(np.arange(4**8, dtype=np.uint64))).mean() > 0.9


def test_every_level_is_sketched_for_an_equal_share_of_epsilon() -> None:
    state = finish(CountMin(), some_rows(1, 400, 4, DEPTH))
    assert [result.encoding for result in state.results] == [
        SketchEncoding(4, level, 2000, 20) for level in (1, 2, 3, 4)
    ]
    assert state.budget.spent == 1
    for result in state.results:
        assert math.isclose(result.cost, 0.99 / 4)
        assert result.vector_length == 40_000
        # Noise of sensitivity 20, in four shards: 2 b^2 each, b = 20 / epsilon.
        assert math.isclose(result.noise_stddev, math.sqrt(4 * 2) * 80 / 0.99, rel_tol=1e-3)
        noise = result.counts.std()
        assert abs(noise / result.noise_stddev - 1) < 6.2 * math.sqrt(5 / 40_000)  # kurtosis at most 6


@pytest.mark.parametrize("estimate", ["mean", "median", "min"])
def test_a_cells_count_is_made_of_its_entries(estimate: str) -> None:
    method = CountMin(sketch_width=37, sketch_rows=6, sketch_estimate=estimate)
    state = finish(method, some_rows(2, 400, 4, DEPTH))
    for level, one in enumerate(method.candidates(state, DEPTH), 1):
        sketch = state.results[level - 1].counts.tolist()
        mean = sum(sketch) / len(sketch)
        for cell, got in enumerate(one.counts.tolist()):
            mine = sorted(sketch[37 * row + column(level, row, cell, 37)] for row in range(6))
            debiased = [(value - mean) * 37 / 36 for value in mine]
            expected = {"mean": sum(debiased) / 6, "median": (debiased[2] + debiased[3]) / 2, "min": mine[0]}[estimate]
            assert math.isclose(got, expected, abs_tol=1e-9)


def test_min_without_noise_errs_upwards_only() -> None:
    rows = some_rows(3, 400, 4, DEPTH)
    truth = np.bincount([code for _, code, _ in rows], minlength=256)
    state = finish(SMALL, rows, noise=False)
    errors = {
        name: CountMin(37, 6, name).candidates(state, DEPTH)[-1].counts - truth for name in ("mean", "median", "min")
    }
    assert errors["min"].min() >= 0
    assert errors["min"].max() > 0
    assert errors["mean"].min() < 0 < errors["mean"].max()
    assert errors["median"].min() < 0 < errors["median"].max()


def test_min_with_noise_is_far_too_low() -> None:
    rows = some_rows(4, 2000, 4, DEPTH)
    truth = np.bincount([code for _, code, _ in rows], minlength=256)
    state = finish(CountMin(sketch_width=200), rows)
    one = CountMin(sketch_width=200).candidates(state, DEPTH)[-1]
    errors = (one.counts - truth) / one.stddev
    # 256 errors of variance 1, hardly correlated: 6.2 deviations of their mean square (kurtosis 3) and of their mean.
    assert abs(np.mean(errors**2) - 1) < 6.2 * math.sqrt(2 / 256)
    assert abs(np.mean(errors)) < 6.2 / math.sqrt(256)
    low = CountMin(sketch_width=200, sketch_estimate="min").candidates(state, DEPTH)[-1]
    assert np.mean((low.counts - truth) / state.results[-1].noise_stddev) < -1  # of 20 noises the least


@pytest.mark.parametrize("estimate", ["mean", "median", "min"])
def test_a_crowd_in_one_cell_is_seen_at_the_finest_level(estimate: str) -> None:
    state = finish(CountMin(), [(i % 4, 77, 1) for i in range(4000)], epsilon=20.0)
    estimate_of_all = CountMin(sketch_estimate=estimate).decode(state, DEPTH)
    assert estimate_of_all.tree.entries[estimate_of_all.counts.argmax()] == 4**4 + 77


def test_the_biased_minimum_chooses_its_level_as_the_mean_does() -> None:
    state = finish(CountMin(), [(i % 4, i % 256, 1) for i in range(2000)])
    least = CountMin(sketch_estimate="min")
    assert CountMin().decode(state, DEPTH).tree.level == 1  # users are spread evenly
    assert least.decode(state, DEPTH).tree == CountMin().decode(state, DEPTH).tree
    assert least.decode(state, DEPTH).counts.tolist() == least.candidates(state, DEPTH)[0].counts.tolist()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sketch_width": 1}, "sketch_width: must be a whole number between"),
        ({"sketch_width": math.nan}, "sketch_width: must be a whole number between"),
        ({"sketch_width": 1 << 20}, r"sketch_width: must be a whole number between 2 and 838860, got 1048576"),
        ({"sketch_rows": 0}, r"sketch_rows: must be a whole number between 1 and 256, got 0"),
        ({"sketch_rows": 257}, "sketch_rows: must be"),
        ({"sketch_estimate": "max"}, "sketch_estimate: must be one of mean, median, min, got 'max'"),
    ],
)
def test_bad_options_are_refused(options: dict[str, int], message: str) -> None:
    with pytest.raises(RequestError, match=message):
        CountMin(**options)
    with rejects("depth"):
        HeatmapParameters(depth=13, method=CountMin())
