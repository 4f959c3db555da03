from __future__ import annotations

import numpy as np
import pytest

# As in test_fedavg.py; the pull μ = 0.5 is 0 at a round's first step, so one step takes w to a + (w − a)/2.
# With e = w − b: the second step's gradient is e/2 + ½(−e/2) = e/4, its momentum e/4 + e/4 = e/2, and two
# steps take w to b + e/4.
A, B = [(8, 0, 4)], [(0, 16, 4)] * 3


def test_two_rounds_by_hand(point_simulation, weights_of):
    algorithm = {"name": "fedprox", "mu": 0.5}
    simulation = point_simulation([A, B], algorithm=algorithm, training={"lr": 0.5, "momentum": 0.25})
    simulation.run_round()
    assert weights_of(simulation).tolist() == [1, 9, 2.75]  # ¼(4, 0, 2) + ¾(0, 12, 3)
    simulation.run_round()
    # ¼(4.5, 4.5, 3.375) + ¾(.25, 14.25, 3.6875)
    assert weights_of(simulation).tolist() == [1.3125, 11.8125, 3.609375]


@pytest.mark.parametrize("mu", [0.1, 1.0])
def test_two_rounds_equal_the_formulas(point_simulation, weights_of, federation, mu):
    algorithm = {"name": "fedprox", "mu": mu}
    simulation = point_simulation(federation.points, algorithm=algorithm, **federation.settings)
    server = np.zeros(3)
    for round_ in range(2):
        clients = simulation.run_round().clients

        def pull(weights, start=server):
            return mu * (weights - start)

        locals_ = [federation.train(client, round_, server, pull) for client in clients]
        server = np.average([x.weights for x in locals_], axis=0, weights=[x.size for x in locals_])
        np.testing.assert_allclose(weights_of(simulation), server, rtol=2e-6)


def test_without_pull_it_is_fedavg_to_the_bit(digit_simulation):
    one, other = (
        digit_simulation(algorithm=algorithm, objective="vhl")
        for algorithm in ("fedavg", {"name": "fedprox", "mu": 0.0})
    )
    for _ in range(2):
        one.run_round(), other.run_round()
    assert one.state.server.parameters.equal(other.state.server.parameters)
    assert one.state.server.buffers.equal(other.state.server.buffers)
