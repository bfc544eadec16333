"""A ledger in a Google Cloud Storage bucket: one object an entry, which nobody can write a second time.

The storage itself decides who comes first: an object is created only if there is none of its name (generation 0).
Roles that may create and read objects suffice (Storage Object Creator and Viewer). Do not give the right to delete,
which overwriting needs too: then nobody who runs jobs can change an entry, or remove the last ones, which is what a
chain of hashes cannot show. A retention policy on the bucket holds against its owner as well.
"""

from __future__ import annotations

import random
import re
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cached_property
from typing import Any

from sfumato.schemas.errors import LedgerError, NotReadyError, RequestError
from sfumato.transforms.google_errors import may_pass

PATIENCE_S = 60.0  # for how long a service that does not answer is asked again
ANSWER_S = 30.0  # for how long one answer is waited for
READERS = 8  # threads; Google's client keeps 10 connections
_PLACE = re.compile(r"gs://(?P<bucket>[a-z0-9][a-z0-9._-]+)/(?P<prefix>[^/].*?)/*")
_ENTRY = re.compile(r"(\d{8})\.json")


class BucketStore:
    """The ledger at `gs://bucket/prefix`, whose entry i is the object `prefix/0000000i.json`. See LedgerStore.

    Several processes may use one ledger, several threads one BucketStore; make one after a fork, not before.
    Raises RequestError for another kind of place, or where Google's client is not installed.
    """

    def __init__(self, place: str):
        found = _PLACE.fullmatch(place)
        if not found:
            raise RequestError(f"ledger: {place!r} must name a folder in a bucket, such as gs://my-bucket/ledger")
        self.place = place
        self._bucket_name, self._prefix = found["bucket"], f"{found['prefix']}/"
        self._known = 0  # so many entries, at least, are known to be there
        self._cache: dict[tuple[int, int], bytes] = {}  # (number, generation) -> entry
        _import_client()

    def __reduce__(self) -> tuple[type[BucketStore], tuple[str]]:
        return BucketStore, (self.place,)

    def read(self) -> list[bytes]:
        """All entries in order; none where there is no ledger yet.

        Raises LedgerError for a gap in the numbers or an object that is no entry, NotReadyError where the bucket
        cannot be reached now, RequestError where there is none or its objects may not be listed and read.
        """
        with self._errors("read"):
            try:
                generations = self._list()
            except LedgerError:  # several answers make a long listing, and others append meanwhile
                generations = self._list()
            with ThreadPoolExecutor(READERS) as pool:
                entries = list(pool.map(self._entry, range(len(generations)), generations))
        self._known = max(self._known, len(entries))
        return entries

    def append(self, index: int, entry: bytes) -> bool:
        """Creates entry number `index`, if and only if there are exactly `index` entries; else False.

        A lost answer leaves open whether an attempt has succeeded. The next one tells by what it finds in its place,
        so no two entries may be equal. Raises RequestError where there is no such bucket or it may not be written to,
        NotReadyError where it cannot be reached now: whether the entry is there, only a later read can tell.
        """
        with self._errors("written to"):
            blob = self._blob(index)
            # Entries are never removed, so what was there once need not be asked for again.
            if index > self._known and not self._blob(index - 1).exists(timeout=ANSWER_S, retry=self._retry):
                return False
            ours = self._create(blob, entry)
        self._known = max(self._known, index + 1)
        return ours

    def _create(self, blob: Any, entry: bytes) -> bool:
        """Whether the object is this entry, and created by this call."""
        from google.api_core.exceptions import Forbidden, PreconditionFailed

        end, pause, unclear = time.monotonic() + PATIENCE_S, 0.1, False
        while True:
            try:
                blob.upload_from_string(
                    entry, content_type="application/json", if_generation_match=0, timeout=ANSWER_S, retry=None
                )
            except (PreconditionFailed, Forbidden) as error:
                # Who may not overwrite may be told so, rather than that there is an object already.
                if isinstance(error, Forbidden) and not blob.exists(timeout=ANSWER_S, retry=self._retry):
                    raise
                return unclear and bytes(blob.download_as_bytes(timeout=ANSWER_S, retry=self._retry)) == entry
            except Exception as error:
                if not may_pass(error) or time.monotonic() + pause > end:
                    raise
                unclear = True
                time.sleep(pause * random.uniform(0.5, 1))
                pause = min(2 * pause, 8.0)
            else:
                return True

    def _list(self) -> list[int]:
        """The generations of all entries in order. Raises LedgerError."""
        found: dict[int, int] = {}
        listing = self._client.list_blobs(
            self._bucket_name,
            prefix=self._prefix,
            fields="items(name,generation),nextPageToken",
            timeout=ANSWER_S,
            retry=self._retry,
        )
        for blob in listing:
            name = blob.name.removeprefix(self._prefix)
            number = _ENTRY.fullmatch(name)
            if number:
                found[int(number[1])] = int(blob.generation)
            elif name:  # without a name: the folder itself, as Google's console makes it
                raise LedgerError(f"ledger: {self.place} holds {name!r}, which is no entry of a ledger")
        for index in range(len(found)):
            if index not in found:
                raise LedgerError(f"ledger: {self.place} has later entries but no entry {index}: some were removed")
        return [found[index] for index in range(len(found))]

    def _entry(self, index: int, generation: int) -> bytes:
        from google.api_core.exceptions import NotFound

        if (index, generation) not in self._cache:
            try:
                content = self._blob(index, generation).download_as_bytes(timeout=ANSWER_S, retry=self._retry)
            except NotFound:
                raise LedgerError(f"ledger: {self.place}: entry {index} was removed or replaced just now") from None
            self._cache[index, generation] = bytes(content)
        return self._cache[index, generation]

    def _blob(self, index: int, generation: int | None = None) -> Any:
        return self._client.bucket(self._bucket_name).blob(f"{self._prefix}{index:08d}.json", generation=generation)

    @cached_property
    def _client(self) -> Any:
        # No project is needed for objects, and to look for one takes time. Google's client asks for no credentials
        # where STORAGE_EMULATOR_HOST is set.
        return _import_client()(project=None)

    @property
    def _retry(self) -> Any:
        from google.cloud.storage.retry import DEFAULT_RETRY

        return DEFAULT_RETRY.with_timeout(PATIENCE_S)

    @contextmanager
    def _errors(self, done: str) -> Iterator[None]:
        """Turns the errors of Google's client into ours."""
        from google.api_core.exceptions import Forbidden, GoogleAPIError, NotFound, Unauthorized
        from google.auth.exceptions import GoogleAuthError

        try:
            yield
        except NotFound:
            raise RequestError(f"ledger: {self.place}: there is no bucket {self._bucket_name!r}; make one") from None
        except (Forbidden, Unauthorized) as error:
            raise RequestError(
                f"ledger: {self.place} may not be {done} ({type(error).__name__}); give the account that runs the job "
                "the roles Storage Object Creator and Storage Object Viewer on the bucket"
            ) from None
        except (GoogleAPIError, GoogleAuthError, OSError) as error:  # the errors of `requests` are OSErrors
            kind = type(error).__name__
            if may_pass(error):
                raise NotReadyError(f"ledger: {self.place} cannot be reached now ({kind}); try again later") from None
            if isinstance(error, GoogleAuthError):
                raise RequestError(
                    f"ledger: {self.place}: no credentials for Google Cloud ({kind}); log in with "
                    "'gcloud auth application-default login' or set GOOGLE_APPLICATION_CREDENTIALS"
                ) from None
            raise RequestError(f"ledger: {self.place} cannot be {done} ({kind})") from None


def _import_client() -> Any:
    try:
        from google.cloud.storage import Client
    except ImportError:
        raise RequestError(
            "ledger: a ledger in a bucket needs Google's client; install it with: pip install 'sfumato[gcp]'"
        ) from None
    return Client
