"""Fixtures of every folder whose tests run jobs; a folder's conftest.py imports them. tests/unit does without Beam."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.beam_caches import beam_caches


@pytest.fixture(scope="session", autouse=True)
def fixed_code() -> Iterator[None]:
    """A run's key is bound to the code and its libraries; here to constants, so that one key draws the same noise.

    Otherwise each commit and each machine would test another draw.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sfumato.pipelines.frame.run_key.code_digest", lambda: "c0de" * 16)
        patch.setattr("sfumato.pipelines.frame.run_key.package_versions", lambda: {"python": "3.11.0"})
        yield


@pytest.fixture(scope="session", autouse=True)
def fast_pipelines() -> Iterator[None]:
    """Beam's reflection is cached."""
    with beam_caches():
        yield
