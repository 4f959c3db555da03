"""The round loop with clients that are neither lanes nor sites: they answer with what is written here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from vhl.algorithms.base import Server, Update, Work
from vhl.rounds.clients import Clients, Order
from vhl.rounds.evaluation import Pending
from vhl.rounds.simulation import Simulation
from vhl.training.task import Outcome

SIZES = (1, 3, 2)
ANSWERS = {0: 4.0, 1: -2.0}
"""What each client adds to every parameter; the third never answers."""


class Fixed(Clients):
    """Each answer is there at the third look; what was asked is kept."""

    def __init__(self, *, overlaps: bool = False, finite: Sequence[bool] = (True, True)) -> None:
        self.overlaps, self._finite = overlaps, finite
        self.asked: list[list[Order]] = []
        self.closed = 0

    def train(self, orders: Sequence[Order], server: Server) -> _Flight:
        self.asked.append(list(orders))
        return _Flight([self._answer(order, server) for order in orders if order.client in ANSWERS])

    def _answer(self, order: Order, server: Server) -> Outcome:
        work = Work(SIZES[order.client], 5, order.rate, 0.0)
        parameters = server.parameters + ANSWERS[order.client]
        buffers = torch.full_like(server.buffers, order.client)
        update = Update(order.client, work, parameters, buffers, {})
        totals = {"natural": torch.tensor(10.0), "natural_hits": torch.tensor(1.0)}
        state = {"seen": order.state.get("seen", torch.zeros(1)) + 1}
        return Outcome(update, state, totals, torch.tensor(self._finite[order.client]))

    def evaluate(self, server: Server) -> Pending:
        """Seven of ten right, where the first parameter is not below 0."""
        right = 7 if server.parameters[0] >= 0 else 2
        table = torch.tensor([[right, 10 - right], [0, 0]])
        pending = Pending({"test.0": table, "test.1": table})
        pending.tested = 10
        return pending

    def moments(self, server: Server) -> dict[str, Tensor]:
        raise NotImplementedError

    def close(self) -> None:
        self.closed += 1


class _Flight:
    def __init__(self, outcomes: list[Outcome]) -> None:
        self._outcomes, self._looks = outcomes, 0

    def poll(self) -> list[Outcome] | None:
        self._looks += 1
        return self._outcomes if self._looks == 3 else None


@pytest.fixture
def federated(point_simulation: Callable[..., Simulation]) -> Callable[..., Simulation]:
    """A simulation of three clients of which no one is here."""

    def make(clients: Fixed, **settings: Any) -> Simulation:
        made = point_simulation([[(1, 2, 3)] * size for size in SIZES], **settings)
        federation = replace(made.federation, clients=clients)
        return Simulation(made.experiment, federation=federation)

    return make


def test_rounds_of_clients_that_are_elsewhere(federated: Any) -> None:
    """p = 1/4 and 3/4: w grows by 4/4 − 3·2/4 = −1/2 a round, and no lane is asked for anything."""
    clients = Fixed()
    simulation = federated(clients, training={"lr": 0.5, "lr_decay": 0.5, "decay_per": "participation"})
    records, length = list(simulation), len(simulation.state.server.parameters)
    assert simulation.named_tensors()["weights"].tolist() == [-1.0] * 3
    assert simulation.named_tensors()["batches"].tolist() == [3 / 4]
    assert [record.accuracy for record in records] == [0.2, 0.2]
    for record in records:
        assert (record.clients, record.left_out, record.tested) == ([0, 1, 2], [2], 10)
        assert record.loss == {"natural": 2.0} and record.train_accuracy == 2 / 4  # 20 in 2·5 steps; 2 of 4
        assert record.drift == pytest.approx((4.5 + 1.5) / 2 * length**0.5)
        assert record.samples == 4 and record.bytes == 2 * 2 * (3 + 1) * 4  # of the two that answered
    assert [record.learning_rate for record in records] == [0.5, 0.25]
    assert [[order.rate for order in orders] for orders in clients.asked] == [[0.5] * 3, [0.25, 0.25, 0.5]]
    assert [[order.round for order in orders] for orders in clients.asked] == [[0] * 3, [1] * 3]
    assert simulation.state.participations == {0: 2, 1: 2}
    assert {client: own["seen"].tolist() for client, own in simulation.state.clients.items()} == {
        0: [2.0],
        1: [2.0],
    }
    assert not simulation.federation.lanes._lanes


def test_one_that_is_not_finite_keeps_the_state_it_had(federated: Any) -> None:
    simulation = federated(Fixed(finite=(False, True)))
    record = simulation.run_round()
    assert simulation.named_tensors()["weights"].tolist() == [-2.0] * 3
    assert record.left_out == [0, 2] and list(simulation.state.clients) == [1]
    assert simulation.state.participations == {0: 1, 1: 1}  # it did take part


@pytest.mark.parametrize("overlaps", [True, False])
def test_the_next_orders_go_out_early_to_clients_that_work_meanwhile(federated: Any, overlaps: bool) -> None:
    clients = Fixed(overlaps=overlaps)
    simulation = federated(clients, rounds=3)
    for record in simulation:
        assert len(clients.asked) == min(3, record.round + overlaps)


def test_every_look_is_short_and_a_round_that_is_closed_is_begun_anew(federated: Any) -> None:
    clients = Fixed()
    simulation = federated(clients)
    assert simulation.poll() is None and simulation.poll() is None and clients.closed == 0
    simulation.close()
    assert clients.closed == 1 and simulation.state.round == 0
    assert [simulation.poll() is None for _ in range(3)] == [True, True, False]
    assert [len(orders) for orders in clients.asked] == [3, 3] and simulation.state.round == 1


def test_an_error_of_clients_is_raised_and_the_round_can_be_tried_again(federated: Any) -> None:
    class Once(Fixed):
        def _answer(self, order: Order, server: Server) -> Outcome:
            if len(self.asked) == 1:
                raise ConnectionError
            return super()._answer(order, server)

    clients = Once()
    simulation = federated(clients)
    with pytest.raises(ConnectionError):
        simulation.run_round()
    assert clients.closed == 1 and simulation.run_round().round == 1
