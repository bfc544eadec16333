import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from benchmarks.baselines.heatmap_methods.adaptive_grid import GridEncoding
from benchmarks.baselines.heatmap_methods.count_min import SketchEncoding
from sfumato.schemas.region import Places
from sfumato.schemas.tree import Tree
from sfumato.transforms.locations.distributions import MAX_GAMMA
from sfumato.transforms.locations.shards import ShardGroup, key_dtype
from sfumato.transforms.privacy.keys import FixedSecret, RunKey, random_bits
from sfumato.transforms.privacy.shared_noise import Noise
from sfumato.transforms.secagg.encodings import (
    Encoding,
    Rounding,
    TreeEncoding,
    fraction_bits,
    rounded_sums,
    stored_total,
)
from sfumato.transforms.secagg.modulus import Window
from sfumato.transforms.secagg.shard_sums import (
    ShardQuery,
    add_central_noise,
    count_vectors,
    sum_shards,
)
from tests.seeds import seeded_rng
from tests.statistics import FLAKE_RATE, chi_square_p, discrete_laplace_pmf

ROUNDINGS = ("systematic", "independent")
KEY = RunKey.derive(FixedSecret(b"rounding" * 4), {})
WIDE = Window(1 << 60, 1 << 59)
DEPTH = 3
User = dict[int, float]  # the share of their records in each cell


def whole_weights(user: User, total: int, offset: float) -> dict[int, int]:
    """Systematic rounding of one user's shares, place by place: they add up to `total`."""
    weights, before, share = {}, 0, 0.0
    places = sorted(user)
    for place in places:
        share += user[place]
        upto = total if place == places[-1] else min(total, math.floor(total * share / sum(user.values()) + offset))
        if upto > before:
            weights[place] = upto - before
        before = upto
    return weights


def group_of(users: list[list[User]], total: int, places: Places, seed: int = 0) -> ShardGroup:
    """A group of shards of users, ranked in the order of the lists."""
    rng = seeded_rng(seed)
    rows = []
    for shard, mine in enumerate(users):
        for rank, user in enumerate(mine):
            weights = whole_weights(user, total, rng.random())
            assert sum(weights.values()) == total
            rows += [((shard << places.bits) | place, rank, weight) for place, weight in weights.items()]
    rows.sort()
    keys, ranks, weights = (np.array(column) for column in zip(*rows, strict=True))
    return ShardGroup(
        5, len(users), places, keys.astype(key_dtype(places)), None, weights.astype(np.int64), ranks.astype(np.uint32)
    )


def some_users(rng: np.random.Generator, shards: int, users: int, places: Places) -> list[list[User]]:
    def user() -> User:
        cells = rng.integers(0, 4**places.depth, rng.integers(1, 12))
        category = rng.integers(0, places.bins, len(cells)) << (2 * places.depth)
        return dict(zip((category | cells).tolist(), rng.exponential(1, len(cells)).tolist(), strict=True))

    return [[user() for _ in range(users)] for _ in range(shards)]


def some_tree(rng: np.random.Generator, depth: int = DEPTH) -> Tree:
    """Any tree: orphans, holes, and nodes of which some children are missing."""
    nodes = [rng.integers(4**level, 2 * 4**level, rng.integers(0, 12)) for level in range(1, depth + 1)]
    return Tree.of(depth, np.concatenate(nodes).astype(np.uint64))


def entry_by_prefix(tree: Tree, categories: int = 1) -> Callable[[int], list[int]]:
    """The entry of a place: the longest prefix that is in the tree, one at a time."""
    present, entries = set(tree.nodes.tolist()), tree.entries.tolist()

    def entries_of(place: int) -> list[int]:
        category, node = divmod(place, 4**tree.depth)
        node |= 4**tree.depth
        while node not in present:
            node >>= 2
        assert category < categories
        return [category * len(entries) + entries.index(node)]

    return entries_of


def vectors(
    group: ShardGroup, length: int, entries_of: Callable[[int], list[int]], bits: int, subkey: bytes
) -> dict[tuple[int, int], list[int]]:
    """What every client sends, by (shard, rank): loops over rows and entries, one word at a time."""
    assert group.weights is not None
    assert group.clients is not None
    shares: dict[tuple[int, int, int], int] = {}
    for key, rank, weight in zip(group.keys.tolist(), group.clients.tolist(), group.weights.tolist(), strict=True):
        shard, place = divmod(key, 1 << group.places.bits)
        for entry in entries_of(place):
            shares[shard, rank, entry] = shares.get((shard, rank, entry), 0) + weight
    sent: dict[tuple[int, int], list[int]] = {}
    for (shard, rank, entry), share in shares.items():
        high, low = np.uint64(group.first + shard), np.uint64(rank * 2**32 + entry)
        draw = int(random_bits(subkey, np.array([high]), np.array([low]))[0, 0]) % 2**bits
        sent.setdefault((shard, rank), [0] * length)[entry] = (share + draw) // 2**bits
    return sent


