"""Earlier releases in place of the first round: what is taken over, and what is refused."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from sfumato.schemas.errors import RequestError
from sfumato.schemas.moments import BITS_SCHEMA, FixedPoint, Signed
from sfumato.transforms.moments.local.allocation import Prior, PriorRelease
from sfumato.transforms.moments.local.quantities import Quantity
from tests.seeds import seeded_rng

FORM = FixedPoint(4, 1, "shift", 2.5)
MANIFEST: dict[str, Any] = {
    "job": "moments",
    "release_id": "earlier",
    "column": "speed",
    "fixed_point": {"bits": 4, "fraction_bits": 1, "signed": "shift", "offset": 2.5, "step": 0.5, "low": 0, "high": 1},
    "privacy": {"trust": "local", "randomness": {"source": "key file", "safe": True}},
}


def table(kinds: tuple[str, ...] = ("value", "square")) -> pa.Table:
    rng, parts = seeded_rng(7), []
    for kind in kinds:
        weight = Quantity(FORM, kind, 1.0 if kind == "square" else 0.0).slots.weight
        columns = {name: rng.uniform(0.1, 0.9, len(weight)) for name in BITS_SCHEMA.names[1:]}
        columns |= {"weight": weight, "squashed": weight > 4}
        parts.append(pa.table({"quantity": [kind] * len(weight), **columns}, schema=BITS_SCHEMA))
    return pa.concat_tables(parts)


def changed(**changes: Any) -> dict[str, Any]:
    manifest = copy.deepcopy(MANIFEST)
    for path, value in changes.items():
        *folders, name = path.split("__")
        place = manifest
        for folder in folders:
            place = place[folder]
        if value is None:
            del place[name]
        else:
            place[name] = value
    return manifest


def column(name: str, value: float) -> pa.Table:
    bits = table()
    numbers = bits[name].to_numpy().copy()
    numbers[2] = value
    return bits.set_column(bits.schema.get_field_index(name), BITS_SCHEMA.field(name), pa.array(numbers))


def test_every_quantitys_bits_are_taken_over() -> None:
    bits = table()
    prior = PriorRelease.from_release(MANIFEST, bits, "speed", FORM)
    assert prior.release_id == "earlier"
    assert prior.has_secret_key
    assert set(prior.bits) == {"value", "square"}
    for kind, one in prior.bits.items():
        rows = bits.filter(pa.compute.equal(bits["quantity"], kind))
        for name in ("weight", "mean", "stddev"):
            assert getattr(one, name).tolist() == rows[name].to_pylist()
    assert prior.metadata() == {"release_id": "earlier", "digest": prior.digest}


def test_the_digest_is_of_all_that_is_taken_over() -> None:
    digests = [
        PriorRelease.from_release(MANIFEST, bits, "speed", FORM).digest
        for bits in (table(), column("mean", 0.123), column("stddev", 0.123), table(("value",)))
    ]
    assert len(set(digests)) == 4
    assert PriorRelease.from_release(MANIFEST, table(), "speed", FORM).digest == digests[0]


@pytest.mark.parametrize("told", [False, "yes", 1])
def test_only_a_key_that_is_said_to_be_safe_is(told: object) -> None:
    assert not PriorRelease.from_release(changed(privacy__randomness__safe=told), table(), "speed", FORM).has_secret_key


@pytest.mark.parametrize(
    ("manifest", "message"),
    [
        (changed(job="heatmap"), "a release of `sfumato moments` is needed, got 'heatmap'"),
        (changed(job=None), "a release of `sfumato moments` is needed, got None"),
        (changed(column="age"), "the release is of column 'age', this one of 'speed'"),
        (changed(column=None), "manifest lacks its column or form"),
        (changed(privacy=None), "manifest lacks its column or form"),
        (changed(fixed_point=None), "manifest lacks its column or form"),
        (changed(fixed_point__bits="four"), "manifest lacks its column or form"),
        (changed(fixed_point__bits=99), "manifest lacks its column or form"),
        (changed(fixed_point__offset=None), "manifest lacks its column or form"),
        (changed(fixed_point__bits=5), "the release has other --bits, --fraction_bits or --signed"),
        (changed(fixed_point__offset=2.0), "the release has other --bits, --fraction_bits or --signed"),
        (changed(fixed_point__signed="split", fixed_point__offset=0.0), "other --bits, --fraction_bits or --signed"),
    ],
)
def test_releases_of_something_else_are_refused(manifest: dict[str, Any], message: str) -> None:
    with pytest.raises(RequestError, match=f"warm_start: .*{message}"):
        PriorRelease.from_release(manifest, table(), "speed", FORM)


@pytest.mark.parametrize(
    ("bits", "message"),
    [
        (table().drop_columns("stddev"), "other columns"),
        (column("mean", np.nan), "no finite numbers"),
        (column("mean", np.inf), "no finite numbers"),
        (column("stddev", np.nan), "no finite numbers"),
        (column("stddev", 0.0), "no finite numbers"),
    ],
)
def test_damaged_tables_are_refused(bits: pa.Table, message: str) -> None:
    with pytest.raises(RequestError, match=f"warm_start: .*{message}"):
        PriorRelease.from_release(MANIFEST, bits, "speed", FORM)


@pytest.mark.parametrize(("signed", "kind"), [("no", "value"), ("split", "value"), ("split", "power:3")])
def test_known_bits_are_found_by_their_weight(signed: Signed, kind: str) -> None:
    slots = Quantity(FixedPoint(5, 0, signed), kind).slots
    rng = seeded_rng(0)
    prior = Prior(slots.weight, rng.uniform(size=len(slots)), rng.uniform(size=len(slots)))
    mean, variance = prior.for_slots(slots)
    assert np.array_equal(mean, prior.mean)
    assert np.array_equal(variance, prior.stddev**2)


def test_bits_that_the_earlier_release_lacks_may_be_anything() -> None:
    """Squares about another mean have other highest bits, and are finer where that mean is no whole number."""
    earlier = Quantity(FixedPoint(5), "square", 3.0).slots
    prior = Prior(earlier.weight, np.full(len(earlier), 0.2), np.full(len(earlier), 0.1))
    now = Quantity(FixedPoint(5), "square", 16.5).slots
    assert not np.array_equal(now.weight, earlier.weight)
    mean, variance = prior.for_slots(now)
    known = np.isin(now.weight, earlier.weight)
    assert known.any()
    assert np.where(known, 0.2, 0.5).tolist() == mean.tolist()
    assert np.where(known, 0.1**2, 0.25).tolist() == pytest.approx(variance.tolist())
    half = Quantity(FixedPoint(5), "power:2").slots  # without the finer bits
    mean, _ = Prior(half.weight[1:], half.weight[1:] * 0 + 0.3, half.weight[1:] * 0 + 0.1).for_slots(half)
    assert mean.tolist() == [0.5] + [0.3] * (len(half) - 1)
