"""The configuration file: every key, and every way to get one wrong."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest

from sfumato.schemas.errors import RequestError
from sfumato.schemas.refresh import RefreshConfig

GOOD: dict[str, Any] = {
    "dataset": "taxis",
    "input": "logs",
    "output": "./published",
    "ledger": "/var/lib/ledger.db",
    "key_file": "../key",
    "budget": [{"epsilon": 10, "delta": "1e-6", "days": 365}, {"epsilon": 1, "days": 1}],
    "options": {"region": "-1,50,1,51"},
}


def test_places_are_relative_to_the_file() -> None:
    config = RefreshConfig.read(GOOD, "/etc/sfumato")
    assert (config.input, config.output, config.ledger, config.key_file) == (
        "/etc/sfumato/logs",
        "/etc/sfumato/published",
        "/var/lib/ledger.db",
        "/etc/key",
    )
    remote = RefreshConfig.read({**GOOD, "key_file": "gs://private/key"}, "gs://bucket/jobs/")
    assert (remote.input, remote.output) == ("gs://bucket/jobs/logs", "gs://bucket/jobs/published")
    assert remote.key_file == "gs://private/key"


def test_limits_and_defaults() -> None:
    config = RefreshConfig.read(GOOD, "/")
    assert [(limit.epsilon, limit.delta, limit.days) for limit in config.budget] == [
        (Decimal(1), Decimal(0), 1),
        (Decimal(10), Decimal("1e-6"), 365),
    ]
    assert (config.job, config.warm_start, config.min_users, config.runner_config) == ("heatmap", True, 0, None)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"datset": "taxis"}, "unknown key 'datset'; did you mean dataset?"),
        ({"wram_start": True}, "unknown key 'wram_start'; did you mean warm_start?"),
        ({"zzz": 1}, "unknown key 'zzz'; there are: beam, budget"),
        ({3: 1}, "unknown key 3"),
        ({"dataset": None}, "config: dataset: required"),
        ({"budget": None}, "config: budget: required"),
        ({"options": None}, "config: options: required"),
        ({"dataset": "my taxis"}, "dataset: letters, digits"),
        ({"dataset": 7}, "config: dataset: must be text, got 7"),
        ({"input": "logs/*"}, "config: input: must be a folder without * ? or ["),
        ({"output": "s3://bucket/x"}, "config: output: places are files and folders"),
        ({"runner_config": "ftp://x.yaml"}, "config: runner_config: places are"),
        ({"key_secret": 5, "key_file": None}, "config: key_secret: must be text, got 5"),
        ({"beam": ["x"]}, "config: beam: must be a map"),
        ({"min_users": 1.0}, "config: min_users: must be a whole number >= 0, got 1"),
        ({"input": ["logs"]}, "config: input: must be text, got ['logs']"),
        ({"key_file": None}, "key_file, key_secret: give one of them"),
        ({"key_secret": "projects/p/secrets/s/versions/1"}, "key_file, key_secret: give one of them"),
        ({"budget": {"epsilon": 1}}, "config: budget: must be a list of limits"),
        ({"budget": []}, "config: budget: must be a list of limits"),
        ({"budget": [{"epsilon": 1, "dayz": 1}]}, "unknown key 'dayz'; did you mean days?"),
        ({"budget": [{"epsilon": 1}]}, "a limit needs epsilon and days"),
        ({"budget": [{"epsilon": 1, "days": 1.5}]}, "days must be a whole number"),
        ({"budget": [{"epsilon": 0, "days": 1}]}, "epsilon must be a finite number above 0"),
        ({"budget": [{"epsilon": float("nan"), "days": 1}]}, "epsilon: must be a finite number"),
        (
            {"budget": [{"epsilon": 1, "days": 1}, {"epsilon": 2, "days": 1}]},
            "two limits have windows of the same length",
        ),
        ({"warm_start": "yes"}, "config: warm_start: must be true or false, got 'yes'"),
        ({"options": "depth=4"}, "config: options: must be a map, got 'depth=4'"),
        ({"min_users": -1}, "config: min_users: must be a whole number >= 0"),
        ({"min_users": True}, "config: min_users: must be a whole number >= 0"),
        ({"min_users": "many"}, "config: min_users: must be a whole number >= 0"),
    ],
)
def test_bad_configurations(change: dict[Any, Any], message: str) -> None:
    with pytest.raises(RequestError) as raised:
        RefreshConfig.read({**GOOD, **change}, "/")
    assert message in str(raised.value)


@pytest.mark.parametrize("settings", [None, [], "text", 3])
def test_a_file_that_holds_no_map(settings: Any) -> None:
    with pytest.raises(RequestError, match="must map names to values"):
        RefreshConfig.read(settings, "/")
