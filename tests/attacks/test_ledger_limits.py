"""Lines 9 and 10: `City` and `city` had a limit each; epsilons of different adjacencies were added up as if one.

Also: nothing that is read, from an option, a configuration or a ledger, crashes the parsers.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sfumato.pipelines.command_line import cli
from sfumato.schemas.errors import BudgetError, LedgerError, RequestError
from sfumato.schemas.guarantee import ADD_OR_REMOVE, REPLACE, ZERO_OUT, Trust
from sfumato.schemas.ledger import (
    Limit,
    Period,
    dataset_name,
    format_amount,
    parse_amount,
)
from sfumato.schemas.refresh import RefreshConfig
from sfumato.transforms.privacy.ledger.history import LIMITS, RESERVE, charge_content, read_entries, replay
from sfumato.transforms.privacy.ledger.windows import (
    convert_adjacency,
    find_overrun,
    first_fit,
    fits,
    max_spent,
    spent_in_window,
)
from tests.attacks.releases import chained, entries_of
from tests.rejections import rejects
from tests.unit.privacy.ledger.helpers import charge, ledger

DAY = Limit.parse_all("1/1d")


# --- line 9: one name in two spellings ---


def test_city_and_city_are_one(tmp_path: Path) -> None:
    book = ledger(tmp_path)
    book.reserve(charge("one", dataset="City"), DAY)
    with pytest.raises(BudgetError):
        book.reserve(charge("two", epsilon="0.1", dataset="city"), DAY)
    with pytest.raises(RequestError, match="limits for dataset 'city' are 1/1d, got 5/1d"):
        book.reserve(charge("two", dataset="CITY"), Limit.parse_all("5/1d"))
    book.set_limits("CITY", Limit.parse_all("2/1d"))
    book.reserve(charge("two", dataset="ciTy"))
    assert list(book.history(with_limits=True).limits) == ["city"]


def test_two_spellings_of_an_earlier_ledger_are_added_up(tmp_path: Path) -> None:
    book = ledger(tmp_path)
    book.reserve(charge("one", dataset="city"), DAY)
    limits = {"dataset": "City", "limits": ["1/1d"]}
    spelt = {**charge_content(charge("two")), "dataset": "City"}
    entries = chained(entries_of(tmp_path), (LIMITS, limits), (RESERVE, spelt))
    assert [one.dataset for one in replay(entries).charges] == ["city", "city"]
    with pytest.raises(LedgerError, match="exceeds the limit"):
        replay(entries, with_limits=True)


# --- line 10: adjacencies ---


def test_every_charge_says_its_unit_adjacency_and_trust(tmp_path: Path) -> None:
    ledger(tmp_path).reserve(charge("one", trust=Trust.LOCAL), DAY)
    content = json.loads(entries_of(tmp_path)[-1])["content"]
    assert (content["unit"], content["adjacency"], content["trust"]) == ("user", ADD_OR_REMOVE, Trust.LOCAL)
    for wrong in (
        {"unit": "record"},
        {"adjacency": "edge"},
        {"trust": "none"},
        {"files": ["x"]},
        {"also_charged": [1]},
    ):
        with pytest.raises(LedgerError, match="cannot be read"):
            replay(chained(entries_of(tmp_path)[:1], (RESERVE, {**content, **wrong})))


@pytest.mark.parametrize("adjacency", [ZERO_OUT, REPLACE])
def test_a_limit_is_of_one_adjacency(tmp_path: Path, adjacency: str) -> None:
    """Epsilon 1 of another adjacency is neither taken for one of the limit's, nor let through uncounted."""
    book = ledger(tmp_path)
    book.reserve(charge("one", epsilon="0.5"), DAY)
    other = charge("two", epsilon="0.1", adjacency=adjacency)
    with pytest.raises(RequestError, match=f"no limit of dataset 'taxis' bounds a release with adjacency {adjacency}"):
        book.reserve(other)
    with pytest.raises(RequestError, match="bounds"):
        book.check(other)
    book.set_limits("taxis", Limit.parse_all(f"1/1d,1.2/1d@{adjacency}"))
    book.reserve(other)
    steps = 2 if adjacency == REPLACE else 1
    day = Period.parse("2026-11-20").last
    limits = book.history().limits["taxis"]
    assert [str(one) for one in limits] == ["1/1d", f"1.2/1d@{adjacency}"]
    spent = [spent_in_window(book.history().charges, "taxis", day, one) for one in limits]
    assert spent == [Decimal("0.5"), Decimal("0.5") * steps + Decimal("0.1")]
    with pytest.raises(BudgetError):
        book.reserve(charge("three", epsilon="0.61"))
    book.history(with_limits=True)


