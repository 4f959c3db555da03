from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from vhl.algorithms.base import Server
from vhl.algorithms.fedavg import FedAvg
from vhl.algorithms.scaffold import SCAFFOLD
from vhl.models.cnn import CNN
from vhl.objectives.vhl import VHL
from vhl.rounds.simulation import Simulation
from vhl.runs.checkpoint import State
from vhl.training.capture import REHEARSALS
from vhl.training.step import plain_pieces
from vhl.training.task import MOMENTUM, Job
from vhl.training.trainer import Trainer

rng = np.random.default_rng(4)
IMAGES, LABELS = rng.integers(0, 256, (20, 8, 8, 2), np.uint8), rng.integers(0, 3, 20)
VIRTUAL, VIRTUAL_LABELS = rng.integers(0, 256, (9, 8, 8, 2), np.uint8), np.arange(9) % 3


def network():
    torch.manual_seed(2)
    return CNN(width=4).build(6, 2, (8, 8))


@pytest.fixture
def task(make_task, make_stream):
    """Clients of up to twenty images in batches of 4, two passes, with virtual data."""

    def make(algorithm, **training):
        return make_task(
            network,
            make_stream(IMAGES, LABELS),
            virtual=make_stream(VIRTUAL, VIRTUAL_LABELS),
            objective=VHL(virtual_batch=5),
            algorithm=algorithm,
            training={"batch_size": 4, "epochs": 2, **training},
        )

    return make


def a_trainer(task):
    return Trainer(task, plain_pieces(task))


def begin(trainer, job, server):
    plan = trainer.task.plan(job.round, job.client, job.samples)
    trainer.begin(job, server, {name: torch.from_numpy(rows) for name, rows in plan.items()})


def train(trainer, job, server):
    begin(trainer, job, server)
    for _ in range(trainer.task.steps(len(job.samples))):
        trainer.step()
    return trainer.finish(job, trainer.task)


def a_server(trainer, scale=1.0, **state):
    return Server(scale * trainer.model.parameters, scale * trainer.model.buffers, state)


def a_job(client=0, count=20, rate=0.1, state=None):
    return Job(client, 3, np.arange(count), rate, state or {})


def vectors(outcome):
    """Everything that came of a job, by name."""
    update = outcome.update
    found = {"parameters": update.parameters, "buffers": update.buffers, "finite": outcome.finite}
    for kind, named in (("message", update.message), ("state", outcome.state), ("totals", outcome.totals)):
        found |= {f"{kind}.{name}": vector for name, vector in named.items()}
    return found


# --- one place for all clients -------------------------------------------------------------------------


def test_a_client_is_trained_as_in_a_place_of_its_own(task):
    """Long and short plans by turns, other rates, servers and states; momentum that one has, another not."""
    ours = task(SCAFFOLD(), keep_momentum=True)
    trainer = a_trainer(ours)
    size = trainer.model.parameters.shape
    control = {"control": torch.full(size, 0.01)}
    servers = [a_server(trainer, **control), a_server(trainer, 0.5, control=torch.full(size, 0.02))]
    fresh = {"control": torch.zeros(size)}
    kept = {"control": torch.full(size, 0.03), MOMENTUM: torch.full(size, 0.1)}
    jobs = [
        (a_job(0, 20, 0.1, kept), servers[0]),
        (a_job(1, 3, 0.2, fresh), servers[1]),
        (a_job(2, 13, 0.1, kept), servers[1]),
        (a_job(3, 20, 0.1, fresh), servers[0]),
    ]
    outcomes = [vectors(train(trainer, *own)) for own in jobs]
    names = {"parameters", "buffers", "finite", "message.control_change", "state.control"}
    names |= {f"state.{MOMENTUM}", "totals.natural_hits", "totals.virtual_hits"}
    for outcome, own in zip(outcomes, jobs, strict=True):
        alone = vectors(train(a_trainer(ours), *own))
        assert names < set(alone) == set(outcome)
        assert all(outcome[name].equal(alone[name]) for name in alone)


def test_nothing_that_a_step_touches_moves(task):
    """A captured step reads and writes where it did when it was recorded."""
    seen = []

    class Watching(SCAFFOLD):
        def correct_gradient(self, gradient, weights, client):
            note(gradient, weights, client.start, client.received["control"], client.state["control"])

        def correct_weights(self, weights, rate, client):
            note(weights, rate, client.start, client.received["control"], client.state["control"])

    def note(*tensors):
        seen[-1] += tensors  # held until the end: what is let go may be given out again at the same place

    ours = task(Watching(), keep_momentum=True)
    plain = plain_pieces(ours)

    def gather(plan, counter):
        note(counter, *plan.values())
        return plain.gather(plan, counter)

    def update(model, momentum, rate, counter, client):
        note(model.parameters, model.buffers, model.gradient, momentum, rate, counter)
        plain.update(model, momentum, rate, counter, client)

    trainer = Trainer(ours, replace(plain, gather=gather, update=update))
    control = torch.zeros_like(trainer.model.parameters)
    for number, count in enumerate([20, 3, 11]):
        seen.append([])
        state = {"control": control + number, MOMENTUM: control + number} if number else {"control": control}
        begin(trainer, a_job(number, count, state=state), a_server(trainer, control=control.clone()))
        trainer.step()
    places = [[tensor.data_ptr() for tensor in tensors] for tensors in seen]
    assert places[0] == places[1] == places[2] and len(places[0]) == 17 + len(ours.plan(0, 0, np.arange(3)))


