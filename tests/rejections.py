"""Tests of refusals ask which option, or which file, an error is about. Wording is tested once for each pattern."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from sfumato.schemas.errors import RequestError, SfumatoError


@contextmanager
def rejects(option: str, kind: type[SfumatoError] = RequestError) -> Iterator[pytest.ExceptionInfo[SfumatoError]]:
    """Expects the block to raise an error of this kind about this option (several: with commas, as the message)."""
    with pytest.raises(kind) as caught:
        yield caught
    assert caught.value.option == option, caught.value
