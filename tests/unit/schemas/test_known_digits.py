import pytest

from sfumato.schemas.known_digits import byte_text, parse_bytes
from tests.rejections import rejects


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("1.5G", 1_500_000_000),
        ("800M", 800_000_000),
        ("2GB", 2_000_000_000),
        ("1GiB", 1 << 30),
        ("512mi", 512 << 20),
        ("3 T", 3 * 10**12),
        ("700000", 700_000),
        (42, 42),
    ],
)
def test_sizes(text: str | int, size: int) -> None:
    assert parse_bytes("memory", text) == size


@pytest.mark.parametrize("text", ["", "G", "-1G", "1.5 gigabytes", "1i", "1e9", "0", "0.1", "nan", "1.5.2G"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with rejects("memory"):
        parse_bytes("memory", text)


def test_sizes_for_people() -> None:
    assert [byte_text(one) for one in (0, 5, 1500, 1_500_000_000, 21_000_000_000)] == ["0", "5", "1.5K", "1.5G", "21G"]
    assert [byte_text(one) for one in (999_499_999, 999_600_000)] == ["999M", "1G"]
    assert parse_bytes("memory", byte_text(123_000_000)) == 123_000_000
