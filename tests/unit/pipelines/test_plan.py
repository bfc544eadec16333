"""`sfumato plan` on the command line: a plan, a table of several, and the numbers of cohorts for nights."""

from __future__ import annotations

import re

import pytest

from sfumato.pipelines.command_line import cli
from tests import ROOT


def planned(capsys: pytest.CaptureFixture[str], *options: str) -> str:
    assert cli.main(["plan", *options]) == 0
    return capsys.readouterr().out


TWO_VALUES = {"epsilon": "1,2", "method": "adaptive,flat", "trust": "central,secagg"}


@pytest.mark.parametrize(
    ("option", "options"),
    [
        ("users", ["--nights", "30"]),
        ("users", ["--nights", "30", "--users", "1000,2000"]),
        *((name, ["--nights", "30", "--users", "1000", f"--{name}", two]) for name, two in TWO_VALUES.items()),
        *(("nights", ["--users", "1000", f"--nights={bad}"]) for bad in ("0", "367", "-3", "1.5", "many", "30,60")),
    ],
)
def test_nights_take_one_value_an_option(option: str, options: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["plan", *options]) == 2
    found = capsys.readouterr()
    assert not found.out
    assert f": --{option}: " in found.err


@pytest.mark.parametrize("options", [[], ["--trust", "central"], ["--users", "54600000"]])
def test_the_tables_of_the_guide_are_what_the_command_prints(
    options: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    users = [] if "--users" in options else ["--users", "300000"]
    text = planned(capsys, "--nights", "30", "--epsilon", "1", *users, *options)
    table = "\n".join(f"    {line}" for line in text.splitlines() if line.startswith("|"))
    assert table in (ROOT / "docs" / "how_to" / "production.md").read_text(encoding="utf-8")


def test_few_users_are_told_how_many_places_they_can_show(capsys: pytest.CaptureFixture[str]) -> None:
    few = planned(capsys, "--users", "60", "--trust", "central")
    (line,) = [line for line in few.splitlines() if line.startswith("few users")]
    (places,) = map(int, re.findall(r"at most (\d+) places", line))
    (least,) = map(float, re.findall(r"at least ([\d.]+) users are visible", few))
    assert places == int(60 / least)
    assert "few users" not in planned(capsys, "--users", "100000", "--trust", "central")
