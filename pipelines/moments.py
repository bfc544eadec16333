"""`sfumato moments`: means, variances and moments of a number over users, of whom each tells one bit."""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

import apache_beam as beam

from sfumato.pipelines.job import Inputs, ReleaseRequest, add_release_arguments, release_options, run_release
from sfumato.pipelines.options import JobParser, RunnerSettings
from sfumato.schemas.errors import RequestError
from sfumato.schemas.ledger import LOCAL, Cost
from sfumato.schemas.moments import FixedPoint, Signed, Statistic, ValueColumns
from sfumato.schemas.region import MAX_DEPTH, Grid, Region
from sfumato.schemas.release import BITS_FILE
from sfumato.transforms.files import read_file
from sfumato.transforms.moments.allocation import Tuning
from sfumato.transforms.moments.bit_pushing import PushBits
from sfumato.transforms.moments.groups import CellGroups, ColumnGroups, Grouping, Groups
from sfumato.transforms.moments.moments_release import MomentsMetadata, moments_files
from sfumato.transforms.moments.prior import PriorRelease
from sfumato.transforms.moments.privacy_meter import PrivacyMeter
from sfumato.transforms.moments.protocol import MomentsPlan
from sfumato.transforms.moments.value_encoding import Values
from sfumato.transforms.privacy.admission import AdmissionRule
from sfumato.transforms.privacy.keys import RunKey
from sfumato.transforms.release.metadata import ReleaseMetadata
from sfumato.transforms.release.published_release import open_release
from sfumato.transforms.release.publishing import WriteRelease, with_charge


@dataclass(frozen=True, kw_only=True)
class MomentsRequest(ReleaseRequest):
    """One run of the job, checked as far as it can be before any work."""

    JOB: ClassVar[str] = "moments"

    values: Values
    plan: MomentsPlan
    meter: PrivacyMeter
    grouping: Grouping | None = None
    warm_start: PriorRelease | None = None
    max_bad_fraction: float = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.max_bad_fraction <= 1:
            raise RequestError(f"max_bad_fraction: must lie in 0..1, got {self.max_bad_fraction}")
        if self.timeline is not None:
            raise RequestError("timeline: the page of all releases shows no means; leave it out")
        if self.accounting is not None and self.plan.epsilon is None:
            raise RequestError("no_ldp: there is no epsilon that a ledger could be charged with; give --epsilon")
        if self.warm_start is not None and not self.warm_start.safe and self.seed is None:
            raise RequestError(
                "warm_start: anybody can guess the key of that release and undo its coins, and this one would show "
                "some of what is under them; start from one that was made without --seed"
            )

        if self.warm_start is not None and not self.warm_start.local and self.plan.epsilon is not None:
            raise RequestError(
                "warm_start: that release has no differential privacy (--no_ldp), and this one would show some of its "
                "bits; start from one that was made with --epsilon"
            )

    def plan_text(self) -> str:
        from sfumato.pipelines.dry_run import moments_plan_text

        return moments_plan_text(self.plan, self.grouping)

    def cost(self) -> Cost:
        if self.plan.epsilon is None:
            return Cost(math.inf, trust=LOCAL)
        # Whoever reads the release learns no more than the one; whoever collects the reports, no more than the other.
        return Cost(max(self.plan.epsilon, self.plan.released or 0.0), trust=LOCAL)

    def source(self) -> ValueColumns:
        return self.values.columns

    def parameters(self) -> dict[str, Any]:
        plan, grouping = self.plan, self.grouping
        return {
            **asdict(self.values.columns),
            **asdict(plan.form),
            "statistics": [one.name for one in plan.statistics],
            "method": plan.method,
            "epsilon": plan.epsilon,
            "release_epsilon": plan.released,
            "bits_per_client": plan.bits_per_client,
            "max_bits_per_client": self.meter.cap,
            "variance": plan.variance,
            **asdict(plan.settled),
            "groups": None if grouping is None else asdict(grouping),
            "warm_start": None if self.warm_start is None else self.warm_start.metadata(),
            "max_bad_fraction": self.max_bad_fraction,
        }

    def admission(self) -> AdmissionRule:
        return self.plan.admission(self.max_bad_fraction, self.min_users)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the job's options."""
    add_release_arguments(parser)
    parser.add_argument("--column", required=True, metavar="NAME", help="column of integers or floating-point numbers")
    parser.add_argument("--bits", type=int, default=16, help="bits of a value's magnitude, 1 to 52")
    parser.add_argument("--fraction_bits", type=int, default=0, metavar="N", help="how many of them below the point")
    parser.add_argument(
        "--signed",
        metavar="HOW",
        help="values may be negative. shift:OFFSET adds OFFSET first; split asks for bits of positive and of negative "
        "values apart, which is better where the range is not known well",
    )
    parser.add_argument(
        "--statistics",
        default="mean",
        help="of mean, variance, moment:K (mean of the Kth power, K up to 8), geometric_mean, log_product; each "
        "quantity that they need has its own part of the users",
    )
    parser.add_argument(
        "--variance",
        choices=("centred", "raw"),
        default="centred",
        help="centred: about the mean that a first part of the users gave; raw: E[x^2] - E[x]^2, far worse unless the "
        "mean is near 0",
    )
    parser.add_argument(
        "--method",
        choices=("adaptive", "weighted"),
        default="adaptive",
        help="adaptive: a second round asks for the bits that matter; weighted: one round",
    )
    privacy = parser.add_mutually_exclusive_group(required=True)
    privacy.add_argument("--epsilon", type=float, help="local privacy budget of all that a user tells")
    privacy.add_argument(
        "--no_ldp", action="store_true", help="bits are told as they are: metering, and no differential privacy"
    )
    parser.add_argument(
        "--bits_per_client", type=int, default=1, metavar="N", help="bits of her value that a user tells"
    )
    parser.add_argument(
        "--max_bits_per_client", type=int, default=1, metavar="N", help="the most that she may tell: the job keeps it"
    )
    parser.add_argument(
        "--group_by", metavar="NAME", help="column of groups, besides everybody: text, integers, booleans or dates"
    )
    parser.add_argument(
        "--groups",
        metavar="A,B,C",
        help="the groups, known from elsewhere: which values occur in the logs is private; others count as `other`",
    )
    parser.add_argument("--groups_file", metavar="FILE", help="the same, one a line")
    parser.add_argument("--cells", type=int, metavar="DEPTH", help="groups are the 2^DEPTH x 2^DEPTH cells of --region")
    parser.add_argument("--region", metavar="W,S,E,N", help="the map's borders in degrees, with --cells")
    parser.add_argument(
        "--group_epsilon",
        type=float,
        metavar="E",
        help="privacy budget of the noise on counts by group, for adding or removing a user (default: epsilon)",
    )
    parser.add_argument(
        "--min_group", type=int, metavar="N", help="groups of fewer users are merged into `other` (default: 100)"
    )
    parser.add_argument(
        "--warm_start", metavar="RELEASE", help="an earlier release of the same column, in place of the first round"
    )
    parser.add_argument("--user_id_column", default="user_id", help="column of the user_id")
    parser.add_argument(
        "--rows_are_users", action="store_true", help="every row is another user's: no ids are read, which is faster"
    )
    parser.add_argument("--latitude_column", default="latitude", help="column of the latitude, with --cells")
    parser.add_argument("--longitude_column", default="longitude", help="column of the longitude, with --cells")
    parser.add_argument(
        "--max_bad_fraction",
        type=float,
        default=0.1,
        help="fail where a larger share of the rows has no usable user or value",
    )


