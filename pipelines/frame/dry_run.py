"""What a dry run prints: what a job would read, charge and publish, from public figures only."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from typing import get_args

from sfumato.pipelines.frame.inputs import InputFile, layout_of, times_notice
from sfumato.pipelines.frame.job import ReleaseJob
from sfumato.pipelines.frame.scratch import memory_lines
from sfumato.pipelines.runners.runner_settings import RunnerSettings
from sfumato.schemas.errors import RequestError, did_you_mean
from sfumato.schemas.guarantee import SEES, Trust
from sfumato.schemas.known_digits import NOISE_Z, byte_text
from sfumato.schemas.ledger import Cost, format_amount, parse_amount
from sfumato.schemas.requests.publish_request import ReleaseRequest
from sfumato.transforms.inputs.log_file import LogFile
from sfumato.transforms.inputs.log_reader import format_of
from sfumato.transforms.inputs.text_lines import first_fields
from sfumato.transforms.observability.text_tables import significant

_WIDTH, _MARGIN = 100, 11  # columns of a terminal, and of its left margin for the headings


def dry_run_text(job: ReleaseJob, files: Sequence[InputFile], settings: RunnerSettings) -> str:
    """Returns what a job would read, charge and publish, in lines for a terminal.

    files: those that match the input. settings: those of the runner.
    """
    request, cost = job.request, job.cost()
    number = f"{len(files):,} file{'s'[: len(files) != 1]}"
    reads = [", ".join(request.input), f"{number}, {byte_text(sum(file.size for file in files))}B"]
    columns = layout_of(request, job.columns()).columns
    reads.append(f"columns {', '.join(columns)}")
    reads += _missing_fields(columns, files[0].log)
    if request.day_rows is not None:
        reads.append(f"only rows of {request.day_rows}")
    if notice := times_notice(request, (), job.columns()):
        reads.append("; ".join(notice))
    if request.min_users:
        rule = job.admission()
        noise = NOISE_Z * rule.noise_kind.stddev(rule.noise_cost) / rule.sampling_rate * rule.cohorts
        reads.append(
            f"fewer than {request.min_users:,} users, by a noisy count (± {significant(noise, 2)}), would be refused"
        )
    sections = {
        "reads": reads,
        "charges": job.accounting.forecast(cost, request.release_id) if job.accounting else [unrecorded(cost)],
        "publishes": _publishes(request),
        "memory": memory_lines(settings, max(job.run_bytes(1).held, 1), request.memory),
        "trust": trust_lines(job),
    }
    read = "only the first file's columns were read; nothing was charged or written"
    text = [f"sfumato {request.COMMAND}, a dry run: {read}"]
    for heading, lines in sections.items():
        text += ["", *_with_margin(heading, lines)]
    return "\n".join([*text, "", "plan", job.plan_text()]).rstrip() + "\n"


def trust_lines(job: ReleaseJob) -> list[str]:
    """Returns one line for each trust model, this run's first: who sees what, and the error to expect.

    None for a job that has no option --trust.
    """
    kind = type(job.request)
    if "trust" not in kind.model_fields:
        return []
    offered = get_args(kind.model_fields["trust"].annotation)
    own = job.parameters()["trust"]
    lines = []
    for trust in sorted(Trust, key=lambda trust: trust != own):
        if trust not in offered:
            lines.append(f"{trust}: not offered")
            continue
        try:
            other = job if trust == own else with_trust(job, trust)
            text = "; ".join(filter(None, (SEES[trust], other.accuracy())))
        except RequestError as error:
            text = f"not with these options ({error})"
        lines.append(f"{trust}{', this run' if trust == own else ''}: {text}")
    return lines


def with_trust(job: ReleaseJob, trust: Trust) -> ReleaseJob:
    """Returns the same job in another trust model. Raises RequestError if its options do not allow it."""
    kind = type(job.request)
    return job.of(kind.of({**job.request.given(kind.model_fields), "trust": trust}))


def _missing_fields(columns: Sequence[str], log: LogFile) -> list[str]:
    """Returns a line for each column that no first record of a JSON file has: its run finds this out after the charge.

    For the operator only, as records decide.
    """
    if format_of(log) != "ndjson":
        return []
    fields = [*first_fields(log), *dict(log.partition)]
    missing = (name for name in columns if name not in fields)
    return [f"WARNING: {name!r} is in none of the first records{did_you_mean(name, fields)}" for name in missing]


def _with_margin(heading: str, lines: Sequence[str]) -> list[str]:
    """Returns the wrapped lines, to the right of their heading."""
    wrapper = textwrap.TextWrapper(_WIDTH - _MARGIN, break_long_words=False, break_on_hyphens=False)
    wrapped = [part for line in lines for part in wrapper.wrap(line)]
    return [f"{heading if number == 0 else '':<{_MARGIN}}{line}" for number, line in enumerate(wrapped)]


def unrecorded(cost: Cost) -> str:
    """Returns what a run without a ledger spends, for the person who runs it."""
    if not math.isfinite(cost.epsilon):
        return "nothing: there is no differential privacy that a ledger could account for"
    epsilon, delta = parse_amount("epsilon", cost.epsilon), parse_amount("delta", cost.delta)
    amounts = f"epsilon {format_amount(epsilon)}" + (f" and delta {format_amount(delta)}" if delta else "")
    return f"no ledger (--ledger): the {amounts} spent will not be recorded"


def _publishes(request: ReleaseRequest) -> list[str]:
    replaced = ", replacing an existing release (--overwrite)" if request.overwrite else ""
    lines = [f"{request.output}{replaced}"]
    if request.release_id is not None:
        lines.append(f"as release {request.release_id}")
    elif request.seed is None:
        lines.append("as a release of a random name (--release_id)")
    if request.seed is not None:
        lines.append("UNSAFE: with a key that anyone can guess (--seed)")
    if request.timeline is not None:
        lines.append(f"and brings the page of all releases up to date in {request.timeline}")
    return lines