def test_a_plan_has_room_for_rehearsals_after_the_longest_client(task):
    trainer = a_trainer(task(FedAvg()))
    job, server = a_job(count=20), a_server(trainer)
    begin(trainer, job, server)
    for _ in range(trainer.task.steps(20) + REHEARSALS):
        trainer.step()
    assert vectors(train(trainer, job, server))["parameters"].equal(
        vectors(train(a_trainer(trainer.task), job, server))["parameters"]
    )  # of which nothing is left


# --- what an algorithm returns -------------------------------------------------------------------------


class _Echo(FedAvg):
    """Returns what it was given, some of it in part."""

    def finish(self, weights, client, work):
        message = {
            "start": client.start,
            "weights": weights,
            "part": weights[:3],
            "received": client.received["there"],
        }
        return message, {"here": client.state["here"], "there": client.received["there"][1:]}


@pytest.mark.parametrize("keep_momentum", [False, True])
def test_an_algorithm_may_return_what_it_was_given(task, keep_momentum):
    trainer = a_trainer(task(_Echo(), keep_momentum=keep_momentum))
    state = {"here": torch.tensor([1.0, 2.0]), "there": torch.tensor([7.0])}
    server = a_server(trainer, there=torch.tensor([3.0, 4.0]))
    outcome = train(trainer, a_job(state=state), server)
    message = outcome.update.message
    expected = {"start": server.parameters.clone(), "weights": outcome.update.parameters.clone()}
    other = Server(2 * server.parameters, server.buffers, {"there": torch.tensor([5.0, 6.0])})
    following = train(
        trainer, a_job(1, state={"here": torch.tensor([8.0, 9.0]), "there": torch.tensor([7.0])}), other
    )
    assert message["start"].equal(expected["start"]) and message["weights"].equal(expected["weights"])
    assert message["part"].equal(expected["weights"][:3]) and message["received"].tolist() == [3, 4]
    assert outcome.state["here"].tolist() == [1, 2] and outcome.state["there"].tolist() == [4]
    assert following.update.message["received"].tolist() == [5, 6]
    assert following.state["here"].tolist() == [8, 9]
    assert (MOMENTUM in outcome.state) == keep_momentum
    assert state["here"].tolist() == [1, 2]


def test_a_state_that_stays_and_momentum_beside_it(task):
    """``finish`` returns it as it is; the engine's vector must not appear among the next client's."""
    seen = []

    class Watching(FedAvg):
        def correct_gradient(self, gradient, weights, client):
            seen.append(set(client.state))

    trainer = a_trainer(task(Watching(), keep_momentum=True, epochs=1))
    server = a_server(trainer)
    first = train(trainer, a_job(0, 4, state={"own": torch.tensor([1.0])}), server)
    second = train(trainer, a_job(1, 4, state={"own": torch.tensor([2.0])}), server)
    again = train(trainer, a_job(0, 4, state=first.state), server)
    assert seen == [{"own"}] * 3
    assert [o.state["own"].tolist() for o in (first, second, again)] == [[1], [2], [1]]
    momenta = [o.state[MOMENTUM] for o in (first, second, again)]
    assert not momenta[0].equal(momenta[1]) and not momenta[0].equal(momenta[2])


def test_state_of_any_shape_and_type(task):
    class Counting(FedAvg):
        def finish(self, weights, client, work):
            state = {
                "rounds": client.state["rounds"] + 1,
                "table": client.state["table"] + client.received["step"],
            }
            return {"rounds": state["rounds"].double()}, state

    trainer = a_trainer(task(Counting(), epochs=1))
    states = {
        client: {"rounds": torch.tensor(client), "table": 10.0 * client + torch.arange(6.0).view(2, 3)}
        for client in (0, 1)
    }
    for client, step in ((0, 0.5), (1, 2.0), (0, 1.0)):
        server = a_server(trainer, step=torch.tensor(step))
        outcome = train(trainer, a_job(client, 8, state=states[client]), server)
        states[client] = outcome.state
    assert [int(state["rounds"]) for state in states.values()] == [2, 2]
    assert states[0]["rounds"].dtype == torch.int64 and states[0]["rounds"].shape == ()
    assert states[0]["table"].tolist() == [[1.5, 2.5, 3.5], [4.5, 5.5, 6.5]]
    assert states[1]["table"].tolist() == [[12, 13, 14], [15, 16, 17]]


