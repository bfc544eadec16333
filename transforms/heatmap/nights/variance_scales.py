"""How fast shares drift and how much nights differ, learned from what each night's counts say of the forecast. Pure.

Let e be a family's innovation: tonight's measured shares less the expected ones. Its variance is expected to be S for
each of three coordinates. A part of S follows from the drift since the nights before, and another is the night's
effect. Each part has a scale. A night moves the logarithm of a scale by the score of the innovations' normal likelihood
over its information (recursive maximum likelihood), which fades with the nights. So S becomes as large as the
innovations are, where the part matters.

Source: West and Harrison (1997), Bayesian Forecasting and Dynamic Models, chapter 10; Ljung and Soderstrom (1983).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sfumato.transforms.heatmap.nights.night_posterior import NightPosterior, measured_shares, per_coordinate
from sfumato.transforms.heatmap.posterior.full_tree import FullTree, by_family
from sfumato.transforms.heatmap.posterior.measurements import SubtreeSums

Floats = NDArray[np.float64]
_FADING = 0.97  # of the information, a night
_FIRST = 10.0  # information of the initial scales
_MAX_STEP = 0.7  # of a logarithm in a night
_RANGE = 7.0  # of a logarithm, to each side
MAX_SCALE = math.exp(_RANGE)
_LEAST_INFORMATION = 1e-3  # a year of nights that say nothing is no damage
_MAX_SQUARE = 9.0  # of an innovation, over its expectation: a change that was not found moves no scale far


@dataclass(frozen=True)
class VarianceScales:
    """Multiples of the initial variances.

    Attributes:
        drift: of the growth of variances a day.
        night: of the variance from night to night.
        drift_information, night_information: about the logarithms of both.
    """

    drift: float = 1.0
    night: float = 1.0
    drift_information: float = _FIRST
    night_information: float = _FIRST

    def learned(self, square: Floats, variance: Floats, drift_part: Floats, night_part: Floats) -> VarianceScales:
        """The scales after a night.

        Args:
            square: float64[n], sum of squares of each family's innovation.
            variance: float64[n], S.
            drift_part: float64[n], derivative of S with respect to the logarithm of the drift's scale.
            night_part: float64[n], the same for the night's scale.
        """
        excess = np.minimum(square / (3 * variance), _MAX_SQUARE) - 1
        found = []
        for scale, known, part in (
            (self.drift, self.drift_information, drift_part),
            (self.night, self.night_information, night_part),
        ):
            slope = part / variance
            known = max(_FADING * known + 1.5 * float((slope**2).sum()), _LEAST_INFORMATION)
            step = 1.5 * float((excess * slope).sum()) / known
            moved = math.log(scale) + min(max(step, -_MAX_STEP), _MAX_STEP)
            found.append((math.exp(min(max(moved, -_RANGE), _RANGE)), known))
        (drift, drift_known), (night, night_known) = found
        return VarianceScales(drift, night, drift_known, night_known)


def learn_scales(scales: VarianceScales, before: NightPosterior, own: FullTree, sums: SubtreeSums) -> VarianceScales:
    """Returns the scales after a night, from the families that tonight's tree and the nights before share.

    Args:
        scales: after the nights before.
        before: tonight's users as the nights before lead to expect them.
        own: tonight's tree.
        sums: measured users of its nodes, without sudden changes; an infinite variance where nothing is measured.
    """
    columns: list[tuple[Floats, Floats, Floats, Floats]] = []
    for level in range(1, min(len(own.codes), len(before.full.codes))):
        families, there = own.codes[level][::4], before.full.codes[level][::4]
        _, mine, earlier = np.intersect1d(families, there, assume_unique=True, return_indices=True)
        users, variance = by_family(sums.users[level])[mine], by_family(sums.variance[level])[mine]
        expected = by_family(before.users[level])[earlier]
        total = expected.sum(axis=1)
        use = np.isfinite(variance).all(axis=1) & (total >= 1)
        users, variance, expected, total = users[use], variance[use], expected[use], total[use]
        share, variance = measured_shares(users, variance, total)
        forecast = before.share_variance[level][earlier][use]
        night = before.accumulated.night[level][earlier][use]
        drift = np.maximum(forecast - night - 1 / (4 * total), 0) / 2  # near the balance of drift and measurements
        square = ((share - expected / total[:, None]) ** 2).sum(axis=1)
        columns.append((square, per_coordinate(variance) + forecast, drift, night))
    return scales.learned(*(np.concatenate(column) for column in zip(*columns, strict=True)))
