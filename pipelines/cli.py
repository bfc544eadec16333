"""The command `sfumato JOB [options]`."""

from __future__ import annotations

import importlib
import re
import sys
import traceback
from collections.abc import Sequence
from importlib import metadata

from sfumato.schemas.errors import DataError, RequestError, SfumatoError

JOBS = {
    "synth": "make location logs of a synthetic city",
    "plan": "tell what a heatmap will cost and show; no data are read",
    "heatmap": "publish a differentially private heatmap of location logs",
    "compare": "try heatmap methods side by side on data that you may look at: an evaluation",
    "histogram": "publish how many users hold each category or visit each map cell, without noise",
    "hotspots": "publish popular places, words or codes, level by level, without noise",
    "quantiles": "publish the distribution of a number over users: quantiles and range counts",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a job. Exit status: 0 done, 1 the data cannot support a release, 2 the request is wrong."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    if arguments in ([], ["-h"], ["--help"]):
        sys.stdout.write(_usage())
        return 0 if arguments else 2
    if arguments == ["--version"]:
        sys.stdout.write(f"sfumato {metadata.version('sfumato')}\n")
        return 0
    job, *rest = arguments
    try:
        if job not in JOBS:
            raise RequestError(f"no job named {job!r}; there are: {', '.join(JOBS)}")
        run = importlib.import_module(f"sfumato.pipelines.{job}").run
        return int(run(rest))
    except KeyboardInterrupt:
        sys.stderr.write(f"\nsfumato {job}: interrupted; nothing was published\n")
        return 130
    except Exception as error:
        # A worker's exception arrives wrapped by the runner, as the text of its traceback.
        found = error if isinstance(error, SfumatoError) else worker_error(error)
        if found is None:
            raise
        return _fail(job, found)


def worker_error(error: BaseException) -> SfumatoError | None:
    """The error of this package that a worker raised and the runner wrapped, if it is one."""
    text = "".join(traceback.format_exception(error))
    found = re.findall(r"^(?:sfumato\.schemas\.errors\.)?(DataError|RequestError): (.*)$", text, flags=re.MULTILINE)
    if not found:
        return None
    kind, message = found[-1]
    return {"DataError": DataError, "RequestError": RequestError}[kind](message)


def _fail(job: str, error: SfumatoError) -> int:
    message = re.sub(r" \[while running .*?\]\s*$", "", str(error))
    sys.stderr.write(f"sfumato {job}: {message}\n")
    return error.exit_code


def _usage() -> str:
    width = max(map(len, JOBS))
    jobs = "\n".join(f"  {name:<{width}}  {text}" for name, text in JOBS.items())
    return f"usage: sfumato JOB [options]\n\njobs:\n{jobs}\n\nsfumato JOB --help tells a job's options.\n"


if __name__ == "__main__":
    sys.exit(main())
