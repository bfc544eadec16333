"""What the pages of quantiles show, made of a release's published files only. Pure."""

from __future__ import annotations

from typing import ClassVar

from sfumato.schemas.views import PageView, Section, Table
from sfumato.transforms.histogram.view import SampledPage, sampled_view
from sfumato.transforms.report.released import Files


def quantiles_view(files: Files) -> PageView:
    """Returns the page of a release of `sfumato quantiles`. files: by name."""
    return sampled_view(files, CentralQuantilesPage)


class CentralQuantilesPage(SampledPage):
    """What the page says of quantiles with a trusted curator."""

    DRAWN: ClassVar[str] = "The noise"

    def stddev_of(self, users: float) -> float:
        return 0.0

    def curve_reading(self) -> list[str]:
        if self.parameters["method"] == "exponential":
            return [
                "A quantile's interval holds the true value at least 95 times in 100. It allows for long stretches "
                "without values, so it is wider than it need be where values lie densely.",
                "The curve passes through what was drawn: the quantiles and the ends of their intervals. Between two "
                "dots nothing is known but that it rises.",
            ]
        return [
            "The band shows what the noise leaves open: it holds the true curve at the border of a bin about 95 times "
            "in 100. A quantile's interval is read off in the same way."
        ]

    def made(self) -> Section:
        paragraphs = [
            "The operator of the job was trusted: it saw the logs and drew what is shown once, by a secret key."
        ]
        if self.parameters["method"] == "exponential":
            paragraphs.append(
                "The middle quantile was drawn first, then the middle of each of both parts, and so on. A value is the "
                "more likely to be drawn, the closer the number of users below it is to the one that was asked for."
            )
            names = {"index": "Level", "epsilon": "Epsilon", "draws": "Draws"}
        else:
            paragraphs.append(
                "The users were counted by bins of several widths, with noise on every count, also where nobody was. "
                "What is shown fits all counts best."
            )
            names = {"index": "Level", "epsilon": "Epsilon", "level": "Bins"}
            names["noise_stddev"] = "Standard deviation of a count"
        rows = [
            [f"{2 ** one[name] if name == 'level' else one[name] + (name == 'index'):,.4g}" for name in names]
            for one in self.rounds
        ]
        table = Table(title="Level by level", heads=list(names.values()), rows=rows, numeric=[True] * len(names))
        return Section(title="How it was made", paragraphs=paragraphs, table=table if rows else None)
