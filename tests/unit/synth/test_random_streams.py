import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from sfumato.transforms.synth.random_streams import (
    alias_probabilities,
    alias_table,
    draw,
    random_bits,
    scramble_63,
    stream_key,
)
from tests.statistics import FLAKE_RATE


@given(
    weights=st.integers(0, 8).flatmap(
        lambda bits: st.lists(st.one_of(st.just(0.0), st.floats(1e-6, 1e6)), min_size=1 << bits, max_size=1 << bits)
    )
)
def test_an_alias_table_has_the_distribution_it_was_built_from(weights: list[float]) -> None:
    given_weights = np.array(weights)
    if not given_weights.sum():
        given_weights[0] = 1.0
    expected = given_weights / given_weights.sum()
    found = alias_probabilities(alias_table(given_weights))
    assert np.allclose(found, expected, rtol=0, atol=1e-12)
    assert not found[expected == 0].any()


def test_draws_follow_the_weights_and_the_chosen_table() -> None:
    weights = np.array([[0, 1, 2, 5], [4, 0, 0, 4]], dtype=float)
    tables = np.concatenate([alias_table(row) for row in weights])
    words = random_bits(stream_key(3), np.arange(200_000, dtype=np.uint64))
    which = np.arange(200_000) % 2
    cells = draw(tables, which, words, 2)
    for table, row in enumerate(weights):
        counts = np.bincount(cells[which == table], minlength=4)
        assert not counts[row == 0].any()
        assert stats.chisquare(counts[row > 0], 100_000 * row[row > 0] / row.sum()).pvalue > FLAKE_RATE


def test_words_are_splitmix64() -> None:
    """The first outputs of the generator's published form for the seed 1234567."""
    words = random_bits(1234567, np.arange(1, 4, dtype=np.uint64))
    assert words.tolist() == [6457827717110365317, 3203168211198807973, 9817491932198370423]


def test_streams_differ_by_every_part_of_their_name() -> None:
    keys = {stream_key(*name) for name in [(0,), (1,), (0, 0), (0, 1), (1, 0), (0, 0, 0), (0, 1, 0), (0, 0, 1)]}
    assert len(keys) == 8


@pytest.mark.parametrize("key", [0, 1, 2**64 - 1])
def test_scrambled_numbers_are_distinct_positive_and_unordered(key: int) -> None:
    ids = scramble_63(np.arange(300_000, dtype=np.uint64), key)
    assert len(np.unique(ids)) == 300_000
    assert ids.min() >= 0
    assert ids.max() > 2**62
    assert abs(np.mean(np.diff(ids) > 0) - 0.5) < 0.01


def test_the_scramble_can_be_undone() -> None:
    """It is a bijection of all 63-bit numbers, so that ids stay distinct for any number of users."""
    key, mask = 0x1234_5678_9ABC_DEF0, (1 << 63) - 1
    values = [0, 1, 2**62, 2**63 - 1, 987_654_321]
    for value, scrambled in zip(values, scramble_63(np.array(values, dtype=np.uint64), key).tolist(), strict=True):
        word = scrambled ^ (scrambled >> 32)
        for shift, multiplier in (
            (29, 0x9E3779B97F4A7C15),
            (27, 0x94D049BB133111EB),
            (30, 0xBF58476D1CE4E5B9),
        ):
            word = word * pow(multiplier, -1, 1 << 63) & mask
            word ^= (word >> shift) ^ (word >> 2 * shift)
        assert word ^ (key & mask) == value
