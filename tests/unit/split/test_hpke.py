import os
import sys

import pytest

from sfumato.schemas.errors import RequestError
from sfumato.transforms.split.hpke import Opener, public_key, seal, suite

# RFC 9180, Appendix A.1.1, the first message.
PRIVATE = bytes.fromhex("4612c550263fc8ad58375df3f557aac531d26850903e55a9f23f21d8534e8ac8")
INFO = bytes.fromhex("4f6465206f6e2061204772656369616e2055726e")
ENC = bytes.fromhex("37fda3567bdbd628e88668c3c8d7e97d1d1253b6d4ea6d44c150f741f1bf4431")
ASSOCIATED = b"Count-0"
PAYLOAD = bytes.fromhex("f938558b5d72f1a23810b4be2ab4f84331acc02fc97babc53a52ae8218a355a96d8770ac83d07bea87e13c512a")
PLAINTEXT = b"Beauty is truth, truth beauty"


def test_vector_of_the_rfc_is_opened() -> None:
    assert Opener(PRIVATE, INFO).open(ENC, ASSOCIATED, PAYLOAD) == PLAINTEXT


def test_sealed_message_is_opened_by_its_key_only() -> None:
    private = os.urandom(32)
    enc, payload = seal(public_key(private), b"purpose", b"associated", b"text")
    assert Opener(private, b"purpose").open(enc, b"associated", payload) == b"text"
    assert Opener(bytes(31) + b"1", b"purpose").open(enc, b"associated", payload) is None
    assert Opener(private, b"other").open(enc, b"associated", payload) is None
    opener = Opener(private, b"purpose")
    assert opener.open(enc, b"other", payload) is None
    for broken in (b"", payload[:-1], payload + b"x", bytes(len(payload))):
        assert opener.open(enc, b"associated", broken) is None
    for broken in (b"", enc[:-1], bytes(32)):
        assert opener.open(broken, b"associated", payload) is None


def test_missing_library_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    suite.cache_clear()
    monkeypatch.setitem(sys.modules, "pyhpke", None)
    with pytest.raises(RequestError, match=r"pip install '\.\[split\]'"):
        suite()
