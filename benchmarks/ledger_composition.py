"""What a ledger's limit allows each day: epsilons added up, Laplace noise composed, Gaussian noise; and what it costs.

    python -m benchmarks.ledger_composition

Prints Markdown tables; nothing here depends on data.
"""

from __future__ import annotations

import time
import timeit
from collections.abc import Callable
from dataclasses import replace
from datetime import date, timedelta
from decimal import Decimal

from dp_accounting.pld import privacy_loss_distribution

from benchmarks.baselines.heatmap_methods import CountMin, Hierarchical
from sfumato.schemas.guarantee import Trust
from sfumato.schemas.ledger import Charge, Limit, Period, parse_amount
from sfumato.schemas.rotation import Rotation
from sfumato.transforms.counting.methods import Adaptive, Flat
from sfumato.transforms.counting.parameters import CountParameters
from sfumato.transforms.counting.plan import make_plan
from sfumato.transforms.privacy.additive_noise import GAUSSIAN, LAPLACE
from sfumato.transforms.privacy.ledger.windows import daily_epsilon, find_overrun, first_fit, spent_by_day
from sfumato.transforms.privacy.mechanism import rho_for_delta
from sfumato.transforms.statistics.bisection import bisect

LIMITS = ("1:1e-6/30d", "10:1e-6/365d", "10:1e-9/365d", "3:1e-6/365d")
USERS = 200_000


def table(heads: list[str], rows: list[list[str]]) -> str:
    """A Markdown table."""
    return "\n".join("| " + " | ".join(row) + " |" for row in [heads, ["---"] * len(heads), *rows])


def counts() -> str:
    """Noise of one count of a daily release under each limit, and of the discrete Gaussian by dp-accounting."""
    rows = []
    for text in LIMITS:
        limit = Limit.parse(text)
        epsilon, delta = float(limit.epsilon), float(limit.delta)
        gaussian = daily_epsilon(limit, delta)

        def fits(sigma: float, days: int = limit.days, epsilon: float = epsilon, delta: float = delta) -> bool:
            night = privacy_loss_distribution.from_discrete_gaussian_mechanism(
                sigma, value_discretization_interval=2e-4
            )
            return bool(night.self_compose(days).get_delta_for_epsilon(epsilon) <= delta)

        rho = rho_for_delta(gaussian, delta)
        noise = [
            LAPLACE.stddev(epsilon / limit.days),
            LAPLACE.stddev(daily_epsilon(limit, 0)),
            GAUSSIAN.stddev(rho),
            bisect(fits, 2 * GAUSSIAN.stddev(rho), 0.5 * GAUSSIAN.stddev(rho), 12)[0],
        ]
        rows.append([text, *(f"{one:.2f}" for one in noise), f"{gaussian:.4g}, {rho:.3g}"])
    heads = ["limit", "Laplace, added up", "Laplace, composed", "Gaussian", "Gaussian by dp-accounting"]
    return table([*heads, "epsilon at that delta and rho a day"], rows)


def heatmaps() -> str:
    """Noise in the last sub-query of a night's map, for as much of 10:1e-6/365d as each night may spend."""
    limit, rows = Limit.parse("10:1e-6/365d"), []
    budgets = {
        "Laplace, added up": {"epsilon": 10 / 365},
        "Laplace, composed": {"epsilon": daily_epsilon(limit, 0)},
        "Gaussian": {"epsilon": daily_epsilon(limit, 1e-6), "delta": 1e-6, "noise": "gaussian"},
    }
    for method in (Flat(), Adaptive(), Hierarchical(), CountMin()):
        noise = []
        for own in budgets.values():
            parameters = CountParameters(depth=8, users=USERS, trust=Trust.CENTRAL, method=method, **own)  # type: ignore[arg-type]
            noise.append(f"{make_plan(parameters).noise_stddev:,.1f}")
        rows.append([method.NAME, *noise])
    return table(["method", *budgets], rows)


def one_release() -> str:
    """Noise of a count where one release of epsilon 1 is spent on several: where Gaussian noise begins to pay."""
    rows = []
    for number in (1, 2, 5, 10, 20, 50):
        laplace = LAPLACE.stddev(1 / number)
        noise = [GAUSSIAN.stddev(rho_for_delta(1.0, delta) / number) for delta in (1e-3, 1e-6, 1e-9)]
        rows.append([f"{number}", f"{laplace:.2f}", *(f"{one:.2f}" for one in noise)])
    return table(["sub-queries", "Laplace", "Gaussian, delta 1e-3", "delta 1e-6", "delta 1e-9"], rows)


