"""The text of --dry_run: what a run would read, charge and publish. No data file is opened."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from typing import NamedTuple

from sfumato.pipelines.inputs import InputFile
from sfumato.schemas.ledger import Cost, format_amount, parse_amount
from sfumato.schemas.requests.publish_request import ReleaseRequest

_WIDTH, _MARGIN = 100, 11  # columns of a terminal, and of its left margin for the headings


class Forecast(NamedTuple):
    """Facts about a run that are known before it starts.

    Attributes:
        columns: that it reads.
        files: that match the input.
        cost: of the complete release.
        charge_lines: see `Accounting.forecast`; None without a ledger.
        memory_lines: what the run may use.
        trust_lines: one a trust model, with the error to expect.
        plan_text: see `ReleaseJob.plan_text`.
    """

    columns: Sequence[str]
    files: Sequence[InputFile]
    cost: Cost
    charge_lines: Sequence[str] | None
    memory_lines: Sequence[str]
    trust_lines: Sequence[str]
    plan_text: str


def dry_run_text(request: ReleaseRequest, forecast: Forecast) -> str:
    """What a request would read, charge and publish, in lines for a terminal."""
    files = forecast.files
    number = f"{len(files):,} file{'s'[: len(files) != 1]}"
    reads = [", ".join(request.input), f"{number}, {_size(sum(file.size for file in files))}"]
    reads.append(f"columns {', '.join(forecast.columns)}")
    if request.min_users:
        reads.append(f"fewer than {request.min_users:,} users, by a noisy count, would be refused")
    sections = {
        "reads": reads,
        "charges": _no_ledger(forecast.cost) if forecast.charge_lines is None else forecast.charge_lines,
        "publishes": _publishes(request),
        "memory": forecast.memory_lines,
        "trust": forecast.trust_lines,
        "plan": forecast.plan_text.splitlines(),
    }
    text = [f"sfumato {request.COMMAND}, a dry run: no data file was opened, and nothing was charged or written"]
    for heading, lines in sections.items():
        text += ["", heading, *lines] if heading == "plan" else ["", *_with_margin(heading, lines)]
    return "\n".join(text).rstrip() + "\n"


def _with_margin(heading: str, lines: Sequence[str]) -> list[str]:
    """The wrapped lines, to the right of their heading."""
    wrapper = textwrap.TextWrapper(_WIDTH - _MARGIN, break_long_words=False, break_on_hyphens=False)
    wrapped = [part for line in lines for part in wrapper.wrap(line)]
    return [f"{heading if number == 0 else '':<{_MARGIN}}{line}" for number, line in enumerate(wrapped)]


def _no_ledger(cost: Cost) -> list[str]:
    if not math.isfinite(cost.epsilon):
        return ["nothing: there is no differential privacy that a ledger could account for"]
    epsilon, delta = parse_amount("epsilon", cost.epsilon), parse_amount("delta", cost.delta)
    amounts = f"epsilon {format_amount(epsilon)}" + (f" and delta {format_amount(delta)}" if delta else "")
    return [f"no ledger (--ledger): nobody keeps account of the {amounts} that it costs"]


def _publishes(request: ReleaseRequest) -> list[str]:
    replaced = ", in place of an existing release (--overwrite)" if request.overwrite else ""
    lines = [f"{request.output}{replaced}"]
    if request.release_id is not None:
        lines.append(f"as release {request.release_id}")
    elif request.seed is None:
        lines.append("as a release of a random name (--release_id)")
    if request.seed is not None:
        lines.append("UNSAFE: with a key that anybody can guess (--seed)")
    if request.timeline is not None:
        lines.append(f"and brings the page of all releases up to date in {request.timeline}")
    return lines


def _size(number: int) -> str:
    for unit in ("bytes", "kB", "MB", "GB"):
        if number < 1000 or unit == "GB":
            break
        number /= 1000  # type: ignore[assignment]
    return f"{number:,} bytes" if unit == "bytes" else f"{number:.3g} {unit}"
