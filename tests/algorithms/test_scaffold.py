from __future__ import annotations

import numpy as np
import pytest

# As in test_fedavg.py, with two more clients that never take part: K = 4, |S| = 2. Round 1 is FedAvg.
# With d = c − c_i, round 2 takes a's weights to a + (w − a)/2 − d/2, and b's to b + (w − b)/8 − ¾d:
# w1 = b + e/2 − d/2, momentum e/4 + (w1 − b) = ¾e − d/2, w2 = w1 − ½(¾e − d/2) − d/2.
A, B, IDLE = [(8, 0, 4)], [(0, 16, 4)] * 3, [(99, 99, 99)]
TRAINING = {"lr": 0.5, "momentum": 0.25}


@pytest.fixture
def scaffold(point_simulation, first_two):
    def make(**options):
        algorithm = {"name": "scaffold", **options}
        return point_simulation([A, B, IDLE, IDLE], algorithm=algorithm, training=TRAINING, **first_two)

    return make


@pytest.mark.parametrize(
    ("server_step", "control", "weights", "second_control", "of_b"),
    [
        # c = s · mean of (−8, 0, −4) and (0, −14, −3.5)
        # participation: ¼(1.5, 7, 2.5) + ¾(1.625, 7.4375, 2.671875)
        (
            "participation",
            [-2, -3.5, -1.875],
            [1.59375, 7.328125, 2.62890625],
            [-1.40625, 0.765625, -0.51171875],
            [1.375, -7.4375, -1.171875],
        ),
        # full: ¼(2.5, 8.75, 3.4375) + ¾(3.125, 10.0625, 4.078125)
        (
            "full",
            [-4, -7, -3.75],
            [2.96875, 9.734375, 3.91796875],
            [-2.5625, 1.96875, -0.7890625],
            [1.875, -6.5625, -0.703125],
        ),
    ],
)
def test_two_rounds_by_hand(scaffold, weights_of, server_step, control, weights, second_control, of_b):
    simulation = scaffold(server_step=server_step)
    simulation.run_round()
    assert weights_of(simulation).tolist() == [1, 10.5, 3.125]
    assert simulation.state.server.state["control"][:3].tolist() == control
    assert simulation.state.clients[0]["control"][:3].tolist() == [-8, 0, -4]
    assert simulation.state.clients[1]["control"][:3].tolist() == [0, -14, -3.5]
    simulation.run_round()
    assert weights_of(simulation).tolist() == weights
    assert simulation.state.server.state["control"][:3].tolist() == second_control
    # after one step c_i is the gradient at the round's start, (1, 10.5, 3.125) − a
    assert simulation.state.clients[0]["control"][:3].tolist() == [-7, 10.5, -0.875]
    assert simulation.state.clients[1]["control"][:3].tolist() == of_b
    assert set(simulation.state.clients) == {0, 1}


def test_two_rounds_by_hand_with_the_accumulated_divisor(scaffold, weights_of):
    simulation = scaffold(server_step="full", divisor="accumulated")
    simulation.run_round()
    # a = 1 for a's one step, 1 + 1.25 for b's two: c_b = −(0, 14, 3.5)/(2.25 · 0.5)
    b = simulation.state.clients[1]["control"][:3]
    assert b.tolist() == pytest.approx([0, -112 / 9, -28 / 9])
    control = simulation.state.server.state["control"][:3]
    assert control.tolist() == pytest.approx([-4, -56 / 9, -32 / 9])
    simulation.run_round()
    expected = [2.96875, 12.796875 - 49 / 18, 3.80859375 + 7 / 36]
    assert weights_of(simulation).tolist() == pytest.approx(expected, rel=1e-6)
    b = simulation.state.clients[1]["control"][:3]
    assert b.tolist() == pytest.approx([19 / 9, -343 / 54, -115 / 216], rel=1e-5)


@pytest.mark.parametrize("divisor", ["steps", "accumulated"])
@pytest.mark.parametrize("server_step", ["participation", "full"])
def test_two_rounds_equal_the_formulas(point_simulation, weights_of, federation, server_step, divisor):
    algorithm = {"name": "scaffold", "server_step": server_step, "divisor": divisor}
    simulation = point_simulation(federation.points, algorithm=algorithm, **federation.settings)
    server, c, c_i = np.zeros(3), np.zeros(3), [np.zeros(3) for _ in federation.points]
    for round_ in range(2):
        clients = simulation.run_round().clients
        locals_, changes = [], []
        for client in clients:
            drift = c - c_i[client]
            local = federation.train(client, round_, server, correction=lambda _, drift=drift: drift)
            tau = local.steps if divisor == "steps" else local.accumulated
            new = c_i[client] - c + (server - local.weights) / (tau * local.rate)
            changes.append(new - c_i[client])
            c_i[client] = new
            locals_.append(local)
        c = c + np.mean(changes, 0) * (len(clients) / len(federation.points) if server_step != "full" else 1)
        server = np.average([x.weights for x in locals_], axis=0, weights=[x.size for x in locals_])
        np.testing.assert_allclose(weights_of(simulation), server, rtol=1e-5)
        np.testing.assert_allclose(simulation.state.server.state["control"][:3], c, rtol=1e-5)
        for client in clients:
            stored = simulation.state.clients[client]["control"][:3]
            np.testing.assert_allclose(stored, c_i[client], rtol=1e-4, atol=1e-3)


def test_first_round_is_fedavg_to_the_bit(digit_simulation):
    one, other = (digit_simulation(algorithm=name, objective="vhl") for name in ("fedavg", "scaffold"))
    one.run_round(), other.run_round()
    assert one.state.server.parameters.equal(other.state.server.parameters)
    assert one.state.server.buffers.equal(other.state.server.buffers)
    one.run_round(), other.run_round()
    assert not one.state.server.parameters.equal(other.state.server.parameters)
