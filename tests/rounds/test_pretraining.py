from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from vhl.rounds.problem import Problem

from vhl.experiment import Experiment
from vhl.rounds.simulation import Simulation
from vhl.training.lanes import Lanes

VIRTUAL = {"name": "noise", "per_class": 4, "classes": 3, "crop": 0, "flip": False}


@pytest.fixture
def make(small_digits, tmp_path):
    def build(pretrain=None, **settings):
        defaults = {
            "data": small_digits(),
            "partition": "iid:4",
            "virtual": VIRTUAL,
            "model": {"name": "cnn", "width": 4},
            "objective": {"name": "vftl", "pretrain": pretrain or {}},
            "training": {"batch_size": 12, "momentum": 0.0, "weight_decay": 0.01},
            "device": "cpu",
        }
        return Experiment(**{**defaults, **settings}), tmp_path

    return build


@pytest.mark.parametrize(
    ("pretrain", "epochs", "lr", "momentum", "classes"),
    [({}, 5, 0.01, 0.9, 3), ({"epochs": 2, "lr": 0.1, "momentum": 0.5}, 2, 0.1, 0.5, 4)],
)
def test_body_is_trained_on_the_virtual_classes_and_the_head_is_fresh(
    make, as_input, torch_training, pretrain, epochs, lr, momentum, classes
):
    """The twelve virtual images are one batch, so that an ordinary loop needs no order."""
    virtual = {**VIRTUAL, "classes": classes, "per_class": 12 // classes}
    experiment, folder = make(pretrain, virtual=virtual)
    problem = Problem(experiment, folder)
    simulation = Simulation(experiment, problem=problem)
    images = as_input(problem.virtual.images.images, 0.5, 0.25)
    plain = problem.build(classes)
    sgd = torch.optim.SGD(plain.parameters(), lr, momentum, weight_decay=0.01)
    labels = torch.from_numpy(problem.virtual.images.labels)
    torch_training(plain, sgd, images, labels, [np.arange(12)] * epochs, 12)
    fresh, started = problem.initial().state_dict(), simulation.named_tensors()
    for name, tensor in plain.state_dict().items():
        if name in problem.head:
            assert started[name].equal(fresh[name])
            assert len(started[name]) == 4
        else:
            np.testing.assert_allclose(started[name], tensor, rtol=1e-3, atol=1e-5, err_msg=name)
            assert not started[name].equal(fresh[name])


def test_pretraining_samples_count_in_the_first_round(make):
    simulation = Simulation(*make({"epochs": 3}))
    assert simulation.pretraining_samples == 36
    records = [simulation.run_round() for _ in range(2)]
    assert [record.samples for record in records] == [40 + 36, 40]  # two of four clients with 20 each
    assert records[0].virtual_accuracy is None


def test_pretraining_is_the_same_every_time(make):
    one, other = (Simulation(*make(virtual={"name": "noise", "per_class": 10})) for _ in range(2))
    assert one.state.server.parameters.equal(other.state.server.parameters)
    assert one.state.server.buffers.equal(other.state.server.buffers)


def test_a_state_to_continue_from_is_not_pretrained_again(make):
    experiment, folder = make()
    first = Simulation(experiment, folder)
    first.run_round()
    second = Simulation(experiment, folder, state=first.state)
    assert second.pretraining_samples == 0
    assert second.named_tensors()["stages.0.0.weight"].equal(first.named_tensors()["stages.0.0.weight"])


def test_the_layers_see_what_was_pretrained(make):
    """They hold a shorter copy of the weights."""
    simulation = Simulation(*make({"lr": 0.1}, engine={"precision": "bf16"}))
    fresh, module = simulation.problem.initial(), simulation.model.module
    seen, trained = module.stages[0][0].weight, simulation.named_tensors()["stages.0.0.weight"]
    assert seen.equal(trained.bfloat16()) and not seen.equal(fresh.stages[0][0].weight.bfloat16())


def test_it_starts_in_the_type_of_the_run(make, monkeypatch):
    types, train = [], Lanes.train

    def noted(lanes, task, jobs, server):
        types.append((server.parameters.dtype, server.buffers.dtype))
        return train(lanes, task, jobs, server)

    monkeypatch.setattr(Lanes, "train", noted)
    Simulation(*make(engine={"precision": "fp64"}))
    assert types == [(torch.float64, torch.float64)]


def test_statistics_that_stay_from_the_first_round_on_are_those_of_pretraining(make: Any) -> None:
    plain, frozen = (
        Simulation(*make(training={"batch_size": 12, "freeze_batch_norm": after})) for after in (None, 0)
    )
    buffers = frozen.state.server.buffers
    assert buffers.equal(plain.state.server.buffers)
    frozen.run_round()
    torch.testing.assert_close(frozen.state.server.buffers, buffers)
