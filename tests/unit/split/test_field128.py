import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sfumato.transforms.split.field128 import (
    LIMBS,
    MODULUS,
    Elements,
    dot,
    from_ints,
    from_words,
    is_canonical,
    is_root_of_unity,
    is_zero,
    lagrange_basis,
    matmul,
    multiply,
    root_powers,
    settle,
    to_words,
    total,
)
from tests.seeds import seeded_rng

EDGES = [0, 1, 2, MODULUS - 1, MODULUS - 2, 1 << 21, 1 << 22, (1 << 127) - 1, 1 << 66, MODULUS >> 1, 7 << 66]
ELEMENT = st.one_of(st.sampled_from(EDGES), st.integers(0, MODULUS - 1))


def ints(elements: Elements) -> list[int]:
    return [int(low) | int(high) << 64 for low, high in to_words(elements.reshape(LIMBS, -1)).tolist()]


def random_ints(count: int, seed: int) -> list[int]:
    drawn = seeded_rng(seed).bytes(16 * count)
    return [int.from_bytes(drawn[at : at + 16], "little") % MODULUS for at in range(0, len(drawn), 16)]


@given(st.lists(st.tuples(ELEMENT, ELEMENT), min_size=1, max_size=20))
def test_arithmetic_is_that_of_integers(pairs: list[tuple[int, int]]) -> None:
    first, second = (list(column) for column in zip(*pairs, strict=True))
    a, b = from_ints(first), from_ints(second)
    assert ints(a) == first
    assert ints(multiply(a, b)) == [x * y % MODULUS for x, y in pairs]
    assert ints(settle(a - b)) == [(x - y) % MODULUS for x, y in pairs]
    assert ints(dot(a, b)) == [sum(x * y for x, y in pairs) % MODULUS]
    assert ints(total(a)) == [sum(first) % MODULUS]
    assert is_zero(settle(a - a)).all()
    assert is_zero(a).tolist() == [x == 0 for x in first]


@pytest.mark.parametrize("length", [1, 128, 256, 257, 700])
@pytest.mark.parametrize("value", [MODULUS - 1, MODULUS >> 1, sum((1 << 21) - 1 << 22 * limb for limb in range(5))])
def test_long_sums_of_the_largest_limbs_are_exact(length: int, value: int) -> None:
    row = from_ints([value] * length)
    assert ints(dot(row, row)) == [length * value**2 % MODULUS]
    assert ints(matmul(row[:, None], row[..., None])) == [length * value**2 % MODULUS]


def test_products_of_products_stay_in_bounds() -> None:
    power = base = from_ints(EDGES)
    for exponent in range(2, 200):
        power = multiply(power, base)
        assert np.abs(power).max() <= 2**21 + 2**15
        assert ints(power) == [pow(value, exponent, MODULUS) for value in EDGES]


def test_words_of_the_modulus_and_above_are_not_canonical() -> None:
    values = [0, MODULUS - 1, MODULUS, MODULUS + 1, (1 << 128) - 1, MODULUS - (1 << 64)]
    words = np.frombuffer(b"".join(value.to_bytes(16, "little") for value in values), "<u8").reshape(-1, 2)
    assert is_canonical(words).tolist() == [value < MODULUS for value in values]
    canonical = words[is_canonical(words)]
    assert np.array_equal(to_words(from_words(canonical)), canonical)


@pytest.mark.parametrize("order", [2, 16, 128])
def test_lagrange_basis_interpolates_a_polynomial(order: int) -> None:
    coefficients, point = random_ints(order, order), random_ints(1, 5)[0]

    def value(x: int) -> int:
        return sum(c * pow(x, i, MODULUS) for i, c in enumerate(coefficients)) % MODULUS

    values = [value(root) for root in ints(root_powers(order))]
    basis = lagrange_basis(from_ints([point, 3]), order)
    assert ints(dot(basis, from_ints(values)[:, None])) == [value(point), value(3)]


def test_roots_of_unity_are_found() -> None:
    roots = root_powers(32)
    assert is_root_of_unity(roots, 32).all()
    assert is_root_of_unity(roots, 16).tolist() == [True, False] * 16
    assert not is_root_of_unity(from_ints([2, 3, 0]), 32).any()
