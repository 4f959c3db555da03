from __future__ import annotations

import numpy as np
import pytest

# As in test_fedavg.py, α = ½. Round 1 is FedProx with μ = ½: a goes to a/2, b to ¾b; h_i = −½w_i.
A, B, IDLE = [(8, 0, 4)], [(0, 16, 4)] * 3, [(99, 99, 99)]
TRAINING = {"lr": 0.5, "momentum": 0.25}


@pytest.fixture
def feddyn(point_simulation, first_two):
    def make(points, **options):
        algorithm = {"name": "feddyn", "alpha": 0.5, **options}
        return point_simulation(points, algorithm=algorithm, training=TRAINING, **first_two)

    return make


def next_start(simulation):
    return simulation.state.server.parameters[:3].tolist()


def test_two_rounds_by_hand(feddyn, weights_of):
    simulation = feddyn([A, B])
    simulation.run_round()
    # mean (2, 6, 2.5), h = −½/2 · (4, 12, 5)
    assert simulation.state.server.state["dual"][:3].tolist() == [-1, -3, -1.25]
    assert next_start(simulation) == [4, 12, 5] and weights_of(simulation).tolist() == [2, 6, 2.5]
    assert simulation.state.clients[0]["dual"][:3].tolist() == [-2, 0, -1]
    assert simulation.state.clients[1]["dual"][:3].tolist() == [0, -6, -1.5]
    simulation.run_round()
    # a's gradient is (−4, 12, 1) + (2, 0, 1): it goes to (5, 6, 4).
    # b's are (4, −4, 1) + (0, 6, 1.5), (2, −5, −.25) + ½(−2, −1, −1.25) + (0, 6, 1.5): to (1, 10.5, 3.125).
    assert simulation.state.clients[0]["dual"][:3].tolist() == [-2.5, 3, -0.5]
    assert simulation.state.clients[1]["dual"][:3].tolist() == [1.5, -5.25, -0.5625]
    assert simulation.state.server.state["dual"][:3].tolist() == [-0.5, -1.125, -0.53125]
    assert next_start(simulation) == [4, 10.5, 4.625]
    assert weights_of(simulation).tolist() == [3, 8.25, 3.5625]


def test_clients_that_stay_away_count_in_the_server_s_share(feddyn):
    simulation = feddyn([A, B, IDLE, IDLE])
    simulation.run_round()
    assert next_start(simulation) == [3, 9, 3.75]  # (2, 6, 2.5) + ½/4 · (4, 12, 5)/½


def test_weighting_by_samples(feddyn):
    simulation = feddyn([A, B], weighting="samples")
    simulation.run_round()
    assert next_start(simulation) == [3, 15, 5.25]  # ¼(4, 0, 2) + ¾(0, 12, 3) + (2, 6, 2.5)


def test_what_the_server_keeps_is_not_sent(feddyn, point_simulation):
    plain = point_simulation([A, B], algorithm="fedavg", training=TRAINING)
    assert feddyn([A, B]).run_round().bytes == plain.run_round().bytes


def test_it_finds_the_common_optimum_where_clients_pull_apart(point_simulation, weights_of):
    """Two quadratics: FedAvg, whose clients take unequal steps, stops elsewhere than at their mean."""
    far = {}
    for algorithm in ({"name": "fedavg", "weighting": "uniform"}, {"name": "feddyn", "alpha": 0.5}):
        simulation = point_simulation(
            [A, B], algorithm=algorithm, training={"lr": 0.25, "epochs": 4, "momentum": 0.0, "lr_decay": 1.0}
        )
        for _ in range(60):
            simulation.run_round()
        far[algorithm["name"]] = np.abs(weights_of(simulation) - [4, 8, 4]).max()
    assert far["feddyn"] < 1e-3 < 0.1 < far["fedavg"]