def encodings(rng: np.random.Generator) -> list[tuple[Encoding, Callable[[int], list[int]], Places]]:
    tree = some_tree(rng)
    sketch = SketchEncoding(DEPTH, 2, 5, 3)
    grid = GridEncoding(DEPTH, DEPTH, 2, (1, 2, 3, 1))
    found = []
    for encoding in (sketch, grid):
        of_cell = {}
        for cell in range(4**DEPTH):
            one = ShardGroup(0, 1, Places(DEPTH), np.array([cell], dtype=np.uint32))
            of_cell[cell] = np.flatnonzero(encoding.count(one, slice(0, 1))[0]).tolist()
        found.append((encoding, of_cell.__getitem__, Places(DEPTH)))
    return [
        (TreeEncoding(tree), entry_by_prefix(tree), Places(DEPTH)),
        (TreeEncoding(tree, 3), entry_by_prefix(tree, 3), Places(DEPTH, 3)),
        *found,
    ]


@pytest.mark.parametrize(("kind", "table"), [(0, False), (1, True), (2, True), (3, True)])
def test_sums_of_rounded_vectors_against_an_oracle(kind: int, table: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not table:
        monkeypatch.setattr("sfumato.transforms.secagg.encodings._MAX_TABLE_LEVEL", -1)
    for seed in range(3):
        rng = seeded_rng(seed)
        encoding, entries_of, places = encodings(rng)[kind]
        users = [*some_users(rng, 3, 12, places), [], *some_users(rng, 1, 3, places)]
        gamma = int(rng.integers(1, 30))
        group = group_of(users, stored_total(gamma, "independent"), places)
        bits = fraction_bits(gamma)
        sent = vectors(group, encoding.length, entries_of, bits, b"k" * 32)
        for block in (slice(0, 5), slice(1, 4), slice(3, 4)):
            expected = np.zeros((block.stop - block.start, encoding.length), dtype=int)
            for (shard, _), vector in sent.items():
                if block.start <= shard < block.stop:
                    expected[shard - block.start] += vector
            assert rounded_sums(group, block, encoding, bits, b"k" * 32).tolist() == expected.tolist()


@given(st.integers(1, MAX_GAMMA))
def test_fraction_bits_are_as_many_as_fit(gamma: int) -> None:
    bits = fraction_bits(gamma)
    assert 0 <= bits <= 16
    assert stored_total(gamma, "independent") == gamma << bits <= MAX_GAMMA
    assert bits == 16 or gamma << (bits + 1) > MAX_GAMMA
    assert stored_total(gamma, "systematic") == gamma


def neighbours(
    rng: np.random.Generator, gamma: int, rounding: Rounding, places: Places, scale: int
) -> list[ShardGroup]:
    """Groups with and without one user among others, who keep their ranks: [with the user, without]."""
    users = some_users(rng, 2, 6, places)
    cells = rng.choice(4**places.depth * places.bins, rng.integers(1, 4**places.depth + 1), replace=False)
    users[1].insert(3, dict(zip(cells.tolist(), (rng.exponential(1, len(cells)) ** scale).tolist(), strict=True)))
    with_user = group_of(users, stored_total(gamma, rounding), places)
    assert with_user.weights is not None
    assert with_user.clients is not None
    own = ((with_user.keys >> places.bits) == 1) & (with_user.clients == 3)
    parts = (with_user.keys[~own], None, with_user.weights[~own], with_user.clients[~own])
    return [with_user, ShardGroup(with_user.first, 2, places, *parts)]


@pytest.mark.slow
@settings(max_examples=60)
@given(st.integers(0, 2**32), st.integers(1, 200), st.sampled_from(ROUNDINGS), st.integers(0, 3), st.integers(0, 8))
def test_one_user_moves_the_sums_by_at_most_the_sensitivity(
    seed: int, gamma: int, rounding: Rounding, kind: int, scale: int
) -> None:
    rng = seeded_rng(seed)
    encoding, _, places = encodings(rng)[kind]
    query = ShardQuery(1, encoding, 1.0, WIDE, Noise(), gamma, rounding)
    both = neighbours(rng, gamma, rounding, places, scale)
    added = np.subtract(*(count_vectors(group, slice(0, 2), query, KEY) for group in both))
    assert (added >= 0).all()
    assert not added[0].any()
    if rounding == "systematic":  # attained by any user
        assert added.sum() == query.sensitivity == gamma * encoding.entries_per_location
    else:
        assert added.sum() < query.sensitivity == gamma * encoding.entries_per_location + encoding.length
        assert np.count_nonzero(added) <= encoding.length


@pytest.mark.false_alarm(1e-8)
def test_sensitivity_of_independent_rounding_is_attained() -> None:
    """10,000 users who are everywhere alike: some round all four entries up, which no smaller sensitivity covers."""
    encoding, places, gamma = TreeEncoding(Tree.uniform(DEPTH, 1)), Places(DEPTH), 5
    user = dict.fromkeys(range(0, 64, 16), 1.0)
    group = group_of([[user]] * 10_000, stored_total(gamma, "independent"), places)
    query = ShardQuery(1, encoding, 1.0, WIDE, Noise(), gamma, "independent")
    norms = count_vectors(group, slice(0, 10_000), query, KEY).sum(axis=1)
    assert norms.max() == gamma + encoding.length - 1 == query.sensitivity - 1
    # Each of four entries of 5/4 is rounded up with a probability of 1/4, independently.
    expected = stats.binom.pmf(range(5), 4, 0.25) * 10_000
    observed = np.bincount(norms - 4, minlength=5)
    assert stats.chisquare(observed, expected).pvalue > FLAKE_RATE


@pytest.mark.false_alarm(2e-9)
@pytest.mark.parametrize(("gamma", "share"), [(1, 0.03), (1000, 0.3337)])
def test_independent_rounding_is_right_on_average(gamma: int, share: float) -> None:
    """20,000 users alike: as many round an entry up as its fraction says."""
    places = Places(DEPTH)
    group = group_of([[{0: share, 63: 1 - share}]] * 20_000, stored_total(gamma, "independent"), places)
    assert group.weights is not None
    query = ShardQuery(1, TreeEncoding(Tree.uniform(DEPTH, 1)), 1.0, WIDE, Noise(), gamma, "independent")
    sums = count_vectors(group, slice(0, 20_000), query, KEY)
    for entry, of_all in ((0, share), (3, 1 - share)):
        up = int((sums[:, entry] > math.floor(gamma * of_all)).sum())
        assert set(sums[:, entry].tolist()) == {math.floor(gamma * of_all), math.floor(gamma * of_all) + 1}
        fraction = gamma * of_all % 1
        assert stats.binomtest(up, 20_000, fraction).pvalue > FLAKE_RATE
        assert stats.binomtest(up, 20_000, fraction + (0.05 if fraction < 0.5 else -0.05)).pvalue < FLAKE_RATE
    assert not sums[:, 1:3].any()  # where the user has nothing, they send nothing


@pytest.mark.false_alarm(1e-10)
@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_a_retry_and_any_blocks_draw_the_same(dropout: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the 40 users of a shard fewer than 8 stay, which would lose it, with a probability below 1e-11."""
    rng, places, gamma = seeded_rng(2), Places(DEPTH), 9
    group = group_of(some_users(rng, 6, 40, places), stored_total(gamma, "independent"), places)
    query = ShardQuery(1, TreeEncoding(some_tree(rng)), 0.5, WIDE, Noise(required=8), gamma, "independent")
    once = sum_shards(group, query, KEY, "shard", dropout)
    monkeypatch.setattr("sfumato.transforms.secagg.shard_sums._BLOCK_ENTRIES", 1)
    again = sum_shards(group, query, KEY, "shard", dropout)
    assert once.live == again.live == 6
    assert np.array_equal(once.sums, again.sums)
    other = sum_shards(group, replace(query, index=2), KEY, "shard", dropout)
    assert not np.array_equal(once.sums, other.sums)


@pytest.mark.false_alarm(1e-9)
@pytest.mark.parametrize(
    ("encoding", "rounding", "noise"),
    [
        (TreeEncoding(Tree.uniform(5, 5)), "independent", "shard"),
        (TreeEncoding(Tree.uniform(5, 5)), "systematic", "client"),
        (SketchEncoding(5, 4, 64, 4), "independent", None),
        (SketchEncoding(5, 4, 64, 4), "systematic", "shard"),
    ],
)
def test_the_noise_in_the_sums_is_that_of_the_sensitivity(encoding: Encoding, rounding: Rounding, noise: str) -> None:
    """And not of a smaller one: what systematic rounding would have, or a location that adds to one entry."""
    gamma, epsilon, places, residuals = encoding.length, 0.9, Places(5), []
    users = some_users(seeded_rng(1), 1, 20, places)
    group = group_of(users, stored_total(gamma, rounding), places)
    for index in range(1, 1 + 16_384 // encoding.length):
        query = ShardQuery(index, encoding, epsilon, WIDE, Noise(required=20), gamma, rounding)
        totals = sum_shards(group, query, KEY, noise)  # type: ignore[arg-type]
        if noise is None:
            totals = add_central_noise(totals, query, KEY)
        residuals.append(totals.sums - count_vectors(group, slice(0, 1), query, KEY)[0])
    sample = np.concatenate(residuals)
    sensitivity = gamma * encoding.entries_per_location + (encoding.length if rounding == "independent" else 0)
    right = chi_square_p(sample, discrete_laplace_pmf(epsilon / sensitivity, 15 * sensitivity))
    assert right > FLAKE_RATE
    for wrong in {0.75 * sensitivity, gamma * encoding.entries_per_location, gamma, 1.3 * sensitivity} - {sensitivity}:
        assert chi_square_p(sample, discrete_laplace_pmf(epsilon / wrong, 15 * sensitivity)) < FLAKE_RATE
