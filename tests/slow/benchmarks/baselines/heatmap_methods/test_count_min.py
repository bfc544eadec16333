import hashlib
import math

import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from benchmarks.baselines.heatmap_methods.count_min import CountMin, SketchEncoding
from sfumato.transforms.counting.parameters import CountParameters
from sfumato.transforms.counting.state import CountState
from tests.unit.counting.methods.oracle import check_counts, group_of, run, some_rows

DEPTH = 4
SMALL = CountMin(sketch_width=37, sketch_rows=6)


def column(level: int, row: int, cell: int, width: int) -> int:
    """The public hash function, one cell at a time: 32 bits of AES, scaled to the width."""
    key = hashlib.sha256(b"sfumato: the hash functions of count-min sketches are public").digest()
    counter = (level * 256 + row // 4).to_bytes(8, "little") + cell.to_bytes(8, "little")
    block = Cipher(algorithms.AES(key), modes.ECB()).encryptor().update(counter)
    return int.from_bytes(block[4 * (row % 4) :][:4], "little") * width >> 32


def finish(method: CountMin, rows: list[tuple[int, int, int]], noise: bool = True, **options: object) -> CountState:
    shards = 1 + max(row[0] for row in rows)
    parameters = CountParameters(
        depth=DEPTH, shard_size=len(rows) // shards, dropout=0.5, population=len(rows), method=method, **options
    )
    return run(parameters, group_of(rows, shards, DEPTH), noise)


@pytest.mark.parametrize("level", [1, 3, 4])
def test_each_row_counts_a_cell_at_its_hash(level: int) -> None:
    sketch = SMALL.encoding(DEPTH, level)
    assert (sketch.length, sketch.entries_per_location) == (37 * 6, 6)

    def entries_of(code: int) -> list[int]:
        return [37 * row + column(level, row, code >> 2 * (DEPTH - level), 37) for row in range(6)]

    check_counts(sketch, entries_of, DEPTH)


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
