"""Fixtures of the page's tests."""

import pytest

from sfumato.transforms.release.page import Layer
from tests.transforms.release.city import city_layers


@pytest.fixture(scope="session")
def layers() -> list[Layer]:
    return city_layers()
