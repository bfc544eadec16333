"""What the pages of counts of all users with noise show, made of a release's published files only. Pure."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from sfumato.schemas.guarantee import Trust, days_averaged
from sfumato.schemas.known_digits import NOISE_Z, Z, about, not_negative, with_interval
from sfumato.schemas.views import PageView
from sfumato.schemas.views.view_parts import Fact, Scale, Section, Table
from sfumato.transforms.histogram.view import SampledPage, noun_of, view_of
from sfumato.transforms.observability.text_tables import significant
from sfumato.transforms.report.numbers import plural
from sfumato.transforms.report.released import Files, Released
from sfumato.transforms.report.scales import density_scale
from sfumato.transforms.report.sections import radius_of

_WHO = {
    Trust.CENTRAL: "A trusted curator, the operator of this job, saw the logs and the exact counts and added noise to "
    "them once.",
    Trust.SPLIT: "Two servers received shares of the counted items, which disclose nothing. Each added its own noise "
    "to its share of every count, and only the total of both was seen.",
}
_NOISE = {
    "laplace": "discrete Laplace",
    "truncated": "discrete Laplace within limits",
    "gaussian": "discrete Gaussian",
}
_LEFT_OUT = "Records without an id, a place or a time are not counted."


def counts_view(files: Files) -> PageView:
    """Returns the page of a release of `sfumato histogram` or `hotspots`. files: by name."""
    return view_of(files, SampledPage, CentralPage)


class CentralPage(SampledPage):
    """Texts of the page of noisy counts."""

    DRAWN: ClassVar[str] = "The noise"
    NEAR_THRESHOLD: ClassVar[str] = (
        "near the threshold is likely to be too high, because it is shown only if its noise did not push it below. Its "
        "interval is extended downwards to match."
    )

    def __init__(self, release: Released):
        parameters = release.manifest["parameters"]
        most, records = parameters["bound"]["max_items"], parameters["bound"]["max_records"]
        self.days = days_averaged(release.manifest)
        self.UNIT = "users a day" if self.days > 1 else "users" if records == 1 else "records"
        noun = noun_of(release)
        at = "in" if radius_of(release.manifest) is None else "at"
        kept = f"one {noun}" if most == 1 else f"at most {most} different {noun}s"
        bound = "records" if records == 1 else f"records, with at most {records} records each"
        if self.days > 1:
            bound = (
                f"days there. {at.capitalize()} each {noun} the user counts once a day, and the number is the mean of "
                f"{self.days} days"
            )
        drawn = f"sampled at random in proportion to their {bound}"
        self.ONE_RECORD = f"Of each user {kept} count{'s'[: most == 1]}, {drawn}."
        held = "have an item" if noun == "item" else f"have been {at} a {noun}"
        self.ONE_RECORD += f" A user's other {noun}s are not counted, so more users than the count may {held}."
        if release.manifest["privacy"].get("devices"):
            sent = "one cell" if records == 1 else f"weights of cells, {records} in all"
            self.ONE_RECORD = f"Each device sent {sent}."
        self.HEADLINE = f"{kept[0].upper()}{kept[1:]} per user, with noise"
        self._added_up = most > 1 or records > 1
        super().__init__(release)
        selected = any(one["threshold"] is not None for one in self.rounds)
        despite = ", even for counts that the threshold selected or that are among the highest" if selected else ""
        self.COUNTED = (
            f"is the exact count plus noise. Its interval contains that exact count at least 95 times in 100{despite}. "
            "Records that lack an id, a place or a time are left out of the exact count, and no interval allows for "
            "them."
        )
        if radius_of(release.manifest) is not None:
            self.COUNTED += (
                " Nor does one allow for errors of position, which move records between points that are close to each "
                "other."
            )

    def stddev_of(self, users: float) -> float:
        """Returns the standard deviation of the noisy user count that admitted the run; 0 without one."""
        admission = self._manifest["privacy"]["admission"]
        return 0.0 if admission is None else float(admission["noise_stddev"])

    def ends(self, table: pa.Table, level: int | None = None) -> tuple[np.ndarray, np.ndarray]:
        if level is None:
            low, high = (np.asarray(table[name]).astype(float) for name in ("low", "high"))
            return low, high
        margin = self._round(level)["margin_at_once"] / self.days
        count = np.asarray(table["count"])
        return count - margin, count + margin

    def scale(self, level: int, density: np.ndarray, low: np.ndarray) -> Scale:
        everywhere = self._round(level)["threshold"] is None
        return density_scale(density, np.maximum(low, 0)) if everywhere else super().scale(level, density, low)

    def _round(self, level: int) -> dict[str, Any]:
        return next(one for one in self.rounds if one["level"] == level)

    def held(self, table: pa.Table) -> str:
        if not self._added_up:
            if self.hidden:
                return super().held(table)
            # Where all places are published, all users count in them, whose number is often known better.
            is_better = float(np.linalg.norm(np.asarray(table["stddev"]))) > self.all_stddev > 0
            return f"about {self.all_users_text if is_better else self.total(table)} users"
        if self.UNIT != "users":
            text, everyone = f"about {self.total(table)} {self.UNIT}", f"{self.all_users_text} users"
            if self.days == 1:
                return f"{text} of {everyone}"
            return f"{text}, added up over the {self.noun}s (all days together: {everyone})"
        if self.hidden:  # how many users the published ones hold is not known
            pairs = f"pairs of a user and {'an' if self.noun == 'item' else 'a'} {self.noun}"
            return f"about {self.total(table)} {pairs}, of {self.all_users_text} users"
        if self.all_users < Z * self.all_stddev:
            return f"fewer than {about(self.all_users + Z * self.all_stddev, self.all_stddev)} users, perhaps none"
        return f"about {self.all_users_text} users, counted {self.total(table)} times in all"

    def zones_headline(self, table: pa.Table) -> str:
        if self.hidden or self.UNIT != "users" or self.all_users < Z * self.all_stddev:
            return super().zones_headline(table)
        most = self.parameters["bound"]["max_items"]
        counted = "one" if most == 1 else f"at most {most}"
        return f"About {self.all_users_text} users, each in {counted} of {plural(table.num_rows, self.noun)}"

    def own_chip(self) -> Fact:
        if self.hidden:
            return super().own_chip()
        stddev = self.rounds[-1]["noise_stddev"] / self.days
        return Fact(term="Noise on every count", text=f"± {significant(NOISE_Z * stddev, 2)} {self.UNIT} (95%)")

    def estimates(self, table: pa.Table) -> list[tuple[str, str]]:
        columns = (table[name].to_pylist() for name in ("count", "low", "high"))
        rows = (with_interval(*not_negative(*row)) for row in zip(*columns, strict=True))
        return [(count, f"{low} to {high}") for count, low, high in rows]

    def missing(self, one: str) -> str:
        if not self.hidden:
            return f"{one} without users is shown too, with the same noise as any other. Negative counts are noise."
        top = self.parameters.get("top")
        kept = f" Of the last level, only the {top:,} with the highest counts are published." if top else ""
        return f"{one} that is not shown has a count of at most {self.hidden:,} at 99% confidence, possibly 0.{kept}"

    def made(self) -> Section:
        paragraphs = [_WHO[self._manifest["privacy"]["trust"]], self.round_text(self.rounds[-1])]
        if len(self.rounds) > 1:
            above = plural(len(self.rounds) - 1, "coarser level")
            paragraphs.append(
                f"A small part of the budget went to {above}, to show the location of users whose items stay hidden. "
                "Each level has separate noise, so its counts do not add up to those of the level above."
            )
        return Section(title="How it was made", paragraphs=paragraphs, table=self.rounds_table())

    def round_text(self, round_: dict[str, Any]) -> str:
        noise = f"{_NOISE[round_['noise']]}, with a standard deviation of {round_['noise_stddev']:.3g}"
        if round_["threshold"] is None:
            divided = "" if self.days == 1 else f" Each was then divided by the number of days, {self.days}."
            return f"{_LEFT_OUT} The noise ({noise}) was added to every count, including those that are 0.{divided}"
        least = f"{round_['threshold']:,}"
        shown = f"every count above 0. Noisy counts below {least} were dropped."
        return f"{_LEFT_OUT} The noise ({noise}) was added to {shown}"

    def rounds_table(self) -> Table | None:
        if len(self.rounds) == 1:
            return None  # the text states all of it
        heads = ["Level", "Published", "Standard deviation", "Threshold", "May be hidden"]
        rows = [
            [
                str(one["level"] or "whole"),
                f"{one['published']:,}",
                f"{one['noise_stddev']:.3g}",
                "none" if one["threshold"] is None else f"{one['threshold']:,}",
                f"up to {one['hidden_count']:,}" if one["hidden_count"] else "nothing",
            ]
            for one in self.rounds
        ]
        if all(one["threshold"] is None for one in self.rounds):
            heads, rows = heads[:3], [row[:3] for row in rows]
        return Table(title="Level by level", heads=heads, rows=rows, numeric=[True] * len(heads))
