"""Google's Dataflow on a local socket: it takes jobs, runs the graph that was staged, and reports what a test wants."""

from __future__ import annotations

import json
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from types import SimpleNamespace
from typing import Any

import pytest
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.portability import python_urns
from apache_beam.portability.api import beam_runner_api_pb2
from apache_beam.runners.portability.fn_api_runner import FnApiRunner

from sfumato.transforms.io.files import read_file

runner = pytest.importorskip(
    "apache_beam.runners.dataflow.dataflow_runner", reason="needs apache-beam[gcp]", exc_type=ImportError
)

JOB_ID = "2026-11-21_00_00_00-1"


@dataclass
class Dataflow:
    """A running stub. arguments: Beam options that lead to it, without credentials.

    states: what a job's state is when asked for the first time, the second ..., the last one for ever; the answer to
    its creation counts. runs: whether a job that will be done is run, here, from the graph that was staged and by no
    object of the process that submitted it. errors: what the job's messages say of importance ERROR. created: requests
    to make jobs, as (path, content).
    """

    arguments: list[str]
    states: Sequence[str] = ("JOB_STATE_PENDING", "JOB_STATE_RUNNING", "JOB_STATE_DONE")
    errors: Sequence[str] = ()
    runs: bool = True
    created: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    polls: int = 0

    def answer(self, method: str, path: str, content: Any) -> dict[str, Any]:
        if path.endswith("/messages"):
            return {
                "jobMessages": [
                    {"id": str(number), "time": f"2026-11-21T00:00:{number:02d}Z", "messageText": text,
                     "messageImportance": "JOB_MESSAGE_ERROR"}
                    for number, text in enumerate(self.errors)
                ]
            }  # fmt: skip
        if method == "POST":
            self.created.append((path, content))
            self.polls = 0
            if self.runs and self.states[-1] == "JOB_STATE_DONE":
                run_graph(content)
        state = self.states[min(self.polls, len(self.states) - 1)]
        self.polls += 1
        return {"id": JOB_ID, "name": "job", "projectId": "test-project", "currentState": state}


def run_graph(job: dict[str, Any]) -> None:
    """Runs the staged graph of a job that was submitted; its workers are threads of this process."""
    options = job["environment"]["sdkPipelineOptions"]["options"]
    graph = beam_runner_api_pb2.Pipeline.FromString(read_file(options["pipelineUrl"]))
    for environment in graph.components.environments.values():
        environment.urn, environment.payload = python_urns.EMBEDDED_PYTHON, b""
        del environment.dependencies[:]
    FnApiRunner().run_via_runner_api(graph, PipelineOptions()).wait_until_finish()


@contextmanager
def dataflow() -> Iterator[Dataflow]:
    """A stub on a free port. Beam asks it every hundredth second, not every five."""

    class Handler(BaseHTTPRequestHandler):
        def _answer(self) -> None:
            data = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            status, found = 200, None
            try:
                found = stub.answer(self.command, self.path.partition("?")[0], json.loads(data) if data else None)
            except Exception:  # noqa: BLE001  (a graph that fails is told to whoever submitted it, not lost in a thread)
                status, found = 500, {"error": {"code": 500, "message": traceback.format_exc()}}
            body = json.dumps(found).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_GET = do_POST = do_PUT = _answer  # noqa: N815

        def log_message(self, *_: Any) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    stub = Dataflow(["--dataflow_endpoint", f"http://localhost:{server.server_port}", "--no_auth"])
    Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    real = runner.time
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(runner, "time", SimpleNamespace(time=real.time, sleep=lambda _: real.sleep(0.01)))
            yield stub
    finally:
        server.shutdown()
        server.server_close()
