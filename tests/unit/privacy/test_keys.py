"""Keys, hashes, and the secrets behind them: read where they are, carried by name alone, never shown."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from sfumato.schemas.errors import DataError, NotReadyError
from sfumato.transforms.privacy.keys import FixedSecret, RunKey, keyed_hash, random_bits
from sfumato.transforms.privacy.secrets import FileSecret, SecretManagerSecret
from tests.keys import SECRET
from tests.rejections import rejects
from tests.secret_manager import SecretManager, secret_manager

KEY = RunKey.derive(FixedSecret(b"s" * 32), {"epsilon": 1.0, "release_id": "a"})


def test_every_part_of_the_request_changes_the_key() -> None:
    key = RunKey.derive(FixedSecret(b"s" * 32), {"epsilon": 1.0, "release_id": "a"})
    same = RunKey.derive(FixedSecret(b"s" * 32), {"release_id": "a", "epsilon": 1.0})
    assert same.subkey("x") == key.subkey("x")
    others = [
        RunKey.derive(FixedSecret(b"t" * 32), {"epsilon": 1.0, "release_id": "a"}),
        RunKey.derive(FixedSecret(b"s" * 32), {"epsilon": 1.1, "release_id": "a"}),
        RunKey.derive(FixedSecret(b"s" * 32), {"epsilon": 1.0, "release_id": "b"}),
    ]
    keys = {key.subkey("x"), key.subkey("x", 1), key.subkey("y"), *(other.subkey("x") for other in others)}
    assert len(keys) == 6


def test_secrets_stay_out_of_texts_and_keys_out_of_pickles(tmp_path) -> None:
    assert "ssss" not in repr(KEY)
    path = tmp_path / "key"
    path.write_bytes(SECRET)
    key = RunKey.derive(FileSecret(str(path)), {"a": 1})
    derived = key.subkey("x")
    pickled = pickle.dumps(key)
    assert SECRET not in pickled
    assert derived not in pickled
    assert pickle.loads(pickled).subkey("x") == derived


def test_file_secret_rejects_a_short_or_missing_file(tmp_path) -> None:
    (tmp_path / "short").write_bytes(b"123")
    for name in ("short", "missing"):
        with rejects("key_file"):
            FileSecret(str(tmp_path / name)).read()


def test_a_key_file_that_changes_ends_the_run(tmp_path) -> None:
    path = tmp_path / "key"
    path.write_bytes(SECRET)
    path.chmod(0o600)
    key = RunKey.derive(FileSecret(str(path)), {"epsilon": 1.0})
    path.write_bytes(SECRET[::-1])
    with pytest.raises(DataError):  # in a worker that starts later
        pickle.loads(pickle.dumps(key)).subkey("noise")


def test_words_are_aes_of_the_counter() -> None:
    """FIPS 197, Appendix C.3."""
    key = bytes(range(32))
    block = bytes.fromhex("00112233445566778899aabbccddeeff")
    high, low = np.frombuffer(block, "<u8")
    words = random_bits(key, np.array([high], np.uint64), np.array([low], np.uint64))
    assert words.astype("<u8").tobytes() == bytes.fromhex("8ea2b7ca516745bfeafc49904b496089")


@pytest.mark.false_alarm(2e-9)
@pytest.mark.parametrize("kind", ["int", "str", "bytes"])
def test_hashes_are_keyed_and_spread(kind: str) -> None:
    numbers = np.arange(20_000, dtype=np.int64)
    values = {
        "int": numbers,
        "str": np.array([f"user{n}" for n in numbers], dtype=object),
        "bytes": np.array([b"user%d" % n for n in numbers], dtype=object),
    }[kind]
    one, two = keyed_hash(KEY.subkey("a"), values), keyed_hash(KEY.subkey("b"), values)
    assert one.dtype == np.uint64
    assert len(np.unique(one)) == len(numbers)
    assert not (one == two).any()
    counts = np.bincount((one >> np.uint64(60)).astype(int), minlength=16)
    assert np.abs(counts - 1250).max() < 7 * np.sqrt(1250)  # 16 binomial numbers, each beyond with less than 1e-10


def test_the_digest_that_travels_confirms_no_guess() -> None:
    """Of the request and the input's content, which it covers, it says nothing to who does not have the key."""
    one, other = (RunKey.derive(FixedSecret(secret * 16), {"files": "digest"}) for secret in (b"a", b"b"))
    assert one.request_digest != other.request_digest
    assert one.request_digest == RunKey.derive(FixedSecret(b"a" * 16), {"files": "digest"}).request_digest