def _charge(name: str, day: date, epsilon: Decimal) -> Charge:
    return Charge(
        release_id=name, job="heatmap", dataset="city", period=Period(day, day), epsilon=epsilon, delta=Decimal(0),
        request="", binding="",
    )  # fmt: skip


def seconds() -> str:
    """Time to check one more charge beside 364 others, of 365 days."""
    limit, first, rows = Limit.parse("10:1e-6/365d"), date(2026, 1, 1), []
    epsilon = parse_amount("epsilon", f"{daily_epsilon(limit, 1e-6):.4f}")
    rho = Decimal(repr(rho_for_delta(float(epsilon), 1e-6)))
    composed = parse_amount("epsilon", f"{daily_epsilon(limit, 0):.4f}")
    for name in ("Laplace", "Gaussian", "every other day Laplace"):
        charges = []
        for number in range(365):
            day = first + timedelta(days=number)
            one = _charge(f"r{number}", day, composed)
            if name == "Gaussian" or (name != "Laplace" and number % 2):
                one = replace(one, epsilon=epsilon, delta=Decimal("1e-6"), rho=rho)
            charges.append(one)
        found = []
        for _ in range(2):  # the first run of a process imports what composes
            began = time.perf_counter()
            fits = find_overrun(charges[:-1], charges[-1], [limit]) is None
            found.append(time.perf_counter() - began)
        rows.append([name, f"{found[0]:.3f}", f"{found[1]:.3f}", "fits" if fits else "does not fit"])
    return table(["charges", "seconds", "again in the same process", ""], rows)


def cohort_milliseconds(name: str, limit_delta: str = "", **amounts: Decimal) -> list[str]:
    """A row of times with 365 nights of 30 cohorts and five limits. limit_delta: of the limits, as text."""
    first = date(2026, 1, 1)
    days = [first + timedelta(days=number) for number in range(365)]
    one = _charge("r", first, Decimal("0.9999"))
    nights = [
        replace(
            one,
            release_id=f"r{day}",
            period=Period(day, day),
            rotation=replace(Rotation.of_night(day, 30), partition="0" * 32),
            **amounts,
        )
        for day in days
    ]
    windows = ((1, 1), (1, 30), (4, 90), (7, 180), (13, 365))
    limits = Limit.parse_all(",".join(f"{epsilon}{limit_delta}/{length}d" for epsilon, length in windows))
    again, others = replace(nights[182], release_id="again"), [*nights[:182], *nights[183:]]
    actions: list[Callable[[], object]] = [
        lambda: find_overrun(nights[:-1], nights[-1], limits),
        lambda: find_overrun(others, nights[182], limits),
        lambda: (find_overrun(nights, again, limits), first_fit(nights, again, limits)),
        lambda: [spent_by_day(nights, "city", days, limit) for limit in limits],
    ]
    return [name, *(f"{1000 * min(timeit.repeat(action, number=1, repeat=5)):.1f}" for action in actions)]


def cohorts() -> str:
    """Times of decisions for the worst user of rotating cohorts."""
    rho = Decimal(repr(rho_for_delta(0.9999, 1e-6)))
    rows = [
        cohort_milliseconds("Laplace"),
        cohort_milliseconds("Gaussian", ":1e-6", delta=Decimal("1e-6"), rho=rho),
    ]
    return table(["charges", "last night", "a night of July", "a refusal and its day", "spent by day"], rows)


def main() -> None:
    for title, made in (
        ("noise of a count, in users (standard deviation), of one release a day", counts),
        (f"noise in the last sub-query of one night's map, {USERS:,} users, trust central, 10:1e-6/365d", heatmaps),
        ("one release, epsilon 1: noise of a count by the number of equal sub-queries", one_release),
        ("time to check the 365th charge", seconds),
        ("365 nights of 30 cohorts, five limits: milliseconds", cohorts),
    ):
        print(f"{title}\n\n{made()}\n")


if __name__ == "__main__":
    main()