def test_an_entry_beside_its_limits_shows(tmp_path: Path) -> None:
    ledger(tmp_path).set_limits("taxis", DAY)
    forged = chained(entries_of(tmp_path), (RESERVE, charge_content(charge("one", adjacency=REPLACE))))
    replay(forged)
    with pytest.raises(LedgerError, match="none of its limits bounds the charge"):
        replay(forged, with_limits=True)


@given(
    st.decimals("0.01", "5", places=2),
    st.decimals("0", "0.01", places=6),
    st.sampled_from([ADD_OR_REMOVE, ZERO_OUT, REPLACE]),
    st.sampled_from([ADD_OR_REMOVE, ZERO_OUT, REPLACE]),
)
def test_conversions_are_those_of_group_privacy(epsilon: Decimal, delta: Decimal, given_: str, wanted: str) -> None:
    """Two steps multiply every probability by e^epsilon twice, and add delta once plain and once times e^epsilon."""
    one = charge("one", epsilon=str(epsilon), delta=str(delta), adjacency=given_)
    found = convert_adjacency(one, wanted)
    if given_ == wanted or (given_, wanted) == (ADD_OR_REMOVE, ZERO_OUT):
        assert found is not None
        assert (found.epsilon, found.delta) == (one.epsilon, one.delta)
    elif wanted == REPLACE:
        assert found is not None
        assert found.epsilon == 2 * epsilon
        assert float(found.delta) == pytest.approx(min(float(delta) * (1 + float(epsilon.exp())), 1), rel=1e-12)
    else:
        assert found is None  # the number of users is not bounded by what tells nothing of it


# --- whatever is read ---


def read_or_refused(read: Callable[[], Any]) -> Any:
    """What is read; None where it is refused, in a message of bearable length. Any other error fails the test."""
    try:
        return read()
    except (RequestError, LedgerError) as error:
        message = str(error)
    if len(message) > 400:
        pytest.fail(f"a message of {len(message)} characters")
    return None


numbers = st.one_of(
    st.text(max_size=30),
    st.from_regex(r"[+-]?[0-9_]{0,40}\.?[0-9]{0,40}([eE][+-]?[0-9]{1,12})?", fullmatch=True),
    st.floats(),
    st.integers(),
    st.booleans(),
    st.none(),
    st.sampled_from(["1e999999999", "1e-999999999", "sNaN", "NaN123", "٣", "1_000", "0x10", " 1 ", "9" * 5000, "-0"]),
)


@pytest.mark.slow
@given(numbers)
@example(10**5000)
@example("1E+1000000")
def test_every_amount_is_exact_or_refused(value: Any) -> None:
    found = read_or_refused(lambda: parse_amount("epsilon", value))
    if found is None:
        return
    assert found == 0 or Decimal("1e-100") <= found <= 1_000_000
    assert len(format_amount(found)) < 140
    assert parse_amount("epsilon", format_amount(found)) == found


@pytest.mark.slow
@given(st.lists(st.decimals("1e-100", "1e6", allow_nan=False).filter(lambda one: len(one.as_tuple().digits) <= 28)))
@example([Decimal("1e6"), Decimal("1e-100")])
def test_no_sum_is_rounded(amounts: list[Decimal]) -> None:
    many = [charge(f"r{number}", epsilon=format_amount(one)) for number, one in enumerate(amounts)]
    total = spent_in_window(many, "taxis", Period.parse("2026-11-20").last, DAY[0])
    assert Fraction(total) == sum(map(Fraction, amounts), Fraction(0))


limit_texts = st.one_of(
    st.text(max_size=30),
    st.from_regex(r"[0-9.e+-]{1,12}(:[0-9.e+-]{1,12})?/[0-9]{1,20}d(@[a-z-]{0,30})?", fullmatch=True),
    st.builds("{}/{}d".format, numbers, st.integers()),
)


@pytest.mark.slow
@given(limit_texts)
@example("1/" + "9" * 5000 + "d")
@example("1/٣d")
@example("1e999999999/1d")
@example("1/1d@replace")
def test_every_limit_is_one_or_refused(text: str) -> None:
    limit = read_or_refused(lambda: Limit.parse(text))
    if limit is None:
        return
    assert Limit.parse(str(limit)) == limit
    assert limit.describe()


day_texts = st.one_of(
    st.text(max_size=12),
    st.dates().map(str),
    st.sampled_from(["0001-01-01", "9999-12-31", "2026-02-30", "２０２６-11-20", "2026-W01-1", "20261120"]),
)


@given(day_texts, day_texts, st.sampled_from(["", ":"]))
@example("0001-01-01", "9999-12-31", ":")
@example("1900-01-01", "2999-12-31", ":")
@example("2999-12-31", "", "")
@example("1900-01-01", "", "")
def test_every_period_can_be_charged_or_is_refused(first: str, last: str, colon: str) -> None:
    """A window of a hundred years around it, and the next day that would fit, are dates too."""
    period = read_or_refused(lambda: Period.parse(f"{first}{colon}{last if colon else ''}"))
    if period is None:
        return
    assert 1 <= len(period.days()) <= 36_525
    limits = Limit.parse_all("1/1d,1/36525d")
    one = charge("one", str(period))
    assert find_overrun([one], charge("two", str(period)), limits) is not None
    assert first_fit([one], charge("two", str(period)), limits) is not None
    assert max_spent([one], "taxis", limits[1]) is not None