def run(arguments: Sequence[str]) -> int:
    """Runs the job for a command line. Raises RequestError or DataError."""
    parser = JobParser("moments", __doc__)
    add_arguments(parser)
    options, settings = parser.parse_job(arguments)
    form = form_of(options)
    grouping = grouping_of(options)
    values = Values(_columns(options), form, None if grouping is None else grouping.groups)
    prior = open_prior(options.warm_start, options.column, form)
    if prior is not None and options.method != "adaptive":
        raise RequestError("warm_start: stands for the first of two rounds; use --method adaptive")
    plan = MomentsPlan(
        form=form,
        statistics=tuple(Statistic(name.strip()) for name in options.statistics.split(",")),
        method=options.method,
        epsilon=options.epsilon,
        release_epsilon=1.0 if options.group_epsilon is None and options.no_ldp and grouping else options.group_epsilon,
        bits_per_client=options.bits_per_client,
        variance=options.variance,
        tuning=Tuning(),
        prior={} if prior is None else prior.bits,
    )
    if prior is not None and not set(plan.kinds) & set(prior.bits):
        raise RequestError(
            f"warm_start: the release has bits of {', '.join(prior.bits)}; what is asked needs {', '.join(plan.kinds)}"
        )
    request = MomentsRequest(
        **release_options(options),
        values=values,
        plan=plan,
        meter=PrivacyMeter(plan.told, options.max_bits_per_client),
        grouping=grouping,
        warm_start=prior,
        max_bad_fraction=options.max_bad_fraction,
    )
    run_moments(request, settings)
    return 0


