import numpy as np
import pytest

from benchmarks.baselines.range_methods.partitions import Partition, PartitionModel
from benchmarks.baselines.range_methods.ug import UniformGrid
from sfumato.schemas.ranges import Boxes
from sfumato.transforms.privacy.mechanism import discrete_laplace_stddev
from sfumato.transforms.ranges.field_counts import centre_variance
from tests.seeds import seeded_rng
from tests.slow.benchmarks.baselines.range_methods.partition_checks import rectangles
from tests.unit.ranges.oracle import overlap, random_boxes, run_key, spec_of, town

PARTS = Partition(
    8,
    *(np.array(at) for at in ([0, 4, 0], [0, 0, 4], [4, 8, 8], [4, 4, 8])),
    np.array([10.0, -6.0, 30.0]),
    np.array([4.0, 9.0, 16.0]),
)


def test_partition_answers_equal_a_loop_over_rectangles() -> None:
    boxes = random_boxes(seeded_rng(5), 8, 100).clipped(8)
    answers = PartitionModel(PARTS).answer(boxes)
    for box in range(100):
        users, variance = 0.0, 0.0
        one = boxes.part(slice(box, box + 1))
        for part, (x0, y0, x1, y1) in enumerate(rectangles(PARTS)):
            covered = overlap(boxes.x0[box], boxes.x1[box], x0, x1) * overlap(boxes.y0[box], boxes.y1[box], y0, y1)
            share = covered / ((x1 - x0) * (y1 - y0))
            users += share * PARTS.users[part]
            variance += share * PARTS.variance[part]
            if x0 <= one.middles[0][0] < x1 and y0 <= one.middles[1][0] < y1:
                cell = Boxes(*(np.array([float(edge)]) for edge in (x0, y0, x1, y1)))
                variance += centre_variance(one, cell, PARTS.users[part : part + 1], 0.0)[0]
        assert answers.users[box] == pytest.approx(max(users, 0.0), abs=1e-10)
        if one.areas[0] > 0:  # others are answered by RangeModel: 0 users, for sure
            assert answers.stddev[box] ** 2 == pytest.approx(variance, abs=1e-9)


def cut(side: int, generator: np.random.Generator) -> list[tuple[int, int, int, int]]:
    """Rectangles by random cuts of random rectangles."""
    parts = [(0, 0, side, side)]
    for _ in range(60):
        x0, y0, x1, y1 = parts.pop(generator.integers(len(parts)))
        if x1 - x0 > 1 and (generator.random() < 0.5 or y1 - y0 == 1):
            at = int(generator.integers(x0 + 1, x1))
            parts += [(x0, y0, at, y1), (at, y0, x1, y1)]
        elif y1 - y0 > 1:
            at = int(generator.integers(y0 + 1, y1))
            parts += [(x0, y0, x1, at), (x0, at, x1, y1)]
        else:
            parts.append((x0, y0, x1, y1))
    return parts


@pytest.mark.parametrize(
    ("users", "epsilon", "side"),
    [(4000.0, 1.0, 20), (4000.0, 0.1, 6), (10.0, 1.0, 1), (0.0, 1.0, 1), (-50.0, 1.0, 1), (4e9, 1.0, 64)],
)
def test_cells_follow_the_rule(users: float, epsilon: float, side: int) -> None:
    found = UniformGrid().collect(town(6, 4000), spec_of(6, users, epsilon), run_key(1))
    assert found.users.shape == (side, side)
    assert found.noise_stddev == discrete_laplace_stddev(epsilon)
