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
    """Texts of the page of quantiles by a trusted curator."""

    DRAWN: ClassVar[str] = "The noise"

    def stddev_of(self, users: float) -> float:
        return 0.0

    def curve_reading(self) -> list[str]:
        if self.parameters["method"] == "exponential":
            return [
                "A quantile's interval contains the true value at least 95 times in 100. It allows for long ranges "
                "without values, so it is wider than necessary where values are dense.",
                "The curve passes through the published quantiles and the ends of their intervals. Between two dots it "
                "is only known to rise.",
            ]
        return [
            "The band shows the error from noise. It is pointwise: at each border of a bin it contains the true curve "
            "about 95 times in 100. A quantile's interval is derived from it."
        ]

    def made(self) -> Section:
        paragraphs = [
            "A trusted curator, the operator of this job, saw the logs and drew the published values once, with a "
            "secret key."
        ]
        if self.parameters["method"] == "exponential":
            paragraphs.append(
                "The middle quantile was drawn first, then the middle quantile of each half, down to the last. A value "
                "is more likely to be drawn the closer the number of users below it is to the requested number."
            )
            names = {"index": "Level", "epsilon": "Epsilon", "draws": "Draws"}
        else:
            paragraphs.append(
                "The users were counted in bins of several widths, with noise on every count, including those of empty "
                "bins. The curve is the best fit to all counts."
            )
            names = {"index": "Level", "epsilon": "Epsilon", "level": "Bins"}
            names["noise_stddev"] = "Standard deviation of a count"
        rows = [
            [f"{2 ** one[name] if name == 'level' else one[name] + (name == 'index'):,.4g}" for name in names]
            for one in self.rounds
        ]
        table = Table(title="Level by level", heads=list(names.values()), rows=rows, numeric=[True] * len(names))
        return Section(title="How it was made", paragraphs=paragraphs, table=table if rows else None)
