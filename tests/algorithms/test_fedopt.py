from __future__ import annotations

import math

import pytest

# As in test_fedavg.py: from weights w a round's average is BASE + 7w/32.
A, B = [(8, 0, 4)], [(0, 16, 4)] * 3
BASE = (1, 10.5, 3.125)


@pytest.fixture
def after_rounds(point_simulation, weights_of):
    def run(rounds, **algorithm):
        simulation = point_simulation([A, B], algorithm=algorithm, training={"lr": 0.5, "momentum": 0.25})
        records = [simulation.run_round() for _ in range(rounds)]
        return weights_of(simulation).tolist(), simulation.state.server.state, records

    return run


def test_momentum_by_hand(after_rounds):
    options = {"name": "fedavgm", "server_lr": 0.5, "server_momentum": 0.5}
    weights, state, _ = after_rounds(1, **options)
    assert weights == [0.5, 5.25, 1.5625] and state["velocity"][:3].tolist() == list(BASE)
    # Δ = (1 + 7/64 − 1/2)·BASE = 39/64·BASE, v = ½·BASE + Δ
    weights, state, _ = after_rounds(2, **options)
    assert state["velocity"][:3].tolist() == [71 / 64 * base for base in BASE]
    assert weights == [(0.5 + 71 / 128) * base for base in BASE]


SQUARES = {
    "fedadagrad": lambda v, new: v + new,
    "fedadam": lambda v, new: 0.75 * v + 0.25 * new,
    "fedyogi": lambda v, new: v - 0.25 * new if v > new else v + 0.25 * new,
}


@pytest.mark.parametrize("name", SQUARES)
@pytest.mark.parametrize("beta1", [0.0, 0.5])
def test_adaptive_methods_number_by_number(after_rounds, name, beta1):
    """τ = 2: of the first round's Δ² = 1, 110.25, 9.8 one is below v = 4."""
    options = {"name": name, "server_lr": 0.5, "beta1": beta1, "tau": 2.0}
    options |= {} if name == "fedadagrad" else {"beta2": 0.75}
    weights, state, _ = after_rounds(3, **options)
    for place, base in enumerate(BASE):
        w, m, v = 0.0, 0.0, 4.0
        for _ in range(3):
            move = base + 7 * w / 32 - w
            m, v = beta1 * m + (1 - beta1) * move, SQUARES[name](v, move * move)
            w += 0.5 * m / (math.sqrt(v) + 2)
        assert weights[place] == pytest.approx(w, rel=1e-6)
        assert state["square"][place].item() == pytest.approx(v, rel=1e-6)


def test_adagrad_keeps_no_momentum_by_default(after_rounds):
    _, state, _ = after_rounds(1, name="fedadagrad")
    assert state["mean"][:3].tolist() == list(BASE)


@pytest.mark.parametrize("name", ["fedavgm", *SQUARES])
def test_what_the_server_keeps_is_not_sent(after_rounds, name):
    *_, (record,) = after_rounds(1, name=name)
    *_, (plain,) = after_rounds(1, name="fedavg")
    assert record.bytes == plain.bytes
    *_, (scaffold,) = after_rounds(1, name="scaffold")
    assert scaffold.bytes > plain.bytes


def test_without_momentum_at_rate_1_it_is_fedavg(after_rounds):
    fedavg, *_ = after_rounds(2, name="fedavg")
    assert after_rounds(2, name="fedavgm", server_momentum=0.0)[0] == fedavg
