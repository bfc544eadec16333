"""Attack 12: a key of 16 zero bytes, and a key file that everybody may read, gave a release without a word.

Who guesses or reads the key takes the noise away. So both are refused before anything is charged.
"""

from __future__ import annotations

import base64
import hashlib
import os
import stat
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from sfumato.pipelines.command_line import cli
from sfumato.transforms.privacy.secrets import (
    _BASE64,
    _LEVEL,
    _PRINTABLE,
    MIN_SECRET_BYTES,
    FileSecret,
    few_distinct_probability,
    key_weakness,
)
from tests.attacks.jobs import charged_run
from tests.conftest import write_files
from tests.rejections import rejects
from tests.seeds import seeded_rng

GOOD = seeded_rng(12).bytes(32)
WEAK = {
    "zeros": bytes(16),
    "many_zeros": bytes(1000),
    "one_letter": b"a" * 32,
    "two_bytes": b"\x03\xf1" * 16,
    "counted": bytes(range(7, 39)),
    "counted_by_threes": bytes(range(0, 96, 3)),
    "eight_bytes_over_and_over": GOOD[:6] * 6,
    "words": b"correct horse battery staple\n",
    "words_without_spaces": b"correcthorsebatterystaplecorrect",
    "words_in_capitals": b"CORRECT-HORSE-BATTERY-STAPLE",
    "words_in_cyrillic": "очень секретный пароль".encode(),
    "digits": b"1234567890" * 4,
    "hexadecimal_of_zeros": b"00" * 32,
    "hexadecimal_words": b"deadbeef" * 8,
    "hexadecimal_of_few_bytes": b"0123456789abcdef",
    "base64_of_few_bytes": base64.b64encode(GOOD[:9]),
    "short": GOOD[:15],
    "empty": b"",
}


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> str:
    table = pa.table({"user_id": range(2000), "kind": ["a", "b"] * 1000})
    return write_files(table, tmp_path_factory.mktemp("weak") / "logs", 1)


def run(logs: str, folder: Path) -> int:
    return charged_run("histogram --column=kind --delta=1e-6", logs, folder)


def put(folder: Path, secret: bytes, mode: int = 0o600) -> None:
    (folder / "key").write_bytes(secret)
    (folder / "key").chmod(mode)


@pytest.mark.parametrize("name", WEAK)
def test_a_weak_key_is_refused_before_anything_is_charged(logs: str, tmp_path: Path, capsys, name: str) -> None:
    put(tmp_path, WEAK[name])
    assert run(logs, tmp_path) == 2
    shown = capsys.readouterr().err
    assert f"key_file: {tmp_path / 'key'} " in shown
    assert "sfumato key new FILE" in shown
    assert os.listdir(tmp_path) == ["key"]  # neither a release nor a ledger


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o620, 0o602, 0o666, 0o601])
def test_a_key_that_others_may_use_is_refused(logs: str, tmp_path: Path, capsys, mode: int) -> None:
    put(tmp_path, GOOD, mode)
    assert run(logs, tmp_path) == 2
    assert f"chmod 600 {tmp_path / 'key'}" in capsys.readouterr().err
    assert os.listdir(tmp_path) == ["key"]


def test_a_key_that_everybody_may_replace_is_refused(logs: str, tmp_path: Path, capsys) -> None:
    put(tmp_path, GOOD)
    tmp_path.chmod(0o707)
    assert run(logs, tmp_path) == 2
    assert f"chmod o-w {tmp_path}" in capsys.readouterr().err
    tmp_path.chmod(0o1707)  # as /tmp: others may add files, and not replace this one
    assert run(logs, tmp_path) == 0


def test_the_command_makes_a_key_that_a_job_takes(logs: str, tmp_path: Path, capsys) -> None:
    key = tmp_path / "key"
    before = os.umask(0)
    try:
        assert cli.main(["key", "new", str(key)]) == 0
    finally:
        os.umask(before)
    assert f"--key_file {key}" in capsys.readouterr().out
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    secret = key.read_bytes()
    assert len(secret) == 32
    assert cli.main(["key", "new", str(tmp_path / "other")]) == 0
    assert (tmp_path / "other").read_bytes() != secret
    assert run(logs, tmp_path) == 0


def test_the_command_overwrites_nothing(tmp_path: Path, capsys) -> None:
    (tmp_path / "key").write_bytes(GOOD)
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    for name in ("key", "link"):
        assert cli.main(["key", "new", str(tmp_path / name)]) == 2
        assert "exists" in capsys.readouterr().err
    assert (tmp_path / "key").read_bytes() == GOOD
    assert not (tmp_path / "elsewhere").exists()
    assert cli.main(["key", "new", str(tmp_path / "nowhere" / "key")]) == 2
    assert cli.main(["key", "new", "gs://bucket/key"]) == 2
    tmp_path.chmod(0o707)
    assert cli.main(["key", "new", str(tmp_path / "fresh")]) == 2
    assert not (tmp_path / "fresh").exists()


@pytest.mark.parametrize("length", [MIN_SECRET_BYTES, 24, 32, 64])
def test_keys_without_a_pattern_are_accepted(length: int) -> None:
    """In every form in which one is written down."""
    secret = hashlib.sha512(b"a random key").digest()[:length]
    texts = [secret.hex(), secret.hex().upper(), f"{secret.hex()}\n"]
    texts += [code(secret).decode() for code in (base64.b64encode, base64.urlsafe_b64encode)]
    texts.append(texts[-1].rstrip("="))
    for one in (secret, *(text.encode() for text in texts)):
        assert key_weakness(one) is None


@pytest.mark.parametrize("length", range(MIN_SECRET_BYTES // 2, MIN_SECRET_BYTES))
def test_text_of_too_few_random_bytes_is_refused(length: int) -> None:
    """Though as text they are long enough."""
    secret = hashlib.sha512(b"a random key").digest()[:length]
    assert key_weakness(secret.hex().encode()) is not None
    assert key_weakness(base64.b64encode(secret)) is not None


def test_32_random_bytes_are_hardly_ever_refused() -> None:
    raw = 2 * _LEVEL + (len(_PRINTABLE) / 256) ** 32  # both counting tests, or every byte is printable
    base64_text = _LEVEL + 2 * ((_BASE64 - 26) / _BASE64) ** (32 * 4 // 3)  # one counting test, or letters of one case
    hexadecimal = 2 * _LEVEL  # both counting tests
    assert max(raw, base64_text, hexadecimal) < 1e-9


@pytest.mark.parametrize(("length", "alphabet"), [(16, 256), (32, 256), (43, 64), (10, 6)])
def test_the_counting_test_fails_no_more_than_it_says(length: int, alphabet: int) -> None:
    """The law of the number of distinct symbols, exactly: one more symbol is new, or is not."""
    law = np.zeros(alphabet + 2)
    law[0] = 1.0
    for _ in range(length):
        old = np.arange(alphabet + 2) / alphabet
        law = law * old + np.append(0, (law * (1 - old))[:-1])
    for distinct in range(1, alphabet + 1):
        assert law[: distinct + 1].sum() <= few_distinct_probability(length, distinct, alphabet) * (1 + 1e-9)
    # And it is a test: one symbol alone is as improbable as it is.
    assert few_distinct_probability(length, 1, alphabet) == pytest.approx(alphabet ** (1.0 - length))


def test_a_worker_refuses_a_weak_key_too(tmp_path: Path) -> None:
    put(tmp_path, bytes(32))
    with rejects("key_file"):
        FileSecret(str(tmp_path / "key")).read()