@given(st.one_of(st.text(), st.from_regex(r"[A-Za-z0-9_-]{1,120}", fullmatch=True), st.none(), st.integers()))
@example("a\n")
@example("ſ")
@example("K")  # the Kelvin sign, of which k is the lower case
def test_every_name_is_one_or_refused(value: Any) -> None:
    found = read_or_refused(lambda: dataset_name(value))
    if found is None:
        return
    assert found == value.casefold() == value.lower()
    assert found.isascii()
    assert dataset_name(found) == found
    assert charge("one", dataset=value).dataset == found


json_values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text(max_size=8)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=8), inner, max_size=3)),
    max_leaves=6,
)
fields = [*charge_content(charge("one")), "manifest", "reason", "limits", "rotation"]
WHOLE = {**charge_content(charge("one")), "manifest": "m", "reason": "r", "limits": ["1/1d"]}


@pytest.mark.slow
@given(
    st.sampled_from(["reserve", "settle", "commit", "limits", "prune", "other"]),
    st.dictionaries(
        st.sampled_from(fields), st.one_of(json_values, numbers.filter(lambda one: one == one)), max_size=3
    ),
    st.sets(st.sampled_from(fields), max_size=2),
)
def test_every_chained_entry_is_read_or_refused(kind: str, changed: dict[str, Any], gone: set[str]) -> None:
    """Somebody who may write entries, well chained, can make a ledger that is refused, and none that crashes."""
    content = {name: value for name, value in {**WHOLE, **changed}.items() if name not in gone}
    try:
        before = [("limits", {"dataset": "taxis", "limits": ["1/1d"]})]
        before += [] if kind == "reserve" else [("reserve", WHOLE)]
        entries = chained([], *before, (kind, content))
    except (ValueError, OverflowError):
        return  # JSON has no such value
    history = read_or_refused(lambda: replay(entries, with_limits=True))
    if history is None:
        return
    for one in history.charges:
        assert one.epsilon > 0
        assert fits([one], history.limits[one.dataset][0])


@given(st.lists(st.one_of(st.binary(max_size=60), json_values.map(lambda one: json.dumps(one).encode())), max_size=3))
@example([b"[" * 200_000])
@example([b'{"index": ' + b"9" * 5000 + b"}"])
@example([b"\xff\xfe"])
def test_every_line_of_bytes_is_an_entry_or_refused(entries: list[bytes]) -> None:
    if not entries:
        assert read_entries(entries) == []
        return
    with rejects("ledger", LedgerError):
        read_entries(entries)


@pytest.mark.parametrize(
    "option",
    [
        ["--budget", "1e99999999/1d"], ["--budget", "1/" + "9" * 5000 + "d"], ["--budget", "1/1d@edge"],
        ["--period", "0001-01-01"], ["--period", "9999-12-31"], ["--period", "1900-01-01:2999-12-31"],
        ["--dataset", "x" * 101], ["--dataset", "Ｃity"],
    ],
)  # fmt: skip
def test_oversized_options_are_errors_and_not_crashes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], option: list[str]
) -> None:
    given_ = {"--budget": "1/1d", "--period": "2026-11-20", "--dataset": "city", option[0]: option[1]}
    arguments = [
        "heatmap", "--input", str(tmp_path / "*.parquet"), "--output", str(tmp_path / "out"), "--region", "-1,50,1,51",
        "--ledger", str(tmp_path / "ledger.db"), *(text for pair in given_.items() for text in pair),
    ]  # fmt: skip
    assert cli.main(arguments) == 2
    assert option[0].removeprefix("--") in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_a_configuration_names_an_adjacency() -> None:
    settings = {
        "dataset": "city", "input": "in", "output": "out", "ledger": "l.db", "key_file": "key", "options": {},
        "budget": [{"epsilon": 1, "days": 1}, {"epsilon": 2, "days": 1, "adjacency": REPLACE}],
    }  # fmt: skip
    assert [str(one) for one in RefreshConfig.read(settings, "/").budget] == ["1/1d", "2/1d@replace"]
    for wrong in (
        {"adjacency": "edge"},
        {"adjacency": 7},
        {"days": 16**6000},
        {"epsilon": 16**6000},
        {"epsilon": True},
    ):
        with pytest.raises(RequestError):
            RefreshConfig.read({**settings, "budget": [{"epsilon": 1, "days": 1, **wrong}]}, "/")
