"""A ledger's entries in a Google Cloud Storage bucket: one object for each entry, never written twice.

The storage decides which writer is first: an object is created only if none of its name exists (generation 0). The
roles Storage Object Creator and Storage Object Viewer suffice. Do not grant the right to delete, which overwriting
needs too. Then nobody who runs jobs can change an entry, or remove the newest ones, which a chain of hashes cannot
show. A retention policy on the bucket also binds the bucket's owner.
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
from sfumato.transforms.google_errors import FIRST_PAUSE_S, LONGEST_PAUSE_S, MAX_WAIT_S, google_retry, may_pass

REQUEST_TIMEOUT_S = 30.0
READERS = 8  # threads; Google's client keeps 10 connections
_LOCATION = re.compile(r"gs://(?P<bucket>[a-z0-9][a-z0-9._-]+)/(?P<prefix>[^/].*?)/*")
_ENTRY = re.compile(r"(\d{8})\.json")


class BucketStore:
    """A LedgerStore at `gs://bucket/prefix`. Entry i is the object `prefix/0000000i.json`.

    Several processes may use one ledger, and several threads one BucketStore. Create it after a fork, not before.

    Args:
        location: `gs://bucket/prefix`.

    Raises:
        RequestError: the location has another form, or Google's client is not installed.
    """

    def __init__(self, location: str):
        found = _LOCATION.fullmatch(location)
        if not found:
            raise RequestError(f"ledger: {location!r} must name a folder in a bucket, such as gs://my-bucket/ledger")
        self.location = location
        self._bucket_name, self._prefix = found["bucket"], f"{found['prefix']}/"
        self._known = 0  # a lower bound of the number of entries
        self._cache: dict[tuple[int, int], bytes] = {}  # (number, generation) -> entry
        _import_client()

    def __reduce__(self) -> tuple[type[BucketStore], tuple[str]]:
        return BucketStore, (self.location,)

    def read(self) -> list[bytes]:
        """See LedgerStore.read.

        Raises:
            LedgerError: a number is missing, or an object is no entry.
            NotReadyError: the bucket cannot be reached now.
            RequestError: there is no such bucket, or its objects may not be listed and read.
        """
        with self._errors("read"):
            try:
                generations = self._list()
            except LedgerError:  # a long listing has several pages, and others append meanwhile
                generations = self._list()
            with ThreadPoolExecutor(READERS) as pool:
                entries = list(pool.map(self._entry, range(len(generations)), generations))
        self._known = max(self._known, len(entries))
        return entries

    def append(self, index: int, entry: bytes) -> bool:
        """See LedgerStore.append.

        If an attempt's answer is lost, the next attempt compares the object that it finds with the entry. So no two
        entries may be equal.

        Raises:
            RequestError: there is no such bucket, or it may not be written to.
            NotReadyError: the bucket cannot be reached now. Only a later read shows whether the entry was written.
        """
        with self._errors("written to"):
            blob = self._blob(index)
            # Entries are never removed, so known ones need no check.
            if index > self._known and not self._blob(index - 1).exists(**_tried()):
                return False
            ours = self._create(blob, entry)
        self._known = max(self._known, index + 1)
        return ours

    def check_writable(self) -> None:
        """See LedgerStore.check_writable. A bucket shows at a write alone whether an account may write."""

    def _create(self, blob: Any, entry: bytes) -> bool:
        """Returns whether this call created the object."""
        from google.api_core.exceptions import Forbidden, PreconditionFailed

        end, pause, unclear = time.monotonic() + MAX_WAIT_S, FIRST_PAUSE_S, False
        while True:
            try:
                blob.upload_from_string(
                    entry, content_type="application/json", if_generation_match=0, timeout=REQUEST_TIMEOUT_S, retry=None
                )
            except (PreconditionFailed, Forbidden) as error:
                # Without the right to overwrite, an existing object can be reported as Forbidden.
                if isinstance(error, Forbidden) and not blob.exists(**_tried()):
                    raise
                return unclear and bytes(blob.download_as_bytes(**_tried())) == entry
            except Exception as error:
                if not may_pass(error) or time.monotonic() + pause > end:
                    raise
                unclear = True
                time.sleep(pause * random.uniform(0.5, 1))
                pause = min(2 * pause, LONGEST_PAUSE_S)
            else:
                return True

    def _list(self) -> list[int]:
        """Returns the generations of all entries in order. Raises LedgerError."""
        found: dict[int, int] = {}
        listing = self._client.list_blobs(
            self._bucket_name,
            prefix=self._prefix,
            fields="items(name,generation),nextPageToken",
            **_tried(),
        )
        for blob in listing:
            name = blob.name.removeprefix(self._prefix)
            number = _ENTRY.fullmatch(name)
            if number:
                found[int(number[1])] = int(blob.generation)
            elif name:  # an empty name is the folder, which Google's console creates
                raise LedgerError(f"ledger: {self.location} holds {name!r}, which is no entry of a ledger")
        for index in range(len(found)):
            if index not in found:
                raise LedgerError(f"ledger: {self.location} has later entries but no entry {index}: some were removed")
        return [found[index] for index in range(len(found))]

    def _entry(self, index: int, generation: int) -> bytes:
        from google.api_core.exceptions import NotFound

        if (index, generation) not in self._cache:
            try:
                content = self._blob(index, generation).download_as_bytes(**_tried())
            except NotFound:
                raise LedgerError(f"ledger: {self.location}: entry {index} was removed or replaced just now") from None
            self._cache[index, generation] = bytes(content)
        return self._cache[index, generation]

    def _blob(self, index: int, generation: int | None = None) -> Any:
        return self._client.bucket(self._bucket_name).blob(f"{self._prefix}{index:08d}.json", generation=generation)

    @cached_property
    def _client(self) -> Any:
        # Objects need no project, and looking for one takes time. Google's client needs no credentials if
        # STORAGE_EMULATOR_HOST is set.
        return _import_client()(project=None)

    @contextmanager
    def _errors(self, done: str) -> Iterator[None]:
        """Converts errors of Google's client. done: what could not be done, as a participle."""
        from google.api_core.exceptions import Forbidden, GoogleAPIError, NotFound, Unauthorized
        from google.auth.exceptions import GoogleAuthError

        try:
            yield
        except NotFound:
            raise RequestError(f"ledger: {self.location}: there is no bucket {self._bucket_name!r}; make one") from None
        except (Forbidden, Unauthorized) as error:
            raise RequestError(
                f"ledger: {self.location} may not be {done} ({type(error).__name__}); give the account that runs the "
                "job the roles Storage Object Creator and Storage Object Viewer on the bucket"
            ) from None
        except (GoogleAPIError, GoogleAuthError, OSError) as error:  # the errors of `requests` are OSErrors
            kind = type(error).__name__
            if may_pass(error):
                raise NotReadyError(
                    f"ledger: {self.location} cannot be reached now ({kind}); try again later"
                ) from None
            if isinstance(error, GoogleAuthError):
                raise RequestError(
                    f"ledger: {self.location}: no credentials for Google Cloud ({kind}); log in with "
                    "'gcloud auth application-default login' or set GOOGLE_APPLICATION_CREDENTIALS"
                ) from None
            raise RequestError(f"ledger: {self.location} cannot be {done} ({kind})") from None


def _tried() -> dict[str, Any]:
    """How a request is tried."""
    return {"timeout": REQUEST_TIMEOUT_S, "retry": google_retry()}


def _import_client() -> Any:
    try:
        from google.cloud.storage import Client
    except ImportError:
        raise RequestError(
            "ledger: a ledger in a bucket needs Google's client; install it with: pip install 'sfumato[gcp]'"
        ) from None
    return Client
