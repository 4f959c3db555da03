from __future__ import annotations

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from vhl.algorithms.base import Server
from vhl.algorithms.scaffold import SCAFFOLD
from vhl.config.sections import Engine
from vhl.models.cnn import CNN
from vhl.models.vectors import FlatModel
from vhl.objectives.base import Batch
from vhl.objectives.naive import Naive
from vhl.objectives.plain import Plain
from vhl.objectives.vhl import VHL
from vhl.training import lanes
from vhl.training.lanes import Lanes
from vhl.training.precision import Precision
from vhl.training.task import Job

CPU, GPU = torch.device("cpu"), torch.device("cuda")
rng = np.random.default_rng(4)
IMAGES, LABELS = rng.integers(0, 256, (20, 8, 8, 2), np.uint8), rng.integers(0, 3, 20)
VIRTUAL, VIRTUAL_LABELS = rng.integers(0, 256, (9, 8, 8, 2), np.uint8), np.arange(9) % 3


def network(norm="batch", outputs=3):
    torch.manual_seed(2)
    return CNN(width=4, norm=norm).build(outputs, 2, (8, 8))


@pytest.mark.parametrize("option", ["capture", "kernels", "compile"])
def test_what_needs_a_gpu_is_refused_on_a_cpu(digit_simulation, complains, option):
    with complains(f"engine.{option}", "GPU", "unset"):
        digit_simulation(engine={option: True})
    assert digit_simulation(engine={option: False}).run_round().round == 1


def test_what_is_unset_follows_the_device(monkeypatch):
    for triton in (True, False):
        monkeypatch.setattr(lanes, "has_triton", lambda triton=triton: triton)
        found = Lanes(Engine(), Precision(GPU, "bf16"))
        assert (found.capture, found.kernels, found.overlaps) == (True, triton, True)
        chosen = Lanes(Engine(capture=False, kernels=not triton), Precision(GPU, "bf16"))
        assert (chosen.capture, chosen.kernels) == (False, not triton)


def test_a_cpu_beside_a_gpu_is_still_a_cpu(monkeypatch):
    """Triton is there, but device = cpu: kernels cannot touch its tensors."""
    monkeypatch.setattr(lanes, "has_triton", lambda: True)
    found = Lanes(Engine(), Precision(CPU, "fp32"))
    assert (found.capture, found.kernels, found.overlaps) == (False, False, False)


@pytest.mark.parametrize(("engine", "count"), [({}, 1), ({"lanes": 1}, 1), ({"lanes": 3}, 3)])
def test_each_lane_has_a_network(small_task, server_of, engine, count):
    """On a CPU they take turns."""
    task, built = small_task(), []

    def build():
        built.append(network(outputs=6))
        return built[-1]

    jobs = [job(8, client) for client in range(5)]
    Lanes(Engine(**engine), task.precision).train(replace(task, build=build), jobs, server_of(task))
    assert len(built) == count


class Lane:
    """One lane that trains one job at a time."""

    def __init__(self, task):
        self.task, self.lanes = task, Lanes(Engine(), task.precision)
        self.model = FlatModel(task.build(), CPU)

    def train(self, job, server):
        (outcome,) = self.lanes.train(self.task, [job], server)
        return outcome


def start_of(lane, state=None):
    return Server(lane.model.parameters.clone(), lane.model.buffers.clone(), state or {})


def job(count, client=0, round_=0, rate=0.1, state=None):
    return Job(client, round_, np.arange(count), rate, state or {})


@pytest.mark.parametrize("norm", ["batch", "group"])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_local_training_is_torch_sgd(
    make_task, make_stream, as_input, passes, torch_training, norm, momentum
):
    """Ten samples in batches of 4, two epochs: six steps, two of them with fillers."""
    training = {"momentum": momentum, "weight_decay": 0.02, "batch_size": 4, "epochs": 2}
    task = make_task(lambda: network(norm).eval(), make_stream(IMAGES, LABELS), training=training, seed=5)
    lane = Lane(task)
    update = lane.train(job(10, client=3, round_=7), start_of(lane)).update
    plain = network(norm)
    sgd = torch.optim.SGD(plain.parameters(), 0.1, momentum, weight_decay=0.02)
    batches = passes(5, 7, 3, 10, 4, 2)
    torch_training(plain, sgd, as_input(IMAGES), torch.from_numpy(LABELS), batches, 10)
    trained = lane.model.layout.unpack(update.parameters, update.buffers)
    for name, tensor in plain.state_dict().items():
        np.testing.assert_allclose(trained[name], tensor, rtol=1e-4, atol=2e-6, err_msg=name)
    assert not trained["head.weight"].allclose(network(norm).state_dict()["head.weight"], atol=1e-2)