# --- Secret Manager, over a socket ---


NAME = "projects/my-project/secrets/run-key/versions/3"
SHORT = "projects/my-project/secrets/short/versions/1"
CONTENT = SECRET
SHORT_CONTENT = b"fifteen letters"


@pytest.fixture
def stub() -> Iterator[SecretManager]:
    with secret_manager({NAME: CONTENT, SHORT: SHORT_CONTENT}) as running:
        yield running


@pytest.mark.parametrize(
    ("name", "status"),
    [(NAME.replace("/3", "/4"), 200), (NAME, 403), (NAME, 400)],
    ids=["missing", "no right", "disabled"],
)
def test_a_version_that_cannot_be_read_is_reported(stub: SecretManager, name: str, status: int) -> None:
    stub.status = status
    with rejects("key_secret") as caught:
        SecretManagerSecret(name).read()
    assert name in str(caught.value)


def test_a_short_secret_is_refused_and_not_shown(stub: SecretManager) -> None:
    with rejects("key_secret") as caught:
        SecretManagerSecret(SHORT).read()
    assert SHORT_CONTENT.decode() not in str(caught.value)
    assert SHORT_CONTENT.decode() not in repr(SecretManagerSecret(SHORT))


@pytest.mark.parametrize("status", [429, 500, 503])
def test_a_service_that_is_down_is_for_later(stub: SecretManager, monkeypatch: pytest.MonkeyPatch, status: int) -> None:
    monkeypatch.setattr("sfumato.transforms.io.google_errors.MAX_WAIT_S", 0.5)
    stub.status = status
    with rejects("key_secret", NotReadyError):
        SecretManagerSecret(NAME).read()


def test_a_short_outage_is_sat_out(stub: SecretManager) -> None:
    class Recovers(list[str]):
        def append(self, name: str) -> None:
            super().append(name)
            stub.status = 503 if len(self) == 1 else 200

    stub.read_names = Recovers()
    assert SecretManagerSecret(NAME).read() == CONTENT
    assert len(stub.read_names) == 2


def test_secret_manager_needs_credentials_and_its_client(monkeypatch: pytest.MonkeyPatch) -> None:
    auth = pytest.importorskip("google.auth", reason="needs apache-beam[gcp]")

    def search(*_: Any, **__: Any) -> None:
        raise auth.exceptions.DefaultCredentialsError("none")

    monkeypatch.setattr(auth, "default", search)
    with rejects("key_secret"):
        SecretManagerSecret(NAME).read()
    monkeypatch.setitem(sys.modules, "google.cloud.secretmanager", None)
    monkeypatch.delattr("google.cloud.secretmanager", raising=False)
    with rejects("key_secret"):
        SecretManagerSecret(NAME).read()


@pytest.mark.parametrize(
    "name",
    ["", "run-key", "projects/p/secrets/s", "projects/p/secrets/s/versions/", "projects//secrets/s/versions/1",
     "projects/p/secrets/a b/versions/1", f"{NAME}/", f"{NAME}\n", "gs://bucket/key",
     # Versions that may change, or that are no numbers.
     *(f"projects/p/secrets/s/versions/{version}" for version in ("latest", "prod", "0", "-1", "1.0"))],
)  # fmt: skip
def test_secret_manager_rejects_names_without_a_fixed_version(name: str) -> None:
    with rejects("key_secret"):
        SecretManagerSecret(name)
