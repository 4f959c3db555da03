from __future__ import annotations

import pytest
import torch

from vhl.algorithms.base import Work, weighted_sum


@pytest.mark.parametrize(("momentum", "steps"), [(0.0, 5), (0.5, 1), (0.5, 3), (0.9, 20), (0.99, 7)])
def test_accumulated_is_how_far_unit_gradients_carry(momentum, steps):
    velocity = way = 0.0
    for _ in range(steps):
        velocity = momentum * velocity + 1
        way += velocity
    work = Work(samples=1, steps=steps, rate=0.1, momentum=momentum)
    assert work.accumulated == pytest.approx(way, rel=1e-12)


def test_weighted_sum_leaves_its_vectors_alone():
    vectors = [torch.tensor([1.0, 2.0]), torch.tensor([10.0, 20.0]), torch.tensor([100.0, 200.0])]
    assert weighted_sum(vectors, [1.0, 2.0, 3.0]).tolist() == [321.0, 642.0]
    assert [vector.tolist() for vector in vectors] == [[1, 2], [10, 20], [100, 200]]
