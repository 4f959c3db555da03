"""Rounds that overlap: a GPU, or here what stands in for it, begins the next while one is evaluated."""

from __future__ import annotations

from dataclasses import replace

import pytest

from vhl.rounds.evaluation import Pending
from vhl.rounds.local import LocalClients
from vhl.rounds.simulation import Simulation

EVERYTHING = {
    "objective": "vhl",
    "algorithm": "scaffold",
    "partition": "iid:4",
    "training": {"batch_size": 10, "keep_momentum": True, "decay_per": "participation"},  # all are whole
    "clients_per_round": 3,
    "rounds": 4,
    "evaluate_every": 2,
    "features_at": (1,),
}


class _Clients(LocalClients):
    """Notes the rounds that were begun; evaluations come when a test says so."""

    def __init__(self, setup, data, lanes):
        super().__init__(setup, data, lanes)
        self.begun, self.evaluated = [], [True]

    def train(self, orders, server):
        self.begun.append(orders[0].round)
        return super().train(orders, server)

    def evaluate(self, server):
        return _Pending(super().evaluate(server).get(), self.evaluated)


class _Pending(Pending):
    def __init__(self, tensors, evaluated):
        super().__init__(tensors)
        self._evaluated = evaluated

    @property
    def ready(self):
        return self._evaluated[0]


@pytest.fixture
def overlapped(gpu, digit_simulation):
    """A simulation whose clients are trained in lanes of a GPU."""

    def make(lanes=None, **settings):
        made = digit_simulation(**{**EVERYTHING, **settings})
        lanes = lanes or gpu.lanes()
        clients = _Clients(made.setup, made.clients.data, lanes)
        federation = replace(made.federation, clients=clients, lanes=lanes)
        return Simulation(made.experiment, federation=federation)

    return make


def test_rounds_that_overlap_are_rounds_one_after_the_other(
    overlapped, digit_simulation, comparable, assert_same_state
):
    simulation, expected = overlapped(), digit_simulation(**EVERYTHING)
    for record, other in zip(simulation, expected, strict=True):
        assert comparable([record]) == comparable([other])
        # The next round is underway when this one is reported; what is told is this one's all the same.
        assert simulation.clients.begun == list(range(min(record.round + 1, 4)))
        assert_same_state(simulation, expected)
        assert (simulation.evaluation is None) == (record.accuracy is None)
        if simulation.evaluation is not None:
            assert simulation.evaluation.accuracy == record.accuracy
            assert simulation.evaluation.confusion.equal(expected.evaluation.confusion)
        assert (simulation.snapshot is None) == (record.round != 1)


def test_closed_while_the_next_round_is_underway(
    overlapped, digit_simulation, assert_same_state, assert_same_run
):
    """What was reported counts; the rest is done again by whoever goes on."""
    simulation, expected = overlapped(), digit_simulation(**EVERYTHING)
    for _ in range(2):
        simulation.run_round()
        expected.run_round()
    assert simulation.poll() is None and simulation.clients.begun == [0, 1, 2]
    simulation.close()
    assert_same_state(simulation, expected)
    assert_same_run(simulation, expected)


def test_a_round_is_reported_when_its_evaluation_is_there(overlapped):
    """Until then the next one waits in the lanes, and is trained as soon as someone looks again."""
    simulation = overlapped(rounds=2, evaluate_every=1)
    simulation.clients.evaluated[0] = False
    assert [simulation.poll() for _ in range(100)] == [None] * 100
    assert simulation.clients.begun == [0, 1]
    simulation.clients.evaluated[0] = True
    assert simulation.poll().round == 1 and simulation.run_round().round == 2


def test_a_new_task_while_a_job_of_a_closed_one_is_underway(overlapped, digit_simulation, assert_same_run):
    """Room is made by what no one uses any more, and a lane was still at it."""
    left = overlapped()
    other = overlapped(lanes=left.federation.lanes, objective="plain")
    left.poll()  # one lane is at the first job
    left.close()
    assert_same_run(other, digit_simulation(**EVERYTHING | {"objective": "plain"}))
    assert_same_run(left, digit_simulation(**EVERYTHING))
