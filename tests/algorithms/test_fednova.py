from __future__ import annotations

import numpy as np
import pytest

from vhl.algorithms.fednova import FedNova
from vhl.config.sections import Training

A, B = [(8, 0, 4)], [(0, 16, 4)] * 3


def test_two_rounds_by_hand(point_simulation, weights_of):
    """One step moves client a's weights by ¼(w − a), two move b's by 9/16 (w − b): η = 0.25, m = 0.5.

    With lengths a = 1 and 1 + 1.5, Σ p a = ¼ + ¾ · 2.5 = 2.125, so
    w ← w − 2.125 (1/16 (w − a) + ¾ · 0.225 (w − b)) = 0.50859375 w + 0.1328125 a + 0.35859375 b.
    """
    training = {"lr": 0.25, "momentum": 0.5}
    simulation = point_simulation([A, B], algorithm="fednova", training=training)
    simulation.run_round()
    assert weights_of(simulation).tolist() == pytest.approx([1.0625, 5.7375, 1.965625], rel=1e-6)
    simulation.run_round()
    expected = [1.602880859375, 8.655556640625, 2.96532958984375]
    assert weights_of(simulation).tolist() == pytest.approx(expected, rel=1e-6)
    # statistics are averaged plainly: ¼ · 1 + ¾ · 2 batches a round
    assert simulation.named_tensors()["batches"].tolist() == [3.5]


def test_two_rounds_equal_the_formulas(point_simulation, weights_of, federation):
    simulation = point_simulation(federation.points, algorithm="fednova", **federation.settings)
    server = np.zeros(3)
    for round_ in range(2):
        clients = simulation.run_round().clients
        locals_ = [federation.train(client, round_, server) for client in clients]
        p = np.array([local.size for local in locals_]) / sum(local.size for local in locals_)
        a = np.array([local.accumulated for local in locals_])
        d = np.array([(server - local.weights) / local.accumulated for local in locals_])
        server = server - (p @ a) * (p @ d)
        np.testing.assert_allclose(weights_of(simulation), server, rtol=2e-6)


def test_equal_steps_are_fedavg(digit_simulation):
    """Clients of 20 samples each take 3 steps of batch 8."""
    parts = {"partition": {"name": "iid", "clients": 4}, "objective": "vhl"}
    one, other = (digit_simulation(algorithm=name, **parts) for name in ("fedavg", "fednova"))
    for _ in range(2):
        one.run_round(), other.run_round()
        np.testing.assert_allclose(
            one.state.server.parameters, other.state.server.parameters, rtol=1e-5, atol=1e-6
        )
        assert one.setup.sizes == (20,) * 4


@pytest.mark.parametrize(("keep", "momentum", "notes"), [(True, 0.9, 1), (True, 0.0, 0), (False, 0.9, 0)])
def test_kept_momentum_is_warned_about(keep, momentum, notes):
    assert len(FedNova().notes(Training(keep_momentum=keep, momentum=momentum))) == notes
