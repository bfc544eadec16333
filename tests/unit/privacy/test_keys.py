import pickle

import numpy as np
import pytest

from sfumato.schemas.errors import RequestError
from sfumato.transforms.privacy.keys import FixedSecret, RunKey, keyed_hash, random_bits, random_bits_16
from sfumato.transforms.privacy.secrets import FileSecret, entropy_secret
from tests.keys import SECRET

KEY = RunKey.derive(FixedSecret(b"s" * 32), {"epsilon": 1.0, "release_id": "a"})


def test_every_part_of_the_request_changes_the_key() -> None:
    same = RunKey.derive(FixedSecret(b"s" * 32), {"release_id": "a", "epsilon": 1.0})
    assert same.subkey("x") == KEY.subkey("x")
    others = [
        RunKey.derive(FixedSecret(b"t" * 32), {"epsilon": 1.0, "release_id": "a"}),
        RunKey.derive(FixedSecret(b"s" * 32), {"epsilon": 1.1, "release_id": "a"}),
        RunKey.derive(FixedSecret(b"s" * 32), {"epsilon": 1.0, "release_id": "b"}),
    ]
    keys = {KEY.subkey("x"), KEY.subkey("x", 1), KEY.subkey("y"), *(other.subkey("x") for other in others)}
    assert len(keys) == 6


def test_secrets_stay_out_of_texts_and_keys_out_of_pickles(tmp_path) -> None:
    assert "ssss" not in repr(KEY)
    path = tmp_path / "key"
    path.write_bytes(SECRET)
    key = RunKey.derive(FileSecret(str(path)), {"a": 1})
    derived = key.subkey("x")
    pickled = pickle.dumps(key)
    assert SECRET not in pickled
    assert key._key not in pickled
    assert pickle.loads(pickled).subkey("x") == derived


def test_entropy_differs() -> None:
    assert entropy_secret().read() != entropy_secret().read()


def test_bad_key_files(tmp_path) -> None:
    short = tmp_path / "short"
    short.write_bytes(b"123")
    with pytest.raises(RequestError, match=r"key_file.*3 bytes.*16"):
        FileSecret(str(short)).read()
    with pytest.raises(RequestError, match="key_file"):
        FileSecret(str(tmp_path / "missing")).read()


def test_words_are_aes_of_the_counter() -> None:
    """FIPS 197, Appendix C.3."""
    key = bytes(range(32))
    block = bytes.fromhex("00112233445566778899aabbccddeeff")
    high, low = np.frombuffer(block, "<u8")
    words = random_bits(key, np.array([high], np.uint64), np.array([low], np.uint64))
    assert words.astype("<u8").tobytes() == bytes.fromhex("8ea2b7ca516745bfeafc49904b496089")


def test_words_do_not_depend_on_what_is_drawn_beside_them() -> None:
    subkey = KEY.subkey("w")
    streams = np.arange(50, dtype=np.uint64)
    many = random_bits_16(subkey, streams, 100)
    assert np.array_equal(random_bits_16(subkey, streams[10:11], 37)[0], many[10, :37])


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
    assert np.abs(counts - 1250).max() < 6.5 * np.sqrt(1250)


def test_the_digest_that_travels_confirms_no_guess() -> None:
    """Of the request and the input's content, which it covers, it says nothing to who does not have the key."""
    one, other = (RunKey.derive(FixedSecret(secret * 16), {"files": "digest"}) for secret in (b"a", b"b"))
    assert one.request_digest != other.request_digest
    assert one.request_digest == RunKey.derive(FixedSecret(b"a" * 16), {"files": "digest"}).request_digest


def test_hashes_of_many_do_not_depend_on_how_many_are_hashed_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    together = keyed_hash(b"k" * 32, np.arange(-50, 50))
    monkeypatch.setattr("sfumato.transforms.privacy.keys._HASHED_AT_ONCE", 7)
    assert (keyed_hash(b"k" * 32, np.arange(-50, 50)) == together).all()
