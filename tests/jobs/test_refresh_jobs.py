"""A refresh of every job that publishes a release, beside the heatmap."""

from __future__ import annotations

from datetime import date
from typing import Any

import pytest

from sfumato.pipelines.published_nights import PublishedNights
from sfumato.pipelines.refresh import Refresh, read_config
from sfumato.pipelines.run import JOBS
from sfumato.schemas.requests.commands import RefreshRequest
from sfumato.transforms.privacy.ledger.ledger import open_ledger
from tests.jobs.test_refresh import Place, days, place  # noqa: F401  (fixtures)

OTHER_JOBS: dict[str, dict[str, Any]] = {
    "histogram": {"region": "-1,50,1,51", "cells": 2, "delta": 1e-6},
    "hotspots": {"region": [-1, 50, 1, 51], "depth": 4, "levels": 2, "delta": 1e-6},
    "quantiles": {"column": "longitude", "range": [-1, 1], "bits": 6, "quantiles": [0.5, 0.9], "delta": 1e-6},
    "moments": {"column": "latitude", "statistics": ["mean", "variance"]},
    "flows": {"region": [-1, 50, 1, 51], "time_column": "longitude"},
    "zones": {"region": [-1, 50, 1, 51], "h3": 5},
    "ranges build": {"region": [-1, 50, 1, 51], "method": "grid", "sizes": [2000, 20_000]},
}


@pytest.mark.slow
@pytest.mark.parametrize("job", OTHER_JOBS)
def test_every_publishing_job_has_a_release_a_day(place: Place, job: str) -> None:  # noqa: F811
    options = {"epsilon": 4, **OTHER_JOBS[job]}
    delta = options.get("delta", 0)
    place.write(job=job, budget=[{"epsilon": 4, "delta": delta, "days": 1}], options=options)
    assert place.refresh("--backfill", "2026-11-18:2026-11-19") == 0
    assert not (place.folder / "published" / "maps").exists()
    page = (place.folder / "published" / "index.html").read_text()
    for day in ("2026-11-18", "2026-11-19"):
        assert f"releases/{day}" in page
        manifest = place.release(day).manifest
        assert (manifest["job"], manifest["release_id"]) == (job.split()[0], f"city-{day}")
        assert manifest["ledger"]["first_day"] == day
    charges = open_ledger(str(place.folder / "ledger.db")).history().charges
    assert [(float(charge.epsilon), float(charge.delta)) for charge in charges] == [(4, delta)] * 2
    assert place.ledger("verify", "--releases", str(place.folder / "published")) == 0
    entries = place.entries
    assert place.refresh("--backfill", "2026-11-18:2026-11-19") == 0  # once more: nothing is charged
    assert place.entries == entries


def test_the_jobs_of_a_refresh_are_those_that_publish() -> None:
    assert {name for name, job in JOBS.items() if job.publishes} == {"heatmap", *OTHER_JOBS}


@pytest.mark.parametrize(("left", "expected"), [("4", (1, 4)), ("2", (1, 2)), ("0.5", (0.5, 0.5))])
def test_what_is_left_of_a_charge_lowers_both_epsilons_and_raises_none(
    place: Place,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
    left: str,
    expected: tuple[float, float],
) -> None:
    """A release of moments may cost more than the local epsilon, and a day is resumed with what its charge left."""
    options = {"column": "latitude", "epsilon": 1, "group_by": "user_id", "groups": "a,b", "group_epsilon": 4}
    place.write(job="moments", budget=[{"epsilon": 4, "days": 1}], options=options)
    ran: list[Any] = []
    monkeypatch.setattr("sfumato.pipelines.refresh.run_job", lambda request, _: ran.append(request))
    runner, config = RefreshRequest.of({"config": str(place.config)}), read_config(str(place.config))
    nights = PublishedNights.read(config, str(place.config))
    Refresh(config, str(place.config), runner)._run(date(2026, 11, 18), nights, None, left)
    assert (ran[0].epsilon, ran[0].group_epsilon) == expected
