from __future__ import annotations

import numpy as np
import pytest

from vhl.algorithms.base import Update, Work
from vhl.algorithms.fedavg import FedAvg

# a has one sample (one step), b three (two steps of batch 2): with η = 0.5 and m = 0.25
# one step takes w to a + (w − a)/2, two take it to b + (w − b)/8.
A, B = [(8, 0, 4)], [(0, 16, 4)] * 3
TRAINING = {"lr": 0.5, "momentum": 0.25}


@pytest.mark.parametrize(
    ("weighting", "first", "second", "batches"),
    [
        # ¼(4, 0, 2) + ¾(0, 14, 3.5), then ¼(4.5, 5.25, 3.5625) + ¾(.125, 15.3125, 3.890625)
        ("samples", [1, 10.5, 3.125], [1.21875, 12.796875, 3.80859375], [1.75, 3.5]),
        # ½(4, 0, 2) + ½(0, 14, 3.5), then ½(5, 3.5, 3.375) + ½(.25, 14.875, 3.84375)
        ("uniform", [2, 7, 2.75], [2.625, 9.1875, 3.609375], [1.5, 3.0]),
    ],
)
def test_two_rounds_by_hand(point_simulation, weights_of, weighting, first, second, batches):
    algorithm = {"name": "fedavg", "weighting": weighting}
    simulation = point_simulation([A, B], algorithm=algorithm, training=TRAINING)
    for expected, count in zip([first, second], batches, strict=True):
        simulation.run_round()
        assert weights_of(simulation).tolist() == expected
        assert simulation.named_tensors()["batches"].tolist() == [count]  # statistics are averaged alike


@pytest.mark.parametrize("weighting", ["samples", "uniform"])
def test_two_rounds_equal_the_formulas(point_simulation, weights_of, federation, weighting):
    algorithm = {"name": "fedavg", "weighting": weighting}
    simulation = point_simulation(federation.points, algorithm=algorithm, **federation.settings)
    server = np.zeros(3)
    for round_ in range(2):
        clients = simulation.run_round().clients
        locals_ = [federation.train(client, round_, server) for client in clients]
        sizes = [local.size if weighting == "samples" else 1 for local in locals_]
        server = np.average([local.weights for local in locals_], axis=0, weights=sizes)
        np.testing.assert_allclose(weights_of(simulation), server, rtol=2e-6)


def test_shares():
    updates = [
        Update(client, Work(samples, 1, 0.1, 0.0), None, None, {}) for client, samples in enumerate([1, 3, 4])
    ]
    assert FedAvg().shares(updates) == [0.125, 0.375, 0.5]
    assert FedAvg(weighting="uniform").shares(updates) == [1 / 3] * 3
