"""Inputs of a local network: noisy counts of boxes around a square, at many scales, in units of their noise. Pure."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from sfumato.schemas.ranges import Boxes
from sfumato.transforms.ranges.noisy_counts import NoisyGrid

# Centre, width and height of each box, in widths and heights of the square; the square itself is the first.
AROUND = (
    *((0.0, 0.0, scale, scale) for scale in (1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 9.0, 14.0, 22.0, 40.0)),
    *((float(x), float(y), 1.0, 1.0) for x in (-1, 0, 1) for y in (-1, 0, 1) if (x, y) != (0, 0)),
    (0.0, 0.0, 3.0, 1.0),
    (0.0, 0.0, 1.0, 3.0),
)
INPUTS = len(AROUND) + 4


class Surroundings:
    """Computes features of boxes on a noisy grid.

    Args:
        grid: with nearly even edges, so that all cells have about the same width and height.
        smoothing: psi in users, the least denominator of relative errors.
    """

    def __init__(self, grid: NoisyGrid, smoothing: float):
        self._table = grid.table()
        rows, columns = grid.users.shape
        self._cell = grid.side / columns, grid.side / rows
        self._noise = grid.noise_stddev
        self._smoothing = smoothing

    def features(self, boxes: Boxes) -> tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.float32]]:
        """Inputs float32[q, INPUTS], and the noisy count and its approximate noise deviation, float32[q] each."""
        (across, down), (x, y) = self._cell, ((boxes.x0 + boxes.x1) / 2, (boxes.y0 + boxes.y1) / 2)
        width, height = np.maximum(boxes.x1 - boxes.x0, 1e-9), np.maximum(boxes.y1 - boxes.y0, 1e-9)
        inputs = np.empty((len(boxes), INPUTS), dtype=np.float32)
        for number, (dx, dy, wide, high) in enumerate(AROUND):
            box = Boxes.around(x + dx * width, y + dy * height, wide * width, high * height)
            counted = self._table.sum(box)
            noise = self._noise * np.sqrt(1 + box.areas / (across * down))  # even a small box overlaps one cell
            inputs[:, number] = np.arcsinh(counted / noise)
            if number == 0:
                own, deviation = counted, noise
        inputs[:, -4] = np.log(width * height / (across * down)) / 2
        inputs[:, -3] = np.log(self._noise / self._smoothing)
        inputs[:, -2], inputs[:, -1] = (x / across) % 1, (y / down) % 1
        return inputs, own.astype(np.float32), deviation.astype(np.float32)
