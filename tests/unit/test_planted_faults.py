"""Faults can be planted: each snippet occurs once, and what takes its place is Python."""

from __future__ import annotations

from tests.mistakes import FAULTS, SHOWN
from tests.planted_faults import main


def test_every_fault_can_be_planted() -> None:
    assert main(["--list"]) == 0
    assert len({fault.name for fault in FAULTS}) == len(FAULTS) >= 150
    assert sum(fault.subject in SHOWN for fault in FAULTS) >= 30
    for fault in FAULTS:
        assert len(fault.name) <= 60
        assert fault.old.count("\n") <= 2
        assert fault.old != fault.new