class _Late(FedAvg):
    """Clients have nothing before their first round; after it, the number of their rounds."""

    def finish(self, weights, client, work):
        return {}, {"rounds": client.state.get("rounds", torch.zeros(1)) + 1}


POINTS = [[(8, 0, 4)], [(0, 16, 4)]]


def test_a_state_that_begins_with_the_first_round(point_simulation):
    simulation = point_simulation(POINTS, algorithm=_Late(), rounds=3)
    list(simulation)
    rounds = {client: float(state["rounds"]) for client, state in simulation.state.clients.items()}
    assert rounds == {0: 3, 1: 3}


def test_a_client_without_a_state_does_not_see_anothers(point_simulation, monkeypatch):
    monkeypatch.setattr(
        "vhl.rounds.simulation.sample", lambda experiment, round_, clients: [[0], [0, 1]][round_]
    )
    first = point_simulation(POINTS, algorithm=_Late())
    first.run_round()
    second = Simulation(first.experiment, state=first.state)  # as after a resume
    second.run_round()
    rounds = {client: float(state["rounds"]) for client, state in second.state.clients.items()}
    assert rounds == {0: 2, 1: 1}


# --- by hand -------------------------------------------------------------------------------------------
# One client whose two samples are the point a, in batches of one: two steps on ½‖w − a‖², η = ½ and m = ¼.

A = [[(8, 0, 4)] * 2]
TRAINING = {"momentum": 0.25, "weight_decay": 0.25, "batch_size": 1}


def test_weight_decay_with_a_proximal_term(point_simulation, weights_of):
    """w₁ = a/2. Then g = −a/2 + μ a/2 + λ a/2 = −a/8 and v = −a/4 − a/8: w₂ = a/2 + 3a/16."""
    simulation = point_simulation(A, algorithm={"name": "fedprox", "mu": 0.5}, training=TRAINING)
    simulation.run_round()
    assert weights_of(simulation).tolist() == [8 * 11 / 16, 0, 4 * 11 / 16]


def test_weight_decay_with_control_variates(point_simulation, weights_of):
    """With c = 1 and cᵢ = 3 each step adds η(cᵢ − c) = 1, outside momentum and without decay.

    From 0 towards 8: 4, and 5 with the correction; g = −3 + 5/4, v = −2 − 7/4, so 6.875 and 7.875.
    Towards 0: 0, 1; g = 1 + 1/4 = v, so 0.375 and 1.375. Towards 4: 2, 3; g = −1 + 3/4, v = −1 − 1/4, so
    3.625 and 4.625. At last cᵢ⁺ − cᵢ = (0 − w)/(2η) − c.
    """
    fresh = point_simulation(A, algorithm="scaffold", training=TRAINING)
    zeros = torch.zeros_like(fresh.state.server.parameters)
    server = replace(fresh.state.server, state={"control": zeros + 1})
    state = State(0, server, {0: {"control": zeros + 3}})
    simulation = Simulation(fresh.experiment, problem=fresh.problem, state=state)
    simulation.run_round()
    weights = np.array([7.875, 1.375, 4.625])
    assert weights_of(simulation).tolist() == weights.tolist()
    assert simulation.state.clients[0]["control"][:3].tolist() == (3 - weights - 1).tolist()
    assert simulation.state.server.state["control"][:3].tolist() == (1 - weights - 1).tolist()


def test_an_algorithm_sees_the_gradient_before_the_weight_decay(point_simulation, weights_of):
    """Doubled: 2 · −a, so w₁ = a; there the gradient is 0 and the decay alone is left, λ a = a/4."""

    class Doubling(FedAvg):
        def correct_gradient(self, gradient, weights, client):
            gradient.mul_(2)

    training = {**TRAINING, "momentum": 0.0}
    simulation = point_simulation(A, algorithm=Doubling(), training=training)
    simulation.run_round()
    assert weights_of(simulation).tolist() == [7, 0, 3.5]


def test_corrections_come_after_the_step_and_know_its_rate(point_simulation):
    """One step a round: half of the way, then a quarter of what is left."""
    seen = []

    class Watching(FedAvg):
        def correct_weights(self, weights, rate, client):
            seen.append((float(rate), rate.shape, client.start[:3].tolist(), weights[:3].tolist()))

    list(point_simulation(A, algorithm=Watching(), training={"lr_decay": 0.5}, rounds=2))
    assert seen == [(0.5, (), [0, 0, 0], [4, 0, 2]), (0.25, (), [4, 0, 2], [5, 0, 2.5])]
