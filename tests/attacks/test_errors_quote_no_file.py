"""An error of reading quotes nothing of a file: its message reaches logs and terminals."""

from __future__ import annotations

import pytest

from sfumato.schemas.errors import DataError
from sfumato.transforms.inputs.log_file import reading_file


def test_text_that_is_not_utf_8_is_not_quoted() -> None:
    with pytest.raises(DataError) as caught, reading_file("a.parquet", "Parquet"):
        b"Anna\xff".decode()
    assert caught.value.file == "a.parquet"
    assert "0xff" not in str(caught.value)
    assert "position" not in str(caught.value)
