"""One place for all clients: a trainer's vectors are used again and again."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from vhl.algorithms.base import Server
from vhl.algorithms.fedavg import FedAvg
from vhl.algorithms.scaffold import SCAFFOLD
from vhl.objectives.vhl import VHL
from vhl.rounds.simulation import Simulation
from vhl.runs.checkpoint import State
from vhl.training.static import REHEARSALS
from vhl.training.step import Step
from vhl.training.task import MOMENTUM, Job
from vhl.training.trainer import Trainer

VIRTUAL = np.random.default_rng(4).integers(0, 256, (9, 8, 8, 2), np.uint8)


@pytest.fixture
def task(small_task, make_stream):
    """Clients of up to twenty images in batches of 4, two passes, with virtual data."""

    def make(algorithm, **training):
        return small_task(
            virtual=make_stream(VIRTUAL, np.arange(9) % 3),
            objective=VHL(virtual_batch=5),
            algorithm=algorithm,
            training={"batch_size": 4, "epochs": 2, **training},
        )

    return make


def a_trainer(task):
    return Trainer(Step(task))


def a_server(trainer, scale=1.0, **state):
    return Server(scale * trainer.model.parameters, scale * trainer.model.buffers, state)


def a_job(client=0, count=20, rate=0.1, state=None):
    return Job(client, 3, torch.arange(count), rate, state or {})


def vectors(outcome):
    """Everything that came of a job, by name."""
    update = outcome.update
    found = {"parameters": update.parameters, "buffers": update.buffers, "finite": outcome.finite}
    for kind, named in (("message", update.message), ("state", outcome.state), ("totals", outcome.totals)):
        found |= {f"{kind}.{name}": vector for name, vector in named.items()}
    return found


def test_a_client_is_trained_as_in_a_place_of_its_own(task, train):
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


def test_nothing_that_a_step_touches_moves(task, begin):
    """A recorded step reads and writes where it did when it was recorded."""
    seen = []

    class Watching(SCAFFOLD):
        def correct_gradient(self, gradient, weights, client):
            note(gradient, weights, client.start, client.received["control"], client.state["control"])

        def correct_weights(self, weights, rate, client):
            note(weights, rate, client.start, client.received["control"], client.state["control"])

    def note(*tensors):
        seen[-1] += tensors  # held until the end: what is let go may be given out again at the same place

    class Noting(Step):
        def gather(self, schedule, step, rows):
            note(step, *schedule.values())
            return super().gather(schedule, step, rows)

        def loss(self, features, logits, used, where, step):
            note(where, step)
            return super().loss(features, logits, used, where, step)

        def update(self, model, momentum, rate, step, client):
            note(model.parameters, model.buffers, model.gradient, momentum, rate, step)
            super().update(model, momentum, rate, step, client)

    ours = task(Watching(), keep_momentum=True)
    trainer = Trainer(Noting(ours))
    control = torch.zeros_like(trainer.model.parameters)
    for number, count in enumerate([20, 3, 11]):
        seen.append([])
        state = {"control": control + number, MOMENTUM: control + number} if number else {"control": control}
        begin(trainer, a_job(number, count, state=state), a_server(trainer, control=control.clone()))
        trainer.step(weigh=True)
    places = [[tensor.data_ptr() for tensor in tensors] for tensors in seen]
    assert places[0] == places[1] == places[2] and len(places[0]) == 19 + len(ours.schedules([a_job()])[0])


def test_the_step_knows_seed_round_and_client(task, begin):
    """The place of an objective's own chance; after many clients too."""
    seen = []

    class Noting(Step):
        def loss(self, features, logits, used, where, step):
            seen.append([*where.tolist(), step.item()])
            return super().loss(features, logits, used, where, step)

    trainer = Trainer(Noting(replace(task(FedAvg()), seed=2**32 - 1)))
    for client, count in ((2**32 - 1, 20), (7, 3)):
        begin(trainer, a_job(client, count), a_server(trainer))
        trainer.next()
        trainer.next()
    assert seen == [[2**32 - 1, 3, client, step] for client in (2**32 - 1, 7) for step in (0, 1)]


