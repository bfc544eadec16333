"""A bucket of Google's without credentials: refused at once, however long Google's client would look for some."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from threading import Event

import pytest

from sfumato.pipelines.inputs import match_files
from sfumato.schemas.errors import RequestError
from sfumato.transforms import storage

pytest.importorskip("google.auth", reason="needs apache-beam[gcp]")
NO_CREDENTIALS = ("STORAGE_EMULATOR_HOST", "GOOGLE_APPLICATION_CREDENTIALS")


@pytest.mark.slow
def test_without_credentials_a_bucket_is_refused_at_once(tmp_path: Path) -> None:
    """Google's client looks for its metadata server, here one that takes connections and never responds."""
    kept = {name: value for name, value in os.environ.items() if name not in NO_CREDENTIALS}
    nowhere = {"HOME": str(tmp_path), "CLOUDSDK_CONFIG": str(tmp_path)}
    logs, output = "gs://a-bucket/*.parquet", str(tmp_path / "out")
    arguments = ["heatmap", "--input", logs, "--output", output, "--region=-1,50,1,51"]
    with socket.create_server(("127.0.0.1", 0)) as silent:
        server = dict.fromkeys(("GCE_METADATA_IP", "GCE_METADATA_HOST"), f"127.0.0.1:{silent.getsockname()[1]}")
        done = subprocess.run(
            [sys.executable, "-m", "sfumato.pipelines.cli", *arguments],
            env={**kept, **nowhere, **server}, capture_output=True, text=True, timeout=300, check=False,
        )  # fmt: skip
    assert done.returncode == 2, done.stderr
    assert "no credentials for Google Cloud; log in with 'gcloud auth application-default login'" in done.stderr


def test_credentials_are_looked_for_ten_seconds_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    """However long Google's client looks, and whatever it finds then."""
    import google.auth
    from apache_beam.internal.gcp import auth

    monkeypatch.delenv("STORAGE_EMULATOR_HOST", raising=False)
    monkeypatch.setattr(auth._Credentials, "_credentials_init", False)
    storage._check_credentials.cache_clear()  # a process looks once, and the emulator's tests needed none
    found = Event()
    monkeypatch.setattr(google.auth, "default", lambda: found.wait(60))
    began = time.monotonic()
    with pytest.raises(RequestError, match=r"cannot be listed .no credentials for Google Cloud"):
        match_files("gs://a-bucket/*.parquet")
    assert time.monotonic() - began < 10
    found.set()
