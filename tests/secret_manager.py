"""Google's Secret Manager on a local socket: the response of its REST interface for one secret."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

import pytest

from sfumato.transforms.privacy import secrets

client_options = pytest.importorskip("google.api_core.client_options", reason="needs apache-beam[gcp]")
credentials = pytest.importorskip("google.auth.credentials", reason="needs apache-beam[gcp]")


@dataclass
class SecretManager:
    """A running stub: secrets by full name, an error for all of them, the requested names."""

    secrets: dict[str, bytes]
    status: int = 200
    read_names: list[str] = field(default_factory=list)


@contextmanager
def secret_manager(stored: dict[str, bytes]) -> Iterator[SecretManager]:
    """Answers this process's SecretManagerSecrets on a free port, over Google's real client, without credentials."""
    stub = SecretManager(stored)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            name, _, verb = self.path.partition("?")[0].removeprefix("/v1/").partition(":")
            assert verb == "access"
            stub.read_names.append(name)
            status = stub.status if stub.status != 200 or name in stub.secrets else 404
            if status == 200:
                data = base64.b64encode(stub.secrets[name]).decode()
                answer: dict[str, Any] = {"name": name, "payload": {"data": data}}
            else:
                answer = {"error": {"code": status, "message": "as the test wants it"}}
            body = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()

    def connect(client: Any) -> Any:
        address = client_options.ClientOptions(api_endpoint=f"http://127.0.0.1:{server.server_port}")
        return client(transport="rest", credentials=credentials.AnonymousCredentials(), client_options=address)

    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(secrets, "_connect", connect)
            yield stub
    finally:
        server.shutdown()
        server.server_close()
