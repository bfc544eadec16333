"""What the terminal says of noisy numbers: rounded, with a margin at 95%, never below 0. Records keep all digits."""

from __future__ import annotations

import logging

import pytest

from sfumato.transforms.logs import COUNTED_USERS, FEW_USERS, SUB_QUERY


def test_users_have_a_margin_and_are_never_negative(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "sfumato.progress"):
        COUNTED_USERS.emit(users=1_000_130.0, noise_stddev=141.4)
        FEW_USERS.emit(users=-196.0, noise_stddev=141.4)
    many, few = caplog.messages
    assert "1,000,100 users (± 280, 95%)" in many
    assert "0 users (at most 280, 95%)" in few
    assert "-196" not in few
    assert [vars(record)["fields"]["users"] for record in caplog.records] == [1_000_130.0, -196.0]


def test_noise_is_stated_at_95_percent(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "sfumato.progress"):
        SUB_QUERY.emit(sub_query=1, entries=16, cost="epsilon 1", remaining=0.0, noise_stddev=10.0)
    assert caplog.messages[0].endswith("noise ± 20 users (95%)")