@pytest.mark.parametrize("objective", [Plain(), Naive(virtual_batch=5), VHL(virtual_batch=5)])
def test_fillers_change_neither_loss_nor_weights(make_task, make_stream, objective):
    """A client of 5 samples: batches of 5 have no filler, batches of 12 have seven."""
    trained, totals = [], []
    for batch in (5, 12):
        task = make_task(
            lambda: network("group", objective.outputs(3, 3)),
            make_stream(IMAGES, LABELS),
            virtual=make_stream(VIRTUAL, VIRTUAL_LABELS),
            objective=objective,
            training={"batch_size": batch, "epochs": 3},
        )
        lane = Lane(task)
        outcome = lane.train(job(5), start_of(lane))
        trained.append(outcome.update.parameters)
        totals.append({name: float(value) for name, value in outcome.totals.items()})
    assert totals[0] == pytest.approx(totals[1], rel=1e-5)
    np.testing.assert_allclose(trained[0], trained[1], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("objective", [Plain(), VHL(virtual_calibration=0.1)])
def test_rows_of_weight_zero_leave_the_gradient_unchanged(as_input, objective):
    model = FlatModel(network("group", 6), CPU)
    natural, virtual = as_input(IMAGES), as_input(VIRTUAL)
    labels, virtual_labels = torch.from_numpy(LABELS), torch.from_numpy(VIRTUAL_LABELS)
    gradients = []
    for rows in (6, 20):
        features, logits = model.module(torch.cat([natural[:rows], virtual]))
        weights = (torch.arange(rows) < 6).float()
        batch = Batch(features, logits, labels[:rows], weights, 3, virtual_labels)
        model.differentiate(sum(objective.loss(batch).values()))
        gradients.append(model.gradient.clone())
    np.testing.assert_allclose(gradients[0], gradients[1], rtol=1e-4, atol=1e-6)


class _Echo(nn.Module):
    """An image's pixels are its logits."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, images):
        return {"last": images.flatten(1)}, images.flatten(1) * self.scale


@pytest.mark.parametrize(("shared_labels", "virtual_hits"), [(False, 2), (True, 1)])
def test_hits_count_over_all_outputs(make_task, make_stream, shared_labels, virtual_hits):
    natural = [[9, 1, 2, 0], [1, 0, 5, 0], [3, 4, 0, 0]]  # labels 0, 0, 1: the second falls to output 2
    virtual = [[0, 0, 9, 1], [0, 0, 1, 9], [0, 9, 1, 2]]  # labels 0, 1, 1 are outputs 2, 3, 3 unless shared
    task = make_task(
        _Echo,
        make_stream(np.array(natural, np.uint8)[:, None, :, None], [0, 0, 1]),
        virtual=make_stream(np.array(virtual, np.uint8)[:, None, :, None], [0, 1, 1]),
        objective=Naive(virtual_batch=3, shared_labels=shared_labels),
        classes=2,
        training={"batch_size": 5, "epochs": 2},
    )
    lane = Lane(task)
    totals = lane.train(job(3), start_of(lane)).totals
    assert totals["natural_hits"] == 4  # two fillers a batch are not counted
    assert totals["virtual_hits"] == 2 * virtual_hits


def test_work_and_outcome(make_task, make_stream):
    training = {"batch_size": 4, "epochs": 3, "momentum": 0.5}
    lane = Lane(make_task(network, make_stream(IMAGES, LABELS), training=training))
    outcome = lane.train(job(9, client=6, rate=0.05), start_of(lane))
    work = outcome.update.work
    assert (work.samples, work.steps, work.rate, work.momentum) == (9, 9, 0.05, 0.5)
    assert outcome.update.client == 6 and outcome.update.message == {} and outcome.state == {}
    assert bool(outcome.finite)
    kept = outcome.update.parameters.clone()
    lane.train(job(4), start_of(lane))  # the lane's vectors are used again, the outcome's are its own
    assert outcome.update.parameters.equal(kept)


def test_what_a_client_receives_and_keeps_is_not_changed_in_place(make_task, make_stream):
    task = make_task(
        network, make_stream(IMAGES, LABELS), algorithm=SCAFFOLD(), training={"keep_momentum": True}
    )
    lane = Lane(task)
    size = lane.model.parameters.shape
    server = start_of(lane, {"control": torch.full(size, 0.1)})
    state = {"control": torch.full(size, 0.2), "engine.momentum": torch.full(size, 0.3)}
    before = copy.deepcopy((server, state))
    outcome = lane.train(job(10, state=state), server)
    assert server.parameters.equal(before[0].parameters) and server.buffers.equal(before[0].buffers)
    assert server.state["control"].equal(before[0].state["control"])
    assert all(state[name].equal(before[1][name]) for name in state)
    assert set(outcome.state) == set(state)
    assert not any(outcome.state[name].equal(state[name]) for name in state)


def test_space_between_segments_stays_empty(make_task, make_stream):
    """Norms and sums run over whole vectors: what lies between the tensors must be 0."""
    lane = Lane(make_task(network, make_stream(IMAGES, LABELS), training={"batch_size": 4}))
    trained = lane.train(job(10), start_of(lane)).update.parameters
    gaps = torch.ones_like(trained, dtype=torch.bool)
    for segment in lane.model.layout.parameters:
        gaps[segment.offset : segment.offset + segment.shape.numel()] = False
    assert int(gaps.sum()) > 100 and not trained[gaps].any()


def test_outcomes_come_in_the_order_of_the_jobs(make_task, make_stream):
    task = make_task(network, make_stream(IMAGES, LABELS), training={"batch_size": 4})
    server = start_of(Lane(task))
    jobs = [job(count, client) for client, count in [(4, 3), (2, 12), (9, 7), (1, 20)]]
    together = Lanes(Engine(lanes=2), task.precision).train(task, jobs, server)
    assert [outcome.update.client for outcome in together] == [4, 2, 9, 1]
    for outcome, own in zip(together, jobs, strict=True):
        alone = Lane(task).train(own, server)
        assert outcome.update.parameters.equal(alone.update.parameters)
        assert outcome.update.buffers.equal(alone.update.buffers)


@pytest.mark.parametrize("what", ["parameters", "buffers", "message"])
def test_anything_that_is_not_finite_is_noticed(make_task, make_stream, what):
    class Broken(SCAFFOLD):
        def finish(self, weights, client, work):
            message, state = super().finish(weights, client, work)
            if what == "message":
                message["control_change"][0] = float("inf")
            elif what == "parameters":
                weights[-1] = float("nan")
            return message, state

    lane = Lane(make_task(network, make_stream(IMAGES, LABELS), algorithm=Broken()))
    server = start_of(lane, {"control": torch.zeros_like(lane.model.parameters)})
    if what == "buffers":
        server.buffers[0] = float("nan")
    assert not lane.train(job(4, state=SCAFFOLD().client_state(server)), server).finite


class _Dropping(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(128, 3))

    def forward(self, images):
        return {"last": images}, self.layers(images)


def test_chance_inside_the_network_depends_on_seed_round_and_client_alone(make_task, make_stream):
    """Else dropout would differ from run to run and with the order of the clients."""
    torch.manual_seed(0)
    lane = Lane(make_task(_Dropping, make_stream(IMAGES, LABELS), training={"batch_size": 4}))
    server = start_of(lane)

    def trained(**which):
        return lane.train(job(4, **which), server).update.parameters

    trained(client=1)  # makes the network, which draws its weights
    torch.manual_seed(11)
    first = trained(client=1)
    drawn = torch.rand(3)
    torch.manual_seed(11)
    assert torch.rand(3).equal(drawn)  # the chance of others is left alone
    trained(client=2)
    assert trained(client=1).equal(first)
    # four samples in one batch: without dropout every client and round would agree but for the order
    assert not trained(client=2).allclose(first, atol=1e-3)
    assert not trained(client=1, round_=1).allclose(first, atol=1e-3)


# One client with the points a = (8, 0, 4): with η = 0.5 each step halves the distance e = w − a.
@pytest.mark.parametrize(
    ("training", "share"),
    [
        ({}, 1 - 1 / 4),
        ({"lr": 0.25}, 1 - 0.75**2),
        ({"epochs": 3}, 1 - 1 / 64),
        ({"batch_size": 1}, 1 - 1 / 16),  # the two samples are two steps
        ({"lr_decay": 0.5}, 1 - 1 / 2 * 3 / 4),
        ({"lr_drops": [1]}, 1 - 1 / 2 * 0.95),
        ({"weight_decay": 0.25}, 1 / 2 + 3 / 16),  # second gradient: −a/2 + ¼ · a/2
        ({"momentum": 0.25}, 1 - 1 / 4),  # reset: one step a round never uses it
        ({"momentum": 0.25, "keep_momentum": True}, 1 / 2 + 3 / 8),  # ¼ · a + a/2, halved
        ({"momentum": 0.25, "epochs": 2}, 1 - 1 / 64),  # e/2, then ½e − ½(¼e + ½e)
    ],
)
def test_what_each_training_option_does(point_simulation, weights_of, training, share):
    simulation = point_simulation([[(8, 0, 4)] * 2], training=training)
    for _ in range(2):
        simulation.run_round()
    np.testing.assert_allclose(weights_of(simulation), share * np.array([8, 0, 4]), rtol=1e-6)


@pytest.mark.parametrize(
    ("keep", "share", "momentum"),
    [(True, 1 + 7 / 128, [[0, -12, -3], [0, -0.75, -0.1875]]), (False, 63 / 64, None)],
)
def test_momentum_is_kept_or_reset_between_participations(
    point_simulation, weights_of, keep, share, momentum
):
    """Two steps a round, m = ¼: after round 1 the distance is e/8 and the momentum ¾e.

    Kept, round 2 goes on with 3/16 e + 1/8 e = 5/16 e, to −1/32 e; 5/64 e − 1/32 e = 3/64 e, to −7/128 e.
    """
    training = {"momentum": 0.25, "keep_momentum": keep}
    simulation = point_simulation([[(0, 16, 4)] * 3], training=training)
    for round_ in range(2):
        simulation.run_round()
        if momentum is None:
            assert simulation.state.clients == {}
        else:
            assert simulation.state.clients[0]["engine.momentum"][:3].tolist() == momentum[round_]
    assert weights_of(simulation).tolist() == [0, 16 * share, 4 * share]