def test_a_schedule_has_room_for_rehearsals_after_the_longest_client(task, begin, train):
    trainer = a_trainer(task(FedAvg()))
    job, server = a_job(count=20), a_server(trainer)
    begin(trainer, job, server)
    for _ in range(trainer.task.steps(20) + REHEARSALS):
        trainer.step(weigh=True)
    assert vectors(train(trainer, job, server))["parameters"].equal(
        vectors(train(a_trainer(trainer.task), job, server))["parameters"]
    )  # of which nothing is left


def test_work_and_outcome(task, train):
    trainer = a_trainer(task(FedAvg(), epochs=3, momentum=0.5))
    outcome = train(trainer, a_job(6, 9, 0.05), a_server(trainer))
    work = outcome.update.work
    assert (work.samples, work.steps, work.rate, work.momentum) == (9, 9, 0.05, 0.5)
    assert outcome.update.client == 6 and outcome.update.message == {} and outcome.state == {}
    assert bool(outcome.finite)


def test_space_between_segments_stays_empty(task, train):
    """Norms and sums run over whole vectors: what lies between the tensors must be 0."""
    trainer = a_trainer(task(FedAvg()))
    trained = train(trainer, a_job(count=10), a_server(trainer)).update.parameters
    gaps = torch.ones_like(trained, dtype=torch.bool)
    for segment in trainer.model.layout.parameters:
        gaps[segment.offset : segment.offset + segment.shape.numel()] = False
    assert int(gaps.sum()) > 100 and not trained[gaps].any()


@pytest.mark.parametrize("what", ["parameters", "buffers", "message"])
def test_anything_that_is_not_finite_is_noticed(task, train, what):
    class Broken(SCAFFOLD):
        def finish(self, weights, client, work):
            message, state = super().finish(weights, client, work)
            if what == "message":
                message["control_change"][0] = float("inf")
            elif what == "parameters":
                weights[-1] = float("nan")
            return message, state

    trainer = a_trainer(task(Broken()))
    zeros = torch.zeros_like(trainer.model.parameters)
    server = a_server(trainer, control=zeros)
    if what == "buffers":
        server.buffers[0] = float("nan")
    assert not train(trainer, a_job(state={"control": zeros}), server).finite


def test_what_a_client_receives_and_keeps_is_not_changed_in_place(task, train):
    trainer = a_trainer(task(SCAFFOLD(), keep_momentum=True))
    size = trainer.model.parameters.shape
    server = a_server(trainer, control=torch.full(size, 0.1))
    state = {"control": torch.full(size, 0.2), MOMENTUM: torch.full(size, 0.3)}
    parameters, buffers = server.parameters.clone(), server.buffers.clone()
    outcome = train(trainer, a_job(count=10, state=state), server)
    assert server.parameters.equal(parameters) and server.buffers.equal(buffers)
    assert [v.unique().tolist() for v in (server.state["control"], *state.values())] == [
        [pytest.approx(value)] for value in (0.1, 0.2, 0.3)
    ]
    assert set(outcome.state) == set(state)
    assert not any(outcome.state[name].equal(state[name]) for name in state)


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
def test_an_algorithm_may_return_what_it_was_given(task, keep_momentum, train):
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


def test_a_state_that_stays_and_momentum_beside_it(task, train):
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


def test_state_of_any_shape_and_type(task, train):
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


def test_a_client_without_a_state_does_not_see_anothers(point_simulation):
    """The first has taken part before; both train in the same place."""
    fresh = point_simulation(POINTS, algorithm=_Late())
    before = State(1, fresh.state.server, {0: {"rounds": torch.ones(1)}})
    simulation = Simulation(fresh.experiment, federation=fresh.federation, state=before)
    simulation.run_round()
    rounds = {client: float(state["rounds"]) for client, state in simulation.state.clients.items()}
    assert rounds == {0: 2, 1: 1}