def form_of(options: argparse.Namespace) -> FixedPoint:
    """The values' form on a command line. Raises RequestError."""
    kind, _, offset = ("no" if options.signed is None else options.signed).partition(":")
    if kind not in ("no", "shift", "split") or (kind == "shift") != bool(offset):
        raise RequestError(f"signed: give shift:OFFSET or split, got {options.signed!r}")
    try:
        shift = float(offset or 0)
    except ValueError:
        raise RequestError(f"signed: shift:OFFSET needs a number, got {options.signed!r}") from None
    signed: Signed = kind  # type: ignore[assignment]
    form = FixedPoint(options.bits, options.fraction_bits, signed, shift)
    if abs(shift) > 2**53 * form.step:
        raise RequestError(f"signed: shift:{offset} is so large that values of its size have no steps of {form.step:g}")
    return form


def grouping_of(options: argparse.Namespace) -> Grouping | None:
    """The groups on a command line. Raises RequestError."""
    groups: Groups
    lists = [name for name in ("groups", "groups_file") if getattr(options, name) is not None]
    if options.cells is not None:
        if options.group_by is not None or lists:
            raise RequestError("cells: groups are cells or values of a column; give --cells or --group_by")
        if options.region is None:
            raise RequestError("cells: a grid of cells needs --region W,S,E,N")
        if not 1 <= options.cells <= MAX_DEPTH:
            raise RequestError(f"cells: must be a depth of 1 to 7, got {options.cells}")
        grid = Grid(Region.parse(options.region), options.cells)
        groups = CellGroups(grid, options.latitude_column, options.longitude_column)
    else:
        if options.region is not None:
            raise RequestError("region: cells of a region need --cells DEPTH")
        if options.group_by is None:
            if lists:
                raise RequestError(f"{lists[0]}: are of a column, which needs --group_by NAME")
            for name in ("group_epsilon", "min_group"):
                if getattr(options, name) is not None:
                    raise RequestError(f"{name}: is of groups, which need --group_by NAME or --cells DEPTH")
            return None
        if len(lists) != 1:
            raise RequestError(
                "groups: give the groups as --groups a,b,c or --groups_file FILE (they are published, so they must be "
                "known from elsewhere: which values occur in the logs is private)"
            )
        groups = ColumnGroups(options.group_by, _listed(options))
    return Grouping(groups, 100 if options.min_group is None else options.min_group)


def _listed(options: argparse.Namespace) -> tuple[str, ...]:
    if options.groups is not None:
        return tuple(name.strip() for name in options.groups.split(","))
    try:
        text = read_file(options.groups_file).decode()
    except (OSError, UnicodeDecodeError) as error:
        raise RequestError(f"groups_file: {options.groups_file} cannot be read ({type(error).__name__})") from None
    return tuple(line.strip() for line in text.splitlines() if line.strip())


def _columns(options: argparse.Namespace) -> ValueColumns:
    on_map = options.cells is not None
    return ValueColumns(
        options.column,
        None if options.rows_are_users else options.user_id_column,
        options.group_by,
        options.latitude_column if on_map else None,
        options.longitude_column if on_map else None,
    )


def open_prior(path: str | None, column: str, form: FixedPoint) -> PriorRelease | None:
    """The earlier release at a path, None without one. Raises RequestError where there is none that fits."""
    if path is None:
        return None
    try:
        release = open_release(path)
        return PriorRelease.of(release.manifest, release.arrow_table(BITS_FILE), column, form)
    except RequestError as error:
        raise RequestError(str(error) if str(error).startswith("warm_start") else f"warm_start: {error}") from None


def run_moments(request: MomentsRequest, settings: RunnerSettings) -> None:
    """Runs the job to the end. Raises RequestError or DataError."""

    def build(root: beam.Pipeline, inputs: Inputs, key: RunKey, metadata: ReleaseMetadata) -> beam.PCollection:
        bounded = request.values.columns.user_id is not None
        told = request.plan, request.grouping, request.meter, request.values.columns.column, bounded
        push = PushBits(
            request.values,
            request.plan,
            key,
            request.grouping,
            cap=request.meter.cap,
            spill=inputs.spill,
            admit=inputs.admit,
        )
        return (
            root
            | "Files" >> beam.Create(inputs.files)
            | "Push" >> push  # Progress
            | "Assemble"
            >> beam.Map(lambda progress: moments_files(progress, MomentsMetadata(with_charge(metadata), *told)))
            | "Write" >> WriteRelease(request.output, metadata, request.overwrite)
        )

    run_release(request, settings, build)


if __name__ == "__main__":
    from sfumato.pipelines.cli import command

    sys.exit(command(["moments", *sys.argv[1:]]))
