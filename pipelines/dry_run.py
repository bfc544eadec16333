"""What a run would do, cost and publish, told to the operator before it does: no file is opened for it."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from sfumato.pipelines.plan import details
from sfumato.schemas.errors import RequestError
from sfumato.schemas.ledger import Cost, format_amount, parse_amount
from sfumato.transforms.heatmap.methods import Adaptive
from sfumato.transforms.heatmap.parameters import HeatmapParameters
from sfumato.transforms.heatmap.plan import make_plan
from sfumato.transforms.heatmap.state import Estimate
from sfumato.transforms.histogram.item_encoding import CellItems, Items, NumberItems
from sfumato.transforms.histogram.sampling_plan import SamplePlan
from sfumato.transforms.moments.allocation import by_variance
from sfumato.transforms.moments.groups import Grouping
from sfumato.transforms.moments.protocol import MomentsPlan
from sfumato.transforms.moments.quantities import Quantity
from sfumato.transforms.privacy.mechanism import discrete_laplace_stddev
from sfumato.transforms.ranges.plan import ADAPTIVE, RangesPlan, method_texts
from sfumato.transforms.secagg.modulus import MAX_MODULUS
from sfumato.transforms.text_tables import markdown_table, significant

if TYPE_CHECKING:
    from sfumato.pipelines.inputs import InputFile
    from sfumato.pipelines.job import ReleaseRequest

_EXAMPLES = (10_000, 100_000, 1_000_000, 10_000_000, 100_000_000)  # users
_WIDTH, _MARGIN = 100, 11  # columns of a terminal, and of them for the names of the parts


def dry_run_text(request: ReleaseRequest, files: Sequence[InputFile], charge_lines: Sequence[str] | None) -> str:
    """What the request would read, charge and publish, in words for a terminal; it touches nothing.

    files: what matches the input; they are not opened. charge_lines: what the ledger would say, None without one.
    """
    number = f"{len(files):,} file{'s'[: len(files) != 1]}"
    reads = [request.input, f"{number}, {_size(sum(file.size for file in files))}"]
    reads.append(f"columns {', '.join(request.source().names())}")
    if request.min_users:
        reads.append(f"fewer than {request.min_users:,} users, by a noisy count, would be refused")
    parts = {
        "reads": reads,
        "charges": _no_ledger(request.cost()) if charge_lines is None else charge_lines,
        "publishes": _publishes(request),
        "plan": request.plan_text().splitlines(),
    }
    told = [f"sfumato {request.JOB}, a dry run: no data file was opened, and nothing was charged or written"]
    for name, lines in parts.items():
        told += ["", name, *lines] if name == "plan" else ["", *_beside(name, lines)]
    return "\n".join(told).rstrip() + "\n"


def _beside(name: str, lines: Sequence[str]) -> list[str]:
    """The lines, broken where they are long, beside the name of their part."""
    broken = textwrap.TextWrapper(_WIDTH - _MARGIN, break_long_words=False, break_on_hyphens=False)
    short = [part for line in lines for part in broken.wrap(line)]
    return [f"{name if number == 0 else '':<{_MARGIN}}{line}" for number, line in enumerate(short)]


def _no_ledger(cost: Cost) -> list[str]:
    if not math.isfinite(cost.epsilon):
        return ["nothing: there is no differential privacy that a ledger could account for"]
    epsilon, delta = parse_amount("epsilon", cost.epsilon), parse_amount("delta", cost.delta)
    both = f"epsilon {format_amount(epsilon)}" + (f" and delta {format_amount(delta)}" if delta else "")
    return [f"no ledger (--ledger): nobody keeps account of the {both} that it costs"]


def _publishes(request: ReleaseRequest) -> list[str]:
    replaced = ", in place of what may stand there (--overwrite)" if request.overwrite else ""
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


def heatmap_plan_text(parameters: HeatmapParameters, prior: Estimate | None = None) -> str:
    """What a heatmap costs a client and shows. prior: the map that it starts from.

    Without a public number of users: what holds whatever it is, and what it would be for some. Raises RequestError.
    """
    if parameters.population or parameters.users:
        return details(make_plan(parameters, prior))
    if prior is not None:
        users = max(1, round(float(prior.counts.sum())))
        shown = details(make_plan(replace(parameters, users=users), prior))
        return f"for as many users as the release that this one starts from had, {users:,}:\n\n{shown}"
    lines = [
        "How many users there are is counted privately, and the rest follows from that count; give --population N",
        "where it is known from elsewhere. What can be told whatever it is:",
        "",
        *_bounds(parameters),
        "",
        "What it would be, with users spread evenly over the map:",
        "",
    ]
    central = parameters.noise == "central"
    header = ["users", "sub-queries", "entries", *([] if central else ["bits a client", "KB"])]
    rows = [[*header, "noise, users", "seen from, users"]]
    for users in _EXAMPLES:
        try:
            plan = make_plan(replace(parameters, users=users))
        except RequestError:  # not with so many users
            continue
        sent = [] if central else [f"{plan.bits:,}", significant(plan.bits / 8000)]
        row = [f"{users:,}", f"{len(plan.sub_queries)}", f"{plan.entries:,}", *sent, significant(plan.noise_stddev)]
        rows.append([*row, "-" if plan.min_visible_users is None else significant(plan.min_visible_users)])
    return "\n".join(lines) + "\n" + markdown_table(rows, left=())


def _bounds(parameters: HeatmapParameters) -> list[str]:
    """What holds for any number of users, and wherever they are."""
    method, depth = parameters.method, parameters.depth
    rounds = method.max_rounds(depth)
    share = parameters.epsilon * parameters.population_share
    lines = [f"- epsilon {parameters.epsilon:g} in all, of which the count of users costs {share:.3g}"]
    entries = method.max_query_entries()
    if entries is None and isinstance(method, Adaptive):
        entries = parameters.categories * 4**depth  # the finest tree
    if entries is None:
        return [*lines, f"- at most {rounds:,} sub-queries; their vectors depend on the number of users alone"]
    lines.append(f"- at most {rounds:,} sub-queries of at most {entries:,} entries each")
    if parameters.noise != "central":
        bits = ((MAX_MODULUS if parameters.modulus is None else parameters.modulus) - 1).bit_length()
        sent = f"{rounds * entries * bits:,}"
        lines.append(f"- so a client sends at most {rounds * entries:,} entries of {bits} bits at most: {sent} bits")
    return lines


def sample_plan_text(plan: SamplePlan, counted: Items) -> str:
    """What a count by sample and threshold costs a client and shows. Raises RequestError."""
    sampling, rounds = plan.sampling, plan.rounds
    each = "" if rounds == 1 else f" in each of {rounds} rounds, every time drawn anew"
    bits = _item_bits(counted)
    lines = [
        f"sample and threshold: epsilon {plan.rounds_epsilon:g}, delta {plan.delta_spent:.3g} of {plan.delta:g}",
        f"admission: epsilon {plan.admission_rule.epsilon:g}, for two noisy counts of users",
        f"p = {sampling.rate:.4g}: so likely is it that a user takes part{each}",
        f"tau = {sampling.threshold}: an item is shown if so many of those who take part share it",
    ]
    if (contact := plan.contact_plan) is not None:
        users = f"{contact.asked:,} of {contact.population:,} users"
        lines.append(f"about {users} are asked{' in each round' if rounds > 1 else ''}")
    if bits is None:
        lines.append("a client who takes part sends one of her values: 64 bits if it is an integer, else its text")
    else:
        most = "" if rounds == 1 else f", {rounds * bits} bits in {rounds} rounds at most"
        lines.append(f"a client who takes part sends one item: {bits} bits{' at most' if rounds > 1 else ''}{most}")
        lines.append(f"(over all users that is {significant(sampling.rate * bits * rounds)} bits each on average)")
    lines += [
        f"nothing that fewer than {sampling.threshold} users share can be seen",
        f"what {plan.hidden_count() + 1:,} users or more share is shown with a chance of 99% at least",
    ]
    return "\n".join(lines) + "\n"


def moments_plan_text(plan: MomentsPlan, grouping: Grouping | None) -> str:
    """What bit pushing asks of a client and shows."""
    told, form = plan.told, plan.form
    bits = f"{told.reports} bit{'s'[: told.reports != 1]}"
    lines = [
        f"bit pushing, {plan.method}: a client tells {bits} of one of {len(plan.kinds)}: {', '.join(plan.kinds)}",
        f"values lie in {form.low:.10g} to {form.high:.10g}, in steps of {form.step:.6g}; others count as an end",
    ]
    if told.epsilon is None:
        lines.append("each bit is told as it is: no differential privacy")
    else:
        lines.append(
            f"local epsilon {told.epsilon:g}: a bit is told as it is with chance {told.truth:.4f}, else turned round"
        )
    if plan.released is not None:
        lines.append(
            f"epsilon {plan.released:g} for adding or removing one user: noise ±{significant(plan.noise_stddev)} on "
            "every count of reports"
        )
    if grouping is not None:
        lines.append(
            f"{len(grouping.groups):,} groups, and `other`; a group is shown if it has {grouping.min_group:,} users by "
            "noisy counts, and clearly more than none"
        )
    each = [("users", "error of the mean, 95%"), *_mean_errors(plan)]
    table = markdown_table([list(row) for row in each], left=())
    return "\n".join(
        [*lines, "", "What the mean's error would be, with values spread evenly over the range:", "", table]
    )


def ranges_plan_text(plan: RangesPlan) -> str:
    """What a model of range queries costs and is made of. Raises RequestError."""
    if plan.method == ADAPTIVE:
        return heatmap_plan_text(plan.counting)
    counting, heatmap = plan.counting, plan.heatmap
    squares = f"squares of {plan.sizes.low:g} to {plan.sizes.high:g} m"
    lines = [f"method {plan.method}: {method_texts()[plan.method]}, for {squares}"]
    if heatmap is not None:
        width, height = (metres / (1 << heatmap.depth) for metres in plan.field.metres)
        lines.append(f"secure aggregation counts every cell of level {heatmap.depth}, {width:.3g} x {height:.3g} m:")
        return "\n".join([*lines, "", heatmap_plan_text(heatmap)])
    spent = counting.admission().epsilon
    lines.append(f"epsilon {counting.epsilon:g} in all, of which the count of users costs {spent:.3g}")
    chosen = plan.options.get("cell_width")
    if chosen is None:
        lines.append("a trusted server adds the noise; the cells follow from the number of users and epsilon")
    else:
        noise = significant(discrete_laplace_stddev(counting.epsilon - spent))
        lines.append(
            f"a trusted server adds noise ±{noise} to the users of every cell of about {chosen:g} x {chosen:g} m"
        )
    return "\n".join(lines) + "\n"


def _mean_errors(plan: MomentsPlan) -> list[tuple[str, str]]:
    """The error of the mean for some numbers of users, if all bits are set for half of them (Lemma 3.3)."""
    slots = Quantity(plan.form, "value").slots
    half = np.full(len(slots), 0.5)
    probabilities = by_variance(slots, half, np.ones(len(slots)), plan.told, 0.5, plan.bits_per_client)
    each = float((slots.weight**2 * plan.told.variance(half) / probabilities).sum())
    reports = plan.bits_per_client / len(plan.kinds)
    return [(f"{users:,}", f"±{significant(1.96 * math.sqrt(each / (users * reports)))}") for users in _EXAMPLES]


def _item_bits(counted: Items) -> int | None:
    """Bits of a whole item's code; None where the values of a column are sent as they are."""
    if isinstance(counted, CellItems):
        return 2 * counted.grid.depth
    return counted.bits if isinstance(counted, NumberItems) else None


def _size(number: int) -> str:
    for unit in ("bytes", "kB", "MB", "GB"):
        if number < 1000 or unit == "GB":
            break
        number /= 1000  # type: ignore[assignment]
    return f"{number:,} bytes" if unit == "bytes" else f"{number:.3g} {unit}"
