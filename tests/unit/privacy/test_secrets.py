"""Secrets from Secret Manager, over a socket: read where they are, carried by name alone, never shown."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from sfumato.schemas.errors import NotReadyError, RequestError
from sfumato.transforms import google_errors
from sfumato.transforms.privacy.keys import RunKey
from sfumato.transforms.privacy.secrets import SecretManagerSecret
from tests.keys import SECRET
from tests.rejections import rejects
from tests.secret_manager import SecretManager, secret_manager

NAME = "projects/my-project/secrets/run-key/versions/3"
SHORT = "projects/my-project/secrets/short/versions/1"
CONTENT = SECRET
SHORT_CONTENT = b"fifteen letters"


@pytest.fixture
def stub() -> Iterator[SecretManager]:
    with secret_manager({NAME: CONTENT, SHORT: SHORT_CONTENT}) as running:
        yield running


def test_a_version_is_read(stub: SecretManager) -> None:
    assert SecretManagerSecret(NAME).read() == CONTENT
    assert stub.asked == [NAME]


def test_a_key_travels_by_name(stub: SecretManager) -> None:
    key = RunKey.derive(SecretManagerSecret(NAME), {"job": "test"})
    data = pickle.dumps(key)
    assert NAME.encode() in data
    assert CONTENT not in data
    assert key.subkey("users") not in data
    assert pickle.loads(data).subkey("users") == key.subkey("users")
    assert len(stub.asked) == 3  # derived here, read for the subkey here, and there


def test_a_missing_version_is_told(stub: SecretManager) -> None:
    missing = NAME.replace("/3", "/4")
    with pytest.raises(RequestError, match=f"^key_secret: there is no {missing}$"):
        SecretManagerSecret(missing).read()


def test_a_missing_right_is_told(stub: SecretManager) -> None:
    stub.status = 403
    with pytest.raises(RequestError, match=f"key_secret: {NAME} may not be read; .*Secret Manager Secret Accessor"):
        SecretManagerSecret(NAME).read()


def test_a_disabled_version_is_told(stub: SecretManager) -> None:
    stub.status = 400  # FAILED_PRECONDITION
    with pytest.raises(RequestError, match=f"key_secret: {NAME} cannot be read .*is it enabled"):
        SecretManagerSecret(NAME).read()


def test_a_short_secret_is_refused_and_not_shown(stub: SecretManager) -> None:
    with pytest.raises(RequestError, match=f"key_secret: {SHORT} holds 15 bytes; a secret needs 16 or more") as caught:
        SecretManagerSecret(SHORT).read()
    assert SHORT_CONTENT.decode() not in str(caught.value)
    assert SHORT_CONTENT.decode() not in repr(SecretManagerSecret(SHORT))


@pytest.mark.parametrize("status", [429, 500, 503])
def test_a_service_that_is_down_is_for_later(stub: SecretManager, monkeypatch: pytest.MonkeyPatch, status: int) -> None:
    monkeypatch.setattr(google_errors, "MAX_WAIT_S", 0.5)
    stub.status = status
    with rejects("key_secret", NotReadyError):
        SecretManagerSecret(NAME).read()


def test_a_short_outage_is_sat_out(stub: SecretManager) -> None:
    class Recovers(list[str]):
        def append(self, name: str) -> None:
            super().append(name)
            stub.status = 503 if len(self) == 1 else 200

    stub.asked = Recovers()
    assert SecretManagerSecret(NAME).read() == CONTENT
    assert len(stub.asked) == 2


def test_missing_credentials_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    auth = pytest.importorskip("google.auth", reason="needs apache-beam[gcp]")

    def search(*_: Any, **__: Any) -> None:
        raise auth.exceptions.DefaultCredentialsError("none")

    monkeypatch.setattr(auth, "default", search)
    with rejects("key_secret"):
        SecretManagerSecret(NAME).read()


def test_without_googles_client_the_remedy_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "google.cloud.secretmanager", None)
    monkeypatch.delattr("google.cloud.secretmanager", raising=False)
    with rejects("key_secret"):
        SecretManagerSecret(NAME).read()


@pytest.mark.parametrize("version", ["latest", "prod", "0", "-1", "1.0"])
def test_a_version_that_may_change_is_refused(version: str) -> None:
    with pytest.raises(RequestError, match=f"key_secret: the version must be a number, got '{version}'"):
        SecretManagerSecret(f"projects/p/secrets/s/versions/{version}")


@pytest.mark.parametrize(
    "name",
    ["", "run-key", "projects/p/secrets/s", "projects/p/secrets/s/versions/", "projects//secrets/s/versions/1",
     "projects/p/secrets/a b/versions/1", f"{NAME}/", f"{NAME}\n", "gs://bucket/key"],
)  # fmt: skip
def test_other_names_are_refused(name: str) -> None:
    with rejects("key_secret"):
        SecretManagerSecret(name)
