"""The changes that the page's script is tested against are those of today's package."""

from __future__ import annotations

from tests.jobs.release.page_changes import FILE, page_changes_text


def test_the_scripts_pairs_are_up_to_date() -> None:
    assert FILE.read_text() == page_changes_text(), "run `python -m tests.jobs.release.page_changes`"
